"""Commands besides `clickexp` that the documentation names: their parsers take them, and scripts have the options.

tests/test_documented_commands.py composes those of `clickexp`.
"""

import argparse
import ast
import re
import shlex

import pytest
from places import ROOT

from clickexp.cli import compare, data, export, log_commands, update

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "scripts/bench/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
SOURCES = [*PAGES, *sorted((ROOT / "conf").rglob("*.yaml"))]
SETTINGS = r"(?:[A-Z]+=\S+ )*"
WORDS = rf"{SETTINGS}(?:(?:clickexp-\w+|bash)\b.*|python3? \S+\.py\b.*)"
LINE = re.compile(rf"^(?:    |# (?:Then: )?)({WORDS})$", re.MULTILINE)
INSIDE = re.compile(rf"`({WORDS})`".replace(".*", "[^`\n]*"))
"""Code in a sentence or in the cell of a table, which may leave arguments out."""


def found(pattern):
    """Commands by the page that has them, joined over backslashes."""
    for page in SOURCES:
        text = re.sub(r"\\\n[# ]*", " ", page.read_text())
        yield from ((f"{page.relative_to(ROOT)}", command) for command in pattern.findall(text))


def words_of(command):
    """The words of a command without its comment, the settings before it and where its output goes."""
    # a comment of a configuration goes on as a sentence
    text = re.sub(rf"^{SETTINGS}|(?:,|\.) .*$", "", command)
    words = shlex.split(text, comments=True)
    return words[: words.index(">")] if ">" in words else words


class Refused(Exception):
    """What a parser does not take."""


def refuse(parser, message):
    raise Refused(message)


def script_parser(script):
    """A parser with the arguments that a script adds, read without importing it."""
    parser = argparse.ArgumentParser(script.name, add_help=False)
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "add_argument":
            options = {}
            for keyword in node.keywords:
                if keyword.arg in ("action", "nargs", "choices", "required"):
                    try:
                        options[keyword.arg] = ast.literal_eval(keyword.value)
                    except ValueError:
                        assert keyword.arg == "choices"  # names that the script computes
            parser.add_argument(*map(ast.literal_eval, node.args), **options)
    return parser


def parse(words):
    """Gives the words of a command to its parser; raises what the parser would print."""
    name, *rest = words
    if name == "clickexp-compare":
        parser = (
            compare._COMMANDS[rest.pop(0)]()
            if rest and rest[0] in compare._COMMANDS
            else compare._folders()
        )
    elif name.startswith("clickexp-"):
        parser = {"clickexp-data": data, "clickexp-export": export, "clickexp-update": update}[
            name
        ]._parser()
    else:
        script = ROOT / rest.pop(0)
        assert script.is_file(), script
        if script.suffix == ".sh":
            return None
        parser = script_parser(script)
    if name in ("clickexp-export", "clickexp-update"):
        return parser.parse_intermixed_args(rest)
    return parser.parse_args(rest)


@pytest.fixture(autouse=True)
def refusing(monkeypatch):
    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)


LINES, MENTIONS = sorted(set(found(LINE))), sorted(set(found(INSIDE)))


def test_commands_are_found():
    assert len(LINES) >= 50 and len(MENTIONS) >= 10
    for start in ("clickexp-data", "clickexp-compare", "clickexp-export", "bash", "python"):
        assert any(command.startswith(start) for _, command in LINES)


def test_lines_are_taken_by_the_parsers_of_their_commands(monkeypatch):
    monkeypatch.setattr(log_commands, "prepare", lambda *_, **options: refuse(None, "reads"))
    monkeypatch.setattr(log_commands, "names_of_ids", lambda path: None)
    faults = []
    for page, command in LINES:
        for folder in re.findall(r"\bPYTHONPATH=(\S+)", command):
            monkeypatch.syspath_prepend(ROOT / folder)
        try:
            given = parse(words_of(command))
            # the reader's options, up to the reading
            if given and getattr(given, "run", None) == "prepare_log":
                with pytest.raises(Refused, match="reads"):
                    log_commands.prepare_log(
                        given.format, given.source, given.target, given.options
                    )
        except Exception as error:
            faults.append(f"{page}: {command}: {error}")
    assert not faults, "\n".join(faults)


def test_commands_in_sentences_name_what_there_is():
    faults = []
    for page, command in MENTIONS:
        try:
            parse(words_of(command))
        except SystemExit as ended:  # --help
            assert ended.code == 0
        except Refused as refused:
            if not re.match(
                "the following arguments are required|.*expected one argument", str(refused)
            ):
                faults.append(f"{page}: {command}: {refused}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "command, message",
    [
        ("clickexp-export outputs/pbm --tompson 1", "unrecognized arguments"),
        ("clickexp-data check data/clicks", "invalid choice"),
        ("clickexp-compare online outputs/a", "required: RUN_B"),
        ("python scripts/bench/gpu.py --tiny", "unrecognized arguments"),
    ],
)
def test_parsers_refuse_what_they_do_not_have(command, message):
    with pytest.raises(Refused, match=message):
        parse(words_of(command))
