"""TensorBoard, MLflow and Trackio: files and databases that runs write, read back by the tools' own readers."""

import builtins
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clickexp.errors import UserError
from clickexp.loggers import MlflowLogger, RunInfo, TensorBoardLogger, TrackioLogger
from clickexp.runs.run import Run

RESULT = {
    "format": 1,
    "model": "PBM",
    "dataset": "clicks",
    "test_set": "a",
    "test": {"ll": -0.3, "ppl": 1.4, "ndcg@10": 0.5, "cold_ll@51+": -0.25, "of=a": 1.0},
    "val": {"ll": -0.2},
    "intervals": {"ll": [-0.35, -0.25]},
    "references": {"true user": {"test": {"ll": -0.5}, "per_rank": {"ppl": [1.25, 1.125]}}},
    "propensity": [
        {"position": at, "relative": value, "layout": {"device": device}}
        for device, at, value in (("a phone", 1, 1.0), ("a phone", 2, 0.5), ("tv", 1, 0.75))
    ],
    "parameters": 7,
}
CONFIG = {"seed": 1, "optimizer": {"learning_rate": 0.5}, "tags": [], "overrides": {"seed": 1}}
FINAL = {"test/ll": -0.3, "test/ppl": 1.4, "val/ll": -0.2, "test_low/ll": -0.35}
FINAL |= {"test_high/ll": -0.25, "parameters": 7}
SPELLED = FINAL | {"test/ndcg_at_10": 0.5, "test/cold_ll_at_51_up": -0.25, "test/of_a": 1.0}
"""Names of other signs are refused by MLflow, and changed with a line each by TensorBoard."""
FINAL |= {"test/ndcg@10": 0.5, "test/cold_ll@51+": -0.25, "test/of=a": 1.0}


def report(logger, folder):
    """A run of two epochs and two ranks, one value unknown."""
    folder.mkdir()
    logger.start(RunInfo(folder, CONFIG, "PBM-1", "tests", group="users", tags=("first",)))
    for epoch, loss in ((1, 0.5), (2, 0.25)):
        record = {"epoch": epoch, "train/loss": loss, "seconds": 2.0, "compile_seconds": 0.5}
        logger.epoch(record)
    logger.per_rank("test", {"ppl": [1.5, None], "ll": [-0.5, -0.25]})
    logger.result(Run.of(RESULT))
    (folder / "result.json").write_text("{}")
    logger.finish(True)


def test_tensorboard_reads_curves_over_epochs_and_ranks(tmp_path, caplog):
    caplog.set_level("INFO")
    from tensorboard.backend.event_processing import event_accumulator

    report(TensorBoardLogger(), tmp_path / "run")

    def curves(folder):
        events = event_accumulator.EventAccumulator(str(folder)).Reload()
        return {
            name: {event.step: pytest.approx(event.value) for event in events.Scalars(name)}
            for name in events.Tags()["scalars"]
        }

    own, reference = (curves(tmp_path / "run/tensorboard" / name) for name in ("", "true-user"))
    assert own["train/loss"] == {1: 0.5, 2: 0.25}
    assert own["speed/seconds_per_epoch"] == {1: 1.5, 2: 1.5}
    assert own["rank/test/ppl"] == {1: 1.5} and own["rank/test/ll"] == {1: -0.5, 2: -0.25}
    assert own["rank/test/examination/device_a_phone"] == {1: 1.0, 2: 0.5}
    assert own["rank/test/examination/device_tv"] == {1: 0.75}
    assert {name: own[f"final/{name}"] for name in SPELLED} == {
        name: {0: value} for name, value in SPELLED.items()
    }
    assert not [record for record in caplog.records if "illegal" in record.getMessage()]
    assert reference == {"rank/test/ppl": {1: 1.25, 2: 1.125}}


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of MLflow
def test_mlflow_reads_settings_metrics_and_artifacts(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    report(MlflowLogger(uri), tmp_path / "run")
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("tests")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("PBM-1", "FINISHED")
    assert run.data.tags["group"] == "users" and run.data.tags["first"] == "true"
    assert run.data.params == {"seed": "1", "optimizer.learning_rate": "0.5", "tags": "[]"}
    assert {name: run.data.metrics[f"final/{name}"] for name in SPELLED} == SPELLED

    def curve(name):
        return {
            point.step: point.value for point in client.get_metric_history(run.info.run_id, name)
        }

    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["result.json"]
    assert curve("train/loss") == {1: 0.5, 2: 0.25}
    assert curve("rank/test/ppl") == {1: 1.5}
    assert curve("rank/true user/ppl") == {1: 1.25, 2: 1.125}
    report(MlflowLogger(uri), tmp_path / "other")
    sweep = RunInfo(tmp_path / "users", {}, "best of users", "tests", "users", "best")
    MlflowLogger(uri).best_run(sweep, Run.of(RESULT, folder=tmp_path / "run"))
    best = client.search_runs([experiment.experiment_id], "tags.best = 'users'")
    assert [each.info.run_id for each in best] == [run.info.run_id]


TRACKIO = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_dashboards import RESULT, report
from clickexp.loggers import RunInfo, TrackioLogger
from clickexp.runs.run import Run

report(TrackioLogger(), Path("run"))
failing = TrackioLogger()
failing.start(RunInfo(Path("other"), {{}}, "PBM-2", "tests"))
failing.failed("OSError: it broke")
failing.finish(False)
sweep = RunInfo(Path("users"), {{"group": "users"}}, "best of users", "tests", "users", "best")
TrackioLogger().best_run(sweep, Run.of(RESULT, folder=Path("users/run")))
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """What Trackio's command reads of two runs of a process, which printed nothing."""
    folder = tmp_path_factory.mktemp("trackio")
    env = os.environ | {
        "TRACKIO_DIR": str(folder / "runs"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }

    def called(*words):
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert called("-c", TRACKIO) == ""

    def read(*words):
        code = "from trackio.cli import main; main()"
        return json.loads(called("-c", code, *words, "--project", "tests", "--json"))

    return read


def test_trackio_reads_curves_over_epochs_and_ranks(kept):
    def curve(name):
        points = kept("get", "metric", "--run", "PBM-1", "--metric", name)["values"]
        return {point["step"]: point["value"] for point in points}

    assert curve("train/loss") == {1: 0.5, 2: 0.25}
    assert curve("speed/seconds_per_epoch") == {1: 1.5, 2: 1.5}
    assert curve("rank/test/ppl") == {1: 1.5} and curve("rank/test/ll") == {1: -0.5, 2: -0.25}
    assert curve("rank/true user/ppl") == {1: 1.25, 2: 1.125}
    assert {name: curve(f"final/{name}") for name in FINAL} == {
        name: {0: value} for name, value in FINAL.items()
    }


def test_trackio_has_the_settings_and_alerts_of_the_run_that_failed_and_the_best(kept):
    config = kept("get", "run", "--run", "PBM-1")["config"]
    assert (config["seed"], config["optimizer.learning_rate"]) == (1, 0.5)
    assert config["_Group"] == "users"
    alerts = {alert["run"]: alert for alert in kept("list", "alerts")["alerts"]}
    failed, best = (
        {key: alerts[run][key] for key in ("title", "text", "level")}
        for run in ("PBM-2", "best of users")
    )
    assert failed == {"title": "Run failed", "text": "OSError: it broke", "level": "error"}
    assert best == {"title": "Best run of users", "text": "users/run", "level": "info"}
    assert kept("get", "run", "--run", "best of users")["config"]["_Group"] == "users"
    (point,) = kept("get", "metric", "--run", "best of users", "--metric", "final/test/ll")[
        "values"
    ]
    assert point["value"] == FINAL["test/ll"]


@pytest.mark.parametrize(
    "logger, package, extra",
    [
        (TensorBoardLogger, "tensorboardX", "tensorboard"),
        (MlflowLogger, "mlflow", "mlflow"),
        (TrackioLogger, "trackio", "trackio"),
    ],
)
def test_a_missing_package_is_an_error_that_names_the_extra(logger, package, extra, monkeypatch):
    whole = builtins.__import__

    def without(name, *others, **named):
        if name == package:
            raise ImportError(name=package)
        return whole(name, *others, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=rf"{package}: pip install 'clickexp\[{extra}\]'"):
        logger()


def test_finish_may_come_without_a_start():
    TensorBoardLogger().finish(False)
    MlflowLogger().finish(False)
    TrackioLogger().finish(False)
