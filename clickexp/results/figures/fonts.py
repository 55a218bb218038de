"""Text of figures: in the fonts of this machine, or as a slug where none of them has its letters."""

import functools
import logging

from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

from clickexp.utils.escape import printable, slug

_messages = logging.getLogger(__name__)
_OWN = "DejaVu Sans"
"""Matplotlib's own font, of Latin, Greek, Cyrillic and Arabic letters."""
_FURTHER = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "SimHei",
    "PingFang SC",
    "Hiragino Sans",
    "Yu Gothic",
    "Malgun Gothic",
    "Arial Unicode MS",
    "Noto Sans Devanagari",
    "Noto Sans Hebrew",
    "Noto Sans Thai",
    "Noto Emoji",
)
"""Fonts of the usual systems with the letters that it lacks."""


@functools.cache
def families() -> list[str]:
    """Returns the fonts of figures that this machine has; each is taken for the letters that those before it lack."""
    installed = fontManager.get_font_names()
    return [_OWN, *(family for family in _FURTHER if family in installed)]


@functools.cache
def _letters() -> frozenset[int]:
    """Returns the letters of these fonts, and the end of a line."""
    files = [findfont(FontProperties(family=[family])) for family in families()]
    return frozenset({ord("\n")}).union(*(get_font(file).get_charmap() for file in files))


@functools.cache
def figure_text(text: str) -> str:
    """Returns a label for Matplotlib, with slugs in place of words without a font.

    There is no mathematics between dollar signs, and no underscore first, which would hide the label.
    """
    shown = " ".join(map(_with_letters, printable(text).split(" ")))
    shown = shown.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


@functools.cache
def _with_letters(word: str) -> str:
    """Returns a word, or a slug where no font has its letters, which a line names once."""
    if _letters().issuperset(map(ord, word)):
        return word
    shown = slug(word)
    _messages.warning(
        "figures show %s for %r: no font of this machine has these letters", shown, word
    )
    return shown
