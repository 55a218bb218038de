"""launcher=slurm on a cluster of this machine alone, whose two GPUs are pretended."""

import contextlib
import csv
import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest
from places import ROOT
from prepared import check_preparing
from processes import gone, wait_until
from stand_in import ProcessPlace, statuses
from test_accelerators import SMALL, SPY

from clickexp.runs.store import records

pytestmark = pytest.mark.nightly
SCRIPT = ROOT / "scripts/slurm.sh"
SLURM = [
    "launcher=slurm",
    *(f"hydra.launcher.{key}" for key in ("cpus_per_task=1", "mem_gb=1", "timeout_min=10")),
]
MODELS = ["gctr", "rctr", "dctr", "drctr", "cm", "pbm"]


@contextlib.contextmanager
def cluster_in(folder, nodes):
    """Variables with which commands find a cluster whose nodes are all this machine."""
    pytest.importorskip(
        "submitit", reason="submitit is not installed: pip install 'clickexp[slurm]'"
    )
    if not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))):
        pytest.skip("SLURM is not installed: bash scripts/slurm.sh install")
    if os.geteuid() != 0:
        pytest.skip("a cluster of this machine alone takes root")
    subprocess.run(["bash", SCRIPT, "start", folder, "2", str(nodes)], check=True)
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    try:
        yield {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
    finally:
        subprocess.run(["bash", SCRIPT, "stop", folder], check=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with cluster_in(tmp_path_factory.mktemp("slurm"), nodes=1) as variables:
        yield variables


def submitted(cluster):
    """Numbers of SLURM's jobs so far."""
    done = subprocess.run(
        ["scontrol", "show", "job", "-o"], env=cluster, capture_output=True, text=True
    )
    return {line.split()[0] for line in done.stdout.splitlines() if line.startswith("JobId=")}


def test_six_models_each_have_a_device_of_their_own_and_are_not_run_again(cluster, tmp_path):
    (tmp_path / "spy.py").write_text(SPY)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    env = {**cluster, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, "COLUMNS": "120"}
    logger = ["logger=jsonl", "+logger.spy._target_=spy.Spy"]
    models = f"model={','.join(MODELS)}"

    def sweep(*launcher):
        command = [sys.executable, "-m", "clickexp", "-m", *launcher, *SMALL, *logger, models]
        done = subprocess.run(
            [*command, "hydra.sweep.dir=s"], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        with (tmp_path / "s/sweep.csv").open() as file:
            return done.stdout, list(csv.DictReader(file))

    _, rows = sweep(*SLURM, "hydra.launcher.modules=[cuda]")
    assert [(row["model"], row["status"]) for row in rows] == [
        (model, "finished") for model in MODELS
    ]
    used = {}
    for folder, record in records(tmp_path / "s"):
        result = json.loads((folder / "result.json").read_text())
        received = json.loads((folder / "spy.json").read_text())
        assert result["config_hash"] == record.config_hash and result["test"]["ll"] < 0
        assert (received["group"], received["job_type"]) == ("s", "sweep")
        assert received["overrides"]["model"] == MODELS[record.number]
        times = [(folder / file).stat().st_mtime for file in ("config.yaml", "result.json")]
        used.setdefault(record.device.split()[-1], []).append(times)
    assert sorted(used) == ["gpu:0", "gpu:1"]
    for times in used.values():
        assert all(end < begin for (_, end), (begin, _) in pairwise(sorted(times)))

    (script,) = (tmp_path / "s/.submitit").rglob("*_submission.sh")
    asked = {"array=0-5%6", "gpus-per-node=1", "cpus-per-task=1", "mem=1GB", "time=10", "requeue"}
    assert asked <= {line.removeprefix("#SBATCH --") for line in script.read_text().splitlines()}
    assert "\nmodule load cuda\n" in script.read_text()

    before = submitted(cluster)
    for launcher in (SLURM, ["launcher=basic"]):  # to all launchers it is the same configuration
        assert statuses(sweep(*launcher)[1]) == ["kept"] * len(MODELS)
    assert submitted(cluster) == before


@pytest.fixture
def place(cluster, tmp_path):
    place = ProcessPlace(tmp_path)
    place.env |= {name: cluster[name] for name in ("SLURM_CONF", "PATH")}
    place.slurm = lambda *command: subprocess.run(
        command, env=place.env, capture_output=True, text=True
    )
    return place


def hanging(place, number):
    """SLURM's name of a job, once it runs and has a checkpoint."""
    wait_until((place.folder / f"s/{number}/checkpoint.npz").exists)
    (folder,) = (place.folder / "s/.submitit").glob(f"*_{number}")
    return folder.name


def test_jobs_that_slurm_stops_go_on_and_those_that_die_are_reported(place):
    """One raises, one is killed; one is preempted, one requeued, and one cancelled, each while it runs."""
    place.does({2: "raise", 3: "kill", 4: "hang", 5: "hang", 6: "hang"})
    with place.start("-m", *SLURM, "seed=1,2,3,4,5,6", "hydra.sweep.dir=s") as process:
        preempted = hanging(place, 3)
        place.does({3: "kill", 5: "hang", 6: "hang"})
        # once the job has requeued itself, scancel would go on trying for a minute; sending takes seconds on busy cores
        place.slurm("timeout", "30", "scancel", "--signal=USR2", f"{preempted}.0")
        requeued = hanging(place, 4)
        place.does({3: "kill", 6: "hang"})
        place.slurm("scontrol", "requeue", requeued)
        cancelled = hanging(place, 5)
        place.slurm("scancel", cancelled)
        output, _ = process.communicate(timeout=90)
    assert process.returncode == 1 and place.ran() == [1, 2, 3, 4, 4, 5, 5, 6]
    rows = place.rows("s")
    assert statuses(rows) == ["finished", "failed", "failed", "finished", "finished", "interrupted"]
    reasons = [
        "ConfigError: wrong in this one",
        "killed by SIGKILL",
        f"SLURM job {cancelled} ended as CANCELLED",
    ]
    for row, reason in zip((rows[1], rows[2], rows[5]), reasons, strict=True):
        assert (
            reason in row["error"] and f"job {row['job']} {row['status']}: {row['error']}" in output
        )
    assert (place.folder / "continued").read_text() in (
        f"{place.folder}/s/{number}" for number in (3, 4)
    )
    assert "Traceback" not in output


def test_a_sweep_that_is_stopped_leaves_no_job_behind(place):
    place.does({1: "hang", 2: "hang"})
    with place.start("-m", *SLURM, "seed=1,2,3", "hydra.sweep.dir=s") as process:
        pid = place.wait_for("s/0/job.log")
        process.terminate()
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 143 and "Traceback" not in output
    assert gone(pid) and 3 not in place.ran()
    wait_until(lambda: not place.slurm("squeue", "--noheader").stdout)


def test_a_job_that_takes_too_long_is_ended_and_not_requeued(place):
    place.does({1: "hang"})
    code, output = place.sweep(
        *SLURM, "hydra.launcher.job_minutes=0.1", "seed=1,2", "hydra.sweep.dir=s"
    )
    assert (
        code == 1 and place.ran() == [1, 2] and statuses(place.rows("s")) == ["failed", "finished"]
    )
    assert (
        "job 0 failed: longer than hydra.launcher.job_minutes" in output
        and "Traceback" not in output
    )


def test_a_log_is_prepared_by_jobs(cluster, tmp_path):
    keys = ("cpus_per_task=1", "mem_gb=1", "timeout_min=10")
    check_preparing(tmp_path, cluster, "launcher=slurm", *(f"hydra.launcher.{key}" for key in keys))


def test_two_nodes_train_a_run_together(tmp_path, tmp_path_factory):
    """The job is requeued while it trains, and continues on both."""
    words = [*SLURM, "hydra.launcher.nodes=2", "trainer.devices=all", "hydra.sweep.dir=s"]
    words += ["trainer.early_stopping=null", "trainer.checkpoint_minutes=0", "trainer.epochs=20"]
    command = [sys.executable, "-m", "clickexp", "-m", *words, *SMALL, "model=pbm", "logger=jsonl"]
    folder = tmp_path_factory.mktemp("slurm")  # short: SLURM's sockets lie in it
    with cluster_in(folder, nodes=2) as cluster:
        env = {**cluster, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE) as process:
            try:
                wait_until((tmp_path / "s/0/checkpoint.npz").exists, 120)
                (call,) = (tmp_path / "s/.submitit").glob("*/*_submitted.pkl")
                subprocess.run(["scontrol", "requeue", call.parent.name], env=cluster, check=True)
                output, _ = process.communicate(timeout=240)
            finally:
                process.kill()
        jobs = subprocess.run(["scontrol", "show", "job"], env=env, capture_output=True, text=True)
    assert process.returncode == 0, output
    assert "Restarts=1" in jobs.stdout and "NumNodes=2" in jobs.stdout
    assert json.loads((tmp_path / "s/0/result.json").read_text())["train"]["epochs"] == 20


@pytest.mark.parametrize("read", range(1, 6))
def test_a_daemon_that_ends_while_the_cluster_stops_is_no_error(read, tmp_path):
    """It removes the file with its number, here when that has been read so many times."""
    (tmp_path / "bin").mkdir()
    lines = [
        f'{shutil.which("cat")} "$1" || exit 1',
        f"echo >>{tmp_path}/reads",
        f'if [ "$(wc -l <{tmp_path}/reads)" = {read} ]; then rm "$1"; fi',
    ]
    for name, text in {"cat": lines, "sleep": []}.items():
        (tmp_path / "bin" / name).write_text("\n".join(["#!/bin/sh", *text]))
        (tmp_path / "bin" / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as daemon:
        (tmp_path / "slurmctld.pid").write_text(f"{daemon.pid}")
        command = ["bash", SCRIPT, "stop", tmp_path]
        done = subprocess.run(command, env={**os.environ, "PATH": path}, check=False)
        daemon.kill()
    assert done.returncode == 0 and not (tmp_path / "slurmctld.pid").exists()


def test_what_slurm_refuses_is_reported_in_one_line(place):
    code, output = place.sweep(*SLURM, "hydra.launcher.partition=none", "seed=1")
    assert code == 1 and "Traceback" not in output
    assert (
        "clickexp: launcher=slurm: error: Batch job submission failed: Invalid partition name"
        in output
    )


def test_without_a_cluster_the_cause_and_the_remedy_are_reported(tmp_path):
    """What SLURM's own commands say where no cluster answers."""
    pytest.importorskip(
        "submitit", reason="submitit is not installed: pip install 'clickexp[slurm]'"
    )
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text(
            "#!/bin/sh\necho 'sbatch: error: lookup\nsbatch: fatal: no source' >&2\nexit 1\n"
        )
        (tmp_path / name).chmod(0o755)
    place = ProcessPlace(tmp_path)
    place.env["PATH"] = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    code, output = place.sweep(*SLURM, "seed=1")
    remedy = "Start the sweep where sbatch reaches a cluster"
    assert code == 1 and f"\nclickexp: launcher=slurm: fatal: no source. {remedy}" in output
    assert not (tmp_path / "outputs/sweeps").exists()
