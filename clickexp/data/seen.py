"""Overlap of training with held-out data: impressions of documents, and lists that training has seen."""

from functools import cached_property

import numpy as np

from clickexp.data.by_document import ByDocument, distinct_ids, ids_shown
from clickexp.data.derived import DerivedColumn, Rows
from clickexp.data.id_table import mixed
from clickexp.data.schema import Column, Columns
from clickexp.data.sessions import Sessions
from clickexp.data.view import Chunk

IMPRESSIONS = Column("train_impressions", np.int32)
"""How often the training sessions show a document, under the id that tables have a row for; 0 for padding."""


_FEW = 4096


class Impressions(DerivedColumn):
    """The column `train_impressions`, counted when it is first read.

    Memory: 4 bytes per id, or 8 per document shown where ids are larger than their number.

    Args:
        train: The training sessions.
    """

    column = IMPRESSIONS
    reads = ("query_doc_ids",)

    def __init__(self, train: Sessions):
        self._train = train

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Impressions by id, or those of the ids that training shows, which are second and ascend."""
        counts = ByDocument.of(self._train)
        return counts.shown, counts.ids

    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        """Returns the impressions of the documents."""
        counts, trained = self._counts
        ids = packed["query_doc_ids"]
        if trained is None:
            return np.where(ids < len(counts), counts[np.minimum(ids, len(counts) - 1)], 0)
        place = _places(trained, ids)
        return np.where(trained[place] == ids, counts[place], 0)

    def bounds(self) -> tuple[int, int]:
        """Returns 0 and the most impressions."""
        return 0, int(self._counts[0].max(initial=0))


def lists_seen(train: Sessions, lists: Sessions) -> float:
    """Returns the share of lists whose documents a training session shows, in whatever order.

    Args:
        train: The training sessions.
        lists: Labelled lists.
    """
    if not lists.count:
        return float("nan")
    wanted = np.concatenate([_keys(chunk) for chunk in lists.chunks()])
    distinct = np.unique(wanted)
    is_seen = np.zeros(len(distinct), bool)
    for chunk in train.chunks():
        keys = _keys(chunk)
        place = _places(distinct, keys)
        is_seen[place[distinct[place] == keys]] = True
    return float(is_seen[np.searchsorted(distinct, wanted)].mean())


def has_common_documents(train: Sessions, held_out: Sessions) -> bool:
    """Returns whether training shows a document of held-out sessions; of most logs it reads a few of them."""
    for part in (held_out.slice(0, _FEW), held_out):
        wanted = distinct_ids(part)
        if any(np.isin(ids, wanted).any() for ids in ids_shown(train)):
            return True
    return False


def _places(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns where each value is among others, if it is there."""
    return np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)


def _keys(chunk: Chunk) -> np.ndarray:
    """A 64-bit hash of the documents of each list, which does not depend on their order."""
    keys = mixed(chunk["query_doc_ids"].astype(np.uint64) + np.uint64(1))
    return np.where(chunk.shown, keys, np.uint64(0)).sum(axis=1, dtype=np.uint64)
