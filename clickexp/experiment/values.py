"""The plain values of a configuration. The components of a mixture are composed as `model=NAME` alone would be."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from clickexp.errors import ConfigError
from clickexp.experiment.conf import CONF
from clickexp.experiment.overrides import CHOSEN, line_of, parsed

CONTEXT = "context"
"""Key of what the logits of a role add for the search session so far."""

_Node = dict[str, Any]
"""A group of keys."""


class Composition(NamedTuple):
    """A composed configuration.

    Attributes:
        values: Plain values by key, interpolations resolved, without groups that the model does not read. A mixture has
            the nodes of its components in `model.models`, and those of the towers that they share, by role, in
            `model.shared`.
        unresolved: The same with interpolations, and with the names of components.
        roles: The roles that the model takes towers for.
    """

    values: _Node
    unresolved: _Node
    roles: frozenset[str]


class _Component(NamedTuple):
    """The node of a click model in a mixture, and the roles of its towers, such as {"ctr": "attraction"}, by key."""

    node: _Node
    roles: Mapping[str, str]


def resolved_values(cfg: DictConfig, overrides: Sequence[str] = ()) -> _Node:
    """The values of `compose_values`."""
    return compose_values(cfg, overrides).values


def compose_values(cfg: DictConfig, overrides: Sequence[str] = ()) -> Composition:
    """Resolves a configuration, and composes the components of a mixture.

    Args:
        cfg: The configuration. Of a mixture, `model.components` names options of the group `model`.
        overrides: Those that `cfg` was composed with. Components take all of them but those of the model.

    Raises:
        ConfigError: A component is no model, or a shared role is not one.
    """
    unresolved = plain(cfg, resolve=False)
    unread = _unread(unresolved)
    values = plain(
        OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in unread])
        if unread
        else cfg
    )
    mixture = values.get("model")
    if not isinstance(mixture, dict) or "components" not in mixture:
        roles = _roles(unresolved)
        if isinstance(mixture, dict) and CONTEXT in values:
            _add_context(values[CONTEXT], [_Component(mixture, roles)], {})
        return Composition(values, unresolved, frozenset(roles.values()))
    for key in ("components", "shared"):
        if not isinstance(mixture[key], list):
            raise ConfigError(
                f"model.{key}={mixture[key]!r} is not a list; write model.{key}=[...]"
            )
    components = [_component(each, mixture, overrides) for each in mixture["components"]]
    found = {role: _shared(role, components, role in values) for role in mixture["shared"]}
    shared = {role: tower for role, tower in found.items() if tower is not None}
    rest = {key: value for key, value in mixture.items() if key != "components"}
    models = [_sharing(component, shared) for component in components]
    roles = frozenset(role for component in components for role in component.roles.values())
    if CONTEXT in values:
        own = [
            component._replace(node=node)
            for component, node in zip(components, models, strict=True)
        ]
        _add_context(values[CONTEXT], own, shared)
    return Composition(
        {**values, "model": rest | {"models": models, "shared": shared}}, unresolved, roles
    )


@contextmanager
def current(config: DictConfig) -> Iterator[None]:
    """Makes ${hydra:...} refer to a job's configuration."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


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
    pairs = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for name, value in pairs:
        key = f"{where}.{name}".lstrip(".")
        yield key, value
        yield from walk(value, key)


def _roles(unresolved: _Node) -> dict[str, str]:
    """By the keys of the model that refer to a tower at the root, the role of that tower."""
    model = unresolved.get("model")
    references = (
        {key: str(value) for key, value in model.items()} if isinstance(model, dict) else {}
    )
    known = unresolved.keys() - CHOSEN
    return {
        key: text[2:-1]
        for key, text in references.items()
        if text[:2] == "${" and text[2:-1] in known
    }


def _add_context(context: _Node, models: Sequence[_Component], shared: _Node) -> None:
    """Makes a tower of each model, and of those that they share, a sum of itself and of the context of search sessions.

    A model that has a place for context itself takes it there, unless a role is given, which only some may have.

    Raises:
        ConfigError: A model takes no such tower, or none takes one of the given role.
    """
    given, term = (
        context.get("role"),
        {key: value for key, value in context.items() if key != "role"},
    )
    takes = {role for _, roles in models for role in roles.values()}
    if given and given not in takes:
        known = f"it takes {', '.join(sorted(takes)) or 'none'}"
        raise ConfigError(
            f"context.role={given}: this model takes no tower of {given} ({known}); choose another"
        )
    of_shared = set()
    for node, roles in models:
        if not given and CONTEXT in node:
            node[CONTEXT] = dict(term)
            continue
        role = given or next(
            (each for each in ("examination", "attraction") if each in roles.values()), None
        )
        if role is None:
            name = (
                "this model"
                if len(models) == 1
                else f"{node['_target_'].rpartition('.')[2]} in model.components"
            )
            raise ConfigError(
                f"{name} takes no tower that context can be added to; leave it or the context out"
            )
        for key in (key for key, played in roles.items() if played == role):
            if role in shared:
                of_shared.add(role)
            else:
                node[key] = _sum_of(node[key], term)
    shared.update({role: _sum_of(shared[role], term) for role in of_shared})


def _sum_of(tower: Any, term: _Node) -> _Node:
    return {
        "_target_": "clickexp.parameters.SumParameterConfig",
        "terms": {"tower": tower, CONTEXT: dict(term)},
    }


def _unread(unresolved: _Node) -> list[str]:
    """Those of the groups that models choose which this one does not read, directly or through another of them."""
    groups = [group for group in CHOSEN if group in unresolved]
    read, found = {"model", "metric"}, {"model", "metric"}
    while found:
        texts = {str(value) for key in found for _, value in walk(unresolved.get(key))}
        found = {group for group in groups if f"${{{group}}}" in texts} - read
        read |= found
    return [group for group in groups if group not in read]


def _component(component: str | _Node, mixture: _Node, overrides: Sequence[str]) -> _Component:
    """A component given by name, or spelled out."""
    if isinstance(component, dict):
        return _Component(component, {key: key for key in component})
    known = GlobalHydra.instance().config_loader().get_group_options("model")
    if component not in known:
        raise ConfigError(
            f"model.components: there is no model {component!r}; choose from {', '.join(known)}"
        )
    kept = [
        line_of(each)
        for each in parsed(overrides)
        if each.key_or_group.partition(".")[0] != "model"
    ]
    cfg = compose("config", [*kept, f"model={component}"])
    node = plain(cfg.model)
    if node["_target_"] == mixture["_target_"]:
        raise ConfigError(f"model.components: {component} is a mixture itself; name its components")
    # the keys that a preset gives the mixture end up in every model
    node = {key: value for key, value in node.items() if key.startswith("_") or key not in mixture}
    roles = _roles(plain(cfg, resolve=False))
    return _Component(node, {key: role for key, role in roles.items() if key in node})


def _shared(role: str, components: Sequence[_Component], known: bool) -> _Node | None:
    """The tower of all components with this role; None if no component has it, and it is known."""
    towers = [
        model[key] for model, roles in components for key, played in roles.items() if played == role
    ]
    if not towers and not known:
        raise ConfigError(f"model.shared: no component has a role {role!r}")
    if any(tower != towers[0] for tower in towers):
        raise ConfigError(
            f"model.shared: components have different towers for {role}; "
            f"choose one for all by parameter@{role}=..., or do not share it"
        )
    return towers[0] if towers else None


def _sharing(component: _Component, shared: Mapping[str, _Node]) -> _Node:
    """The component without the towers that it shares; a key of another name than the role holds the role's."""
    own = {key: value for key, value in component.node.items() if key not in shared}
    return own | {
        key: role for key, role in component.roles.items() if role in shared and role != key
    }
