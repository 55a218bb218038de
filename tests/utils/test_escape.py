"""Text of others in file names, LaTeX, Markdown, CSV, figures and terminals, read back by other means."""

import csv
import io
import math
import re
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib import mathtext
from matplotlib.figure import Figure

from clickexp.errors import DataError, UserError
from clickexp.results.figures import fonts
from clickexp.results.figures.fonts import figure_text
from clickexp.utils.escape import (
    cleaned,
    csv_cell,
    csv_text,
    latex,
    markdown,
    printable,
    slug,
)
from clickexp.utils.exits import ending

HOSTILE = [
    "../../../etc/passwd",
    "/etc/passwd",
    "a/b\\c",
    "..",
    ".",
    "",
    "-rf",
    ".hidden",
    "con\x00dom\n\r\t",
    r"$\write18{id}$",
    r"\input{/etc/passwd}",
    "50% & more_or #less {x} ~^",
    "}\\end{tabular}\n\n\\immediate\\write18{id}",
    "[1cm]",
    "*starred",
    "=cmd|'/C calc'!A0",
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "  =1+1",
    "＝1+1",
    "</script><img src=x onerror=alert(1)>",
    "a | b",
    "![x](http://x)",
    "`id` **b** _i_ ~~s~~ &lt;",
    "_hidden",
    "\x1b]0;title\x07\x1b[31mred",
    "\u202egnp.exe",
    "\ud800",
    "x" * 5000,
    "名前",
]
ORDINARY = ["clicks", "yandex_clax", "MSLR-WEB10K", "baidu-ultr", "v1.2", "DBN_2", "a"]


@settings(deadline=None)
@given(st.one_of(st.sampled_from(HOSTILE), st.text()))
def test_a_slug_is_one_plain_part_of_a_path(name):
    made = slug(name)
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_])?", made) and ".." not in made
    assert len(made) <= 100 and slug(name) == made


@settings(deadline=None)
@given(st.text(), st.text())
@example("a b", slug("a b"))  # a name that looks as another's slug
@example("a/b", "a\\b")
@example("x" * 200, "x" * 201)
@example("é", "e")
def test_names_that_differ_have_slugs_that_differ(one, other):
    assert (slug(one) == slug(other)) == (one == other)


def test_ordinary_names_stay_as_they_are():
    for name in ORDINARY:
        assert (
            name
            == slug(name)
            == markdown(name)
            == csv_cell(name)
            == figure_text(name)
            == printable(name)
        )
        assert latex(name) == name.replace("_", r"\_")


def typeset(source):
    """The text that LaTeX would set: the escapes are undone as its manual defines them; anything else is an error."""
    words = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^"}
    rest, out = source, ""
    while rest:
        if match := re.match(r"\\(text\w+)\{\}", rest):
            out += words[match[1]]
        elif match := re.match(r"\\([&%$#_{}])", rest):
            out += match[1]
        elif match := re.match(r"\$([<>]|\\(?:up|down)arrow|\\pm)\$", rest):
            out += {"\\uparrow": "↑", "\\downarrow": "↓", "\\pm": "±"}.get(match[1], match[1])
        elif match := re.match(r"\{([\[*])\}", rest):
            out += match[1]
        elif match := re.match(r"--", rest):
            out += "–"
        else:
            match = re.match(r"[^\\&%$#_{}~^\n]", rest)
            assert match, f"{rest!r} is not plain text for LaTeX"
            out += match[0]
        rest = rest[match.end() :]
    return out


@settings(deadline=None)
@given(st.one_of(st.sampled_from(HOSTILE), st.text(string.printable + "±–↑é")))
def test_latex_sets_the_text_itself_and_obeys_nothing(text):
    shown = printable(" ".join(text.split()))
    assert typeset(latex(text)).replace("–", "--") == shown.replace("–", "--")
    assert not latex(text).startswith(("[", "*"))


@settings(deadline=None)
@given(st.one_of(st.sampled_from(HOSTILE), st.text(string.printable)))
def test_markdown_has_no_live_sign_left(text):
    made = markdown(text)
    # what CommonMark does with a backslash before punctuation
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", made) == printable(" ".join(text.split()))
    live = re.sub(r"\\[!-/:-@\[-`{-~]", " ", made)
    assert not re.search(r"[\\`*\[\]|~$\n]|<\S|&[#\w]", live)


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(HOSTILE), st.floats(), st.integers()), min_size=1))
@example([-0.5, "-0.5", -3, "-3e-05", "+7", "-inf", "=1", "x\r=1", "x\n=1"])
def test_csv_cells_are_no_formulas_and_numbers_stay_numbers(row):
    header, read = csv.reader(csv_text(map(str, range(len(row))), [row]).splitlines())
    assert header == [str(place) for place in range(len(row))]
    for cell, before in zip(read, row, strict=True):
        if isinstance(before, str) and not re.fullmatch(r"[-+]?(\d+(\.\d+)?(e-?\d+)?|inf)", before):
            assert not cell.lstrip().startswith(tuple("=+-@＝＋－＠\t\r\n"))
            assert cell in (printable(before), f"'{printable(before)}")
        elif isinstance(before, float) and not math.isfinite(before):
            assert cell == ""
        else:
            assert cell == str(before)


def test_a_figure_shows_the_text_itself(monkeypatch):
    """No part of it gets to the parser of mathematics, and the legend has it."""
    monkeypatch.setattr(
        mathtext.MathTextParser, "parse", lambda *_: pytest.fail("parsed as mathematics")
    )
    figure = Figure()
    for text in HOSTILE:
        axes = figure.subplots()
        label = axes.set_ylabel(figure_text(text))
        axes.plot([1], [1], label=figure_text(text or "x"))
        shown, is_math = label._preprocess_math(label.get_text())
        has_letters = fonts._letters().issuperset(map(ord, printable(text)))
        assert not is_math and shown.strip() == (
            printable(text).strip() if has_letters else slug(text)
        )
        assert len(axes.get_legend_handles_labels()[1]) == 1
        if not text.isascii():  # the font does not have other letters
            axes.remove()
    figure.savefig(io.BytesIO(), format="pdf")


def test_terminals_and_utf_8_take_all_that_is_left():
    text = printable("".join(HOSTILE))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", text)
    assert text.encode().decode() == text
    assert cleaned({"a\x1b": ["\n", 1, None, {"b": "\ud800"}]}) == {
        "a�": [" ", 1, None, {"b": "�"}]
    }


def test_errors_of_commands_steer_no_terminal(capsys):
    with pytest.raises(SystemExit), ending("clickexp-export"):
        raise UserError("a\x1b[31m\nb\ud800")
    assert capsys.readouterr().err == "clickexp-export: a�[31m b�\n"


def test_commands_that_mend_an_error_steer_no_terminal(capsys):
    """They name columns of logs, which come from anyone."""
    with pytest.raises(SystemExit), ending("clickexp-data", words=["inspect", "a.csv"]):
        raise DataError("a", options={"columns.clicks": "\x1b[31m"})
    assert capsys.readouterr().err.partition("next: ")[2].endswith("columns.clicks=�[31m'\n")
