"""Documents that would never end are refused before they are built; all others are what the standard parsers make."""

import json
import math
import os
import tracemalloc

import pytest
import yaml
from refusals import refuses

from clickexp.utils.documents import EndlessError, parse_json, parse_yaml, read_file


@pytest.mark.parametrize(
    "text, part",
    [
        pytest.param(b"a: &a [x]\nb: [*a, *a]", "aliases", id="aliases"),
        pytest.param(b"a: &a {x: 1}\nb: {<<: *a}", "aliases", id="merges"),
        pytest.param(b"model: &m {of: *m}", "aliases", id="a mapping in itself"),
        pytest.param(
            b"[" * 200_000, "nested more than 100 levels", id="levels that end the C loader"
        ),
        pytest.param(b"x: 1" + b":1" * 100_000, "more than 100 digits", id="a number in base 60"),
    ],
)
def test_yaml_without_end_is_refused_before_it_is_built(text, part):
    tracemalloc.start()
    with refuses(EndlessError, part):
        parse_yaml(text)
    assert tracemalloc.get_traced_memory()[1] < 20e6 + 10 * len(text)
    tracemalloc.stop()


def test_yaml_is_what_the_safe_loader_makes():
    usual = b"a: &a {x: [1, 2.5, null, true], y: text}\nc: {z: 2001-01-02}\n"
    deep = b"[" * 100 + b"]" * 100
    wide = b"[" + b"1," * 20_000 + b"]"
    for text in (usual, deep, wide, b"", b"3", b"!!set {x, y}"):
        assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    "text",
    [
        b"a: [",
        b"!!int ''",
        b"!!bool x",
        b"!!timestamp x",
        b"!!python/name:os.system",
    ],
)
def test_what_is_no_yaml_is_a_value_error(text):
    with refuses(ValueError, "no YAML"):
        parse_yaml(text)


def test_json_is_what_the_standard_parser_makes_up_to_100_levels():
    for text in ("[" * 100 + "]" * 100, '{"a": [1, -2, 1e3, null, NaN, {"b": "c"}]}', "3"):
        assert repr(parse_json(text)) == repr(json.loads(text))
    for levels in (101, 200_000):
        with refuses(EndlessError, "nested more than 100 levels"):
            parse_json("[" * levels + "]" * levels)
    assert parse_json("1" * 100) == int("1" * 100)
    assert math.isinf(parse_json("1" * 5_000))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    with refuses(FileNotFoundError, "config.yaml"):
        read_file(tmp_path / "config.yaml")
