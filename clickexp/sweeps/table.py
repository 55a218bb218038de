"""What a sweep came to: sweep.parquet and sweep.csv, one row a job, and a table of means over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import get_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clickexp.loggers.tables import number
from clickexp.runs.objective import higher_is_better, stated_by
from clickexp.runs.store import (
    DONE,
    PRUNED,
    RESULT,
    Record,
    read_json,
    records,
    training_seconds,
    values,
)
from clickexp.sweeps.backends.pool import LOG
from clickexp.sweeps.view import say
from clickexp.utils.escape import csv_cell
from clickexp.utils.files import whole
from clickexp.utils.paths import display_path

Row = dict[str, Any]
SEED = "seed"


def collect(folder: Path, jobs: Path, metric: str, console: Console | None = None) -> None:
    """Writes and prints the results of the jobs below `jobs`; the files go into the sweep's folder.

    metric: the configurations are ordered by it, best first, where its results state which way it is better.
    """
    console = console or get_console()
    found = records(jobs)
    if not found:
        return
    results = [
        (read_json(Path(record.result) / RESULT) if record.status in DONE else None) or {}
        for _, record in found
    ]
    rows = [_row(record, result) for (_, record), result in zip(found, results, strict=True)]
    try:
        _write(rows, folder)
    except OSError as error:
        say(f"cannot write {display_path(folder / 'sweep.csv')}: {error}", console)
    if any(row["status"] in DONE for row in rows):
        overrides = [values(record.overrides) for _, record in found]
        better = higher_is_better(metric, stated_by(results))
        console.print(means(rows, overrides, metric, better, console))
    settled = {row["config_hash"] for row in rows if row["status"] in (*DONE, PRUNED)}
    pairs = zip(found, rows, strict=True)
    missing = [(job, row) for (job, _), row in pairs if row["config_hash"] not in settled]
    for job, row in missing:
        reason = f": {row['error']}" if row["error"] else ""
        log = f". Its log: {display_path(job / LOG)}" if (job / LOG).exists() else ""
        say(f"job {row['job']} {row['status']}{reason}{log}", console)
    states = [row["status"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    say(f"{counts}; all in {display_path(folder / 'sweep.csv')}", console)
    if missing:
        say("the same command again runs what has no result", console)


def _row(record: Record, result: Mapping[str, Any]) -> Row:
    """One job; whoever still runs when the sweep ends was interrupted. `process_seconds`: wall time of its process."""
    status = "interrupted" if record.status == "running" else record.status
    row = {"job": record.number, "status": status, **values(record.overrides)}
    earlier = Record.read(Path(record.result)) if status == "kept" else None
    timed = earlier or record
    for part in ("test", "val"):
        row |= {f"{part}/{name}": value for name, value in result.get(part, {}).items()}
    train = result.get("train", {})
    device = result.get("environment", {}).get("device")
    return row | {
        "process_seconds": timed.seconds,
        "training_seconds": training_seconds(train),
        "compile_seconds": train.get("compile_seconds"),
        "device": device,
        "slot": timed.device,
        "config_hash": record.config_hash,
        "error": record.error,
        "folder": record.result,
    }


def _write(rows: Sequence[Row], folder: Path) -> None:
    """Both files, each whole or not at all. Columns of mixed types hold text."""
    import polars as pl

    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        column = [row.get(name) for row in rows]
        kinds = {type(value) for value in column if value is not None}
        mixed = len(kinds) > 1 and not kinds <= {int, float}
        columns[name] = [value if value is None or not mixed else str(value) for value in column]
    table = pl.DataFrame(columns, strict=False)
    cells = {csv_cell(name): [*map(csv_cell, column)] for name, column in columns.items()}
    for_spreadsheets = pl.DataFrame(cells, strict=False)
    for suffix, write in (("csv", for_spreadsheets.write_csv), ("parquet", table.write_parquet)):
        with whole(folder / f"sweep.{suffix}") as part:
            write(part)


def means(
    rows: Sequence[Row],
    overrides: Sequence[Mapping[str, Any]],
    metric: str,
    better: bool | None,
    console: Console,
) -> Table:
    """Mean and standard deviation over seeds of each configuration, best first by the metric.

    overrides: those of each row. better: whether higher values of the metric are; None leaves the order as it is.
    Shown are the overrides that differ, and the metrics that the console has room for; a configuration that came twice
    counts once.
    """
    names = list(dict.fromkeys(name for given in overrides for name in given))
    differ = [name for name in names if len({repr(given.get(name)) for given in overrides}) > 1]
    shown = [name for name in differ if name.split(".")[-1] != SEED]
    done: dict[tuple, dict[str, Row]] = {}
    for row, given in zip(rows, overrides, strict=True):
        if row["status"] in DONE:
            key = tuple(_text(given.get(name)) for name in shown)
            done.setdefault(key, {})[row["config_hash"]] = row
    reported = dict.fromkeys(name for row in rows for name in row if name.startswith("test/"))
    columns = list(dict.fromkeys([metric, *reported]))
    lines = [
        (key, [_spread([row.get(name) for row in group.values()]) for name in columns], len(group))
        for key, group in done.items()
    ]
    if better is not None:
        sign = -1 if better else 1
        lines.sort(key=lambda line: math.inf if line[1][0][0] is None else sign * line[1][0][0])
    for count in range(len(columns), 0, -1):
        table = _table(shown, columns[:count], lines)
        if console.measure(table, options=console.options.update(max_width=1000)).maximum <= console.width:
            break
    return table


def _table(names: Sequence[str], metrics: Sequence[str], lines: Sequence[tuple]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for name in names:
        table.add_column(escape(name))
    for name in ("runs", *metrics):
        table.add_column(escape(name), justify="right", no_wrap=True)
    for key, spreads, runs in lines:
        table.add_row(*map(escape, key), str(runs), *(_shown(*spread) for spread in spreads[: len(metrics)]))
    return table


def _spread(sample: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard deviation, as far as there are enough values."""
    known = [value for value in sample if value is not None]
    mean = statistics.fmean(known) if known else None
    return mean, statistics.stdev(known) if len(known) > 1 else None


def _shown(mean: float | None, deviation: float | None) -> str:
    return number(mean) + ("" if deviation is None else f" ± {deviation:.4f}")


def _text(value: Any) -> str:
    return "-" if value is None else str(value)
