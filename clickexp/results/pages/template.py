"""Pages of HTML from templates, which share a head and how their places are filled."""

import re
from collections.abc import Mapping
from importlib.resources import files

_PLACE = re.compile(r"\{\{ *(\w+) *\}\}")


def filled(name: str, parts: Mapping[str, str]) -> str:
    """Returns a page.

    Args:
        name: Of the template and of its style sheet. `{{ head }}` in the template is the head of all pages.
        parts: What goes into the places `{{ name }}` of template and head, as HTML.
    """
    text = static(f"{name}.html").replace("{{ head }}\n", static("head.html"))
    inserted = {**parts, "css": static(f"{name}.css")}
    return _PLACE.sub(lambda place: inserted[place[1]], text)


def static(name: str) -> str:
    """Returns the text of a file that pages are made from."""
    return (files("clickexp.results.pages") / "static" / name).read_text()
