"""When the parts of a log were, and whether training knows what came after the test."""

import shlex
from collections.abc import Mapping

import numpy as np

from clickexp.data.dataset import Dataset
from clickexp.data.time_ranges import DAY, TimeRange, as_microseconds, shown

_SHARES = (0.8, 0.9)
"""Parts of the lists before the validation and the test that are proposed: those of the default."""


def spans(dataset: Dataset) -> dict[str, TimeRange]:
    """Returns the first and the last time of each part; empty where the log has no dates."""
    parts = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    return {name: part.span for name, part in parts.items() if part.span is not None}


def future_in_training(dataset: Dataset, covered: Mapping[str, TimeRange]) -> str | None:
    """Returns a doubt where training has sessions from after the first of the test; None where it has none.

    Args:
        dataset: The log.
        covered: Result of `spans`.
    """
    if (
        not {"train", "val", "test"} <= covered.keys()
        or covered["train"].stop <= covered["test"].start
    ):
        return None
    parts = (dataset.train, dataset.val, dataset.test)
    times = np.sort(np.concatenate([as_microseconds(part.column("times")) for part in parts]))
    ends = [times[int(share * len(times))] for share in _SHARES]
    if ends[1] - ends[0] > DAY:
        ends = [end - end % DAY for end in ends]
    val, test = map(shown, ends)
    ranges = {"train": f"[null,{val}]", "val": f"[{val},{test}]", "test": f"[{test},null]"}
    proposed = " ".join(shlex.quote(f"{name}_sessions={part}") for name, part in ranges.items())
    first, last = shown(covered["test"].start), shown(covered["train"].stop)
    return (
        f"training goes on until {last}, after the test has begun ({first}): the log is not in order of time, and its "
        f"split takes the order of its rows. From past to future: {proposed}"
    )
