r"""clickexp beside CLAX, one machine, one run, as ratios: throughput, and with --fit the fit of every model.

python scripts/bench/compare.py --peer PEER/bin/python          # throughput
python scripts/bench/compare.py --peer PEER/bin/python --fit    # throughput and fit
python scripts/bench/compare.py --peer PEER/bin/python --fit --no-throughput
python scripts/bench/compare.py --peer PEER/bin/python --sessions 100000 --rows 100000 --repeats 1 \\
        --fit --fit-sessions 60000 --fit-queries 1000
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from log import IDS, Log, drawn, simulated
from report import machine, print_table

MODELS = ("CM", "PBM", "UBM", "DCM", "CCM", "DBN", "SDBN", "GCTR", "RCTR", "DCTR", "DRCTR")
COLUMNS = ("first", "later", "loader", "memory")
WORKERS = (0, 1, 2, 4)
TOLERANCE = 2e-4
STABLE = 0.1
HERE = Path(__file__).resolve().parent


class Sides:
    """Runs tasks of either side, each in a separate process."""

    def __init__(self, peer: Path, timeout: float):
        self.peer, self.timeout = peer, timeout

    def ours(self, log: Log, **settings: object) -> dict:
        return self._run(sys.executable, "ours.py", log, settings)[-1]

    def theirs(self, log: Log, **settings: object) -> list[dict]:
        return self._run(str(self.peer), "peer.py", log, settings)

    def _run(self, python: str, script: str, log: Log, settings: dict) -> list[dict]:
        command = [python, str(HERE / script), str(log.folder), json.dumps(settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]


def compare_throughput(args: argparse.Namespace, sides: Sides) -> None:
    sizes = args.sessions, args.validation
    cases = itertools.product(args.ids, args.rows)
    logs = {(ids, rows): drawn(args.logs, ids, rows, *sizes) for ids, rows in cases}
    workers = {rows: best_workers(args, sides, logs[args.ids[0], rows], rows) for rows in args.rows}
    rates = measured(args, sides, logs, workers)
    table = []
    for ids, rows in logs:
        first, later, loader, memory = (rates[ids, rows, name] / 1e6 for name in COLUMNS)
        ratios = [ours / theirs for theirs in (loader, memory) for ours in (first, later)]
        table.append((f"{ids} {rows:.0e}", first, later, loader, workers[rows], memory, *ratios))
    headers = ("rows", "ours", "ours, later epochs", "CLAX, loader", "workers", "CLAX, in memory",
               "ours : loader", "later : loader", "ours : in memory", "later : in memory")  # fmt: skip
    print_table(
        f"{args.model}: M training sessions a second of a whole epoch with data loading and validation, "
        f"{args.sessions:,} + {args.validation:,} sessions, median of {args.repeats}",
        headers,
        table,
    )


def measured(
    args: argparse.Namespace, sides: Sides, logs: dict, workers: dict
) -> dict[tuple, float]:
    """Median sessions a second for each log and column; the sides and the logs take turns."""
    rates: dict[tuple, list[float]] = defaultdict(list)
    for _ in range(args.repeats):
        for (ids, rows), log in logs.items():
            ours = sides.ours(log, task="throughput", model=args.model)
            for name in COLUMNS[:2]:
                rates[ids, rows, name].append(ours[name])
            for name, count in zip(COLUMNS[2:], (workers[rows], None), strict=True):
                rates[ids, rows, name].append(peer_rate(args, sides, log, count))
    return {key: statistics.median(values) for key, values in rates.items()}


def best_workers(args: argparse.Namespace, sides: Sides, log: Log, rows: int) -> int:
    """The num_workers with which the peer's second epoch is fastest on a part of the log."""
    probe = min(args.probe_sessions, args.sessions)
    seconds = {}
    for count in WORKERS:
        task = dict(task="throughput", model=args.model, workers=count, epochs=2, sessions=probe)
        seconds[count] = sides.theirs(log, **task)[-1]["seconds"]
    tried = ", ".join(f"{count}: {probe / each / 1e6:.3g} M/s" for count, each in seconds.items())
    best = min(seconds, key=lambda count: seconds[count])
    print(
        f"CLAX, {rows:.0e} rows, {probe:,} sessions by num_workers: {tried}; takes {best}",
        flush=True,
    )
    return best


def peer_rate(args: argparse.Namespace, sides: Sides, log: Log, workers: int | None) -> float:
    """Sessions a second of the peer's epoch; says how steady the rate was where sessions were left out."""
    count = args.peer_sessions or None
    epoch = sides.theirs(log, task="throughput", model=args.model, workers=workers, sessions=count)[
        -1
    ]
    if epoch["sessions"] < args.sessions:
        first, second = epoch["halves"]
        steady = "steady" if abs(first / second - 1) < STABLE else "NOT STEADY, do not extrapolate"
        print(f"CLAX, {log.folder.name}: {epoch['sessions']:,} sessions stand for {args.sessions:,}; halves "
              f"of the training {first:.2f} s and {second:.2f} s: {steady}", flush=True)  # fmt: skip
    return epoch["sessions"] / epoch["seconds"]


def compare_fit(args: argparse.Namespace, sides: Sides, user: str, queries: int) -> None:
    mean = args.attraction_mean
    log = simulated(args.logs, user, args.fit_sessions, queries, args.seed, attraction_mean=mean)
    impressions = log.sizes["train"] * log.positions / log.query_doc_pairs
    figures = ("ppl", "cond ppl", "epochs", "s")
    headers = ("model", "CLAX ll", *figures, "ours ll", *figures, "ll difference", "holds")
    rows, failed = [], []
    for name in args.models:
        label = "CM (marginal)" if name == "CM" else name
        task = dict(task="fit", seed=args.seed)
        theirs = sides.theirs(log, **task, model=name, batch_size=args.peer_batch_size)[-1]
        ours = sides.ours(log, **task, model=label)
        better = ours["ll"] - theirs["ll"]
        holds = better >= -TOLERANCE and ours["epochs"] <= theirs["epochs"]
        rows.append(
            (
                label,
                *fit_cells(theirs),
                *fit_cells(ours),
                f"{better:+.5f}",
                "yes" if holds else "NO",
            )
        )
        failed += [] if holds else [label]
    print_table(
        f"Fit, clicks of {user}, {queries:,} queries, {log.sizes['train']:,} training sessions, "
        f"{impressions:.0f} impressions a pair, CLAX with batches of {args.peer_batch_size}",
        headers,
        rows,
    )
    if "CM" in args.models:
        cascade = sides.ours(log, task="fit", model="CM", seed=args.seed)
        print(
            "CM (marginal): the marginal stands for the conditional probability before the first click."
        )
        print("Our default, with the true conditional, is not comparable: "
              "ll {}, ppl {}, cond ppl {}, {} epochs".format(*fit_cells(cascade)))  # fmt: skip
    print(f"holds, ours >= CLAX - {TOLERANCE} in no more epochs: {len(rows) - len(failed)} of {len(rows)}"
          + (f"; not {', '.join(failed)}" if failed else ""), flush=True)  # fmt: skip


def fit_cells(result: dict) -> list[str]:
    figures = [f"{result[name]:.5f}" for name in ("ll", "ppl", "cond_ppl")]
    return [*figures, str(result["epochs"]), f"{result['seconds']:.1f}"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", type=Path, required=True, help="python of the peer's environment")
    parser.add_argument(
        "--logs", type=Path, default=Path("outputs/bench"), help="folder that keeps the logs"
    )
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a task may take")
    parser.add_argument("--no-throughput", action="store_true")
    parser.add_argument("--model", choices=MODELS, default="PBM", help="of the throughput table")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7], help="table sizes"
    )
    parser.add_argument("--ids", choices=IDS, nargs="+", default=IDS)
    parser.add_argument("--sessions", type=int, default=2_000_000)
    parser.add_argument("--validation", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--probe-sessions", type=int, default=400_000, help="for the choice of num_workers"
    )
    parser.add_argument(
        "--peer-sessions", type=int, default=0, help="training sessions for CLAX; 0 for all"
    )
    parser.add_argument("--fit", action="store_true")
    parser.add_argument(
        "--models", choices=MODELS, nargs="+", default=MODELS, help="of the fit tables"
    )
    parser.add_argument("--users", nargs="+", default=["UserBrowsingModel"], help="model classes")
    parser.add_argument("--fit-sessions", type=int, default=300_000)
    parser.add_argument(
        "--fit-queries", type=int, nargs="+", default=[3_000, 20_000], help="of 20 documents"
    )
    parser.add_argument("--attraction-mean", type=float, default=-2.5)
    parser.add_argument(
        "--peer-batch-size", type=int, default=4096, help="of CLAX in the fit tables"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    sides = Sides(args.peer, args.timeout)
    print(machine(), flush=True)
    if not args.no_throughput:
        compare_throughput(args, sides)
    for user in args.users if args.fit else ():
        for queries in args.fit_queries:
            compare_fit(args, sides, user, queries)


if __name__ == "__main__":
    main()
