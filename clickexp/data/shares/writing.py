"""The sessions of a share, written to the pack of the whole log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clickexp.data.description import PartDescription
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.packing import append
from clickexp.data.ingest.spool import Spool
from clickexp.data.log_writer import PartWriter
from clickexp.data.schema import Column
from clickexp.data.shares.numbering import Keys, Numbered, new_ids


@dataclass(frozen=True)
class JoinedPart:
    """The part of a whole log.

    Attributes:
        folder: Its folder, with files that have room for all sessions.
        source: The log.
        ranks: Documents that a list has room for.
        schema: Declarations of the columns.
        keys: Keys of all shares, in the order of their sessions.
        tables: Numbers of ids, by column.
        max_id: Ids above are an error; None allows all.
    """

    folder: Path
    source: str
    ranks: int
    schema: Mapping[str, Column]
    keys: Sequence[Keys]
    tables: Mapping[str, Numbered]
    max_id: int | None


def write_share(
    part: JoinedPart,
    number: int,
    first: int,
    lists: Spool[Lists],
    categories: Mapping[str, np.ndarray],
) -> PartDescription:
    """Writes the sessions of a share, and returns what was written.

    Args:
        part: Where they go.
        number: Of the share.
        first: Number of the first session.
        lists: Those of the share.
        categories: Number in the log of each category of the share, from that of none, by column.
    """
    numbers = {
        name: new_ids(part.keys, name, number, table)
        for name, table in part.tables.items()
        if name in part.schema
    }
    columns = part.schema.values()
    place = part.folder, part.ranks, columns, part.source, part.max_id
    with PartWriter(*place, first=first) as written:
        append(written, lists, {**numbers, **categories})
    return written.description()
