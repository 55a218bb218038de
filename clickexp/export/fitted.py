"""The fitted model of a run, and the dataset that it was fitted to, from the run's folder."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from clickexp.data import Dataset
from clickexp.data.batches import batch_like, keys_read
from clickexp.data.description import Numbering
from clickexp.errors import OF_SYSTEM, UserError, with_class
from clickexp.experiment.build import build_model, numbers_ids, share_compilations
from clickexp.experiment.differences import finishing_command
from clickexp.experiment.instantiate import CONTEXT, constructor, model_constructor
from clickexp.experiment.values import default_value
from clickexp.export.trust import check_targets
from clickexp.models import Model
from clickexp.runs.run import Origin, Run
from clickexp.runs.store import (
    CHECKPOINT,
    CONFIG,
    ENCODING,
    IDS,
    MODEL,
    OVERRIDES,
    RESULT,
    natural,
    read_document,
    read_epochs,
    read_limited,
)
from clickexp.training.accelerators import keep_precision
from clickexp.training.checkpoint import load_model
from clickexp.utils.content import content_of
from clickexp.utils.progress import Steps
from clickexp.utils.signatures import accepted
from clickexp.utils.sources import source_path

_NO_INTERVALS = (
    "Impressions and clicks are counts of this log. Attraction is that of training alone, without the prior by what "
    "lists show, which is nearer to the truth where a policy orders lists: it needs the log of the run, as intervals do"
)
_MOST_NAMED = 20
_Made = TypeVar("_Made")


class Fitted(NamedTuple):
    """A fitted model and a log.

    Attributes:
        model: The model.
        log: The log.
        is_own: Whether it is the one that the model was fitted to.
    """

    model: Model
    log: Dataset
    is_own: bool


def fitted(
    run: Path,
    path: str | Path | None = None,
    trust: bool = False,
    opened: dict[str, Dataset] | None = None,
) -> Fitted:
    """Builds the model of a run and opens its dataset, both as its configuration describes them.

    Where the log is another one than the run was fitted to, its documents get the ids that their names have in the run,
    and 0 where the run does not know them; a line on stderr says so.

    Args:
        run: The folder of the run, which may come from anyone.
        path: Of the log, if not that in the configuration.
        trust: The configuration may call code outside clickexp, and name any cache; else the log is read into a
            temporary folder, unless its cache is that of runs made here.
        opened: Datasets that are open already, by what describes them; this one is added.

    Raises:
        UserError: Something is missing, does not fit, or calls code outside clickexp without trust. Or the log is
            another one, and its documents cannot be found in the run.
    """
    share_compilations(Path(default_value("cache_dir")))
    keep_precision()
    config = configuration(run)
    if not (run / MODEL).is_file():
        raise UserError(_without_model(run))
    origin = _origin(run)
    node = _dataset_node(run, config, origin, path, trust)
    new_model = model_constructor(config)  # first: its modules may register columns of context
    dataset = _opened(run, node, config["max_sessions"], {} if opened is None else opened)
    is_another = dataset.fingerprint() != origin.fingerprint
    sizes = Run.read(run).data
    dataset = dataset.covering(sizes.query_doc_pairs or 0, sizes.positions or 0, sizes.columns)
    model = _made(Model, lambda: build_model(new_model, dataset, config["seed"]), config["model"])
    described = _describe_other_log(run, node, model, dataset) if is_another else ""
    try:
        load_model(model, run / MODEL)
    except ValueError as error:
        raise UserError(f"{error}; is this the log that the run read?") from error
    sys.stderr.write(described)
    model.eval()
    return Fitted(model, dataset, is_own=not is_another)


def _opened(
    run: Path, node: Mapping[str, Any], max_sessions: int | None, opened: dict[str, Dataset]
) -> Dataset:
    """Returns the dataset that a configuration describes, by the ids and categories of the run."""
    files = {"ids": run / IDS, "learned": run / ENCODING}
    files = {name: file for name, file in files.items() if file.is_file()}
    contents = {name: content_of(file) for name, file in files.items()}
    key = repr((node, max_sessions, contents))
    if key not in opened:
        read = constructor(node, "dataset")
        with Steps("reading the log") as progress:
            arguments = accepted(read, {"progress": progress})
            if numbers_ids(read):
                arguments |= {name: Numbering(file) for name, file in files.items()}
            dataset = _made(Dataset, lambda: read(**arguments), node)
        opened[key] = dataset.first(max_sessions)
    return opened[key]


def _without_model(run: Path) -> str:
    """Says why a run has no model, and the command that makes one."""
    words = read_document(run / OVERRIDES)
    overrides = [str(word) for word in words] if isinstance(words, list) else []
    if (run / RESULT).is_file():
        return f"{run}: there is no {MODEL}. Run again with save_model=true."
    command = finishing_command(run, overrides)
    if (run / CHECKPOINT).is_file():
        epochs = read_epochs(run)
        last = f" (last epoch: {epochs[-1]['epoch']})" if epochs else ""
        still = f"{run}: the run has not finished{last}."
        return f"{still} Where it no longer runs, this finishes it: {command}"
    return f"{run}: the run has not finished. Where it no longer runs, this repeats it: {command}"


def _origin(run: Path) -> Origin:
    """Returns what a run was of; UserError where its result does not say so."""
    try:
        origin = Run.read(run).origin
    except UserError as error:
        raise UserError(f"{run}: {error}. Fit the model again.") from error
    if origin is None:
        raise UserError(
            f"{run}: its result does not say what data the model was fitted to. Fit the model again."
        )
    return origin


def _dataset_node(
    run: Path, config: Mapping[str, Any], origin: Origin, path: str | Path | None, trust: bool
) -> dict[str, Any]:
    """Returns the description of the dataset, with the files where they are now.

    Raises:
        UserError: There is no such log, or the configuration calls code outside clickexp without trust.
    """
    node = dict(config["dataset"])
    if not trust:
        for part in ("dataset", "model", CONTEXT):  # all that is built of the configuration
            check_targets(config.get(part), f"{run / CONFIG}: {part}")
        if "cache" in node and node["cache"] != default_value("cache_dir"):
            node["cache"] = None  # a folder of someone else does not choose where to write
    for key in origin.sources:
        part, _, name = key.partition(".")
        if part == "dataset" and isinstance(node.get(name), str):
            node[name] = origin.located(node[name])
    if path is not None and "path" not in node:
        raise UserError(
            f"--dataset {path}: {run} has not read its dataset from a path. Leave it out."
        )
    if path is not None:
        node["path"] = str(path)
    if "path" in node:
        _check_log(run, node["path"])
    return node


def _check_log(run: Path, path: str) -> None:
    """Raises a UserError where there is no log; what is neither a file nor a folder, such as a pipe, may never end."""
    place = source_path(path)
    if not (place.is_file() or place.is_dir()):
        raise UserError(
            f"{path}: the log of {run} is not there. Say where it is with --dataset PATH."
        )


def _describe_other_log(run: Path, node: Mapping[str, Any], model: Model, dataset: Dataset) -> str:
    """Returns a line about a log that is not the one that a run was fitted to.

    Raises:
        UserError: The model reads ids, and those of the log may be other documents than those of the run.
    """
    line = f"{node.get('path', 'the simulated log')}: not the log that {run} was fitted to"
    has_names = (run / IDS).is_file()
    if has_names and dataset.names is not None:
        shown = sum(part.documents for part in dataset.parts.values())
        unknown = sum(part.documents_zero for part in dataset.parts.values())
        missing = (
            f", {unknown:,} of the {shown:,} shown are unknown and have id 0" if unknown else ""
        )
        return f"{line}; documents are matched by their names{missing}. {_NO_INTERVALS}\n"
    came_with_ids = node.get("pair_key", "") is None and not has_names and dataset.names is None
    read = keys_read(model.compute_loss, batch_like(dataset.train))
    if "query_doc_ids" in read and not came_with_ids:
        raise UserError(
            f"{line}, and the ids of documents are their numbers in the log: those of another one are other documents. "
            "Give that log with --dataset PATH, or fit the model to this one."
        )
    return f"{line}. {_NO_INTERVALS}\n"


def _made(kind: type[_Made], make: Callable[[], Any], node: Mapping[str, Any]) -> _Made:
    """Returns what a part of the configuration makes; a UserError where that is of another kind, or fails."""
    needs = f"a {kind.__name__} is needed. Was the folder written by clickexp?"
    try:
        part = make()
    except (UserError, *OF_SYSTEM):
        raise
    except Exception as error:
        raise UserError(f"{node.get('_target_')} fails: {with_class(error)}; {needs}") from error
    if not isinstance(part, kind):
        raise UserError(f"{node.get('_target_')} makes {type(part).__name__}; {needs}")
    return part


def devices_of(config: Mapping[str, Any]) -> int | str:
    """Returns how many devices a run was trained on, `all` of its machine or a number, at most those that JAX sees."""
    trainer = config.get("trainer")
    devices = trainer.get("devices", 1) if isinstance(trainer, Mapping) else 1
    return min(devices, jax.device_count()) if isinstance(devices, int) else devices


def configuration(run: Path) -> dict[str, Any]:
    """Returns the configuration that a run resolved to."""
    if not run.is_dir():
        raise UserError(f"{run}: there is no such folder. Give the folder of a run.")
    inside = [] if (run / CONFIG).exists() else _runs_below(run)
    if inside:
        more = f", ... ({len(inside)} in all)" if len(inside) > _MOST_NAMED else ""
        named = ", ".join(inside[:_MOST_NAMED])
        raise UserError(
            f"{run}: this is a folder of runs, not of one. Name one of them: {named}{more}"
        )
    try:
        config = read_limited(run / CONFIG)
    except UserError as error:
        raise UserError(f"{run}: {error}. Was the folder written by clickexp?") from error
    if not isinstance(config, dict):
        raise UserError(f"{run}: not the folder of a run, {CONFIG} cannot be read.")
    parts = config.get("dataset"), config.get("model")
    if not {"seed", "max_sessions"} <= config.keys() or not all(
        isinstance(part, dict) for part in parts
    ):
        raise UserError(f"{run}: not the folder of a run, {CONFIG} describes no dataset and model.")
    return config


def _runs_below(folder: Path) -> list[str]:
    """Returns runs in a folder that kept their model, such as the jobs of a sweep, in the order of their numbers."""
    files = [file for pattern in ("*/", "*/*/") for file in folder.glob(f"{pattern}{MODEL}")]
    return sorted((str(file.parent) for file in files), key=natural)
