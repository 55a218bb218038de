"""Sessions a second of clickexp: training steps, whole epochs and evaluation, by table size and by model.

Training steps of tables with posteriors stand beside those of point estimates.

python scripts/bench/throughput.py                       # 1e5, 1e6 and 1e7 rows, 2 million sessions
python scripts/bench/throughput.py --huge                # 1e8 rows, too
python scripts/bench/throughput.py --sessions 100000 --validation 10000 --rows 100000 1000000 --repeats 3
"""

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from log import IDS, Log, drawn
from ours import MODELS, Case
from report import machine, print_table

HEADERS = (
    "ms a step",
    "M/s step",
    "M/s epoch",
    "M/s later epochs",
    "M/s evaluation",
    "s compiling",
)


class Timings:
    """Repeated timings of one case."""

    def __init__(self, case: Case):
        case.warm_up()
        self.case = case
        self.steps: list[float] = []
        self.evaluations: list[float] = []
        self.epoch: list[tuple[float, float]] = []
        self.later: list[float] = []

    def repeat(self) -> None:
        self.steps.append(self.case.step_seconds())
        self.evaluations.append(self.case.evaluation_seconds())
        self.epoch.append(self.case.epoch_seconds())
        self.later.append(self.case.later_epoch_seconds(2))

    @property
    def step_ms(self) -> float:
        return 1e3 * statistics.median(self.steps)

    def row(self) -> list[float]:
        """The medians, under HEADERS."""
        count = self.case.train.count / 1e6
        step = [self.step_ms, self.case.batch_size / self.step_ms / 1e3]
        evaluation = count / statistics.median(self.evaluations)
        seconds, compiling = (statistics.median(column) for column in zip(*self.epoch, strict=True))
        return [
            *step,
            count / seconds,
            count / statistics.median(self.later),
            evaluation,
            compiling,
        ]


def measured(cases: Iterable[Case], repeats: int) -> list[Timings]:
    """Every case in turn, again and again, so that what else the machine does hits all alike."""
    timings = [Timings(case) for case in cases]
    for timing in timings:
        timing.case.step_seconds()  # compiles
        timing.case.evaluation_seconds()
    for _ in range(repeats):
        for timing in timings:
            timing.repeat()
    return timings


def by_rows(args: argparse.Namespace) -> None:
    logs = {(ids, rows): log_of(args, ids, rows) for rows in args.rows for ids in IDS}
    cases = (Case(args.model, log, args.batch_size) for log in logs.values())
    timings = dict(zip(logs, measured(cases, args.repeats), strict=True))
    title = f"{args.model}, {args.sessions:,} training and {args.validation:,} validation sessions"
    rows = [(f"{ids} {rows:.0e}", *timing.row()) for (ids, rows), timing in timings.items()]
    print_table(
        f"{title}, batches of {args.batch_size}, median of {args.repeats}", ("rows", *HEADERS), rows
    )
    low, high = min(args.rows), max(args.rows)
    for ids in IDS:
        ratio = timings[ids, high].step_ms / timings[ids, low].step_ms
        print(f"step cost, {ids} ids, {high:.0e} : {low:.0e} rows = {ratio:.2f}")


def by_model(args: argparse.Namespace) -> None:
    log = log_of(args, "zipf", args.model_rows)
    timings = measured((Case(name, log, args.batch_size) for name in args.models), args.repeats)
    title = f"Every model, {args.model_rows:.0e} rows, zipf ids, median of {args.repeats}"
    print_table(
        title, ("model", *HEADERS), [(timing.case.name, *timing.row()) for timing in timings]
    )


def beside_numbers(args: argparse.Namespace) -> None:
    """What posteriors cost: the step at each table size, beside that of point estimates."""
    kinds = {"numbers": True, "posteriors": False}
    cells = [
        (model, rows, kind)
        for model in args.posterior_models
        for rows in args.rows
        for kind in kinds
    ]
    logs = {rows: log_of(args, "zipf", rows) for rows in args.rows}
    cases = [
        Case(model, logs[rows], args.batch_size, numbers=kinds[kind]) for model, rows, kind in cells
    ]
    times = {cell: [] for cell in cells}
    for turn in range(args.repeats + 1):
        for cell, case in zip(cells, cases, strict=True):
            seconds = case.step_seconds()
            times[cell] += [1e3 * seconds] if turn else []  # the first compiles
    table = []
    for (model, rows, kind), case in zip(cells, cases, strict=True):
        mine, numbers = times[model, rows, kind], times[model, rows, "numbers"]
        low = times[model, min(args.rows), kind]
        ratios = (statistics.median(np.divide(mine, other)) for other in (numbers, low))
        table.append(
            (
                f"{model} {rows:.0e} {kind}",
                statistics.median(mine),
                min(mine),
                *ratios,
                case.row_bytes,
            )
        )
    headers = (
        "rows",
        "ms a step",
        "least",
        ": numbers",
        f": {min(args.rows):.0e} rows",
        "bytes per row",
    )
    print_table(
        f"Training steps, zipf ids, batches of {args.batch_size}, {args.repeats} turns",
        headers,
        table,
    )


def log_of(args: argparse.Namespace, ids: str, rows: int) -> Log:
    start = time.perf_counter()
    log = drawn(args.logs, ids, rows, args.sessions, args.validation, parquet=False)
    seconds = time.perf_counter() - start
    print(f"log of {rows:.0e} rows, {ids} ids: drawn and packed, or found, in {seconds:.1f} s")
    return log


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7], help="table sizes"
    )
    parser.add_argument("--huge", action="store_true", help="1e8 rows, too (8 GB of memory)")
    parser.add_argument("--model", choices=MODELS, default="PBM", help="of the first table")
    parser.add_argument(
        "--models", choices=MODELS, nargs="*", default=list(MODELS), help="of the second"
    )
    parser.add_argument(
        "--model-rows", type=int, default=10**6, help="table size of the second table"
    )
    parser.add_argument("--posterior-models", choices=MODELS, nargs="*", default=["PBM", "UBM", "DBN"],
                        help="of the third")  # fmt: skip
    parser.add_argument("--sessions", type=int, default=2_000_000)
    parser.add_argument("--validation", type=int, default=200_000)
    parser.add_argument("--only-posteriors", action="store_true", help="the third table only")
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--logs", type=Path, default=Path("outputs/bench"), help="folder that keeps the logs"
    )
    args = parser.parse_args()
    args.rows += [10**8] if args.huge else []
    print(machine())
    if not args.only_posteriors:
        by_rows(args)
        if args.models:
            by_model(args)
    if args.posterior_models:
        beside_numbers(args)


if __name__ == "__main__":
    main()
