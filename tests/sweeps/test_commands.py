"""Sweeps and runs whose jobs fail in this process: nothing finished is lost, overwritten or run again."""

import json
import os
import shlex
import shutil
import signal
import sys

import pytest
import stand_in
from hydra.types import RunMode
from omegaconf import OmegaConf
from stand_in import BASIC, Place, statuses

from clickexp.cli import main as command
from clickexp.experiment import report, resolve, run
from clickexp.experiment.overrides import parsed, values_of
from clickexp.sweeps.job import run_job
from clickexp.utils import exits
from clickexp.utils.files import LOCK, locked

QUEUE = ["launcher=accelerators", "hydra.launcher.pool=stand_in.HerePool"]
LAUNCHERS = {"basic": BASIC, "queue": QUEUE}
NOT_A_FOLDER = "it cannot be written (Not a directory)"


class Here(Place):
    """Commands run in this process, whose logging they leave as it is."""

    logging = "none", "none"

    def __init__(self, folder, capsys):
        super().__init__(folder)
        self.capsys = capsys

    def ended(self, *arguments):
        """Exit code and output."""
        sys.argv[:] = ["clickexp", *self.words(*arguments)]
        code = 0
        try:
            command.main()
        except SystemExit as end:
            code = end.code
        return code, "".join(self.capsys.readouterr())


@pytest.fixture
def place(tmp_path, monkeypatch, capsys):
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(exits.FULL_ERROR, "0")
    # this process ends with a code of its own
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(run, "run_experiment", stand_in.run_experiment)
    monkeypatch.setattr(resolve, "resolve", lambda *_: None)
    yield Here(tmp_path, capsys)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(params=LAUNCHERS)
def launcher(request):
    return LAUNCHERS[request.param]


def losses(place, *folders):
    return [
        json.loads((place.folder / each / "result.json").read_text())["val"]["loss"]
        for each in folders
    ]


def test_jobs_that_failed_run_again_and_no_others(launcher, place):
    place.does({2: "raise"})
    code, output = place.sweep(*launcher, "seed=1,2,3", "hydra.sweep.dir=s")
    assert code == 1 and place.ran() == [1, 2, 3] and "wrong in this one" in output
    rows = place.rows("s")
    assert statuses(rows) == ["finished", "failed", "finished"]
    assert [row["val/loss"] for row in rows] == ["0.1", "", "0.3"]
    assert "job 1 failed: ConfigError: wrong in this one" in output and "1 failed" in output
    place.does({})
    code, _ = place.sweep(*launcher, "seed=1,2,3", "hydra.sweep.dir=s")
    assert code == 0 and place.ran() == [2]
    rows = place.rows("s")
    assert statuses(rows) == ["kept", "finished", "kept"]
    assert [row["val/loss"] for row in rows] == ["0.1", "0.2", "0.3"]
    assert rows[0]["folder"] == f"{place.folder}/s/0"


def test_a_job_whose_folder_cannot_be_made_fails_alone(place):
    (place.folder / "s").mkdir()
    (place.folder / "s/0").write_text("in the way")
    code, output = place.sweep(*QUEUE, "seed=1,2", "hydra.sweep.dir=s")
    assert code == 1 and place.ran() == [2] and "job 0 failed: FileExistsError" in output
    assert statuses(place.rows("s")) == ["finished"]


def test_a_configuration_runs_once_however_it_is_written(launcher, place):
    """Without resuming, too: within one sweep. Where results are reported to makes no other configuration."""
    once = ["seed=1,1,2", "trainer.epochs=3,3", "resume=false"]
    assert place.sweep(*launcher, *once)[0] == 0 and place.ran() == [1, 2]
    assert place.sweep(*launcher, "seed=2", *once[1:])[0] == 0 and place.ran() == [2]
    overrides = ["logger=console", "notes=x", "progress=off", "cache_dir=elsewhere"]
    assert place.sweep(*launcher, "seed=2", "trainer.epochs=3,4", *overrides)[
        0
    ] == 0 and place.ran() == [2]


def test_a_sweep_without_any_data_is_refused_before_it_starts(launcher, place, monkeypatch):
    """Not if some jobs have theirs, or all have their results."""
    monkeypatch.setenv("HOME", str(place.folder))
    sweep = [*launcher, "dataset.path='~/a',b", "seed=1", "hydra.sweep.dir=new/s"]
    code, output = place.sweep(*sweep)
    assert (
        code == 1
        and output.startswith("clickexp: b: no such file or folder")
        and output.count("\n") == 1
    )
    assert "dataset.path" in output
    assert place.ran() == [] and not (place.folder / "new").exists()
    (place.folder / "a").touch()
    assert place.sweep(*sweep)[0] == 0 and place.ran() == [1, 1]
    (place.folder / "a").unlink()
    assert place.sweep(*sweep)[0] == 0 and place.ran() == []


def test_a_sweep_leaves_the_folder_of_another_to_it(place):
    (place.folder / "s").mkdir()
    with locked(place.folder / "s" / LOCK):
        assert place.sweep(*QUEUE, "seed=1,2", "trainer.epochs=7", "hydra.sweep.dir=s")[0] == 0
    assert [row["val/loss"] for row in place.rows("s-2")] == ["1.1", "1.2"]
    assert [file.name for file in (place.folder / "s").iterdir()] == [LOCK]


def test_what_another_sweep_finishes_meanwhile_is_not_run_again(place):
    assert place.sweep(*BASIC, "seed=3,2", "hydra.sweep.dir=aside")[0] == 0 and place.ran() == [
        2,
        3,
    ]
    place.does({1: {"move": "aside", "to": "outputs/sweeps/another"}})
    code, output = place.sweep(*QUEUE, "seed=1,2,3")
    assert code == 0 and place.ran() == [1] and "1 finished, 2 kept" in output


def test_another_sweep_in_a_folder_overwrites_no_result_of_the_first(place):
    place.sweep(*BASIC, "seed=1,2", "hydra.sweep.dir=s")
    place.sweep(*BASIC, "seed=1,2", "trainer.epochs=7", "hydra.sweep.dir=s")
    assert losses(place, "s/0", "s/1", "s/repeat-2/0", "s/repeat-2/1") == [0.1, 0.2, 1.1, 1.2]
    assert [row["val/loss"] for row in place.rows("s")] == ["1.1", "1.2"]


def test_an_interrupted_job_goes_on_where_its_sweep_is_repeated(launcher, place):
    """Its checkpoint moves, from any sweep that no process works on."""
    place.does({2: "stop"})
    code, output = place.sweep(*BASIC, "seed=1,2", "hydra.sweep.dir=outputs/sweeps/a")
    assert code == 130 and "1 finished, 1 interrupted" in output and place.ran() == [1, 2]
    left = place.folder / "outputs/sweeps/a/1"
    place.does({})
    sweep = [*launcher, "seed=1,2", "resume=true"]
    with locked(left.parent / LOCK):
        assert place.sweep(*sweep, "hydra.sweep.dir=outputs/sweeps/b")[0] == 0 and place.ran() == [
            2
        ]
    assert (left / "checkpoint.npz").exists() and not (place.folder / "continued").exists()
    shutil.rmtree(place.folder / "outputs/sweeps/b")
    assert place.sweep(*sweep, "hydra.sweep.dir=outputs/sweeps/b")[0] == 0 and place.ran() == [2]
    assert (place.folder / "continued").read_text() == str(left)
    assert statuses(place.rows("outputs/sweeps/b")) == ["kept", "finished"]


def test_a_job_that_ends_between_its_result_and_its_report_is_finished_by_the_repetition(
    launcher, place, monkeypatch
):
    """Interrupted, or killed, which leaves it running; a job on which another sweep works is left alone."""
    reported = []

    def report_later(finished):
        reported.append(finished.folder.name)
        return "report: it"

    monkeypatch.setattr(report, "report_later", report_later)
    place.does({2: "stop late"})
    sweep = [*launcher, "seed=1,2", "report=true", "hydra.sweep.dir=s"]
    code, output = place.sweep(*sweep)
    assert code == 130 and "2 finished" in output and place.ran() == [1, 2]
    file = place.folder / "s/1/job.json"
    for status in ("finished", "running", "interrupted"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "status": status}))
        (place.folder / "s/0/report.html").touch()
        code, output = place.sweep(*sweep)
        assert code == 0 and place.ran() == [] and "report: it" in output, output
        assert json.loads(file.read_text())["status"] == "finished"
    assert reported == ["1"] * 3
    with locked(place.folder / "s" / LOCK):
        place.sweep(*BASIC, "seed=1,2", "report=true", "sweeps_dir=.", "hydra.sweep.dir=t")
    assert reported == ["1"] * 3


def test_a_sweep_continues_by_itself_only(place):
    code, output = place.sweep(*BASIC, "seed=1,2", "continue_from=s", "hydra.sweep.dir=s")
    assert (
        code == 1 and "clickexp: continue_from is for a single run" in output and place.ran() == []
    )


def flip(model):
    content = bytearray(model.read_bytes())
    content[500] ^= 1  # of the values
    model.write_bytes(content)


DAMAGES = lambda model: model.write_bytes(b"PK"), flip, lambda model: model.unlink()


def test_jobs_whose_models_are_damaged_run_again(launcher, place):
    sweep = [*launcher, "seed=1,2,3,4", "hydra.sweep.dir=s"]
    assert place.sweep(*sweep)[0] == 0 and place.ran() == [1, 2, 3, 4]
    for job, damage in enumerate(DAMAGES, 1):
        damage(place.folder / f"s/{job}/model.npz")
    code, output = place.sweep(*sweep)
    assert code == 0 and place.ran() == [2, 3, 4]
    for job in (1, 2, 3):
        assert f"job {job}: the model in s/{job} is damaged or missing; it is run again" in output
    for _ in range(2):
        code, output = place.sweep(*sweep)
        assert code == 0 and place.ran() == [] and "damaged" not in output
    assert statuses(place.rows("s")) == ["kept"] * 4
    jobs = "0", "repeat-2/1", "repeat-2/2", "repeat-2/3"
    assert [row["folder"] for row in place.rows("s")] == [f"{place.folder}/s/{job}" for job in jobs]
    assert [folder.name for folder in place.folder.glob("s/repeat-*")] == ["repeat-2"]


def test_a_job_whose_result_lacks_the_metric_runs_again(launcher, place):
    """A validation has only the metrics that were watched."""
    sweep = [*launcher, "seed=1", "hydra.sweep.dir=s"]
    assert place.sweep(*sweep)[0] == 0 and place.ran() == [1]
    code, output = place.sweep(*sweep, "optimized_metric=val/auc")
    assert code == 0 and place.ran() == [1], output
    assert "job 0: the result in s/0 has no val/auc; it is run again" in output
    for metric in ("auc", "loss"):
        assert place.sweep(*sweep, f"optimized_metric=val/{metric}")[0] == 0 and place.ran() == []


def test_a_job_whose_log_has_changed_runs_again(launcher, place):
    """The same path, size and time; and a log that is not on this machine counts as unchanged."""
    log = place.folder / "log.csv"
    log.write_text("clicks\n1\n")
    time = log.stat().st_mtime_ns
    sweep = [*launcher, "seed=1", "hydra.sweep.dir=s", f"dataset.path={log}"]
    assert place.sweep(*sweep)[0] == 0 and place.ran() == [1]
    assert place.sweep(*sweep)[0] == 0 and place.ran() == []
    log.write_text("clicks\n0\n")
    os.utime(log, ns=(time, time))
    code, output = place.sweep(*sweep)
    assert code == 0 and place.ran() == [1], output
    assert (
        f"job 0: dataset.path={log} has changed since the result in s/0; it is run again" in output
    )
    log.unlink()
    assert place.sweep(*sweep)[0] == 0 and place.ran() == []


def test_a_job_that_reads_a_run_which_has_changed_runs_again(place):
    """Such as propensity.run, whose folder keeps its name when it is fitted again."""
    run = place.folder / "pbm"
    run.mkdir()
    (run / "result.json").write_text("{}")
    sweep = ["seed=1", "hydra.sweep.dir=s", f"+model.debias.propensity.run={run}"]
    assert place.sweep(*sweep)[0] == 0 and place.ran() == [1]
    (run / "result.json").write_text('{"propensity": []}')
    code, output = place.sweep(*sweep)
    assert code == 0 and place.ran() == [1], output
    assert "model.debias.propensity.run" in output and "has changed" in output


@pytest.mark.parametrize("launcher, package", [("slurm", "submitit"), ("ray", "ray")])
def test_a_package_that_is_missing_is_reported_in_one_line(launcher, package, place, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"clickexp.sweeps.backends.{launcher}", raising=False)
    code, output = place.sweep(f"launcher={launcher}", "seed=1")
    assert code == 1 and output.count("\n") == 1
    assert f"launcher={launcher} needs {package}: pip install 'clickexp[{launcher}]'" in output


def test_a_run_that_is_no_part_of_a_sweep_always_runs(place):
    for _ in range(2):
        assert place.ended("seed=1")[0] == 0
    assert place.ran() == [1, 1]


def test_runs_of_one_second_have_folders_of_their_own(place):
    """The folder that is not named on the command line is new, whether its owner still runs or not."""
    place.configure(run={"dir": "new/now"})
    (place.folder / "new/now").mkdir(parents=True)
    with locked(place.folder / "new/now" / LOCK):
        assert place.ended("seed=2")[0] == 0
    assert place.ended("seed=3")[0] == 0
    assert losses(place, "new/now-2", "new/now-3") == [0.2, 0.3]
    hydra = place.folder / "new/now-2/.hydra"
    assert "seed=2" in (hydra / "overrides.yaml").read_text()
    assert "dir: new/now-2" in (hydra / "hydra.yaml").read_text()


def content(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_run_that_is_interrupted_after_its_result_names_the_command_that_shows_it(place):
    place.does({1: "stop late"})
    code, output = place.ended("seed=1", "hydra.run.dir=out")
    assert code == 130 and (place.folder / "out/result.json").exists()
    assert "its result is there, and no report.html" in output
    assert output.rstrip().endswith("clickexp-compare out --figures")


def test_a_named_folder_has_one_run_at_a_time_and_keeps_its_result(place):
    """What was interrupted there goes on; nothing of another run is touched."""
    out = place.folder / "out"
    place.does({1: "stop"})
    code, output = place.ended("seed=1", "hydra.run.dir=out")
    assert (
        code == 130
        and output
        == "clickexp: interrupted; this continues from its checkpoint: "
        "clickexp seed=1 hydra.run.dir=out\n"
    )
    with locked(out / LOCK):
        files = content(out)
        code, output = place.ended("seed=2", "hydra.run.dir=out")
        assert code == 1 and output.startswith(
            "clickexp: hydra.run.dir=out: another run is writing there"
        )
        assert output.count("\n") == 1 and content(out) == files
    place.does({})
    assert place.ended("seed=1", "hydra.run.dir=out")[0] == 0
    assert (place.folder / "continued").read_text() == f"{place.folder}/out"
    result = (out / "result.json").read_text()
    assert place.ran() == [1, 1]
    code, output = place.ended("seed=2", "hydra.run.dir=out")
    assert code == 1 and output.startswith("clickexp: hydra.run.dir=out: a finished run is there")
    assert (
        output.count("\n") == 1
        and place.ran() == []
        and (out / "result.json").read_text() == result
    )


def test_an_interrupted_run_of_another_configuration_is_kept(place):
    """The same configuration continues it; what the numbers do not depend on may differ."""
    place.does({1: "stop"})
    place.ended("seed=1", "hydra.run.dir=out", "trainer.epochs=5")
    place.does({})
    files = content(place.folder / "out")
    for wrong, named in (
        ("seed=2", "seed was 1, not 2"),
        ("model._target_=a.B", "_target_ was some.Model"),
    ):
        code, output = place.ended("hydra.run.dir=out", "seed=1", wrong)
        line = "clickexp: hydra.run.dir=out: an interrupted run of another configuration is there ("
        assert code == 1 and output.startswith(line) and named in output and output.count("\n") == 1
        assert "Choose another folder, or repeat its configuration" in output
        assert content(place.folder / "out") == files
    code, output = place.ended("seed=1", "hydra.run.dir=out", "trainer.epochs=6", "logger=console")
    assert code == 0 and (place.folder / "continued").exists(), output


def test_a_folder_that_cannot_be_made_ends_the_command_in_one_line(place):
    (place.folder / "file").touch()
    for *words, key in (["hydra.run.dir=file/out"], ["-m", "seed=1,2", "hydra.sweep.dir=file/out"]):
        code, output = place.ended(*words, key)
        assert code == 1 and output.startswith(f"clickexp: {key}: {NOT_A_FOLDER}"), key
        assert "Choose another folder" in output and output.count("\n") == 1 and place.ran() == []


OUT_OF = {
    "disk": "out/result.json: No space left on device. Free some space, or choose another place.",
    "device": "Out of memory allocating 80 bytes. Use less data or smaller batches, or allow more memory.",
    "memory": "Out of memory. Use less data or smaller batches, or allow more memory.",
}


def test_a_full_disk_or_memory_ends_a_run_in_one_line(place):
    for does, line in OUT_OF.items():
        place.does({1: does})
        code, output = place.ended("seed=1", "hydra.run.dir=out")
        assert code == 1 and output.count("\n") == 1, does
        assert output.replace(f"{place.folder}/", "").startswith(f"clickexp: {line}")
        assert not [*place.folder.glob("out/result*")]


def test_a_single_run_whose_model_is_damaged_runs_again_in_its_folder(place):
    run = "seed=1", "hydra.run.dir=out"
    assert place.ended(*run)[0] == 0
    flip(place.folder / "out/model.npz")
    assert place.ended(*run)[0] == 0 and place.ran() == [1, 1]
    assert place.ended(*run)[0] == 1
    (place.folder / "out/config.yaml").unlink()
    (place.folder / "out/model.npz").unlink()  # by its user: nothing records that it was to be kept
    assert place.ended(*run)[0] == 1
    (place.folder / "out/config.yaml").write_text("save_model: true")
    assert place.ended(*run)[0] == 0 and place.ran() == [1]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_an_interrupted_run_tells_how_to_go_on(checkpoint, tmp_path, capsys, monkeypatch):
    """A run that is no sweep, interrupted in the middle; its result is to be in its folder."""
    folder = tmp_path / "my run"
    folder.mkdir()

    def interrupted(*_):
        if checkpoint:
            (folder / "checkpoint.npz").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("clickexp.sweeps.job._run_experiment", interrupted)
    node = {
        "mode": RunMode.RUN,
        "runtime": {"output_dir": str(folder)},
        "overrides": {
            "task": ["model=pbm", *(["continue_from=an earlier one"] if checkpoint else [])],
            "hydra": ["hydra.mode=RUN"],
        },
    }
    runtime = OmegaConf.create(node)
    with pytest.raises(SystemExit), exits.ending("clickexp"):
        run_job(OmegaConf.create({"continue_from": None}), runtime)
    hint = "it has no checkpoint yet, and this starts it again"
    if checkpoint:
        hint = "this continues from its checkpoint"
    reason, command = capsys.readouterr().err.split(": clickexp ")
    assert reason == f"clickexp: interrupted; {hint}"
    *words, place = shlex.split(command)
    assert words == ["model=pbm"]
    (override,) = parsed([place])
    assert (override.key_or_group, values_of(override)) == ("hydra.run.dir", [str(folder)])
