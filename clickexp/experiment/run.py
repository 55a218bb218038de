"""One experiment: data, model, training, evaluation, and the files that tell of it."""

import dataclasses
import importlib.metadata
import inspect
import logging
import platform
import re
import subprocess
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import hydra
import jax
import optax
import rich
from flax import nnx
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from rich.markup import escape
from rich.tree import Tree

from clickexp.data import Dataset
from clickexp.data.batches import batch_like
from clickexp.data.dataset import check_split
from clickexp.data.inspect.identifiability import identifiability
from clickexp.data.prepared import is_log
from clickexp.errors import ConfigError, DataError, UserError
from clickexp.evaluation.evaluate import HeldOut, check_lists, evaluate, validation_metrics
from clickexp.experiment.hydra_errors import keys_of
from clickexp.experiment.mixtures import roles_of, with_components
from clickexp.experiment.overrides import ROLES, TOWERS, parsed
from clickexp.loggers import ConsoleLogger, FanOut, RunInfo
from clickexp.loggers.jsonl import plain
from clickexp.metrics import Metric, MultiMetric
from clickexp.models import ClickModel, Model
from clickexp.runs.objective import check_objective
from clickexp.runs.store import (
    CHECKPOINT,
    CONFIG,
    MODEL,
    NOT_HASHED,
    RESULT,
    config_hash,
    identity,
    values,
    write_json,
)
from clickexp.training import FitReport, Optimizer, Trainer, with_rate
from clickexp.training.checkpoint import KEPT, check_same, save_model
from clickexp.training.em.estimation import EstimatingTrainer
from clickexp.training.memory import peak_memory
from clickexp.types import SHOWN_FIRST
from clickexp.utils.bounds import PositiveInt, Seed
from clickexp.utils.files import whole
from clickexp.utils.paths import display_path
from clickexp.utils.signatures import accepted, check_arguments, located
from clickexp.utils.suggest import did_you_mean

UNTOLD = (*ROLES, "reproduction")
"""Keys at the root whose content stands where it is used."""
PARTS = ("dataset", "model", "metric", "optimizer", "trainer", "logger", "search", *UNTOLD)
PRESETS = ("experiment", "sweep", "variant", "debug", "launcher")
TEST_PARTS = ("test", "ranking", "truth")
NOT_TOLD = (*NOT_HASHED, "seed", "keep_values")
NAMED = ("model", "dataset", "dataset.path", "dataset.name")
"""Overrides that the names of model and dataset stand for."""
ENOUGH_SESSIONS = 2_000_000  # link all positions of most logs; the rest is read only if they do not
VERSIONS = ("clickexp", "jax", "flax", "optax", "rax", "hydra-core", "numpy")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys at the root of the configuration, besides its parts and roles."""

    seed: Seed
    progress: Literal["auto", "bar", "plain", "off"]
    max_sessions: PositiveInt | None
    save_model: bool
    keep_values: bool
    resume: bool
    continue_from: str | None
    sweeps_dir: str
    cache_dir: str
    optimized_metric: str
    project: str
    group: str | None
    tags: list[str]
    notes: str | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A configuration that no check without the data has found fault with, and what is built of it by then."""

    config: dict[str, Any]
    settings: Settings
    metrics: dict[str, Any]
    optimizer: Any
    new_trainer: Callable[..., Trainer]
    read: Callable[..., Dataset]
    new_model: Callable[..., Model]


def plan(cfg: DictConfig, overrides: Sequence[str] = ()) -> Plan:
    """ConfigError for what can be known to be wrong before data is read. Starts no device and writes nothing."""
    config = with_components(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True), overrides)
    check_parts(config)
    settings = accepted(Settings, config)
    check_arguments(Settings, settings, "")
    settings = Settings(**settings)
    check_added(cfg, overrides)
    metrics, optimizer = build(config["metric"], "metric"), build_optimizer(config["optimizer"])
    check_metrics(metrics)
    _check(config.get("logger"), "logger")
    new_trainer = constructor(config["trainer"], "trainer")
    trainer = new_trainer(**accepted(new_trainer, dict(optimizer=optimizer, **validated(config, metrics))))
    check_objective(settings.optimized_metric, reported(trainer, metrics))
    read, new_model = constructor(config["dataset"], "dataset"), constructor(config["model"], "model")
    check_estimates(trainer, new_model)
    check_vectors(config, read)
    parts = [config["dataset"].get(f"{part}_sessions") for part in ("train", "val", "test")]
    if None not in parts:
        check_split(*parts)
    return Plan(config, settings, metrics, optimizer, new_trainer, read, new_model)


def run_experiment(
    cfg: DictConfig,
    folder: Path,
    sweep: str | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Runs the configured experiment, writes its files into the folder and returns what result.json holds.

    sweep: name of the sweep that the run is part of. overrides: those that cfg was composed with, which the
    components of a mixture are composed with, too. A checkpoint in the folder is where training continues.
    UserError for what the configuration or the data have wrong, before training starts.
    """
    logging.getLogger("jax._src.xla_bridge").setLevel(
        logging.WARNING
    )  # tells of every backend it did not find
    planned = plan(cfg, overrides)
    config, settings, metrics = planned.config, planned.settings, planned.metrics
    share_compilations(Path(settings.cache_dir))
    loggers = build(config.get("logger") or {}, "logger")
    logger = FanOut([ConsoleLogger(settings.progress), *loggers.values()])
    checkpoint = folder / CHECKPOINT
    parts = dict(optimizer=planned.optimizer, **validated(config, metrics), logger=logger, checkpoint=checkpoint,
                 must_continue=settings.continue_from is not None, settings=identity(config))  # fmt: skip
    trainer = planned.new_trainer(**accepted(planned.new_trainer, parts))
    if settings.continue_from is not None:
        check_continues(settings.continue_from, checkpoint, config)
    finished = False
    try:
        read = planned.read
        dataset = read(**accepted(read, {"progress": partial(logger.progress, "read", 0)}))
        dataset = dataset.first(settings.max_sessions)
        model = build_model(planned.new_model, dataset, settings.seed)
        check_features(model, config["model"], dataset)
        check_lists(model, dataset, metrics)
        show(config)
        with whole(folder / CONFIG) as part:
            part.write_text(OmegaConf.to_yaml(config))
        told = told_config(config, model, dataset, values(overrides))
        logger.start(run_info(told, settings, folder, f"{model.name}-{dataset.name}-{settings.seed}", sweep))
        for line in (*unused_towers(cfg, overrides, model.name), dataset.describe()):
            logger.message(line)
        if model.separates_examination:
            links = identifiability(dataset.train, ENOUGH_SESSIONS)
            if not links.identified:
                logger.message(links.describe())
        held_out = HeldOut.validation(dataset)
        lists = held_out.lists if trainer.groups["ranking"] else None
        report = trainer.train(model, dataset.train, dataset.val, val_lists=lists, truth=dataset.truth)
        groups = {**metrics, "click": trainer.groups["click"]}
        evaluation = evaluate(model, dataset, groups, trainer.evaluation, keep_values=settings.keep_values)
        result = {
            "model": model.name,
            "dataset": dataset.name,
            "seed": settings.seed,
            "val": best_validation(report),
            "per_rank_val": report.per_rank,
            **evaluation.result(),
            "train": {**report.summary(), **peak_memory()},
            "parameters": count_parameters(model),
            "test_set": dataset.test_set(),
            "data": dataset.sizes(),
            "environment": environment(),
            "config_hash": config_hash(config),
        }
        if settings.keep_values:
            result["intervals"] = evaluation.keep(dataset, folder)
        if settings.save_model:
            save_model(model, folder / MODEL)
        write_result(result, folder)  # last: what has a result is finished
        checkpoint.unlink(missing_ok=True)
        logger.per_rank("val", result["per_rank_val"])
        logger.per_rank("test", result["per_rank"])
        logger.result(result)
        logger.message(f"results in {display_path(folder)}")
        finished = True
    finally:
        logger.finish(finished)
    return result


def share_compilations(folder: Path) -> None:
    """Lets processes share what XLA compiles, however little time it took, unless JAX is told another folder."""
    # another may be writing what this one wants to read, which then compiles
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(folder.absolute() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def check_parts(config: Mapping[str, Any]) -> None:
    """ConfigError where a part that every run needs is missing or describes nothing."""
    for part in ("dataset", "model", "optimizer", "trainer"):
        node = config.get(part)
        if node is None:
            raise ConfigError(f"{part} cannot be left out; choose one by {part}=..., see clickexp --help")
        if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
            raise ConfigError(f"{part}: the option that was chosen has no _target_, the class or function to call")
    if not isinstance(config.get("metric"), dict):
        raise ConfigError("metric cannot be left out; choose one or several by metric=..., see clickexp --help")
    for role in ROLES:
        if isinstance(config.get(role), str):
            raise ConfigError(
                f"{role}={config[role]}: a file chooses the tower of a role in its defaults list: "
                f"override /{TOWERS}@{role}: {config[role]}"
            )


def check_added(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """ConfigError for a key that +KEY=VALUE added at the root and that no interpolation reads."""
    known = {*Settings.__dataclass_fields__, *PARTS}
    added = {
        override.key_or_group.split(".")[0]: override
        for override in parsed(overrides)
        if override.is_add() or override.is_force_add()
    }
    for key in (added.keys() & cfg.keys()) - known:
        if any(key in reads for reads in interpolations(OmegaConf.to_container(cfg, resolve=False))):
            continue
        places = [name for name in keys_of(cfg) if name.split(".")[0] != key]
        meant = did_you_mean(added[key].key_or_group, [*places, *(f"+{preset}" for preset in PRESETS)])
        raise ConfigError(f"{added[key].input_line}: nothing reads it.{meant}")


def interpolations(node: Any) -> Iterator[set[str]]:
    """The words of each interpolation in an unresolved configuration."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from interpolations(value)
    if isinstance(node, str) and "${" in node:
        yield set(re.findall(r"\w+", node))


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """ConfigError for what is no metric where there are only metrics."""
    for part in ("click", *TEST_PARTS):
        group = metrics.get(part) or {}
        for name, metric in group.items() if isinstance(group, dict) else [("", group)]:
            if not isinstance(metric, Metric):
                key = f"metric.{part}.{name}".rstrip(".")
                raise ConfigError(f"{key}={metric!r} is no metric; ~{key} leaves it out")


def check_estimates(trainer: Trainer, new_model: Callable[..., Model]) -> None:
    """ConfigError for a trainer that estimates by counting, but not this model."""
    model = getattr(new_model, "func", new_model)
    if isinstance(trainer, EstimatingTrainer) and inspect.isclass(model) and issubclass(model, ClickModel):
        trainer.expectation(model, **getattr(new_model, "keywords", {}))


def check_continues(earlier: str, checkpoint: Path, config: dict[str, Any]) -> None:
    """ConfigError where the checkpoint of the earlier run is of another configuration, by the settings that differ."""
    try:
        check_same(checkpoint, {"settings": identity(config)})
    except ValueError as error:
        raise ConfigError(f"continue_from={earlier}: the checkpoint cannot be used: {error}") from error


def unused_towers(cfg: DictConfig, overrides: Sequence[str], model: str) -> list[str]:
    """A line for each override of a role that the model takes no tower for, as in a sweep over several models."""
    role_of = {o.input_line: (o.package or o.key_or_group).split(".")[0] for o in parsed(overrides)}
    given = {role: override for override, role in role_of.items() if role in ROLES}
    taken = roles_of(cfg, overrides) if given else set()
    takes = ", ".join(role for role in ROLES if role in taken) or "none"
    return [
        f"{override} has no effect: {model} takes no tower of {role} (it takes {takes})"
        for role, override in given.items()
        if role not in taken
    ]


def told_config(
    config: dict[str, Any], model: Model, dataset: Dataset, given: dict[str, Any]
) -> dict[str, Any]:
    """The configuration for a reader of many: each tower once, where the model takes it, and three things more.

    `model.name` and `dataset.name` as results have them; `overrides`; `experiment`, in words, the same for runs that
    differ in their seed only.
    """
    own = {
        key: value for key, value in given.items() if key.split(".")[0] not in NOT_TOLD and key not in NAMED
    }
    experiment = [model.name, dataset.name, *(f"{key}={value}" for key, value in own.items())]
    return {
        "experiment": ", ".join(experiment),
        **{name: value for name, value in config.items() if name not in UNTOLD},
        "model": {**config["model"], "name": model.name},
        "dataset": {**config["dataset"], "name": dataset.name},
        "overrides": given,
    }


def run_info(
    config: dict[str, Any], settings: Settings, folder: Path, name: str, sweep: str | None
) -> RunInfo:
    return RunInfo(
        folder=folder,
        config=config,
        name=name,
        project=settings.project,
        group=settings.group or sweep,
        job_type="sweep" if sweep else "run",
        tags=tuple(settings.tags),
        notes=settings.notes,
    )


def stated_directions(config: Mapping[str, Any]) -> dict[str, bool | None]:
    """Which way the metrics of a configuration are better, by name. config: its part `metric`."""
    groups = build(config, "metric")
    check_metrics(groups)
    parts = [MultiMetric(groups.get(part) or {}).higher_is_better for part in ("click", *TEST_PARTS)]
    return {name: better for part in parts for name, better in part.items()}


def reported(trainer: Trainer, metrics: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of the metrics that a run may report for each part of its result."""
    val = [*(name for group in trainer.groups.values() for name in MultiMetric(group).names), "loss"]
    others = [name for part in TEST_PARTS for name in MultiMetric(metrics.get(part, {})).names]
    return {"val": val, "test": list(dict.fromkeys([*val, *others]))}


def validated(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the trainer: metrics of the validation, with those that early stopping and search watch."""
    watched = (config["trainer"].get("early_stopping") or {}).get("metric"), config["optimized_metric"]
    return validation_metrics(metrics, [name.removeprefix("val/") for name in watched if name])


def best_validation(report: FitReport) -> dict[str, float]:
    """Validation metrics of the epoch whose state the model is left in."""
    record = report.history[report.best_epoch - 1] if report.best_epoch else {}
    return {name.removeprefix("val/"): value for name, value in record.items() if name.startswith("val/")}


def build(node: Any, where: str) -> Any:
    """What a part of the configuration describes by _target_, its plain values checked first."""
    _check(node, where)
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise cause if isinstance(cause, UserError) else ConfigError(f"{where}: {cause}") from error


def constructor(node: dict[str, Any], where: str) -> Callable[..., Any]:
    """The same, still waiting for arguments that no configuration can hold."""
    return build({**node, "_partial_": True}, where)


def build_optimizer(node: dict[str, Any]) -> Optimizer | optax.GradientTransformation:
    """The optimizer; the learning rate of a rule of Optax is data, so that a sweep over rates compiles once.

    A function from elsewhere may need its rate as a number.
    """
    optimizer = build(node, "optimizer")
    if not (isinstance(optimizer, optax.GradientTransformation) and node["_target_"].startswith("optax.")):
        return optimizer
    rate = node.get("learning_rate")
    rest = {name: value for name, value in node.items() if name != "learning_rate"}
    return with_rate(constructor(rest, "optimizer"), rate) if isinstance(rate, (int, float)) else optimizer


def _check(node: Any, where: str, shared: Container[str] = ()) -> None:
    """shared: roles of towers that the components of a mixture have in common, which they name in place of a tower."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return
    if "_target_" in node:
        check_arguments(_target(node["_target_"], where), _own_arguments(node, shared), where)
        shared = node.get("shared") or ()
    for name, value in node.items():
        _check(value, f"{where}.{name}", shared)


def _target(path: Any, where: str) -> Callable[..., Any]:
    try:
        return located(str(path))
    except ConfigError as error:
        raise ConfigError(f"{where}._target_={error}") from error


def _own_arguments(node: Mapping[str, Any], shared: Container[str] = ()) -> dict[str, Any]:
    """Those of a node that are checked: not the roles that a component of a mixture names for its shared towers."""
    return {
        name: value
        for name, value in node.items()
        if not (name.startswith("_") or (isinstance(value, str) and value in shared))
    }


def build_model(new_model: Callable[..., Model], dataset: Dataset, seed: int) -> Model:
    """The model, told the sizes of the data as far as it asks for them."""
    sizes = dict(
        positions=dataset.positions,
        query_doc_pairs=dataset.query_doc_pairs,
        click_rate=dataset.click_rate,
        features=dataset.train.feature_lengths,
    )
    return new_model(**accepted(new_model, sizes), rngs=nnx.Rngs(seed))


def check_vectors(config: dict[str, Any], read: Callable[..., Dataset]) -> None:
    """ConfigError for a tower over feature vectors where the format of the dataset is known to have none."""
    reader, path = getattr(read, "func", read), config["dataset"].get("path")
    if getattr(reader, "has_features", True) or (path is not None and is_log(Path(path).expanduser())):
        return
    for key, value in leaves(config["model"], "model"):
        if key.endswith(".use_feature") and value == "query_doc_features":
            from clickexp.experiment.formats import FORMATS  # here, since it imports every reader

            have = [f"dataset={name}" for name, opener in FORMATS.items() if opener.has_features]
            raise ConfigError(
                f"{key.removesuffix('.use_feature')} reads {value}, which this dataset does not have; choose one that "
                f"has, such as {' or '.join(have)}, or another tower, such as embedding"
            )


def check_features(model: Model, node: Any, dataset: Dataset) -> None:
    """ConfigError for a tower that reads what batches of the dataset do not have. node: the model's."""
    read = {value: key for key, value in leaves(node, "model") if key.endswith(".use_feature")}
    present = {"query_doc_ids", "positions", *dataset.train.feature_lengths}
    if not read.keys() - present:
        return
    batch = batch_like(dataset.train)
    model.eval()
    try:  # models may add keys, such as UBM's examination_idx
        jax.eval_shape(model.compute_loss, batch)
    except DataError as error:
        key = error.__cause__.args[0] if isinstance(error.__cause__, KeyError) else None
        if key not in read:
            raise
        there = ", ".join(sorted({*batch} - {"lengths", SHOWN_FIRST}))
        raise ConfigError(f"{read[key]}={key}: batches of {dataset.name} have {there}") from error


def leaves(node: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a part of the configuration."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in pairs:
        yield from leaves(value, f"{where}.{name}")
    if not isinstance(node, dict | list):
        yield where, node


def count_parameters(model: Model) -> int:
    """Numbers that were fitted, tables included."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, KEPT)))


def show(config: dict[str, Any]) -> None:
    """Prints the configuration as a tree; a role's tower stands where the model takes it."""

    def grow(tree: Tree, node: dict[str, Any]) -> None:
        for name, value in node.items():
            if isinstance(value, list) and any(isinstance(item, dict) for item in value):
                value = dict(enumerate(value))
            if isinstance(value, dict):
                grow(tree.add(f"[bold]{escape(str(name))}[/] {escape(value.get('_target_', ''))}"), value)
            elif name not in ("_target_", "_partial_"):
                tree.add(escape(f"{name}: {value}"))

    tree = Tree("[bold]configuration", guide_style="dim")
    grow(tree, {name: value for name, value in config.items() if name not in UNTOLD})
    rich.print(tree)


def environment() -> dict[str, str | None]:
    """Versions, device and commit that a result came from."""
    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    return {
        "python": platform.python_version(),
        **versions,
        "device": jax.devices()[0].device_kind,
        "git_commit": _commit(),
    }


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def write_result(result: dict[str, Any], folder: Path) -> None:
    """Writes result.json whole or not at all."""
    write_json(plain(result), folder / RESULT)
