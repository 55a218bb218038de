"""Sums by place."""

from typing import Any

import numpy as np


def add_at(sums: np.ndarray, places: np.ndarray, values: Any) -> None:
    """Adds values to sums at places, which may repeat, as `np.add.at` does, in less time.

    Other threads go on meanwhile, which `np.add.at` keeps waiting.

    Args:
        sums: `[places]`, of 32-bit integers or floating-point numbers.
        places: Whole numbers.
        values: One per place, or one for all.

    Raises:
        IndexError: A place is not among those of the sums.
    """
    from scipy.sparse import _sparsetools  # here, since it takes time to load

    if places.size and not (places.min() >= 0 and places.max() < len(sums)):
        raise IndexError(f"places are 0 to {len(sums) - 1}: {places.min()} to {places.max()}")
    column = np.ascontiguousarray(np.broadcast_to(values, places.shape), sums.dtype)
    ends = np.array([0, len(places)], places.dtype)
    # a matrix of one column, of which rows repeat, times 1
    _sparsetools.csc_matvec(len(sums), 1, ends, places, column, np.ones(1, sums.dtype), sums)
