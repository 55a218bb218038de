"""A workspace and a report on Weights & Biases that compare runs, and the upload of offline runs."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clickexp.errors import UserError, install
from clickexp.results.dashboard.panels import EXPERIMENT, MOST_LINES, TESTED, present, sections
from clickexp.results.loading import find_runs
from clickexp.runs.run import Run

try:
    import wandb
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr
    from wandb_workspaces.reports.v2.interface import Layout, Report, Runset
except ImportError as error:
    raise UserError(f"{error.name} is missing: {install('dashboard')}") from error

_MODEL = "model.value.name"
"""Key of a run's configuration with the model's name, as W&B nests it."""
_OFFLINE = "offline-run-"


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
        dry_run: Writes the specification as JSON to standard output, and to standard error an outline of it and the
            upload as a command, without an account and without a network.

    Raises:
        UserError: Where there is no run to upload or of the baseline, and for errors of Weights & Biases.
    """
    runs = find_runs(folders)[0] if folders else []
    offline = _offline(folders) if sync else []
    views = specification(
        project,
        entity or "",
        title or f"{group or project}: click models compared",
        group=group,
        baseline=baseline,
        reference=_wandb_id(baseline, runs),
        logged=set().union(*map(_logged_keys, runs)) if runs else None,
        runs=runs,
    )
    if offline:
        _upload(offline, project, entity, dry_run)
    if dry_run:
        _print(views)
    else:
        _save(views)


def _upload(offline: Sequence[Path], project: str, entity: str | None, dry_run: bool) -> None:
    """Uploads offline runs, or prints the command that would; a UserError where it fails."""
    owner = ["--entity", entity] if entity else []
    command = [sys.executable, "-m", "wandb", "sync", "--project", project, *owner]
    command += map(str, offline)
    if dry_run:
        print(f"would upload {len(offline)} runs: {' '.join(command)}", file=sys.stderr)  # noqa: T201  # output
        return
    # the command is ours, its arguments are passed as they are
    code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode  # noqa: S603  # fixed words
    if code:
        raise UserError(f"wandb sync ended with code {code}; its output is above")


def _offline(folders: Sequence[str | Path]) -> list[Path]:
    """Folders of offline runs below the folders; UserError without any."""
    offline = offline_runs(folders)
    if not offline:
        places = ", ".join(map(str, folders)) or "no folder"
        raise UserError(f"no offline runs below {places}: name folders of runs with logger=wandb")
    return offline


def _print(views: Mapping[str, Any]) -> None:
    """Prints the views as JSON, and on standard error the outline of the workspace."""
    options: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_none": True}
    plain = {name: view._to_model().model_dump(**options) for name, view in views.items()}
    print(json.dumps(plain, indent=2))  # noqa: T201  # output
    print(outline(views["workspace"]), file=sys.stderr)  # noqa: T201  # output


def _save(views: Mapping[str, Any]) -> None:
    """Saves the views on Weights & Biases and prints their addresses."""
    try:
        for view in views.values():
            view.entity = view.entity or wandb.Api().default_entity or ""
            print(view.save().url)  # noqa: T201  # output
    except (wandb.Error, ValueError, OSError) as error:
        raise UserError(f"Weights & Biases: {error}") from error


def outline(workspace: ws.Workspace) -> str:
    """A line per section with the titles of its panels."""
    lines = [f"{workspace.name} ({workspace.project})"]
    for section in workspace.sections:
        titles = [getattr(panel, "title", None) or type(panel).__name__ for panel in section.panels]
        lines.append(f"  {section.name}: {', '.join(titles)}")
    return "\n".join(lines)


def offline_runs(folders: Iterable[str | Path]) -> list[Path]:
    """Folders of offline runs below these folders, the oldest first."""
    files = (file for root in folders for file in Path(root).rglob(f"{_OFFLINE}*/*.wandb"))
    return sorted({file.parent.resolve() for file in files}, key=lambda run: run.name)


def _wandb_id(model: str | None, runs: Sequence[Run]) -> str | None:
    """Id on the dashboard of the first run of this model; UserError where none of the runs is of it."""
    of_model = [run for run in runs if run.model == model]
    if model and runs and not of_model:
        raise UserError(f"baseline {model}: there is no run of this model")
    files = (file for run in of_model for file in sorted(run.folder.glob("wandb/*run-*/*.wandb")))
    return next((file.stem.removeprefix("run-") for file in files), None)


def _logged_keys(run: Run) -> set[str]:
    """The keys under which WandbLogger logs a run."""
    curves = {name for name, curve in run.curves.by_name().items() if "predicted" in curve}
    names = {"train": run.train.values(), "draws": run.test_draws, "calibration": curves}
    names |= {"test": run.test, "val": run.val}
    names |= {f"rank/{part}": vectors for part, vectors in run.vectors().items()}
    keys = {f"{part}/{name}" for part, of_part in names.items() for name in of_part}
    parts = (name.partition("@") for name in run.test)
    keys |= {f"cutoff/test/{base}" for base, _, cutoff in parts if cutoff.isdecimal()}
    return keys | _keys_of_epochs(run)


def _keys_of_epochs(run: Run) -> set[str]:
    """The keys that have a value per epoch, over epochs and over sessions."""
    keys = {name for epoch in run.epochs for name in epoch if "/" in name}
    keys |= {f"val/{name}" for name in run.val}
    return keys | {f"sessions/{name}" for name in keys}


def specification(
    project: str,
    entity: str,
    title: str,
    group: str | None = None,
    baseline: str | None = None,
    reference: str | None = None,
    logged: set[str] | None = None,
    runs: Sequence[Run] = (),
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
        runs: The runs, if they are at hand.
    """
    shown = [
        "run:displayName",
        f"config:{EXPERIMENT}.value",
        f"config:{_MODEL}",
        "config:seed.value",
    ]
    shown += [f"summary:{key}" for key in present((f"test/{name}" for name in TESTED), logged)]
    filters = [expr.Metric("Group").isin([group])] if group else []
    workspace = ws.Workspace(
        entity=entity,
        project=project,
        name=title,
        sections=[
            ws.Section(name, panels=panels, is_open=True)
            for name, panels in sections(logged, runs, baseline).items()
        ],
        settings=ws.WorkspaceSettings(max_runs=MOST_LINES),
        runset_settings=ws.RunsetSettings(
            filters=_all(filters),
            groupby=[expr.Config(EXPERIMENT)],
            pinned_columns=shown,
            baseline_run=reference,
        ),
    )
    text = (
        "Curves and bars are means over the runs of an experiment, which differ in their seed only, with their "
        "lowest and highest value; open the group of an experiment in the table to see its runs."
    )
    blocks = [wr.P(text), wr.TableOfContents()]
    for name, panels in sections(logged, runs, baseline).items():
        runsets = _runsets(filters, baseline, shown)
        blocks += [
            wr.H1(name),
            wr.PanelGrid(runsets=runsets, panels=panels, hide_run_sets=name != "Test"),
        ]
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
        parts = {
            f"Baseline: {baseline}": [model.isin([baseline])],
            "Others": [model.notin([baseline])],
        }
    return [
        Runset(
            name=name,
            filters=_all([*filters, *of_part]),
            groupby=[f"config.{EXPERIMENT}"] if grouped else [],
            pinned_columns=shown,
        )
        for name, of_part in parts.items()
    ]


def _all(filters: Sequence[Any]) -> Any:
    return expr.And(*filters) if filters else ""
