"""Fits PyClick's models and prints a line of JSON for each. Needs nothing but PyClick, so that PyPy can run it.

    python pyclick_peer.py PYCLICK LOG '{"train": 16000, "test": 16020, "models": ["PBM"], "iterations": 10}'

PYCLICK is the folder that holds the package `pyclick`; LOG is a text of the Yandex Relevance Prediction Challenge.
train: so many sessions from the first on. test: number of the first session of the test.
"""

import builtins
import json
import math
import sys
import time
from importlib import import_module

MODULES = {"GCTR": "CTR", "RCTR": "CTR", "DCTR": "CTR"}


def main():
    folder, log, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    sys.path.insert(0, folder)
    builtins.xrange = range  # PyClick is written for Python 2
    parser = import_module(
        "pyclick.utils.YandexRelPredChallengeParser"
    ).YandexRelPredChallengeParser
    sessions = parser.parse(log)
    train, test = sessions[: settings["train"]], sessions[settings["test"] :]
    for name in settings["models"]:
        model = getattr(import_module("pyclick.click_models." + MODULES.get(name, name)), name)()
        passes = settings["iterations"] if hasattr(model._inference, "iter_num") else 1
        model._inference.iter_num = passes
        start = time.perf_counter()
        model.train(train)
        seconds = (time.perf_counter() - start) / passes
        print(json.dumps({"model": name, "seconds": seconds, **measured(model, test)}), flush=True)


def measured(model, sessions):
    """Mean log-likelihood a document, and perplexities averaged over ranks."""
    marginal = getattr(model, "get_full_click_probs", None) or model.predict_click_probs
    ranks = max(len(session.web_results) for session in sessions)
    shown, conditional, independent = ([0.0] * ranks for _ in range(3))
    for session in sessions:
        ranked = zip(
            session.web_results,
            model.get_conditional_click_probs(session),
            marginal(session),
            strict=True,
        )
        for rank, (result, observed, click) in enumerate(ranked):
            shown[rank] += 1
            conditional[rank] += math.log(observed)
            independent[rank] += math.log(click if result.click else 1 - click)
    perplexities = [
        sum(math.exp(-total / count) for total, count in zip(totals, shown, strict=True)) / ranks
        for totals in (independent, conditional)
    ]
    return {
        "ll": sum(conditional) / sum(shown),
        "ppl": perplexities[0],
        "cond_ppl": perplexities[1],
    }


main()
