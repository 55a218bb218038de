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

Node = dict[str, Any]
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

    values: Node
    unresolved: Node
    roles: frozenset[str]


class _Place(NamedTuple):
    """Where the tower of a role is described: the node that holds it, and its key there."""

    node: Node
    key: str
    role: str


class _Component(NamedTuple):
    """The node of a click model in a mixture, and the roles of its towers, such as {"ctr": "attraction"}, by key."""

    node: Node
    roles: Mapping[str, str]


def resolved_values(cfg: DictConfig, overrides: Sequence[str] = ()) -> Node:
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
    values = plain(OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in unread]) if unread else cfg)
    mixture = values.get("model")
    if not isinstance(mixture, dict) or "components" not in mixture:
        roles = _roles(unresolved)
        if isinstance(mixture, dict) and CONTEXT in mixture and CONTEXT in values and not values[CONTEXT].get("role"):
            mixture[CONTEXT] = _term_of(values[CONTEXT])
        elif isinstance(mixture, dict) and CONTEXT in values:
            _add_context(values[CONTEXT], [_Place(mixture, key, role) for key, role in roles.items()])
        return Composition(values, unresolved, frozenset(roles.values()))
    for key in ("components", "shared"):
        if not isinstance(mixture[key], list):
            raise ConfigError(f"model.{key}={mixture[key]!r} is not a list; write model.{key}=[...]")
    components = [_component(each, mixture, overrides) for each in mixture["components"]]
    found = {role: _shared(role, components, role in values) for role in mixture["shared"]}
    shared = {role: tower for role, tower in found.items() if tower is not None}
    rest = {key: value for key, value in mixture.items() if key != "components"}
    models = [_sharing(component, shared) for component in components]
    roles = frozenset(role for component in components for role in component.roles.values())
    if CONTEXT in values:
        own = [(node, component.roles) for node, component in zip(models, components, strict=True)]
        places = [_Place(node, key, role) for node, played in own for key, role in played.items() if role not in shared]
        _add_context(values[CONTEXT], [*places, *(_Place(shared, role, role) for role in shared)])
    return Composition({**values, "model": rest | {"models": models, "shared": shared}}, unresolved, roles)


@contextmanager
def current(config: DictConfig) -> Iterator[None]:
    """Makes ${hydra:...} refer to a job's configuration."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def plain(cfg: DictConfig, resolve: bool = True) -> Node:
    """A configuration as dicts and lists."""
    return cast(Node, OmegaConf.to_container(cfg, resolve=resolve, throw_on_missing=resolve))


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
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in pairs:
        key = f"{where}.{name}".lstrip(".")
        yield key, value
        yield from walk(value, key)


def _roles(unresolved: Node) -> dict[str, str]:
    """By the keys of the model that refer to a tower at the root, the role of that tower."""
    model = unresolved.get("model")
    references = {key: str(value) for key, value in model.items()} if isinstance(model, dict) else {}
    known = unresolved.keys() - CHOSEN
    return {key: text[2:-1] for key, text in references.items() if text[:2] == "${" and text[2:-1] in known}


def _add_context(context: Node, places: Sequence[_Place]) -> None:
    """Makes the tower of a role a sum of itself and of the context of search sessions; ConfigError if there is none."""
    takes = {place.role for place in places}
    role = context.get("role") or ("examination" if "examination" in takes else "attraction")
    if role not in takes:
        if not takes and not context.get("role"):
            raise ConfigError("this model takes no tower that context can be added to; leave the context out")
        known = f"it takes {', '.join(sorted(takes)) or 'none'}"
        raise ConfigError(f"context.role={role}: this model takes no tower of {role} ({known}); choose another")
    term = _term_of(context)
    for place in places:
        if place.role == role:
            terms = {"tower": place.node[place.key], CONTEXT: dict(term)}
            place.node[place.key] = {"_target_": "clickexp.parameters.SumParameterConfig", "terms": terms}


def _term_of(context: Node) -> Node:
    return {key: value for key, value in context.items() if key != "role"}


def _unread(unresolved: Node) -> list[str]:
    """Those of the groups that models choose which this one does not read, directly or through another of them."""
    groups = [group for group in CHOSEN if group in unresolved]
    read, found = {"model", "metric"}, {"model", "metric"}
    while found:
        texts = {str(value) for key in found for _, value in walk(unresolved.get(key))}
        found = {group for group in groups if f"${{{group}}}" in texts} - read
        read |= found
    return [group for group in groups if group not in read]


def _component(component: str | Node, mixture: Node, overrides: Sequence[str]) -> _Component:
    """A component given by name, or spelled out."""
    if isinstance(component, dict):
        return _Component(component, {key: key for key in component})
    known = GlobalHydra.instance().config_loader().get_group_options("model")
    if component not in known:
        raise ConfigError(
            f"model.components: there is no model {component!r}; choose from {', '.join(known)}"
        )
    kept = [line_of(each) for each in parsed(overrides) if each.key_or_group.partition(".")[0] != "model"]
    cfg = compose("config", [*kept, f"model={component}"])
    node = plain(cfg.model)
    if node["_target_"] == mixture["_target_"]:
        raise ConfigError(f"model.components: {component} is a mixture itself; name its components")
    # the keys that a preset gives the mixture end up in every model
    node = {key: value for key, value in node.items() if key.startswith("_") or key not in mixture}
    roles = _roles(plain(cfg, resolve=False))
    return _Component(node, {key: role for key, role in roles.items() if key in node})


def _shared(role: str, components: Sequence[_Component], known: bool) -> Node | None:
    """The tower of all components with this role; None if no component has it, and it is known."""
    towers = [model[key] for model, roles in components for key, played in roles.items() if played == role]
    if not towers and not known:
        raise ConfigError(f"model.shared: no component has a role {role!r}")
    if any(tower != towers[0] for tower in towers):
        raise ConfigError(
            f"model.shared: components have different towers for {role}; "
            f"choose one for all by parameter@{role}=..., or do not share it"
        )
    return towers[0] if towers else None


def _sharing(component: _Component, shared: Mapping[str, Node]) -> Node:
    """The component without the towers that it shares; a key of another name than the role holds the role's."""
    own = {key: value for key, value in component.node.items() if key not in shared}
    return own | {key: role for key, role in component.roles.items() if role in shared and role != key}
