"""From a composed configuration to a checked one: what can be known to be wrong without data is found here."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clickexp.data import Dataset
from clickexp.data.dataset import check_split
from clickexp.data.prepared import is_log
from clickexp.errors import ConfigError
from clickexp.evaluation.evaluate import validation_metrics
from clickexp.experiment.conf import TOWERS, metric_options, presets
from clickexp.experiment.instantiate import (
    TEST_PARTS,
    build_metrics,
    build_optimizer,
    check_node,
    constructor,
)
from clickexp.experiment.overrides import CHOSEN, DESCRIBED, SEVERAL, parsed
from clickexp.experiment.values import CONTEXT, Composition, compose_values, plain, walk
from clickexp.metrics import MultiMetric
from clickexp.models import ClickModel, Model
from clickexp.runs.objective import check_objective
from clickexp.training import Trainer
from clickexp.training.em.estimation import EstimatingTrainer
from clickexp.utils.bounds import NonNegativeInt, PositiveInt, Seed
from clickexp.utils.signatures import accepted, check_arguments
from clickexp.utils.suggest import did_you_mean

_PARTS = (*DESCRIBED, *SEVERAL, *CHOSEN, CONTEXT, "search", "reproduction")
"""Groups of keys at the root besides the towers of roles."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The single keys at the root of a configuration; conf/config.yaml explains each."""

    seed: Seed
    progress: Literal["auto", "bar", "plain", "off"]
    max_sessions: PositiveInt | None
    report: bool
    verbose: bool
    save_model: bool
    keep_values: bool
    draws: NonNegativeInt
    shared_intervals: bool
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
class Config:
    """A configuration that no check without the data has found fault with.

    Attributes:
        values: Plain values by key, interpolations resolved.
        settings: The single keys at the root.
        open_dataset: Reads the dataset; takes `progress`, if it reports it.
        new_model: Builds the model; takes the sizes of the dataset.
        metrics: By group (click, test, ranking, truth), metrics by name.
        overrides: Those that it was composed with.
        without_effect: A line for each override of a tower that the model does not take.
    """

    values: dict[str, Any]
    settings: Settings
    open_dataset: Callable[..., Dataset]
    new_model: Callable[..., Model]
    metrics: Mapping[str, Any]
    overrides: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()


def resolve(cfg: DictConfig, overrides: Sequence[str] = ()) -> Config:
    """Resolves and checks a configuration. Starts no device, reads no data and writes nothing.

    Args:
        cfg: What Hydra composed.
        overrides: Those that it was composed with.

    Raises:
        ConfigError: A key is unknown or missing, or a value does not fit.
    """
    composition = compose_values(cfg, overrides)
    values = composition.values
    _check_parts(composition)
    given = accepted(Settings, values)
    check_arguments(Settings, given, "")
    settings = Settings(**given)
    _check_added(cfg, composition, overrides)
    check_node(values.get("logger"), "logger")
    metrics = build_metrics(values["metric"])
    trainer = build_trainer(values, metrics)
    open_dataset, new_model = (constructor(values[part], part) for part in ("dataset", "model"))
    _check_model(new_model)
    check_objective(settings.optimized_metric, _reported(trainer, metrics, new_model))
    _check_estimates(trainer, new_model)
    _check_vectors(values, open_dataset)
    sizes = [values["dataset"].get(f"{part}_sessions") for part in ("train", "val", "test")]
    if None not in sizes:
        check_split(*sizes)
    unused = tuple(_without_effect(composition, overrides))
    return Config(values, settings, open_dataset, new_model, metrics, tuple(overrides), unused)


def build_trainer(values: Mapping[str, Any], metrics: Mapping[str, Any], **more: Any) -> Trainer:
    """Builds the trainer with its optimizer and metrics, and what more it takes of the arguments given."""
    new_trainer = constructor(values["trainer"], "trainer")
    watched = (values["trainer"].get("early_stopping") or {}).get("metric"), values["optimized_metric"]
    validated = validation_metrics(metrics, [name.removeprefix("val/") for name in watched if name])
    parts = dict(optimizer=build_optimizer(values["optimizer"]), **validated, **more)
    try:
        return new_trainer(**accepted(new_trainer, parts))
    except ConfigError as error:
        raise ConfigError(f"{error}{_added_by(watched[0], metrics)}") from error


def _added_by(metric: str | None, metrics: Mapping[str, Any]) -> str:
    """Says how a metric is added that validation does not report, where it is known; else nothing."""
    base, _, cutoff = (metric or "").partition("@")
    if base in (metrics.get("ranking") or {}) and cutoff and metric not in MultiMetric(metrics["ranking"]).names:
        return f". For {metric}, add {cutoff} to metric.cutoffs"
    there = any(base in group for group in metrics.values() if isinstance(group, dict))
    options = [] if there else metric_options(base)
    return f". {metric} comes with metric=[all,{options[0]}]" if options else ""


def is_tower(key: str, node: Any) -> bool:
    """Whether a key at the root is the tower of a role, whose place is where the model takes it."""
    return key not in _PARTS and isinstance(node, Mapping) and "_target_" in node


def _check_parts(composition: Composition) -> None:
    """ConfigError where a part that every run needs is missing or describes nothing."""
    values = composition.values
    for part in DESCRIBED:
        node = values.get(part)
        if node is None:
            raise ConfigError(f"{part} cannot be left out; choose one by {part}=..., see clickexp --help")
        if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
            raise ConfigError(f"{part}: the option that was chosen has no _target_, the class or function to call")
    if not isinstance(values.get("metric"), dict):
        raise ConfigError("metric cannot be left out; choose one or several by metric=..., see clickexp --help")
    for role in composition.roles:
        if isinstance(values.get(role), str):
            raise ConfigError(
                f"{role}={values[role]}: a file chooses the tower of a role in its defaults list: "
                f"override /{TOWERS}@{role}: {values[role]}"
            )


def _check_added(cfg: DictConfig, composition: Composition, overrides: Sequence[str]) -> None:
    """ConfigError for a key that +KEY=VALUE added at the root and without which all others are the same."""
    added = {
        override.key_or_group.partition(".")[0]: override
        for override in parsed(overrides)
        if override.is_add() or override.is_force_add()
    }
    unresolved = composition.unresolved
    for key in added.keys() & unresolved.keys() - {*Settings.__dataclass_fields__, *_PARTS}:
        if is_tower(key, unresolved[key]) or _is_read(key, cfg):
            continue
        places = [name for name, _ in walk(unresolved) if name.partition(".")[0] != key]
        meant = did_you_mean(added[key].key_or_group, [*places, *presets()])
        raise ConfigError(f"{added[key].input_line}: nothing reads it.{meant}")


def _is_read(key: str, cfg: DictConfig) -> bool:
    """Whether an interpolation refers to a key at the root."""
    others = [str(name) for name in cfg if name != key]
    try:
        without = plain(OmegaConf.masked_copy(cfg, others))
        return without != {name: value for name, value in plain(cfg).items() if name != key}
    except OmegaConfBaseException:
        return True


def _check_model(new_model: Callable[..., Model]) -> None:
    """ConfigError for settings of a model that do not go together."""
    model = getattr(new_model, "func", new_model)
    if inspect.isclass(model) and issubclass(model, Model):
        model.check_settings(**getattr(new_model, "keywords", {}))


def _check_estimates(trainer: Trainer, new_model: Callable[..., Model]) -> None:
    """ConfigError for a trainer that estimates by counting, but not this model."""
    model = getattr(new_model, "func", new_model)
    if not isinstance(trainer, EstimatingTrainer) or not inspect.isclass(model):
        return
    if issubclass(model, Model) and not issubclass(model, ClickModel):
        name = model.name or model.__name__
        raise ConfigError(f"{type(trainer).__name__} fits click models, and {name} is none: use trainer=default")
    if issubclass(model, ClickModel):
        trainer.expectation(model, **getattr(new_model, "keywords", {}))


def _reported(trainer: Trainer, metrics: Mapping[str, Any], new_model: Callable[..., Model]) -> dict[str, list[str]]:
    """Names of the metrics that a run may report for each part of its result; a ranker has none of clicks."""
    model = getattr(new_model, "func", new_model)
    clicks = not inspect.isclass(model) or issubclass(model, ClickModel)
    groups = [group for name, group in trainer.groups.items() if clicks or name != "click"]
    parts = TEST_PARTS if clicks else ("ranking", "counterfactual")
    val = [*(name for group in groups for name in MultiMetric(group).names), "loss"]
    others = [name for part in parts for name in MultiMetric(metrics.get(part, {})).names]
    return {"val": val, "test": list(dict.fromkeys([*val, *others]))}


def _check_vectors(values: Mapping[str, Any], open_dataset: Callable[..., Dataset]) -> None:
    """ConfigError for a tower over feature vectors where the format of the dataset is known to have none."""
    reader, path = getattr(open_dataset, "func", open_dataset), values["dataset"].get("path")
    if getattr(reader, "has_features", True) or (path is not None and is_log(Path(path).expanduser())):
        return
    for key, value in walk(values["model"], "model"):
        if key.endswith(".use_feature") and value == "query_doc_features":
            from clickexp.experiment.formats import FORMATS  # here, since it imports every reader

            have = [f"dataset={name}" for name, opener in FORMATS.items() if getattr(opener, "has_features", False)]
            raise ConfigError(
                f"{key.removesuffix('.use_feature')} reads {value}, which this dataset does not have; choose one that "
                f"has, such as {' or '.join(have)}, or another tower, such as embedding"
            )


def _without_effect(composition: Composition, overrides: Sequence[str]) -> Iterator[str]:
    """A line for each override of a tower that the model does not take, as in a sweep over several models."""
    takes = ", ".join(role for role in composition.unresolved if role in composition.roles) or "none"
    for override in parsed(overrides):
        role = (override.package or override.key_or_group).partition(".")[0]
        if is_tower(role, composition.unresolved.get(role)) and role not in composition.roles:
            yield f"{override.input_line} has no effect: this model takes no tower of {role} (it takes {takes})"
        elif role in CHOSEN and role in composition.unresolved and role not in composition.values:
            yield f"{override.input_line} has no effect: this model reads no {role}"
