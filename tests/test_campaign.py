"""scripts/campaign: it finds faults that are planted, and none in clickexp, for fixed seeds."""

import subprocess
import sys
import time

import pytest
from places import ROOT

from scripts.campaign import processes, readers, trials

PLANTED = """
import json, os, pathlib, signal, sys, time, warnings

COUNTS = {"sessions": 3, "documents_shown": 4, "clicks": 5}
PARTS = {"train": COUNTS, "val": dict.fromkeys(COUNTS, 0), "test": dict.fromkeys(COUNTS, 0)}
FAULTS = {
    "trace": lambda: 1 / 0,
    "hang": lambda: time.sleep(60),
    "loop": lambda: [None for _ in iter(int, 1)],
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "silence": lambda: sys.exit(1),
    "code": lambda: sys.exit(7),
    "warning": lambda: warnings.warn("x", RuntimeWarning),
    "part": lambda: pathlib.Path("a.csv.part").touch(),
    "inspect": lambda: print(json.dumps({"parts": PARTS})),
    "prepare": lambda: None,
    "sound": lambda: None,
}

def main():
    FAULTS[sys.argv[1]]()
"""


@pytest.fixture(autouse=True)
def planted(tmp_path, monkeypatch):
    """A module with faults in the place of clickexp-data."""
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(processes, "_IMPORTED", [])
    monkeypatch.setitem(processes.MODULES, "clickexp-data", "planted")


@pytest.mark.parametrize(
    "fault, found",
    [("trace", "trace: ZeroDivisionError"), ("hang", "hangs"), ("loop", "hangs"), ("crash", "SIGSEGV"),
     ("silence", "without a message"), ("code", "exit code 7"), ("warning", "RuntimeWarning"),
     ("part", "a.csv.part"), ("sound", "")],
)  # fmt: skip
def test_each_kind_of_fault_is_found(fault, found, tmp_path):
    trial = trials.Trial(None, tmp_path, tmp_path)
    trial.run("clickexp-data", fault, seconds=2 if found == "hangs" else 60)
    assert found in " ".join(trial.faults) and bool(trial.faults) == bool(found)


@pytest.mark.parametrize("runnable", [True, False])
def test_a_busy_machine_makes_no_process_hang(runnable, monkeypatch):
    """One that could go on, and is not let, for longer than it may wait."""
    monkeypatch.setattr(processes, "seconds_used", lambda pid: 0.0)
    monkeypatch.setattr(processes, "is_runnable", lambda pid: runnable)
    end = time.monotonic() + 2
    code = processes.waited(0, lambda: 0 if time.monotonic() > end else None, seconds=0.5)
    assert code == (0 if runnable else None)


def test_wrong_counts_and_missing_files_are_found_and_the_case_can_be_repeated(tmp_path):
    def first() -> trials.Found:
        cases = (trials.attempt("readers", 0, number, tmp_path / "a", False) for number in range(9))
        return next(case for case in cases if case and "by an independent reader" in str(case))

    found = first()
    assert "read as (3, 4, 5), by an independent reader as (60, " in " ".join(found.faults)
    assert "no figures" in found.faults and first() == found
    assert (tmp_path / "a" / f"readers-0-{found.number}").is_dir()


def test_counts_are_compared_where_they_are_known():
    assert readers.agree((3, 4, 5), None) and readers.agree((3, 4, 5), (3, 4, -1))
    assert not readers.agree((3, 4, 5), (3, 4, 6))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "area, count",
    [("readers", 120), ("folders", 60), ("lists", 40), ("commands", 60), ("kills", 8)],
)
def test_hard_use_finds_no_fault(area, count, tmp_path):
    """As many cases as two minutes let begin."""
    options = ["--seed", "0", "--count", str(count), "--seconds", "120", "--folder", str(tmp_path)]
    command = [sys.executable, "-m", "scripts.campaign", area, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
