"""Paths as messages show them."""

from pathlib import Path


def shown(path: str | Path) -> str:
    """Relative to the working directory where it lies below it, else absolute."""
    path, here = Path(path).absolute(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
