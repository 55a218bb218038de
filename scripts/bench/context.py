"""What the context of search sessions is worth: five folds by session, paired, and a control with shuffled context.

    python scripts/bench/context.py dataset=tiangong_st dataset.path=my/sessions

For each model, the mean log-likelihood of the held-out documents with context and without, and with the context of
lists shuffled between them, in training and test alike. Differences are paired; standard errors are those of a ratio of
sums over search sessions, which are independent of each other.
"""

import argparse
from typing import Any

import jax
import numpy as np
from hydra import compose, initialize_config_dir

from clickexp.data import Dataset, Sessions
from clickexp.data.context import CONTEXT
from clickexp.data.schema import Column
from clickexp.evaluation.evaluator import Evaluator
from clickexp.experiment.build import build_model
from clickexp.experiment.conf import CONF
from clickexp.experiment.instantiate import build_trainer, constructor, model_constructor
from clickexp.experiment.overrides import canonical
from clickexp.experiment.resolve import resolve
from clickexp.metrics import LogLikelihood, MultiMetric, Perplexity
from clickexp.models import ClickModel

MODELS = {
    "UBM, no documents": ("attraction=global",),
    "UBM": (),
    "UBM, hierarchical": ("attraction=hierarchical",),
    "DBN, hierarchical": ("model=dbn", "attraction=hierarchical"),
}
COLUMNS = [each.column for each in CONTEXT.values()]
METRICS = {"conditional": LogLikelihood(), "marginal": Perplexity()}
OUTPUTS = {"conditional": "observed_conditional_log_prob", "marginal": "observed_log_prob"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="+", help="the dataset, as the command takes it")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--context", default="both", choices=("list", "document", "both"))
    parser.add_argument(
        "--models", nargs="+", default=[*MODELS], choices=[*MODELS], metavar="NAME", help="some"
    )
    given = parser.parse_args()
    log = whole(given.overrides)
    session, fold = folds(log, given.folds)
    shuffled = with_shuffled_context(log)
    print(f"{log.count:,} lists of {session.max() + 1:,} search sessions, {given.folds} folds")
    print(
        "\n| model | without | with context | shuffled | gain | gain, shuffled |\n|---|---:|---:|---:|---|---|"
    )
    for name in given.models:
        plain = (*given.overrides, *MODELS[name])
        runs = {
            "without": (log, plain),
            "with": (log, (*plain, f"+context={given.context}")),
            "shuffled": (shuffled, (*plain, f"+context={given.context}")),
        }
        values = {kind: held_out(shown, words, fold) for kind, (shown, words) in runs.items()}
        documents = values["without"]["documents"]
        sums = {kind: values[kind]["conditional"] for kind in runs}
        level = [f"{sums[kind].sum() / documents.sum():.4f}" for kind in runs]
        gains = [
            ratio(sums[kind] - sums["without"], documents, session) for kind in ("with", "shuffled")
        ]
        cells = [name, *level, *(f"{gain:+.4f} ± {error:.4f}" for gain, error in gains)]
        print(f"| {' | '.join(cells)} |", flush=True)


def folds(log: Sessions, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Search session and fold of each list, [lists] each."""
    session = np.unique(log.column("session_ids"), return_inverse=True)[1]
    return session, np.random.default_rng(1).permutation(session.max() + 1)[session] % count


def whole(overrides: list[str]) -> Sessions:
    """All parts of the log as one, with search sessions that are told apart by part."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node = resolve(compose("config", overrides), overrides).values["dataset"]
    parts = [
        part for name, part in constructor(node, "dataset")().parts.items() if name != "ranking"
    ]
    names = ["query_doc_ids", "clicks", "lengths", "query_ids"]
    columns: dict[str, Any] = {
        name: np.concatenate([part.column(name) for part in parts]) for name in names
    }
    sessions = [np.unique(part.column("session_ids"), return_inverse=True)[1] for part in parts]
    ends = np.cumsum([0, *(each.max() + 1 for each in sessions)])
    columns["session_ids"] = np.concatenate(
        [each + end for each, end in zip(sessions, ends, strict=False)]
    )
    extra = {
        Column(name, "int32"): np.concatenate([part.column(name) for part in parts])
        for name in ("document_ids", "query_numbers")
    }
    return Sessions.from_arrays(**columns, extra=extra).with_pairs(parts[0].query_doc_pairs)


def with_shuffled_context(log: Sessions) -> Sessions:
    """The log, whose lists have the context of others."""
    order = np.random.default_rng(2).permutation(log.count)
    packed: dict[str, Any] = {name: log.column(name) for name in log.columns}
    extra = {log.schema[name]: packed.pop(name) for name in ("document_ids", "query_numbers")}
    extra |= {column: log.column(column.name)[order] for column in COLUMNS}
    return Sessions.from_arrays(**packed, extra=extra).with_pairs(log.query_doc_pairs)


def held_out(log: Sessions, overrides: tuple[str, ...], fold: np.ndarray) -> dict[str, np.ndarray]:
    """Summed log-probability of the clicks of each list where its fold is the test set.

    Returns:
        `conditional`, given the clicks above, and `marginal`, [lists] each, and `documents` by list.
    """
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = canonical(overrides)
        values = resolve(compose("config", chosen), chosen).values
    sums = {name: np.zeros(log.count) for name in METRICS}
    for number in range(fold.max() + 1):
        rest = np.flatnonzero(fold != number)
        sessions = log.column("session_ids")[rest]
        is_val = np.random.default_rng(number).permutation(log.count)[sessions] % 8 == 0
        test = np.flatnonzero(fold == number)
        train, val, held = (log.select(rows) for rows in (rest[~is_val], rest[is_val], test))
        dataset = Dataset("fold", train, val, held, log.query_doc_pairs, log.positions)
        model = build_model(model_constructor(values), dataset, number)
        assert isinstance(model, ClickModel)
        build_trainer(values, {}).train(model, dataset.train, dataset.val)
        found = (
            Evaluator()
            .clicks(model, dataset.test, MultiMetric(METRICS).keep_values().metrics)
            .values()
        )
        for name, column in OUTPUTS.items():
            sums[name][test] = np.nansum(found[column][: len(test)], axis=1)
    return sums | {"documents": log.column("lengths").astype(float)}


def ratio(sums: np.ndarray, documents: np.ndarray, session: np.ndarray) -> tuple[float, float]:
    """Mean over documents and its standard error between sessions (Cochran 1977, "Sampling techniques", chapter 6)."""
    numerator, denominator = (np.bincount(session, each) for each in (sums, documents))
    mean = numerator.sum() / denominator.sum()
    residuals = numerator - mean * denominator
    count = len(residuals)
    return mean, float(np.sqrt(count / (count - 1) * (residuals**2).sum()) / denominator.sum())


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
