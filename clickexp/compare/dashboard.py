"""A workspace and a report on Weights & Biases that compare runs, and the upload of offline runs."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from clickexp.errors import UserError, install
from clickexp.report import names
from clickexp.runs.load import find_runs
from clickexp.runs.run import Run

try:
    import wandb
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr
    from wandb_workspaces.reports.v2.interface import Layout, Report, Runset
except ImportError as error:
    raise UserError(f"{error.name} is missing: {install('dashboard')}") from error

_EXPERIMENT = "experiment"
_MODEL = "model.value.name"
"""Keys of a run's configuration: the same for all seeds, and the model's name, as W&B nests it."""
_OFFLINE = "offline-run-"
_MOST_LINES = 50
_TESTED = ("ppl", "cond_ppl", "ll", "ndcg@10", "mrr@10", "auc", "ece")
_RANKED = ("ppl", "cond_ppl", "ll", "examination", "click_rate_error", "auc")
_VALIDATED = ("ppl", "cond_ppl", "ll")
_CUT = ("ndcg", "dcg", "mrr")
_COST = {
    "train/sessions_per_second": "Training sessions per second",
    "train/training_seconds": "Training time without compilation (s)",
    "train/compile_seconds": "Compilation (s)",
    "train/peak_host_mib": "Peak memory of the host (MiB)",
    "train/peak_device_mib": "Peak memory of the accelerator (MiB)",
}
_AXES = {
    "rank": "rank",
    "cutoff": "cutoff",
    "epoch": "epoch",
    "sessions": "training sessions seen",
    "predicted": "predicted P(click)",
}

_Panels = dict[str, list[Any]]
"""Panels by section."""


def dashboard(
    folders: Sequence[str | Path] = (),
    *,
    project: str,
    entity: str | None = None,
    group: str | None = None,
    baseline: str | None = None,
    title: str | None = None,
    sync: bool = False,
    dry_run: bool = False,
) -> None:
    """Uploads the offline runs below the folders, if asked to, and creates a workspace and a report.

    Args:
        folders: Folders of runs, whose metrics decide on the panels; without any they are those of the default metrics.
        project: Project on Weights & Biases.
        entity: User or team; by default yours.
        group: Shows the runs of this group only, such as a sweep's.
        baseline: Name of the model that the others are shown against.
        title: Title of workspace and report.
        sync: Whether to upload.
        dry_run: Writes the specification as JSON to standard output, and the upload as a command to standard error,
            without an account and without a network.

    Raises:
        UserError: Where there is no run to upload or of the baseline, and for errors of Weights & Biases.
    """
    offline, runs = offline_runs(folders), find_runs(folders)[0] if folders else []
    owner = ["--entity", entity] if entity else []
    command = [sys.executable, "-m", "wandb", "sync", "--project", project, *owner, *map(str, offline)]
    if sync and not offline:
        places = ", ".join(map(str, folders)) or "no folder"
        raise UserError(f"no offline runs below {places}: name folders of runs with logger=wandb")
    views = specification(
        project,
        entity or "",
        title or f"{group or project}: click models compared",
        group=group,
        baseline=baseline,
        reference=_wandb_id(baseline, runs) if baseline and runs else None,
        logged=_logged_keys(runs) if runs else None,
    )
    if dry_run:
        if sync:
            print(f"would upload {len(offline)} runs: {' '.join(command)}", file=sys.stderr)  # noqa: T201  output
        models = {name: view._to_model() for name, view in views.items()}
        options: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_none": True}
        plain = {name: model.model_dump(**options) for name, model in models.items()}
        print(json.dumps(plain, indent=2))  # noqa: T201  output
        return
    # the command is ours, its arguments are passed as they are
    if sync and (code := subprocess.run(command, stdin=subprocess.DEVNULL).returncode):  # noqa: S603
        raise UserError(f"wandb sync ended with code {code}; its output is above")
    try:
        for view in views.values():
            view.entity = view.entity or wandb.Api().default_entity or ""
            print(view.save().url)  # noqa: T201  output
    except (wandb.Error, ValueError, OSError) as error:
        raise UserError(f"Weights & Biases: {error}") from error


def offline_runs(folders: Iterable[str | Path]) -> list[Path]:
    """Folders of offline runs below these folders, the oldest first."""
    files = (file for root in folders for file in Path(root).rglob(f"{_OFFLINE}*/*.wandb"))
    return sorted({file.parent.resolve() for file in files}, key=lambda run: run.name)


def _wandb_id(model: str, runs: Iterable[Run]) -> str | None:
    """Id on the dashboard of the first run of this model; UserError where there is no such run."""
    runs = [run for run in runs if run.model == model]
    if not runs:
        raise UserError(f"baseline {model}: there is no run of this model")
    files = (file for run in runs for file in sorted(run.folder.glob("wandb/*run-*/*.wandb")))
    return next((file.stem.removeprefix("run-") for file in files), None)


def _logged_keys(runs: Iterable[Run]) -> set[str]:
    """The keys under which WandbLogger logs these runs."""
    found = set()
    for run in runs:
        result = run.result
        of_epochs = {name for record in run.epochs for name in record if "/" in name}
        of_epochs |= {f"val/{name}" for name in result.get("val", {})}
        found |= of_epochs | {f"sessions/{name}" for name in of_epochs}
        found |= {f"{part}/{name}" for part in ("test", "train") for name in result.get(part, {})}
        found |= {f"cutoff/test/{name.partition('@')[0]}" for name in result["test"] if "@" in name}
        found |= {f"rank/test/{name}" for name in result.get("per_rank", {})}
        found |= {f"rank/val/{name}" for name in result.get("per_rank_val", {})}
        found |= {f"calibration/{name}" for name in result.get("curves", {})}
    return found


def specification(
    project: str,
    entity: str,
    title: str,
    group: str | None = None,
    baseline: str | None = None,
    reference: str | None = None,
    logged: set[str] | None = None,
) -> dict[str, Any]:
    """The workspace and the report, not saved yet.

    Args:
        project: Project on Weights & Biases.
        entity: User or team.
        title: Title of both.
        group: Shows the runs of this group only.
        baseline: Name of the model that the others are shown against.
        reference: Id of the run that the workspace marks as the baseline.
        logged: Keys that runs have; None for any.
    """
    shown = ["run:displayName", f"config:{_EXPERIMENT}.value", f"config:{_MODEL}", "config:seed.value"]
    shown += [f"summary:{key}" for key in _known((f"test/{name}" for name in _TESTED), logged)]
    filters = [expr.Metric("Group").isin([group])] if group else []
    workspace = ws.Workspace(
        entity=entity,
        project=project,
        name=title,
        sections=[ws.Section(name, panels=panels, is_open=True) for name, panels in _panels(logged).items()],
        settings=ws.WorkspaceSettings(max_runs=_MOST_LINES),
        runset_settings=ws.RunsetSettings(
            filters=_all(filters),
            groupby=[expr.Config(_EXPERIMENT)],
            pinned_columns=shown,
            baseline_run=reference,
        ),
    )
    text = (
        "Curves and bars are means over the runs of an experiment, which differ in their seed only, with their "
        "standard deviation; open the group of an experiment in the table to see its runs."
    )
    blocks = [wr.P(text), wr.TableOfContents()]
    for name, panels in _panels(logged).items():
        runsets = _runsets(filters, baseline, shown)
        blocks += [wr.H1(name), wr.PanelGrid(runsets=runsets, panels=panels, hide_run_sets=name != "Test")]
    settings = wr.PanelGrid(
        runsets=_runsets(filters, baseline, shown, grouped=False),
        panels=[wr.RunComparer(diff_only="split", layout=Layout(w=24, h=12))],
    )
    blocks += [wr.H1("Runs and how they differ"), settings]
    report = Report(project=project, entity=entity, title=title, blocks=blocks, width="fluid")
    return {"workspace": workspace, "report": report}


def _runsets(filters: list, baseline: str | None, shown: list[str], grouped: bool = True) -> list:
    """One set of all runs, or two, of the baseline and the others, which panels then show together."""
    model = expr.Config(_MODEL)
    parts = {"Runs": []}
    if baseline is not None:
        parts = {f"Baseline: {baseline}": [model.isin([baseline])], "Others": [model.notin([baseline])]}
    return [
        Runset(
            name=name,
            filters=_all([*filters, *own]),
            groupby=[f"config.{_EXPERIMENT}"] if grouped else [],
            pinned_columns=shown,
        )
        for name, own in parts.items()
    ]


def _all(filters: Sequence[Any]) -> Any:
    return expr.And(*filters) if filters else ""


def _panels(logged: set[str] | None) -> _Panels:
    """New panels of each section, without those that would show nothing."""

    def each(panel: Callable[..., Any], keys: Iterable[str], *axis: str) -> list:
        return [panel(key, *axis) for key in _known(keys, logged)]

    losses = ["train/loss", *(f"val/{name}" for name in _VALIDATED)]
    sections = {
        "Test": each(_bars, (f"test/{name}" for name in _TESTED)),
        "Test, by rank": each(_curve, (f"rank/test/{name}" for name in _RANKED), "rank"),
        "Validation, by rank": each(_curve, (f"rank/val/{name}" for name in _VALIDATED), "rank"),
        "Ranking, by cutoff": each(_curve, (f"cutoff/test/{name}" for name in _CUT), "cutoff"),
        "Calibration": each(_curve, ["calibration/ece"], "predicted"),
        "Training, over epochs": each(_curve, losses, "epoch"),
        "Training, over sessions": each(_curve, (f"sessions/{key}" for key in losses), "sessions"),
        "Speed and memory": each(_bars, _COST) + _scatter(logged),
    }
    return {name: panels for name, panels in sections.items() if panels}


def _known(keys: Iterable[str], logged: set[str] | None) -> list[str]:
    return [key for key in keys if logged is None or key in logged]


def _curve(key: str, axis: str) -> Any:
    """Mean and standard deviation over the runs of an experiment."""
    metric = _metric(key)
    title, y = f"{names.name(metric)} by {axis}", names.axis(metric)
    if axis == "predicted":
        title, y = "Calibration", "click rate"
    return wr.LinePlot(
        title=title,
        title_x=_AXES[axis],
        title_y=y,
        x=axis,
        y=[key],
        max_runs_to_show=_MOST_LINES,
        **_over_seeds(),
    )


def _bars(key: str) -> Any:
    return wr.BarPlot(
        title=_COST.get(key) or names.name(_metric(key)),
        metrics=[wr.SummaryMetric(key)],
        max_runs_to_show=_MOST_LINES,
        max_bars_to_show=_MOST_LINES,
        **_over_seeds(),
    )


def _scatter(logged: set[str] | None) -> list:
    """Quality over cost of the fits, one point per run."""
    x = {"train/training_seconds": "training time without compilation (s)", "parameters": "fitted parameters"}
    return [
        wr.ScatterPlot(
            title=f"{names.axis('ll')} by {cost}", x=wr.SummaryMetric(key), y=wr.SummaryMetric(y), log_x=True
        )
        for y in _known(["test/ll"], logged)
        for key, cost in x.items()
    ]


def _over_seeds() -> dict[str, Any]:
    return {"groupby": wr.Config(_EXPERIMENT), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}


def _metric(key: str) -> str:
    """The metric of a key: val/ll for sessions/val/ll, ndcg for cutoff/test/ndcg."""
    *_, part, metric = key.split("/")
    return metric if part == "test" else f"{part}/{metric}"
