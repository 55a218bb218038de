"""Lists of a log that wait on disk until all of its files are read, and are then packed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from clickexp.data.id_table import IdTable
from clickexp.data.ingest.checks import Checks
from clickexp.data.ingest.faults import Invalid
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.spool import Spool
from clickexp.data.loader import read_ahead
from clickexp.data.log_writer import LogWriter, PartWriter
from clickexp.data.schema import Column, SourceLocation

PART = "sessions"
"""The part of the lists."""


@dataclass(frozen=True)
class ReadLists:
    """Contents of the files of a log, or of a share of them.

    Attributes:
        lists: The lists, with ids and categories numbered as they appear in these files.
        schema: Declarations of their columns.
        checks: What is decided of all rows.
        tables: Tables that number ids, by column.
        invalid: What becomes of faulty rows.
        positions: Documents that a list has room for; None for the longest.
        query_doc_pairs: Largest id allowed; None for the largest found.
    """

    lists: Spool[Lists]
    schema: Mapping[str, Column]
    checks: Checks
    tables: Mapping[str, IdTable]
    invalid: Invalid
    positions: int | None
    query_doc_pairs: int | None = None

    def new_part(self, log: LogWriter) -> PartWriter:
        """Returns the part of a log for the lists, once all have been read.

        Raises:
            FaultyLogError: There are faulty rows, which are not to be dropped.
            DataError: One list is much longer than the others.
        """
        checks, ranks, columns = self.checks, self.positions, self.schema.values()
        checks.faults.end(self.invalid, log, checks.extent.lists, checks.first_rank.options)
        if ranks is None:
            ranks = checks.extent.ranks(columns, checks.remedy)
        part = log.part(PART, ranks, columns, self.query_doc_pairs)
        part.query_doc_pairs = self.query_doc_pairs or part.query_doc_pairs
        return part


def pack(read: ReadLists, log: LogWriter) -> None:
    """Packs lists; those of a share wait until all shares have been read."""
    if log.share is not None:
        log.read = read
        return
    with read.new_part(log) as part:
        append(part, read.lists, {})


def append(part: PartWriter, waiting: Spool[Lists], numbers: Mapping[str, np.ndarray]) -> None:
    """Packs lists.

    Args:
        part: Where they go.
        waiting: The lists, which may lack columns.
        numbers: Numbers in the part of the numbers in a column, by column.
    """
    location = SourceLocation(str(part.source))
    padded = (
        _completed(lists, part.schema, numbers).padded(part.ranks, part.schema) for lists in waiting
    )
    for columns in read_ahead(padded, "pack"):
        part.append(columns, location)


def _completed(
    lists: Lists, schema: Mapping[str, Column], numbers: Mapping[str, np.ndarray]
) -> Lists:
    """The lists with the numbers of the part, and with labels where other files have them."""
    documents, sessions = dict(lists.documents), dict(lists.sessions)
    for name, table in numbers.items():
        columns = documents if schema[name].per_document else sessions
        columns[name] = table[np.asarray(columns[name])]
    if "labels" in schema and "labels" not in documents:
        documents["labels"] = np.full(len(lists.rows), np.nan, np.float32)
    return replace(lists, documents=documents, sessions=sessions)
