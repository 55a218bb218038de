"""Doubts about a log: what may be right, so that no reader refuses it, and makes figures wrong where it is not."""

from collections.abc import Iterator

import numpy as np

from clickexp.data.dataset import Dataset
from clickexp.data.id_table import mixed
from clickexp.data.inspect.copies import COMPARED, Copies, copies, list_keys
from clickexp.data.schema import Columns
from clickexp.data.sessions import Sessions

_ENOUGH = 2_000_000
"""Lists that are looked at; of more, those whose first documents are a share of all."""

_REMEDY = "Drop the copies: rows that are there twice, or files"


def doubts(dataset: Dataset) -> Iterator[str]:
    """Yields a message for each doubt, with counts and the remedy.

    It reads the log once, in chunks, and keeps 8 bytes per list. Of more than two million lists it looks at a share, of
    which counts are then.

    Args:
        dataset: The log.
    """
    share = -(-sum(part.count for part in dataset.parts.values()) // _ENOUGH)
    parts = {name: part for name, part in dataset.parts.items() if name != "ranking" or part is not dataset.test}
    found = {name: _Part(part, share) for name, part in parts.items()}
    yield from _copied_lists(found)


class _Part:
    """What there is to find in the lists of a part.

    Args:
        sessions: The lists.
        share: Of how many lists one is looked at, about.

    Attributes:
        keys: A hash of each list that was looked at.
    """

    def __init__(self, sessions: Sessions, share: int):
        keys = [list_keys(chunk) for chunk in _sampled(sessions, share)]
        self.keys = np.concatenate([np.zeros(0, np.uint64), *keys])


def _sampled(sessions: Sessions, share: int) -> Iterator[Columns]:
    """Yields chunks of the lists whose first document has one of `share` remainders: equal lists all or none."""
    names = [name for name in (*COMPARED, "labels") if name in sessions.columns]
    for chunk in sessions.chunks(names):
        if share > 1:
            first = chunk["query_doc_ids"][:, 0].astype(np.uint64)
            kept = np.flatnonzero(mixed(first + np.uint64(1)) % np.uint64(share) == 0)
            chunk = {name: values[kept] for name, values in chunk.items()}
        yield chunk


def _copied_lists(parts: dict[str, _Part]) -> Iterator[str]:
    """Doubts whether test figures are those of new lists."""
    train = parts["train"].keys
    held_out = {name: copies(parts[name].keys, train) for name in ("val", "test")}
    doubtful = {name: each for name, each in held_out.items() if each.doubtful}
    words = {"val": "validation", "test": "test"}
    if doubtful:
        counts = " and ".join(f"{_count(each)} {words[name]} lists" for name, each in doubtful.items())
        yield (
            f"{counts} are training lists, too, with the same documents and clicks. Users do not repeat so many: the "
            f"log seems to hold rows twice, so that its figures are of what training has seen. {_REMEDY}"
        )
        return
    middle = len(train) // 2
    within = copies(train[middle:], train[:middle])
    if within.doubtful:
        yield (
            f"{_count(within)} later training lists are among the earlier ones, too, with the same documents and "
            "clicks. Users do not repeat so many: the log seems to hold rows twice, so that intervals are too narrow. "
            f"{_REMEDY}"
        )


def _count(found: Copies) -> str:
    return f"{found.found:,} of {found.lists:,}"
