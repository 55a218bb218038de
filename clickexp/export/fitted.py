"""The fitted model of a run, and the dataset that it was fitted to, from the run's folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from clickexp.data import Dataset
from clickexp.errors import UserError
from clickexp.experiment.build import build_model
from clickexp.experiment.instantiate import constructor
from clickexp.experiment.values import default_value
from clickexp.export.trust import check_targets
from clickexp.loggers.progress import Steps
from clickexp.models import Model
from clickexp.runs.store import CONFIG, MODEL, natural, read_limited
from clickexp.training.checkpoint import load_model
from clickexp.utils.exits import OF_SYSTEM
from clickexp.utils.signatures import accepted

_MOVED = {
    "clickexp.data.simulate.simulate": "clickexp.simulation.simulate",
    "clickexp.data.open_letor": "clickexp.simulation.open_letor",
}
"""Targets in the run folders of earlier versions, and where they are now."""
_MOST_NAMED = 20
_Made = TypeVar("_Made")


def fitted(
    run: Path, path: str | Path | None = None, trust: bool = False, opened: dict[str, Dataset] | None = None
) -> tuple[Model, Dataset]:
    """Builds the model of a run and opens its dataset, both as its configuration describes them.

    Args:
        run: The folder of the run, which may come from anyone.
        path: Of the log, if not that in the configuration.
        trust: The configuration may call code outside clickexp, and name any cache; else the log is read into a
            temporary folder, unless its cache is that of runs made here.
        opened: Datasets that are open already, by what describes them; this one is added.

    Raises:
        UserError: Something is missing, does not fit, or calls code outside clickexp without trust.
    """
    config = configuration(run)
    if not (run / MODEL).is_file():
        raise UserError(f"{run}: there is no {MODEL}. Run again with save_model=true.")
    node = config["dataset"]
    if not trust:
        for part in ("dataset", "model"):  # all that is built of the configuration
            check_targets(config[part], f"{run / CONFIG}: {part}")
        if "cache" in node and node["cache"] != default_value("cache_dir"):
            node = {**node, "cache": None}  # a folder of someone else does not choose where to write
    if path is not None:
        if "path" not in node:
            raise UserError(f"--dataset {path}: {run} has not read its dataset from a path. Leave it out.")
        node = {**node, "path": str(path)}
    place = Path(node["path"]).expanduser() if "path" in node else None
    if place is not None and not (place.is_file() or place.is_dir()):  # a pipe may never end
        raise UserError(
            f"{node['path']}: the log of {run} is not there. Say where it is with --dataset PATH."
        )
    read, new_model = constructor(node, "dataset"), constructor(_with_points(config["model"]), "model")
    opened, key = {} if opened is None else opened, repr((node, config["max_sessions"]))
    if key not in opened:
        with Steps("reading the log") as progress:
            dataset = _made(Dataset, lambda: read(**accepted(read, {"progress": progress})), node)
        opened[key] = dataset.first(config["max_sessions"])
    dataset = opened[key]
    model = _made(Model, lambda: build_model(new_model, dataset, config["seed"]), config["model"])
    try:
        load_model(model, run / MODEL)
    except ValueError as error:
        raise UserError(f"{error}; is this the log that the run read?") from error
    model.eval()
    return model, dataset


def _made(kind: type[_Made], make: Callable[[], Any], node: Mapping[str, Any]) -> _Made:
    """Returns what a part of the configuration makes; a UserError where that is of another kind, or fails."""
    needs = f"a {kind.__name__} is needed. Was the folder written by clickexp?"
    try:
        made = make()
    except (UserError, *OF_SYSTEM):
        raise
    except Exception as error:
        raise UserError(f"{node.get('_target_')} fails: {type(error).__name__}: {error}; {needs}") from error
    if not isinstance(made, kind):
        raise UserError(f"{node.get('_target_')} makes {type(made).__name__}; {needs}")
    return made


def configuration(run: Path) -> dict[str, Any]:
    """Returns the configuration that a run resolved to."""
    if not run.is_dir():
        raise UserError(f"{run}: there is no such folder. Give the folder of a run.")
    inside = [] if (run / CONFIG).exists() else _runs_below(run)
    if inside:
        more = f", ... ({len(inside)} in all)" if len(inside) > _MOST_NAMED else ""
        named = ", ".join(inside[:_MOST_NAMED])
        raise UserError(f"{run}: this is a folder of runs, not of one. Name one of them: {named}{more}")
    try:
        config = read_limited(run / CONFIG)
    except UserError as error:
        raise UserError(f"{run}: {error}. Was the folder written by clickexp?") from error
    if not isinstance(config, dict):
        raise UserError(f"{run}: not the folder of a run, {CONFIG} cannot be read.")
    parts = config.get("dataset"), config.get("model")
    if not {"seed", "max_sessions"} <= config.keys() or not all(isinstance(part, dict) for part in parts):
        raise UserError(f"{run}: not the folder of a run, {CONFIG} describes no dataset and model.")
    target = config["dataset"].get("_target_")
    if isinstance(target, str):
        config["dataset"]["_target_"] = _MOVED.get(target, target)
    return config


def _with_points(node: Any) -> Any:
    """States that tables have no posteriors, where a configuration is of a version that had none.

    Sums of towers are of later versions.
    """
    if isinstance(node, dict) and str(node.get("_target_")).endswith(".SumParameterConfig"):
        return node
    if isinstance(node, dict):
        table = str(node.get("_target_")).endswith(".EmbeddingParameterConfig")
        stated = {"posterior": "none"} if table and "posterior" not in node else {}
        return {name: _with_points(value) for name, value in node.items()} | stated
    return [*map(_with_points, node)] if isinstance(node, list) else node


def _runs_below(folder: Path) -> list[str]:
    """Returns runs in a folder that kept their model, such as the jobs of a sweep, in the order of their numbers."""
    files = [file for pattern in ("*/", "*/*/") for file in folder.glob(f"{pattern}{MODEL}")]
    return sorted((str(file.parent) for file in files), key=natural)
