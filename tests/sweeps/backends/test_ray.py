"""launcher=ray on a Ray of this machine, whose two GPUs are pretended."""

import contextlib
import json
import signal

import psutil
import pytest
from prepared import check_preparing
from processes import gone, wait_until
from stand_in import ProcessPlace, statuses
from test_accelerators import SMALL

pytestmark = pytest.mark.nightly
MODELS = ["gctr", "rctr", "dctr", "pbm"]
RAY = [
    "launcher=ray",
    "hydra.launcher.address=local",
    "+hydra.launcher.init.num_gpus=2",
    "+hydra.launcher.init.num_cpus=2",
]


@pytest.fixture
def place(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'clickexp[ray]'")
    place = ProcessPlace(tmp_path)
    place.env["RAY_worker_niceness"] = "0"  # or workers wait for the other tests of this machine
    return place


def test_each_job_has_a_device_of_its_own_and_is_not_run_again(place):
    (place.folder / "sitecustomize.py").unlink()
    place.words = lambda *arguments: arguments  # of the real configuration
    models = [f"model={','.join(MODELS)}", "logger=jsonl", *SMALL, "hydra.sweep.dir=s"]
    code, output = place.sweep(*RAY, *models)
    assert code == 0, output
    rows = place.rows("s")
    assert [(row["model"], row["status"]) for row in rows] == [
        (model, "finished") for model in MODELS
    ]
    used = {}
    for row in rows:
        folder = place.folder / "s" / row["job"]
        times = [(folder / file).stat().st_mtime for file in ("config.yaml", "result.json")]
        used.setdefault(row["slot"].split()[-1], []).append(times)
        assert json.loads((folder / "result.json").read_text())["config_hash"] == row["config_hash"]
    assert sorted(used) == ["gpu:0", "gpu:1"]
    assert not [
        None
        for times in used.values()
        for a in times
        for b in times
        if a is not b and a[0] <= b[0] <= a[1]
    ]
    code, _ = place.sweep("launcher=basic", *models)
    assert code == 0 and statuses(place.rows("s")) == ["kept"] * 4


def test_jobs_that_fail_are_reported_and_the_others_go_on(place):
    place.does({1: "raise", 2: "kill"})
    code, output = place.sweep(*RAY, "seed=1,2,3", "hydra.sweep.dir=s")
    assert code == 1 and place.ran() == [1, 2, 3] and "Traceback" not in output
    rows = place.rows("s")
    assert statuses(rows) == ["failed", "failed", "finished"]
    assert (
        "ConfigError: wrong in this one" in rows[0]["error"]
        and "killed by SIGKILL" in rows[1]["error"]
    )


def test_a_sweep_that_is_stopped_leaves_no_job_behind(place):
    place.does({1: "hang"})
    with place.start("-m", *RAY, "seed=1,2", "hydra.sweep.dir=s") as process:
        pid = place.wait_for("s/0/job.log", 60)
        process.terminate()
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 143 and gone(pid) and "Traceback" not in output
    assert json.loads((place.folder / "s/0/job.json").read_text())["status"] == "interrupted"


def test_a_job_that_takes_too_long_is_ended(place):
    place.does({1: "hang"})
    code, output = place.sweep(
        *RAY, "hydra.launcher.job_minutes=0.1", "seed=1,2", "hydra.sweep.dir=s"
    )
    assert (
        code == 1 and place.ran() == [1, 2] and statuses(place.rows("s")) == ["failed", "finished"]
    )
    assert (
        "job 0 failed: longer than hydra.launcher.job_minutes" in output
        and "Traceback" not in output
    )


def processes_of(sweep, name):
    """The processes below a sweep whose command or title has a name."""
    named = []
    for process in psutil.Process(sweep.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended by now
            named += [process] if name in " ".join(process.cmdline()) else []
    return named


def test_a_job_whose_worker_hangs_is_ended(place):
    """The worker that would end it has been stopped, so that the sweep must."""
    place.does({1: "hang"})
    options = [*RAY, "hydra.launcher.job_minutes=0.2", "seed=1,2", "hydra.sweep.dir=s"]
    with place.start("-m", *options) as sweep:
        place.wait_for("s/0/job.log", 60)
        wait_until(lambda: (place.folder / "s/1/result.json").exists(), 60)
        for worker in wait_until(lambda: processes_of(sweep, "ray::_call")):
            worker.send_signal(signal.SIGSTOP)
        output, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 1 and "Traceback" not in output
    assert "job 0 failed: longer than hydra.launcher.job_minutes" in output
    assert statuses(place.rows("s")) == ["failed", "finished"]


def test_a_sweep_ends_with_its_table_where_the_head_of_the_cluster_dies(place):
    place.does({1: "hang"})
    with place.start("-m", *RAY, "seed=1,2", "hydra.sweep.dir=s") as sweep:
        place.wait_for("s/0/job.log", 60)
        wait_until(lambda: (place.folder / "s/1/result.json").exists(), 60)
        (head,) = processes_of(sweep, "gcs_server")
        head.kill()
        output, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 1
    assert "job 0 failed: the head of the Ray cluster" in output
    assert statuses(place.rows("s")) == ["failed", "finished"]
    place.does({})
    code, _ = place.sweep(*RAY, "seed=1,2", "hydra.sweep.dir=s")
    assert code == 0 and place.ran() == [1, 1, 2]


def test_a_cluster_without_room_for_a_job_is_reported_in_one_line(place):
    code, output = place.sweep(*RAY, "hydra.launcher.num_gpus=3", "seed=1")
    assert (
        code == 1 and "clickexp: launcher=ray: a job needs" in output and "Traceback" not in output
    )


def test_a_cluster_that_does_not_run_is_reported_with_the_remedy(place):
    code, output = place.sweep("launcher=ray", "hydra.launcher.address=auto", "seed=1")
    assert code == 1 and "Traceback" not in output
    assert (
        "clickexp: launcher=ray: no cluster answers at hydra.launcher.address=auto: start one by"
        in output
    )


def test_a_log_is_prepared_by_tasks(place):
    check_preparing(place.folder, place.env, "launcher=ray", *RAY[1:])


def test_two_hosts_train_a_run_together(place):
    (place.folder / "sitecustomize.py").unlink()
    place.words = lambda *arguments: arguments  # of the real configuration
    run = ["trainer.devices=all", "model=pbm", "logger=jsonl", *SMALL, "hydra.sweep.dir=s"]
    code, output = place.sweep(*RAY, "hydra.launcher.hosts=2", *run)
    assert code == 0, output
    (row,) = place.rows("s")
    assert row["status"] == "finished"
    code, output = place.sweep(*RAY, "hydra.launcher.hosts=3", *run, "resume=false")
    assert code == 1 and "on each of 3 hosts" in output
