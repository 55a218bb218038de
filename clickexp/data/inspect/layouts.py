"""Whether one examination by rank fits all pages of a log, or layouts differ, such as those of devices."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer
from scipy.special import chdtrc

from clickexp.data.cells import Cells
from clickexp.data.dataset import Dataset
from clickexp.data.encoding import Recoded, numbered_names
from clickexp.data.schema import COLUMNS, Column
from clickexp.data.sessions import Sessions
from clickexp.data.view import Chunk

LENGTH = "length of list"
EXAMINATION_BY = "examination_by"
"""Setting of models that gives layouts their own examination."""
MOST_VALUES = 12
"""Values of a column that tells layouts apart."""
_GROUPS_OF_LENGTHS = 6
LEVEL = 0.001
"""Of the test, of all groupings of a log together."""
_MATERIAL = 0.05
"""Relative difference of click rates, root mean square, below which one curve does."""
_LEAST_CLICKS = 5.0
"""Clicks that a group is expected to have at a position, with fewer of which it is left out there."""
_STEPS, _CLOSE, _ROUNDING = 50, 1e-6, 1e-9

_Counts = Float[np.ndarray, "stratum group"]


@dataclass(frozen=True)
class Grouping:
    """Groups of sessions.

    Attributes:
        name: A column, or `LENGTH`.
        values: What the groups are called.
        of: From sessions to the number of the group of each.
    """

    name: str
    values: tuple[str, ...]
    of: Callable[[Chunk], Integer[np.ndarray, " session"]]


def groupings(sessions: Sessions) -> list[Grouping]:
    """Returns groups of sessions by the length of their lists, and by each column per session with few values.

    Args:
        sessions: The training sessions, whose values and lengths make the groups.
    """
    lengths = sessions.by_length
    by_length = _by_length(lengths) if np.count_nonzero(lengths) > 1 else None
    declared = [name for name, column in sessions.schema.items() if _may_group(name, column)]
    by_value = [_by_value(sessions, name) for name in declared if name in sessions.columns]
    return [grouping for grouping in (by_length, *by_value) if grouping is not None]


def _may_group(name: str, column: Column) -> bool:
    """Whether it is a column of the log's own with a whole number, or true or false, per session."""
    is_number = np.dtype(column.dtype).kind in "biu" and not column.shape
    return is_number and not column.per_document and name not in COLUMNS


def _by_length(lengths: np.ndarray) -> Grouping:
    """Groups of neighbouring lengths, each with about as many sessions; one per length where there are few."""
    present = np.flatnonzero(lengths)
    ends = present
    if len(ends) > _GROUPS_OF_LENGTHS:
        share = np.cumsum(lengths) / lengths.sum()
        parts = np.arange(1, _GROUPS_OF_LENGTHS + 1) / _GROUPS_OF_LENGTHS
        ends = np.unique(np.minimum(np.searchsorted(share, parts - 1e-9), present[-1]))
    starts = present[np.searchsorted(present, np.append(0, ends[:-1] + 1))]
    names = [
        f"{low}" if low == high else f"{low}-{high}"
        for low, high in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    last = len(ends) - 1
    return Grouping(
        LENGTH,
        tuple(names),
        lambda chunk: np.minimum(np.searchsorted(ends, chunk["lengths"]), last),
    )


def _by_value(sessions: Sessions, name: str) -> Grouping | None:
    """Groups by the values of a column; None where these are one or many."""
    numbers = np.zeros(0, np.int64)
    for chunk in sessions.chunks():
        numbers = np.union1d(numbers, chunk[name].astype(np.int64))
        if len(numbers) > MOST_VALUES:
            return None
    if len(numbers) < 2:
        return None

    def of(chunk: Chunk) -> np.ndarray:
        place = np.minimum(np.searchsorted(numbers, chunk[name]), len(numbers) - 1)
        return np.where(numbers[place] == chunk[name], place, -1)

    column = sessions.derived.get(name)
    if isinstance(column, Recoded):
        called = numbered_names(column.categories)
        return Grouping(name, tuple(called[number] for number in numbers), of)
    return Grouping(name, tuple(map(str, numbers.tolist())), of)


def rates_by_group(
    sessions: Sessions, grouping: Grouping
) -> tuple[Integer[np.ndarray, "group rank"], Integer[np.ndarray, "group rank"]]:
    """Returns documents shown and clicks by group and rank, from rank 1; values without a group do not count."""
    width, groups = max(sessions.positions, sessions.ranks) + 1, len(grouping.values)
    counts = np.zeros((2, (groups + 1) * width), np.int64)
    for chunk in sessions.chunks():
        group = np.broadcast_to(grouping.of(chunk)[:, None], chunk.shown.shape)[chunk.shown]
        cells = (group + 1) * width + chunk.of_documents("positions")
        clicked = cells[chunk.of_documents("clicks")]
        counts[0] += np.bincount(cells, minlength=counts.shape[1])
        counts[1] += np.bincount(clicked, minlength=counts.shape[1])
    shown, clicks = counts.reshape(2, groups + 1, width)[:, 1:, 1:]
    return shown, clicks


@dataclass(frozen=True)
class Difference:
    """How far click rates of the same documents at the same rank differ between groups, beyond a factor per group.

    Attributes:
        chi_square: The statistic.
        degrees: Its degrees of freedom, 0 where no document compares groups.
        relative: Root mean square of relative differences of click rates, without what chance explains.
    """

    chi_square: float
    degrees: int
    relative: float

    @property
    def p_value(self) -> float:
        """How likely a difference as large is where there is none."""
        return float(chdtrc(self.degrees, self.chi_square)) if self.degrees else 1.0


def difference(
    chunks: Iterator[Chunk], grouping: Grouping, view: Iterator[Chunk] | None = None
) -> Difference:
    """Tests whether click rates by rank have the same shape in all groups.

    Clicks on a document at a rank are shared among the groups in proportion to its impressions in each, times a factor
    f of the group, if examination differs by such a factor at most. Their sums over documents, by group and rank,
    are compared with those expected, given the clicks on each document at each rank (Mantel and Haenszel 1959, for
    several groups; f from the sums over ranks). The documents that groups show thereby do not matter.

    Args:
        chunks: Sessions.
        grouping: Their groups.
        view: The same sessions with positions to compare within, such as cells of layouts; None for their own.
    """
    shown, clicks, at = _strata(chunks, grouping, view)
    several = (shown > 0).sum(axis=1) > 1
    shown, clicks, at = shown[several], clicks[several], at[several]
    total = clicks.sum(axis=1)
    if not total.any():
        return Difference(0.0, 0, 0.0)
    positions, place = np.unique(at, return_inverse=True)
    share = _shares(shown, clicks)
    number = shown.sum(axis=1)
    weight = total * np.maximum(number - total, 0) / np.maximum(number - 1, 1)
    chi_square, degrees, events = 0.0, 1 - int((clicks.sum(axis=0) > 0).sum()), 0.0
    for row in range(len(positions)):
        of_row = place == row
        expected = share[of_row].T @ total[of_row]
        kept = expected >= _LEAST_CLICKS
        if kept.sum() < 2:
            continue
        shares, weights = share[of_row][:, kept], weight[of_row][:, None]
        residual = clicks[of_row][:, kept].sum(axis=0) - expected[kept]
        within = (shares * weights).sum(axis=0)
        covariance = np.diag(within) - shares.T @ (shares * weights)
        chi_square += float(residual @ np.linalg.pinv(covariance, rcond=_ROUNDING) @ residual)
        degrees += int(np.linalg.matrix_rank(covariance, tol=_ROUNDING * within.max()))
        events += float(expected[kept].sum())
    excess = max(chi_square - degrees, 0.0) / max(events, 1.0)
    return Difference(chi_square, max(degrees, 0), math.sqrt(excess))


def _shares(shown: _Counts, clicks: _Counts) -> _Counts:
    """Returns which share of the clicks on a stratum is expected in each group, up to the groups' own factors.

    The factors make clicks of all strata as many as expected in each group, by iterative scaling.
    """
    total, factors = clicks.sum(axis=1), np.ones(shown.shape[1])
    share = shown / shown.sum(axis=1, keepdims=True)
    for _ in range(_STEPS):
        expected = share.T @ total
        ratio = np.where(expected > 0, clicks.sum(axis=0) / np.maximum(expected, _ROUNDING), 1.0)
        factors *= np.where(ratio > 0, ratio, 1.0)
        share = shown * factors
        share /= share.sum(axis=1, keepdims=True)
        if np.abs(ratio - 1).max() < _CLOSE:
            break
    return share


def _strata(
    chunks: Iterator[Chunk], grouping: Grouping, view: Iterator[Chunk] | None
) -> tuple[_Counts, _Counts, Integer[np.ndarray, " stratum"]]:
    """Returns impressions and clicks by document at a position, and group; and the position of each such stratum."""
    groups, keys, positions, group, clicks = len(grouping.values), [], [], [], []
    for chunk in chunks:
        of_view = chunk if view is None else next(view)
        number = np.broadcast_to(grouping.of(chunk)[:, None], chunk.shown.shape)[chunk.shown]
        kept = number >= 0
        keys.append(chunk.of_documents("query_doc_ids")[kept].astype(np.int64))
        positions.append(of_view.of_documents("positions")[kept].astype(np.int64))
        group.append(number[kept])
        clicks.append(chunk.of_documents("clicks")[kept])
    at, of_group = np.concatenate(positions), np.concatenate(group)
    width = int(at.max(initial=0)) + 1
    strata, stratum = np.unique(np.concatenate(keys) * width + at, return_inverse=True)
    cells, size = stratum * groups + of_group, len(strata) * groups
    shown = np.bincount(cells, minlength=size).reshape(-1, groups).astype(np.float64)
    clicked = np.bincount(cells, np.concatenate(clicks), size).reshape(-1, groups)
    return shown, clicked, strata % width


def layout_doubts(
    dataset: Dataset,
    sampled: Callable[[Sessions], Iterator[Chunk]] = Sessions.chunks,
    cells: Cells | None = None,
    setting: str = EXAMINATION_BY,
) -> dict[str, str]:
    """Returns a doubt for each grouping of the training sessions that one examination by rank does not fit, by name.

    Args:
        dataset: The log.
        sampled: Chooses the sessions that are looked at.
        cells: Layouts whose examination a model has apart, within which others are compared.
        setting: Words that give layouts their own examination, before the names of their columns.
    """
    train, columns = dataset.train, () if cells is None else cells.names
    tested: list[tuple[Grouping, Difference]] = []
    for grouping in groupings(train):
        if grouping.name not in columns:
            view = None if cells is None else sampled(cells.view(train))
            tested.append((grouping, difference(sampled(train), grouping, view)))
    messages = {
        grouping.name: _doubt(grouping, measured, columns, setting)
        for grouping, measured in tested
        if measured.p_value < LEVEL / len(tested) and measured.relative > _MATERIAL
    }
    # layouts that a column names often have lists of their own lengths
    if messages.keys() - {LENGTH}:
        messages.pop(LENGTH, None)
    return messages


def _doubt(
    grouping: Grouping, difference: Difference, others: Collection[str], setting: str
) -> str:
    columns = [*others, grouping.name]
    remedy = f"give each its own: {setting}=[{','.join(columns)}]"
    if grouping.name == LENGTH:
        remedy = (
            "lengths seem to be those of layouts, such as of devices. Name the column that has them: "
            f"'+dataset.columns.NAME={{dtype: category, per: session}}' {setting}=[NAME]"
        )
    return (
        f"click rates of the same documents at the same rank differ by {grouping.name}: "
        f"{difference.relative:.0%} (root mean square) beyond a factor for each of {', '.join(grouping.values)}; "
        f"chi-square {difference.chi_square:,.0f} on {difference.degrees} degrees of freedom. "
        f"One examination by rank does not fit them: {remedy}"
    )


def click_rates(sessions: Sessions, chosen: Sequence[Grouping]) -> dict[str, Mapping[str, dict]]:
    """Returns documents shown and clicks by rank, by grouping and group, as JSON holds them.

    Values of a column are in the order of their impressions, the most first. Lengths of lists are left out where a
    column makes the same groups, such as that of devices with lists of one length each.
    """
    rates: dict[str, Mapping[str, dict]] = {}
    for grouping in chosen:
        shown, clicks = rates_by_group(sessions, grouping)
        is_length = grouping.name == LENGTH
        order = range(len(shown)) if is_length else np.argsort(-shown.sum(axis=1), kind="stable")
        rates[grouping.name] = {
            grouping.values[at]: {"shown": shown[at].tolist(), "clicks": clicks[at].tolist()}
            for at in order
        }
    of_lengths = rates.get(LENGTH)
    if any(_same_groups(of_lengths, groups) for name, groups in rates.items() if name != LENGTH):
        del rates[LENGTH]
    return rates


def _same_groups(groups: Mapping[str, dict] | None, others: Mapping[str, dict]) -> bool:
    """Whether the groups of two groupings have the same counts, whatever they are called."""
    if groups is None or len(groups) != len(others):
        return False
    return all(counts in others.values() for counts in groups.values())
