"""Whether the order of a log is that in which users saw its lists."""

import numpy as np

from clickexp.data.id_table import mixed
from clickexp.data.sessions import Sessions
from clickexp.utils.changes import changes

_FAR_APART = 0.1
"""Part of a log that search sessions reach over where its rows seem shuffled."""
_ENOUGH_SESSIONS, _ENOUGH_WITH_TIMES = 1000, 50
"""Search sessions of a log that is doubted; users of a smaller one may all have searched in one hour.

Where most have lists of one time, what is named as times orders nothing, and fewer are enough.
"""


def shuffled_sessions(sessions: Sessions, share: int) -> str | None:
    """Returns a doubt whether the lists of search sessions are in order; None where they seem so, or have times.

    A log in the order of the clicks has sessions side by side, not from one end to the other.

    Args:
        sessions: Lists with `session_ids`.
        share: Of how many search sessions one is looked at, about.
    """
    ids, rows, times = _sampled(sessions, share)
    order = np.argsort(ids, kind="stable")
    ids, rows, times = ids[order], rows[order], times[order]
    starts = np.flatnonzero(changes(ids))
    ends = np.append(starts[1:], len(ids)) - 1
    several = ends > starts
    has_times = "times" in sessions.columns
    enough = _ENOUGH_WITH_TIMES if has_times else _ENOUGH_SESSIONS
    if len(starts) < enough or not several.any():
        return None
    reach = np.median((rows[ends] - rows[starts])[several]) / sessions.count
    later = len(ids) - len(starts)
    tied = later - _distinct(ids, times)
    if reach <= _FAR_APART or 2 * tied < later:
        return None
    remedy = "name a column of times by dataset.columns.time=NAME"
    if has_times:
        remedy = (
            f"of the lists after another one in their session {tied / later:.0%} have the same time as one before, so "
            "name a column of finer times by dataset.columns.time=NAME"
        )
    return (
        f"half of the search sessions reach over {reach:.0%} of the log or more, as if its rows were shuffled. Context "
        f"and split take the order of rows: {remedy}, or sort the log"
    )


def _distinct(ids: np.ndarray, times: np.ndarray) -> int:
    """Returns how many lists have another time than those of their session before them, the first ones left out."""
    order = np.lexsort((times, ids))
    same_session = np.diff(ids[order]) == 0
    return int(np.count_nonzero(same_session & (np.diff(times[order]) > 0)))


def _sampled(sessions: Sessions, share: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns search session, row and time of the lists of some sessions; times of 0 where there are none."""
    ids, rows, times, start = [], [], [], 0
    for chunk in sessions.chunks():
        session = chunk["session_ids"]
        kept = np.flatnonzero(mixed(session.view(np.uint64)) % np.uint64(share) == 0)
        ids.append(session[kept])
        rows.append(start + kept)
        times.append(chunk["times"][kept] if "times" in chunk else np.zeros(len(kept)))
        start += len(session)
    return np.concatenate(ids), np.concatenate(rows), np.concatenate(times)
