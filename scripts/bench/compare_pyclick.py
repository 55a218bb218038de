"""Estimates by counting and expectation-maximisation beside PyClick's, on one log in PyClick's input form.

    python scripts/bench/compare_pyclick.py --pyclick PATH/TO/PyClick
    python scripts/bench/compare_pyclick.py --pyclick PATH/TO/PyClick --log YandexClicks.txt --iterations 50

Without --log one is simulated. The first sessions train, the rest are the test; both sides read the same text.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from flax import nnx
from report import machine, print_table

from clickexp import models
from clickexp.data import Dataset, Sessions, open_yandex
from clickexp.models import ClickModel
from clickexp.simulation import simulate
from clickexp.training import CountingTrainer, EMTrainer, FitReport
from clickexp.utils.signatures import accepted

HERE = Path(__file__).resolve().parent
CLASSES = {
    "GCTR": models.GlobalCTRModel,
    "RCTR": models.RankCTRModel,
    "DCTR": models.DocumentCTRModel,
    "CM": models.CascadeModel,
    "DCM": models.DependentClickModel,
    "SDBN": models.DynamicBayesianNetwork,
    "PBM": models.PositionBasedModel,
    "UBM": models.UserBrowsingModel,
    "CCM": models.ClickChainModel,
    "DBN": models.DynamicBayesianNetwork,
}
HIDDEN = ("PBM", "UBM", "CCM", "DBN")
FIGURES = ("ll", "ppl", "cond_ppl")


def write_text(file: Path, *parts: Sessions) -> None:
    """Sessions as a text of the Yandex Relevance Prediction Challenge; a document's id is its URL."""
    number = itertools.count()
    with open(file, "w") as out:
        for part in parts:
            columns = (
                part.column(name).tolist() for name in ("query_ids", "query_doc_ids", "clicks")
            )
            for query, ids, clicks in zip(*columns, strict=True):
                session = next(number)
                out.write("\t".join(map(str, (session, 0, "Q", query, 0, *ids))) + "\n")
                clicked = itertools.compress(ids, clicks)
                out.writelines(f"{session}\t1\tC\t{document}\n" for document in clicked)


def ours(name: str, e_step: str, iterations: int, data: Dataset) -> dict[str, float]:
    """Figures of a fit, and its median seconds an iteration; the one pass that counts is timed without compilation."""
    sizes = dict(positions=data.positions, query_doc_pairs=data.query_doc_pairs)
    options = {"fix_continuation": True} if name == "SDBN" else {}
    few: dict[str, Any] = dict(eval_batch_size=data.val.count)
    if name in HIDDEN:
        trainer = EMTrainer(iterations, e_step=e_step, prior_successes=1, prior_failures=1, **few)
    else:
        trainer = CountingTrainer(**few)

    def fit() -> tuple[ClickModel, FitReport]:
        model = CLASSES[name](**accepted(CLASSES[name], sizes), **options, rngs=nnx.Rngs(0))
        return model, trainer.train(model, data.train, data.val)

    fit()  # the second does without what a process does once
    model, report = fit()
    seconds = [record["seconds"] for record in report.history]
    each = statistics.median(seconds) if name in HIDDEN else report.seconds - report.compile_seconds
    return {**trainer.evaluate(model, data.test).compute(), "seconds": each}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--pyclick", type=Path, required=True, help="folder that holds the package pyclick"
    )
    parser.add_argument("--python", default=sys.executable, help="runs PyClick, such as pypy3")
    parser.add_argument(
        "--log", type=Path, help="text in PyClick's input form; none: one is simulated"
    )
    parser.add_argument("--models", nargs="+", choices=CLASSES, default=list(CLASSES))
    parser.add_argument("--iterations", type=int, default=10, help="of expectation-maximisation")
    parser.add_argument(
        "--train", type=float, default=0.8, help="fraction of the sessions that trains"
    )
    parser.add_argument("--sessions", type=int, default=20_000, help="of the simulated log")
    parser.add_argument("--queries", type=int, default=500, help="of the simulated log")
    parser.add_argument("--logs", type=Path, default=Path("outputs/bench"), help="folder of logs")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.logs.mkdir(parents=True, exist_ok=True)
    if args.log is None:
        args.log = args.logs / f"pyclick-{args.sessions}-{args.queries}.txt"
        user = models.DynamicBayesianNetwork
        everything: dict[str, Any] = dict(
            sessions=args.sessions, queries=args.queries, train_sessions=[0, args.sessions - 2]
        )
        rest: dict[str, Any] = dict(
            val_sessions=[args.sessions - 2, args.sessions - 1],
            test_sessions=[args.sessions - 1, None],
        )
        dataset = simulate(user, **everything, **rest)
        write_text(args.log, dataset.train)
    few = 0.001  # of the sessions validate, since PyClick has no validation
    splits: dict[str, Any] = dict(
        train_sessions=args.train, val_sessions=few, test_sessions=1 - args.train - few
    )
    data = open_yandex(args.log, cache=str(args.logs / "cache"), **splits)
    start = data.train.count + data.val.count
    settings = dict(
        train=data.train.count, test=start, models=args.models, iterations=args.iterations
    )
    command = [
        args.python,
        str(HERE / "pyclick_peer.py"),
        str(args.pyclick),
        str(args.log),
        json.dumps(settings),
    ]
    print(machine(), flush=True)
    print(data.describe(), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    theirs = {line["model"]: line for line in map(json.loads, done.stdout.splitlines())}
    rows = []
    for name in args.models:
        for e_step in ("pyclick", "exact") if name in ("CCM", "DBN") else ("pyclick",):
            mine, other = ours(name, e_step, args.iterations, data), theirs[name]
            label = f"{name}, {e_step} E-step" if name in ("CCM", "DBN") else name
            figures = [f"{each[figure]:.5f}" for figure in FIGURES for each in (other, mine)]
            ratio = f"{other['seconds'] / mine['seconds']:.0f}x"
            rows.append(
                (label, *figures, f"{other['seconds']:.3g}", f"{mine['seconds']:.3g}", ratio)
            )
    headers = (
        "model",
        "PyClick ll",
        "ours",
        "ppl",
        "ours",
        "cond ppl",
        "ours",
        "s/iteration",
        "ours",
        "ratio",
    )
    print_table(f"Test figures after {args.iterations} iterations, or one count", headers, rows)
    print(
        "CM: after a click PyClick gives every outcome probability 1e-6, ours only a second click."
    )


if __name__ == "__main__":
    main()
