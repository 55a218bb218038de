"""A workspace on Weights & Biases that compares runs."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clickexp.errors import UserError, install
from clickexp.results.dashboard.panels import EXPERIMENT, MOST_LINES, TESTED, present, sections
from clickexp.results.loading import find_runs
from clickexp.runs.run import Run

try:
    import wandb
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr
except ImportError as error:
    raise UserError(f"{error.name} is missing: {install('dashboard')}") from error

_MODEL = "model.value.name"
"""Key of a run's configuration with the model's name, as W&B nests it."""


def dashboard(
    folders: Sequence[str | Path] = (),
    *,
    project: str,
    entity: str | None = None,
    group: str | None = None,
    baseline: str | None = None,
    title: str | None = None,
    dry_run: bool = False,
) -> None:
    """Creates a workspace.

    Args:
        folders: Folders of runs, whose metrics decide on the panels; without any they are those of the default metrics.
        project: Project on Weights & Biases.
        entity: User or team; by default yours.
        group: Shows the runs of this group only, such as a sweep's.
        baseline: Name of the model that the others are shown against.
        title: Its title.
        dry_run: Writes the specification as JSON to standard output, and to standard error an outline of it, without
            an account and without a network.

    Raises:
        UserError: Where there is no run of the baseline, and for errors of Weights & Biases.
    """
    runs = find_runs(folders)[0] if folders else []
    workspace = specification(
        project,
        entity or "",
        title or f"{group or project}: click models compared",
        group=group,
        baseline=baseline,
        reference=_wandb_id(baseline, runs),
        logged=set().union(*map(_logged_keys, runs)) if runs else None,
        runs=runs,
    )
    if dry_run:
        _print(workspace)
    else:
        _save(workspace)


def _print(workspace: ws.Workspace) -> None:
    """Prints the workspace as JSON, and on standard error its outline."""
    options: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_none": True}
    print(json.dumps(workspace._to_model().model_dump(**options), indent=2))  # noqa: T201  # output
    print(outline(workspace), file=sys.stderr)  # noqa: T201  # output


def _save(workspace: ws.Workspace) -> None:
    """Saves the workspace on Weights & Biases and prints its address."""
    try:
        workspace.entity = workspace.entity or wandb.Api().default_entity or ""
        print(workspace.save().url)  # noqa: T201  # output
    except (wandb.Error, ValueError, OSError) as error:
        raise UserError(f"Weights & Biases: {error}") from error


def outline(workspace: ws.Workspace) -> str:
    """A line per section with the titles of its panels."""
    lines = [f"{workspace.name} ({workspace.project})"]
    for section in workspace.sections:
        titles = [getattr(panel, "title", None) or type(panel).__name__ for panel in section.panels]
        lines.append(f"  {section.name}: {', '.join(titles)}")
    return "\n".join(lines)


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
) -> ws.Workspace:
    """The workspace, not saved yet.

    Args:
        project: Project on Weights & Biases.
        entity: User or team.
        title: Its title.
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
    return ws.Workspace(
        entity=entity,
        project=project,
        name=title,
        sections=[
            ws.Section(name, panels=panels, is_open=True)
            for name, panels in sections(logged, runs, baseline).items()
        ],
        settings=ws.WorkspaceSettings(max_runs=MOST_LINES),
        runset_settings=ws.RunsetSettings(
            filters=expr.And(expr.Metric("Group").isin([group])) if group else "",
            groupby=[expr.Config(EXPERIMENT)],
            pinned_columns=shown,
            baseline_run=reference,
        ),
    )
