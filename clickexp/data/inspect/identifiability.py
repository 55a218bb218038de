"""Which positions of a log are linked by documents shown at several of them.

A click rate e_p a_d at position p for document d separates examination and attraction only as far as documents
link positions: (c e_p)(a_d / c) is the same for every c, and without a link each group of positions may have a c of
its own. Positions are the nodes of a graph, linked where a document was shown at both; examination and attraction
are identified, up to one factor, if and only if the graph is connected.

How well they are separated depends on how much documents move between positions. Of a policy that shows each document
nearly always at one position, the prior of attraction determines the rest, rather than clicks.

Chen, Liu, Liu, Li and Sun 2024, "Identifiability matters: revealing the hidden recoverable condition in unbiased
learning to rank".
"""

import functools
import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from clickexp.data.cells import Cells
from clickexp.data.id_table import dense_rows
from clickexp.data.kept import Counts, kept
from clickexp.data.sessions import Sessions
from clickexp.data.view import Chunk
from clickexp.utils.rounding import ceil_div
from clickexp.utils.text import counted

ENOUGH_SESSIONS = 2_000_000
"""Sessions that link all positions of most logs; the rest is read only if they do not."""
_CELLS = 1 << 22
_SHOWN_GROUPS = 8
_FEW = 10
"""Documents of the weakest link, below which one should look at how sure the estimates are."""
_MOVING_SESSIONS = 200_000
"""Sessions that movement is estimated from."""
_LEAST_REPEATS = 100
"""Impressions of documents after their first, below which movement is not known."""
RANDOM = 0.98
"""Movement above which lists are in nearly random order."""
_NEARLY_FIXED = 0.2
"""Movement below which examination has errors that its intervals do not show."""


class Link(NamedTuple):
    """Two positions and how many documents were shown at both."""

    position: int
    other: int
    documents: int


@dataclass(frozen=True, eq=False)
class Identifiability:
    """The links between the positions of a log.

    Attributes:
        positions: `[nodes]`, positions shown, ascending.
        shown: `[nodes]`, documents shown at each.
        links: `[nodes, nodes]`, distinct documents shown at both; on the diagonal, at this position.
        groups: Positions that documents link, directly or over others; ordered by their first.
        movement: Share of the variance of log positions that is within documents: 1 in random order, 0 where each
            document has one position; nan where too few documents are shown more than once.
        cells: Where positions are cells of layouts, what these are.
    """

    positions: np.ndarray
    shown: np.ndarray
    links: np.ndarray
    groups: tuple[tuple[int, ...], ...]
    movement: float = math.nan
    cells: Cells | None = None

    @functools.cached_property
    def weakest(self) -> Link | None:
        """Smallest link on the best paths within the groups; None where there is no link.

        It is the smallest edge of a maximum spanning forest.
        """
        from scipy.sparse import coo_array, csgraph  # here, since only this needs scipy

        rows, columns = np.nonzero(np.triu(self.links, 1))
        # scipy's forests are minimal; its weights are positive
        weights = self.links.max(initial=0) + 1 - self.links[rows, columns]
        graph = coo_array((weights, (rows, columns)), shape=self.links.shape).tocsr()
        forest = csgraph.minimum_spanning_tree(graph).tocoo()
        if not forest.nnz:
            return None
        smallest = int(forest.data.argmax())
        node, other = sorted((int(forest.row[smallest]), int(forest.col[smallest])))
        return Link(
            int(self.positions[node]), int(self.positions[other]), int(self.links[node, other])
        )

    @property
    def identified(self) -> bool:
        """Whether documents link all positions."""
        return len(self.groups) == 1

    @property
    def nearly_fixed(self) -> bool:
        """Whether documents hardly move between positions."""
        return self.movement < _NEARLY_FIXED

    @property
    def warns(self) -> bool:
        """Whether estimates of examination are in doubt."""
        return not self.identified or self.nearly_fixed

    def merged(self, linked: Set[int]) -> "Identifiability":
        """Returns it with the groups of positions that something else links as one."""
        apart = [group for group in self.groups if linked.isdisjoint(group)]
        others = {position for group in self.groups for position in group}.difference(*apart)
        groups = [tuple(sorted(others)), *apart] if others else apart
        return replace(self, groups=tuple(sorted(groups)))

    def describe(self) -> str:
        """A sentence on what the log identifies, or the warning that it does not, or hardly does."""
        if not self.identified:
            groups = " | ".join(map(self._named, self.groups[:_SHOWN_GROUPS]))
            more = len(self.groups) - _SHOWN_GROUPS
            return (
                f"warning: examination cannot be identified: no document links the groups of positions {groups}"
                + (f" | {more} more" if more > 0 else "")
                + ". Each group's examination may be off by its own factor, and so may the attraction of its "
                "documents. Remedies: more noise or swaps in the logged rankings, merged positions, or one of the "
                "two towers fixed."
            )
        if len(self.positions) < 2:
            return "examination: one position only, so that there is nothing to separate"
        if self.nearly_fixed:
            return (
                f"warning: documents hardly move between positions: {self.movement:.0%} of the variance of log "
                "positions is within documents, where random order has 100%. Examination and attraction rest on the "
                "prior of attraction, and their intervals are too short. Remedies: some sessions in random order, or "
                "more noise or swaps in the logged rankings."
            )
        if self.weakest is None:
            return f"examination: earlier logs link all {len(self.positions)} positions"
        position, other, documents = self.weakest
        return (
            f"examination: documents link all {len(self.positions)} positions; weakest link: "
            f"{counted(documents, 'document')} at both {self._named([position])} and {self._named([other])}"
            + (
                ", which may leave their ratio open: see the intervals of clickexp-export"
                if documents < _FEW
                else ""
            )
        )

    def _named(self, positions: Sequence[int]) -> str:
        """Ranges of positions, those of each layout by themselves."""
        if self.cells is None:
            return _ranges(positions)
        by_layout: dict[str, list[int]] = {}
        for cell in positions:
            by_layout.setdefault(self.cells.words(cell), []).append(self.cells.position(cell))
        return "; ".join(f"{_ranges(places)} of {layout}" for layout, places in by_layout.items())


def identifiability(
    sessions: Sessions, enough: int | None = None, cells: Cells | None = None
) -> Identifiability:
    """The links between the positions of these sessions, exactly; of a prepared log, see `clickexp.data.kept`.

    Takes a bit per document and position, and per document 12 to 35 bytes more where ids are larger than the number
    of documents shown.

    Args:
        sessions: Sessions to look through.
        enough: Number of sessions whose links suffice if they link all positions already; None: all.
        cells: Layouts whose positions count as different ones; None for positions alone.
    """
    if cells is None:  # the numbers of layouts are those of a model
        counts = kept(sessions, "links", enough or 0, lambda: _counted(sessions, enough))
    else:
        counts = _counted(sessions, enough, cells)
    positions, links = counts["positions"], counts["links"]
    groups = tuple(tuple(positions[group].tolist()) for group in _connected(links))
    moved = float(counts["movement"])
    return Identifiability(positions, counts["shown"], links, groups, moved, cells)


def _counted(sessions: Sessions, enough: int | None, cells: Cells | None = None) -> Counts:
    """Returns the positions of `identifiability`, how many documents they show, their links, and the movement."""
    by_position, sessions = sessions, sessions if cells is None else cells.view(sessions)
    shown = sessions.by_position.shown
    positions = np.flatnonzero(shown)
    node_of = np.cumsum(shown > 0) - 1
    number, rows = dense_rows(sessions.query_doc_pairs, int(shown.sum()))
    marks = np.zeros((ceil_div(len(positions), 8), rows), np.uint8)
    cut = sessions.count if enough is None else min(enough, sessions.count)
    links = np.zeros((0, 0), np.int64)
    for part in (sessions.slice(0, cut), sessions.slice(cut, sessions.count)):
        for chunk in part.chunks():
            for position, ids in _documents_by_position(chunk):
                byte, bit = divmod(int(node_of[position]), 8)
                marks[byte][number(ids)] |= np.uint8(1 << bit)
        links = _shared(marks, len(positions))
        if len(_connected(links)) == 1:
            break
    moved = np.array(movement(by_position))
    return {"positions": positions, "shown": shown[positions], "links": links, "movement": moved}


def positions_of(
    sessions: Sessions, documents: Bool[np.ndarray, " ids"], cells: Cells | None = None
) -> set[int]:
    """Returns the positions where sessions show some of the documents.

    Args:
        sessions: The sessions.
        documents: Which ids are among them.
        cells: As `identifiability` takes them.
    """
    positions: set[int] = set()
    for chunk in (sessions if cells is None else cells.view(sessions)).chunks():
        for position, ids in _documents_by_position(chunk):
            if documents[ids].any():
                positions.add(int(position))
    return positions


def movement(sessions: Sessions) -> float:
    """Returns the share of the variance of log positions that is within documents; see `Identifiability`.

    By components of variance, unbiased for documents with any number of impressions, of the first sessions.
    """
    ids, positions = [], []
    for chunk in sessions.slice(0, min(sessions.count, _MOVING_SESSIONS)).chunks():
        for position, shown in _documents_by_position(chunk):
            ids.append(shown)
            positions.append(np.full(len(shown), position))
    logs = np.log(np.concatenate(positions)) if positions else np.zeros(0)
    _, document, impressions = np.unique(
        np.concatenate(ids or [[]]), return_inverse=True, return_counts=True
    )
    repeats = len(logs) - len(impressions)
    if repeats < _LEAST_REPEATS or not (total := logs.var(ddof=1)):
        return math.nan
    means = np.bincount(document, weights=logs) / impressions
    return float(np.sum((logs - means[document]) ** 2) / repeats / total)


def _documents_by_position(chunk: Chunk) -> Iterator[tuple[int, np.ndarray]]:
    """Each position and the documents shown there; a bit can be set for all of them at once, in any order."""
    ids, lengths = chunk["query_doc_ids"], chunk["lengths"]
    if "positions" not in chunk:
        for rank in range(lengths.max(initial=0)):
            yield rank + 1, ids[:, rank] if lengths.min() > rank else ids[lengths > rank, rank]
        return
    positions = chunk["positions"].ravel()
    order = np.argsort(positions, kind="stable")
    distinct, starts = np.unique(positions[order], return_index=True)
    for position, where in zip(distinct, np.split(order, starts[1:]), strict=True):
        if position:
            yield position, ids.ravel()[where]


def _shared(marks: np.ndarray, nodes: int) -> np.ndarray:
    """[nodes, nodes] documents marked at both; the sums of a block are exact in float32."""
    links, size = np.zeros((nodes, nodes), np.int64), _CELLS // nodes
    for start in range(0, marks.shape[1], size):
        block = marks[:, start : start + size]
        used = np.flatnonzero(np.bitwise_or.reduce(block, axis=0))
        bits = np.unpackbits(block[:, used], axis=0, count=nodes, bitorder="little").astype(
            np.float32
        )
        links += (bits @ bits.T).astype(np.int64)
    return links


def _connected(links: np.ndarray) -> list[np.ndarray]:
    """The connected groups of nodes, by the first of each."""
    reached = (links > 0) | np.eye(len(links), dtype=bool)
    for _ in range(len(links).bit_length()):  # each time paths of twice the length
        reached = reached @ reached
    return [
        np.flatnonzero(reached[node])
        for node in range(len(links))
        if reached[node].argmax() == node
    ]


def _ranges(positions: Sequence[int]) -> str:
    """1-3, 5 for (1, 2, 3, 5)."""
    cuts = np.split(np.array(positions), np.flatnonzero(np.diff(positions) > 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in cuts)
