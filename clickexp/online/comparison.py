"""Two rankers judged by users: an A/B test and interleaving, day by day."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from clickexp.data import Sessions
from clickexp.errors import ConfigError
from clickexp.models import ClickModel, Model
from clickexp.online.ab import ab_test, session_sums
from clickexp.online.assignment import assign
from clickexp.online.interleaving import interleaving_test, team_draft
from clickexp.online.lists import Rankings, rank
from clickexp.online.users import User
from clickexp.runs.online import Day, OnlineComparison
from clickexp.utils.bounds import Fraction, PositiveInt, Seed, bounded, check_numbers
from clickexp.utils.progress import Steps

_MOST_SESSIONS = 1 << 27
"""Whose clicks on ten documents take about a gigabyte."""


@bounded
def compare_rankers(
    a: Model,
    b: Model,
    user: ClickModel,
    lists: Sessions,
    *,
    sessions: PositiveInt = 100_000,
    users: PositiveInt | None = None,
    days: PositiveInt = 14,
    positions: PositiveInt = 10,
    alpha: Fraction = 0.05,
    power: Fraction = 0.8,
    seed: Seed = 0,
    names: Sequence[str] = ("A", "B", "the user"),
) -> OnlineComparison:
    """Lets users of a click model judge two rankers, by an A/B test and by team-draft interleaving.

    Each session draws one of the lists. In the A/B test the hash of its id, or of its user's, assigns a ranker; in
    other sessions, as many, both rankers share the list. Sessions come in equally many a day.

    Args:
        a: A ranker: any model.
        b: Another one.
        user: The click model of the users.
        lists: Candidates, such as `dataset.ranking`.
        sessions: Sessions of each of the two tests.
        users: Users whose ids are assigned, each session being of any of them; by default session ids are.
        days: Days that the sessions are spread over.
        positions: Documents shown, at most.
        alpha: Error rate of intervals and tests.
        power: That of minimum detectable effects.
        seed: The same seed gives the same sessions.
        names: Of both rankers and the user.

    Raises:
        DataError: The user cannot click on the lists, or there are too few sessions.
        ConfigError: There are more days than sessions, or more sessions than fit into memory.
    """
    check_trial(sessions=sessions, days=days)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, lists.count, (2, sessions))
    wanted, at = np.unique(drawn, return_inverse=True)
    rankings = rank(a, b, lists, positions, rng, wanted)
    clicker = User(user, rankings.features, names[2], rankings.lookups, rankings.columns)
    clicker.check(rankings.a)
    clicker.check(rankings.b)
    ids = np.arange(sessions) if users is None else rng.integers(0, users, sessions)
    tests = _Tests(
        rankings, clicker, ids, users is not None, str(seed), {"alpha": alpha, "power": power}
    )
    tests.run(at.reshape(2, sessions), rng, seed)
    ends = [sessions * (day + 1) // days for day in range(days)]
    return OnlineComparison(
        *names[:3],
        lists=lists.count,
        same=float((rankings.a == rankings.b).all(axis=1).mean()),
        positions=positions,
        sessions=sessions,
        users=users,
        alpha=alpha,
        power=power,
        seed=seed,
        days=tuple(tests.until(day + 1, end) for day, end in enumerate(ends)),
        models=(a.name, b.name),
    )


def check_trial(**settings: Any) -> None:
    """Checks settings of `compare_rankers`, before anything is read for it.

    Raises:
        ConfigError: There are more days than sessions, or more sessions than fit into memory; or a number is wrong.
    """
    check_numbers(compare_rankers, settings)
    sessions, days = settings.get("sessions", 1), settings.get("days", 1)
    if days > sessions:
        raise ConfigError(f"days={days} of {sessions} sessions: give at most {sessions}")
    if sessions > _MOST_SESSIONS:
        raise ConfigError(f"sessions={sessions}: give at most {_MOST_SESSIONS}")


class _Tests:
    """Sessions of both tests, and what they show until any of them."""

    def __init__(
        self,
        rankings: Rankings,
        user: User,
        ids: np.ndarray,
        by_user: bool,
        salt: str,
        rates: dict[str, float],
    ):
        self.rankings, self.user, self.ids, self.by_user, self.rates = (
            rankings,
            user,
            ids,
            by_user,
            rates,
        )
        self.sees_b = assign(ids, salt)

    def run(self, at: np.ndarray, rng: np.random.Generator, seed: int) -> None:
        """Draws the clicks of sessions on lists `at` [test, sessions]."""
        one, other = at
        shown = np.where(self.sees_b[:, None], self.rankings.b[one], self.rankings.a[one])
        with Steps("A/B test") as progress:
            clicks = self.user.clicks(shown, seed, progress, one)
        self.sums = session_sums(clicks, self.rankings.lengths[one])
        mixed, self.by_b = team_draft(self.rankings.a[other], self.rankings.b[other], rng)
        with Steps("interleaving") as progress:
            self.clicks = self.user.clicks(mixed, (seed + 1) % 2**32, progress, other)

    def until(self, day: int, end: int) -> Day:
        """The tests at the end of a day, of the sessions before `end`."""
        units = self.ids[:end] if self.by_user else None
        settings = {
            **self.rates,
            "planned": len(np.unique(self.ids)) if self.by_user else len(self.ids),
        }
        sums = {name: values[:end] for name, values in self.sums.items()}
        ab = ab_test(sums, self.sees_b[:end], units, **settings)
        return Day(
            day, ab, interleaving_test(self.clicks[:end], self.by_b[:end], units, **settings)
        )
