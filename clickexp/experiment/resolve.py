"""From a composed configuration to typed parts: what can be known to be wrong without data is found here."""

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig

from clickexp.data import Dataset
from clickexp.data.dataset import check_split
from clickexp.data.description import is_log
from clickexp.errors import ConfigError
from clickexp.evaluation.groups import MetricGroup
from clickexp.experiment.conf import presets
from clickexp.experiment.formats import FORMATS
from clickexp.experiment.instantiate import (
    build_metrics,
    build_trainer,
    constructor,
    instantiate,
    model_constructor,
)
from clickexp.experiment.overrides import parsed
from clickexp.experiment.values import OPTIMIZER, Composition, compose_values, is_tower, walk
from clickexp.loggers import Logger
from clickexp.models import ClickModel, Model
from clickexp.runs.objective import check_objective
from clickexp.runs.settings import GROUPS, ROOT, TOWERS, PriorSettings, Settings
from clickexp.training.base import BaseTrainer
from clickexp.training.em.bernoulli import check_towers
from clickexp.training.em.estimation import EstimatingTrainer
from clickexp.utils.signatures import accepted, check_arguments
from clickexp.utils.sources import source_path
from clickexp.utils.suggest import did_you_mean


@dataclasses.dataclass(frozen=True)
class Config:
    """A configuration that no check without the data has found fault with.

    Attributes:
        values: Plain values by key, interpolations resolved: what a run records. What follows is made of it.
        settings: The single keys at the root.
        loggers: By name, not yet started.
        metrics: By group, such as click and ranking.
        trainer: With optimizer and metrics, and without logger and files.
        open_dataset: Reads the dataset; takes `progress`, if it reports it.
        new_model: Builds the model; takes the sizes of the dataset.
        prior: What an earlier run gives.
        reads: The features that towers read, with the key of the first that does: model.attraction.use_feature.
        overrides: Those that it was composed with.
        without_effect: A line for each override of what the model or the trainer does not take.
    """

    values: dict[str, Any]
    settings: Settings
    loggers: Mapping[str, Logger]
    metrics: Mapping[str, MetricGroup]
    trainer: BaseTrainer
    open_dataset: partial[Dataset]
    new_model: partial[Model]
    prior: PriorSettings
    reads: Mapping[str, str]
    overrides: tuple[str, ...]
    without_effect: tuple[str, ...]


def resolve(cfg: DictConfig, overrides: Sequence[str] = ()) -> Config:
    """Resolves and checks a configuration. Starts no device, reads no data and writes nothing.

    Args:
        cfg: What Hydra composed.
        overrides: Those that it was composed with.

    Raises:
        ConfigError: A key is unknown or missing, or a value does not fit.
    """
    composition = compose_values(cfg, overrides)
    _check_parts(composition)
    _check_added(composition, overrides)
    values = composition.values
    # first, since other keys refer to them, and a message is to name what the user has set
    settings = Settings(**accepted(Settings, values))
    metrics = build_metrics(values["metric"])
    trainer = build_trainer(values, metrics)
    config = Config(
        values=values,
        settings=settings,
        loggers=instantiate(values.get("logger") or {}, "logger"),
        metrics=metrics,
        trainer=trainer,
        open_dataset=constructor(values["dataset"], "dataset"),
        new_model=model_constructor(values),
        prior=_prior(values["prior"]),
        reads=_features_read(values["model"]),
        overrides=tuple(overrides),
        without_effect=tuple(_without_effect(composition, overrides)),
    )
    _check_model(config)
    _check_dataset(config)
    check_objective(config.settings.optimized_metric, _reported(config))
    return config


def _prior(node: Any) -> PriorSettings:
    """The settings of a prior; ConfigError for a key or value that there is not."""
    settings = node or {}
    check_arguments(PriorSettings, settings, "prior")
    return PriorSettings(**settings)


def _check_parts(composition: Composition) -> None:
    """ConfigError where a part that every run needs is missing or describes nothing."""
    values = composition.values
    described = [name for name, group in GROUPS.items() if group.is_described]
    for part in (name for name in described if name not in composition.unread):
        node = values.get(part)
        if node is None:
            raise ConfigError(
                f"{part} cannot be left out; choose one by {part}=..., see clickexp --help"
            )
        if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
            raise ConfigError(
                f"{part}: the option that was chosen has no _target_, the class or function to call"
            )
    if not isinstance(values.get("metric"), dict):
        raise ConfigError(
            "metric cannot be left out; choose one or several by metric=..., see clickexp --help"
        )
    for role in composition.roles:
        if isinstance(values.get(role), str):
            raise ConfigError(
                f"{role}={values[role]}: a file chooses the tower of a role in its defaults list: "
                f"override /{TOWERS}@{role}: {values[role]}"
            )


def _check_added(composition: Composition, overrides: Sequence[str]) -> None:
    """ConfigError for a key that +KEY=VALUE added at the root and that is neither ours nor read by another."""
    unresolved = composition.unresolved
    places = [name for name, _ in walk(unresolved)]
    for override in parsed(overrides):
        key = override.key_or_group.partition(".")[0]
        is_added = override.is_add() or override.is_force_add()
        if is_added and not _is_read(key, unresolved):
            others = [name for name in places if name.partition(".")[0] != key]
            meant = did_you_mean(override.key_or_group, [*others, *presets()])
            raise ConfigError(f"{override.input_line}: nothing reads it.{meant}")


def _is_read(key: str, unresolved: Mapping[str, Any]) -> bool:
    """Whether a key at the root is ours, a tower, or one that an interpolation at another place refers to."""
    if key in ROOT or key not in unresolved or is_tower(key, unresolved[key]):
        return True
    reference = re.compile(rf"\$\{{.*(?<![\w.]){re.escape(key)}(?!\w)")
    return any(
        isinstance(value, str) and reference.search(value)
        for name, value in walk(unresolved)
        if name.partition(".")[0] != key
    )


def _features_read(node: Any) -> dict[str, str]:
    """The features that the towers of a model read, with the key of the first that does."""
    features: dict[str, str] = {}
    for key, name in walk(node, "model"):
        if key.endswith(".use_feature"):
            features.setdefault(name, key)
    return features


def _check_model(config: Config) -> None:
    """ConfigError for settings of a model that do not go together, or a model that the trainer cannot fit."""
    model, settings = config.new_model.func, config.new_model.keywords
    if not (inspect.isclass(model) and issubclass(model, Model)):
        return
    model.check_settings(**settings)
    if isinstance(config.trainer, EstimatingTrainer):
        if not issubclass(model, ClickModel):
            trainer, name = type(config.trainer).__name__, model.name or model.__name__
            raise ConfigError(
                f"{trainer} fits click models, and {name} is none: use trainer=default"
            )
        config.trainer.expectation(model, **settings)
        check_towers(settings)


def _check_dataset(config: Config) -> None:
    """ConfigError for parts that are more than the whole, or a tower over vectors that the format does not have."""
    reader, settings = config.open_dataset.func, config.open_dataset.keywords
    sizes: list[Any] = [settings.get(f"{part}_sessions") for part in ("train", "val", "test")]
    if None not in sizes:
        check_split(*sizes)
    key, path = config.reads.get("query_doc_features"), settings.get("path")
    if (
        key is None
        or getattr(reader, "has_features", True)
        or (path is not None and is_log(source_path(path)))
    ):
        return
    have = [
        f"dataset={name}"
        for name, opener in FORMATS.items()
        if getattr(opener, "has_features", False)
    ]
    raise ConfigError(
        f"{key.removesuffix('.use_feature')} reads query_doc_features, which this dataset does not have; choose one "
        f"that has, such as {' or '.join(have)}, or another tower, such as embedding"
    )


def _reported(config: Config) -> dict[str, list[str]]:
    """Names of the metrics that a run may report for each part of its result; a ranker has none of clicks."""
    model = config.new_model.func
    clicks = not inspect.isclass(model) or issubclass(model, ClickModel)

    def names_in(groups: Mapping[str, MetricGroup]) -> list[str]:
        kept = [group for group in groups.values() if clicks or not group.of_clicks]
        return [name for group in kept for name in group.names]

    val = [*names_in(config.trainer.metric_groups), "loss"]
    return {"val": val, "test": list(dict.fromkeys([*val, *names_in(config.metrics)]))}


def _without_effect(composition: Composition, overrides: Sequence[str]) -> Iterator[str]:
    """A line for each override of what the model or the trainer does not take, as in a sweep over several."""
    towers = {key for key, node in composition.unresolved.items() if is_tower(key, node)}
    taken = [role for role in composition.unresolved if role in composition.roles]
    for override in parsed(overrides):
        role = (override.package or override.key_or_group).partition(".")[0]
        if role in towers - composition.roles:
            takes = f"(it takes {', '.join(taken) or 'none'})"
            yield f"{override.input_line} has no effect: this model takes no tower of {role} {takes}"
        elif role in composition.unread:
            reader = "trainer takes" if role == OPTIMIZER else "model reads"
            yield f"{override.input_line} has no effect: this {reader} no {role}"
