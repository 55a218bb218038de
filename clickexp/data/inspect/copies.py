"""Lists that a log holds twice, distinguished from lists that users repeat.

Users repeat lists: many see the same results of a popular query and click none. If lists of each kind come at a rate of
its own, the numbers of kinds by their copies in two parts of a log obey an inequality. With rates a in the one part and
b in the other, the expected number of kinds

    n[1, 1] with a copy in each is the sum over kinds of a b exp(-a - b),
    n[0, 1] with a copy in the second alone that of b exp(-a - b),
    n[2, 1] with two copies in the first and one in the second that of a^2 b / 2 exp(-a - b),

so that n[1, 1]^2 <= 2 n[0, 1] n[2, 1] whatever the rates (Cauchy and Schwarz). Copies of rows break it: where a log is
there twice, hardly any kind of list is seen once.
"""

from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from clickexp.data.id_table import mixed
from clickexp.data.kept import Counts, kept
from clickexp.data.schema import Columns
from clickexp.data.sessions import Sessions
from clickexp.utils import threads

COMPARED = ("query_doc_ids", "positions", "clicks", "lengths", "query_ids", "session_ids", "times")
"""Columns in which copies of a list are the same."""
_OF_LISTS = ("query_ids", "session_ids", "times")
_FEW = 0.01
"""Share of lists below which copies are not reported."""
_KINDS = 1 << 14
"""Kinds of lists that a sample has at most."""
_MOST_COPIES = 3
"""Of each kind in a sample: of more copies `copies` learns nothing else."""


class Copies(NamedTuple):
    """Lists of a part that another part has, too.

    Attributes:
        lists: Lists of the part.
        common: Those of them that the other part has.
        excess: Those seen once in either part beyond what users' repetition explains.
    """

    lists: int
    common: int
    excess: float

    @property
    def doubtful(self) -> bool:
        """Whether the log seems to hold rows twice."""
        return self.excess > max(_FEW * self.lists, 1)


class ListHashes(NamedTuple):
    """Hashes of the lists of a log, which depend neither on the order of its rows nor on its split.

    Attributes:
        digest: A hash of all lists.
        sample: Hashes of single lists, those of the smallest; see `sampled`.
    """

    digest: str
    sample: np.ndarray

    @classmethod
    def of(cls, parts: Iterable[Sessions]) -> "ListHashes":
        """Returns those of the parts of a log, whose ids are those of other logs that it is compared with."""
        found = [
            kept(part, f"list_hashes_{number}", _KINDS, partial(_hashes, part))
            for number, part in enumerate(parts)
        ]
        count = sum(int(of_part["count"]) for of_part in found)
        total = sum(int(of_part["total"]) for of_part in found) % 2**64
        return cls(f"{count}-{total:016x}", sampled(*(of_part["sample"] for of_part in found)))


def _hashes(sessions: Sessions) -> Counts:
    """Returns the number of lists, the sum of their hashes and a sample of these."""
    count, total, sample = 0, 0, np.zeros(0, np.uint64)
    waiting, limit = [sample], _limit(sample)
    for chunk in sessions.chunks():
        threads.end_where_needless()
        # other columns have numbers that depend on the log
        keys = mixed(list_keys(chunk, ("times",)))
        count, total = count + len(keys), total + int(keys.sum(dtype=np.uint64))
        waiting.append(keys[keys <= limit])
        if sum(map(len, waiting)) > _KINDS:  # to sort them takes longer than to hash a chunk
            sample = sampled(sample, np.concatenate(waiting))
            waiting, limit = [], _limit(sample)
    sample = sampled(sample, np.concatenate([sample[:0], *waiting]))
    return {
        "count": np.array(count),
        "total": np.array(total % 2**64, np.uint64),
        "sample": sample,
    }


def sampled(*keys: np.ndarray) -> np.ndarray:
    """Returns the smallest hashes of lists, which are of the same kinds in any logs, each with at most three copies.

    Args:
        keys: Of several logs, each with its smallest hashes at least.
    """
    limit = min(map(_limit, keys))
    kinds, counts = np.unique(np.concatenate(keys), return_counts=True)
    is_known = (kinds <= limit) & (np.arange(len(kinds)) < _KINDS)
    return np.repeat(kinds[is_known], np.minimum(counts[is_known], _MOST_COPIES))


def sampled_copies(part: np.ndarray, other: np.ndarray) -> Copies:
    """Compares the lists of a log with those of another by the samples of both."""
    limit = min(_limit(part), _limit(other))
    return copies(part[part <= limit], other[other <= limit])


def _limit(sample: np.ndarray) -> np.uint64:
    """Returns up to which hash a sample has all kinds."""
    is_full = len(sample) >= _KINDS and len(np.unique(sample)) >= _KINDS
    return sample.max() if is_full else np.uint64(2**64 - 1)


def list_keys(chunk: Columns, of_lists: Collection[str] = _OF_LISTS) -> np.ndarray:
    """Returns a 64-bit hash of each list: of its documents in their order, and what else of `COMPARED` there is.

    It adds products with odd numbers modulo 2^64 (Dietzfelbinger 1996, "Universal hashing and k-wise independent random
    variables via integer arithmetic without primes"). The room for longer lists does not change it.

    Args:
        chunk: The lists.
        of_lists: Columns with one value per list that are hashed, where they are there.
    """
    ranks, names = chunk["query_doc_ids"].shape[1], ("query_doc_ids", "clicks", "positions")
    factors = mixed(np.arange(1, len(names) * ranks + 2, dtype=np.uint64)) | np.uint64(1)
    keys = chunk["lengths"].astype(np.uint64) * factors[0]
    for place, name in enumerate(names, 1):
        if name in chunk:
            of_ranks = factors[place :: len(names)]
            keys += np.einsum("lr,r->l", chunk[name].astype(np.uint64), of_ranks)
    for name in of_lists:
        if name in chunk:
            keys = mixed(keys + mixed(np.ascontiguousarray(chunk[name]).view(np.uint64)))
    return keys


def copies(part: np.ndarray, other: np.ndarray) -> Copies:
    """Compares the lists of a part with those of another.

    Args:
        part: Hashes of its lists.
        other: Those of the other part.
    """
    kinds, counts = np.unique(part, return_counts=True)
    of_other, counts_of_other = np.unique(other, return_counts=True)
    place = np.searchsorted(of_other, kinds)
    is_common = np.append(of_other, np.uint64(0))[place] == kinds
    is_common &= place < len(of_other)
    copies_there = np.where(is_common, np.append(counts_of_other, 0)[place], 0)
    unseen, once, twice = (
        int(np.count_nonzero((counts == 1) & (copies_there == number))) for number in range(3)
    )
    by_chance = np.sqrt(2 * _at_most(unseen) * _at_most(twice))
    return Copies(len(part), int(counts[is_common].sum()), once - by_chance)


def _at_most(count: int) -> float:
    """An upper limit of the mean of a Poisson distribution after this count, above 97.5%."""
    return count + 2 * np.sqrt(count) + 4
