"""One run: training, evaluation, and the files that report it."""

import contextlib
import importlib.metadata
import logging
import platform
import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from omegaconf import DictConfig, OmegaConf

from clickexp.data import Dataset
from clickexp.data.inspect.identifiability import identifiability
from clickexp.data.seen import lists_seen, shows_any
from clickexp.evaluation.draws import as_result, evaluate_draws
from clickexp.evaluation.evaluate import HeldOut, evaluate
from clickexp.evaluation.references import references
from clickexp.experiment.build import Parts, build, open_loggers, share_compilations
from clickexp.experiment.differences import changed_settings, command_of
from clickexp.experiment.display import print_config, run_info
from clickexp.experiment.resolve import resolve
from clickexp.loggers.jsonl import plain
from clickexp.models import ClickModel, Model, Ranker, TrustBiasModel, TwoTowersModel
from clickexp.parameters import EmbeddingParameter, PositionParameter
from clickexp.parameters.context import in_new_session
from clickexp.propensities.base import clicks_by_position
from clickexp.runs.hashing import config_hash
from clickexp.runs.store import (
    CHECKPOINT,
    CONFIG,
    FALSE_POSITIVE,
    MODEL,
    RESULT,
    SHARED,
    TRUE_POSITIVE,
    values,
    write_json,
)
from clickexp.training import FitReport
from clickexp.training.checkpoint import KEPT, save_model
from clickexp.training.intervals.posterior import shared_posterior
from clickexp.training.intervals.probabilities import propensity, shared_intervals
from clickexp.training.memory import peak_memory
from clickexp.utils.files import whole
from clickexp.utils.paths import display_path

log = logging.getLogger(__name__)
_ENOUGH_SESSIONS = 2_000_000  # link all positions of most logs; the rest is read only if they do not
_VERSIONS = ("clickexp", "jax", "flax", "optax", "rax", "hydra-core", "numpy")

Result = dict[str, Any]
"""The content of result.json."""


def run_experiment(
    cfg: DictConfig, folder: Path, sweep: str | None = None, overrides: Sequence[str] = ()
) -> Result:
    """Runs the configured experiment and writes its files.

    Args:
        cfg: What Hydra composed.
        folder: Of the run. Training continues from a checkpoint that lies there.
        sweep: Name of the sweep that the run is part of.
        overrides: Those that `cfg` was composed with.

    Returns:
        The content of result.json.

    Raises:
        UserError: The configuration or the data is wrong; before training starts.
    """
    config = resolve(cfg, overrides)
    share_compilations(Path(config.settings.cache_dir))
    with open_loggers(config) as logger:
        return run(build(config, folder, logger), sweep)


def run(parts: Parts, sweep: str | None = None) -> Result:
    """Trains and evaluates the model, and writes and reports the result.

    Args:
        parts: From `build`.
        sweep: Name of the sweep that the run is part of.

    Returns:
        The content of result.json.
    """
    model, dataset, logger = parts.model, parts.dataset, parts.logger
    config, settings = parts.config.values, parts.config.settings
    if settings.verbose:
        print_config(config)
    with whole(parts.folder / CONFIG) as part:
        part.write_text(OmegaConf.to_yaml(config))
    logger.start(run_info(parts, sweep))
    _note(parts)
    trainer, held_out = parts.trainer, HeldOut.validation(dataset)
    lists = held_out.lists if trainer.groups["ranking"] else None
    if settings.report:
        threading.Thread(target=_import_report, daemon=True).start()
    report = trainer.train(model, dataset.train, held_out.sessions, val_lists=lists, truth=dataset.truth)
    groups = {**parts.metrics, "click": trainer.groups["click"]}
    evaluation = evaluate(model, dataset, groups, trainer.evaluation, keep_values=settings.keep_values)
    result = {
        "model": model.name,
        "dataset": dataset.name,
        "seed": settings.seed,
        "val": _best_validation(report),
        "per_rank_val": report.per_rank,
        **evaluation.result(),
        **({"marginals": model.how_marginal(dataset.test.ranks)} if isinstance(model, ClickModel) else {}),
        "train": {**report.summary(), **peak_memory()},
        "parameters": _count_parameters(model),
        "test_set": dataset.test_set(),
        "data": dataset.sizes() | _lists_seen(dataset, "ranking" in evaluation.parts),
        "environment": _environment(),
        "config_hash": config_hash(config),
    }
    if settings.save_model:
        save_model(model, parts.folder / MODEL)
    result |= _trust(model, dataset.positions)
    if isinstance(model, Ranker) and (curve := model.examination()) is not None:
        shown = clicks_by_position(dataset.train)[0]
        result["propensity"] = [
            {"parameter": "examination", "position": 1 + place, "relative": float(value)}
            for place, value in enumerate(curve)
            if 1 + place < len(shown) and shown[1 + place]  # elsewhere nothing was learned
        ]
    result |= {"weighting": parts.weighting.result()} if parts.weighting else {}
    result |= _shared_intervals(parts)
    if settings.report:
        result["references"] = references(model, dataset, trainer.evaluation, groups.get("ranking"))
    drawn = evaluate_draws(model, dataset, groups, trainer.evaluation, draws=settings.draws, seed=settings.seed)
    if drawn:
        result["test_draws"] = as_result(drawn)
    elif settings.draws:
        logger.warning(f"draws={settings.draws} has no effect: no table of the model has posteriors")
    if settings.keep_values:
        result["intervals"] = evaluation.keep(dataset, parts.folder)
    _write_result(result, parts.folder)  # last: what has a result is finished
    (parts.folder / CHECKPOINT).unlink(missing_ok=True)
    logger.per_rank("val", result["per_rank_val"])
    logger.per_rank("test", result["per_rank"])
    logger.result(result)
    logger.message(f"results in {display_path(parts.folder)}")
    if settings.report:
        _report(parts, result, report)
    return result


def _lists_seen(dataset: Dataset, ranked: bool) -> Result:
    """The share of the labelled lists whose documents training has shown together, where rankings are measured."""
    if dataset.ranking is None or not ranked:
        return {}
    return {"lists_seen": lists_seen(dataset.train, dataset.ranking)}


def _trust(model: Model, positions: int) -> dict[str, list[float]]:
    """Click rates of irrelevant and of relevant documents by position from 1, where the model has towers for them."""
    if not isinstance(model, TrustBiasModel):
        return {}
    towers = {FALSE_POSITIVE: model.false_positive, TRUE_POSITIVE: model.true_positive}
    known = {name: tower for name, tower in towers.items() if isinstance(tower, PositionParameter)}
    return {
        name: tower.probabilities(positions).tolist()
        for name, tower in known.items()
        if tower.config.use_feature == "positions"
    }


def _note(parts: Parts) -> None:
    """Reports what there is to say before training: the data, what the log identifies, what weights do."""
    for line in (*parts.config.without_effect, parts.dataset.describe()):
        parts.logger.message(line)
    if parts.model.separates_examination:
        links = identifiability(parts.dataset.train, _ENOUGH_SESSIONS)
        if not links.identified:
            parts.logger.warning(links.describe())
        elif isinstance(parts.model, TwoTowersModel):  # of which much depends on it
            parts.logger.message(links.describe())
    judged = parts.dataset.ranking is not None or parts.metrics.get("counterfactual")
    if isinstance(parts.model, Ranker) and not judged:
        parts.logger.message("no list has labels: metric=[all,counterfactual] judges the ranker by clicks")
    tables = [
        role
        for role, tower in vars(parts.model).items()
        if isinstance(table := in_new_session(tower)[1], EmbeddingParameter)
        and table.config.use_feature == "query_doc_ids"
    ]
    if tables and not shows_any(parts.dataset.train, parts.dataset.val):
        parts.logger.warning(
            f"training shows no document of the validation sessions, so that the table of {', '.join(tables)} learns "
            f"nothing of them. Take a tower of features: parameter@{tables[0]}=linear"
        )
    for line in parts.weighting.describe() if parts.weighting else ():
        parts.logger.message(line)
    for name, weighting in parts.judging.items():
        for line in weighting.describe():
            parts.logger.message(f"{name}: {line}")


def _shared_intervals(parts: Parts) -> Result:
    """Intervals of shared parameters; none where there are too many, or the model cannot be differentiated twice."""
    if not parts.config.settings.shared_intervals:
        return {}
    try:
        report = partial(parts.logger.progress, "intervals", 0)
        posterior = shared_posterior(parts.model, parts.dataset.train, report)
        if posterior is None:
            return {}
        if parts.config.settings.save_model:
            posterior.save(parts.folder / SHARED)
        found = {
            "shared": shared_intervals(parts.model, posterior),
            "propensity": propensity(parts.model, posterior, parts.dataset.test),
        }
        return {name: [each._asdict() for each in intervals] for name, intervals in found.items() if intervals}
    except Exception as error:  # a training is not lost for them
        log.debug("no intervals", exc_info=True)
        parts.logger.warning(f"no intervals of shared parameters ({type(error).__name__}: {error})")
        return {}


def _import_report() -> None:
    """Loads what draws while XLA compiles, which leaves a core free; what fails here fails again later."""
    with contextlib.suppress(Exception):
        importlib.import_module("clickexp.report.write")


def _report(parts: Parts, result: Result, fit: FitReport) -> None:
    """Writes the page and figures of a finished run, and reports its path, or why there is none."""
    try:
        from clickexp.report.write import write_report  # here, since what it imports takes long
        from clickexp.runs.run import Run

        overrides = parts.config.overrides
        run = Run(parts.folder, plain(result), parts.config.values, values(overrides), tuple(plain(fit.history)))
        page = write_report(run, [*changed_settings(overrides)], command_of(overrides))
        parts.logger.message(f"report: {display_path(page)}")
    except Exception as error:  # the result is there: nothing that goes wrong here may end a sweep
        log.debug("no report", exc_info=True)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        parts.logger.warning(f"no report was written ({reason})")


def _write_result(result: Result, folder: Path) -> None:
    """Writes result.json whole or not at all."""
    write_json(plain(result), folder / RESULT)


def _best_validation(report: FitReport) -> dict[str, float]:
    """Validation metrics of the epoch whose state the model is left in."""
    record = report.history[report.best_epoch - 1] if report.best_epoch else {}
    return {name.removeprefix("val/"): value for name, value in record.items() if name.startswith("val/")}


def _count_parameters(model: Model) -> int:
    """Numbers that were fitted, tables included."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, KEPT)))


def _environment() -> dict[str, str | None]:
    """Versions, device and commit that a result came from."""
    versions = {name: importlib.metadata.version(name) for name in _VERSIONS}
    device = jax.devices()[0].device_kind
    return {"python": platform.python_version(), **versions, "device": device, "git_commit": _commit()}


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603  # fixed words
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
