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

from typing import NamedTuple

import numpy as np

from clickexp.data.id_table import mixed
from clickexp.data.schema import Columns

COMPARED = ("query_doc_ids", "positions", "clicks", "lengths", "query_ids", "session_ids", "times")
"""Columns in which copies of a list are the same."""
_OF_LISTS = ("query_ids", "session_ids", "times")
_FEW = 0.01
"""Share of lists below which copies are not reported."""


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


def list_keys(chunk: Columns) -> np.ndarray:
    """Returns a 64-bit hash of each list: of its documents in their order, and what else of `COMPARED` there is.

    It adds products with odd numbers modulo 2^64 (Dietzfelbinger 1996, "Universal hashing and k-wise independent random
    variables via integer arithmetic without primes").
    """
    ranks = chunk["query_doc_ids"].shape[1]
    factors = mixed(np.arange(1, 3 * ranks + 2, dtype=np.uint64)) | np.uint64(1)
    keys = chunk["lengths"].astype(np.uint64) * factors[0]
    for place, name in enumerate(("query_doc_ids", "clicks", "positions")):
        if name in chunk:
            of_ranks = factors[1 + place * ranks : 1 + (place + 1) * ranks]
            keys += np.einsum("lr,r->l", chunk[name].astype(np.uint64), of_ranks)
    for name in _OF_LISTS:
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
