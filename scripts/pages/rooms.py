"""The map of the rooms: `python scripts/pages/rooms.py` draws docs/images/rooms.svg from what the code imports."""

import ast
import re
import textwrap
from collections.abc import Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "clickexp"
FILE = ROOT / "docs/images/rooms.svg"
GROUND = "utils"
"""Room that stands for the ground floor: the modules beside it and itself, which import each other."""
FOUNDATION = ("types", "numerics", "errors", "utils")
WIDTH, HEIGHT, GAP, BETWEEN = 150, 62, 14, 44
COLUMNS = 6
"""Rooms side by side at most."""

Graph = Mapping[str, set[str]]


def rooms() -> dict[str, set[str]]:
    """The rooms that each room imports, in functions too; the foundation is one of them."""
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        room = _room(file.relative_to(PACKAGE).parts[0].removesuffix(".py"))
        if not room.startswith("__"):
            found.setdefault(room, set()).update(_imported(file))
    return {room: others & (found.keys() - {room}) for room, others in found.items()}


def _room(name: str) -> str:
    return GROUND if name in FOUNDATION else name


def _imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {_room(name.split(".")[1]) for name in names if name.startswith("clickexp.")}


def floors(graph: Graph) -> dict[str, int]:
    """The floor of each room: one above the highest room that it imports."""
    known: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in known:
            known[room] = 1 + max(map(floor, graph[room]), default=-1)
        return known[room]

    for room in graph:
        floor(room)
    return known


def direct(graph: Graph) -> list[tuple[str, str]]:
    """Pairs of rooms, the upper one first, without those that follow from others."""
    below: dict[str, set[str]] = {}
    for room in sorted(graph, key=floors(graph).__getitem__):
        below[room] = set().union(*(below[other] | {other} for other in graph[room]))
    return [
        (room, other)
        for room, others in sorted(graph.items())
        for other in sorted(others)
        if not any(other in below[third] for third in others)
    ]


def drawn() -> str:
    """The map as SVG."""
    graph = rooms()
    places = _places(floors(graph))
    right = max(x for x, _ in places.values()) + WIDTH + GAP
    bottom = max(y for _, y in places.values()) + HEIGHT + GAP
    lines = [_arrow(places[room], places[other]) for room, other in direct(graph)]
    boxes = [_box(room, *place) for room, place in places.items()]
    style = 'font-family="system-ui, sans-serif" text-anchor="middle"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right} {bottom}" {style}>',
            "<title>The rooms of clickexp, each of which imports those below it only</title>",
            f'<rect width="{right}" height="{bottom}" rx="8" fill="#ffffff"/>',
            *lines,
            *boxes,
            "</svg>",
            "",
        ]
    )


def _places(levels: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Left upper corners, the top floor first; a floor of many rooms has several rows."""
    rows = []
    for level in range(max(levels.values()), -1, -1):
        row = sorted(room for room in levels if levels[room] == level)
        rows += [row[start : start + COLUMNS] for start in range(0, len(row), COLUMNS)]
    widest = max(map(len, rows)) * (WIDTH + GAP)
    places = {}
    for number, row in enumerate(rows):
        left = GAP + (widest - len(row) * (WIDTH + GAP)) // 2
        for column, room in enumerate(row):
            places[room] = (left + column * (WIDTH + GAP), GAP + number * (HEIGHT + BETWEEN))
    return places


def _arrow(upper: tuple[int, int], lower: tuple[int, int]) -> str:
    x1, y1, x2, y2 = upper[0] + WIDTH // 2, upper[1] + HEIGHT, lower[0] + WIDTH // 2, lower[1]
    path = f"M{x1} {y1}C{x1} {y1 + BETWEEN} {x2} {y2 - BETWEEN} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="#9fa8da" stroke-width="1.5"/>'


def _box(room: str, x: int, y: int) -> str:
    name = ", ".join(FOUNDATION) if room == GROUND else room
    middle = x + WIDTH // 2
    width = WIDTH + 10 * len(name) // 3 if room == GROUND else WIDTH
    place = f'x="{middle - width // 2}" y="{y}" width="{width}" height="{HEIGHT}" rx="6"'
    parts = [
        f'<rect {place} fill="#e8eaf6" stroke="#3f51b5"/>',
        _text(middle, y + 18, name, 'font-size="12" font-weight="600"'),
    ]
    for number, line in enumerate(textwrap.wrap(_role(room), 26)[:3]):
        parts.append(_text(middle, y + 33 + 12 * number, line, 'font-size="10"'))
    return "".join(parts)


def _text(x: int, y: int, text: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" fill="#1a237e" {style}>{escape(text)}</text>'


def _role(room: str) -> str:
    """The start of the docstring of a room."""
    init = PACKAGE / room / "__init__.py"
    if not init.exists():
        return "What Hydra looks for in its own package"
    text = ast.get_docstring(ast.parse(init.read_text())) or ""
    return re.split(r"[:.]", text, maxsplit=1)[0]


if __name__ == "__main__":
    FILE.write_text(drawn())
