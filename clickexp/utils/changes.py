"""Where values that follow one another change, such as the search sessions of lists."""

import numpy as np
from jaxtyping import Bool, Integer


def changes(values: np.ndarray) -> Bool[np.ndarray, " values"]:
    """Returns where a value differs from the one before; the first one does."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def latest(changed: Bool[np.ndarray, " values"]) -> Integer[np.ndarray, " values"]:
    """Returns for each place the last one up to it where a value has changed, 0 before the first."""
    return np.maximum.accumulate(np.where(changed, np.arange(len(changed)), 0))
