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

    _check_places(places, len(sums))
    column = np.ascontiguousarray(np.broadcast_to(values, places.shape), sums.dtype)
    ends = np.array([0, len(places)], places.dtype)
    # a matrix of one column, of which rows repeat, times 1
    _sparsetools.csc_matvec(len(sums), 1, ends, places, column, np.ones(1, sums.dtype), sums)


def add_runs_at(
    sums: np.ndarray, places: np.ndarray, ends: np.ndarray, vectors: np.ndarray
) -> None:
    """Adds vectors to sums at places, which may repeat; memory is read once for all numbers of a vector.

    Args:
        sums: `[places, numbers]`, floating-point numbers, contiguous.
        places: Whole numbers, those of a run one after the other.
        ends: `[1 + runs]`, 0 and the end of each run.
        vectors: `[runs, numbers]`, what is added at each place of a run.

    Raises:
        IndexError: A place is not among those of the sums.
    """
    from scipy.sparse import _sparsetools  # as above

    _check_places(places, len(sums))
    ones = np.ones(len(places), sums.dtype)
    ends, vectors = ends.astype(places.dtype), np.ascontiguousarray(vectors, sums.dtype)
    # a matrix of a column per run times the vectors
    shape = len(sums), *vectors.shape
    _sparsetools.csc_matvecs(*shape, ends, places, ones, vectors.ravel(), sums.reshape(-1))


def _check_places(places: np.ndarray, size: int) -> None:
    if places.size and not (places.min() >= 0 and places.max() < size):
        raise IndexError(f"places are 0 to {size - 1}: {places.min()} to {places.max()}")
