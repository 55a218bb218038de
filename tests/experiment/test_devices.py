"""Runs over several devices, which XLA makes of the CPU in processes apart."""

import os
import subprocess
import sys

import pytest
from places import ROOT

PROGRAM = ROOT / "tests/experiment/over_devices.py"
LOG = ["dataset.sessions=3000", "dataset.queries=250", "logger=console", "progress=off"]
OPTIONS = ["model=pbm", "trainer.epochs=2", "trainer.checkpoint_minutes=0", "draws=2", *LOG]
PAIRS, DEVICES = 5_000, 4
pytestmark = pytest.mark.nightly


def most_rows(*overrides):
    """Of a table on one of the devices, in the course of a run."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, str(PROGRAM), str(DEVICES), str(PAIRS + 1), *overrides]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


def test_no_device_has_more_of_a_table_than_its_share(tmp_path):
    """From the first parameters to the last draw: models are built, saved and read on the host."""
    first = tmp_path / "first"
    runs = {first: [], tmp_path / "second": [f"prior={first}", "dataset.seed=7"]}
    for folder, overrides in runs.items():
        most = most_rows(f"hydra.run.dir={folder}", *overrides, *OPTIONS)
        assert PAIRS // DEVICES <= most < 1.1 * PAIRS / DEVICES
