"""The sessions of a share, written to the pack of the whole log."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from clickexp.data.description import PartDescription
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.packing import append
from clickexp.data.ingest.spool import Spool
from clickexp.data.log_writer import PartWriter
from clickexp.data.shares.numbering import Keys, Numbered, new_ids


def write_share(
    writers: Mapping[str, Callable[[int], PartWriter]],
    keys: Sequence[Keys],
    tables: Mapping[str, Numbered],
    number: int,
    lists: Mapping[str, tuple[int, Spool[Lists]]],
    categories: Mapping[str, np.ndarray],
) -> dict[str, PartDescription]:
    """Writes the sessions of a share, and returns what was written of each part.

    Args:
        writers: Writers to the files of each part, from the number of their first session on.
        keys: Keys of all shares, in the order of their files.
        tables: Numbers of ids, by column.
        number: Of the share.
        lists: Those of the share by part, and the numbers of the first ones in the log.
        categories: Number in the log of each category of the share, from that of none, by column.
    """
    ids = {name: new_ids(keys, name, number, table) for name, table in tables.items()}
    written = {}
    for name, (first, waiting) in lists.items():
        with writers[name](first) as part:
            append(part, waiting, {**ids, **categories})
        written[name] = part.description()
    return written
