"""Where a run reports to: a terminal, a file, Weights & Biases, or several at once."""

from importlib import import_module
from typing import Any

_MODULES = {
    "Logger": "base",
    "RunInfo": "base",
    "FanOut": "fanout",
    "ConsoleLogger": "console",
    "JsonlLogger": "jsonl",
    "WandbLogger": "wandb",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Imports a backend when it is first asked for, so that a run pays only for those it uses."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
