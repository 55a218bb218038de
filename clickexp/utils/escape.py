"""Text of others, such as names of datasets and models, for each place that it is written to.

Results may come from anyone, and so may the names in them. Each function makes any text harmless for one kind of
place, and leaves ordinary names as they are.
"""

import csv
import hashlib
import html
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

_LONGEST = 80
"""Characters of a slug, before its hash."""
_FORMULAS = tuple("=+-@＝＋－＠")
"""Starts of a formula in a spreadsheet, in either width."""
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, which steer terminals, those that reverse the order of text, and halves of characters."""
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "±": r"$\pm$",
    "<": "$<$",
    ">": "$>$",
    "–": "--",
    "[": "{[}",  # after the end of a row it would open an option
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|<(?=\S)|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])")
"""Signs that GitHub-flavoured Markdown interprets; an underscore inside a word is only text."""


def printable(text: str) -> str:
    """Returns text in one line, without characters that steer a terminal or that UTF-8 does not have."""
    return _UNPRINTABLE.sub(lambda sign: " " if sign[0].isspace() else _REPLACED, text)


def printable_lines(text: str) -> str:
    """Returns text in the lines that it has, each printable."""
    return "\n".join(map(printable, text.split("\n")))


def cleaned(node: Any) -> Any:
    """Returns what JSON or YAML holds, all of its text printable, keys included."""
    if isinstance(node, str):
        return printable(node)
    if isinstance(node, Mapping):
        return {cleaned(key): cleaned(value) for key, value in node.items()}
    return [cleaned(item) for item in node] if isinstance(node, list | tuple | set) else node


def slug(name: str) -> str:
    """Returns a name as a part of a file name or a LaTeX label: ASCII letters, digits and inner "-", "_", ".".

    A name of nothing else, up to 80 characters, stays as it is. Any other is cut to that and ends in a hash of the
    name, so that two names never share a slug; so does a name that itself ends as if in a hash.
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9_.-]+|\.{2,}", "-", plain)[:_LONGEST].strip("-_.")
    if plain == name and name and not re.search(r"-[0-9a-f]{8}$", name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain}-{digest}".lstrip("-")


def html_text(text: str) -> str:
    """Returns text for HTML, also inside a quoted attribute: no mark-up, no entity, no control character."""
    return html.escape(printable(text))


def latex(text: str) -> str:
    """Returns text for LaTeX: no command, no mathematics, no end of a paragraph, and no start of an option or star."""
    text = printable(" ".join(text.split()))
    escaped = "".join(_LATEX.get(sign, sign) for sign in text)
    return "{*}" + escaped[1:] if escaped.startswith("*") else escaped


def markdown(text: str) -> str:
    """Returns text for a cell or paragraph of GitHub-flavoured Markdown: no mark-up, HTML, entity or formula."""
    return _MARKDOWN.sub(lambda sign: f"\\{sign[0]}", printable(" ".join(text.split())))


def csv_cell(value: Any) -> Any:
    """Returns a cell that no spreadsheet takes for a formula: an apostrophe goes before text that starts as one does.

    Numbers stay as they are, also negative ones, and also as text. Other text is in one line, since readers differ in
    what ends a row.
    """
    if not isinstance(value, str) or _reads_as_number(value):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULAS) else text


def csv_text(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns rows as comma-separated values below a header; cells without a number are empty."""
    text = io.StringIO()
    for line in (header, *rows):
        cells = (
            "" if isinstance(cell, float) and not math.isfinite(cell) else csv_cell(cell)
            for cell in line
        )
        csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()
