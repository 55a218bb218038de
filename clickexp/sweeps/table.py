"""The results of a sweep: sweep.parquet and sweep.csv, one row per job, and a table of means over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich import get_console
from rich.console import Console
from rich.table import Table

from clickexp.errors import UserError
from clickexp.runs.objective import higher_is_better, stated_by
from clickexp.runs.result import RunResult, Training
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
from clickexp.utils.tables.terminal import console_table, number, widest

_SEED = "seed"
_STATES = {KEPT: "kept (the same settings had a result)"}
_NDCG = ("ndcg@10", "ndcg@5", "ndcg@3", "ndcg@1")

_Row = dict[str, Any]


def collect(folder: Path, jobs: Path, metric: str, console: Console | None = None) -> None:
    """Writes and prints the results of jobs.

    Args:
        folder: The sweep's, where the files are written.
        jobs: The folder below which the jobs are.
        metric: Orders the configurations, best first, where their results state which way it is better.
        console: By default that of rich.
    """
    console = console or get_console()
    found = records(jobs)
    if not found:
        return
    results = [_result(record) for _, record in found]
    rows = [_row(record, result) for (_, record), result in zip(found, results, strict=True)]
    try:
        _write(rows, folder)
    except OSError as error:
        print_plain(f"cannot write {display_path(folder / 'sweep.csv')}: {error}", console)
    if any(row["status"] in DONE for row in rows):
        overrides = [values(record.overrides) for _, record in found]
        done = [result for result in results if result]
        order = _comparable(done, metric)
        better = higher_is_better(order, stated_by(done)) if order else None
        console.print(_means(rows, overrides, order, better, console))
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


def _result(record: Record) -> RunResult | None:
    """Returns the result of a job; None where there is none, or a damaged one, as the record then states."""
    if record.status not in DONE:
        return None
    try:
        return RunResult.read(Path(record.result))
    except UserError as error:
        record.status, record.error = "failed", f"{error}: delete {display_path(record.result)}"
        return None


def _row(record: Record, result: RunResult | None) -> _Row:
    """Returns one job; whoever still runs when the sweep ends was interrupted."""
    status = "interrupted" if record.status == "running" else record.status
    earlier = Record.read(Path(record.result)) if status == KEPT else None
    timed = earlier or record
    train, environment = (result.train, result.environment) if result else (Training(), {})
    return {
        "job": record.number,
        "status": status,
        **values(record.overrides),
        **({f"test/{name}": value for name, value in result.test.items()} if result else {}),
        **({f"val/{name}": value for name, value in result.val.items()} if result else {}),
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
    rows: Sequence[_Row],
    overrides: Sequence[Mapping[str, Any]],
    metric: str | None,
    better: bool | None,
    console: Console,
) -> Table:
    """Returns mean and standard deviation over seeds of each configuration, best first by the metric.

    It shows the overrides that differ, by their last parts where whole keys are too wide, and the metrics that the
    console has room for. A configuration that came twice counts once. Where it is not known which way is better, the
    order stays.
    """
    names = list(dict.fromkeys(name for given in overrides for name in given))
    differ = [name for name in names if len({repr(given.get(name)) for given in overrides}) > 1]
    shown = [name for name in differ if name.split(".")[-1] != _SEED]
    done: dict[tuple[str, ...], dict[str, _Row]] = {}
    for row, given in zip(rows, overrides, strict=True):
        if row["status"] in DONE:
            key = tuple("-" if given.get(name) is None else str(given[name]) for name in shown)
            done.setdefault(key, {})[row["config_hash"]] = row
    reported = dict.fromkeys(name for row in rows for name in row if name.startswith("test/"))
    first: list[str] = [metric] if metric else []
    columns = list(dict.fromkeys([*first, *reported]))
    groups = [(key, list(group.values())) for key, group in done.items()]
    if metric and better is not None:
        groups.sort(key=lambda group: _sort_key(group[1], metric, better))
    lines = [
        [*key, str(len(group)), *(_spread(group, name) for name in columns)]
        for key, group in groups
    ]
    least = len(shown) + 2

    def table(count: int, keys: Sequence[str]) -> Table:
        header = [*keys, "runs", *columns][:count]
        return console_table(header, (line[:count] for line in lines), text_columns=len(shown))

    for keys in shown, short_keys(shown):
        counts = range(len(shown) + 1 + len(columns), least - 1, -1)
        found = widest(partial(table, keys=keys), counts, console)
        if found:
            return found
    return table(least, short_keys(shown))


def _comparable(results: Sequence[RunResult], metric: str) -> str | None:
    """Returns the metric that orders results: where losses are of several kinds nDCG, and None without it.

    The loss of a click model is minus its log-likelihood, that of a ranker depends on its own loss and correction.
    """
    kinds = {"clicks" if "ll" in result.test else result.model for result in results}
    if not metric.endswith("/loss") or len(kinds) <= 1:
        return metric
    return next(
        (f"test/{name}" for name in _NDCG if all(name in result.test for result in results)), None
    )


def _reported(group: Sequence[_Row], metric: str) -> list[float]:
    return [row[metric] for row in group if row.get(metric) is not None]


def _sort_key(group: Sequence[_Row], metric: str, better: bool) -> float:
    known = _reported(group, metric)
    return (-1 if better else 1) * statistics.fmean(known) if known else math.inf


def _spread(group: Sequence[_Row], metric: str) -> str:
    """Returns mean and standard deviation, as far as there are enough values."""
    known = _reported(group, metric)
    deviation = f" ± {statistics.stdev(known):.4f}" if len(known) > 1 else ""
    return number(statistics.fmean(known) if known else None) + deviation
