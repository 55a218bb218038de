"""Documents that the lists of a log show: their clicks and skips by cell, and their posteriors.

Of very many, some that are spread evenly over the ids represent all.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Integer, Real
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
_ROWS = 1 << 16
"""Rows that are computed in double precision at a time."""


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


class Log(NamedTuple):
    """Training sessions, and the cells of their documents.

    Attributes:
        train: The sessions, as the tower takes them.
        tower: Of examination.
    """

    train: Sessions
    tower: Tower

    def counts(
        self, sample: "Sample", chosen: Integer[np.ndarray, " documents"], rows: int
    ) -> tuple[csr_array, csr_array]:
        """Returns clicks and skips of the chosen rows, which are in a sample, by cell."""
        place = np.full(rows, len(chosen), np.int32)  # others are counted behind the last
        place[chosen] = np.arange(len(chosen))
        shape = len(chosen) + 1, self.tower.size

        def of(chunk: Chunk) -> tuple[csr_array, csr_array]:
            is_sampled = sample.has(chunk["query_doc_ids"]) & chunk.shown
            # of many documents, few lists show one of the sample
            lists = np.flatnonzero(is_sampled) // is_sampled.shape[1]
            lists = lists[np.diff(lists, prepend=-1) > 0]
            some, is_sampled = chunk.some(lists), is_sampled[lists]
            document = place[some["query_doc_ids"][is_sampled]]
            ends = document, self.tower.cells_of(some)[is_sampled]
            clicked = some["clicks"][is_sampled].astype(np.float64)
            clicks, skips = (
                coo_array((each, ends), shape).tocsr() for each in (clicked, 1 - clicked)
            )
            return clicks, skips

        clicks, skips = csr_array(shape), csr_array(shape)
        makers = (partial(of, chunk) for chunk in self.train.chunks())
        for more_clicks, more_skips in ahead(makers, 2, "counts", threads=2):
            clicks += more_clicks
            skips += more_skips
        for counted in (clicks, skips):
            counted.eliminate_zeros()
        return clicks[:-1], skips[:-1]

    def total(
        self,
        posteriors: Posteriors,
        cells: Places,
        features: Callable[[csr_array, csr_array, Float[np.ndarray, " impressions"]], csr_array],
    ) -> Float[np.ndarray, " features"]:
        """Returns the sums of features over all impressions in some cells.

        Args:
            posteriors: Of all rows.
            cells: The cells.
            features: Functions of clicks and skips by cell, and of means of logits, to sum.
        """
        place = np.full(self.tower.size, -1)
        place[cells] = np.arange(len(cells))

        def of(chunk: Chunk) -> Float[np.ndarray, " features"]:
            column = np.where(chunk.shown, place[self.tower.cells_of(chunk)], -1)
            is_used = column >= 0
            column, clicked = column[is_used], chunk["clicks"][is_used].astype(bool)
            means = posteriors.some(chunk["query_doc_ids"][is_used]).means
            clicks, skips = (
                _by_impression(each, column, len(cells)) for each in (clicked, ~clicked)
            )
            return features(clicks, skips, means).sum(axis=0)

        makers = (partial(of, chunk) for chunk in self.train.chunks())
        return np.sum([*ahead(makers, 2, "totals", threads=2)], axis=0)


def _by_impression(
    has_one: Bool[np.ndarray, " impressions"],
    column: Integer[np.ndarray, " impressions"],
    columns: int,
) -> csr_array:
    """Returns a matrix with a 1 in the columns of some rows."""
    ends = np.concatenate([[0], np.cumsum(has_one)])
    column = column[has_one]
    return csr_array((np.ones(len(column)), column, ends), (len(has_one), columns))


class Sample(NamedTuple):
    """Some of all documents, by their ids alone.

    Attributes:
        largest: Hash of an id.
    """

    largest: np.uint32

    @classmethod
    def of(cls, shown: Real[np.ndarray, " documents"]) -> "Sample":
        """Returns one of documents, given how many lists show each."""
        number = _MOST_IMPRESSIONS * len(shown) / shown.sum()
        share = np.clip(number, _ENOUGH_DOCUMENTS, _MOST_DOCUMENTS) / len(shown)
        return cls(np.uint32(min(share, 1.0) * (2**32 - 1)))

    @classmethod
    def all(cls) -> "Sample":
        """Returns that of all documents."""
        return cls(np.uint32(2**32 - 1))

    def has(self, ids: Integer[np.ndarray, " *shape"]) -> Bool[np.ndarray, " *shape"]:
        """Returns which ids are in the sample."""
        return ids.astype(np.uint32) * _GOLDEN <= self.largest


@dataclasses.dataclass(frozen=True)
class Population:
    """Documents that training lists show.

    Attributes:
        log: The training sessions.
        posteriors: Of all rows.
        shown: What these and earlier logs show of all rows.
        ranks: How far the mean rank of each row is from that of all impressions, over this mean. Those of few lists are
            drawn to 0.
        ids: Rows of the documents.
        sample: Some of them, which represent all.
    """

    log: Log
    posteriors: Posteriors
    shown: ShownByRow
    ranks: Float[np.ndarray, " rows"]
    ids: Integer[np.ndarray, " documents"]
    sample: Sample

    @classmethod
    def of(
        cls,
        log: Log,
        posteriors: Posteriors,
        queries: Queries,
        impressions: Real[np.ndarray, " rows"] | None,
    ) -> "Population":
        """Returns that of a log.

        Args:
            log: The training sessions.
            posteriors: Of all rows.
            queries: Of all rows, in these and in earlier logs.
            impressions: How many lists of these and earlier logs show each row; None for those of the log.
        """
        here = ByDocument.of(log.train).dense(len(posteriors.x))
        impressions = here.shown if impressions is None else impressions
        ids = np.flatnonzero(np.isfinite(posteriors.x) & (here.shown > 0))
        sample = Sample.of(here.shown[ids])
        shown = ShownByRow(impressions, posteriors.x, queries.lists, queries.labels)
        return cls(log, posteriors, shown, _ranks(here, impressions), ids, sample)

    def documents(self, rows: Rows) -> Documents:
        """Returns what the log shows of those in the sample, whose sites rows of attraction hold."""
        ids = self.sampled
        clicks, skips = self.log.counts(self.sample, ids, len(self.posteriors.x))
        of_ids, known = self.posteriors.some(ids), self.known(ids)
        sites = self.sites(rows, ids)
        means, deviations = of_ids.means, of_ids.deviations
        return Documents(clicks, skips, means, deviations, known, *sites, OF_RANKS)

    def counts(self) -> tuple[csr_array, csr_array]:
        """Returns clicks and skips of all documents by cell."""
        return self.log.counts(Sample.all(), self.ids, len(self.posteriors.x))

    def sites(
        self, rows: Rows, ids: Integer[np.ndarray, " documents"]
    ) -> tuple[Float[np.ndarray, " documents"], Float[np.ndarray, " documents"]]:
        """Returns S and h of what earlier logs say of logits, which rows hold without the baseline."""
        shape = len(ids), 1
        precisions, tilts = (
            np.broadcast_to(np.asarray(each, np.float64), shape)[:, 0]
            for each in rows.site(np.asarray(rows.values)[ids])
        )
        return precisions, tilts + precisions * self.posteriors.baseline

    @property
    def is_sampled(self) -> bool:
        """Whether some documents represent others."""
        return len(self.sampled) < len(self.ids)

    @cached_property
    def sampled(self) -> Integer[np.ndarray, " documents"]:
        """Rows of those in the sample."""
        return self.ids[self.sample.has(self.ids)]

    def parts(self) -> Iterator[Integer[np.ndarray, " documents"]]:
        """Yields rows of the documents, some at a time."""
        yield from (self.ids[part] for part in blocks(len(self.ids), _ROWS))

    def known(
        self, ids: Integer[np.ndarray, " documents"]
    ) -> Float[np.ndarray, "documents regressors"]:
        """Returns regressors of the logits of some documents."""
        shown, ranks = self.shown.some(ids), self.ranks[ids]
        by_ranks = regressors_by_ranks(shown, self._center, ranks)
        return np.concatenate([regressors(shown, self._center), by_ranks]).T

    @cached_property
    def _center(self) -> float:
        return mean_quantile(self.shown.some(self.sampled))


def _ranks(here: ByDocument, impressions: Real[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    """Returns how far ranks of rows are from their mean, given how many lists of these and earlier logs show each."""
    average = here.ranks.sum() / here.shown.sum()
    return (here.ranks - average * here.shown) / (impressions + _FEW) / average
