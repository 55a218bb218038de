"""Counts over the rows of a log, of which something is decided when all have been read."""

from dataclasses import dataclass

from clickexp.data.ingest.extent import Extent
from clickexp.data.ingest.faults import Faults
from clickexp.data.ingest.shown import FirstRankCheck


@dataclass
class Checks:
    """Counts over all rows of a log.

    Attributes:
        first_rank: Of ranks.
        remedy: What to do where one list is much longer than the others.
        faults: Of faulty rows.
        extent: Of the lengths of lists.
    """

    first_rank: FirstRankCheck
    remedy: str
    faults: Faults
    extent: Extent

    @classmethod
    def new(cls, first_rank: int, remedy: str) -> "Checks":
        """Returns the counts of no rows."""
        return cls(FirstRankCheck(first_rank), remedy, Faults(), Extent())

    def join(self, later: "Checks", continued: bool = False) -> None:
        """Adds the rows of later files, or the next ones of a continued file."""
        self.first_rank.join(later.first_rank)
        self.faults.join(later.faults, continued)
        self.extent.join(later.extent)
