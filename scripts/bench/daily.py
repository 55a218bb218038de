r"""A log that grows by a day: updates of yesterday's run against refits, a window of three days, and warm starts.

python scripts/bench/daily.py                                 # PBM, ten days, some minutes
python scripts/bench/daily.py --users PBM UBM DBN --drifts none jump layout --seeds 0 1
python scripts/bench/daily.py --policy medium                 # lists in the order of a policy
python scripts/bench/daily.py --full-tables                   # tables that do not grow, whose programs compile once
python scripts/bench/daily.py --rows 100000 1000000 10000000  # what a step costs with what earlier logs say
python scripts/bench/daily.py --log FOLDER                    # real search sessions, dataset=tiangong_st, in five parts

Of the pairs, 55% are there on the first day, and the others appear over the days. Drifts come on day 6:
`jump` resamples 30% of the attractions, and `layout` makes examination fall faster, or
users of DBN leave sooner.
"""

import argparse
import dataclasses
import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import methods
import numpy as np
import parameters
import polars as pl
import users
from log import Log, drawn
from ours import Case
from report import machine, print_table
from users import POSITIONS, Design, Parameters, Part, SimulatedLog

import clickexp
from clickexp.models import ClickModel
from clickexp.posteriors.shared import SharedPosterior
from clickexp.runs.store import SHARED
from clickexp.updates.seen import Seen

MODELS = {"PBM": "pbm", "UBM": "ubm", "DBN": "dbn", "DCTR": "dctr"}
METHODS = (
    *("refit", "update", "update, half-life 3", "update by half days"),
    *("window", "warm start", "today"),
)
ALONE = "refit", "window", "today"
"""What needs no fit of the day before."""
PRIOR = {"update, half-life 3": ["prior.half_life=3"], "warm start": ["prior.warm=true"]}
DRIFTS = ("none", "jump", "layout")
CHANGED_ON = 5
"""Day from 0 on which drifts come."""
WINDOW = 3
NEW = 0.45
"""Share of the pairs that the first day does not have."""
QUIET: dict[str, Any] = dict(logger="jsonl", report=False, progress="off", keep_values=False)


@dataclasses.dataclass(frozen=True)
class Day:
    """Sessions of a day, and who clicks on it.

    Attributes:
        truth: Parameters of the user.
        train: Training sessions.
        val: Validation sessions.
        test: Test sessions.
    """

    truth: Parameters
    train: Part
    val: Part
    test: Part


def days_of(args: argparse.Namespace, design: Design, drift: str, seed: int) -> Iterator[Day]:
    """Yields days; pairs have numbers in the order in which they appear."""
    rng = np.random.default_rng(seed)
    rows = design.pairs + 1
    attraction = rng.normal(*users.ATTRACTION, rows)
    satisfaction = rng.normal(0, 1, rows) if design.user == "DBN" else None
    shared = users.SHARED[design.user]
    born = np.sort(np.where(rng.random(rows) < NEW, rng.integers(0, args.days, rows), 0))
    pair_of = np.append(0, 1 + rng.permutation(design.pairs))  # which candidate of a query it is
    for day in range(args.days):
        if day == CHANGED_ON and drift == "jump":
            new = rng.random(rows) < 0.3
            attraction = np.where(new, rng.normal(*users.ATTRACTION, rows), attraction)
        if day == CHANGED_ON and drift == "layout":
            shared = {role: steeper(values) for role, values in shared.items()}
        truth = Parameters(shared, attraction, satisfaction)
        sizes = args.sessions, args.sessions // 10, 4000
        yield Day(truth, *(sampled(design, truth, born <= day, pair_of, n, rng) for n in sizes))


def steeper(probabilities: np.ndarray) -> np.ndarray:
    """Examination by rank that falls as r^-1.2 where it fell as r^-.7; continuation that is .72 where it was .9."""
    if np.size(probabilities) == 1:
        return 0.8 * probabilities
    ranks = np.arange(1, POSITIONS + 1).reshape(-1, *[1] * (probabilities.ndim - 1))
    return probabilities * ranks**-0.5


def sampled(
    design: Design,
    truth: Parameters,
    alive: np.ndarray,
    pair_of: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> Part:
    """Sessions of queries by popularity; lists show ten of the documents that there are, by the policy."""
    popularity = np.arange(1, design.queries + 1, dtype=float) ** -design.skew
    query = rng.choice(design.queries, count, p=popularity / popularity.sum())
    candidates = pair_of[1 + query[:, None] * design.documents + np.arange(design.documents)]
    scores = rng.standard_normal(candidates.shape)
    quality = (truth.attraction - users.ATTRACTION[0]) / users.ATTRACTION[1]
    scores += users.POLICIES[design.policy] * quality[candidates]
    best = np.argsort(np.where(alive[candidates], -scores, np.inf), axis=1)[:, :POSITIONS]
    ids = np.take_along_axis(candidates, best, axis=1).astype(np.int32)
    clicks = np.zeros(ids.shape, bool)

    def clicks_at(rank: int, probability: np.ndarray) -> np.ndarray:
        clicks[:, rank] = rng.random(len(ids)) < probability
        return clicks[:, rank]

    users.walk(design.user, truth, ids, clicks_at)
    return Part(ids, clicks)


def joined(parts: Sequence[Part]) -> Part:
    """The sessions of several days."""
    return Part(
        *(np.concatenate([getattr(each, name) for each in parts]) for name in ("ids", "clicks"))
    )


def halves(day: Day) -> list[Day]:
    """The day as two, each with half of the training sessions."""
    middle = len(day.train.ids) // 2
    parts = slice(middle), slice(middle, None)
    return [
        dataclasses.replace(day, train=Part(day.train.ids[part], day.train.clicks[part]))
        for part in parts
    ]


def written(folder: Path, days: Sequence[Day], at: int, name: str, pairs: int | None) -> list[str]:
    """Writes the sessions of some days, validated and tested on the last; returns overrides for them.

    Args:
        folder: Where to.
        days: The days.
        at: Number of the last one.
        name: Of the file.
        pairs: That tables have rows for; None for the largest that the sessions show.
    """
    last = days[-1]
    parts = [joined([day.train for day in days]), last.val, last.test]
    whole = joined(parts)
    file = folder / f"{name}.parquet"
    dates = pl.datetime(2026, 1, 1) + pl.duration(days=at)
    columns = {"query_doc_ids": whole.ids, "clicks": whole.clicks}
    table = pl.DataFrame({name: pl.Series(each).arr.to_list() for name, each in columns.items()})
    table.with_columns(time=dates).write_parquet(file)
    ends = np.cumsum([0, *(len(part.ids) for part in parts)]).tolist()
    splits = zip(("train", "val", "test"), itertools.pairwise(ends), strict=True)
    return [
        "dataset=lists",
        f"dataset.path={file}",
        "dataset.columns.time=time",
        f"dataset.query_doc_pairs={'null' if pairs is None else pairs}",
        *(f"dataset.{name}_sessions=[{start},{stop}]" for name, (start, stop) in splits),
    ]


def compared(
    args: argparse.Namespace, user: str, drift: str, seed: int, folder: Path
) -> list[dict]:
    """A line of figures for each method and day."""
    design = Design(user, args.policy, 0.5, 10, args.queries, args.documents)
    pairs = design.pairs if args.full_tables else None
    days: list[Day] = []
    last: dict[str, clickexp.FittedRun] = {}
    lines = []
    for at, day in enumerate(days_of(args, design, drift, seed)):
        days.append(day)
        for method in args.methods:
            if method in ALONE and at + 1 not in args.show:
                continue
            shown = {"refit": days, "window": days[-WINDOW:]}.get(method, [day])
            by_halves = at and method == "update by half days"
            logs = [[half] for half in halves(day)] if by_halves else [shown]
            for part, log in enumerate(logs):
                name = f"{method.replace(', ', '-').replace(' ', '-')}-{at}-{part}"
                words = written(folder, log, at, name, pairs)
                if at and method not in ALONE:
                    words += [f"prior={last[method].folder}", *PRIOR.get(method, ())]
                run = clickexp.run(
                    *words,
                    f"model={MODELS[user]}",
                    f"seed={seed}",
                    folder=folder / name,
                    **QUIET,
                )
                last[method] = run
            if at + 1 in args.show:
                case = dict(method=method, day=at + 1, user=user, drift=drift, seed=seed)
                lines.append(line_of(design, days, last[method]) | case)
    return lines


def of_log(args: argparse.Namespace, user: str, folder: Path) -> list[list[object]]:
    """Fits a log of search sessions, cut into parts in its order, with the same held-out sessions; rows by part."""
    source = {file.name.partition("_")[0]: file for file in args.log.glob("*_per_query_quid.txt")}
    lines = source.pop("train").read_text().splitlines(keepends=True)
    searches = list(dict.fromkeys(line.partition("\t")[0] for line in lines))
    part_of = {search: at * args.parts // len(searches) for at, search in enumerate(searches)}
    last, rows = {}, []
    methods_of_parts = [name for name in ("refit", "update", "warm start") if name in args.methods]
    for part, method in itertools.product(range(args.parts), methods_of_parts):
        days = range(part + 1) if method == "refit" else [part]
        data = folder / f"{part}-{len(days)}"
        data.mkdir(exist_ok=True)
        for file in source.values():
            (data / file.name).write_bytes(file.read_bytes())
        shown = [line for line in lines if part_of[line.partition("\t")[0]] in days]
        (data / "train_per_query_quid.txt").write_text("".join(shown))
        words = ["dataset=tiangong_st", f"dataset.path={data}", f"model={MODELS[user]}"]
        words += [f"prior={last[method].folder}"] if part and method != "refit" else []
        words += ["prior.warm=true"] if part and method == "warm start" else []
        run = clickexp.run(*words, folder=folder / f"{method.split()[0]}-{part}", **QUIET)
        last[method] = run
        test, update = run.result.test, run.result.update
        changed = bool(update and update.changes)
        cells = f"{test['ll']:.5f}", f"{run.result.train.sessions:,}", changed
        rows.append([f"{method}, part {part + 1}", *cells])
    return rows


class Continued(Case):
    """A model whose rows hold what earlier logs say."""

    def __init__(self, name: str, log: Log):
        super().__init__(name, log)
        self.build = functools.partial(with_sites, self.build)


def with_sites(build: Callable[[], ClickModel]) -> ClickModel:
    """A model with sites of precision 1."""
    model: Any = build()
    rows = model.attraction.table.get_value()
    sites = np.zeros((len(rows.values), 2 * rows.dim), np.float32)
    sites[:, : rows.dim] = 1.0
    values = np.concatenate([np.asarray(rows.values), sites], axis=1)
    rows = dataclasses.replace(rows, values=jnp.asarray(values), has_sites=True)
    model.attraction.table.set_value(rows)
    return model


def steps(args: argparse.Namespace) -> None:
    """Prints what a training step costs, in turn without and with sites."""
    table = []
    for rows in args.rows:
        log = drawn(args.logs, "zipf", rows, 400_000, 20_000)
        cases = [Case("PBM", log), Continued("PBM", log)]
        for case in cases:
            case.step_seconds()
        timings = np.array([[timed(case) for case in cases] for _ in range(15)])
        without, with_them = np.median(timings[..., 0], axis=0)
        ratios = np.median(timings[:, 1] / timings[:, 0], axis=0)
        table.append([f"{rows:.0e}", 1e3 * without, 1e3 * with_them, *ratios])
    headers = ["rows", "ms a step", "with sites", "ratio", "of processor seconds"]
    print_table("PBM, batches of 4,096 sessions, medians of 15", headers, table)


def timed(case: Case) -> tuple[float, float]:
    """Seconds of a step, and processor seconds of all, which are the same where others use the machine."""
    start = time.process_time()
    return case.step_seconds(), time.process_time() - start


def line_of(design: Design, days: Sequence[Day], run: clickexp.FittedRun) -> dict:
    """Figures of a fit; pairs that no day has shown do not count."""
    day, largest = days[-1], run.dataset.query_doc_pairs
    every = joined([each.train for each in days])
    design = dataclasses.replace(design, queries=1, documents=largest)
    truth = dataclasses.replace(
        day.truth,
        attraction=day.truth.attraction[: largest + 1],
        satisfaction=None
        if day.truth.satisfaction is None
        else day.truth.satisfaction[: largest + 1],
    )
    log = SimulatedLog(design, truth, every, day.val, day.test)
    known = SharedPosterior.load(run.folder / SHARED) if (run.folder / SHARED).exists() else None
    queries = Seen.load(run.folder / "seen.npz").queries
    assert isinstance(run.model, ClickModel)
    fitted = methods.estimates(
        design.user, run.model, run.dataset.train, log, 0.0, known, queries=queries
    )
    found = parameters.figures(log, fitted)
    shown = np.unique(every.ids)
    assert fitted.parameters is not None  # as click models of these users have them
    error = fitted.parameters.attraction[shown] - truth.attraction[shown]
    found["logit error"] = float(error.std())
    trained = run.result.train
    found |= {"sessions": trained.sessions, "seconds": trained.training_seconds}
    update = run.result.update
    found["changed"] = 0.0 if update is None else float(bool(update.changes))
    return found


COLUMNS = {
    "log-likelihood": ("test ll - truth, 1e-4", lambda value: f"{1e4 * value:.1f}"),
    "logit error": ("logit error", "{:.3f}".format),
    "examination": ("examination", "{:.2%}".format),
    "continuation": ("continuation", "{:.4f}".format),
    "coverage of attraction, shown": ("intervals hold", "{:.3f}".format),
    "coverage of shared": ("shared hold", "{:.3f}".format),
    "sessions": ("sessions passed", "{:,.0f}".format),
    "seconds": ("seconds", "{:.1f}".format),
    "changed": ("changes seen", "{:.2f}".format),
}


def show(lines: Sequence[dict], days: Sequence[int]) -> None:
    """Prints a table per user and drift: a row per method and day, means over seeds."""
    for user, drift in dict.fromkeys((line["user"], line["drift"]) for line in lines):
        own = [line for line in lines if (line["user"], line["drift"]) == (user, drift)]
        columns = [name for name in COLUMNS if any(name in line for line in own)]
        rows = []
        for day, method in itertools.product(days, dict.fromkeys(line["method"] for line in own)):
            some = [line for line in own if line["method"] == method and line["day"] == day]
            if some:
                values = [[line[name] for line in some if name in line] for name in columns]
                cells = [
                    COLUMNS[n][1](statistics.mean(v)) if v else ""
                    for n, v in zip(columns, values, strict=True)
                ]
                rows.append([f"{method}, day {day}", *cells])
        print_table(f"{user}, drift: {drift}", ["method", *(COLUMNS[n][0] for n in columns)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", nargs="+", choices=MODELS, default=["PBM"])
    parser.add_argument("--drifts", nargs="+", choices=DRIFTS, default=["none"])
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=["refit", "update", "window", "warm start"]
    )
    parser.add_argument("--policy", choices=users.POLICIES, default="random")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--sessions", type=int, default=16_000, help="training sessions a day")
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--documents", type=int, default=15, help="per query")
    parser.add_argument(
        "--full-tables", action="store_true", help="tables have rows for all pairs from day 1 on"
    )
    parser.add_argument("--log", type=Path, help="folder of a log of dataset=tiangong_st")
    parser.add_argument("--rows", nargs="+", type=int, help="of tables whose steps are timed")
    parser.add_argument("--logs", type=Path, default=Path("outputs/bench"), help="kept for --rows")
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument(
        "--show",
        nargs="+",
        type=int,
        default=[2, 5, 6, 10],
        help="days of the tables; others have no refits",
    )
    args = parser.parse_args()
    print(machine(), flush=True)
    if args.rows:
        steps(args)
        return
    if args.log:
        for user in args.users:
            with tempfile.TemporaryDirectory() as folder:
                rows = of_log(args, user, Path(folder))
            headers = ["method", "test ll", "sessions passed", "changes seen"]
            print_table(f"{user} on {args.log.name} in {args.parts} parts", headers, rows)
        return
    for user, drift in itertools.product(args.users, args.drifts):
        lines = []
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as folder:
                lines += compared(args, user, drift, seed, Path(folder))
        show(lines, args.show)


if __name__ == "__main__":
    main()
