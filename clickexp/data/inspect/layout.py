"""The format of a log that nobody has named, found in its files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from clickexp.data.ingest.layouts import ROWS, Kind, guess, guessed_columns, likeliest, needed
from clickexp.data.ingest.source_table import SourceTable, TextForm, remedy_for_header
from clickexp.data.ingest.tables import open_tables
from clickexp.data.ingest.text_table import TextTable
from clickexp.data.log_files import UnknownKindError
from clickexp.errors import DataError

_BY_NAME = {
    "train_per_query_quid.txt": "tiangong_st",
    "annotations.parquet": "baidu_ultr_uva",
}
"""The format that the name of a file, or of one in the folder, indicates."""
_BY_LINE = {
    r"\d+\t\d+\tQ\t\d+\t\d+(\t\d+)+$": ("yandex", "lines of result pages, with a Q, and of clicks"),
    r"\d+\t\d+\t(\[[^\]]*\]\t?){3,4}$": (
        "tiangong_st",
        "lines of session, query and lists between tabs; give the folder of its files",
    ),
    r"\S+( qid:\S+)?( \d+:\S+)+\s*(#.*)?$": (
        "letor",
        "lines of label, query and features; give the folder of its files",
    ),
}
"""The format that the first line of a text without names of columns indicates, and its lines."""
_TO_CONVERT = {
    r'\{.*"judgment_keys": ?\[': "sessions under each query, as pyClickModels has them",
    r'\{.*"event": ?"(ranking|interaction|item|user)"': (
        "events, as metarank has them: rankings, and clicks in lines of their own"
    ),
}
"""Layouts of JSON lines that no format reads, by what their first line shows."""


class Detected(NamedTuple):
    """How a log is read.

    Attributes:
        format: The format.
        options: Options of its reader.
        reason: A line for the reader of a report.
        left_out: Names of columns that are not read.
    """

    format: str
    options: dict[str, str]
    reason: str
    left_out: Sequence[str] = ()


def _check_convertible(path: Path, line: str) -> None:
    """DataError for lines that have to be written as pages first."""
    for pattern, lines in _TO_CONVERT.items():
        if re.match(pattern, line):
            remedy = (
                "SQL of DuckDB in docs/howto/my-log.md (From events) writes the pages that format=lists reads; or "
                "clickexp-data prepare MODULE:FUNCTION takes a reader of your own"
            )
            raise DataError(f"{path}: the lines hold {lines}. {remedy}.")


def detect(
    path: Path,
    formats: Iterable[str],
    named: Mapping[str, str | None] | None = None,
    files: str | None = None,
    text: TextForm | None = None,
) -> Detected:
    """Finds the format of a log, and the names of its columns.

    Args:
        path: File or folder.
        formats: Those that there are.
        named: Names of columns of the log that options state, by key; None leaves one out.
        files: Pattern of the files in a folder.
        text: How text is written.

    Raises:
        DataError: The files do not show it. It names the formats with the columns that each needs.
    """
    line = _first_line(path)
    detected = _by_name(path) or _by_line(line)
    if detected is not None:
        return detected
    _check_convertible(path, line)
    try:
        tables = open_tables(path, {}, {}, (), files=files, text=text)
        table = tables[0]
        kinds = table.kinds()
    except UnknownKindError as error:
        remedy = f"Or add format=, one of {', '.join(formats)}."
        raise DataError(f"{error} {remedy}") from error
    layout = guess(kinds)
    if layout is None:
        if isinstance(table, TextTable) and (remedy := remedy_for_header([*kinds])) is not None:
            raise table.source.error(f"the columns {', '.join(kinds)} show no layout", remedy)
        _check_alike(path, tables)
        _check_rows_without_pages(path, kinds)
        _check_rows_without_ranks(path, kinds)
        layouts = "; ".join(f"format={other} has {ROWS[other]}: {needed(other)}" for other in ROWS)
        raise DataError(
            f"{path}: the columns {', '.join(kinds)} do not show the layout. {layouts}. Name those that are called "
            "otherwise.",
            likeliest(kinds),
        )
    named = named or {}
    reason, left_out = layout.describe(kinds, named), layout.left_out(kinds, named)
    return Detected(layout.format, layout.options, reason, left_out)


def _by_name(path: Path) -> Detected | None:
    """The format that the name of a file shows, or of one in the folder; None where none does."""
    names = [path.name, *(other.name for other in path.iterdir())] if path.is_dir() else [path.name]
    for name, format in _BY_NAME.items():
        if name in names:
            return Detected(format, {}, f"layout: format={format}, since there is {name}")
    return None


def _by_line(line: str) -> Detected | None:
    """The format that the first line of a text shows; None where it is of a table."""
    for pattern, (format, lines) in _BY_LINE.items():
        if re.match(pattern, line):
            return Detected(format, {}, f"layout: format={format}, which has {lines}")
    return None


def _check_alike(path: Path, tables: Sequence[SourceTable]) -> None:
    """DataError for tables of other columns than the first, as where clicks are apart from impressions."""
    first, *others = tables
    for other in others:
        if {*other.kinds()} != {*first.kinds()}:
            stated = "; ".join(
                f"{Path(table.source.source).name}: {', '.join(table.kinds())}"
                for table in (first, other)
            )
            raise DataError(
                f"{path}: files have different columns ({stated}), and none shows the layout alone. Join impressions "
                "and clicks into one table, as the SQL in docs/howto/my-log.md (From a warehouse) does; or name the "
                "files of the log, such as files=NAME*.csv."
            )


def _check_rows_without_ranks(path: Path, kinds: Mapping[str, Kind]) -> None:
    """DataError for rows of documents shown that do not say at which rank."""
    names = guessed_columns("impressions", kinds)
    if "rank" in names or not names.keys() >= {"session", "document", "click"}:
        return
    raise DataError(
        f"{path}: {ROWS['impressions']}, but no column among {', '.join(kinds)} is called as ranks are. Name it, or "
        "add one: models of clicks need to know the order in which a page shows its documents.",
        likeliest(kinds),
    )


def _check_rows_without_pages(path: Path, kinds: Mapping[str, Kind]) -> None:
    """DataError for rows of documents shown that do not say which of them are one page."""
    names = guessed_columns("impressions", kinds)
    if not names.keys() >= {"document", "rank", "click"}:
        return
    alone = "columns.session=null" if "query" in names else "columns.session=null pair_key=document"
    raise DataError(
        f"{path}: {ROWS['impressions']}, but no column among {', '.join(kinds)} is called as result pages are. "
        f"Name it; where each row is a page alone, as in logs of bandits, set {alone}.",
        likeliest(kinds),
    )


def _first_line(path: Path) -> str:
    """The first line of the first text file, which may be in a folder; empty where there is none."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        if not file.is_file() or file.suffix == ".parquet":
            continue
        try:
            with pa.input_stream(str(file), compression="detect") as stream:
                return stream.read(1 << 16).decode("latin-1").partition("\n")[0].rstrip("\r")
        except (pa.ArrowException, OSError):
            continue
    return ""
