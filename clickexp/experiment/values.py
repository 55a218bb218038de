"""The plain values of a configuration, with the components of a mixture."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from clickexp.experiment.conf import CONF
from clickexp.experiment.mixture import Component, mixture_of
from clickexp.experiment.overrides import line_of, parsed
from clickexp.runs.settings import CHOSEN, GROUPS, ROOT
from clickexp.utils.documents import items_of
from clickexp.utils.signatures import accepted, located

OPTIMIZER = "optimizer"
"""Group that only some trainers read."""

_Node = dict[str, Any]
"""A group of keys."""


class Composition(NamedTuple):
    """A composed configuration.

    Attributes:
        values: Plain values by key, interpolations resolved, without groups that the model or the trainer does not
            read, and without towers, which the model has where it takes them. A mixture has the nodes of its components
            in `model.models`.
        unresolved: The same with interpolations, and with the names of components.
        roles: The roles that the model takes towers for.
    """

    values: _Node
    unresolved: _Node
    roles: frozenset[str]

    @property
    def unread(self) -> set[str]:
        """Groups that the model or the trainer does not read."""
        return (self.unresolved.keys() - self.values.keys()) & GROUPS.keys()


def compose_values(cfg: DictConfig, overrides: Sequence[str] = ()) -> Composition:
    """Resolves a configuration, and composes the components of a mixture as `model=NAME` alone would be.

    Args:
        cfg: The configuration. Of a mixture, `model.components` names options of the group `model`.
        overrides: Those that `cfg` was composed with. Components take all of them but those of the model.

    Raises:
        ConfigError: A component is no model, or a shared role is not one.
    """
    unresolved = plain(cfg, resolve=False)
    unread = _unread(unresolved)
    read = [str(key) for key in cfg if key not in unread]
    values = plain(OmegaConf.masked_copy(cfg, read) if unread else cfg)
    values = {key: node for key, node in values.items() if not is_tower(key, node)}
    if not _takes_optimizer(values.get("trainer")):
        values.pop(OPTIMIZER, None)
    model, roles = values.get("model"), _roles(unresolved)
    if isinstance(model, dict) and "components" in model:
        models = GlobalHydra.instance().config_loader().get_group_options("model")
        compose_model = partial(_composed, overrides=overrides)
        values["model"], roles = mixture_of(model, unresolved, models, compose_model)
    return Composition(values, unresolved, roles)


def is_tower(key: str, node: Any) -> bool:
    """Whether a key at the root is the tower of a role, whose place is where the model takes it."""
    return key not in ROOT and isinstance(node, dict) and "_target_" in node


@contextmanager
def current(config: DictConfig) -> Iterator[None]:
    """Makes ${hydra:...} refer to a job's configuration."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def without_hydra(config: DictConfig) -> DictConfig:
    """A configuration as the task function receives it."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def plain(cfg: DictConfig, resolve: bool = True) -> _Node:
    """A configuration as dicts and lists."""
    return cast(_Node, OmegaConf.to_container(cfg, resolve=resolve, throw_on_missing=resolve))


def default_value(key: str) -> Any:
    """Returns the value of a key at the root of our configuration, where that depends on no choice."""
    config = cast(DictConfig, OmegaConf.load(CONF / "config.yaml"))
    return config[key]


def walk(node: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys below a node and their values, groups of keys included.

    Args:
        node: Plain values.
        where: The dotted key of the node.
    """
    for name, value in items_of(node):
        key = f"{where}.{name}".lstrip(".")
        yield key, value
        yield from walk(value, key)


def _roles(unresolved: _Node) -> frozenset[str]:
    """The roles of towers at the root that keys of the model refer to."""
    model = unresolved.get("model")
    texts = [str(value) for value in model.values()] if isinstance(model, dict) else []
    keys = unresolved.keys() - CHOSEN
    return frozenset(text[2:-1] for text in texts if text[:2] == "${" and text[2:-1] in keys)


def _unread(unresolved: _Node) -> list[str]:
    """Those of the groups that models choose which this one does not read, directly or through another of them."""
    groups = [group for group in CHOSEN if group in unresolved]
    read, new = {"model", "metric"}, {"model", "metric"}
    while new:
        texts = {str(value) for key in new for _, value in walk(unresolved.get(key))}
        new = {group for group in groups if f"${{{group}}}" in texts} - read
        read |= new
    return [group for group in groups if group not in read]


def _takes_optimizer(trainer: Any) -> bool:
    """Whether a trainer has an optimizer; also where its node describes nothing, which is refused elsewhere."""
    target = trainer.get("_target_") if isinstance(trainer, dict) else None
    if not isinstance(target, str):
        return True
    return bool(accepted(located(target, "trainer._target_"), {OPTIMIZER: None}))


def _composed(model: str, overrides: Sequence[str]) -> Component:
    """The node of a model, and its roles, in a configuration of it alone."""
    kept = [
        line_of(override)
        for override in parsed(overrides)
        if override.key_or_group.partition(".")[0] != "model"
    ]
    cfg = compose("config", [*kept, f"model={model}"])
    return Component(plain(cfg.model), _roles(plain(cfg, resolve=False)))
