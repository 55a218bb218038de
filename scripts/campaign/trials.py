"""Cases by area, and what they find."""

import dataclasses
import random
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scripts.campaign.processes import LIMIT, Outcome, call, faults_of


@dataclasses.dataclass
class Trial:
    """One case, in a new folder.

    Attributes:
        rng: Random numbers that follow from area, seed and number of the case.
        folder: Where the commands of the case run.
        base: Sound logs and runs, which all cases share and none changes.
        story: What was done, line by line.
        faults: What was found.
    """

    rng: random.Random
    folder: Path
    base: Path
    story: list[str] = dataclasses.field(default_factory=list)
    faults: list[str] = dataclasses.field(default_factory=list)

    def run(self, *command: object, seconds: float = LIMIT) -> Outcome:
        """Runs a command in the folder of the case, and notes what is wrong with its end."""
        words = [str(word) for word in command]
        self.story.append(shlex.join(words))
        outcome = call(words, self.folder, seconds)
        self.faults += faults_of(outcome, words[0])
        parts = [*self.folder.rglob("*.part")]
        self.check(not parts, f"left half-written: {', '.join(map(str, parts))}")
        return outcome

    def check(self, holds: object, fault: str) -> None:
        """Notes a fault unless something holds."""
        if not holds:
            self.faults.append(fault)


AREAS: dict[str, Callable[[Trial], None]] = {}
"""Functions that draw and try one case."""


def area(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
    """Adds an area, under the name of its function."""
    AREAS[function.__name__] = function
    return function


@dataclasses.dataclass(frozen=True)
class Found:
    """A case with faults.

    Attributes:
        area: Its area.
        number: Its number.
        story: What was done.
        faults: What was found.
    """

    area: str
    number: int
    story: Sequence[str]
    faults: Sequence[str]


def attempt(name: str, seed: int, number: int, place: Path, keep: bool) -> Found | None:
    """Tries one case; its folder stays if it has faults."""
    folder = place / f"{name}-{seed}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    trial = Trial(random.Random(f"{name} {seed} {number}"), folder, place / "base")
    AREAS[name](trial)
    if not trial.faults and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return Found(name, number, trial.story, trial.faults) if trial.faults else None


def numbers(
    areas: Sequence[str], seconds: float, count: int | None, spent: dict[str, float]
) -> Iterator[tuple[str, int]]:
    """Yields areas and numbers of cases, the area next that has taken the least time.

    Args:
        areas: Their names.
        seconds: Begin no case later than this.
        count: Cases of each area; None for as many as there is time for.
        spent: Seconds of each area so far, which the caller counts.
    """
    until = time.monotonic() + seconds
    done = dict.fromkeys(areas, 0)
    while time.monotonic() < until:
        left = [name for name in areas if count is None or done[name] < count]
        if not left:
            return
        name = min(left, key=lambda each: spent[each])
        yield name, done[name]
        done[name] += 1
