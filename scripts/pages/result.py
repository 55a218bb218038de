"""The page on result.json: keys, types and meanings, from the class that writes and reads it."""

import inspect
import re
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Any

import griffe
from pydantic import BaseModel

from clickexp.runs.run import Run

PATH = "reference/result.md"
_HEAD = """# result.json

What a run reports, as JSON. [`clickexp.Run`](results.md#clickexp.runs.run.Run) writes and reads it: `Run.read(folder)`
in Python, and `clickexp.run(...).result`. Keys without a value, such as references of a model that has none, are left
out; NaN is null. A file with other keys, or values of other types, is refused with the name of the key.

NAME stands for any name, such as that of a metric, and [] for the elements of a list.
"""
_TYPES = {
    "int": "integer",
    "float": "number",
    "str": "text",
    "bool": "true or false",
    "NoneType": "null",
}


def pages() -> Iterator[tuple[str, str]]:
    """The path in docs/ and the page."""
    rows = [f"| `{key}` | {kind} | {meaning} |" for key, kind, meaning in keys(Run)]
    table = ["| key | type | meaning |", "|---|---|---|", *rows]
    yield PATH, "\n".join([_HEAD, *table, ""])


def keys(document: type[BaseModel], above: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields the path, type and meaning of each key of a document, those of the documents in it after its own."""
    meanings = attributes(document)
    for name, field in document.model_fields.items():
        if field.exclude:
            continue
        path, inner = above + name, _document_in(field.annotation)
        kind = _kind(field.annotation)
        yield path, kind, meanings[name]
        if inner:
            mark = "/NAME" if kind.endswith("by name") else "[]" if kind.startswith("list") else ""
            yield from keys(inner, f"{path}{mark}/")


def attributes(document: type[BaseModel]) -> dict[str, str]:
    """The meaning of each attribute, as the docstring of the class states it."""
    sections = griffe.Docstring(inspect.getdoc(document) or "").parse("google")
    found = [section for section in sections if section.kind.value == "attributes"]
    return {
        each.name: re.sub(r"\s+", " ", each.description).replace("|", "\\|")
        for section in found
        for each in section.value
    }


def _document_in(annotation: Any) -> type[BaseModel] | None:
    """The document that a type is of, or holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_document_in(each) for each in typing.get_args(annotation))
    return next((each for each in inner if each), None)


def _kind(annotation: Any) -> str:
    """A type in words, null left out where there is another."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(inside[0])
    if origin in (typing.Union, UnionType):
        kinds = dict.fromkeys(_kind(each) for each in inside if each is not type(None))
        return "number" if "number" in kinds else " or ".join(kinds)
    if origin is typing.Literal:
        return ", ".join(map(str, inside))
    if origin is list:
        return f"list of {_plural(_kind(inside[0]))}"
    if origin is dict:
        return f"{_plural(_kind(inside[1]))} by name"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "object"
    return _TYPES.get(getattr(annotation, "__name__", ""), "any")


def _plural(kind: str) -> str:
    if kind in ("text", "any", "true or false"):
        return kind
    first, _, rest = kind.partition(" ")
    return f"{first}s {rest}".strip()
