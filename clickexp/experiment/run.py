"""One run: training, evaluation, and the files that report it."""

import contextlib
import dataclasses
import importlib.metadata
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax
from flax import nnx
from omegaconf import DictConfig, OmegaConf

from clickexp.evaluation.evaluation import Evaluation
from clickexp.evaluation.evaluator import CompiledEvaluation
from clickexp.evaluation.groups import HeldOut
from clickexp.experiment.build import Parts, build, open_loggers
from clickexp.experiment.display import note, print_config, run_info
from clickexp.experiment.report import without_page, write_page
from clickexp.experiment.resolve import resolve
from clickexp.experiment.result import (
    Refined,
    evaluate_run,
    evaluate_test_set,
    find_queries,
    refine_shared,
)
from clickexp.loggers import Logger
from clickexp.models import ClickModel
from clickexp.posteriors.policy_prior import Queries
from clickexp.runs.run import Run
from clickexp.runs.store import CHECKPOINT, CONFIG
from clickexp.training import FitReport
from clickexp.training.spread import computing_on
from clickexp.utils import hosts
from clickexp.utils.files import whole
from clickexp.utils.paths import display_path
from clickexp.utils.threads import work

if TYPE_CHECKING:
    from clickexp.updates.chain import Continued


def run_experiment(
    cfg: DictConfig, folder: Path, sweep: Path | None = None, overrides: Sequence[str] = ()
) -> Run:
    """Runs the configured experiment and writes its files.

    Args:
        cfg: What Hydra composed.
        folder: Of the run. Training continues from a checkpoint that lies there.
        sweep: The folder of the sweep that the run is part of.
        overrides: Those that `cfg` was composed with.

    Returns:
        The run, finished.

    Raises:
        UserError: The configuration or the data is wrong; before training starts.
    """
    config = resolve(cfg, overrides)
    with open_loggers(config) as logger:
        parts = build(config, folder, logger)
        return run(parts, sweep)


def follow(cfg: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Trains and tests with the first of several processes, which has the folder and the loggers, and does the rest.

    Args:
        cfg: What Hydra composed.
        overrides: Those that `cfg` was composed with.

    Raises:
        UserError: The configuration or the data is wrong, or is not that of the first process.
    """
    parts = build(resolve(cfg, overrides), Path(), Logger())
    with computing_on(parts.trainer.devices), work():
        _tested(parts, find_queries(parts))


def run(parts: Parts, sweep: Path | None = None) -> Run:
    """Trains and evaluates the model, and writes and reports the result.

    Args:
        parts: From `build`.
        sweep: The folder of the sweep that the run is part of.

    Returns:
        The run, finished.
    """
    with computing_on(parts.trainer.devices):
        with work():
            found = find_queries(parts)
            _begin(parts, sweep)
            tested = _tested(parts, found)
        parts.dataset.check_unchanged()
        finished = evaluate_run(*tested)
    _finish(parts, finished)
    hosts.release()
    return finished


@hosts.together()
def _tested(
    parts: Parts, found: Future[Queries | None]
) -> tuple[Parts, FitReport, Refined, Evaluation]:
    """Fits the model and tests it, with all processes that there are."""
    state = jax.eval_shape(lambda: nnx.state(parts.model))
    fit = _train(parts, partial(_prepare, parts, parts.test, state))
    if parts.continued is not None:
        parts, fit = _continued(parts, parts.continued, fit)
    refined = refine_shared(parts, fit, found)
    evaluation = evaluate_test_set(parts)
    hosts.leave()
    return parts, fit, refined, evaluation


def _begin(parts: Parts, sweep: Path | None) -> None:
    """Writes the configuration, and reports what there is to say before training."""
    with whole(parts.folder / CONFIG) as part:
        part.write_text(OmegaConf.to_yaml(parts.config.values))
    if parts.config.settings.verbose:
        print_config(parts.config.values)
    parts.logger.start(run_info(parts, sweep))
    note(parts)


def _train(parts: Parts, meanwhile: Callable[[], None] | None = None) -> FitReport:
    """Fits the model to the training sessions."""
    train, val = parts.dataset.train, HeldOut.validation(parts.dataset)
    return parts.trainer.train(
        parts.model,
        train,
        val.sessions,
        val_lists=val.lists,
        truth=val.truth,
        meanwhile=meanwhile,
    )


def _continued(parts: Parts, continued: "Continued", fit: FitReport) -> tuple[Parts, FitReport]:
    """Corrects a model that goes on from an earlier run; trains it once more where the log contradicts its prior."""
    from clickexp.updates.chain import describe_change  # here, since other runs do without

    while True:
        corrected = continued.corrected(parts.model, parts.dataset.train, parts.trainer.devices)
        for change in corrected.changes[len(continued.changes) :]:
            parts.logger.warning(describe_change(change))
        parts = dataclasses.replace(parts, continued=corrected)
        if corrected.logs is continued.logs:
            return parts, fit
        continued = corrected
        (parts.folder / CHECKPOINT).unlink(missing_ok=True)
        trainer = continued.again(parts.model, parts.trainer)
        parts = dataclasses.replace(parts, trainer=trainer)
        fit = _train(parts)


def _finish(parts: Parts, finished: Run) -> None:
    """Writes the result, whole or not at all, and reports it. What has a result is finished."""
    logger = parts.logger
    finished.write()
    (parts.folder / CHECKPOINT).unlink(missing_ok=True)
    logger.per_rank("val", finished.per_rank_val)
    logger.per_rank("test", finished.per_rank)
    logger.result(finished)
    logger.message(f"results in {display_path(parts.folder)}")
    if parts.config.settings.report:
        _report(parts, finished)


def _prepare(parts: Parts, test: CompiledEvaluation, state: nnx.State) -> None:
    """Does in a thread what training does without; what fails here fails again later."""
    with contextlib.suppress(Exception):
        if parts.trainer.devices == 1:
            test.compile((state,))
        if parts.config.settings.report:
            importlib.import_module("clickexp.results.pages.write")
            if isinstance(parts.model, ClickModel):
                _ = parts.rank_ctr  # which is kept


def _report(parts: Parts, finished: Run) -> None:
    """Writes the page and figures of a finished run, and reports its path, or why there is none."""
    try:
        page, figures = write_page(finished, parts.config.overrides)
        parts.logger.report(page, figures)
        parts.logger.message(f"report: {display_path(page)}")
    except Exception as error:  # the result is there: nothing that goes wrong here may end a sweep
        parts.logger.warning(without_page(error))
