"""Paths as messages show them."""

from pathlib import Path


def display_path(path: str | Path) -> str:
    """Returns a path relative to the working directory where it lies below it, else absolute."""
    path, here = Path(path).absolute(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
