"""One experiment: data, model, training, evaluation, and the files that tell of it."""

import dataclasses
import difflib
import importlib.metadata
import inspect
import logging
import platform
import re
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
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

from clickexp.components import roles_of, with_components
from clickexp.construct import accepted, check_arguments
from clickexp.data import Dataset
from clickexp.data.identifiability import identifiability
from clickexp.errors import ConfigError, UserError
from clickexp.evaluate import evaluate
from clickexp.loggers import ConsoleLogger, FanOut, RunInfo
from clickexp.loggers.jsonl import plain
from clickexp.metrics import Metric, MultiMetric
from clickexp.models import ClickModel
from clickexp.objective import check_objective
from clickexp.paths import shown
from clickexp.sweeps.resume import CHECKPOINT, NOT_HASHED, RESULT, config_hash, values, write_json
from clickexp.training import FitReport, Optimizer, Trainer, with_rate
from clickexp.training.checkpoint import KEPT, save_model
from clickexp.training.estimation import EstimatingTrainer
from clickexp.training.memory import peak_memory

ROLES = (
    "attraction",
    "satisfaction",
    "examination",
    "continuation",
    "true_positive",
    "false_positive",
)
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

    seed: int
    progress: Literal["auto", "bar", "plain", "off"]
    max_sessions: int | None
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
    config = with_components(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True), overrides)
    settings = accepted(Settings, config)
    check_arguments(Settings, settings, "")
    settings = Settings(**settings)
    if settings.max_sessions is not None and settings.max_sessions < 1:
        raise ConfigError(f"max_sessions={settings.max_sessions}: give at least 1, or null")
    check_added(cfg, overrides)
    share_compilations(Path(settings.cache_dir))
    metrics, loggers = (build(config[part], part) for part in ("metric", "logger"))
    optimizer = build_optimizer(config["optimizer"])
    check_metrics(metrics)
    logger = FanOut([ConsoleLogger(settings.progress), *loggers.values()])
    new_trainer = constructor(config["trainer"], "trainer")
    checkpoint = folder / CHECKPOINT
    parts = dict(optimizer=optimizer, metrics=metrics.get("click"), logger=logger, checkpoint=checkpoint,
                 must_continue=settings.continue_from is not None)  # fmt: skip
    trainer = new_trainer(**accepted(new_trainer, parts))
    check_objective(settings.optimized_metric, reported(trainer, metrics))
    read, new_model = constructor(config["dataset"], "dataset"), constructor(config["model"], "model")
    check_estimates(trainer, new_model)
    show(config)
    finished = False
    try:
        dataset = read(**accepted(read, {"progress": partial(logger.progress, "read", 0)}))
        dataset = dataset.first(settings.max_sessions)
        model = build_model(new_model, dataset, settings.seed)
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
        told = told_config(config, model, dataset, values(overrides))
        logger.start(run_info(told, settings, folder, f"{model.name}-{dataset.name}-{settings.seed}", sweep))
        for line in (*unused_towers(cfg, overrides, model.name), dataset.describe()):
            logger.message(line)
        if model.separates_examination:
            links = identifiability(dataset.train, ENOUGH_SESSIONS)
            if not links.identified:
                logger.message(links.describe())
        report = trainer.train(model, dataset.train, dataset.val)
        evaluation = evaluate(model, dataset, trainer, metrics, keep_values=settings.keep_values)
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
        write_result(result, folder)
        checkpoint.unlink(missing_ok=True)
        if settings.save_model:
            save_model(model, folder / "model.npz")
        logger.per_rank("val", result["per_rank_val"])
        logger.per_rank("test", result["per_rank"])
        logger.result(result)
        logger.message(f"results in {shown(folder)}")
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


def check_added(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """ConfigError for a key that +KEY=VALUE added at the root and that no interpolation reads."""
    known = {*Settings.__dataclass_fields__, *PARTS}
    added = {
        override.lstrip("+").split("=")[0].split(".")[0]: override
        for override in overrides
        if override[0] == "+"
    }
    for key in (added.keys() & cfg.keys()) - known:
        if re.search(rf"\$\{{[^}}]*\b{key}\b", OmegaConf.to_yaml(cfg)):
            continue
        meant = difflib.get_close_matches(key, [*known, *PRESETS], 1)
        raise ConfigError(
            f"{added[key]}: nothing reads it." + (f" Did you mean {meant[0]}?" if meant else "")
        )


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """ConfigError for what is no metric where there are only metrics."""
    for part in ("click", *TEST_PARTS):
        group = metrics.get(part) or {}
        for name, metric in group.items() if isinstance(group, dict) else [("", group)]:
            if not isinstance(metric, Metric):
                key = f"metric.{part}.{name}".rstrip(".")
                raise ConfigError(f"{key}={metric!r} is no metric; ~{key} leaves it out")


def check_estimates(trainer: Trainer, new_model: Callable[..., ClickModel]) -> None:
    """ConfigError for a trainer that estimates by counting, but not this model."""
    model = getattr(new_model, "func", new_model)
    if isinstance(trainer, EstimatingTrainer) and inspect.isclass(model) and issubclass(model, ClickModel):
        trainer.expectation(model.name_with(**getattr(new_model, "keywords", {})))


def unused_towers(cfg: DictConfig, overrides: Sequence[str], model: str) -> list[str]:
    """A line for each override of a role that the model takes no tower for, as in a sweep over several models."""
    matches = [re.match(r"(?:parameter@)?(\w+)[.=]", override) for override in overrides]
    given = {match[1]: match.string for match in matches if match and match[1] in ROLES}
    taken = roles_of(cfg, overrides) if given else set()
    takes = ", ".join(role for role in ROLES if role in taken) or "none"
    return [
        f"{override} has no effect: {model} takes no tower of {role} (it takes {takes})"
        for role, override in given.items()
        if role not in taken
    ]


def told_config(
    config: dict[str, Any], model: ClickModel, dataset: Dataset, given: dict[str, Any]
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


def reported(trainer: Trainer, metrics: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of the metrics that a run may report for each part of its result."""
    clicks = [*MultiMetric(trainer.metrics).names, "loss"]
    others = [name for part in TEST_PARTS for name in MultiMetric(metrics.get(part, {})).names]
    return {"val": clicks, "test": [*clicks, *others]}


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


def _check(node: Any, where: str) -> None:
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, dict):
        return
    if "_target_" in node:
        arguments = {name: value for name, value in node.items() if not name.startswith("_")}
        try:
            check_arguments(hydra.utils.get_object(node["_target_"]), arguments, where)
        except (ImportError, ValueError) as error:
            raise (
                error if isinstance(error, UserError) else ConfigError(f"{where}._target_: {error}")
            ) from error
    for name, value in node.items():
        _check(value, f"{where}.{name}")


def build_model(new_model: Callable[..., ClickModel], dataset: Dataset, seed: int) -> ClickModel:
    """The model, told the sizes of the data as far as it asks for them."""
    sizes = dict(
        positions=dataset.positions,
        query_doc_pairs=dataset.query_doc_pairs,
        click_rate=dataset.click_rate,
        features=dataset.train.feature_lengths,
    )
    return new_model(**accepted(new_model, sizes), rngs=nnx.Rngs(seed))


def count_parameters(model: ClickModel) -> int:
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
