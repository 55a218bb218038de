"""Whether ranks count from 0, of which something is decided when all rows have been read."""

import numpy as np


class FirstRankCheck:
    """Finds whether the ranks of a log count from 0, where an option says that they count from 1.

    Args:
        first: The option.
    """

    def __init__(self, first: int):
        self.first, self._zeros, self._ones = first, 0, 0

    def add(self, ranks: np.ndarray) -> None:
        """Counts ranks or positions."""
        self._zeros += int((ranks == 0).sum())
        self._ones += int((ranks == 1).sum())

    def join(self, later: "FirstRankCheck") -> None:
        """Adds the ranks of later files."""
        self._zeros += later._zeros
        self._ones += later._ones

    @property
    def options(self) -> dict[str, str]:
        """Options to set: `first_rank` where 0 is there half as often as 1 or more, else nothing."""
        is_from_zero = self.first == 1 and 0 < self._ones <= 2 * self._zeros
        return {"first_rank": "0"} if is_from_zero else {}
