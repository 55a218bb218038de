"""Which arguments constructors take, and which plain values fit their annotations."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, Optional

import numpy as np
import pytest
import yaml
from flax import nnx
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from refusals import refuses

from clickexp.errors import ConfigError
from clickexp.models import (
    DocumentCTRModel,
    DynamicBayesianNetwork,
    GlobalCTRModel,
    PositionBasedModel,
    RankCTRModel,
)
from clickexp.utils.signatures import (
    accepted,
    check_arguments,
    flat_options,
    for_hydra,
    located,
    parsed_options,
    with_flat_options,
)


def function(a, b: int = 1, *, c: str | None = None):
    """Takes a, b and c."""


class Form(NamedTuple):
    separator: str = ","
    header: bool = True


def of_form(path: str, *, form: Form, least: int = 1):
    return path, form, least


def of_form_in_text(path: "str", *, form: "Form", least: "int" = 1):
    """As of a module with `from __future__ import annotations`."""
    return path, form, least


class Plain:
    def __init__(self, a: int, b: float = 1.0):
        pass


class Module(nnx.Module):
    def __init__(self, units: int, *, rngs: nnx.Rngs):
        pass


@dataclasses.dataclass(frozen=True)
class Data:
    size: int
    rate: float = 0.5
    mode: Literal["min", "max"] | None = None
    names: list[str] = ()
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    any: Any = None
    flag: bool = False
    old: Optional[str] = None  # noqa: UP045
    tower: Plain | int | None = None
    choice: Literal[1, 2, "auto"] = 1
    path: str | Path = "x"
    own: GlobalCTRModel | None = None
    call: Callable[..., int] = len


KNOWN = dict(a=1, b=2, c=3, size=4, units=5, d=6)


@pytest.mark.parametrize(
    "constructor, names",
    [
        (function, "abc"),
        (functools.partial(function, b=1), "ac"),
        (Plain, "ab"),
        (functools.partial(functools.partial(Plain, a=1), b=2), ""),
        (Module, ["units"]),
        (functools.partial(Module, units=1), []),
        (Data, ["size"]),
        (lambda d: d, "d"),
    ],
)
def test_accepted_keeps_the_names_that_a_constructor_still_takes(constructor, names):
    assert accepted(constructor, KNOWN) == {name: KNOWN[name] for name in KNOWN if name in names}


@pytest.mark.parametrize(
    "model",
    [
        GlobalCTRModel,
        RankCTRModel,
        DocumentCTRModel,
        PositionBasedModel,
        functools.partial(DynamicBayesianNetwork, fix_continuation=True),
    ],
)
def test_models_take_all_sizes(model):
    """So that any tower can be built in any role."""
    sizes = dict(positions=4, query_doc_pairs=10, click_rate=0.2)
    assert accepted(model, sizes) == sizes
    built = model(**sizes, rngs=nnx.Rngs(0))
    assert built.name_with(**getattr(model, "keywords", {})) == built.name


FITS = [
    ("size", 3),
    ("size", -1),
    ("rate", 0.1),
    ("rate", 3),
    ("mode", "min"),
    ("mode", None),
    ("names", ["a"]),
    ("names", []),
    ("sizes", {"a": 1}),
    ("any", "x"),
    ("any", None),
    ("any", 2.5),
    ("flag", True),
    ("old", None),
    ("old", "x"),
    ("tower", Plain(1)),
    ("tower", 3),
    ("choice", 2),
    ("choice", "auto"),
    ("sizes", {}),
    ("path", "x"),
    ("own", None),
]

DIFFERS = [
    ("size", 3.0, "an integer"),
    ("size", "3", "an integer"),
    ("size", True, "an integer"),
    ("size", None, "an integer"),
    ("size", [3], "an integer"),
    ("size", {"a": 3}, "an integer"),
    ("rate", "0.1", "a number"),
    ("rate", True, "a number"),
    ("rate", None, "a number"),
    ("rate", [0.1], "a number"),
    ("mode", "mean", "'min' or 'max', or null"),
    ("mode", 1, "'min' or 'max', or null"),
    ("names", "a", "a list"),
    ("names", None, "a list"),
    ("flag", 1, "true or false"),
    ("flag", "true", "true or false"),
    ("old", 1, "text, or null"),
    ("choice", 3, "1, 2 or 'auto'"),
    ("choice", None, "1, 2 or 'auto'"),
    ("sizes", 5, "a group of keys"),
    ("sizes", "x", "a group of keys"),
    ("path", 5, "text or Path"),
    ("own", 5, "GlobalCTRModel, or null"),
    ("own", "gctr", "GlobalCTRModel, or null"),
    ("call", 5, "a group of keys with _target_"),
    ("call", "len", "a group of keys with _target_"),
]


def test_values_that_fit_pass():
    for name, value in FITS:
        check_arguments(Data, {name: value}, "data")
        check_arguments(functools.partial(Data, size=1), {name: value}, "data")


@pytest.mark.parametrize("name, value, wanted", DIFFERS)
def test_values_of_another_type_are_errors_that_name_key_value_and_type(name, value, wanted):
    with refuses(ConfigError, f"data.{name}={value!r}", wanted):
        check_arguments(Data, {"size": 1, name: value}, "data")


@pytest.mark.parametrize(
    "constructor", [Data, Plain, Module, function, functools.partial(Plain, a=1)]
)
def test_unknown_keys_are_errors_that_list_the_known_ones(constructor):
    with refuses(ConfigError, "model.sise", *accepted(constructor, KNOWN)) as error:
        check_arguments(constructor, {"sise": 1}, "model")
    message = str(error.value)
    assert not {"self", "rngs"} & set(message.replace(".", "").replace(",", "").split())
    assert ("Did you mean model.size?" in message) == (constructor is Data)


def test_a_root_key_has_no_dot_before_it():
    with refuses(ConfigError, "size='x'", "an integer") as error:
        check_arguments(Data, {"size": "x"}, "")
    assert str(error.value).startswith("size=")


def test_a_function_that_takes_everything_is_not_judged():
    check_arguments(lambda **anything: None, {"a": object(), "b": None}, "part")


class WithoutArguments:
    """As a logger of one's own may be."""


@pytest.mark.parametrize(
    "constructor", [WithoutArguments, np.sqrt, functools.partial(WithoutArguments)]
)
def test_constructors_without_annotations_take_no_arguments(constructor):
    check_arguments(constructor, {}, "part")


def test_annotations_that_cannot_be_resolved_are_not_judged():
    def constructor(a: "OnlyForTypeCheckers", b=1):  # noqa: F821
        pass

    check_arguments(constructor, {"a": 1}, "part")
    with refuses(ConfigError, "part.c"):
        check_arguments(constructor, {"c": 1}, "part")


def test_objects_in_place_of_plain_values_are_errors():
    with refuses(ConfigError, "data.size"):
        check_arguments(Data, {"size": Plain(1)}, "data")


@pytest.mark.parametrize(
    "path, part",
    [
        ("needing.Tower", "'absent'"),
        *((f"{module}Tower", "") for module in ("needing.sub.", "nowhere.", ".", "")),
    ],
)
def test_what_a_module_lacks_is_named(path, part, tmp_path, monkeypatch):
    (tmp_path / "needing.py").write_text("import absent")
    monkeypatch.syspath_prepend(tmp_path)
    with refuses(ConfigError, path, part):
        located(path)


VALUES = [
    "a b",
    "my logs, (new)",
    "Gr\xf6\xdfe",
    "%m/%d/%Y %I:%M:%S %p",
    "1",
    "null",
    "s'x",
    'a"b',
    "x.y/z-1",
]
VALUES += ["", "a: b"]
NESTED = [
    [None, "2025-04-05"],
    ["Gr\xf6\xdfe", "a, b"],
    {"bad": 0, "very good": 1.5},
    {"name": "\xe9"},
]


@pytest.mark.parametrize("value", [*VALUES, 7, None, True, *NESTED])
def test_options_become_overrides_of_the_same_value(value):
    """As Hydra's parser reads them."""
    key, (_, text) = "columns.rank", next(flat_options({"grades": value}))
    override = OverridesParser.create().parse_override(f"dataset.{key}={for_hydra(text)}")
    found = override.value()
    assert value == (found.text if isinstance(found, QuotedString) else found)


def test_mappings_with_other_keys_are_text_in_yaml():
    """Hydra's grammar has keys of ASCII letters, without quotes."""
    grades = {"gr\xf6\xdfer": 1, 'so "la la"': 0}
    _, text = next(flat_options({"grades": grades}))
    found = OverridesParser.create().parse_override(f"dataset.grades={for_hydra(text)}").value()
    assert yaml.safe_load(found) == grades


@pytest.mark.parametrize("text", ["#", "~", " ", "^", ";", "'#'", "null", "", "3"])
def test_marks_that_yaml_takes_for_comments_or_nothing_are_text(text):
    """As separators that the shell has unquoted."""
    expected = {"'#'": "#", "null": None, "": None, "3": 3}.get(text, text)
    assert parsed_options([f"separator={text}"]) == {"separator": expected}


def test_grades_stay_whole():
    options = {"grades": {"bad": 0, "good": 1.5}, "columns": {"rank": "slot", "label": None}}
    assert dict(flat_options(options)) == {
        "grades": "{bad: 0, good: 1.5}",
        "columns.rank": "slot",
        "columns.label": "null",
    }


@pytest.mark.parametrize("function", [of_form, of_form_in_text])
def test_fields_of_a_named_tuple_are_options(function):
    flat = with_flat_options(function)
    assert [*inspect.signature(flat).parameters] == ["path", "separator", "header", "least"]
    assert flat("a", header=False, least=2) == ("a", Form(header=False), 2)
    assert flat("a") == ("a", Form(), 1)
