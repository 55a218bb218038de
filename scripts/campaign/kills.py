"""Runs, sweeps and searches that are killed, stopped or interrupted, and then repeated, beside undisturbed ones."""

import dataclasses
import json
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from scripts.campaign.processes import faults_of_text, started, tree, waited
from scripts.campaign.trials import Trial, area

_SETTINGS = (
    "dataset.sessions=2000", "dataset.queries=20", "trainer.epochs=40", "trainer.early_stopping=null",
    "trainer.checkpoint_minutes=0",
    "trainer.batch_size=64", "metric=click", "report=false", "logger=jsonl", "progress=off", "model=pbm",
)  # fmt: skip
_SWEEP = ("-m", "launcher=accelerators", "hydra.launcher.workers=1", "seed=1,2")
_PROGRAMS = {
    "run": ("hydra.run.dir=out",),
    "sweep": (*_SWEEP, "hydra.sweep.dir=out"),
    "basic sweep": ("-m", "seed=1,2", "hydra.sweep.dir=out"),
    "search": (*_SWEEP, "search=grid", "search.study=out", "sweeps_dir=.", "search.pruner=null"),
}
_ENDS = {
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (143, -signal.SIGTERM),
    signal.SIGINT: (130, -signal.SIGINT),
}
_LIMIT, _GRACE = 600.0, 30.0
_START = 1.0
"""Seconds in which Python starts and imports Hydra; after Ctrl-C it prints a trace of its own."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """An undisturbed call of a program.

    Attributes:
        seconds: Its wall time.
        results: What `results_in` finds of it.
    """

    seconds: float
    results: dict[str, dict[str, float]]


@area
def kills(trial: Trial) -> None:
    """A program is disturbed at random moments, up to three times, then repeated until it ends by itself."""
    rng = trial.rng
    name = rng.choice([*_PROGRAMS])
    reference = _reference(trial.base, name)
    for _ in range(rng.choice((1, 1, 2, 3))):
        number = rng.choice((*_ENDS, signal.SIGSTOP))
        moment = _START + rng.random() * max(reference.seconds - _START, 0)
        trial.story.append(f"{name}: {number.name} after {moment:.1f} of {reference.seconds:.1f} s")
        if _disturb(trial, name, number, moment):
            break
    else:
        _finish(trial, name)
    results = results_in(trial.folder / "out")
    trial.check(results == reference.results, f"{results}, undisturbed {reference.results}")
    parts = [*trial.folder.rglob("*.part")]
    trial.check(not parts, f"left half-written: {parts}")


def _disturb(trial: Trial, name: str, number: signal.Signals, moment: float) -> bool:
    """Sends a signal to the program; returns whether it has ended by itself."""
    with started(_words(name), trial.folder) as process:
        until = time.monotonic() + moment
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        if process.poll() is not None:
            trial.check(process.returncode == 0, f"ends with {process.returncode}")
            return True
        family = tree(process.pid)
        process.send_signal(number)
        if number == signal.SIGSTOP:
            time.sleep(1)
            process.send_signal(signal.SIGCONT)
        limit = _LIMIT if number == signal.SIGSTOP else _GRACE
        code = waited(process.pid, process.poll, limit)
        codes = (0, *_ENDS.get(number, ()))
        trial.check(code in codes, f"exit code {code} after {number.name}, not one of {codes}")
        alive = [each for each in family if waited(each.pid, partial(_end, each), _GRACE) is None]
        trial.check(not alive, f"goes on after its end: {alive}")
    trial.faults += faults_of_text((trial.folder / "output.txt").read_text())
    # a run that has its result is finished, and is refused if repeated
    return code == 0 or (name == "run" and (trial.folder / "out/result.json").exists())


def _finish(trial: Trial, name: str) -> None:
    with started(_words(name), trial.folder) as process:
        code = waited(process.pid, process.poll, _LIMIT)
    text = (trial.folder / "output.txt").read_text()
    trial.check(code == 0, f"ends with {code} when repeated: {text[-500:]}")
    trial.faults += faults_of_text(text)


def _end(process: psutil.Process) -> int | None:
    """Returns a number where a process has ended, which may be that of another's child; else None."""
    try:
        return 0 if process.status() == psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return 0


def _words(name: str) -> tuple[str, ...]:
    return (*_SETTINGS, *_PROGRAMS[name])


def _reference(base: Path, name: str) -> Reference:
    folder = base / f"undisturbed-{name}"
    file = folder / "reference.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with started(_words(name), folder) as process:
            if waited(process.pid, process.poll, _LIMIT) != 0:
                raise RuntimeError(f"no result: {(folder / 'output.txt').read_text()}")
        seconds = time.monotonic() - began
        content = {"seconds": seconds, "results": results_in(folder / "out")}
        file.write_text(json.dumps(content))
    return Reference(**json.loads(file.read_text()))


def results_in(folder: Path) -> dict[str, dict[str, float]]:
    """Returns figures and the sum of the finite parameters of each run below a folder, by its seed."""
    found = {}
    for file in folder.rglob("result.json"):
        result = json.loads(file.read_text())
        with np.load(file.with_name("model.npz")) as stored:
            numbers = np.concatenate([values.ravel() for values in stored.values()])
        total = float(np.abs(numbers[np.isfinite(numbers)], dtype=np.float64).sum())
        epochs = result["train"]["epochs"]
        found[str(result["seed"])] = {**result["test"], "parameters": total, "epochs": epochs}
    return found
