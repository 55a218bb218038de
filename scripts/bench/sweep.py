"""A sweep of 12 small jobs with two workers against Hydra's basic launcher, and what a job costs before it trains.

    python scripts/bench/sweep.py

Prints the wall time of each sweep and of a single run, and the time from the start of a process to the end of its
first training dispatch, with a cold and with a warm compilation cache. The basic launcher has one process for all jobs.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from report import machine

from clickexp.loggers import Logger, RunInfo
from clickexp.loggers.base import Phase

SWEEP = ["model=pbm,ubm", "seed=1,2,3,4,5,6"]
JOB = [
    "dataset.sessions=20000",
    "dataset.queries=500",
    "trainer.epochs=2",
    "resume=false",
    "progress=plain",
]
PROBE = "+logger.probe={_target_:sweep.FirstStep}"


class FirstStep(Logger):
    """Notes when the first training dispatch of a run was done, in seconds after its process started."""

    file: Path | None = None

    def start(self, info: RunInfo) -> None:
        self.file = info.folder / "first_step.json"

    def progress(
        self, phase: Phase, epoch: int, done: int, total: int, loss: float | None = None
    ) -> None:
        if phase == "train" and self.file is not None:
            # both since the machine started: psutil's time of that is a whole second
            start = psutil.Process().create_time() - psutil.boot_time()
            self.file.write_text(json.dumps(time.clock_gettime(time.CLOCK_BOOTTIME) - start))
            self.file = None


def clickexp(folder: Path, *arguments: str) -> float:
    """Wall time of the command, with the probe."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-m", "clickexp", *arguments, *JOB, PROBE]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return time.perf_counter() - start


def sweep(folder: Path, name: str, *arguments: str) -> None:
    """Prints the wall time of a sweep, and for its jobs the time to the first step."""
    seconds = clickexp(folder, "-m", *SWEEP, f"hydra.sweep.dir={name}", *arguments)
    first = [
        json.loads(file.read_text()) for file in sorted((folder / name).glob("*/first_step.json"))
    ]
    print(
        f"{name}: {seconds:.1f} s; to the first step: first job {first[0]:.2f} s, "
        f"median {statistics.median(first):.2f} s, at most {max(first):.2f} s"
    )


def run(folder: Path, name: str, *arguments: str) -> None:
    """Prints the wall time of a run that is no sweep, and its time to the first step."""
    seconds = clickexp(folder, "model=ubm", "seed=1", f"hydra.run.dir={name}", *arguments)
    first = json.loads((folder / name / "first_step.json").read_text())
    print(f"{name}: {seconds:.1f} s, {first:.2f} s to the first step")


def main() -> None:
    print(machine())
    folder = Path(tempfile.mkdtemp())
    try:
        for name, do, arguments in (
            ("accelerators", sweep, ["launcher=accelerators", "hydra.launcher.workers=2"]),
            ("basic", sweep, ["launcher=basic"]),
            ("run", run, []),
        ):
            for state in ("cold", "warm"):
                do(folder, f"{name}-{state}", *arguments, f"cache_dir={name}-cache")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
