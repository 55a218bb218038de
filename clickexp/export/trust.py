"""Names that the configuration in the folder of a run may call: such a folder may come from anyone."""

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

from flax import nnx

from clickexp.data import Dataset
from clickexp.errors import UserError
from clickexp.models.ranker.debias import Debias
from clickexp.models.ranker.losses import Loss
from clickexp.parameters import ParameterConfig, Table, VectorsConfig
from clickexp.propensities import PropensitySource
from clickexp.utils.documents import items_of
from clickexp.utils.signatures import located

_PACKAGE = __name__.split(".")[0]
_TARGET, _POSITIONAL = "_target_", "_args_"
_INTERPOLATION = "${"
_MADE = (Dataset, nnx.Module, ParameterConfig, VectorsConfig, Table, Loss, Debias, PropensitySource)
"""Classes that the dataset and the model of a run are made of."""
_REMEDY = "If you trust who made the folder, add --trust."


def check_targets(node: Any, where: str) -> None:
    """UserError unless all that a configuration calls are models, towers and readers of datasets of clickexp.

    A configuration calls what `_target_` names, at any depth, and what is named for an argument that takes a function,
    such as the user of a simulation. What is refused is not imported. Interpolations and positional arguments are
    refused also: runs leave neither, and what they come to is not known here.

    Args:
        node: the configuration as plain dicts and lists.
        where: its key, for messages.
    """
    if isinstance(node, str) and _INTERPOLATION in node:
        raise UserError(f"{where}={node!r}: runs leave no interpolations. {_REMEDY}")
    if isinstance(node, dict):
        _check_called(node, where)
    for key, value in items_of(node):
        check_targets(value, f"{where}.{key}")


def _check_called(node: dict[str, Any], where: str) -> None:
    for key, name in _called(node).items():
        if not _is_ours(name):
            what = f"no model, tower or dataset of {_PACKAGE}: it is not run"
            raise UserError(f"{where}.{key}={name!r} is {what}. {_REMEDY}")
    if _TARGET in node and _POSITIONAL in node:
        raise UserError(f"{where}.{_POSITIONAL}: runs leave no positional arguments. {_REMEDY}")


def _is_ours(name: Any) -> bool:
    """Whether this is the dotted path of a model, a tower, or a function that makes one or a dataset, in clickexp.

    What the package has imported from elsewhere, as in `clickexp.data.folders.os`, is not.
    """
    named = _own(name)
    calls = callable(named) and not inspect.isclass(named)  # functions, and formats of logs
    kind = inspect.signature(named).return_annotation if calls else named
    return inspect.isclass(kind) and issubclass(kind, _MADE)


def _own(name: Any) -> Any:
    """The object of clickexp that a dotted path names; None where there is none."""
    parts = name.split(".") if isinstance(name, str) else []
    if parts[:1] != [_PACKAGE] or any(part.startswith("_") for part in parts):
        return None
    try:
        named = located(name)
        as_hydra = functools.reduce(getattr, parts[1:], sys.modules[_PACKAGE])
    except Exception:  # there is nothing of this name, or its import fails
        return None
    is_own = str(getattr(named, "__module__", "")).startswith(f"{_PACKAGE}.")
    return named if named is as_hydra and is_own else None


def _called(node: dict[Any, Any]) -> dict[str, Any]:
    """The keys of a node under which something to call is named, and the names; the target comes first."""
    if _TARGET not in node:
        return {}
    named = {_TARGET: node[_TARGET]}
    if _is_ours(node[_TARGET]):
        parameters = inspect.signature(located(node[_TARGET])).parameters
        functions = [
            name for name, parameter in parameters.items() if _is_callable(parameter.annotation)
        ]
        named |= {name: node[name] for name in functions if isinstance(node.get(name), str)}
    return named


def _is_callable(annotation: Any) -> bool:
    options = (annotation, *typing.get_args(annotation))
    return Callable in (typing.get_origin(option) or option for option in options)
