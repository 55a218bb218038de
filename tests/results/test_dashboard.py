"""The dashboard made in code: what it shows is what real runs log, and what it uploads is what they kept."""

import base64
import json
import os
import socket
import subprocess
import sys
import warnings

import pytest
from places import ROOT
from small_runs import write_run
from wandb_server import ENTITY, WandbServer

with warnings.catch_warnings():
    # of what wandb-workspaces takes from pydantic
    warnings.simplefilter("ignore", DeprecationWarning)
    pytest.importorskip("wandb_workspaces.workspaces", reason="pip install 'clickexp[dashboard]'")

from clickexp.cli.compare import main
from clickexp.results import find_runs
from clickexp.results.dashboard.workspace import offline_runs, outline, specification

SWEEP = "trainer=counting max_sessions=200 dataset.sessions=600 dataset.queries=20 model=rctr seed=1,2".split()
SWEEP += [
    "metric=[click,calibration,ranking]",
    "metric.cutoffs=[1,10]",
    "progress=off",
    "hydra.sweep.dir=a sweep",
]


def environment(home, **more):
    """That of a user who never logged in."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WANDB_", "NETRC"))
    }
    return kept | {"HOME": str(home), "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **more}


def command(folder, name, *arguments, **more):
    code = f"from {name} import main; main()" if name == "clickexp.cli.compare" else None
    start = ["-c", code] if code else ["-m", name]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=folder,
        env=environment(folder, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The folder of two runs that differ in their seed."""
    home = tmp_path_factory.mktemp("dashboard")
    done = command(home, "clickexp", "-m", *SWEEP)
    assert done.returncode == 0, done.stderr
    return home / "a sweep"


@pytest.fixture(scope="module")
def records(sweep):
    """Of each run, as W&B's own tool reads it: summary view and records."""
    found = []
    for run in offline_runs(sorted(sweep.glob("[0-9]*"))):  # the best model has a run of its own
        summary, rows = (
            command(sweep.parent, "wandb", "leet", "inspect", *options, "--json", str(run)).stdout
            for options in (["--summary"], [])
        )
        found.append((json.loads(summary), [json.loads(line) for line in rows.splitlines()]))
    assert len(found) == 2
    return found


def history(rows):
    return [row["history"]["item"] for row in rows if row["type"] == "history"]


def panels(view):
    """All panels of a workspace or a report, by section."""
    if view["spec"].get("section"):
        sections = view["spec"]["section"]["panelBankConfig"]["sections"]
        return {section["name"]: section["panels"] for section in sections}
    blocks = view["spec"]["blocks"]
    grids = [block for block in blocks if block["type"] == "panel-grid"]
    titles = [block["children"][0]["text"] for block in blocks if block["type"] == "heading"]
    shown = [grid["metadata"]["panelBankSectionConfig"]["panels"] for grid in grids]
    return dict(zip(titles, shown, strict=True))


@pytest.fixture(scope="module")
def specified(sweep):
    """What --dry-run writes for the sweep, by a process that has neither an account nor a network."""
    code = (
        "import socket; socket.socket.connect = None; from clickexp.cli.compare import main; main()"
    )
    arguments = [str(sweep), "--project", "clicks", "--baseline", "RCTR", "--sync", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-c", code, "wandb", *arguments],
        env=environment(sweep.parent),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("view", ["workspace", "report"])
def test_every_panel_shows_what_the_runs_log(specified, records, view):
    summary, rows = records[0]
    logged = {name for row in history(rows) for name in row}
    metrics = [row["metric"] for row in rows if row["type"] == "metric"]
    axes = {
        metric["glob_name"][:-1]: metric["step_metric"]
        for metric in metrics
        if "glob_name" in metric
    }
    kinds = []
    for panel in (panel for section in panels(specified[0][view]).values() for panel in section):
        config, kind = panel["config"], panel["viewType"]
        kinds.append(kind)
        if kind == "Run History Line Plot":
            (key,) = config["metrics"]
            assert key in logged and config["xAxis"] in logged
            assert config["xAxis"] == axes[key.partition("/")[0] + "/"]
        if kind == "Bar Chart":
            (key,) = config["metrics"]
            assert key.removeprefix("summary_metrics.") in summary["summary"]
        if kind == "Scatter Plot":
            for axis in ("xAxis", "yAxis"):
                assert config[axis].removeprefix("summary:") in summary["summary"]
        if kind in ("Run History Line Plot", "Bar Chart"):
            assert (config["groupBy"], config["groupAgg"], config["groupArea"]) == (
                "experiment.value",
                "mean",
                "minmax",
            )
    assert kinds.count("Run History Line Plot") >= 10 and kinds.count("Bar Chart") >= 5
    assert kinds.count("Run Comparer") == (view == "report")


@pytest.mark.nightly
def test_sections_follow_from_what_was_logged(specified):
    """A fit by counting has no loss of its own; these runs have everything else."""
    sections = panels(specified[0]["workspace"])
    assert list(sections) == [
        "Test",
        "Test, by rank",
        "Validation, by rank",
        "Ranking, by cutoff",
        "Calibration",
        "Training, over epochs",
        "Training, over sessions",
        "Speed and memory",
    ]
    curves = [
        (panel["config"]["xAxis"], *panel["config"]["metrics"])
        for panel in sections["Training, over sessions"]
    ]
    assert curves == [("sessions", f"sessions/val/{name}") for name in ("ppl", "cond_ppl", "ll")]
    ranked = [panel["config"]["metrics"] for panel in sections["Validation, by rank"]]
    assert ranked == [["rank/val/ppl"], ["rank/val/cond_ppl"], ["rank/val/ll"]]
    titles = [panel["config"]["yAxisTitle"] for panel in sections["Validation, by rank"]]
    assert titles[-1] == "Validation log-likelihood (nats per document)"


@pytest.mark.nightly
def test_runs_are_grouped_by_what_all_their_seeds_have_in_common(specified, records):
    configs = [summary["config"] for summary, _ in records]
    assert configs[0]["experiment"] == configs[1]["experiment"]
    assert configs[0]["experiment"].startswith(
        "RCTR, simulated, trainer=counting, max_sessions=200"
    )
    assert sorted(config["seed"] for config in configs) == [1, 2]
    (runset,) = specified[0]["workspace"]["spec"]["section"]["runSets"]
    assert runset["grouping"] == [{"section": "config", "name": "experiment.value"}]
    for column in runset["runFeed"]["columnOrder"]:
        section, _, name = column.partition(":")
        if section == "config":
            value = configs[0]
            for part in (part for part in name.split(".") if part != "value"):
                value = value[part]
        assert section != "summary" or name in records[0][0]["summary"]


@pytest.mark.nightly
def test_a_configuration_holds_names_and_each_tower_once(records):
    config = records[0][0]["config"]
    assert config["model"]["name"] == "RCTR" and config["model"]["class"] == "RankCTRModel"
    assert config["dataset"]["name"] == "simulated" and "attraction" not in config
    assert config["overrides"]["seed"] in (1, 2) and config["overrides"]["dataset.sessions"] == 600
    run = next(row["run"] for row in records[0][1] if row["type"] == "run")
    assert (run["run_group"], run["job_type"]) == ("a sweep", "sweep")


@pytest.mark.nightly
def test_baseline_and_others(specified, records):
    spec = specified[0]["report"]["spec"]
    for grid in (block for block in spec["blocks"] if block["type"] == "panel-grid"):
        baseline, others = grid["metadata"]["runSets"]
        assert (baseline["name"], others["name"]) == ("Baseline: RCTR", "Others")
        for runset, operator in ((baseline, "IN"), (others, "NIN")):
            (filter,) = runset["filters"]["filters"]
            assert filter["key"] == {"section": "config", "name": "model.value.name"}
            assert (filter["op"], filter["value"]) == (operator, ["RCTR"])
    (runset,) = specified[0]["workspace"]["spec"]["section"]["runSets"]
    assert records[0][0]["run_id"] in base64.b64decode(runset["baselineRunId"]).decode()


@pytest.mark.nightly
def test_what_would_be_uploaded_is_reported(specified, sweep):
    assert specified[1].startswith("would upload 3 runs: ")  # of two jobs, and of the best model
    assert "\n  Test: Perplexity, Conditional perplexity, " in specified[1]
    assert all(str(run) in specified[1] for run in sweep.glob("*/wandb/offline-run-*"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Runs of two models with two seeds each, and where W&B would have kept them."""
    folder = tmp_path_factory.mktemp("kept")
    for number, model in enumerate(("UBM", "PBM")):
        for seed in (1, 2):
            test = {
                "ll": -0.3 - 0.01 * number,
                "ppl": 1.4,
                "ndcg@1": 0.5,
                "ndcg@10": 0.75,
                "cold_ll@new": -0.4,
            }
            more = {
                "per_rank_val": {"ll": [-0.5, -0.4]},
                "train": {"seconds": 2.0, "training_seconds": 1.5},
            }
            run = write_run(folder / f"{number}{seed}", model, seed, test, **more)
            offline = run / f"wandb/offline-run-2026010{seed}_00000{number}-id{number}{seed}"
            offline.mkdir(parents=True)
            (offline / f"run-id{number}{seed}.wandb").touch()
    return folder


@pytest.fixture
def dry(kept, capsys, monkeypatch):
    """What --dry-run writes with these options, without a network."""

    def dry(*options):
        monkeypatch.setattr(socket, "socket", None)
        main(["wandb", str(kept), "--project", "clicks", "--dry-run", *options])
        written = capsys.readouterr()
        return json.loads(written.out), written.err

    return dry


KEPT = {
    "Test": ["test/ppl", "test/ll", "test/ndcg@10"],
    "Test, by rank": ["rank/test/ll", "rank/test/examination"],
    "Validation, by rank": ["rank/val/ll"],
    "Ranking, by cutoff": ["cutoff/test/ndcg"],
    "Calibration": ["calibration/ece"],
    "Training, over epochs": ["train/loss", "val/ll"],
    "Training, over sessions": ["sessions/train/loss", "sessions/val/ll"],
}


def test_panels_show_what_the_results_have(dry):
    specified, described = dry()
    shown = panels(specified["workspace"])
    assert list(shown) == [
        "Test",
        "Difference to the baseline",
        *list(KEPT)[1:],
        "Speed and memory",
    ]
    for name, keys in KEPT.items():
        metrics = [panel["config"]["metrics"] for panel in shown[name]]
        assert metrics == [[key if name != "Test" else f"summary_metrics.{key}"] for key in keys], (
            name
        )
        assert f"\n  {name}: " in described
    axes = {
        "Test, by rank": "rank",
        "Training, over sessions": "sessions",
        "Calibration": "predicted",
    }
    for name, axis in axes.items():
        assert {panel["config"]["xAxis"] for panel in shown[name]} == {axis}
    titles = [panel["config"]["yAxisTitle"] for panel in shown["Validation, by rank"]]
    assert titles == ["Validation log-likelihood (nats per document)"]
    bars, *scatters = shown["Speed and memory"]
    assert bars["config"]["metrics"] == ["summary_metrics.train/training_seconds"]
    assert [scatter["config"]["yAxis"] for scatter in scatters] == ["summary:test/ll"] * 2
    (runset,) = specified["workspace"]["spec"]["section"]["runSets"]
    assert runset["grouping"] == [{"section": "config", "name": "experiment.value"}]
    shown = {"summary:test/ppl", "summary:test/ll", "summary:test/ndcg@10", "config:seed.value"}
    assert shown <= set(runset["runFeed"]["columnOrder"])


def test_the_baseline_is_apart_from_the_others_and_the_upload_is_told(dry, kept):
    specified, described = dry("--baseline", "PBM", "--sync")
    spec = specified["report"]["spec"]
    for grid in (block for block in spec["blocks"] if block["type"] == "panel-grid"):
        found = {
            runset["name"]: runset["filters"]["filters"] for runset in grid["metadata"]["runSets"]
        }
        assert list(found) == ["Baseline: PBM", "Others"]
        assert [(filters[0]["op"], filters[0]["value"]) for filters in found.values()] == [
            ("IN", ["PBM"]), ("NIN", ["PBM"]),
        ]  # fmt: skip
    (runset,) = specified["workspace"]["spec"]["section"]["runSets"]
    assert "id11" in base64.b64decode(runset["baselineRunId"]).decode()
    assert described.startswith("would upload 4 runs: ") and "sync --project clicks" in described
    runs = [run.name for run in offline_runs([kept])]
    assert runs == sorted(runs) and all(name in described for name in runs)


def test_without_folders_panels_are_those_of_the_default_metrics(monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    views = specification("clicks", "somebody", "a title", group="a sweep")
    sections = panels(views["report"]._to_model().model_dump(by_alias=True))
    assert len(sections) == 10 and [len(section) for section in sections.values()] == [
        7,
        2,
        6,
        3,
        3,
        1,
        4,
        4,
        7,
        1,
    ]
    for runset in (
        views["workspace"]._to_model().model_dump(by_alias=True)["spec"]["section"]["runSets"]
    ):
        (filter,) = runset["filters"]["filters"]
        assert (filter["key"]["name"], filter["op"], filter["value"]) == (
            "group",
            "IN",
            ["a sweep"],
        )


def test_hyperparameters_and_differences_are_those_of_the_runs(tmp_path):
    """UBM and PBM at two rates, two seeds each; UBM at 0.001 was also evaluated over posterior draws."""
    for i, (model, rate) in enumerate((m, r) for m in ("UBM", "PBM") for r in (0.001, 1.0)):
        for seed in (1, 2):
            drawn = {"ll": {"mean": -0.5, "low": -0.6, "high": -0.4}} if i == 0 else {}
            test = {"ll": -0.3 - 0.01 * i - 0.02 * seed, "ppl": 1.417 + 0.001 * i}
            write_run(
                tmp_path / f"{i}{seed}",
                model,
                seed,
                test,
                settings=[("rate", rate)],
                test_draws=drawn,
            )
    runs, logged = find_runs([tmp_path])[0], {"test/ll", "test/ppl", "draws/ll"}
    views = specification("clicks", "somebody", "a title", baseline="PBM", logged=logged, runs=runs)
    shown = panels(views["workspace"]._to_model().model_dump(by_alias=True))
    assert list(shown) == [
        "Test", "Difference to the baseline", "Hyperparameters", "Test, over posterior draws", "Speed and memory",
    ]  # fmt: skip
    (text,) = (panel["config"]["value"] for panel in shown["Difference to the baseline"])
    assert text.startswith(
        "**UBM, rate=0.001 is best in LL (+0.0200 on PBM, rate=0.001, p < 0.001)"
    )
    assert "\n| UBM, rate=1.0 | " in text and "\n| PBM, rate=0.001 | " not in text
    coordinates, importance = (panel["config"] for panel in shown["Hyperparameters"])
    columns = [(column["accessor"], column["log"]) for column in coordinates["columns"]]
    assert columns == [
        ("config:model.value.name", None), ("config:optimizer.value.rate", True), ("summary:test/ll", None),
    ]  # fmt: skip
    assert importance["targetKey"] == "test/ll"
    assert outline(views["workspace"]).splitlines()[3] == (
        "  Hyperparameters: Log-likelihood by hyperparameters, ParameterImportancePlot"
    )
    same = [run for run in runs if run.overrides["optimizer.rate"] == 1]
    views = specification("clicks", "somebody", "a title", logged=logged, runs=same)
    assert "Hyperparameters" not in panels(views["workspace"]._to_model().model_dump(by_alias=True))


def _is_file(name):
    """Whether W&B keeps a table, a figure or a page under the name, which it calls otherwise once it is uploaded."""
    return any(word in name for word in ("table", "figures/", "report"))


@pytest.mark.nightly
def test_runs_are_uploaded_whole_and_once_and_views_are_saved(sweep, records, specified):
    arguments = ["wandb", str(sweep), "--project", "clicks", "--baseline", "RCTR", "--sync"]
    with WandbServer() as server:
        done = command(sweep.parent, "clickexp.cli.compare", *arguments, **server.environment())
        assert done.returncode == 0, done.stderr
        again = command(sweep.parent, "clickexp.cli.compare", *arguments, **server.environment())
    of_jobs = {summary["run_id"] for summary, _ in records}
    assert of_jobs < set(server.runs) and len(server.runs) == len(of_jobs) + 1  # the best model's
    for summary, rows in records:
        run = server.runs[summary["run_id"]]
        assert (run["project"], run["groupName"], run["ended"]) == ("clicks", "a sweep", 0)
        assert run["config"] == summary["config"]
        names = {
            name for row in history(rows) for name in row if name[0] != "_" and not _is_file(name)
        }
        for kept, sent in zip(history(rows), run["history"], strict=True):
            assert {name: kept[name] for name in names & set(kept)} == {
                name: sent[name] for name in names & set(sent)
            }
        assert run["summary"]["test/ppl"] == summary["summary"]["test/ppl"]
    assert any("per_rank" in name for name in server.files)
    assert f"{server.url}/{ENTITY}/clicks?nw=" in done.stdout and "/reports/" in done.stdout
    for view, kind in (("workspace", "project-view"), ("report", "runs")):
        saved, expected = panels(server.views[kind]), panels(specified[0][view])
        assert server.views[kind]["entityName"] == ENTITY
        assert {
            name: [panel["config"] for panel in section] for name, section in saved.items()
        } == {name: [panel["config"] for panel in section] for name, section in expected.items()}
    assert again.returncode == 0 and "Skipped 3 synced run(s)" in again.stderr


WRONG = {
    ("--baseline", "CM"): ("baseline CM", "no run of this model"),
    ("--project", "other"): ("Weights & Biases", "API key"),
    ("nowhere",): ("nowhere", "no such folder"),
}


@pytest.mark.parametrize("wrong", WRONG, ids=" ".join)
def test_a_mistake_is_reported_in_one_line(wrong, kept, monkeypatch, capsys):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(kept))
    with pytest.raises(SystemExit):
        main(["wandb", "--project", "clicks", str(kept), *wrong])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clickexp-compare: ") and all(part in line for part in WRONG[wrong])


def test_without_offline_runs_there_is_nothing_to_upload(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["wandb", "--project", "clicks", "--sync", "--dry-run"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("clickexp-compare: no offline runs") and "logger=wandb" in line
