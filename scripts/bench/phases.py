"""A run that says how long each of its phases takes, for `job.py`; that of another checkout, too.

    python scripts/bench/phases.py FILE WORD ...

The words are those of `clickexp`. The file receives, by phase, wall and processor seconds of the time in which the main
thread is in it; other threads add to the second. Compiling is what the main thread waits for. A function that a
checkout lacks has no phase.
"""

import atexit
import functools
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PHASES = {
    "clickexp.experiment.run:run_experiment": "other",
    "clickexp.experiment.run:build": "prepare",
    "clickexp.experiment.build:identifiability": "statistics",
    "clickexp.training.trainer:_GradientDescent.start": "statistics",
    "clickexp.training.trainer:_GradientDescent.run_pass": "epochs",
    "clickexp.training.loop:Loop._epoch": "validation",
    "clickexp.data.feed:Compiled._awaited": "compiling",
    "jax.stages:Lowered.compile": "compiling",
    "clickexp.experiment.run:refine_shared": "statistics",
    "clickexp.experiment.run:evaluate_test_set": "test",
    "clickexp.experiment.result:evaluate": "test",
    "clickexp.experiment.result:_shared_intervals": "intervals",
    "clickexp.experiment.result:references": "references",
    "clickexp.experiment.run:_report": "report",
}
"""Phases by module and function; the innermost one counts."""


class Clock:
    """Wall and processor seconds by phase of the main thread.

    Attributes:
        seconds: By phase.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._phases, self._last = ["start"], (time.perf_counter(), time.process_time())

    def turn(self) -> None:
        """Adds the time since the last turn to the phase."""
        now = time.perf_counter(), time.process_time()
        spent = self.seconds.setdefault(self._phases[-1], [0.0, 0.0])
        for place in range(2):
            spent[place] += now[place] - self._last[place]
        self._last = now

    def timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Returns a function that is a phase while it runs in the main thread."""

        @functools.wraps(function)
        def inside(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*arguments, **options)
            self.turn()
            self._phases.append(phase)
            try:
                return function(*arguments, **options)
            finally:
                self.turn()
                self._phases.pop()

        return inside


def patch(clock: Clock) -> None:
    """Makes functions phases."""
    for place, phase in PHASES.items():
        module, _, path = place.partition(":")
        holder: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for each in outer:
            holder = getattr(holder, each)
        if hasattr(holder, name):
            setattr(holder, name, clock.timed(getattr(holder, name), phase))


def main() -> None:
    clock, file = Clock(), Path(sys.argv.pop(1))

    def end() -> None:
        clock.turn()
        file.write_text(json.dumps(clock.seconds))

    atexit.register(end)
    patch(clock)
    importlib.import_module("clickexp.cli.main").main()


if __name__ == "__main__":
    main()
