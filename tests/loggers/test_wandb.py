"""Weights & Biases: offline runs written by a fresh process without a key, read back by W&B's own tool."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from places import ROOT

from clickexp.loggers import RunInfo, WandbLogger
from clickexp.loggers import wandb as module

PER_RANK = {"ll": [-0.5, -0.25, -0.125], "ppl": [1.5, None, 1.25], "sessions": [30, 20, 10]}
PER_RANK_VAL = {"ll": [-0.6, -0.3], "sessions": [8, 4]}
CURVE = {  # [bin, rank]: the second bin is empty, and at the second rank also the third
    "predicted": [[0.1, 0.2], [None, None], [0.8, None]],
    "observed": [[0.5, 0.0], [None, None], [1.0, None]],
    "documents": [[1, 3], [0, 0], [2, 0]],
}
RESULT = {
    "format": 1,
    "model": "PBM",
    "dataset": "clicks",
    "test_set": "a",
    "test": {
        "ll": -0.3,
        "ppl": 1.4,
        "ndcg@1": 0.5,
        "ndcg@10": 0.75,
        "mrr@10": 0.6,
        "without_relevant": 3,
    },
    "val": {"ll": -0.2},
    "train": {"epochs": 2, "seconds": 3.5, "peak_host_mib": 300.5},
    "per_rank": PER_RANK,
    "per_rank_val": PER_RANK_VAL,
    "curves": {"ece": CURVE},
    "intervals": {"ll": [-0.35, -0.25]},
    "test_draws": {"ll": {"mean": -0.4, "low": -0.45, "high": -0.38}},
    "references": {"rank-CTR": {"test": {"ll": -0.5}, "per_rank": {"ll": [-0.7, -0.3]}}},
    "propensity": [
        {"position": at, "relative": value, "layout": {"device": device}}
        for device, at, value in (("phone", 1, 1.0), ("phone", 2, 0.5), ("tv", 1, 0.75))
    ],
    "parameters": 7,
    "config_hash": "abc123",
}
CONFIG = {
    "seed": 1,
    "model": {
        "_target_": "some.where.Model",
        "_partial_": True,
        "parts": [{"_target_": "a.B"}],
        "name": "PBM",
    },
    "dataset": {"name": "clicks"},
    "overrides": {"experiment": "first"},
}
SCRIPT = f"""
import logging, sys
from pathlib import Path
from clickexp.loggers import ConsoleLogger, FanOut, JsonlLogger, RunInfo, WandbLogger
from clickexp.runs.run import Run

logging.basicConfig(format="WARNING: %(message)s", stream=sys.stdout)

def experiment(folder, break_at):
    backend = WandbLogger()
    fan = FanOut([ConsoleLogger(progress="plain"), JsonlLogger(), backend])
    fan.start(RunInfo(
        folder=Path(folder), config={CONFIG}, name=folder, project="tests",
        model="PBM", dataset="clicks", experiment="first", group="a group",
        job_type="train", tags=("first", "second"), notes="some notes", fingerprint="f00d",
        sweep=Path("jobs"),
    ))
    for epoch in (1, 2):
        if epoch == break_at:
            backend.run.log = None
        fan.progress("train", epoch, 10, 10, 0.5)
        fan.epoch({{"epoch": epoch, "train/loss": 0.5 / epoch, "val/ll": -0.5 / epoch, "seconds": 2.0,
            "compile_seconds": 0.5,
            "sessions": 10, "improved": True}})
    fan.per_rank("val", {PER_RANK_VAL})
    fan.per_rank("test", {PER_RANK})
    fan.result(Run.of({RESULT} | {{"train": train}}))
    for name in ("model.npz", "config.yaml", "report.html"):
        (Path(folder) / name).write_text(name)
    fan.report(Path(folder) / "report.html", {{"learning": "<svg>a curve</svg>"}})
    if break_at:
        fan.failed("OSError: it broke")
    fan.finish(ok=not break_at)

train = {RESULT["train"]} | {{
    "best_epoch": 2, "sessions": 20, "compile_seconds": 0.1, "sessions_per_second": 5.0}}

def interrupted(folder, epochs, ok, **more):
    backend = WandbLogger(model=False, report=False)
    backend.start(RunInfo(Path(folder), {{}}, folder, "tests", **more))
    for epoch in epochs:
        backend.epoch({{"epoch": epoch, "train/loss": 0.5 / epoch, "sessions": 10}})
    backend.finish(ok=ok)

interrupted("first", (1, 2), False, fingerprint="a")
interrupted("second", (1, 2, 3), True, fingerprint="a", continues=Path("first"))
interrupted("other", (1, 2), True, fingerprint="b", continues=Path("first"))
failing = WandbLogger()
failing.start(RunInfo(Path("failing"), {{}}, "PBM-1", "tests"))
failing.failed("DivergedError: the loss is nan")
failing.finish(False)
WandbLogger().start(RunInfo(folder=Path("left open"), config={{}}, name="left open", project="tests"))
experiment("whole", break_at=None)
experiment("broken", break_at=2)
info = RunInfo(Path("sweep"), {{"group": "sweep"}}, "best of sweep", "tests", "sweep", "best")
WandbLogger().best_run(info, Run.of({RESULT} | {{"train": train}}, folder=Path("whole")))
"""


def environment(home):
    """That of a user who never logged in."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WANDB_", "NETRC"))
    }
    return kept | {"HOME": str(home), "COLUMNS": "80", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What the script printed, and the folder of its two runs."""
    folder = tmp_path_factory.mktemp("wandb")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, folder


def inspect(folder, run, *options):
    (path,) = (folder / run / "wandb").glob("offline-run-*")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", *options, "--json", str(path)]
    return subprocess.run(
        command, env=environment(folder), capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(scope="module")
def records(written):
    return [json.loads(line) for line in inspect(written[1], "whole").splitlines()]


@pytest.fixture(scope="module")
def history(records):
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    return [
        {name: value for name, value in row.items() if not name.startswith("_")} for row in rows
    ]


@pytest.mark.nightly
def test_without_a_home_the_service_is_quiet(tmp_path):
    script = """
from pathlib import Path
from clickexp.loggers import RunInfo, WandbLogger

logger = WandbLogger()
logger.start(RunInfo(folder=Path("run"), config={}, name="a run", project="tests"))
logger.finish(True)
"""
    env = {
        name: value
        for name, value in environment(tmp_path).items()
        if name not in ("HOME", "XDG_CACHE_HOME")
    }
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [*(tmp_path / "run/wandb").glob("offline-run-*")]


def test_summary_of_the_run(written):
    run = json.loads(inspect(written[1], "whole", "--summary"))
    model = {"class": "Model", "parts": [{"class": "B"}], "name": "PBM"}
    assert run["config"] == CONFIG | {"model": model}
    assert (run["state"], run["exit_code"]) == ("finished", 0)
    assert (run["name"], run["project"], run["notes"]) == ("whole", "tests", "some notes")
    assert set(run["tags"]) == {
        "PBM",
        "clicks",
        "first",
        "second",
    }  # of model, dataset, experiment and user
    parts = ("test", "val", "train")  # val/ll is that of the best epoch, not that of the last
    expected = {f"{part}/{name}": value for part in parts for name, value in RESULT[part].items()}
    expected |= {"test_low/ll": -0.35, "test_high/ll": -0.25}
    expected |= {"draws/ll": -0.4, "draws_low/ll": -0.45, "draws_high/ll": -0.38}
    expected |= {"config_hash": "abc123", "parameters": 7, "epoch": 2, "sessions": 20}
    assert {name: run["summary"][name] for name in expected} == expected
    prefixes = {name.partition("/")[0] for name in run["summary"] if not name.startswith("_")}
    panels = {"report", "figures", "references"}
    bounds = {"test_low", "test_high", "draws", "draws_low", "draws_high"}
    assert prefixes == bounds | panels | {
        "test",
        "val",
        "train",
        "tables",
        "config_hash",
        "parameters",
        "epoch",
        "sessions",
    }


def artifacts(written, run):
    """By type the name, the aliases, the paths, and whether the run has read it."""
    lines = map(json.loads, inspect(written[1], run).splitlines())
    found = [line["artifact"] for line in lines if line["type"] == "artifact"]
    return {
        one["type"]: (
            one["name"].replace(line_id(written, run), "ID"),
            sorted(one["aliases"]),
            sorted(entry["path"] for entry in one["manifest"]["contents"]),
            one.get("use_after_commit", False),
        )
        for one in found
        if one["type"] != "run_table"
    }


def line_id(written, run):
    (folder,) = (written[1] / run / "wandb").glob("offline-run-*")
    return folder.name.rpartition("-")[2]


def test_models_are_artifacts_of_runs_that_succeed_and_logs_their_inputs(written):
    files = ["config.yaml", "model.npz"]
    assert artifacts(written, "whole") == {
        "model": ("model-ID", ["latest"], files, False),
        "dataset": ("log-clicks", ["latest"], ["fingerprint.txt"], True),
    }
    assert artifacts(written, "broken") == {}
    assert artifacts(written, "second") == {
        "dataset": ("log-log", ["latest"], ["fingerprint.txt"], True)
    }


def test_the_best_model_of_a_sweep_has_an_alias(written):
    found = artifacts(written, "sweep")
    assert found == {
        "model": ("model-sweep", ["best", "latest"], ["config.yaml", "model.npz"], False)
    }
    run = json.loads(inspect(written[1], "sweep", "--summary"))
    assert (run["name"], run["summary"]["test/ll"]) == ("best of sweep", -0.3)


def test_jobs_are_linked_in_the_folder_of_their_sweep(written):
    for run in ("whole", "broken"):
        (folder,) = (written[1] / run / "wandb").glob("offline-run-*")
        link = written[1] / "jobs/wandb" / folder.name
        assert link.is_symlink() and link.samefile(folder)


def test_references_share_a_chart_with_the_run(written, records):
    (file,) = (written[1] / "whole").rglob("ll_table*.table.json")
    table = json.loads(file.read_text())
    points = [(1, -0.5), (2, -0.25), (3, -0.125)]
    own = [[rank, "PBM", value] for rank, value in points]
    baseline = [[1, "rank-CTR", -0.7], [2, "rank-CTR", -0.3]]
    names = ("step", "lineKey", "lineVal")
    order = [table["columns"].index(name) for name in names]
    assert sorted([row[i] for i in order] for row in table["data"]) == sorted(own + baseline)
    assert "references/ll" in json.dumps(
        [record for record in records if record["type"] == "config"]
    )


def test_the_report_and_its_figures_are_panels(written):
    media = written[1] / "whole/wandb"
    (page,) = media.rglob("media/html/report_*.html")
    (figure,) = media.rglob("media/html/figures/learning_*.html")
    assert page.read_text() == "report.html"
    assert "<svg>a curve</svg>" in figure.read_text()
    assert not [*(written[1] / "first").rglob("media/html/*")]


def test_an_error_that_ends_a_run_sends_an_alert(written):
    def alerts(run):
        lines = map(json.loads, inspect(written[1], run).splitlines())
        return [line["alert"] for line in lines if line["type"] == "alert"]

    (alert,) = alerts("failing")
    assert (alert["title"], alert["level"]) == ("Run failed", "ERROR")
    assert alert["text"] == "PBM-1: DivergedError: the loss is nan"
    assert alerts("first") == alerts("whole") == []


def test_group_and_job_type(records):
    (run,) = (record["run"] for record in records if record["type"] == "run")
    assert (run["run_group"], run["job_type"]) == ("a group", "train")


def test_every_epoch_is_logged_whole(history):
    speed = {"speed/seconds_per_epoch": 1.5, "speed/sessions_per_second": 10 / 1.5}
    assert [row for row in history if "epoch" in row] == [
        {"epoch": 1, "train/loss": 0.5, "val/ll": -0.5, **speed}
        | {"sessions": 10, "sessions/train/loss": 0.5, "sessions/val/ll": -0.5},
        {"epoch": 2, "train/loss": 0.25, "val/ll": -0.25, **speed}
        | {"sessions": 20, "sessions/train/loss": 0.25, "sessions/val/ll": -0.25},
    ]


def test_one_row_a_rank_without_unknown_values(history):
    assert [row for row in history if "rank" in row] == [
        {"rank": 1, "rank/val/ll": -0.6, "rank/val/sessions": 8},
        {"rank": 2, "rank/val/ll": -0.3, "rank/val/sessions": 4},
        {"rank": 1, "rank/test/ll": -0.5, "rank/test/ppl": 1.5, "rank/test/sessions": 30},
        {"rank": 2, "rank/test/ll": -0.25, "rank/test/sessions": 20},
        {"rank": 3, "rank/test/ll": -0.125, "rank/test/ppl": 1.25, "rank/test/sessions": 10},
        {
            "rank": 1,
            "rank/test/examination/device_phone": 1.0,
            "rank/test/examination/device_tv": 0.75,
        },
        {"rank": 2, "rank/test/examination/device_phone": 0.5},
    ]


def test_one_row_a_cutoff(history):
    assert [row for row in history if "cutoff" in row] == [
        {"cutoff": 1, "cutoff/test/ndcg": 0.5},
        {"cutoff": 10, "cutoff/test/ndcg": 0.75, "cutoff/test/mrr": 0.6},
    ]


def test_calibration_is_over_what_was_predicted_at_any_rank(history):
    """Four documents in the first bin, two in the last."""
    points = [(row["predicted"], row["calibration/ece"]) for row in history if "predicted" in row]
    expected = [((0.1 + 3 * 0.2) / 4, 0.5 / 4), (0.8, 1.0)]
    assert points == [pytest.approx(point) for point in expected]


def test_table_of_values_per_rank(written):
    (file,) = (written[1] / "whole").rglob("per_rank*.table.json")
    table = json.loads(file.read_text())
    assert table["columns"] == ["split", "rank", "ll", "sessions", "ppl"]
    assert table["data"] == [
        ["val", 1, -0.6, 8, None],
        ["val", 2, -0.3, 4, None],
        ["test", 1, -0.5, 30, 1.5],
        ["test", 2, -0.25, 20, None],
        ["test", 3, -0.125, 10, 1.25],
    ]


def test_axes(records):
    """Every key that is logged has an axis, and axes are no charts of their own."""
    metrics = [record["metric"] for record in records if record["type"] == "metric"]
    axes = {
        metric.get("glob_name", metric.get("name")): metric.get("step_metric") for metric in metrics
    }
    assert axes == {
        "epoch": None,
        "train/*": "epoch",
        "val/*": "epoch",
        "speed/*": "epoch",
        "sessions": None,
        "sessions/*": "sessions",
        "rank": None,
        "rank/*": "rank",
        "cutoff": None,
        "cutoff/*": "cutoff",
        "predicted": None,
        "calibration/*": "predicted",
    }
    assert {metric["name"] for metric in metrics if metric["options"].get("hidden")} == {
        name for name, axis in axes.items() if axis is None
    }


def test_run_without_a_key_is_offline_and_says_how_to_sync(written):
    printed, folder = written
    (line,) = (line for line in printed.splitlines() if "wandb sync whole/" in line)
    reason, path = line.split("; to sync later: wandb sync ")
    assert reason == "Weights & Biases is offline (no API key is configured)"
    assert list((folder / path).glob("*.wandb")) and Path(path).parent == Path("whole/wandb")


def test_failure_within_the_run_costs_only_what_follows(written):
    printed, folder = written
    (warning,) = (line for line in printed.splitlines() if line.startswith("WARNING"))
    assert warning.startswith(
        "WARNING: WandbLogger failed in epoch and is left out from here (TypeError:"
    )
    assert "still go to: the console, broken/metrics.jsonl, broken/result.json." in warning
    assert len((folder / "broken" / "metrics.jsonl").read_text().splitlines()) == 2
    assert printed.count("epochs 2 (best 2), 20 sessions") == 2
    run = json.loads(inspect(folder, "broken", "--summary"))
    assert (run["state"], run["exit_code"], run["summary"]["epoch"]) == ("failed", 1, 1)


def test_a_run_that_continues_keeps_its_id_and_its_epochs(written):
    """Only on the same data, and until it has finished."""

    def ids_and_epochs(name):
        (folder,) = (written[1] / name / "wandb").glob("offline-run-*")
        rows = [json.loads(line) for line in inspect(written[1], name).splitlines()]
        items = [row["history"]["item"] for row in rows if row["type"] == "history"]
        return folder.name.split("-")[-1], [(row["epoch"], row["sessions"]) for row in items]

    first, before = ids_and_epochs("first")
    second, after = ids_and_epochs("second")
    other, epochs = ids_and_epochs("other")
    assert first == second != other
    assert (before, after, epochs) == ([(1, 10), (2, 20)], [(3, 30)], [(1, 10), (2, 20)])
    noted = {name: (written[1] / name / "dashboard.json").exists() for name in ("first", "second")}
    assert noted == {"first": True, "second": False}


class Service:
    """Stands in for W&B: what it is set to, whether a key is configured, and whether the server answers."""

    def __init__(self, monkeypatch, mode="online", key=True, error=None):
        self.error, self.opened = error, []
        settings = SimpleNamespace(mode=mode)
        monkeypatch.setattr(module.wandb, "setup", lambda: SimpleNamespace(settings=settings))
        monkeypatch.setattr(module.wandb, "login", lambda **options: self.login(key, **options))
        monkeypatch.setattr(module.wandb, "init", self.init)

    def login(self, key, prompt, verify):
        assert not prompt and not verify
        return key

    def init(self, mode, **options):
        self.opened.append(mode)
        if self.error and mode == "online":
            raise self.error
        return SimpleNamespace(
            define_metric=lambda *args, **kwargs: None,
            offline=mode == "offline",
            id="abc",
            disabled=mode == "disabled",
            dir="/run/files",
            url="https://wandb.example/run" if mode == "online" else None,
        )


def start(folder, **options):
    return WandbLogger(**options).start(
        RunInfo(folder=folder, config={}, name="a run", project="tests")
    )


def test_auto_is_online_with_a_key(monkeypatch, tmp_path):
    service = Service(monkeypatch)
    assert start(tmp_path) == "Weights & Biases: https://wandb.example/run"
    assert service.opened == ["online"]


def test_auto_stays_offline_if_the_server_does_not_answer(monkeypatch, tmp_path):
    service = Service(monkeypatch, error=module.wandb.errors.CommError("timed\nout"))
    assert (
        start(tmp_path) == "Weights & Biases is offline (timed out); to sync later: wandb sync /run"
    )
    assert service.opened == ["online", "offline"]


OFFLINE = "Weights & Biases is offline; to sync later: wandb sync /run"


@pytest.mark.parametrize(("mode", "line"), [("offline", OFFLINE), ("disabled", None)])
def test_auto_is_what_wandb_is_set_to(monkeypatch, tmp_path, mode, line):
    service = Service(monkeypatch, mode=mode)
    assert start(tmp_path) == line
    assert service.opened == [mode]


def test_online_by_choice_fails_rather_than_stay_offline(monkeypatch, tmp_path):
    Service(monkeypatch, error=module.wandb.errors.CommError("timed out"))
    with pytest.raises(module.wandb.Error, match="timed out"):
        start(tmp_path, mode="online")


def test_finish_may_come_without_a_start():
    assert WandbLogger().finish(False) is None


def test_unknown_mode_is_an_error_that_lists_the_choices():
    with pytest.raises(ValueError, match="mode='dry': choose auto, online, offline or disabled"):
        WandbLogger(mode="dry")


def test_a_disabled_run_ends_without_artifacts(tmp_path):
    logger = WandbLogger(mode="disabled")
    logger.start(RunInfo(tmp_path, {}, "a run", "tests", fingerprint="of the log"))
    logger.finish(True)
    assert not [*tmp_path.rglob("*")]
