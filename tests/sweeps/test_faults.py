"""Sweeps whose jobs fail in every way: nothing finished is lost or run again. Jobs are stand-ins of milliseconds."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf
from processes import Process, gone, read, wait_until

from clickexp.sweeps.job import run_job

STAND_IN = """
import dataclasses, json, os, resource, sys, time, types, zipfile
from pathlib import Path

def run_experiment(cfg, folder, sweep=None, overrides=()):
    from omegaconf import OmegaConf
    from clickexp.errors import ConfigError
    from clickexp.runs.hashing import config_hash
    from clickexp.runs.store import CHECKPOINT, MODEL, RESULT, write_json

    with open("ran", "a") as file:
        file.write(f"{cfg.seed}\\n")
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        Path("continued").write_text(checkpoint.read_text())
    does = json.loads(Path("does").read_text()).get(str(cfg.seed))
    if does == "raise":
        raise ConfigError("wrong in this one")
    if does == "kill":
        os.kill(os.getpid(), 9)
    if does == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        bytearray(1 << 31)
    if does == "device":
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 80 bytes.")
    if does == "disk":
        sync = os.fsync

        def full(descriptor):
            os.fsync = sync
            raise OSError(28, "No space left on device")

        os.fsync = full
    while does == "wait" and not Path("go").exists():
        time.sleep(0.02)
    if does == "hang":
        checkpoint.write_text(str(folder))
        print(f"hanging {os.getpid()}.", flush=True)
        time.sleep(60)
    config = OmegaConf.to_container(cfg, resolve=True)
    loss = cfg.seed / 10 + (cfg.trainer.epochs == 7)
    parts = {"val": {"loss": loss, cfg.optimized_metric.removeprefix("val/"): loss}, "test": {"ll": -loss}}
    result = {**parts, "environment": {"device": "stand-in"}, "config_hash": config_hash(config)}
    with zipfile.ZipFile(folder / MODEL, "w") as model:
        model.writestr("table.npy", bytes(1000))
    write_json(result, folder / RESULT)
    return result

MODULES = "clickexp.loggers.wandb", "wandb", "wandb.sdk", "wandb.sdk.launch"
for name in ("clickexp.experiment.run", "clickexp.experiment.resolve", *MODULES):
    sys.modules[name] = types.ModuleType(name)
sys.modules["clickexp.experiment.run"].run_experiment = run_experiment
sys.modules["clickexp.experiment.resolve"].resolve = lambda *_: None
sys.modules["clickexp.experiment.resolve"].Settings = dataclasses.make_dataclass("Settings", [("seed", int)])
"""
OURS = ["launcher=accelerators", "hydra.launcher.workers=2"]
BASIC = ["launcher=basic"]


class Place:
    """A folder to sweep in, where the stand-in is imported by every process."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "sitecustomize.py").write_text(STAND_IN)
        self.env = {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu", "COLUMNS": "120"}
        self.does()

    def does(self, **seeds):
        """What runs of these seeds do. Those that start meanwhile see all of it or nothing."""
        (self.folder / "does.new").write_text(json.dumps({name[1:]: what for name, what in seeds.items()}))
        (self.folder / "does.new").replace(self.folder / "does")

    def start(self, *arguments):
        command = [sys.executable, "-m", "clickexp", "-m", *arguments]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        return Process(command, cwd=self.folder, env=self.env, **pipes)

    def run(self, *arguments):
        """A single run, or rather its process."""
        command = [sys.executable, "-m", "clickexp", *arguments, f"hydra.searchpath=[file://{self.folder}]"]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        return Process(command, cwd=self.folder, env=self.env, **pipes)

    def ended(self, *arguments):
        """Exit code and output of a single run."""
        process = self.run(*arguments)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def sweep(self, *arguments):
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def ran(self):
        """The seeds that ran since this was asked for the last time; none may be about to."""
        file = self.folder / "ran"
        seeds = sorted(map(int, read(file).split()))
        file.unlink(missing_ok=True)
        return seeds

    def rows(self, sweep):
        """sweep.csv, which sweep.parquet must agree with."""
        folder = self.folder / sweep
        with (folder / "sweep.csv").open() as file:
            rows = list(csv.DictReader(file))
        table = pl.read_parquet(folder / "sweep.parquet")
        assert [str(number) for number in table["job"]] == [row["job"] for row in rows]
        assert table["status"].to_list() == [row["status"] for row in rows]
        return rows

    def wait_for(self, file, seconds=30):
        """The process of the job that hangs, by its log."""
        found = wait_until(lambda: re.search(r"hanging (\d+)\.", read(self.folder / file)), seconds)
        return int(found[1])


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def statuses(rows):
    return [row["status"] for row in rows]


def test_jobs_that_fail_are_reported_the_others_go_on_and_only_they_run_again(place):
    place.does(_1="raise", _2="kill", _3="memory", _4="disk")
    code, output = place.sweep(*OURS, "seed=1,2,3,4,5,6", "hydra.sweep.dir=s")
    assert code == 1 and place.ran() == [1, 2, 3, 4, 5, 6]
    rows = place.rows("s")
    assert statuses(rows) == ["failed"] * 4 + ["finished"] * 2
    reasons = [
        "ConfigError: wrong in this one",
        "killed by SIGKILL",
        "MemoryError",
        "No space left on device",
    ]
    for number, reason in enumerate(reasons):
        assert reason in rows[number]["error"] and f"job {number} failed: " in output
        assert f"Its log: s/{number}/job.log" in output
    assert "wrong in this one" in (place.folder / "s/0/job.log").read_text()
    assert [row["test/ll"] for row in rows] == ["", "", "", "", "-0.5", "-0.6"]
    assert "4 failed, 2 finished" in output and "Traceback" not in output and "Error executing" not in output

    place.does(_2="raise")
    code, output = place.sweep(*OURS, "seed=1,2,3,4,5,6", "hydra.sweep.dir=s")
    assert code == 1 and place.ran() == [1, 2, 3, 4]
    assert statuses(place.rows("s")) == ["finished", "failed", "finished", "finished", "kept", "kept"]


def test_a_job_whose_folder_cannot_be_made_fails_alone(place):
    (place.folder / "s").mkdir()
    (place.folder / "s/0").write_text("in the way")
    code, output = place.sweep(*OURS, "seed=1,2", "hydra.sweep.dir=s")
    assert code == 1 and place.ran() == [2] and "job 0 failed: FileExistsError" in output
    assert statuses(place.rows("s")) == ["finished"]


def test_hydras_own_launcher_resumes_and_collects_too(place):
    place.does(_2="raise")
    code, output = place.sweep(*BASIC, "seed=1,2,3", "hydra.sweep.dir=s")
    assert code == 1 and place.ran() == [1, 2, 3] and "wrong in this one" in output
    rows = place.rows("s")
    assert statuses(rows) == ["finished", "failed", "finished"]
    assert [row["val/loss"] for row in rows] == ["0.1", "", "0.3"]
    place.does()
    code, _ = place.sweep(*BASIC, "seed=1,2,3", "hydra.sweep.dir=s")
    assert code == 0 and place.ran() == [2]
    rows = place.rows("s")
    assert statuses(rows) == ["kept", "finished", "kept"]
    assert [row["val/loss"] for row in rows] == ["0.1", "0.2", "0.3"]
    assert rows[0]["folder"] == f"{place.folder}/s/0"


@pytest.mark.parametrize("launcher", [BASIC, OURS], ids=["basic", "accelerators"])
def test_a_configuration_runs_once_however_it_is_written(launcher, place):
    """Without resuming, too: within one sweep. Where results are reported to makes no other configuration."""
    once = ["seed=1,1,2", "trainer.epochs=3,3", "resume=false"]
    assert place.sweep(*launcher, *once)[0] == 0 and place.ran() == [1, 2]
    assert place.sweep(*launcher, *once, "seed=2")[0] == 0 and place.ran() == [2]
    overrides = ["logger=console", "notes=x", "progress=off", "cache_dir=elsewhere"]
    assert place.sweep(*launcher, "seed=2", "trainer.epochs=3,4", *overrides)[0] == 0 and place.ran() == [2]


@pytest.mark.parametrize("launcher", [BASIC, OURS], ids=["basic", "accelerators"])
def test_a_sweep_without_any_data_is_refused_before_it_starts(launcher, place):
    """Not if some jobs have theirs, or all have their results."""
    place.env["HOME"] = str(place.folder)
    sweep = [*launcher, "dataset=parquet", "dataset.path='~/a',b", "seed=1", "hydra.sweep.dir=new/s"]
    code, output = place.sweep(*sweep)
    assert code == 1 and re.fullmatch(r"clickexp: b: no such file or folder\. .*\n", output)
    assert place.ran() == [] and not (place.folder / "new").exists()
    (place.folder / "a").touch()
    assert place.sweep(*sweep)[0] == 0 and place.ran() == [1, 1]
    (place.folder / "a").unlink()
    assert place.sweep(*sweep)[0] == 0 and place.ran() == []


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
    plugin, option = place.folder / "hydra_plugins/two.py", place.folder / "hydra/sweeper/two.yaml"
    for file, text in ((plugin, SWEEPER), (option, "_target_: hydra_plugins.two.Two\n")):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    there = f"hydra.searchpath=[file://{place.folder}]"
    code, output = place.sweep(*OURS, there, "hydra/sweeper=two", "hydra.sweep.dir=s")
    assert code == 1 and output.startswith("clickexp: seed=1.5: give an integer") and place.ran() == []


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_sweep_within_seconds_and_it_goes_on_later(number, code, place):
    place.does(_2="hang")
    with place.start(*OURS, "hydra.launcher.workers=1", "seed=1,2,3", "hydra.sweep.dir=s") as process:
        pid = place.wait_for("s/1/job.log")
        sent = time.monotonic()
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
    assert time.monotonic() - sent < 10 and process.returncode == code and gone(pid)
    assert statuses(place.rows("s")) == ["finished", "interrupted"]
    assert "1 finished, 1 interrupted" in output and "Traceback" not in output
    assert place.ran() == [1, 2]
    place.does()
    assert place.sweep(*OURS, "seed=1,2,3", "hydra.sweep.dir=s")[0] == 0 and place.ran() == [2, 3]


def test_hydras_own_launcher_is_stopped_by_signals_too(place):
    place.does(_2="hang")
    with place.start(*BASIC, "seed=1,2,3", "hydra.sweep.dir=s") as process:
        wait_until((place.folder / "s/1/job.json").exists)
        process.terminate()
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 143 and "1 finished, 1 interrupted" in output
    place.ran(), place.does()
    assert place.sweep(*BASIC, "seed=1,2,3", "hydra.sweep.dir=s")[0] == 0 and place.ran() == [2, 3]


def test_a_launcher_that_is_killed_leaves_no_process_and_loses_no_result(place):
    place.does(_3="hang")
    arguments = [*OURS, "seed=1,2,3,4", "hydra.sweep.dir=s", "hydra.launcher.workers=1"]
    with place.start(*arguments) as process:
        pid = place.wait_for("s/2/job.log")
        process.kill()
    assert gone(pid) and place.ran() == [1, 2, 3]
    place.does()
    assert place.sweep(*arguments)[0] == 0 and place.ran() == [3, 4]
    assert statuses(place.rows("s")) == ["kept", "kept", "finished", "finished"]
    assert (place.folder / "continued").read_text() == f"{place.folder}/s/2"


def test_two_sweeps_at_once_in_one_folder_stay_apart(place):
    """The later one takes the next folder; the lock of a sweep that has ended is free again."""
    place.does(_1="hang")
    with place.start(*OURS, "seed=1,2", "hydra.sweep.dir=s") as first:
        place.wait_for("s/0/job.log")
        place.does()
        assert place.sweep(*OURS, "seed=1,2", "trainer.epochs=7", "hydra.sweep.dir=s")[0] == 0
        first.terminate()
        first.communicate(timeout=30)
    assert [row["val/loss"] for row in place.rows("s-2")] == ["1.1", "1.2"]
    assert statuses(place.rows("s")) == ["interrupted", "finished"]
    assert place.rows("s")[1]["val/loss"] == "0.2"


def test_what_another_sweep_finishes_meanwhile_is_not_run_again(place):
    place.does(_1="wait")
    with place.start(*OURS, "seed=1,2,3", "hydra.launcher.workers=1") as first:
        wait_until(lambda: read(place.folder / "ran") == "1\n")
        assert place.ran() == [1]
        assert place.sweep(*BASIC, "seed=3,2")[0] == 0 and place.ran() == [2, 3]
        (place.folder / "go").touch()
        output, _ = first.communicate(timeout=30)
    assert first.returncode == 0 and place.ran() == [] and "1 finished, 2 kept" in output


def test_another_sweep_in_a_folder_overwrites_no_result_of_the_first(place):
    place.sweep(*BASIC, "seed=1,2", "hydra.sweep.dir=s")
    place.sweep(*BASIC, "seed=1,2", "trainer.epochs=7", "hydra.sweep.dir=s")
    losses = [
        json.loads((place.folder / "s" / name / "result.json").read_text())["val"]["loss"]
        for name in ("0", "1", "repeat-2/0", "repeat-2/1")
    ]
    assert losses == [0.1, 0.2, 1.1, 1.2]
    assert [row["val/loss"] for row in place.rows("s")] == ["1.1", "1.2"]


def test_a_run_that_is_no_part_of_a_sweep_always_runs(place):
    command = [sys.executable, "-m", "clickexp", "seed=1"]
    for _ in range(2):
        subprocess.run(command, cwd=place.folder, env=place.env, check=True, capture_output=True)
    assert place.ran() == [1, 1]


def test_runs_of_one_second_have_folders_of_their_own(place):
    """The folder that is not named on the command line is new, whether its owner still runs or not."""
    (place.folder / "local").mkdir()
    (place.folder / "local/default.yaml").write_text("# @package _global_\nhydra: {run: {dir: new/now}}\n")
    place.does(_1="wait")
    with place.run("seed=1") as first:
        wait_until(lambda: read(place.folder / "ran") == "1\n")
        assert place.ended("seed=2")[0] == 0
        (place.folder / "go").touch()
        assert first.wait(30) == 0
    assert place.ended("seed=3")[0] == 0
    losses = [json.loads((place.folder / f"new/now{n}/result.json").read_text())["val"]["loss"]
              for n in ("", "-2", "-3")]  # fmt: skip
    assert losses == [0.1, 0.2, 0.3]
    recorded = (place.folder / "new/now-2/.hydra/overrides.yaml").read_text()
    assert (
        "seed=2" in recorded
        and "dir: new/now-2" in (place.folder / "new/now-2/.hydra/hydra.yaml").read_text()
    )


def test_a_named_folder_has_one_run_at_a_time_and_keeps_its_result(place):
    """What was interrupted there goes on; nothing of another run is touched."""
    place.does(_1="hang")
    with place.run("seed=1", "hydra.run.dir=out") as first:
        wait_until((place.folder / "out/checkpoint.npz").exists)
        files = {file: file.read_bytes() for file in (place.folder / "out").rglob("*") if file.is_file()}
        code, output = place.ended("seed=2", "hydra.run.dir=out")
        assert code == 1 and re.fullmatch(
            r"clickexp: hydra.run.dir=out: another run is writing there\..*\n", output
        )
        assert {file: file.read_bytes() for file in files} == files
        first.kill()
    for name in ("checkpoint.npz", "test_sessions.parquet", "test_lists.parquet"):
        (place.folder / f"out/{name}.part").touch()
    (place.folder / "out/mine.part").touch()
    place.does()
    assert place.ended("seed=1", "hydra.run.dir=out")[0] == 0
    assert (place.folder / "continued").read_text() == f"{place.folder}/out"
    assert [file.name for file in (place.folder / "out").glob("*.part")] == ["mine.part"]
    result = (place.folder / "out/result.json").read_text()
    assert place.ran() == [1, 1]
    code, output = place.ended("seed=2", "hydra.run.dir=out")
    assert code == 1 and re.fullmatch(r"clickexp: hydra.run.dir=out: a finished run is there\..*\n", output)
    assert place.ran() == [] and (place.folder / "out/result.json").read_text() == result


def test_an_interrupted_run_of_another_configuration_is_kept(place):
    """The same configuration continues it; what the numbers do not depend on may differ."""
    place.does(_1="hang")
    with place.run("seed=1", "hydra.run.dir=out", "trainer.epochs=5") as first:
        wait_until((place.folder / "out/checkpoint.npz").exists)
        first.kill()
    place.does()
    files = {file: file.read_bytes() for file in (place.folder / "out").rglob("*") if file.is_file()}
    for wrong, named in (("seed=2", "seed was 1, not 2"), ("model=pbm", "model._target_ was clickexp.models.User")):
        code, output = place.ended("hydra.run.dir=out", "seed=1", wrong)
        line = "clickexp: hydra.run.dir=out: an interrupted run of another configuration is there ("
        assert code == 1 and output.startswith(line) and named in output and output.count("\n") == 1
        assert "Choose another folder, or repeat its configuration" in output
        assert {file: file.read_bytes() for file in (place.folder / "out").rglob("*") if file.is_file()} == files
    code, output = place.ended("seed=1", "hydra.run.dir=out", "trainer.epochs=6", "logger=console")
    assert code == 0 and (place.folder / "continued").exists(), output


def test_what_killed_runs_left_half_written_goes_with_the_next_run(place):
    """Of the same outputs, not of a run that lives, and nothing but the files of runs."""
    (place.folder / "local").mkdir()
    out = "outputs/${oc.env:DAY}/run-${seed}"
    (place.folder / "local/default.yaml").write_text(f"# @package _global_\nhydra: {{run: {{dir: '{out}'}}}}\n")
    place.does(_1="hang", _2="hang")

    def on(day, seed):
        place.env["DAY"] = day
        return place.run(f"seed={seed}")

    folders = place.folder / "outputs/2026-11-20/run-1", place.folder / "outputs/2026-11-21/run-2"
    with on("2026-11-20", 1) as killed, on("2026-11-21", 2) as lives:
        wait_until(lambda: all((folder / "checkpoint.npz").exists() for folder in folders))
        killed.kill()
        killed.wait()
        other = place.folder / "outputs/2026-11-20/other"
        other.mkdir()
        parts = [folder / "checkpoint.npz.part" for folder in (*folders, other)] + [folders[0] / "mine.part"]
        for part in parts:
            part.touch()
        place.does()
        with on("2026-11-22", 3) as later:
            assert later.wait(60) == 0
        assert [part.exists() for part in parts] == [False, True, True, True]
        lives.kill()
    with on("2026-11-21", 4) as later:
        assert later.wait(60) == 0
    assert [part.exists() for part in parts] == [False, False, True, True]


@pytest.mark.parametrize(
    "arguments", [["hydra.run.dir=file/out"], ["-m", "hydra.sweep.dir=file/out", "seed=1,2"]]
)
def test_a_folder_that_cannot_be_made_ends_the_command_in_one_line(arguments, place):
    (place.folder / "file").touch()
    code, output = place.ended(*arguments)
    key = arguments[-2 if "-m" in arguments else 0]
    reason = "it cannot be written (Not a directory). Choose another folder."
    assert code == 1 and output.startswith(f"clickexp: {key}: {reason}") and output.count("\n") == 1
    assert place.ran() == []


@pytest.mark.parametrize(
    "does, line",
    [
        ("disk", "out/result.json: No space left on device. Free some space, or choose another place."),
        (
            "device",
            "Out of memory allocating 80 bytes. Use less data or smaller batches, or allow more memory.",
        ),
        ("memory", "Out of memory. Use less data or smaller batches, or allow more memory."),
    ],
)
def test_a_full_disk_or_memory_ends_a_run_in_one_line(does, line, place):
    place.does(_1=does)
    code, output = place.ended("seed=1", "hydra.run.dir=out")
    assert code == 1 and output.count("\n") == 1
    assert output.replace(f"{place.folder}/", "").startswith(f"clickexp: {line}")
    assert not [*place.folder.glob("out/result*")]


def test_what_a_killed_job_left_half_written_goes_and_that_of_one_that_runs_stays(place):
    """It goes when the job is repeated, in the folder of its sweep or in another."""
    place.does(_1="hang", _2="kill")
    parts = [place.folder / f"outputs/sweeps/a/{number}/checkpoint.npz.part" for number in (0, 1)]
    with place.start(*OURS, "seed=1,2", "hydra.sweep.dir=outputs/sweeps/a") as first:
        place.wait_for("outputs/sweeps/a/0/job.log")
        wait_until(lambda: "killed by SIGKILL" in read(place.folder / "outputs/sweeps/a/1/job.json"))
        for part in parts:
            part.touch()
        place.does()
        assert place.sweep(*BASIC, "seed=1,2", "hydra.sweep.dir=outputs/sweeps/b")[0] == 0
        assert all(part.exists() for part in parts)
        assert parts[0].with_suffix("").exists() and not (place.folder / "continued").exists()
        first.terminate()
        first.communicate(timeout=30)
    shutil.rmtree(place.folder / "outputs/sweeps/b")
    assert place.sweep(*BASIC, "seed=1,2", "hydra.sweep.dir=outputs/sweeps/b")[0] == 0
    assert not any(part.exists() for part in parts)
    parts[0].touch()
    assert place.sweep(*BASIC, "seed=3", "hydra.sweep.dir=outputs/sweeps/a")[0] == 0 and not parts[0].exists()


def test_a_sweep_continues_by_itself_only(place):
    code, output = place.sweep(*BASIC, "seed=1,2", "continue_from=s", "hydra.sweep.dir=s")
    assert code == 1 and "clickexp: continue_from is for a single run" in output and place.ran() == []


def flip(model):
    content = bytearray(model.read_bytes())
    content[500] ^= 1  # of the values
    model.write_bytes(content)


DAMAGES = {
    "cut": lambda model: model.write_bytes(b"PK"),
    "flipped": flip,
    "gone": lambda model: model.unlink(),
}


@pytest.mark.parametrize(
    "launcher, damage", [(BASIC, "cut"), (BASIC, "flipped"), (OURS, "flipped"), (BASIC, "gone")]
)
def test_a_job_whose_model_is_damaged_runs_again(launcher, damage, place):
    sweep = [*launcher, "seed=1,2", "hydra.sweep.dir=s"]
    assert place.sweep(*sweep)[0] == 0 and place.ran() == [1, 2]
    DAMAGES[damage](place.folder / "s/1/model.npz")
    code, output = place.sweep(*sweep)
    assert code == 0 and place.ran() == [2]
    assert "job 1: the model in s/1 is damaged or missing; it is run again" in output
    for _ in range(2):
        code, output = place.sweep(*sweep)
        assert code == 0 and place.ran() == [] and "damaged" not in output
    assert statuses(place.rows("s")) == ["kept", "kept"]
    assert [row["folder"] for row in place.rows("s")] == [f"{place.folder}/s/{n}" for n in ("0", "repeat-2/1")]
    assert [folder.name for folder in place.folder.glob("s/repeat-*")] == ["repeat-2"]


@pytest.mark.parametrize("launcher", [OURS, BASIC])
def test_a_job_whose_result_lacks_the_metric_runs_again(launcher, place):
    """A validation has only the metrics that were watched."""
    sweep = [*launcher, "seed=1", "hydra.sweep.dir=s"]
    assert place.sweep(*sweep)[0] == 0 and place.ran() == [1]
    code, output = place.sweep(*sweep, "optimized_metric=val/auc")
    assert code == 0 and place.ran() == [1], output
    assert "job 0: the result in s/0 has no val/auc; it is run again" in output
    for metric in ("auc", "loss"):
        assert place.sweep(*sweep, f"optimized_metric=val/{metric}")[0] == 0 and place.ran() == []


def test_a_single_run_whose_model_is_damaged_runs_again_in_its_folder(place):
    assert place.ended("seed=1", "hydra.run.dir=out")[0] == 0
    flip(place.folder / "out/model.npz")
    assert place.ended("seed=1", "hydra.run.dir=out")[0] == 0 and place.ran() == [1, 1]
    assert place.ended("seed=1", "hydra.run.dir=out")[0] == 1
    (place.folder / "out/config.yaml").unlink()
    (place.folder / "out/model.npz").unlink()  # by its user: nothing records that it was to be kept
    assert place.ended("seed=1", "hydra.run.dir=out")[0] == 1
    (place.folder / "out/config.yaml").write_text("save_model: true")
    assert place.ended("seed=1", "hydra.run.dir=out")[0] == 0 and place.ran() == [1]


@pytest.mark.parametrize("gigabytes, code", [(1, 1), (64, 0)])
def test_too_little_address_space_ends_a_run_in_one_line(gigabytes, code, place):
    limit = ["prlimit", f"--as={gigabytes << 30}"]
    command = [*limit, sys.executable, "-m", "clickexp", "seed=1", "hydra.run.dir=out"]
    done = subprocess.run(command, cwd=place.folder, env=place.env, capture_output=True, text=True)
    assert done.returncode == code
    if code:
        assert done.stderr.startswith(
            "clickexp: XLA cannot start within 1.07 GB of address space. Raise the limit"
        )
        assert done.stderr.count("\n") == 1 and not (place.folder / "out").exists()


@pytest.mark.parametrize("checkpoint", [True, False])
def test_an_interrupted_run_tells_how_to_go_on(checkpoint, tmp_path, capsys, monkeypatch):
    """A run that is no sweep, interrupted in the middle."""

    def interrupted(*_):
        if checkpoint:
            (tmp_path / "checkpoint.npz").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("clickexp.sweeps.job._run_experiment", interrupted)
    node = {"mode": RunMode.RUN, "runtime": {"output_dir": str(tmp_path)}, "overrides": {"task": []}}
    runtime = OmegaConf.create(node)
    with pytest.raises(KeyboardInterrupt):
        run_job(OmegaConf.create({"continue_from": None}), runtime)
    hint = f"; continue_from={tmp_path} continues from its checkpoint" if checkpoint else ""
    assert capsys.readouterr().err == f"clickexp: interrupted{hint}\n"
