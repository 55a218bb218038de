"""Lists of a log that wait on disk until all of its files are read, and are then packed."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from clickexp.data.description import SPLIT
from clickexp.data.id_table import IdTable
from clickexp.data.ingest.extent import POSITIONS, Extent
from clickexp.data.ingest.faults import Faults, Invalid
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.spool import Spool
from clickexp.data.loader import read_ahead
from clickexp.data.log_writer import LogWriter, PartWriter
from clickexp.data.schema import Column, SourceLocation, declared
from clickexp.errors import DataError

PART = "sessions"
"""The part of a log that does not come split."""
RANKING = "ranking"
"""The part of labelled lists."""
_NO_ROWS = "The files have no rows"
_NEVER_SHOWN = "labelled_pairs_never_shown"
"""The note that counts them."""


class ReadPart:
    """Lists of a part of a log, which wait on disk.

    Args:
        log: Has room for them.
        name: Of the part.
        columns: Declarations; names suffice for those of COLUMNS.
        ranks: Documents that a list has room for; None for the longest.
        remedy: What to do where one list is much longer than the others.

    Attributes:
        lists: The lists, with ids and categories numbered as they appear in the files that were read.
        schema: Declarations of their columns.
        extent: Of their lengths.
    """

    def __init__(
        self,
        log: LogWriter,
        name: str,
        columns: Iterable[str | Column],
        ranks: int | None,
        remedy: str = POSITIONS,
    ):
        self.lists, self.extent = Spool[Lists](log.scratch / name), Extent()
        self.schema, self.ranks, self._remedy = declared(columns), ranks, remedy

    def append(
        self, lists: Lists, location: SourceLocation, rows: np.ndarray | None = None
    ) -> None:
        """Adds lists; see `Extent.add`."""
        self.extent.add(lists.lengths, location, rows)
        self.lists.append(lists)

    def room(self) -> int:
        """Returns the documents that a list has room for.

        Raises:
            DataError: One list is much longer than the others.
        """
        if self.ranks is not None:
            return self.ranks
        return self.extent.ranks(self.schema.values(), self._remedy)

    def join(self, later: "ReadPart", file: Path) -> None:
        """Adds what is decided of the lists of a later file, which alone may have labels.

        Raises:
            DataError: A column is another one there.
        """
        for name, column in later.schema.items():
            if self.schema.setdefault(name, column) != column:
                raise DataError(
                    f"{file}: {name} is another column than in the files before. Write it alike in all files, or "
                    f"leave it out with columns.{name}=null."
                )
        self.extent.join(later.extent)


@dataclass(frozen=True)
class ReadLog:
    """What a reader returns of a log, or of a share of its files.

    Attributes:
        parts: The parts by name.
        faults: What is wrong with rows.
        invalid: What becomes of faulty rows.
        tables: Tables that number ids, by column.
        query_doc_pairs: Largest id allowed; None for the largest found.
        expected: What to do where there are no lists.
    """

    parts: dict[str, ReadPart]
    faults: Faults
    invalid: Invalid
    tables: Mapping[str, IdTable] = field(default_factory=dict)
    query_doc_pairs: int | None = None
    expected: str = PartWriter.expected

    def join(self, later: "ReadLog", file: Path) -> None:
        """Adds what is decided of later files, of which this is the first.

        Raises:
            DataError: Columns or times are others there.
        """
        for name, part in later.parts.items():
            if name in self.parts:
                self.parts[name].join(part, file)
            else:
                self.parts[name] = part
        self.faults.join(later.faults)

    def pack(self, log: LogWriter) -> None:
        """Packs the lists into the parts of a log."""
        with self.new_parts(log) as parts:
            for name, part in parts.items():
                append(part, self.parts[name].lists, {})

    @contextmanager
    def new_parts(self, log: LogWriter) -> Iterator[dict[str, PartWriter]]:
        """Opens the parts of a log for the lists, once all have been read.

        Raises:
            FaultyLogError: There are faulty rows, which are not to be dropped.
            DataError: One list is much longer than the others, or there are none.
        """
        left = min(part.extent.lists for part in self.parts.values())
        self.faults.end(self.invalid, log, left)
        ranks = {name: part.room() for name, part in self.parts.items()}
        divided = [name for name in SPLIT if name in ranks]
        ranks |= dict.fromkeys(divided, max((ranks[name] for name in divided), default=0))
        with ExitStack() as stack:
            writers = {}
            for name, part in self.parts.items():
                writer = log.part(name, ranks[name], part.schema.values(), self.query_doc_pairs)
                writer.query_doc_pairs = self.query_doc_pairs or writer.query_doc_pairs
                has_rows = self.faults.rows.total() > 0
                writer.expected = self.expected if has_rows else f"{_NO_ROWS}. {self.expected}"
                writers[name] = stack.enter_context(writer)
            yield writers
        if RANKING in writers:
            shown = max(writers[name].query_doc_pairs for name in writers if name != RANKING)
            log.note(_NEVER_SHOWN, max(writers[RANKING].query_doc_pairs - shown, 0))


def append(part: PartWriter, waiting: Spool[Lists], numbers: Mapping[str, np.ndarray]) -> None:
    """Packs lists.

    Args:
        part: Where they go.
        waiting: The lists, which may lack columns.
        numbers: Numbers in the log of the numbers in a column, by column.
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
    for name in numbers.keys() & schema.keys():
        columns = documents if schema[name].per_document else sessions
        columns[name] = numbers[name][np.asarray(columns[name])]
    if "labels" in schema and "labels" not in documents:
        documents["labels"] = np.full(len(lists.rows), np.nan, np.float32)
    return replace(lists, documents=documents, sessions=sessions)
