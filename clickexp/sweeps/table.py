"""The results of a sweep: sweep.parquet and sweep.csv, one row per job, and a table of means over seeds."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import get_console
from rich.console import Console
from rich.table import Table as RichTable

from clickexp.errors import UserError
from clickexp.runs.objective import (
    higher_is_better,
    is_loss,
    mixes_losses,
    objective,
    stated_by,
)
from clickexp.runs.run import Run, Training, by_warning
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
from clickexp.utils.tables.terminal import fitting, folded

if TYPE_CHECKING:
    from clickexp.results.groups import Group

_NDCG = ("ndcg@10", "ndcg@5", "ndcg@3", "ndcg@1")
_STATES = {KEPT: "kept (the same settings had a result)"}

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
    of_jobs = records(jobs)
    if not of_jobs:
        return None
    by_job = [_run(record) for _, record in of_jobs]
    rows = [_row(record, run) for (_, record), run in zip(of_jobs, by_job, strict=True)]
    try:
        _write(rows, folder)
    except OSError as error:
        print_plain(f"cannot write {display_path(folder / 'sweep.csv')}: {error}", console)
    best, runs = None, [run for run in by_job if run]
    if runs:
        order = _comparable(runs, metric)
        console.print(_means(runs, order, console))
        best = _best(runs, order)
        _print_warnings(runs, console)
    _print_states([job for job, _ in of_jobs], rows, folder, console)
    return best


def _print_warnings(runs: Sequence[Run], console: Console) -> None:
    """Prints each distinct warning of the runs once, with the number of runs that have it."""
    for warning, warned in by_warning(runs).items():
        text = f"warning of {len(warned)} of {len(runs)} runs: {warning}"
        print_plain(folded(text, console), console)


def _print_states(
    jobs: Sequence[Path], rows: Sequence[_Row], folder: Path, console: Console
) -> None:
    """Prints the jobs without a result, how many have one, and how to go on."""
    done = {row["config_hash"] for row in rows if row["status"] in (*DONE, PRUNED)}
    missing = [
        (job, row) for job, row in zip(jobs, rows, strict=True) if row["config_hash"] not in done
    ]
    for job, row in missing:
        reason = f": {row['error']}" if row["error"] else ""
        print_plain(f"job {row['job']} {row['status']}{reason}{see_log(job / LOG)}", console)
    print_plain(f"{_counts(rows)}; all in {display_path(folder / 'sweep.csv')}", console)
    if missing:
        print_plain("the same command again runs what has no result", console)
    elif len(rows) > 1:
        print_plain(f"next: clickexp-compare {display_path(folder)}", console)


def _counts(rows: Sequence[_Row]) -> str:
    """How many jobs have each status."""
    states = Counter(row["status"] for row in rows)
    return ", ".join(f"{count} {_STATES.get(state, state)}" for state, count in states.items())


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
        part.write_text(csv_text(table.columns, table.rows()))


def _means(runs: Sequence[Run], order: str | None, console: Console) -> RichTable:
    """Returns mean and standard deviation over seeds of each configuration, best first by a metric.

    It shows the overrides that differ, and the metrics that the console has room for. A configuration that came twice
    counts once.
    """
    # here, since a launcher imports this file before it starts the processes of jobs
    from clickexp.results.comparison import best_first
    from clickexp.results.groups import experiments, groups_of, varying

    groups = groups_of(experiments({run.same: run for run in runs}.values()))
    if order:
        groups = best_first(groups, _in_run(order))
    keys = varying([group.overrides for group in groups])
    tested = [f"test/{name}" for run in runs for name in run.test]
    metrics = list(dict.fromkeys([order, *tested] if order else tested))
    columns = [_column(groups, metric) for metric in metrics]
    rows = [
        [*_settings(group, keys), str(len(group.runs)), *cells]
        for group, *cells in zip(groups, *columns, strict=True)
    ]
    header = [*short_keys(keys), "runs", *metrics]
    align = "l" * len(keys) + "r" * (1 + len(metrics))
    table = Table(header, rows, align=align)
    return fitting(table, console, len(keys) + 2, deviations=True)


def _settings(group: "Group", keys: Sequence[str]) -> list[str]:
    """The values of these overrides, a dash where a group has none."""
    values = [group.overrides.get(key) for key in keys]
    return ["-" if value is None else str(value) for value in values]


def _column(groups: Sequence["Group"], metric: str) -> list[Cell]:
    """The mean of each group, with its uncertainty."""
    name = _in_run(metric)
    means = [float(group.spread(name).mean) for group in groups]
    # seeds move all configurations alike, so that differences show in further decimals
    texts = rounded(means, [group.uncertainty(name, "seeds") for group in groups], more=2)
    return [
        Cell(text[0], group.beside(name, *text)) for group, text in zip(groups, texts, strict=True)
    ]


def _in_run(metric: str) -> str:
    """The name of a metric such as test/ll in a run."""
    return metric.removeprefix("test/")


def _best(runs: Sequence[Run], metric: str | None) -> Run | None:
    """Returns the run with the best value, the first of equals; None where it is not known which way is better."""
    better = higher_is_better(metric, stated_by(runs)) if metric else None
    values = [(objective(run, metric), run) for run in runs] if metric else []
    measured = [(value, run) for value, run in values if not math.isnan(value)]
    if better is None or not measured:
        return None
    choose = max if better else min
    return choose(measured, key=lambda pair: pair[0])[1]


def _comparable(runs: Sequence[Run], metric: str) -> str | None:
    """Returns the metric that orders runs: where losses are of several kinds nDCG, and None without it."""
    if not is_loss(metric) or not mixes_losses(runs):
        return metric
    ranked = (name for name in _NDCG if all(name in run.test for run in runs))
    return next((f"test/{name}" for name in ranked), None)
