"""From a checked configuration to the parts of a run, all data read and nothing trained."""

import dataclasses
import errno
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from clickexp import __version__
from clickexp.data import Dataset
from clickexp.data.batches import batch_like, keys_read
from clickexp.data.feed import Compiled
from clickexp.data.inspect.copies import ListHashes
from clickexp.data.inspect.identifiability import (
    ENOUGH_SESSIONS,
    Identifiability,
    identifiability,
)
from clickexp.data.log_format import LogFormat
from clickexp.data.prepared import open_prepared
from clickexp.errors import ConfigError, DataError, with_class
from clickexp.evaluation.evaluate import check_lists, check_metrics, compiled_test
from clickexp.evaluation.evaluator import CompiledEvaluation
from clickexp.evaluation.groups import MetricGroup
from clickexp.evaluation.references import Reference, rank_ctr
from clickexp.experiment.differences import finishing_command
from clickexp.experiment.resolve import Config
from clickexp.loggers import ConsoleLogger, FanOut, Logger
from clickexp.models import Model, Ranker
from clickexp.parameters.base import check_click_rate
from clickexp.parameters.layouts import describe_layouts, layouts_of
from clickexp.propensities import Weighting
from clickexp.runs.hashing import flat, hashed, identity
from clickexp.runs.run import Origin
from clickexp.runs.sources import sources
from clickexp.runs.store import CHECKPOINT, OVERRIDES, RESULT, read_document
from clickexp.training.accelerators import keep_precision
from clickexp.training.base import BaseTrainer
from clickexp.training.checkpoint import check_same
from clickexp.training.spread import computing_on
from clickexp.utils import hosts, threads
from clickexp.utils.programs import forget_programs
from clickexp.utils.signatures import accepted

if TYPE_CHECKING:
    from clickexp.updates.chain import Continued, EarlierRun

_MANY_IDS = 1_000_000
"""The largest id below which tables are small, however few documents a log shows."""
_SPARSE = 20
"""The largest id over the documents that a log shows, from which on ids are taken for hashes."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """Parts of a run.

    Attributes:
        config: The configuration that they were built from.
        folder: Where the run writes its files.
        dataset: Sessions for training, validation and test.
        model: As it is before training.
        trainer: Holds the optimizer, the metrics of the validation and the logger.
        metrics: By group, such as click and ranking.
        logger: Receives what the run reports.
        origin: What the data are, by content; see `origin_of_lists`.
        list_hashes: Of all their lists, which a thread computes.
        continued: What the model goes on from, where an earlier run gives its prior.
    """

    config: Config
    folder: Path
    dataset: Dataset
    model: Model
    trainer: BaseTrainer
    metrics: Mapping[str, MetricGroup]
    logger: Logger
    origin: Origin
    list_hashes: Future[ListHashes]
    continued: "Continued | None" = None

    @property
    def groups(self) -> dict[str, MetricGroup]:
        """Metrics by group, those of clicks as the trainer has them."""
        return {**self.metrics, "click": self.trainer.metric_groups["click"]}

    @cached_property
    def test(self) -> CompiledEvaluation:
        """The evaluation of the model on the test sessions."""
        return compiled_test(
            self.model,
            self.dataset,
            self.groups,
            self.trainer.evaluator,
            keep_values=self.config.settings.keep_values,
        )

    @cached_property
    def weighting(self) -> Weighting | None:
        """Clicks in training as the weights of a ranker leave them; None without weights."""
        if not isinstance(self.model, Ranker):
            return None
        return self.model.debias.weighting(self.dataset.train)

    @cached_property
    def rank_ctr(self) -> Reference:
        """The reference that knows no document."""
        return rank_ctr(self.dataset)

    @property
    def origin_of_lists(self) -> Origin:
        """The origin, with the hash of all lists."""
        return with_lists(self.origin, self.list_hashes.result())

    @property
    def metric_weightings(self) -> dict[str, Weighting]:
        """Clicks of the test sessions as weights of metrics leave them, by metric."""
        groups = self.metrics.values()
        return {name: weights for group in groups for name, weights in group.weightings.items()}

    @cached_property
    def links(self) -> Identifiability:
        """The positions, or cells of layouts, that training sessions compare, by documents of earlier logs, too."""
        train = self.dataset.train
        links = identifiability(train, ENOUGH_SESSIONS, layouts_of(self.model))
        return links if self.continued is None else self.continued.linked(links, self.model, train)


def build(config: Config, folder: Path, logger: Logger) -> Parts:
    """Reads the dataset, builds the model, and gives the trainer what it lacks.

    Args:
        config: From `resolve`.
        folder: Of the run, in the first of several processes. Training continues from a checkpoint there, unless
            `continue_from` names another folder.
        logger: Receives the progress of reading, and what the trainer reports.

    Raises:
        ConfigError: The checkpoint is of another configuration, or a tower reads what the dataset does not have.
        DataError: The data cannot be used, or does not fit the model.
    """
    settings, identified = config.settings, identity(config.values)
    run = _earlier_run(config)
    identified |= {} if run is None else run.identity()
    share_compilations(Path(settings.cache_dir))
    forget_programs()
    folder = Path(hosts.join(str(folder)))
    keep_precision()
    config.trainer.check_machine()
    earlier = _earlier(settings.continue_from, identified)
    # before reading, so that what changes meanwhile counts as changed
    read = sources(config.values)
    dataset = _read(config, run, logger).first(settings.max_sessions)
    check_click_rate(dataset.click_rate)
    list_hashes = threads.result_of(ListHashes.of, (dataset.train, dataset.val, dataset.test))
    origin = Origin(
        sources=read,
        fingerprint=dataset.fingerprint(),
        directory=str(Path.cwd()),
        until=dataset.until,
    )
    settings_of_run = flat(hashed(config.values))
    hosts.check_same({"version": __version__, **settings_of_run, "log": origin.fingerprint})
    if run is not None:
        run.check(dataset, with_lists(origin, list_hashes.result()))
        dataset = dataset.covering(run.query_doc_pairs, *run.sizes)
    with computing_on(config.trainer.devices):
        model = build_model(config.new_model, dataset, settings.seed)
        dataset = model.prepare(dataclasses.replace(dataset, largest=dict(dataset.columns.known)))
        continued = None if run is None else run.continued(model, origin.until)
        _check_features(model, config.reads, dataset)
        if (advice := _unread_columns(model, config.values, dataset)) is not None:
            logger.warning(advice)
        check_lists(model, dataset, config.metrics)
        check_metrics(model, dataset, config.metrics)
        metrics = {key: group.prepare(dataset) for key, group in config.metrics.items()}
        validated = {key: metrics[key] for key in config.trainer.metric_groups if key != "click"}
        prior = {} if continued is None else continued.training
        trainer = config.trainer.copy_with(
            **prior,
            groups=validated,
            logger=logger,
            settings=identified,
            checkpoint=folder / CHECKPOINT,
            continue_from=earlier,
        )
        if continued is not None:
            continued = continued.tested(model, trainer, dataset)
        return Parts(
            config, folder, dataset, model, trainer, metrics, logger, origin, list_hashes, continued
        )


def with_lists(origin: Origin, hashes: ListHashes) -> Origin:
    """Returns an origin with the hash of all lists."""
    return origin.model_copy(update={"digest": hashes.digest})


def _read(config: Config, run: "EarlierRun | None", logger: Logger) -> Dataset:
    """Reads the dataset, whose documents have the ids of an earlier run where its format can give them."""

    def report(done: int, total: int, where: str = "", /) -> None:
        logger.progress("read", 0, done, total)

    numberings = {} if run is None or not numbers_ids(config.open_dataset) else run.numberings
    dataset = config.open_dataset(
        **accepted(config.open_dataset, {"progress": report}), **numberings
    )
    for part in dataset.parts.values():
        part.check_stored_ids()
    if (advice := _sparse_ids(dataset)) is not None:
        logger.warning(advice)
    return dataset


def _earlier_run(config: Config) -> "EarlierRun | None":
    """The run whose posterior is the prior; None where the configuration names none."""
    if config.prior.run is None:
        return None
    # here, since it needs libraries that other runs do without
    from clickexp.updates.chain import EarlierRun

    run = EarlierRun.read(config.prior)
    run.check_trainer(config.trainer)
    return run


def _sparse_ids(dataset: Dataset) -> str | None:
    """A warning of ids such as hashes, of which most are no document's, so that tables are too large."""
    most = sum(part.count * part.ranks for part in dataset.parts.values())
    if dataset.query_doc_pairs < max(_MANY_IDS, _SPARSE * most):
        return None
    return (
        f"query-document ids go up to {dataset.query_doc_pairs:,}, while the log shows {most:,} documents at most: a "
        "whole table has a row for each id. dataset.pair_key=query_document or document numbers those of the log."
    )


def _unread_columns(model: Model, values: Mapping[str, Any], dataset: Dataset) -> str | None:
    """A warning of columns that a configuration declares for the model, and that it does not read."""
    columns = values["dataset"].get("columns") or {}
    features = values["dataset"].get("features") or ()
    declared = [
        key for key, value in columns.items() if isinstance(value, Mapping) and key not in features
    ]
    if not declared:
        return None
    model.eval()
    read = keys_read(model.compute_loss, batch_like(dataset.train))
    unread = [key for key in declared if key not in read]
    if not unread:
        return None
    return (
        f"the model does not read the columns that dataset.columns declares: {', '.join(unread)}. Towers read those in "
        "their use_feature, and models of your own by name."
    )


def numbers_ids(read: partial[Any]) -> bool:
    """Returns whether a reader can give documents the ids of another log."""
    return isinstance(read.func, LogFormat) or read.func is open_prepared


def build_model(new_model: Callable[..., Model], dataset: Dataset, seed: int) -> Model:
    """Builds a model for a dataset, whose sizes it receives as far as it asks for them.

    Args:
        new_model: A class, or a partial of one.
        dataset: The training data.
        seed: Of the initial values.
    """
    sizes = {
        "positions": dataset.positions,
        "query_doc_pairs": dataset.query_doc_pairs,
        "click_rate": dataset.click_rate,
        "features": dataset.train.feature_lengths,
        "columns": dataset.columns,
        "standardized": dataset.train.standardized,
    }
    model = new_model(**accepted(new_model, sizes), rngs=nnx.Rngs(seed))
    describe_layouts(model, dataset.categories, dataset.train)
    return model


@contextmanager
def open_loggers(config: Config) -> Iterator[Logger]:
    """The loggers of a configuration and the console, as one; on leaving, they learn whether the run succeeded."""
    trainer, stopping = config.trainer, getattr(config.trainer, "early_stopping", None)
    passes = getattr(trainer, "epochs", None) or getattr(trainer, "iterations", None)
    console = ConsoleLogger(
        config.settings.progress, f"val/{stopping.metric if stopping else 'll'}", passes=passes
    )
    logger, succeeded = FanOut([console, *config.loggers.values()]), False
    Compiled.listener = logger.compiling
    try:
        yield logger
        succeeded = True
    except Exception as error:
        logger.failed(with_class(error))
        raise
    finally:
        Compiled.listener = None
        logger.finish(succeeded)


def _earlier(folder: str | None, identified: dict[str, Any]) -> Path | None:
    """The checkpoint in the folder of an earlier run; a ConfigError where there is none, or one of other settings."""
    if folder is None:
        return None
    earlier = Path(folder)
    if not earlier.is_dir():
        raise ConfigError(
            f"continue_from={earlier}: there is no such folder. Give the folder of an interrupted run."
        )
    checkpoint = earlier / CHECKPOINT
    try:
        if checkpoint.exists() and not checkpoint.is_file():
            raise OSError(errno.EINVAL, "it is no file")  # a pipe would be waited for
        checkpoint.open("rb").close()
        check_same(checkpoint, {"settings": identified})
    except OSError as error:
        reason = f"{CHECKPOINT} cannot be read ({error.strerror}); the first is there after trainer.checkpoint_minutes"
        if (earlier / RESULT).exists():
            reason = f"this run has finished, {RESULT} has its result. Give the folder of an interrupted run."
        raise ConfigError(f"continue_from={earlier}: {reason}") from error
    except ValueError as error:
        words = read_document(earlier / OVERRIDES)
        command = (
            f". This continues it: {finishing_command(earlier, words)}"
            if isinstance(words, list)
            else ""
        )
        raise ConfigError(
            f"continue_from={earlier}: the checkpoint cannot be used: {error}{command}"
        ) from error
    return earlier / CHECKPOINT


def share_compilations(folder: Path) -> None:
    """Lets processes share what XLA compiles, in a folder of the cache, unless JAX was given another one."""
    # another process may be writing what this one reads, which then compiles
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    # it lists each backend that it did not find
    logging.getLogger("jax").setLevel(logging.WARNING)
    if jax.config.values["jax_compilation_cache_dir"] is None:
        shared = folder.expanduser().absolute() / "xla"
        jax.config.update("jax_compilation_cache_dir", str(shared))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _check_features(model: Model, reads: Mapping[str, str], dataset: Dataset) -> None:
    """ConfigError for a tower that reads what batches of the dataset do not have. reads: `Config.reads`."""
    if reads.keys() <= {"query_doc_ids", "positions", *dataset.train.feature_lengths}:
        return
    model.eval()
    try:  # models may add keys, such as UBM's examination_idx
        jax.eval_shape(model.compute_loss, batch_like(dataset.train))
    except DataError as error:
        key = error.__cause__.args[0] if isinstance(error.__cause__, KeyError) else ""
        if key not in reads:
            raise
        raise ConfigError(f"{reads[key]}={key}: {error}") from error
