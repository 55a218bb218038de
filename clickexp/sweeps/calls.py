"""Calls of a function in the jobs of a pool, whose results come back by files of a folder that all machines see."""

import os
import pickle
import shutil
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clickexp.errors import DataError, UserError
from clickexp.sweeps.backends.base import BasePool, Job
from clickexp.utils.files import whole

_TRIES = 3
"""Times that a call is made whose process dies."""
_HOUR = 3600.0
_RESULT = "result.pickle"


class PoolCalls:
    """Calls functions in jobs; a job that dies is done again.

        with PoolCalls(pool, folder) as call:
            sums = call(sum, [([1, 2],), ([3],)], lambda: None)

    Args:
        pool: A new pool, which is left with this context.
        folder: Folder for results and what jobs print; it is removed.
    """

    def __init__(self, pool: BasePool, folder: Path):
        self._pool, self._folder, self._rounds = pool, folder, 0

    def __enter__(self) -> "PoolCalls":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.__exit__(*error)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __call__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        ended: Callable[[], None],
    ) -> list[Any]:
        """Returns what a function returns for each tuple of arguments; see `clickexp.data.shares.prepare.Calls`.

        Raises:
            UserError: A call raises one, or its job has died three times.
        """
        self._rounds += 1
        waiting, tries = deque(range(len(arguments))), Counter[int]()
        results: dict[int, Any] = {}
        while len(results) < len(arguments):
            while waiting and self._pool.free:
                number = waiting.popleft()
                tries[number] += 1
                folder = self._folder / f"{self._rounds}-{number}-{tries[number]}"
                call = function, arguments[number], folder / _RESULT
                self._pool.submit(number, folder, call_to_file, call)
            for job in self._pool.wait(_HOUR):
                if (job.folder / _RESULT).exists():
                    results[job.key] = _result(job)
                    ended()
                elif tries[job.key] < _TRIES:
                    waiting.append(job.key)
                else:
                    raise UserError(f"{function.__name__} has died {_TRIES} times: {_end(job)}")
            # else what waits in a queue seems left by a killed process
            os.utime(self._folder.parent)
        return [results[number] for number in range(len(arguments))]


def call_to_file(function: Callable[..., Any], arguments: tuple[Any, ...], file: Path) -> None:
    """Calls a function and writes what it returns, or the UserError that it raises."""
    try:
        result = function(*arguments)
    except UserError as error:
        result = DataError(str(error), getattr(error, "options", None))
    with whole(file) as part, part.open("wb") as out:
        pickle.dump(result, out, pickle.HIGHEST_PROTOCOL)


def _result(job: Job) -> Any:
    result = pickle.loads((job.folder / _RESULT).read_bytes())  # noqa: S301  # of our job
    if isinstance(result, UserError):
        raise result
    return result


def _end(job: Job) -> str:
    """How a job ended, and the last line that it printed."""
    lines = job.log.read_text(errors="replace").split("\n") if job.log.exists() else []
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f"{job.end} {last}".strip()
