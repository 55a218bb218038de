"""The columns of every log in one record of 32-bit numbers, so that a random session is read at one place.

A record holds the ids of the documents, a byte per document for its click, and the length of the list. On an
accelerator, or wherever programs are compiled, records are taken apart by `unpacked`.
"""

import numpy as np
from jaxtyping import Integer

from clickexp.data.schema import REQUIRED, Columns
from clickexp.utils.rounding import ceil_div

RECORDS = "records"
"""Key of the records in the arrays of a superbatch, and name of their file."""
_BYTES = 4
"""Clicks in a number."""

Records = Integer[np.ndarray, "session number"]


def width_of(ranks: int) -> int:
    """Returns the numbers of a record of lists of so many documents."""
    return ranks + ceil_div(ranks, _BYTES) + 1


def ranks_of(width: int) -> int:
    """Returns the documents of a list whose record has so many numbers."""
    return _BYTES * (width - 1) // (_BYTES + 1)


def _type_of(ranks: int) -> np.dtype:
    clicks = np.dtype(np.int32).itemsize * ranks
    lengths = np.dtype(np.int32).itemsize * (width_of(ranks) - 1)
    return np.dtype(
        {
            "names": list(REQUIRED),
            "formats": [("<i4", (ranks,)), ("?", (ranks,)), "<i4"],
            "offsets": [0, clicks, lengths],
            "itemsize": lengths + np.dtype(np.int32).itemsize,
        }
    )


def columns_of(records: Records) -> dict[str, np.ndarray]:
    """Returns the columns of records, as views of them."""
    fields = records.view(_type_of(ranks_of(records.shape[1])))[:, 0]
    return {name: fields[name] for name in REQUIRED}


def records_of(columns: Columns) -> Records:
    """Returns the records of columns."""
    count, ranks = columns["query_doc_ids"].shape
    records = np.zeros((count, width_of(ranks)), np.int32)
    for name, values in columns_of(records).items():
        values[...] = columns[name]
    return records
