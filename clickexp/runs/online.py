"""The document of a comparison of two rankers by users, as online.json in the folder of the second run holds it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from clickexp.errors import UserError
from clickexp.runs.store import ONLINE_FILE, read_limited, write_json
from clickexp.utils.documents import describe_fault, plain
from clickexp.utils.escape import cleaned
from clickexp.utils.statistics.sequential import Estimate


@dataclass(frozen=True)
class Difference:
    """A metric of two rankers.

    Attributes:
        a: Its value with A.
        b: Its value with B.
        difference: B - A.
        higher_is_better: Which way is better for users.
    """

    a: float
    b: float
    difference: Estimate
    higher_is_better: bool

    @property
    def better(self) -> str | None:
        """The ranker, "a" or "b", that is significantly better; None where neither is."""
        if not self.difference.significant:
            return None
        return "b" if (self.difference.value > 0) == self.higher_is_better else "a"


@dataclass(frozen=True)
class ABTest:
    """An A/B test.

    Attributes:
        sessions: Sessions of A and of B.
        units: Units of A and of B that were assigned: sessions or users.
        metrics: By name.
    """

    sessions: tuple[int, int]
    units: tuple[int, int]
    metrics: Mapping[str, Difference]


@dataclass(frozen=True)
class Interleaving:
    """A test by interleaving.

    Attributes:
        sessions: Sessions.
        wins_a: Sessions in which A has more clicks.
        wins_b: Sessions in which B has more clicks.
        ties: Sessions in which they have equally many, or none.
        preference: (wins of B - wins of A) / sessions, from -1 to 1, with its intervals and the p-value.
    """

    sessions: int
    wins_a: int
    wins_b: int
    ties: int
    preference: Estimate

    @property
    def better(self) -> str | None:
        """The ranker, "a" or "b", that is significantly preferred; None where neither is."""
        if not self.preference.significant:
            return None
        return "b" if self.preference.value > 0 else "a"


@dataclass(frozen=True)
class Day:
    """Both tests at the end of a day, from its sessions and those of the days before.

    Attributes:
        day: From 1.
        ab: The A/B test.
        interleaving: The test by interleaving.
    """

    day: int
    ab: ABTest
    interleaving: Interleaving


@dataclass(frozen=True)
class OnlineComparison:
    """Two rankers judged by users.

    Attributes:
        a: Name of the first ranker.
        b: Name of the second.
        user: Name of the click model of the users.
        lists: Lists that sessions are drawn from.
        same: Share of the lists that both rankers order alike, as far as they are shown.
        positions: Documents shown.
        sessions: Sessions of the A/B test; interleaving has as many.
        users: Users whose ids are assigned; None where sessions are.
        alpha: Error rate of intervals and tests.
        power: That of minimum detectable effects.
        seed: The same seed gives the same sessions.
        days: Each day; the last one is the result.
        models: Names of the models of both rankers.
        caveats: What makes the comparison less than it seems, in sentences.
    """

    a: str
    b: str
    user: str
    lists: int
    same: float
    positions: int
    sessions: int
    users: int | None
    alpha: float
    power: float
    seed: int
    days: tuple[Day, ...]
    models: tuple[str, str] = ("", "")
    caveats: tuple[str, ...] = ()

    @property
    def ab(self) -> ABTest:
        """The A/B test of all sessions."""
        return self.days[-1].ab

    @property
    def interleaving(self) -> Interleaving:
        """The test by interleaving of all sessions."""
        return self.days[-1].interleaving

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, as JSON has them; numbers that it has not are None."""
        return plain(dataclasses.asdict(self))

    def write(self, folder: Path) -> None:
        """Writes online.json into a folder, whole or not at all."""
        write_json(self.as_dict(), folder / ONLINE_FILE)

    @classmethod
    def read(cls, folder: Path) -> "OnlineComparison":
        """Reads online.json, which may come from anyone.

        Args:
            folder: Where it is.

        Raises:
            UserError: It is damaged, or of something else: the message names the key.
        """
        content = cleaned(read_limited(folder / ONLINE_FILE))
        try:
            return TypeAdapter(cls).validate_python(content)
        except ValidationError as error:
            raise UserError(describe_fault(error, ONLINE_FILE, "no comparison by users")) from error
