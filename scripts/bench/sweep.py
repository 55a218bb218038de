"""A sweep of 12 small jobs with two workers against Hydra's basic launcher, and what a job costs before it trains.

    python scripts/bench/sweep.py

Prints the wall time of each sweep, and of its jobs the median time from the start of the process to the end of
the first training dispatch, with a cold and with a warm compilation cache.
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
from typing import Any

import psutil
from report import machine

from clickexp.loggers import Logger, RunInfo

SWEEP = ["model=pbm,ubm", "seed=1,2,3,4,5,6"]
JOB = ["dataset.sessions=20000", "dataset.queries=500", "trainer.epochs=2", "resume=false", "progress=plain"]
PROBE = "+logger.probe={_target_:sweep.FirstStep}"
OURS = ["launcher=accelerators", "hydra.launcher.workers=2"]


class FirstStep(Logger):
    """Notes when the first training dispatch of a run was done, in seconds after its process started."""

    file: Path | None = None

    def start(self, info: RunInfo) -> None:
        self.file = info.folder / "first_step.json"

    def progress(self, phase: str, *_: Any) -> None:
        if phase == "train" and self.file is not None:
            # both since the machine started: psutil's time of that is a whole second
            start = psutil.Process().create_time() - psutil.boot_time()
            self.file.write_text(json.dumps(time.clock_gettime(time.CLOCK_BOOTTIME) - start))
            self.file = None


def sweep(folder: Path, name: str, *arguments: str) -> tuple[float, list[float]]:
    """Wall time of a sweep, and for each of its jobs the time to its first step."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "clickexp",
        "-m",
        *SWEEP,
        *JOB,
        PROBE,
        f"hydra.sweep.dir={name}",
        *arguments,
    ]
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    files = sorted((folder / name).glob("*/first_step.json"))
    return time.perf_counter() - start, [json.loads(file.read_text()) for file in files]


def main() -> None:
    print(machine())
    folder = Path(tempfile.mkdtemp())
    try:
        for state in ("cold", "warm"):
            seconds, first = sweep(folder, state, *OURS)
            print(
                f"two workers, {state} cache: {seconds:.1f} s; to the first step: "
                f"first job {first[0]:.2f} s, median {statistics.median(first):.2f} s, at most {max(first):.2f} s"
            )
        for state in ("cold", "warm"):
            _, first = sweep(folder, f"one-{state}", *OURS, "model=ubm", "seed=1", "cache_dir=one")
            print(f"one job alone, {state} cache: {first[0]:.2f} s to the first step")
        seconds, _ = sweep(folder, "basic")
        print(f"basic launcher: {seconds:.1f} s")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
