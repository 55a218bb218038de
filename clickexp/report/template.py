"""Pages of HTML from templates, which share a head and how their places are filled."""

import re
from collections.abc import Mapping
from importlib.resources import files

_PLACE = re.compile(r"\{\{ *(\w+) *\}\}")


def filled(room: str, name: str, style: str, parts: Mapping[str, str]) -> str:
    """Returns a page.

    Args:
        room: The package in whose `static` folder the template lies.
        name: File of the template. Its `{{ head }}` is the head of all pages.
        style: File of its style sheet, beside it.
        parts: What goes into the places `{{ name }}` of template and head, as HTML.
    """
    static = files(room) / "static"
    head = (files("clickexp.report") / "static" / "head.html").read_text()
    text = (static / name).read_text().replace("{{ head }}\n", head)
    inserted = {**parts, "css": (static / style).read_text()}
    return _PLACE.sub(lambda place: inserted[place[1]], text)
