"""Intervention harvesting: examination from documents that the log shows at several positions."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from jaxtyping import Float

from clickexp.data import Dataset, Sessions
from clickexp.errors import ConfigError
from clickexp.propensities.base import Propensities, PropensitySource, documents
from clickexp.utils.bounds import OneOf
from clickexp.utils.statistics.means import QUANTILE

_GROUPS = 20
"""Of documents, one of which the jackknife leaves out at a time."""
_BLOCK = 1 << 22
"""Pairs of positions that are compared at once, of all documents together."""
_STEPS, _CLOSE = 10_000, 1e-10

_Square = Float[np.ndarray, "... position position"]


@dataclasses.dataclass(frozen=True)
class HarvestedPropensities(PropensitySource):
    """Click rates of the same documents at different positions, which differ by examination alone.

    S(k, l) are the documents shown at both positions. Their clicks at k are A(k, l) = sum_d c_dk n_dl / (n_dk + n_dl),
    where n_dk is how often d was shown at k and c_dk how often it was clicked there: the weights of Mantel and
    Haenszel, which make up for unequal exposure at least variance. A(k, l) / A(l, k) estimates e_k / e_l.

        pivot      e_k / e_1 = A(k, 1) / A(1, k)
        chain      e_k / e_1 = product of A(i + 1, i) / A(i, i + 1) over adjacent positions
        all_pairs  the most likely e, where each click on S(k, l) is at k with probability e_k / (e_k + e_l)

    Agarwal, Zaitsev, Wang, Li, Najork and Joachims 2019, "Estimating position bias without intrusive interventions",
    where all documents weigh alike and all_pairs maximises a Bernoulli likelihood; ours is its Poisson form, in which
    the relevance of the pairs cancels. Intervals: jackknife over 20 groups of documents.

    Attributes:
        estimator: `pivot`, `chain` or `all_pairs`.
    """

    estimator: Annotated[str, OneOf("pivot", "chain", "all_pairs")] = "all_pairs"

    @property
    def may_have_offsets(self) -> bool:
        """Whether it can know the click rates of irrelevant documents."""
        return False

    def __call__(self, dataset: Dataset) -> Propensities:
        """Estimates from the training sessions; ConfigError where no document links another position to the first."""
        clicks = harvest(dataset.train)
        estimate = {"pivot": _pivot, "chain": _chain, "all_pairs": _all_pairs}[self.estimator]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = estimate(clicks.sum(axis=0))
            others = np.stack(
                [
                    np.log(estimate(np.delete(clicks, group, axis=0).sum(axis=0)))
                    for group in range(_GROUPS)
                ]
            )
            variance = (_GROUPS - 1) / _GROUPS * ((others - others.mean(axis=0)) ** 2).sum(axis=0)
            spread = QUANTILE * np.sqrt(variance)
            low, high = found * np.exp(-spread), found * np.exp(spread)
        if not np.isfinite(found[1:]).any():
            raise ConfigError(
                "propensity=harvest: no document was shown and clicked at the first position and at another, so that "
                "the log cannot distinguish examination from relevance; give others, or randomise some sessions"
            )
        return Propensities.relative(
            found, low=low, high=high, source=f"harvested, {self.estimator.replace('_', ' ')}"
        )


def harvest(sessions: Sessions) -> Float[np.ndarray, "{_GROUPS} position position"]:
    """Returns A(k, l), positions from 1 at index 0, for each group of documents."""
    found = np.zeros((_GROUPS, *(max(sessions.positions, sessions.ranks),) * 2))
    for ids, shown, clicked in _by_document(sessions):
        both = shown[:, :, None] + shown[:, None, :]
        share = np.where(shown[:, :, None] > 0, shown[:, None, :] / np.maximum(both, 1), 0)
        rates = clicked[:, :, None] * share
        group = (ids * 2654435761 >> 7) % _GROUPS
        for number in range(_GROUPS):
            found[number] += rates[group == number].sum(axis=0)
    positions = np.arange(found.shape[1])
    found[:, positions, positions] = 0
    return found


def _by_document(sessions: Sessions) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields ids of documents shown at several positions, and how often they were shown and clicked at each."""
    width = max(sessions.positions, sessions.ranks)
    keys, counts = np.zeros(0, np.int64), np.zeros((2, 0), np.int64)
    for positions, clicks, more in documents(sessions, "query_doc_ids"):
        key = more["query_doc_ids"].astype(np.int64) * width + (positions - 1)
        distinct, place = np.unique(np.concatenate([keys, key]), return_inverse=True)
        old, new = place[: len(keys)], place[len(keys) :]
        merged = np.zeros((2, len(distinct)), np.int64)
        merged[:, old] = counts
        merged += np.stack(
            [np.bincount(each, minlength=len(distinct)) for each in (new, new[clicks])]
        )
        keys, counts = distinct, merged
    ids, place = np.unique(keys // width, return_inverse=True)
    several = np.bincount(place) > 1
    kept = several[place]
    ids, keys, counts, place = (
        ids[several],
        keys[kept],
        counts[:, kept],
        (np.cumsum(several) - 1)[place[kept]],
    )
    most = max(_BLOCK // width**2, 1)
    for start in range(0, len(ids), most):
        cut = slice(*np.searchsorted(place, [start, start + most]))
        block = np.zeros((2, min(most, len(ids) - start), width))
        block[:, place[cut] - start, keys[cut] % width] = counts[:, cut]
        yield ids[start : start + most], block[0], block[1]


def _pivot(clicks: _Square) -> Float[np.ndarray, " position"]:
    found = clicks[:, 0] / clicks[0]
    found[0] = 1
    return np.where(found > 0, found, np.nan)


def _chain(clicks: _Square) -> Float[np.ndarray, " position"]:
    steps = np.diagonal(clicks, -1) / np.diagonal(clicks, 1)
    found = np.append(1.0, np.cumprod(steps))
    return np.where(found > 0, found, np.nan)


def _all_pairs(clicks: _Square) -> Float[np.ndarray, " position"]:
    """Bradley-Terry strengths by minorisation-maximisation (Hunter 2004) of positions that clicks link to the first."""
    linked = (clicks > 0) & (clicks.T > 0) | np.eye(len(clicks), dtype=bool)
    for _ in range(len(clicks).bit_length()):
        linked = linked @ linked
    known = np.flatnonzero(linked[0])
    won = clicks[np.ix_(known, known)]
    games, strengths = won + won.T, np.ones(len(known))
    for _ in range(_STEPS if len(known) > 1 else 0):
        new = won.sum(axis=1) / (games / (strengths[:, None] + strengths)).sum(axis=1)
        new /= new[0]
        done = np.abs(np.log(new / strengths)).max() < _CLOSE
        strengths = new
        if done:
            break
    found = np.full(len(clicks), np.nan)
    found[known] = strengths / strengths[0]
    return found
