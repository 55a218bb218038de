"""Components of a mixture in a configuration: each is composed as `model=NAME` alone would be."""

from collections.abc import Container, Sequence
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from clickexp.errors import ConfigError

Node = dict[str, Any]
Roles = dict[str, str]
"""By the arguments of a model that are towers, the roles that they play: {"ctr": "attraction"}."""


def with_components(config: Node, overrides: Sequence[str]) -> Node:
    """The configuration with the nodes of `models` and `shared` towers in place of their names in model.components.

    overrides: those that the configuration was composed with. Whatever they say of towers reaches every component;
    what they say of the model is about the mixture. ConfigError for what is no component or no role.
    """
    mixture = config.get("model")
    if not isinstance(mixture, dict) or "components" not in mixture:
        return config
    components, shared = (_list(mixture, name) for name in ("components", "shared"))
    models = [_composed(component, mixture, overrides) for component in components]
    towers = {role: tower for role in shared if (tower := _common(role, models, config))}
    models = [_sharing(model, roles, towers) for model, roles in models]
    return {**config, "model": _without(mixture, ("components",)) | {"models": models, "shared": towers}}


def roles_of(cfg: DictConfig, overrides: Sequence[str]) -> set[str]:
    """The roles that the model takes towers for; of a mixture, those of its components."""
    mixture = OmegaConf.to_container(cfg.model)
    if "components" not in mixture:
        return set(_roles(mixture).values())
    return {
        role for each in mixture["components"] for role in _composed(each, mixture, overrides)[1].values()
    }


def _roles(told: Node) -> Roles:
    """The roles that an unresolved node refers to."""
    return {name: value[2:-1] for name, value in told.items() if str(value).startswith("${")}


def _without(node: Node, names: Container[str]) -> Node:
    return {name: value for name, value in node.items() if name not in names}


def _sharing(model: Node, roles: Roles, towers: Container[str]) -> Node:
    """The component without towers of its own where it shares one; an argument of another name tells the role."""
    others = {name: role for name, role in roles.items() if role in towers and role != name}
    return _without(model, towers) | others


def _list(mixture: Node, name: str) -> list:
    value = mixture[name]
    if not isinstance(value, list):
        raise ConfigError(f"model.{name}={value!r} is not a list; write model.{name}=[...]")
    return value


def _composed(component: str | Node, mixture: Node, overrides: Sequence[str]) -> tuple[Node, Roles]:
    """The node of a component given by name, and its roles; one that is spelled out stays as it is."""
    if isinstance(component, dict):
        return component, {name: name for name in component}
    known = GlobalHydra.instance().config_loader().get_group_options("model")
    if component not in known:
        raise ConfigError(
            f"model.components: there is no model {component!r}; choose from {', '.join(known)}"
        )
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    kept = [o.input_line for o in parsed if o.key_or_group.split(".")[0] != "model"]
    composed = compose("config", [*kept, f"model={component}"]).model
    node = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    if node["_target_"] == mixture["_target_"]:
        raise ConfigError(f"model.components: {component} is a mixture itself; name its components")
    # the keys that a preset gives the mixture end up in every model
    node = {name: value for name, value in node.items() if name.startswith("_") or name not in mixture}
    roles = _roles(OmegaConf.to_container(composed))
    return node, {name: role for name, role in roles.items() if name in node}


def _common(role: str, models: list[tuple[Node, Roles]], config: Node) -> Node | None:
    """The tower that all models with this role describe; None if there are no such models."""
    towers = [model[name] for model, roles in models for name, played in roles.items() if played == role]
    if not towers and role not in config:
        raise ConfigError(f"model.shared: no component has a role {role!r}")
    if any(tower != towers[0] for tower in towers):
        raise ConfigError(
            f"model.shared: components have different towers for {role}; "
            f"choose one for all by parameter@{role}=..., or do not share it"
        )
    return towers[0] if towers else None
