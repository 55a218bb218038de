"""Sessions from parquet: one row a session, list columns of documents and clicks."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from clickexp.data.log import LogWriter, log_format
from clickexp.data.ragged import check_type, longest, padded
from clickexp.data.schema import DataError, Place

COLUMN_NAMES = {name: name for name in ("query_doc_ids", "clicks", "query_id", "positions", "labels")}
"""What each column is called in the files unless told otherwise. The first two must be there."""

REQUIRED = ("query_doc_ids", "clicks")
PACKED_NAMES = {"query_id": "query_ids"}
BATCH_ROWS = 1 << 16


class Source(NamedTuple):
    """A parquet file, its rows, and its column for each packed column."""

    file: Path
    rows: int
    columns: Mapping[str, str]


@log_format("parquet")
def open_parquet(
    source: Path,
    log: LogWriter,
    *,
    columns: Mapping[str, str | None] | None = None,
    positions: int | None = None,
    query_doc_pairs: int | None = None,
) -> None:
    """The dataset in a parquet file, or in all *.parquet files of a folder in the order of their names.

    columns          file's name for query_doc_ids, clicks, query_id, positions, labels; None leaves one out
    positions        ranks to keep, default the longest list; longer lists are cut and counted
    query_doc_pairs  largest id allowed, default the largest found

    DataError names file, row and remedy.
    """
    names = {**COLUMN_NAMES, **(columns or {})}
    sources = [_source(file, names) for file in _files(source)]
    _check_same_columns(sources)
    ranks = _longest(sources) if positions is None else positions
    total = sum(source.rows for source in sources)
    with log.part("sessions", ranks, ["lengths", *sources[0].columns], query_doc_pairs) as pack:
        for source in sources:
            first = pack.written
            for batch in _batches(source, source.columns):
                place = Place(str(source.file), pack.written - first)
                chunk, cut = padded(batch, ranks, place)
                pack.append(chunk, place)
                log.note("cut_lists", cut)
                log.progress(pack.written, total)
        pack.query_doc_pairs = query_doc_pairs or pack.query_doc_pairs


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: no *.parquet file in this folder. Check the path of the dataset.")
    return files


def _source(file: Path, names: Mapping[str, str | None]) -> Source:
    try:
        with pq.ParquetFile(file) as parquet:
            rows, schema = parquet.metadata.num_rows, parquet.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error
    columns = _columns(file, schema.names, names)
    for column, name in columns.items():
        check_type(column, schema.field(name).type, Place(str(file)))
    return Source(file, rows, columns)


def _columns(file: Path, found: list[str], names: Mapping[str, str | None]) -> dict[str, str]:
    """The file's name of each packed column; columns that nobody asked for by name may be missing."""
    if unknown := names.keys() - COLUMN_NAMES.keys():
        raise DataError(f"columns has keys {sorted(unknown)}. The keys are {list(COLUMN_NAMES)}.")
    columns = {}
    for key, name in names.items():
        if name in found:
            columns[PACKED_NAMES.get(key, key)] = name
        elif key in REQUIRED or name not in (None, COLUMN_NAMES[key]):
            near = difflib.get_close_matches(str(name), found, 1, cutoff=0.5)
            hint = f"set columns.{key}" + (f", perhaps to {near[0]}" if near else " to one of them")
            raise Place(str(file)).error(f"no column {name!r} for {key} among {found}", hint)
    return columns


def _check_same_columns(sources: list[Source]) -> None:
    first = sources[0]
    for source in sources:
        if source.columns.keys() != first.columns.keys():
            what = f"there are {list(source.columns)}, in {first.file} there are {list(first.columns)}"
            remedy = "give all files the same columns, or leave one out with columns.NAME=null"
            raise Place(str(source.file)).error(what, remedy)


def _longest(sources: list[Source]) -> int:
    name = "query_doc_ids"
    batches = (batch for source in sources for batch in _batches(source, {name: source.columns[name]}))
    return max((longest(batch[name]) for batch in batches), default=1) or 1


def _batches(source: Source, columns: Mapping[str, str]) -> Iterator[dict[str, pa.Array]]:
    try:
        with pq.ParquetFile(source.file) as parquet:
            for batch in parquet.iter_batches(BATCH_ROWS, columns=list(columns.values())):
                yield {name: batch.column(column) for name, column in columns.items()}
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(source.file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    return Place(str(file)).error(f"cannot be read as parquet ({error})", "write the file anew")
