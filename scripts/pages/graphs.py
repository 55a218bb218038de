"""The graph of a click model as SVG: what is hidden, what is seen, and which parameters stand behind it.

Hidden events and arrows are listed here. Parameters and what each depends on come from the roles that the model's class
declares and their default towers.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clickexp.parameters import (
    EmbeddingParameterConfig,
    GlobalParameterConfig,
    ParameterConfig,
    PositionParameterConfig,
)

RADIUS, DOT, COLUMN, ROW = 21, 5, 190, 78
NAMES = {
    "E": "examination",
    "A": "attraction",
    "C": "click",
    "S": "satisfaction",
    "K": "kind of user",
    "H": "recurrent state",
}
DEPENDS = {
    EmbeddingParameterConfig: "document",
    PositionParameterConfig: "rank",
    GlobalParameterConfig: "one for all",
}
FEATURES = {"examination_idx": "rank, last click", "ctr_idx": "document, rank"}


@dataclass(frozen=True)
class Graph:
    """Events of a rank from the top to the bottom, arrows inside a rank, and arrows from the rank above.

    Attributes:
        events: Letters of `NAMES`; C, the click, is seen, the others are hidden.
        arrows: Pairs of letters: of one rank.
        across: Pairs of letters: from the rank above.
        session: Letter of an event of the whole session, with arrows to the click of each rank.
        behind: The event, or the arrow to an event, that a role is a parameter of.
    """

    events: str
    behind: Mapping[str, str]
    arrows: Sequence[str] = ()
    across: Sequence[str] = ()
    session: str = ""
    ranks: Sequence[str] = field(default=("r",))


CHAIN: dict[str, Any] = {"ranks": ("r − 1", "r"), "across": ("EE", "CE")}
HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="currentColor" stroke="none"/></marker></defs>'
)
GRAPHS = {
    "gctr": Graph("C", {"ctr": "C"}),
    "rctr": Graph("C", {"ctr": "C"}),
    "dctr": Graph("C", {"ctr": "C"}),
    "drctr": Graph("C", {"ctr": "C"}),
    "pbm": Graph("ECA", {"examination": "E", "attraction": "A"}, ("EC", "AC")),
    "trust_bias": Graph(
        "CA", {"true_positive": "C", "false_positive": "C", "attraction": "A"}, ("AC",)
    ),
    "two_towers": Graph("C", {"bias": "C", "attraction": "C"}),
    "ubm": Graph(
        "ECA",
        {"examination": "E", "attraction": "A"},
        ("EC", "AC"),
        ("CE",),
        ranks=("last click", "r"),
    ),
    "cacm_minus": Graph(
        "HECA", {"attraction": "A"}, ("HE", "EC", "AC"), ("HH", "CH"), ranks=("r − 1", "r")
    ),
    "cacm": Graph("HECA", {}, ("HE", "EC", "AC"), ("HH", "CH"), ranks=("r − 1", "r")),
    "ncm": Graph("HC", {}, ("HC",), ("HH", "CH"), ranks=("r − 1", "r")),
    "cm": Graph("ECA", {"attraction": "A"}, ("EC", "AC"), **CHAIN),
    "dcm": Graph("ECA", {"continuation": "E", "attraction": "A"}, ("EC", "AC"), **CHAIN),
    "ccm": Graph(
        "ESCA",
        {
            "continuation_exam_no_click": "E",
            "continuation_click_not_satisfied": "E",
            "continuation_click_satisfied": "E",
            "attraction": "A",
        },
        ("EC", "AC", "CS", "AS"),
        ("EE", "SE", "CE"),
        ranks=("r − 1", "r"),
    ),
    "dbn": Graph(
        "ESCA",
        {"continuation": "E", "satisfaction": "S", "attraction": "A"},
        ("EC", "AC", "CS"),
        ("EE", "SE"),
        ranks=("r − 1", "r"),
    ),
    "sdbn": Graph(
        "ESCA",
        {"satisfaction": "S", "attraction": "A"},
        ("EC", "AC", "CS"),
        ("EE", "SE"),
        ranks=("r − 1", "r"),
    ),
    "mixture": Graph("C", {}, session="K", ranks=("1", "2", "r")),
}


def depends_on(tower: ParameterConfig) -> str:
    """What a default tower has one parameter for."""
    feature = getattr(tower, "use_feature", "")
    return FEATURES.get(feature) or DEPENDS[type(tower)]


def svg(option: str, roles: Mapping[str, ParameterConfig]) -> str:
    """The graph of `model=option` in the colour of the text around it.

    Args:
        option: Name of the option.
        roles: Default towers of the model's class, by role.
    """
    graph = GRAPHS[option]
    top = 74 if graph.session else 44
    height = top + ROW * (len(graph.events) - 1) + RADIUS + 24
    left = 90 + round(
        6.3 * max([len(f"{role} ({depends_on(roles[role])})") for role in graph.behind], default=14)
    )
    width = left + COLUMN * (len(graph.ranks) - 1) + RADIUS + 150
    # a snake: the click stands to the right of what it depends on, so that arrows do not run through circles
    offset = {
        letter: (34 if letter == "C" and len(graph.events) > 1 else 0) for letter in graph.events
    }
    if graph.events == "ESCA":
        offset = {"E": 0, "S": 64, "C": 0, "A": 0}
    x = [left + COLUMN * i for i in range(len(graph.ranks))]
    y = {letter: top + ROW * i for i, letter in enumerate(graph.events)}
    spot = {
        (letter, i): (x[i] + offset[letter], y[letter])
        for letter in graph.events
        for i in range(len(x))
    }
    parts = [
        _text(x[i], 14, f"rank {name}" if "click" not in name else name, 12)
        for i, name in enumerate(graph.ranks)
    ]
    for i in range(len(x)):
        parts += [_arrow(spot[a, i], spot[b, i]) for a, b in graph.arrows]
        if i:
            parts += [_arrow(spot[a, i - 1], spot[b, i]) for a, b in graph.across]
    if graph.session:
        x_of = {i: spot["C", i] for i in range(len(x))}
        middle = (left - 110, y["C"])
        parts += [_arrow(middle, (px, py), bend=-34 * i) for i, (px, py) in x_of.items()]
        parts += [
            *_circle(*middle, graph.session, seen=False),
            _text(middle[0], y["C"] + 36, NAMES[graph.session], 11),
        ]
    for (letter, i), (px, py) in spot.items():
        parts += _circle(px, py, letter, seen=letter == "C", rank=graph.ranks[i])
    at: dict[str, int] = {}
    for role, letter in graph.behind.items():
        count = sum(other == letter for other in graph.behind.values())
        nth = at.setdefault(letter, 0)
        at[letter] += 1
        px, py = spot[letter, 0]
        dot = (left - 70, y[letter] + 26 * (nth - (count - 1) / 2))
        parts += [
            _arrow(dot, (px, py), radius=DOT),
            _dot(*dot),
            _label(dot[0] - 10, dot[1], role, depends_on(roles[role])),
        ]
    for letter in graph.events:
        px, py = spot[letter, len(x) - 1]
        # to the left, where an arrow runs on the right
        beside = -1 if letter == "C" and "AS" in graph.arrows else 1
        anchor = "start" if beside > 0 else "end"
        parts.append(_text(px + beside * (RADIUS + 10), py + 4, NAMES[letter], 12, anchor))
    title = f"graph of {option}: " + ", ".join(NAMES[letter] for letter in graph.events)
    return _drawing(title, width, height, parts)


@dataclass(frozen=True)
class Box:
    """A step from clicks to a ranking: what goes in is seen, groups of the configuration choose the others.

    Attributes:
        words: What it holds.
        x: Of the middle.
        y: Of the middle.
        group: The group of the configuration that chooses how it is computed.
        seen: Whether the log has it.
    """

    words: str
    x: float
    y: float
    group: str = ""
    seen: bool = False


RANKER = {
    "documents": Box("documents", 62, 30, seen=True),
    "positions": Box("positions", 62, 118, seen=True),
    "clicks": Box("clicks", 62, 206, seen=True),
    "scores": Box("scores f", 232, 30, "attraction"),
    "propensities": Box("propensities p", 232, 118, "propensity"),
    "weights": Box("corrected clicks", 232, 206, "debias"),
    "order": Box("ranking", 402, 30),
    "loss": Box("loss", 402, 118, "loss"),
}
FLOWS = (
    ("documents", "scores"),
    ("positions", "propensities"),
    ("clicks", "weights"),
    ("clicks", "propensities"),
    ("propensities", "weights"),
    ("scores", "order"),
    ("scores", "loss"),
    ("weights", "loss"),
)
HALF_WIDTH, HALF_HEIGHT = 56, 17


def ranker_svg(groups: Collection[str]) -> str:
    """The way from clicks to a ranking, each step with the group that chooses it.

    Args:
        groups: Groups that `model=ranker` composes, as its configuration has them.
    """
    missing = {box.group for box in RANKER.values() if box.group} ^ set(groups)
    if missing:
        raise ValueError(
            f"the picture of rankers and conf/model/ranker.yaml differ in {sorted(missing)}"
        )
    parts = []
    for a, b in FLOWS:
        parts.append(_flow(RANKER[a], RANKER[b]))
    for box in RANKER.values():
        fill = ' fill="currentColor" fill-opacity="0.18"' if box.seen else ""
        parts.append(
            f'<rect x="{box.x - HALF_WIDTH}" y="{box.y - HALF_HEIGHT}" width="{2 * HALF_WIDTH}" '
            f'height="{2 * HALF_HEIGHT}" rx="6"{fill}/>'
        )
        parts.append(_text(box.x, box.y + 4, box.words, 12))
        if box.group:
            parts.append(_text(box.x, box.y + HALF_HEIGHT + 15, f"{box.group}=", 11))
    return _drawing(
        "from clicks to a ranking: " + ", ".join(box.words for box in RANKER.values()),
        464,
        246,
        parts,
    )


def _flow(a: Box, b: Box) -> str:
    """An arrow from the rim of a box to that of another: to the right, or down."""
    side = a.x != b.x
    apart = 8 * ((a.y > b.y) - (a.y < b.y))  # heads of arrows from above and from below stand apart
    x, y = (a.x + HALF_WIDTH, a.y) if side else (a.x, a.y + HALF_HEIGHT + 20)
    to_x, to_y = (b.x - HALF_WIDTH - 2, b.y + apart) if side else (b.x, b.y - HALF_HEIGHT - 2)
    return f'<path d="M{x} {y}L{to_x} {to_y}" marker-end="url(#head)"/>'


def _drawing(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """A picture with a title for those who do not see it."""
    attributes = {
        "class": "graph",
        "role": "img",
        "aria-label": title,
        "viewBox": f"0 0 {width} {height}",
        "style": f"max-width: {width * 1.1:.0f}px",
        "xmlns": "http://www.w3.org/2000/svg",
        "fill": "none",
        "stroke": "currentColor",
        "stroke-width": "1.4",
    }
    opening = " ".join(f'{name}="{value}"' for name, value in attributes.items())
    return f"<svg {opening}>{HEAD}{''.join(parts)}</svg>"


def _arrow(
    a: tuple[float, float], b: tuple[float, float], radius: float = RADIUS, bend: float = 0
) -> str:
    """From the rim of a circle at a to the rim of one at b."""
    angle = math.atan2(b[1] - a[1], b[0] - a[0])
    start = (a[0] + radius * math.cos(angle), a[1] + radius * math.sin(angle))
    end = (b[0] - (RADIUS + 2) * math.cos(angle), b[1] - (RADIUS + 2) * math.sin(angle))
    if bend:
        tilt = 0.5 if bend < 0 else -0.5
        start = (a[0] + radius * math.cos(tilt), a[1] - radius * math.sin(tilt))
        end = (b[0] - (RADIUS + 2) * math.cos(0.9), b[1] - (RADIUS + 2) * math.sin(0.9))
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + bend)
    return (
        f'<path d="M{start[0]:.1f} {start[1]:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {end[0]:.1f} {end[1]:.1f}" '
        'marker-end="url(#head)"/>'
    )


def _circle(x: float, y: float, letter: str, seen: bool, rank: str = "") -> list[str]:
    fill = ' fill="currentColor" fill-opacity="0.18"' if seen else ""
    small = "r′" if "click" in rank else rank.replace(" ", "")
    subscript = f'<tspan dy="4" font-size="9">{small}</tspan>' if small else ""
    return [
        f'<circle cx="{x}" cy="{y}" r="{RADIUS}"{fill}/>',
        _text(x, y + 5, f'<tspan font-style="italic">{letter}</tspan>{subscript}', 15),
    ]


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x}" cy="{y}" r="{DOT}" fill="currentColor"/>'


def _label(x: float, y: float, role: str, per: str) -> str:
    words = f'{role.replace("continuation_", "")} <tspan fill-opacity="0.7">({per})</tspan>'
    return _text(x, y + 4, words, 11, "end")


def _text(x: float, y: float, words: str, size: int, anchor: str = "middle") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="currentColor" stroke="none" '
        f'font-family="inherit">{words}</text>'
    )
