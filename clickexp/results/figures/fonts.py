"""Fonts for letters that Matplotlib's own lacks, such as Chinese ones: those of this machine, or else a slug."""

import functools
import logging

from matplotlib import rcParams
from matplotlib.axis import Axis
from matplotlib.category import StrCategoryFormatter
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, FontProperties, findfont, fontManager, get_font
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter

from clickexp.utils.escape import slug

_messages = logging.getLogger(__name__)
_PLACEHOLDER = "Last Resort"
"""How the name of a font begins that has a box for every letter."""
_REGULAR = 400
_said: set[str] = set()
"""Text that a line has named."""


def further_fonts(figure: Figure) -> list[str]:
    """Returns families of this machine with letters of a figure that its font lacks; empty where it lacks none."""
    letters = {ord(letter) for text in _texts(figure) for letter in text}
    missing = frozenset(letters - _known())
    return _families(missing) if missing else []


def without_unknown(figure: Figure) -> None:
    """Puts a slug in the place of each text that no font of the figure has the letters of, and says so in a line."""
    letters = _known()
    lacking = {
        text: slug(text) for text in _texts(figure) if not letters.issuperset(map(ord, text))
    }
    if not lacking:
        return
    for axis in _axes(figure):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        if not lacking.keys().isdisjoint(labels):
            axis.set_ticks(axis.get_ticklocs(), [lacking.get(label, label) for label in labels])
    for text in _artists(figure):
        text.set_text(lacking.get(text.get_text(), text.get_text()))
    new = {text: name for text, name in lacking.items() if text not in _said}
    _said.update(new)
    if new:
        pairs = ", ".join(f"{name} for {text!r}" for text, name in new.items())
        _messages.warning("figures show %s: no font of this machine has these letters", pairs)


def _texts(figure: Figure) -> list[str]:
    ticks = [label for axis in _axes(figure) for label in axis.get_ticklabels()]
    return [text.get_text() for text in (*_artists(figure), *ticks)]


def _artists(figure: Figure) -> list[Text]:
    """Returns all text but that of ticks; `findobj` would make ticks that are made again when the figure is drawn."""
    of_legends = [text for legend in figure.legends for text in legend.get_texts()]
    of_axes = [
        text
        for axes in figure.axes
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
    ]
    return [*of_legends, *of_axes]


def _axes(figure: Figure) -> list[Axis]:
    """Returns those whose ticks have names, not numbers."""
    every = (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis))
    return [
        axis
        for axis in every
        if isinstance(axis.get_major_formatter(), FuncFormatter | StrCategoryFormatter)
    ]


def _known() -> frozenset[int]:
    """Letters of the fonts in use."""
    files = [findfont(FontProperties(family=[family])) for family in rcParams["font.family"]]
    return frozenset({ord("\n")}).union(*map(_letters, files))


@functools.cache
def _letters(file: str) -> frozenset[int]:
    """Letters of a font; none of one that cannot be read."""
    try:
        return frozenset(get_font(file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


@functools.cache
def _families(missing: frozenset[int]) -> list[str]:
    """Returns families that together have as many of the letters as any have, plain ones without serifs first."""
    families: list[str] = []
    for entry in sorted(fontManager.ttflist, key=_oddity):
        if not missing:
            break
        letters = frozenset() if entry.name.startswith(_PLACEHOLDER) else _letters(entry.fname)
        if missing & letters:
            families.append(entry.name)
            missing -= letters
    return families


def _oddity(entry: FontEntry) -> tuple[bool, bool, int, str]:
    weight = entry.weight if isinstance(entry.weight, int) else _REGULAR
    return "Sans" not in entry.name, entry.style != "normal", abs(weight - _REGULAR), entry.name
