"""Names in any script: figures have the letters of a font of the machine, or a slug, and never boxes or warnings."""

import logging
import re

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.font_manager import fontManager

from clickexp.results.figures import fonts
from clickexp.results.figures.drawing import draw, draw_apart, drawing
from clickexp.results.figures.fonts import figure_text
from clickexp.results.figures.panels import forest
from clickexp.utils.escape import slug

NAMES = {"Chinese": "点击模型", "Japanese": "クリック", "Thai": "โมเดล", "emoji": "👍"}
"""DejaVu Sans, Matplotlib's own, has none of their letters."""
OWN = ["Модель", "μοντέλο", "نموذج", "↑"]
"""It has these."""


def panels(name):
    """A name in each place that text has: legend, axes, ticks."""

    def curve(axes):
        axes.plot([1, 2], [1, 2], label=figure_text(name))
        axes.set(xlabel=figure_text(name), ylabel=f"Loss of\n{figure_text(name)}")

    return [curve, lambda axes: forest([(name, 0, 0.1, 0.05, True)], figure_text(name), True, axes)]


def texts(name):
    """What the SVG shows, line by line."""
    figures = [("x", panels(name))]
    draw(figures)
    svg = "".join(draw_apart(figures)["x"])
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg), svg


@pytest.fixture(autouse=True)
def fonts_of_the_machine(monkeypatch):
    """Only those that Matplotlib brings, and nothing said yet."""
    own = [entry for entry in fontManager.ttflist if entry.name.startswith("DejaVu")]
    monkeypatch.setattr(fontManager, "ttflist", own)
    cached = fonts.families, fonts._letters, fonts.figure_text, fonts._with_letters
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.parametrize("name", [NAMES["Chinese"], NAMES["emoji"]])
def test_without_a_font_a_figure_shows_a_slug_and_one_line_says_so(name, caplog):
    """Warnings are errors in tests."""
    caplog.set_level(logging.INFO)
    drawing(panels(name))
    shown, _ = texts(name)
    assert shown.count(slug(name)) == 5 and not any(name in text for text in shown)
    (line,) = caplog.messages
    assert slug(name) in line and name in line and "\n" not in line


def test_words_that_have_letters_stay_beside_those_that_have_none(caplog):
    name = NAMES["Chinese"]
    assert figure_text(f"Relative examination, device {name}").startswith("Relative examination, ")
    assert figure_text(f"device {name}") == f"device {slug(name)}"
    assert len(caplog.messages) == 1


def test_letters_of_the_own_font_stay(caplog):
    name = " ".join(OWN)
    shown, _ = texts(name)
    assert shown.count(name) == 5 and not caplog.messages


@pytest.fixture
def font(tmp_path):
    """A font of the machine, with the letters of each name, but for those of one."""
    letters = sorted(
        {letter for script, name in NAMES.items() for letter in name if script != "Thai"}
    )
    names = [".notdef", *(f"u{ord(letter):05X}" for letter in letters)]
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for point in ((100, 700), (700, 700), (700, 0)):
        pen.lineTo(point)
    pen.closePath()
    builder = FontBuilder(1000)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(letter): f"u{ord(letter):05X}" for letter in letters})
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (800, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Noto Sans CJK SC", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "all.ttf")
    fontManager.addfont(tmp_path / "all.ttf")


@pytest.mark.parametrize("scripts", [("Chinese", "Japanese"), ("emoji",), ("Thai",)])
@pytest.mark.usefixtures("font")
def test_letters_are_those_of_a_font_of_the_machine(scripts, caplog):
    name = "".join(NAMES[script] for script in scripts)
    shown, svg = texts(name)
    if "Thai" in scripts:
        assert shown.count(slug(name)) == 5 and len(caplog.messages) == 1
        return
    assert shown.count(name) == 5 and not caplog.messages
    assert "Noto Sans CJK SC" in svg
    assert drawing(panels(name))._repr_png_().startswith(b"\x89PNG")
