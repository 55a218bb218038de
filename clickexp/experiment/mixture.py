"""Mixtures of click models as a configuration states them: names of components, whose nodes take their place."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from clickexp.errors import ConfigError


class Component(NamedTuple):
    """The node of a click model, and the roles that it takes towers for."""

    node: dict[str, Any]
    roles: frozenset[str]


def mixture_of(
    mixture: Mapping[str, Any],
    towers: Collection[str],
    models: Collection[str],
    compose: Callable[[str], Component],
) -> Component:
    """Returns a mixture with the nodes of its components in `models`, and the roles that any of them takes.

    Args:
        mixture: Its node. `components` has models by name or spelled out, `shared` roles.
        towers: The roles that there are towers for.
        models: The names of models.
        compose: From the name of a model to what a configuration of this model alone has.

    Raises:
        ConfigError: Components or shared roles are no lists, a component is no model, or a role has no tower.
    """
    _check_lists(mixture, towers)
    components = []
    for component in mixture["components"]:
        if isinstance(component, dict):
            components.append(Component(component, frozenset(component)))
        elif component in models:
            components.append(_without_settings_of(mixture, component, compose(component)))
        else:
            choices = ", ".join(models)
            raise ConfigError(
                f"model.components: there is no model {component!r}; choose from {choices}"
            )
    settings = {key: value for key, value in mixture.items() if key != "components"}
    roles = frozenset().union(*(component.roles for component in components))
    return Component({**settings, "models": [component.node for component in components]}, roles)


def _check_lists(mixture: Mapping[str, Any], towers: Collection[str]) -> None:
    """ConfigError where components or shared roles are no lists, or a role has no tower."""
    for key in ("components", "shared"):
        if not isinstance(mixture[key], list):
            raise ConfigError(
                f"model.{key}={mixture[key]!r} is not a list; write model.{key}=[...]"
            )
    for role in mixture["shared"]:
        if role not in towers:
            raise ConfigError(f"model.shared: no component has a role {role!r}")


def _without_settings_of(mixture: Mapping[str, Any], name: str, component: Component) -> Component:
    """A component without keys of the mixture: those that a preset gives the mixture end up in every model."""
    node = component.node
    if node["_target_"] == mixture["_target_"]:
        raise ConfigError(f"model.components: {name} is a mixture itself; name its components")
    settings = {
        key: value for key, value in node.items() if key.startswith("_") or key not in mixture
    }
    return component._replace(node=settings)
