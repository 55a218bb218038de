"""What the benchmarks print: tables, and where they ran."""

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("jax", "flax", "numpy")


def machine() -> str:
    """Processor, cores that this process may use, load and versions, in one line."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.split(": ")[1] for line in lines if line.startswith("model name"))
    processor = next(names, platform.machine())
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    load = os.getloadavg()[0]
    return f"{processor}, {len(os.sched_getaffinity(0))} cores, load {load:.1f}, {versions}"


def print_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A Markdown table, aligned; floats with three significant digits unless given as text."""
    lines = [list(headers), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"\n{title}\n")
    for number, line in enumerate(lines):
        numbers = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("| " + " | ".join([line[0].ljust(widths[0]), *numbers]) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print(flush=True)


def _text(cell: object) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
