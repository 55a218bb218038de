"""The results of a sweep: sweep.parquet and sweep.csv, one row per job, and a table of means over seeds."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import get_console
from rich.console import Console
from rich.table import Table as RichTable

from clickexp.errors import UserError
from clickexp.runs.objective import higher_is_better, objective, stated_by
from clickexp.runs.run import Run, Training
from clickexp.runs.store import (
    DONE,
    KEPT,
    PRUNED,
    Record,
    records,
    short_keys,
    values,
)
from clickexp.sweeps.backends.base import LOG
from clickexp.sweeps.view import print_plain, see_log
from clickexp.utils.escape import csv_text
from clickexp.utils.files import whole
from clickexp.utils.paths import display_path
from clickexp.utils.tables.numbers import rounded
from clickexp.utils.tables.table import Cell, Table
from clickexp.utils.tables.terminal import terminal, widest

if TYPE_CHECKING:
    from clickexp.results.groups import Group

_STATES = {KEPT: "kept (the same settings had a result)"}
_NDCG = ("ndcg@10", "ndcg@5", "ndcg@3", "ndcg@1")

_Row = dict[str, Any]


def collect(folder: Path, jobs: Path, metric: str, console: Console | None = None) -> Run | None:
    """Writes and prints the results of jobs.

    Args:
        folder: The sweep's, where the files are written.
        jobs: The folder below which the jobs are.
        metric: Orders the configurations, best first, where their results state which way it is better.
        console: By default that of rich.

    Returns:
        The best run by the metric; None where no job has a result, or it is not known which way is better.
    """
    console = console or get_console()
    found = records(jobs)
    if not found:
        return None
    runs = [_run(record) for _, record in found]
    rows = [_row(record, run) for (_, record), run in zip(found, runs, strict=True)]
    try:
        _write(rows, folder)
    except OSError as error:
        print_plain(f"cannot write {display_path(folder / 'sweep.csv')}: {error}", console)
    best = None
    if any(row["status"] in DONE for row in rows):
        done = [run for run in runs if run]
        order = _comparable(done, metric)
        better = higher_is_better(order, stated_by(done)) if order else None
        console.print(_means(done, order, better, console))
        best = _best(done, order, better)
    settled = {row["config_hash"] for row in rows if row["status"] in (*DONE, PRUNED)}
    pairs = zip(found, rows, strict=True)
    missing = [(job, row) for (job, _), row in pairs if row["config_hash"] not in settled]
    for job, row in missing:
        reason = f": {row['error']}" if row["error"] else ""
        print_plain(f"job {row['job']} {row['status']}{reason}{see_log(job / LOG)}", console)
    states = [row["status"] for row in rows]
    counts = ", ".join(
        f"{states.count(state)} {_STATES.get(state, state)}" for state in dict.fromkeys(states)
    )
    print_plain(f"{counts}; all in {display_path(folder / 'sweep.csv')}", console)
    if missing:
        print_plain("the same command again runs what has no result", console)
    elif len(rows) > 1:
        print_plain(f"next: clickexp-compare {display_path(folder)}", console)
    return best


def _run(record: Record) -> Run | None:
    """Returns the run of a job; None where there is none, or a damaged one, as the record then states."""
    if record.status not in DONE:
        return None
    try:
        run = Run.read(Path(record.result))
        return run.model_copy(update={"words": tuple(record.overrides)})
    except UserError as error:
        record.status, record.error = "failed", f"{error}: delete {display_path(record.result)}"
        return None


def _row(record: Record, run: Run | None) -> _Row:
    """Returns one job; whoever still runs when the sweep ends was interrupted."""
    status = "interrupted" if record.status == "running" else record.status
    earlier = Record.read(Path(record.result)) if status == KEPT else None
    timed = earlier or record
    train, environment = (run.train, run.environment) if run else (Training(), {})
    return {
        "job": record.number,
        "status": status,
        **values(record.overrides),
        **({f"test/{name}": value for name, value in run.test.items()} if run else {}),
        **({f"val/{name}": value for name, value in run.val.items()} if run else {}),
        "process_seconds": timed.seconds,  # wall time
        "training_seconds": train.training_seconds,
        "compile_seconds": train.compile_seconds,
        "device": environment.get("device"),
        "slot": timed.device,
        "config_hash": record.config_hash,
        "error": record.error,
        "folder": record.result,
    }


def _write(rows: Sequence[_Row], folder: Path) -> None:
    """Writes both files, each whole or not at all. Columns of mixed types hold text."""
    import polars as pl

    table = pl.DataFrame(rows, strict=False, infer_schema_length=None)
    with whole(folder / "sweep.parquet") as part:
        table.write_parquet(part)
    with whole(folder / "sweep.csv") as part:
        part.write_text(csv_text(table.rows(named=True)))


def _means(
    runs: Iterable[Run], metric: str | None, better: bool | None, console: Console
) -> RichTable:
    """Returns mean and standard deviation over seeds of each configuration, best first by the metric.

    It shows the overrides that differ, by their last parts where whole keys are too wide, and the metrics that the
    console has room for. A configuration that came twice counts once. Where it is not known which way is better, the
    order stays.
    """
    # here, since a launcher imports this file before it starts the processes of jobs
    from clickexp.results.groups import experiments, groups_of, varying

    groups = groups_of(experiments({run.same: run for run in runs}.values()))
    if metric and better is not None:
        groups.sort(key=lambda group: _sort_key(group, metric, better))
    keys = varying([group.overrides for group in groups])
    reported = (f"test/{name}" for group in groups for run in group.runs for name in run.test)
    metrics: list[str] = list(dict.fromkeys([*([metric] if metric else []), *reported]))
    columns: list[list[str | Cell]] = [
        ["-" if (value := group.overrides.get(key)) is None else str(value) for group in groups]
        for key in keys
    ]
    columns.append([str(len(group.runs)) for group in groups])
    for name in metrics:
        spreads = [group.spread(_in_run(name)) for group in groups]
        means = [float(each.mean) for each in spreads]
        deviations = [group.uncertainty(_in_run(name), "seeds") for group in groups]
        # seeds move all configurations alike, so that differences show in further decimals
        texts = zip(groups, rounded(means, deviations, more=2), strict=True)
        columns.append([Cell(pair[0], group.beside(_in_run(name), *pair)) for group, pair in texts])
    rows = list(zip(*columns, strict=True))
    least = len(keys) + 2
    align = "l" * len(keys) + "r" * (1 + len(metrics))

    def drawn(count: int, names: Sequence[str]) -> RichTable:
        return terminal(Table([*names, "runs", *metrics], rows, align=align), count)

    for names in keys, short_keys(keys):
        counts = range(len(columns), least - 1, -1)
        if found := widest(partial(drawn, names=names), counts, console):
            return found
    return drawn(least, short_keys(keys))


def _in_run(metric: str) -> str:
    """The name of a metric such as test/ll in a run."""
    return metric.removeprefix("test/")


def _sort_key(group: "Group", metric: str, better: bool) -> float:
    mean = float(group.spread(_in_run(metric)).mean)
    return math.inf if math.isnan(mean) else -mean if better else mean


def _best(runs: Sequence[Run], metric: str | None, better: bool | None) -> Run | None:
    """Returns the run with the best value, the first of equals."""
    if metric is None or better is None:
        return None
    values = [(objective(run, metric), run) for run in runs]
    known = [(value, run) for value, run in values if not math.isnan(value)]
    choose = max if better else min
    return choose(known, key=lambda pair: pair[0])[1] if known else None


def _comparable(runs: Sequence[Run], metric: str) -> str | None:
    """Returns the metric that orders runs: where losses are of several kinds nDCG, and None without it.

    The loss of a click model is minus its log-likelihood, that of a ranker depends on its own loss and correction.
    """
    kinds = {"clicks" if "ll" in run.test else run.model for run in runs}
    if not metric.endswith("/loss") or len(kinds) <= 1:
        return metric
    return next((f"test/{name}" for name in _NDCG if all(name in run.test for run in runs)), None)
