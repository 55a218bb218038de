"""Objects described by nodes of a configuration, their plain values checked first."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import hydra
import optax
from hydra.errors import InstantiationException

from clickexp.errors import ConfigError, UserError
from clickexp.evaluation.evaluate import validation_metrics
from clickexp.evaluation.groups import GROUPS, MetricGroup, click_metrics, metric_groups
from clickexp.experiment.conf import metric_options
from clickexp.experiment.values import OPTIMIZER
from clickexp.metrics import Metric
from clickexp.models import Model
from clickexp.parameters import ContextParameterConfig
from clickexp.training import Optimizer, with_rate
from clickexp.training.base import BaseTrainer
from clickexp.utils.documents import items_of
from clickexp.utils.signatures import accepted, check_arguments, located

CONTEXT = "context"
"""Key of what the logits of a role add for the search session so far."""
LAYOUTS = "examination_by"
"""Key of the columns whose values have examinations of their own."""


def instantiate(node: Any, where: str) -> Any:
    """Builds what a node describes by _target_, or the dicts and lists with such nodes inside.

    Args:
        node: Plain values.
        where: The dotted key of the node, for messages.

    Raises:
        ConfigError: A key is unknown, or a value does not fit.
    """
    check_node(node, where)
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise cause if isinstance(cause, UserError) else ConfigError(f"{where}: {cause}") from error


def constructor(node: Mapping[str, Any], where: str) -> partial[Any]:
    """As `instantiate`, but the result still waits for arguments that no configuration can hold."""
    return instantiate({**node, "_partial_": True}, where)


def build_optimizer(node: Mapping[str, Any]) -> Optimizer | optax.GradientTransformation:
    """Builds the optimizer.

    The learning rate of a rule of Optax is data, so that a sweep over rates compiles one program. A function from
    elsewhere may need its rate as a number.
    """
    optimizer = instantiate(node, "optimizer")
    if not (
        isinstance(optimizer, optax.GradientTransformation)
        and node["_target_"].startswith("optax.")
    ):
        return optimizer
    rate = node.get("learning_rate")
    rest = {name: value for name, value in node.items() if name != "learning_rate"}
    return (
        with_rate(constructor(rest, "optimizer"), rate)
        if isinstance(rate, (int, float))
        else optimizer
    )


def build_metrics(node: Mapping[str, Any]) -> dict[str, MetricGroup]:
    """Builds the metrics by group, without the values that they share.

    Raises:
        ConfigError: Something in a group is no metric, or metrics are in no group.
    """
    groups = {}
    for key, group in instantiate(node, "metric").items():
        if isinstance(group, dict | MetricGroup) or (key in GROUPS and group is not None):
            groups[key] = group
            _check_metrics(key, group)
    return metric_groups(groups)


def _check_metrics(key: str, group: Any) -> None:
    metrics = group.metrics if isinstance(group, MetricGroup) else group
    for name, metric in metrics.items() if isinstance(metrics, dict) else [("", metrics)]:
        if not isinstance(metric, Metric):
            where = f"metric.{key}.{name}".rstrip(".")
            raise ConfigError(f"{where}={metric!r} is no metric; ~{where} leaves it out")


def build_trainer(values: Mapping[str, Any], metrics: Mapping[str, MetricGroup]) -> BaseTrainer:
    """Returns the trainer with its optimizer and the metrics that validation computes."""
    new_trainer = constructor(values["trainer"], "trainer")
    watched = (values["trainer"].get("early_stopping") or {}).get("metric")
    names = [name.removeprefix("val/") for name in (watched, values["optimized_metric"]) if name]
    parts: dict[str, Any] = {**validation_metrics(metrics, names)}
    if OPTIMIZER in values:
        parts[OPTIMIZER] = build_optimizer(values[OPTIMIZER])
    try:
        return new_trainer(**accepted(new_trainer, parts))
    except ConfigError as error:
        raise ConfigError(f"{error}{_added_by(watched, metrics)}") from error


def model_constructor(values: Mapping[str, Any]) -> partial[Model]:
    """Returns the constructor of the model of a configuration, with the context of search sessions.

    Args:
        values: Plain values at the root.

    Raises:
        ConfigError: A value does not fit, or the model takes no context.
    """
    new_model = _with_layouts(constructor(values["model"], "model"), values)
    node = values.get(CONTEXT)
    if node is None:
        return new_model
    context = instantiate(node, CONTEXT)
    if not isinstance(context, ContextParameterConfig):
        raise ConfigError(f"{CONTEXT}={node!r}: choose an option, as in +context=both")
    with_context = getattr(new_model.func, "with_context", None)
    if with_context is None:
        raise ConfigError(
            f"{values['model']['_target_']} takes no tower that context can be added to; leave it or the context out"
        )
    return partial(new_model.func, **with_context(new_model.keywords, context))


def _with_layouts(new_model: partial[Model], values: Mapping[str, Any]) -> partial[Model]:
    """Returns the constructor with an examination per combination of the columns of `examination_by`."""
    columns = values.get(LAYOUTS)
    if not columns:
        return new_model
    with_layouts = getattr(new_model.func, "with_layouts", None)
    if with_layouts is None:
        raise ConfigError(
            f"{LAYOUTS}={columns}: {values['model']['_target_']} is no model with towers; leave it out"
        )
    return partial(new_model.func, **with_layouts(new_model.keywords, columns))


def _added_by(metric: str | None, metrics: Mapping[str, MetricGroup]) -> str:
    """Says how a metric is added that validation does not report, where it is known; else nothing."""
    base, _, cutoff = (metric or "").partition("@")
    ranking = metrics.get("ranking")
    if ranking and cutoff and base in ranking.metrics and metric not in ranking.names:
        return f". For {metric}, add {cutoff} to metric.cutoffs"
    is_configured = any(base in group.metrics for group in metrics.values())
    options = [] if is_configured else metric_options(base)
    return f". {metric} comes with metric=[all,{options[0]}]" if options else ""


def directions(node: Mapping[str, Any]) -> dict[str, bool | None]:
    """Whether higher is better, by metric, as the metrics of a run state it.

    Args:
        node: `metric` of the configuration; without metrics of clicks, trainers have their own.
    """
    directions: dict[str, bool | None] = {}
    for group in {**metric_groups({"click": click_metrics()}), **build_metrics(node)}.values():
        directions |= group.higher_is_better
    return directions


def check_node(node: Any, where: str) -> None:
    """ConfigError for keys and values that do not fit the signatures of what a node describes.

    Args:
        node: Plain values.
        where: The dotted key of the node.
    """
    if isinstance(node, dict) and "_target_" in node:
        arguments = {key: value for key, value in node.items() if key[0] != "_"}
        check_arguments(located(str(node["_target_"]), f"{where}._target_"), arguments, where)
    for name, value in items_of(node):
        check_node(value, f"{where}.{name}")
