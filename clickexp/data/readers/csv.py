"""Sessions from CSV or TSV: one row per session, lists of documents and clicks in its cells."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clickexp.data.ingest.faults import Invalid
from clickexp.data.ingest.tables import TextTable, open_tables
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.readers.parquet import list_columns, read_lists
from clickexp.utils.bounds import Ids, PositiveInt


@log_format("csv")
def open_csv(
    source: Path,
    log: LogWriter,
    *,
    files: str | None = None,
    columns: Mapping[str, Any] | None = None,
    separator: str | None = None,
    pair_key: str | None = None,
    positions: PositiveInt | None = None,
    query_doc_pairs: Ids | None = None,
    invalid: Invalid = "error",
) -> None:
    """The dataset in a CSV or TSV file, or in those of a folder in the order of their names.

    Files that end in .gz, .bz2, .zst or .lz4 are unpacked.

    A cell holds a list as words between commas, semicolons or spaces, in square brackets or in none, each in
    quotes or in none: [3, 5, 8]  3 5 8  ['a', 'b'].

    files      pattern of the files in a folder, default those that end in .csv, .tsv or .txt, plain or compressed
    separator  of columns, default the first of tab, comma, semicolon and bar in the first line

    The other options are those of open_parquet. DataError names file, line and remedy; lines that are blank are
    left out and not counted.
    """
    fields = list_columns(columns, pair_key)
    tables = open_tables(source, [TextTable], *fields, files=files, separator=separator)
    read_lists(tables, log, pair_key, positions, query_doc_pairs, invalid)
