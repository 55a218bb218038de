"""The work of `clickexp-data`: prepare, inspect and verify logs."""

import hashlib
import inspect
import shlex
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from rich.console import Console

from clickexp.cli import log_report as report
from clickexp.data import Dataset
from clickexp.data.checksums import REMEDY
from clickexp.data.description import NAMES, is_log
from clickexp.data.ingest.layouts import time_column
from clickexp.data.ingest.source_table import PACKED_NAMES, TextForm
from clickexp.data.inspect.alike import alike_names
from clickexp.data.inspect.context import context_summaries
from clickexp.data.inspect.doubts import doubts, examination_doubts
from clickexp.data.inspect.identifiability import identifiability
from clickexp.data.inspect.layout import Detected, detect
from clickexp.data.inspect.layouts import LENGTH, click_rates, groupings
from clickexp.data.inspect.spans import future_in_training, spans
from clickexp.data.inspect.summary import summaries
from clickexp.data.inspect.unread import TIME, formats_of_dates, unread_columns
from clickexp.data.log_format import LogFormat, prepare
from clickexp.data.names import read_names
from clickexp.data.prepared import open_prepared, verify_log
from clickexp.data.shares.prepare import sharing
from clickexp.errors import ConfigError, DataError, FaultyLogError, reason
from clickexp.experiment.formats import FORMATS
from clickexp.runs.store import IDS
from clickexp.sweeps.preparing import Workers
from clickexp.utils.escape import printable_lines, slug
from clickexp.utils.files import check_source
from clickexp.utils.paths import display_path
from clickexp.utils.progress import Steps
from clickexp.utils.signatures import (
    check_arguments,
    flat_options,
    located,
    merged,
    of_dataset,
    parsed_options,
)
from clickexp.utils.sources import source_path
from clickexp.utils.suggest import did_you_mean
from clickexp.utils.tables.table import Table
from clickexp.utils.tables.terminal import fitting
from clickexp.utils.text import byte_size

_OF_PAGES = ("lists", "impressions")
"""Formats of tables whose pages may have layouts."""
_OWN_FIGURES = ("context", "click_rate", "click_rate_by_*")
"""Figures that inspect draws of some logs only."""
_WORKERS = ("workers", "launcher")
"""Options of the processes that prepare a log."""
_FURTHER = (
    "prepare also takes name, which results show, and ids, the folder of a run or prepared log whose documents keep "
    "their ids, with new ones behind; workers, the processes that share the work of those formats that can be "
    "divided, and launcher: processes, the default, ray or slurm, with keys such as hydra.launcher.partition. "
    "inspect takes format, unless the files show it; the splits "
    "train_sessions, val_sessions, test_sessions where the log does not come split; and cache, a folder that keeps "
    "what was read of a source."
)


def prepare_log(format: str, source: str, target: str, options: Sequence[str]) -> None:
    """Reads a source into a new folder, whole or not at all, and reports its content.

    Args:
        format: One of FORMATS.
        source: File or folder of the log.
        target: The new folder.
        options: KEY=VALUE, as the reader of the format takes them; ids, a run or a prepared log whose ids are kept; and
            workers, launcher and hydra.launcher.KEY, the processes that read the files.
    """
    of_launcher = [word for word in options if word.lstrip("+").startswith("hydra.")]
    settings = parsed_options([word for word in options if word not in of_launcher])
    opener, ids = _opener(format), settings.pop("ids", None)
    of_workers = {name: settings.pop(name) for name in _WORKERS if name in settings}
    _check(opener, settings, [*_names(opener.read), "name", "ids", *_WORKERS], format)
    read = _reader(opener, of_workers, of_launcher)
    settings["earlier"] = None if ids is None else names_of_ids(ids)
    with Steps(f"reading {Path(source).name}") as progress:
        log = prepare(read, opener.format, source, target, **settings, progress=progress)
    _show(
        f"{target}: {log.name}, prepared from {log.format}",
        report.parts(log),
        report.largest_id(log.parts.values()),
        report.notes(log.notes),
        *(f"warning: {message}" for message in alike_names(log.names)),
        f"next: {shlex.join(['clickexp', 'dataset=prepared', f'dataset.path={target}'])}",
    )


def _reader(
    opener: LogFormat,
    of_workers: Mapping[str, Any],
    of_launcher: Sequence[str],
) -> Callable[..., Any]:
    """Returns the reader of a format, whose work several processes do where there are options of these."""
    if not of_workers and not of_launcher:
        return opener.read
    check_arguments(Workers, of_workers, "")
    workers = Workers(**of_workers, overrides=of_launcher)
    return sharing(opener, workers.count, workers)


def names_of_ids(path: Any) -> pl.DataFrame:
    """Returns the names of the ids of a run or a prepared log.

    Args:
        path: Its folder.

    Raises:
        ConfigError: It has no names of ids.
    """
    folder = Path(str(path)).expanduser()
    for file in (folder / IDS, folder / NAMES):
        if file.is_file():
            return read_names(np.memmap(file, np.uint8, "r"))
    what = f"ids={path}: neither a run nor a prepared log whose ids have names"
    raise ConfigError(
        f"{what}. Give the folder of one that numbered them by pair_key, or leave out ids=."
    )


def inspect_log(
    path: str, options: Sequence[str], output: str | None = None, json: bool = False
) -> None:
    """Reports and draws what there is to know of a log before a model is fitted to it.

    Args:
        path: Prepared folder, or file or folder of a log.
        options: KEY=VALUE, as the opener of the format takes them, and format.
        output: Where figures/ goes; by default a folder below outputs/inspect for the path of the log.
        json: Print one JSON object instead of tables.
    """
    opened = _dataset(source_path(path), parsed_options(options))
    dataset, following = opened.dataset, opened.following
    times = spans(dataset)
    counts, links, contexts = (
        summaries(dataset),
        identifiability(dataset.train),
        context_summaries(dataset),
    )
    unfit = examination_doubts(dataset)
    warnings = [*doubts(dataset), *alike_names(dataset.names), *unfit.values()]
    if columns := [name for name in unfit if name != LENGTH]:
        declared = {
            f"columns.{name}": opened.unread[name] for name in columns if name in opened.unread
        }
        following += [*_overrides(declared), f"examination_by=[{','.join(columns)}]"]
    if (doubt := future_in_training(dataset, times)) is not None:
        warnings.append(doubt)
    by_group = click_rates(dataset.train, groupings(dataset.train))
    drawn = _drawn(
        report.figures(counts, contexts, by_group), Path(output) if output else _figures_of(path)
    )
    if json:
        described = report.as_json(dataset, counts, links, contexts, warnings)
        described["click_rates_by"] = by_group
        print(dumps({"path": path, **described, "figures": drawn}, indent=2))  # noqa: T201  # output
        return
    train = counts["train"]
    is_fitted = 0 < train.clicks < train.documents_shown  # else runs refuse the log
    grades = (
        report.grades(name, part.documents_by_label)
        for name, part in counts.items()
        if part.documents_by_label
    )
    _show(
        f"{path}: {dataset.name}",
        opened.layout,
        report.counts(counts),
        opened.split,
        report.times(times),
        report.largest_id(dataset.parts.values()),
        report.click_rates(train),
        *report.click_rates_by_group(by_group),
        f"documents in a list: {report.quantiles(train.sessions_by_documents)}",
        report.clicks_per_session(train.sessions_by_clicks),
        report.context(contexts),
        *grades,
        report.features(dataset),
        report.notes(dataset.notes),
        *(f"warning: {doubt}" for doubt in warnings),
        links.describe(),
        report.separation(train, links),
        f"next: {shlex.join(following)}" if is_fitted else None,
        f"figures: {drawn}",
    )


def _drawn(figures: Any, folder: Path) -> str:
    """Writes figures into a folder, and returns where they are, or why they are not."""
    # here, since Matplotlib takes as long to load as most logs
    from clickexp.results.figures.log import write_figures

    try:
        place = write_figures(figures, folder)
        for name in _OWN_FIGURES:
            for file in [*place.glob(f"{name}.pdf"), *place.glob(f"{name}.png")]:
                if file.stem not in figures:  # of an earlier inspect
                    file.unlink()
        return display_path(place)
    except OSError as error:
        return f"not written ({reason(error)}); choose another folder with --output"


def _figures_of(path: str) -> Path:
    """Returns the folder of the figures of a log: its name, and a hash of its path, since other logs are called so."""
    place = Path(path).expanduser().resolve()
    digest = hashlib.sha256(str(place).encode()).hexdigest()[:6]
    return Path("outputs/inspect") / f"{slug(place.name)}-{digest}"


def verify_logs(path: str) -> None:
    """Reads the files of a prepared folder, or of a folder of these, against their checksums.

    Args:
        path: The folder.

    Raises:
        ConfigError: There is no such folder.
        DataError: Files are damaged. It names each, once all have been read.
    """
    folder = Path(path).expanduser()
    folders = [folder] if is_log(folder) else sorted(folder.glob("[!.]*"))
    logs = [other for other in folders if is_log(other) or any(other.rglob("*.npy"))]
    if not logs:
        raise ConfigError(
            f"{path}: no prepared log. Give a folder that clickexp-data prepare wrote, or one of such folders, such as "
            "~/.cache/clickexp."
        )
    damaged = []
    for log in logs:
        try:
            _verify(log)
        except DataError as error:
            damaged.append(str(error))
    if damaged:
        raise DataError(" ".join(damaged))


def _verify(log: Path) -> None:
    """Reads the files of a prepared folder, and prints that they are sound; DataError where they are not."""
    if not is_log(log):
        what = "not whole: there are arrays, but no log.json with their checksums"
        raise DataError(f"{log}: {what}. {REMEDY}")
    with Steps(f"verifying {log.name}") as progress:
        files = verify_log(log, progress)
    size = byte_size(sum(stored.size for stored in files))
    _show(f"{log}: {len(files)} files of {size} agree with their checksums")


def formats() -> str:
    """Returns the formats and their options, for --help."""
    names = {name: _names(opener.read) for name in FORMATS if (opener := _opener(name))}
    lines = (
        _wrapped(f"{name}: {', '.join(options)}", "  ", "    ") for name, options in names.items()
    )
    return "\n".join(["formats and their options:", *lines, "", _wrapped(_FURTHER)])


def _wrapped(text: str, first: str = "", rest: str = "") -> str:
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def _show(*blocks: Any, to_error: bool = False) -> None:
    """Prints tables and paragraphs with empty lines between; off a terminal a paragraph is one line."""
    console = Console(highlight=False, markup=False, stderr=to_error)
    for number, block in enumerate(filter(None, blocks)):
        if number:
            console.print()
        text = printable_lines(block) if isinstance(block, str) else block
        if isinstance(block, Table):
            text = fitting(block, console)
        console.print(text, soft_wrap=isinstance(block, str) and not console.is_terminal)


def _opener(format: str) -> Any:
    """Returns the function that opens a format, with its attributes `read` and `format`."""
    if format in FORMATS:
        return FORMATS[format]
    if ":" not in format:
        other = "or MODULE:FUNCTION for a reader of your own"
        raise ConfigError(
            f"there is no format {format!r}.{did_you_mean(format, FORMATS)} The formats are"
            f" {', '.join(FORMATS)}, {other}."
        )
    opener = located(format.replace(":", "."), "format")
    if not isinstance(opener, LogFormat):
        raise ConfigError(f"{format}: no reader. Decorate it with clickexp.data.log_format.")
    return opener


def _names(read: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(read).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "progress"]


def _check(
    opener: Callable[..., Any], options: Mapping[str, Any], names: Sequence[str], what: str
) -> None:
    """Raises a ConfigError for an option that is none of these names, or a value of another type than it takes."""
    for name in options:
        if name not in names:
            meant = did_you_mean(name, names)
            raise ConfigError(
                f"{name}: {what} has no such option.{meant} There are {', '.join(names)}."
            )
    check_arguments(opener, options, "")


class _Opened(NamedTuple):
    """A log, and what there is to say about it.

    Attributes:
        dataset: The log.
        layout: Lines on how its format was found where nobody named it, and on columns that nobody named.
        split: A line on its split.
        following: The words of the command that fits a model to it.
        unread: Columns that nobody named, read for their dates or to compare the click rates of layouts.
    """

    dataset: Dataset
    layout: str
    split: str
    following: list[str]
    unread: dict[str, Any]


def _dataset(path: Path, options: dict[str, Any]) -> _Opened:
    """Opens a prepared folder, or a source whose format is given or shown by the files."""
    format = options.pop("format", None)
    if is_log(path):
        _check(open_prepared, options, _names(open_prepared), "a prepared log")
        dataset = open_prepared(path, **options)
        for part in dataset.parts.values():
            part.check_stored_ids()
        return _Opened(dataset, "", _split(dataset, options), _next("prepared", path, options), {})
    key, equals, _ = str(path).partition("=")
    is_option = bool(equals) and "/" not in key
    path_first = "The path comes first: clickexp-data inspect PATH format=NAME."
    check_source(path, path_first if is_option else "Check the path.")
    why, left_out = "", ()
    if format is None:
        format, options, why, left_out = _detected(path, options)
    opener = _opener(str(format))  # which may be a number or a list
    _check(opener, options, [*_names(opener), "format"], opener.format)
    try:
        dataset, unread = _read_with_unread(opener, path, options)
    except FaultyLogError:
        _show(why, to_error=True)
        raise
    remedy = {}
    if not spans(dataset):  # numbers that are no dates may be anything
        remedy = _remedy_of_times(path, options, unread.pop(TIME, None), left_out)
    dates = {key: name for key, name in unread.items() if key == TIME}
    following = _next(format, path, _with_columns(options, dates))
    layout = f"{why}\n{_further(unread, left_out, remedy)}".strip()
    return _Opened(dataset, layout, _split(dataset, options), following, unread)


def _read_with_unread(
    opener: LogFormat, path: Path, options: Mapping[str, Any]
) -> tuple[Dataset, dict[str, Any]]:
    """Reads a log with columns that no option names, without those with faults; returns it, and these columns."""
    unread = _unread(opener.format, path, options)
    try:
        return _read(opener, path, _with_columns(options, unread)), unread
    except FaultyLogError as error:
        packed = {key: PACKED_NAMES.get(key, key) for key in unread}
        sound = {key: unread[key] for key in unread if not error.concerns(packed[key])}
        if sound == unread:
            raise
    except DataError:
        if not unread:
            raise
        # it does not say of which column; most often, what is called as times are is none
        sound = {key: unread[key] for key in unread if key != TIME} if TIME in unread else {}
    return _read(opener, path, _with_columns(options, sound)), sound


def _read(opener: LogFormat, path: Path, options: Mapping[str, Any]) -> Dataset:
    with Steps(f"reading {path.name}") as progress:
        return opener(path, progress=progress, **options)


def _with_columns(options: Mapping[str, Any], columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same options, with columns that they do not name."""
    if not columns:
        return options
    return {**options, "columns": {**columns, **(options.get("columns") or {})}}


def _unread(format: str, path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the option `columns` would say of times and of what may tell layouts apart, where no option names them."""
    if format not in _OF_PAGES:
        return {}
    files, text = options.get("files"), _text_form(options)
    return unread_columns(path, format, _named(options), files, text)


def _remedy_of_times(
    path: Path, options: Mapping[str, Any], numbers: str | None, left_out: Sequence[str]
) -> dict[str, str]:
    """What reads a column that is called as times are, by its name; empty where nothing does.

    Args:
        path: File or folder of the log.
        options: Those of the reader.
        numbers: The column, where it holds numbers.
        left_out: Columns that the format leaves out.
    """
    if numbers is not None:
        return {numbers: f"{_option_of_times(numbers)} reads it"}
    if (name := time_column(left_out)) is None:
        return {}
    formats = formats_of_dates(path, name, options.get("files"), _text_form(options))
    option = _option_of_times(name)
    # in double quotes, which a shell takes off and a parser of options does not need
    stated = [f"\"time_format='{form}'\"" for form in formats]
    if not stated:
        return {}
    order = f" where days come first, and {stated[1]} where months do" if stated[1:] else ""
    return {name: f"{option} {stated[0]} reads it{order}"}


def _option_of_times(name: str) -> str:
    return shlex.quote(f"columns.{TIME}={name}")


def _further(unread: Mapping[str, Any], left_out: Sequence[str], remedy: Mapping[str, str]) -> str:
    """A line about columns that nobody named: those that were read nevertheless, and those that were not.

    Args:
        unread: What the option `columns` says of those that were read.
        left_out: Those that the format leaves out.
        remedy: What reads some of them, by their names.
    """
    options = [f"{key}={value}" for key, value in flat_options({"columns": unread})]
    read = {*_named({"columns": unread}).values()}
    others = [
        f"{name} ({remedy[name]})" if name in remedy else name
        for name in left_out
        if name not in read
    ]
    lines = []
    if options:
        lines.append(f"read as dates, or by few values as layouts: {shlex.join(options)}")
    if others:
        lines.append(f"not read: {', '.join(others)}")
    return "; ".join(lines)


def _detected(path: Path, options: Mapping[str, Any]) -> Detected:
    """The format that the files show, with all options; the reason ends with the command that says so."""
    text = _text_form(options)
    found = detect(path, FORMATS, _named(options), options.get("files"), text)
    together = merged(found.options, options)
    words = [f"{key}={value}" for key, value in flat_options({"format": found.format, **together})]
    command = shlex.join(["clickexp-data", "inspect", str(path), *words])
    reason = f"{found.reason}. To say so, or otherwise: {command}"
    return found._replace(options=together, reason=reason)


def _named(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Names of columns of a log that options state, by key; None of those that they leave out."""
    columns = options.get("columns") or {}
    if not isinstance(columns, Mapping):
        raise ConfigError(
            f"columns={columns}: name each column by its key, as in columns.click=NAME"
        )
    named = {
        key: name.get("name", key) if isinstance(name, Mapping) else name
        for key, name in columns.items()
    }
    features = options.get("features")
    return named | {name: name for name in features} if isinstance(features, list) else named


def _text_form(options: Mapping[str, Any]) -> TextForm:
    """How text is written, as options say."""
    return TextForm(**{name: options[name] for name in TextForm._fields if name in options})


def _split(dataset: Dataset, options: Mapping[str, Any]) -> str:
    """A line about the split of a log, if nobody chose it."""
    parts = [dataset.train, dataset.val, dataset.test]
    one_log = len({part.folder for part in parts}) == 1
    if not one_log or options.keys() & {"train_sessions", "val_sessions", "test_sessions"}:
        return ""
    return (
        "split: the default, 80%, 10% and 10% of the sessions in the order of the log; by time with "
        "train_sessions=[null,DATE] val_sessions=[DATE,DATE] test_sessions=[DATE,null]"
    )


def _next(format: str, path: Path, options: Mapping[str, Any]) -> list[str]:
    """The words of the command that fits a model to a log."""
    kept = {key: value for key, value in options.items() if key != "cache"}
    return ["clickexp", f"dataset={format}", *_overrides({"path": str(path), **kept}), "model=pbm"]


def _overrides(options: Mapping[str, Any]) -> list[str]:
    """Options of a format as overrides of `clickexp`."""
    of_format = of_dataset(dict(flat_options(options)))
    return [f"{key}={value}" for key, value in of_format.items()]
