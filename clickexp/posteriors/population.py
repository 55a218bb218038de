"""Documents that the lists of a log show: their clicks and skips by cell, and their posteriors.

Of very many, some that are spread evenly over the ids represent all.
"""

import dataclasses
from collections.abc import Iterator
from functools import cached_property, partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Integer, Real
from scipy.sparse import coo_array, csr_array

from clickexp.data import Sessions
from clickexp.data.by_document import ByDocument
from clickexp.data.loader import ahead
from clickexp.data.view import Chunk
from clickexp.parameters import Rows
from clickexp.posteriors.policy_prior import (
    OF_RANKS,
    Queries,
    ShownByRow,
    mean_quantile,
    regressors,
    regressors_by_ranks,
)
from clickexp.posteriors.towers import Places, Tower
from clickexp.types import Array
from clickexp.utils.blocks import blocks

_ENOUGH_DOCUMENTS, _MOST_DOCUMENTS, _MOST_IMPRESSIONS = 50_000, 250_000, 500_000
"""Documents that are integrated out; of more, some that are spread evenly over the ids represent all. These have about
as many impressions, unless they are fewer than enough or more than the most."""
_GOLDEN = np.uint32(0x9E3779B9)
"""Its multiples modulo 2^32 are spread evenly (Knuth 1973, "The art of computer programming", section 6.4)."""
_FEW = 1
"""Lists that the average counts for beside the ranks of a document."""
_ROWS = 1 << 13
"""Documents that are computed in double precision at a time."""


class Documents(NamedTuple):
    """Clicks and skips of documents, and regressors of their logits.

    Attributes:
        clicks: Of each document in each cell.
        skips: The same.
        means: Of logits.
        deviations: Of logits.
        known: Regressors of the logits: what t is a line in.
        precisions: S of the sites of earlier logs; 0 for nothing.
        tilts: h of the same.
        of_ranks: How many of the last numbers in `known` are of mean ranks.
    """

    clicks: csr_array
    skips: csr_array
    means: Float[np.ndarray, " documents"]
    deviations: Float[np.ndarray, " documents"]
    known: Float[np.ndarray, "documents regressors"]
    precisions: Float[np.ndarray, " documents"]
    tilts: Float[np.ndarray, " documents"]
    of_ranks: int = 0

    def some(self, chosen: slice | np.ndarray) -> "Documents":
        """Returns some of them."""
        arrays = {name: getattr(self, name)[chosen] for name in self._fields if name != "of_ranks"}
        return self._replace(**arrays)


class Posteriors(NamedTuple):
    """Posteriors of logits, by row, as a table has them: in double precision, large ones would take much memory.

    Attributes:
        offsets: Means of the logits less the baseline.
        deviations: Of the logits.
        x: Standardised mean log ranks; infinite where training shows none.
        baseline: What is added to all offsets.
    """

    offsets: Float[np.ndarray, " rows"]
    deviations: Float[np.ndarray, " rows"]
    x: Float[np.ndarray, " rows"]
    baseline: float

    @classmethod
    def of(cls, rows: Rows, baseline: float) -> "Posteriors":
        """Returns those of rows of one number, which are added to a baseline."""
        offsets, deviations = map(np.asarray, _moments(rows))
        return cls(offsets, deviations, np.asarray(rows.values)[:, rows.numbers], baseline)

    def some(self, chosen: Integer[np.ndarray, " chosen"] | slice) -> "Posteriors":
        """Returns some rows in double precision."""
        columns = self.offsets, self.deviations, self.x
        offsets, deviations, x = (each[chosen].astype(np.float64) for each in columns)
        return Posteriors(offsets, deviations, x, self.baseline)

    @property
    def means(self) -> Float[np.ndarray, " rows"]:
        """Means of the logits."""
        return self.offsets + self.baseline


@jax.jit
def _moments(rows: Rows) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
    return rows.means(rows.values)[:, 0], rows.deviations(rows.values)[:, 0]


def _counts(
    train: Sessions, tower: Tower, ids: Integer[np.ndarray, " documents"], rows: int
) -> tuple[csr_array, csr_array]:
    """Returns clicks and skips of some of the rows by cell.

    Args:
        train: Sessions, as the tower takes them.
        tower: Has the cells.
        ids: The rows.
        rows: How many there are in all.
    """
    place, shape = np.full(rows, -1, np.int32), (len(ids), tower.size)
    place[ids] = np.arange(len(ids))

    def of(chunk: Chunk) -> tuple[csr_array, csr_array]:
        document = np.where(chunk.shown, place[chunk["query_doc_ids"]], -1)
        is_used = document >= 0
        document, cell = document[is_used], tower.cells_of(chunk)[is_used]
        clicked = chunk["clicks"][is_used].astype(bool)
        clicks, skips = (
            coo_array((np.ones(len(of_all[0]), np.int32), of_all), shape).tocsr()
            for of_all in ((document[some], cell[some]) for some in (clicked, ~clicked))
        )
        return clicks, skips

    makers = (partial(of, chunk) for chunk in train.chunks())
    clicks, skips = _Sum(shape), _Sum(shape)
    for more_clicks, more_skips in ahead(makers, 2, "counts", threads=2):
        clicks.add(more_clicks)
        skips.add(more_skips)
    return clicks.value(), skips.value()


class _Sum:
    """A sum of sparse matrices, of which small ones come together first.

    Args:
        shape: Of each.
    """

    def __init__(self, shape: tuple[int, int]):
        self._parts = [csr_array(shape, dtype=np.int32)]

    def add(self, more: csr_array) -> None:
        """Adds a matrix."""
        while self._parts and self._parts[-1].nnz <= more.nnz:
            more = self._parts.pop() + more
        self._parts.append(more)

    def value(self) -> csr_array:
        """Returns the sum, and forgets its parts."""
        value = self._parts.pop()
        while self._parts:
            value = self._parts.pop() + value
        return value


def sampled(
    ids: Integer[np.ndarray, " documents"], shown: Real[np.ndarray, " documents"]
) -> Integer[np.ndarray, " chosen"]:
    """Returns places of documents that represent all, by their ids alone.

    Args:
        ids: Rows of the documents.
        shown: How many lists show each.
    """
    number = _MOST_IMPRESSIONS * len(shown) / shown.sum()
    share = np.clip(number, _ENOUGH_DOCUMENTS, _MOST_DOCUMENTS) / len(shown)
    largest = np.uint32(min(share, 1.0) * (2**32 - 1))
    return np.flatnonzero(ids.astype(np.uint32) * _GOLDEN <= largest)


@dataclasses.dataclass(frozen=True)
class Population:
    """Documents that training lists show.

    Attributes:
        tower: Of examination.
        rows: Of attraction.
        posteriors: Of all rows.
        shown: What these and earlier logs show of all rows.
        ranks: How far the mean rank of each row is from that of all impressions, over this mean. Those of few lists are
            drawn to 0.
        ids: Rows of the documents.
        clicks: Of each document in each cell.
        skips: The same.
        sampled: Places of some of the documents, which represent all.
    """

    tower: Tower
    rows: Rows
    posteriors: Posteriors
    shown: ShownByRow
    ranks: Float[np.ndarray, " rows"]
    ids: Integer[np.ndarray, " documents"]
    clicks: csr_array
    skips: csr_array
    sampled: Integer[np.ndarray, " chosen"]

    @classmethod
    def of(
        cls,
        train: Sessions,
        tower: Tower,
        rows: Rows,
        baseline: float,
        queries: Queries,
        impressions: Real[np.ndarray, " rows"] | None,
    ) -> "Population":
        """Returns that of a log.

        Args:
            train: The training sessions.
            tower: Of examination.
            rows: Of attraction.
            baseline: What is added to these.
            queries: Of all rows, in these and in earlier logs.
            impressions: How many lists of these and earlier logs show each row; None for those of the log.
        """
        train, number = tower.view(train), len(rows.values)
        posteriors = Posteriors.of(rows, baseline)
        here = ByDocument.of(train).dense(number)
        impressions = here.shown if impressions is None else impressions
        ids = np.flatnonzero(np.isfinite(posteriors.x) & (here.shown > 0))
        shown = ShownByRow(impressions, posteriors.x, queries.lists, queries.labels)
        clicks, skips = _counts(train, tower, ids, number)
        return cls(
            tower,
            rows,
            posteriors,
            shown,
            _ranks(here, impressions),
            ids,
            clicks,
            skips,
            sampled(ids, here.shown[ids]),
        )

    def in_cells(self, cells: Places) -> "Population":
        """Returns that in some cells, which have all impressions."""
        column = np.zeros(self.tower.size, np.int32)
        column[cells] = np.arange(len(cells))
        shape = len(self.ids), len(cells)
        clicks, skips = (
            csr_array((each.data, column[each.indices], each.indptr), shape)
            for each in (self.clicks, self.skips)
        )
        return dataclasses.replace(self, clicks=clicks, skips=skips)

    def in_all(self) -> tuple[Float[np.ndarray, " cells"], Float[np.ndarray, " cells"]]:
        """Returns clicks and skips of all documents by cell."""
        clicks, skips = (each.sum(axis=0, dtype=np.float64) for each in (self.clicks, self.skips))
        return clicks, skips

    @property
    def is_sampled(self) -> bool:
        """Whether some documents represent others."""
        return self.share < 1

    @property
    def share(self) -> float:
        """Of all documents that are in the sample."""
        return len(self.sampled) / len(self.ids)

    def documents(
        self,
        places: Integer[np.ndarray, " documents"] | slice,
        known: Float[np.ndarray, "documents regressors"],
        of_ranks: int = 0,
    ) -> Documents:
        """Returns what the log shows of documents, and rows of earlier ones.

        Args:
            places: Theirs.
            known: Regressors of their logits.
            of_ranks: How many of the last of these are of mean ranks.
        """
        ids = self.ids[places]
        clicks, skips = (each[places].astype(np.float64) for each in (self.clicks, self.skips))
        of_ids = self.posteriors.some(ids)
        precisions, tilts = (each[ids].astype(np.float64) for each in self._sites)
        tilts = tilts + precisions * of_ids.baseline
        return Documents(
            clicks, skips, of_ids.means, of_ids.deviations, known, precisions, tilts, of_ranks
        )

    def under_policy(self, places: Integer[np.ndarray, " documents"] | slice) -> Documents:
        """Returns documents with regressors by what lists show of them."""
        return self.documents(places, self._known(self.ids[places]), OF_RANKS)

    def parts(self) -> Iterator[Documents]:
        """Yields all documents as `under_policy` does, some at a time."""
        yield from (self.under_policy(part) for part in blocks(len(self.ids), _ROWS))

    @cached_property
    def _sites(self) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
        """S and h of what earlier logs say of logits, which rows hold without the baseline."""
        shape = len(self.rows.values), 1
        precisions, tilts = (
            np.broadcast_to(np.asarray(each), shape)[:, 0]
            for each in self.rows.site(self.rows.values)
        )
        return precisions, tilts

    def _known(
        self, ids: Integer[np.ndarray, " documents"]
    ) -> Float[np.ndarray, "documents regressors"]:
        """Returns regressors of the logits of some documents."""
        shown, ranks = self.shown.some(ids), self.ranks[ids]
        by_ranks = regressors_by_ranks(shown, self._center, ranks)
        return np.concatenate([regressors(shown, self._center), by_ranks]).T

    @cached_property
    def _center(self) -> float:
        return mean_quantile(self.shown.some(self.ids[self.sampled]))


def _ranks(here: ByDocument, impressions: Real[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    """Returns how far ranks of rows are from their mean, given how many lists of these and earlier logs show each."""
    average = here.ranks.sum() / here.shown.sum()
    return (here.ranks - average * here.shown) / (impressions + _FEW) / average
