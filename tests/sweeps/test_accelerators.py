"""Processes of launcher=accelerators: those that die, and real runs, which compile their programs once."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT
from stand_in import ProcessPlace, statuses

from clickexp.runs.store import records

SMALL = [
    "debug=fast",
    "report=false",
    "max_sessions=500",
    "dataset.sessions=2000",
    "dataset.queries=50",
]
SMALL += ["metric=click"]
SPY = """
import json
from clickexp.loggers import Logger

class Spy(Logger):
    def start(self, info):
        received = dict(group=info.group, job_type=info.job_type, overrides=info.config["overrides"])
        (info.folder / "spy.json").write_text(json.dumps(received))
"""


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """The folder of a sweep by our launcher and of its first job by Hydra's, and what they printed."""
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "spy.py").write_text(SPY)
    path = os.pathsep.join([str(folder), str(ROOT)])
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, "COLUMNS": "100"}
    env.pop("JAX_COMPILATION_CACHE_DIR", None)  # which the tests share
    logger = ["logger=jsonl", "+logger.spy._target_=spy.Spy", "resume=false"]
    printed = {}
    for name, seeds in dict(accelerators="seed=1,2", basic="seed=1").items():
        workers = ["hydra.launcher.workers=1"] * (name == "accelerators")
        arguments = [f"launcher={name}", *workers, f"hydra.sweep.dir={name}", "model=gctr", seeds]
        command = [sys.executable, "-m", "clickexp", "-m", *SMALL, *logger, *arguments]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        printed[name] = done.stdout
    return folder, printed


def result(folder, *path):
    return json.loads(folder.joinpath(*path, "result.json").read_text())


def test_the_launcher_does_not_change_results(sweeps):
    folder, _ = sweeps
    ours, hydras = (result(folder, name, "0") for name in ("accelerators", "basic"))
    assert ours["config_hash"] == hydras["config_hash"]
    for part in ("val", "test"):
        assert ours[part] == pytest.approx(hydras[part], rel=1e-5)


def test_the_best_validation_is_that_of_the_epochs(sweeps):
    folder, _ = sweeps
    epochs = map(json.loads, (folder / "accelerators/0/metrics.jsonl").read_text().splitlines())
    losses = [epoch["val/loss"] for epoch in epochs]
    assert result(folder, "accelerators", "0")["val"]["loss"] == min(losses)


def test_jobs_of_one_shape_compile_once(sweeps):
    """The second job, in its own process, loads what the first left in the cache."""
    folder, _ = sweeps
    programs = list((folder / "outputs/cache/xla").glob("*-cache"))
    began = (folder / "accelerators/1/config.yaml").stat().st_mtime
    assert len(programs) > 5 and not [
        file.name for file in programs if file.stat().st_mtime > began
    ]


def test_runs_of_a_sweep_share_a_group_and_carry_their_overrides(sweeps):
    folder, _ = sweeps
    received = [
        json.loads((folder / f"accelerators/{job}/spy.json").read_text()) for job in ("0", "1")
    ]
    assert [(t["group"], t["job_type"]) for t in received] == [("accelerators", "sweep")] * 2
    assert [t["overrides"]["seed"] for t in received] == [1, 2]
    assert (
        received[0]["overrides"]["model"] == "gctr"
        and "hydra.launcher.workers" not in received[0]["overrides"]
    )


def test_the_table_shows_mean_and_values_of_few_seeds(sweeps):
    folder, printed = sweeps
    losses = [result(folder, "accelerators", job)["val"]["loss"] for job in ("0", "1")]
    values = ", ".join(f"{loss:.4f}" for loss in sorted(losses))
    assert f"{np.mean(losses):.4f} ({values})" in printed["accelerators"]
    assert "2 finished" in printed["accelerators"] and "1 finished" in printed["basic"]


def test_a_job_knows_its_device_and_time(sweeps):
    folder, _ = sweeps
    for _, record in records(folder / "accelerators"):
        assert record.status == "finished" and record.device == "cpu:0" and record.seconds > 0


def test_jobs_that_fail_are_reported_the_others_go_on_and_only_they_run_again(tmp_path):
    place = ProcessPlace(tmp_path)
    sweep = [
        "launcher=accelerators",
        "hydra.launcher.workers=2",
        "seed=1,2,3,4,5,6",
        "hydra.sweep.dir=s",
    ]
    place.does({1: "raise", 2: "kill", 3: "memory", 4: "disk"})
    code, output = place.sweep(*sweep)
    assert code == 1 and place.ran() == [1, 2, 3, 4, 5, 6]
    rows = place.rows("s")
    assert statuses(rows) == ["failed"] * 4 + ["finished"] * 2
    reasons = (
        "ConfigError: wrong in this one",
        "killed by SIGKILL",
        "MemoryError",
        "No space left on device",
    )
    for number, reason in enumerate(reasons):
        assert reason in rows[number]["error"] and f"job {number} failed: " in output
        # an empty one, as the killed job has, tells nothing
        has_lines = (tmp_path / f"s/{number}/job.log").stat().st_size > 0
        assert (f"Its log: s/{number}/job.log" in output) == has_lines
        assert has_lines or number == 1
    assert "wrong in this one" in (place.folder / "s/0/job.log").read_text()
    assert [row["test/ll"] for row in rows] == ["", "", "", "", "-0.5", "-0.6"]
    assert (
        "4 failed, 2 finished" in output
        and "Traceback" not in output
        and "Error executing" not in output
    )

    place.does({2: "raise"})
    code, output = place.sweep(*sweep)
    assert code == 1 and place.ran() == [1, 2, 3, 4]
    assert statuses(place.rows("s")) == [
        "finished",
        "failed",
        "finished",
        "finished",
        "kept",
        "kept",
    ]


def test_a_device_that_dies_takes_no_more_jobs(tmp_path):
    """A stand-in of JAX knows two GPUs, of which one dies with its first job."""
    place = ProcessPlace(tmp_path)
    lines = [
        "import os",
        "from pathlib import Path",
        "dead = Path('dead').read_text() if Path('dead').exists() else 'none'",
        "if os.environ.get('CUDA_VISIBLE_DEVICES') == dead: raise RuntimeError('no device')",
        "default_backend = lambda: 'gpu'",
        "local_device_count = lambda: 2",
    ]
    (tmp_path / "jax.py").write_text("\n".join(lines))
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"):
        place.env.pop(name, None)
    place.does({seed: {"dies": "1"} for seed in range(1, 9)})
    sweep = ["launcher=accelerators", "seed=1,2,3,4,5,6,7,8", "hydra.sweep.dir=s"]
    code, output = place.sweep(*sweep)
    rows = place.rows("s")
    failed = [row for row in rows if row["status"] == "failed"]
    assert code == 1 and len(failed) == 1 and failed[0]["slot"] == "gpu:1", output
    assert {row["slot"] for row in rows if row["status"] == "finished"} == {"gpu:0"}
    assert "gpu:1 is left out" in output
