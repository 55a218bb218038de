"""The result of a run: its trained model, evaluated."""

import importlib.metadata
import logging
import platform
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx
from pydantic import BaseModel

from clickexp import __version__
from clickexp.data import Dataset
from clickexp.data.encoding import Encoding
from clickexp.data.inspect.copies import sampled
from clickexp.data.inspect.layouts import click_rates, groupings
from clickexp.data.seen import lists_seen
from clickexp.errors import with_class
from clickexp.evaluation.evaluation import Evaluation
from clickexp.evaluation.references import References, references
from clickexp.experiment.backward import of_last_log
from clickexp.experiment.build import Parts
from clickexp.models import ClickModel, Model, Ranker, TrustBiasModel
from clickexp.parameters import PositionParameter
from clickexp.posteriors.continuation import improve_continuation
from clickexp.posteriors.draws import as_result, evaluate_draws
from clickexp.posteriors.intervals import propensity, shared_examination, shared_intervals
from clickexp.posteriors.marginal import improve_examination
from clickexp.posteriors.policy_prior import Queries, lists_shown
from clickexp.posteriors.shared import SharedPosterior, shared_posterior
from clickexp.posteriors.unlinked import with_open_factors
from clickexp.runs.hashing import config_hash
from clickexp.runs.run import FORMAT, RelativeExamination, Run, SharedParameter
from clickexp.runs.store import ENCODING, IDS, MODEL, SEEN, SHARED
from clickexp.training import FitReport
from clickexp.training.checkpoint import SAVED_VARIABLES, save_model
from clickexp.training.memory import peak_memory
from clickexp.updates.seen import Seen
from clickexp.updates.shared import combined
from clickexp.utils import threads
from clickexp.utils.documents import plain
from clickexp.utils.escape import cleaned
from clickexp.utils.files import whole
from clickexp.utils.memory import return_freed_memory

log = logging.getLogger(__name__)
_PACKAGES = ("jax", "flax", "optax", "rax", "hydra-core", "numpy")

_Part = dict[str, Any]
"""Keys and values of a `Run`."""


class Refined(NamedTuple):
    """Results of training before the test.

    Attributes:
        queries: What training and earlier logs have shown of queries, where documents have posteriors.
        shared: Posterior of shared numbers, where these have moved to the largest marginal likelihood.
    """

    queries: Queries | None = None
    shared: SharedPosterior | None = None


def find_queries(parts: Parts) -> Future[Queries | None]:
    """Starts a thread that finds what training and earlier logs have shown of queries, while the model trains."""
    earlier = None if parts.continued is None else parts.continued.seen.queries
    return threads.result_of(lists_shown, parts.model, parts.dataset.train, _go_on, earlier)


def _go_on(done: int, total: int, where: str = "", /) -> None:
    """Ends a thread that reports its progress where nobody needs it any more."""
    threads.end_where_needless()


def refine_shared(parts: Parts, fit: FitReport, found: Future[Queries | None]) -> Refined:
    """Moves examination or continuation to the largest marginal likelihood, where the model has one.

    Args:
        parts: With the model as training has left it.
        fit: Report of the training.
        found: From `find_queries`.
    """
    model, train, continued = parts.model, parts.dataset.train, parts.continued
    return_freed_memory()
    if fit.documents is None:
        return Refined()
    queries = found.result()
    if queries is None:
        return Refined()
    return_freed_memory()
    impressions = Seen.of(fit.documents).impressions(model)
    prior = None if continued is None else continued.shared
    shared = improve_examination(model, train, queries, impressions, prior)
    if shared is None and continued is None:
        report = partial(parts.logger.progress, "continuation", 0)
        shared = improve_continuation(model, train, queries, parts.trainer.devices, report)
    return_freed_memory()
    return Refined(queries, shared)


def evaluate_test_set(parts: Parts) -> Evaluation:
    """Evaluates the trained model on the test sessions, with all processes that there are."""
    return parts.test(parts.trainer.evaluator.state_of(parts.model), "test")


def evaluate_run(parts: Parts, fit: FitReport, refined: Refined, evaluation: Evaluation) -> Run:
    """Evaluates the trained model, and saves it where the configuration says so; the document is not written yet.

    Args:
        parts: From `build`.
        fit: Report of the training.
        refined: From `refine_shared`.
        evaluation: From `evaluate_test_set`.

    Returns:
        The run.
    """
    model, dataset, settings = parts.model, parts.dataset, parts.config.settings
    for line in evaluation.describe_judgments():
        parts.logger.message(line)
    result = {
        "format": FORMAT,
        "model": model.name,
        "dataset": dataset.name,
        "seed": settings.seed,
        "val": _best_validation(fit),
        "per_rank_val": fit.per_rank,
        **evaluation.result(),
        **_of_clicks(model, dataset),
        "validates_clicks": isinstance(model, Ranker) and model.debias.validates_clicks,
        "train": {**fit.summary(), **peak_memory()},
        "parameters": _count_parameters(model),
        "test_set": dataset.test_set(),
        "data": dataset.sizes() | _lists_seen(dataset, "ranking" in evaluation.groups),
        "environment": _environment(),
        "origin": parts.origin_of_lists.model_dump(),
        "config_hash": config_hash(parts.config.values),
    }
    saved = threads.result_of(_save, parts, fit, refined)
    result |= _trust(model, dataset.positions) | _examination(model, dataset)
    result |= {"weighting": parts.weighting.result()} if parts.weighting else {}
    result |= _shared_intervals(parts, refined.shared)
    saved.result()
    if parts.continued is not None:
        backward = of_last_log(parts, parts.continued.run)
        update = parts.continued.update(
            model, dataset, parts.origin_of_lists, backward, parts.folder
        )
        result["update"] = update.model_dump()
    if settings.report:
        result["references"] = _references(parts)
    result |= _over_draws(parts)
    if settings.keep_values:
        result["intervals"] = evaluation.keep(dataset, parts.folder)
    result["warnings"] = list(parts.logger.warned)
    return Run.of(
        cleaned(plain(result)),
        folder=parts.folder,
        config=parts.config.values,
        words=tuple(parts.config.overrides),
        epochs=tuple(plain(fit.history)),
    )


def _of_clicks(model: Model, dataset: Dataset) -> _Part:
    """How a click model sums over other clicks, and click rates of groups of the test sessions; none of a ranker."""
    if not isinstance(model, ClickModel):
        return {}
    return {
        "marginals": model.marginal_method(dataset.test.ranks),
        "click_rates": click_rates(dataset.test, groupings(dataset.train)),
    }


def _references(parts: Parts) -> References:
    """What the metrics are held against."""
    rates = parts.rank_ctr if isinstance(parts.model, ClickModel) else None
    return references(parts.model, parts.dataset, parts.trainer.evaluator, parts.groups, rates)


def _over_draws(parts: Parts) -> _Part:
    """The metrics over draws from posteriors, as many as the configuration says."""
    settings = parts.config.settings
    evaluator = parts.trainer.evaluator
    options = {"draws": settings.draws, "seed": settings.seed}
    drawn = evaluate_draws(parts.model, parts.dataset, parts.groups, evaluator, **options)
    if drawn:
        return {"test_draws": as_result(drawn)}
    if settings.draws:
        parts.logger.warning(
            f"draws={settings.draws} has no effect: no table of the model has posteriors"
        )
    return {}


def _save(parts: Parts, fit: FitReport, refined: Refined) -> None:
    """Keeps the model and what the log shows of its documents, where the configuration says so."""
    if not parts.config.settings.save_model:
        return
    save_model(parts.model, parts.folder / MODEL)
    _save_names(parts.dataset, parts.folder)
    if fit.documents is not None:
        earlier = [] if parts.continued is None else [parts.continued.seen.hashes]
        hashes = sampled(*earlier, parts.list_hashes.result().sample)
        Seen.of(fit.documents, refined.queries, hashes).save(parts.folder / SEEN)


def _save_names(dataset: Dataset, folder: Path) -> None:
    """Keeps names of the ids of tables, where a reader numbered them, and how columns are encoded."""
    if dataset.names is not None:
        with whole(folder / IDS) as part:
            dataset.names.tofile(part)
    if dataset.encoding != Encoding():
        with whole(folder / ENCODING) as part:
            part.write_text(dataset.encoding.model_dump_json(indent=2) + "\n")


def _lists_seen(dataset: Dataset, ranked: bool) -> _Part:
    """The share of the labelled lists whose documents training has shown together, where rankings are measured."""
    if dataset.ranking is None or not ranked:
        return {}
    return {"lists_seen": lists_seen(dataset.train, dataset.ranking)}


def _trust(model: Model, positions: int) -> dict[str, list[float]]:
    """Click rates of irrelevant and of relevant documents by position from 1, where the model has towers for them."""
    if not isinstance(model, TrustBiasModel):
        return {}
    towers = {"false_positive": model.false_positive, "true_positive": model.true_positive}
    by_position = {
        name: tower for name, tower in towers.items() if isinstance(tower, PositionParameter)
    }
    return {
        name: tower.probabilities(positions).tolist()
        for name, tower in by_position.items()
        if tower.config.use_feature == "positions"
    }


def _examination(model: Model, dataset: Dataset) -> _Part:
    """The examination that a ranker has estimated, relative to the first position, at positions that training shows."""
    if not isinstance(model, Ranker) or (curve := model.examination()) is None:
        return {}
    shown = dataset.train.by_position.shown
    points = (
        (position, float(value), None, None)
        for position, value in enumerate(curve, 1)
        if position < len(shown) and shown[position]
    )
    return {"propensity": _dumped(RelativeExamination.known(points))}


def _shared_intervals(parts: Parts, posterior: SharedPosterior | None) -> _Part:
    """Intervals of shared parameters; none where there are too many, or the model cannot be differentiated twice."""
    if not parts.config.settings.shared_intervals:
        return {}
    try:
        posterior = _posterior_of_shared(parts, posterior)
        if posterior is None:
            return {}
        if parts.config.settings.save_model:
            posterior.save(parts.folder / SHARED)
        examination = propensity(parts.model, posterior, parts.dataset.test)
        return {
            "shared": _dumped(shared_intervals(parts.model, posterior)),
            "propensity": _dumped(RelativeExamination.of(examination)),
            "shared_propensity": _dumped(_shared_curve(parts, examination)),
        }
    except Exception as error:  # a training is not lost for them
        log.debug("no intervals", exc_info=True)
        parts.logger.warning(f"no intervals of shared parameters ({with_class(error)})")
        return {}


def _posterior_of_shared(parts: Parts, posterior: SharedPosterior | None) -> SharedPosterior | None:
    """The posterior of shared parameters, by this log and those before."""
    report = partial(parts.logger.progress, "intervals", 0)
    continued = parts.continued
    prior = None if continued is None else continued.shared
    if posterior is None and continued is not None and not continued.run.settings.warm:
        posterior = continued.own
    elif posterior is None:
        train, devices = parts.dataset.train, parts.trainer.devices
        posterior = shared_posterior(parts.model, train, report, devices)
    if posterior is not None and parts.model.separates_examination:
        posterior = with_open_factors(parts.model, posterior, parts.links.groups)
    return posterior if prior is None else combined(parts.model, posterior, prior)


def _shared_curve(parts: Parts, parameters: Sequence[SharedParameter]) -> list[RelativeExamination]:
    """Returns the curve that layouts share, at the positions of parameters, relative to what these are relative to."""
    curve = shared_examination(parts.model, parts.dataset.test)
    scales = [
        parameter.relative / parameter.value
        for parameter in parameters
        if parameter.value and parameter.relative
    ]
    if curve is None or not scales:
        return []
    positions = sorted(
        {parameter.position for parameter in parameters if parameter.position is not None}
    )
    return RelativeExamination.known((at, scales[0] * curve[at], None, None) for at in positions)


def _dumped(documents: Sequence[BaseModel]) -> list[_Part]:
    return [document.model_dump() for document in documents]


def _best_validation(report: FitReport) -> dict[str, float]:
    """Validation metrics of the epoch whose state the model is left in."""
    record = report.history[report.best_epoch - 1] if report.best_epoch else {}
    return {
        name.removeprefix("val/"): value
        for name, value in record.items()
        if name.startswith("val/")
    }


def _count_parameters(model: Model) -> int:
    """Numbers that were fitted, tables included."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, SAVED_VARIABLES)))


def _environment() -> dict[str, str | None]:
    """Versions, device and commit that a result came from."""
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    device = jax.devices()[0].device_kind
    return {
        "python": platform.python_version(),
        "clickexp": __version__,  # that of the files, which need not be installed
        **versions,
        "device": device,
        "git_commit": _commit(),
    }


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603  # fixed words
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
