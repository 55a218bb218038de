"""Sweeps and runs whose processes are stopped, killed, or work at the same time; their jobs are stand-ins."""

import csv
import json
import os
import signal
import subprocess
import sys

import optuna
import pytest
import yaml
from processes import gone, read, wait_until
from stand_in import BASIC, ProcessPlace, statuses

pytestmark = pytest.mark.nightly
OURS = ["launcher=accelerators", "hydra.launcher.workers=2"]


@pytest.fixture
def place(tmp_path):
    return ProcessPlace(tmp_path)


SWEEPER = """
from hydra.plugins.sweeper import Sweeper

class Two(Sweeper):
    def setup(self, *, hydra_context, task_function, config):
        from hydra.core.plugins import Plugins

        given = dict(hydra_context=hydra_context, task_function=task_function, config=config)
        self.launcher = Plugins.instance().instantiate_launcher(**given)

    def sweep(self, arguments):
        self.launcher.launch([[*arguments, f"seed={seed}"] for seed in ("2", "1.5")], 0)
"""


def test_the_jobs_of_any_sweeper_are_checked(place):
    plugin, option = (
        place.folder / "hydra_plugins/two.py",
        place.folder / "conf/hydra/sweeper/two.yaml",
    )
    for file, text in ((plugin, SWEEPER), (option, "_target_: hydra_plugins.two.Two\n")):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    code, output = place.sweep(*OURS, "hydra/sweeper=two", "hydra.sweep.dir=s")
    assert (
        code == 1 and output.startswith("clickexp: seed=1.5: give an integer") and place.ran() == []
    )


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_sweep_before_its_job_ends_and_it_goes_on_later(number, code, place):
    place.does({2: "hang"})
    sweep = ["-m", *OURS, "hydra.launcher.workers=1", "seed=1,2,3", "hydra.sweep.dir=s"]
    with place.start(*sweep) as process:
        pid = place.wait_for("s/1/job.log")
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)  # less than the job takes
    assert process.returncode == code and gone(pid)
    assert statuses(place.rows("s")) == ["finished", "interrupted"]
    assert "1 finished, 1 interrupted" in output and "Traceback" not in output
    assert place.ran() == [1, 2]
    place.does({})
    assert place.sweep(*OURS, "seed=1,2,3", "hydra.sweep.dir=s")[0] == 0 and place.ran() == [2, 3]


def test_jobs_that_take_too_long_are_ended_and_the_others_go_on(place):
    """One has a checkpoint, from which the same command continues it without a limit."""
    place.does({1: "hang", 2: "wait"})
    sweep = ["seed=1,2,3", "hydra.sweep.dir=s"]
    code, output = place.sweep(*OURS, "hydra.launcher.job_minutes=0.1", *sweep)
    rows = place.rows("s")
    assert (
        code == 1 and statuses(rows) == ["failed", "failed", "finished"] and "1 finished" in output
    )
    assert all(
        "longer than hydra.launcher.job_minutes: ended after epoch 3" in row["error"]
        for row in rows[:2]
    )
    assert (
        "continues from its checkpoint" in rows[0]["error"]
        and "all of it is lost" in rows[1]["error"]
    )
    assert (
        all(f"job {row['job']} failed: {row['error']}" in output for row in rows[:2])
        and "Traceback" not in output
    )
    place.does({})
    place.ran()
    assert place.sweep(*OURS, *sweep)[0] == 0 and place.ran() == [1, 2]
    assert (place.folder / "continued").read_text() == f"{place.folder}/s/0"


def test_hydras_own_launcher_is_stopped_by_signals_too(place):
    place.does({2: "hang"})
    with place.start("-m", *BASIC, "seed=1,2,3", "hydra.sweep.dir=s") as process:
        wait_until((place.folder / "s/1/job.json").exists)
        process.terminate()
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 143 and "1 finished, 1 interrupted" in output
    place.ran()
    place.does({})
    assert place.sweep(*BASIC, "seed=1,2,3", "hydra.sweep.dir=s")[0] == 0 and place.ran() == [2, 3]


def test_a_launcher_that_is_killed_leaves_no_process_and_loses_no_result(place):
    place.does({3: "hang"})
    arguments = [*OURS, "seed=1,2,3,4", "hydra.sweep.dir=s", "hydra.launcher.workers=1"]
    with place.start("-m", *arguments) as process:
        pid = place.wait_for("s/2/job.log")
        process.kill()
    assert gone(pid) and place.ran() == [1, 2, 3]
    place.does({})
    assert place.sweep(*arguments)[0] == 0 and place.ran() == [3, 4]
    assert statuses(place.rows("s")) == ["kept", "kept", "finished", "finished"]
    assert (place.folder / "continued").read_text() == f"{place.folder}/s/2"


def test_two_sweeps_at_once_in_one_folder_stay_apart(place):
    """The later one takes the next folder; the lock of a sweep that has ended is free again."""
    place.does({1: "hang"})
    with place.start("-m", *OURS, "seed=1,2", "hydra.sweep.dir=s") as first:
        place.wait_for("s/0/job.log")
        place.does({})
        assert place.sweep(*OURS, "seed=1,2", "trainer.epochs=7", "hydra.sweep.dir=s")[0] == 0
        first.terminate()
        first.communicate(timeout=120)
    assert [row["val/loss"] for row in place.rows("s-2")] == ["1.1", "1.2"]
    assert statuses(place.rows("s")) == ["interrupted", "finished"]
    assert place.rows("s")[1]["val/loss"] == "0.2"


def test_what_another_sweep_finishes_meanwhile_is_not_run_again(place):
    place.does({1: "wait"})
    with place.start("-m", *OURS, "seed=1,2,3", "hydra.launcher.workers=1") as first:
        wait_until(lambda: read(place.folder / "ran") == "1\n")
        assert place.ran() == [1]
        assert place.sweep(*BASIC, "seed=3,2")[0] == 0 and place.ran() == [2, 3]
        (place.folder / "go").touch()
        output, _ = first.communicate(timeout=120)
    assert first.returncode == 0 and place.ran() == [] and "1 finished, 2 kept" in output


def test_runs_of_one_second_have_folders_of_their_own(place):
    """The folder that is not named on the command line is new, while the first still runs."""
    place.configure(run={"dir": "new/now"})
    place.does({1: "wait"})
    with place.start("seed=1") as first:
        wait_until(lambda: read(place.folder / "ran") == "1\n")
        assert place.ended("seed=2")[0] == 0
        (place.folder / "go").touch()
        assert first.wait(120) == 0
    results = [place.folder / f"new/now{end}/result.json" for end in ("", "-2")]
    assert [json.loads(file.read_text())["val"]["loss"] for file in results] == [0.1, 0.2]


def test_a_named_folder_has_one_run_at_a_time(place):
    """That of a run that was killed goes on there; nothing of another is touched."""
    place.does({1: "hang"})
    with place.start("seed=1", "hydra.run.dir=out") as first:
        wait_until((place.folder / "out/checkpoint.npz").exists)
        files = {
            file: file.read_bytes() for file in (place.folder / "out").rglob("*") if file.is_file()
        }
        code, output = place.ended("seed=2", "hydra.run.dir=out")
        assert code == 1 and output.startswith(
            "clickexp: hydra.run.dir=out: another run is writing there"
        )
        assert output.count("\n") == 1 and {file: file.read_bytes() for file in files} == files
        first.kill()
    place.does({})
    assert place.ended("seed=1", "hydra.run.dir=out")[0] == 0
    assert (place.folder / "continued").read_text() == f"{place.folder}/out"


def test_a_killed_search_goes_on_and_prunes_what_falls_behind(place):
    """Seeds 3 and 4 hang after three epochs. The first command is killed amid both."""
    place.does({3: "hang", 4: "hang"})
    given = [
        "-m",
        "search=grid",
        "search.study=s",
        "search.pruner.n_startup_trials=1",
        "seed=3,4,1,2",
    ]
    given.append("hydra.launcher.workers=2")
    folder = place.folder / "outputs/sweeps/s"
    with place.start(*given) as first:
        wait_until(lambda: all((folder / number / "checkpoint.npz").exists() for number in "01"))
        assert first.poll() is None
        first.kill()
    code, output = place.ended(*given)
    assert code == 0, output
    assert [(row["seed"], row["status"]) for row in place.rows("outputs/sweeps/s")] == [
        *(("3", "interrupted"), ("4", "interrupted")),
        *(("1", "finished"), ("2", "finished")),
        *(("3", "pruned"), ("4", "pruned")),
    ]
    assert "job 4 (seed=3) pruned after epoch 3 (" in output
    assert "val/loss 0.1 in trial 2: seed=1" in output and "again" not in output
    code, output = place.ended(*given)
    assert (
        code == 0
        and "nothing is left to run in study s\n" in output
        and "best of 4 trials" in output
    )


def test_a_search_trains(tmp_path):
    """Of the real configuration."""
    rate = "optimizer.learning_rate=tag(log,interval(0.1,1))"
    given = [
        "dataset.sessions=2000",
        "dataset.queries=50",
        "trainer.epochs=2",
        "metric=click",
        "logger=jsonl",
    ]
    given += ["search=tpe", "search.study=s", "search.trials=3", "hydra.launcher.workers=2", rate]
    command = [sys.executable, "-m", "clickexp", "-m", *given]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "outputs/sweeps/s"
    with (folder / "sweep.csv").open() as file:
        losses = {int(row["job"]): float(row["val/loss"]) for row in csv.DictReader(file)}
    best = yaml.safe_load((folder / "best.yaml").read_text())
    assert (
        sorted(losses) == [0, 1, 2]
        and best["value"] == min(losses.values()) == losses[best["trial"]]
    )
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/search.db")
    trials = optuna.load_study(study_name="s", storage=storage).trials
    storage.engine.dispose()
    assert [len(trial.intermediate_values) for trial in trials] == [2] * 3
