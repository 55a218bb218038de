"""The words of a command line: options, and overrides in the form that Hydra takes."""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, OverrideType, QuotedString
from hydra.errors import OverrideParseException

from clickexp.errors import ConfigError

ROLES = (
    "attraction",
    "satisfaction",
    "examination",
    "continuation",
    "true_positive",
    "false_positive",
)
TOWERS = "parameter"
"""The group of towers, of which each role has its own choice: parameter@attraction."""
SEVERAL = ("metric", "logger")
"""Groups that take a list of options."""
SINGLE = ("dataset", "model", TOWERS, "optimizer", "trainer", "launcher", "search", "debug")
NEEDED = ("dataset", "model", "metric", "optimizer", "trainer")
LAUNCHERS = ("launcher", "hydra/launcher")
HERE = ("basic", "clickexp_basic")
"""Launchers that run jobs one after the other in this process."""


NO_OPTION = "Config group override must be a string or a list"
"""How the ValueError begins that Hydra raises for debug=null or model=5."""


class CommandLine:
    """What was typed: `options` as Hydra's parser reads them, `overrides` with roles as groups, `arguments` in order.

    ConfigError for what is neither.
    """

    def __init__(self, words: Sequence[str]):
        parser = get_args_parser()
        parser.error = _refuse
        self.version = "--version" in words
        known, unknown = parser.parse_known_intermixed_args([word for word in words if word != "--version"])
        self.options: argparse.Namespace = known
        if unknown:
            raise ConfigError(_advice(unknown[0], words[: words.index(unknown[0])], _after(words, unknown[0])))
        given = Counter(known.overrides)
        flags = []
        for word in reversed(words):  # the value of an option comes before the overrides that look like it
            if given[word]:
                given[word] -= 1
            else:
                flags.insert(0, word)
        self.overrides = list(known.overrides) if known.shell_completion else canonical(known.overrides)
        # Hydra would take no override behind an option that stands between two
        self.arguments = [*flags, *self.overrides]

    @property
    def only_prints(self) -> bool:
        """Whether the command ends after printing, without a run."""
        options = self.options
        asked = (self.version, options.help, options.hydra_help, options.cfg, options.info)
        return any(asked)


def parsed(overrides: Sequence[str]) -> list[Override]:
    """ConfigError for the first that is not key=value."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        if "=" in error.override or error.override.startswith("~"):
            raise
        before = overrides[: list(overrides).index(error.override)]
        raise ConfigError(_advice(error.override, before)) from error


def canonical(overrides: Sequence[str]) -> list[str]:
    """The overrides with the choice of a role's tower, attraction=deep, as Hydra knows it, parameter@attraction=deep.

    What is set of a group that a sweep varies becomes part of the sweep, so that it may be a key of these options only.

    ConfigError for what no run can be made of: ~model, model=[pbm,ubm].
    """
    given = parsed(overrides)
    for override in given:
        _check(override)
    swept = {o.package or o.key_or_group for o in given if o.is_sweep_override()}
    return [_canonical(override, swept) for override in given]


def option_names(override: Override) -> list[str] | None:
    """The options of a group that an override names; None where it has something else for one."""
    names = [name for value in _values(override) for name in (value if isinstance(value, list) else [value])]
    if any(isinstance(name, Glob) for name in names):
        return []
    return names if all(isinstance(name, str) for name in names) else None


def check_launcher(overrides: Sequence[str]) -> None:
    """ConfigError for overrides of a single run that choose how the jobs of a sweep are launched."""
    for override in parsed(overrides):
        if override.key_or_group in LAUNCHERS and override.value() not in HERE:
            raise ConfigError(
                f"{override.input_line}: launchers start the jobs of a sweep, and this is a single run; add -m, "
                "or leave it out"
            )


def _check(override: Override) -> None:
    group = override.key_or_group
    if override.is_delete() and group in NEEDED and override.package is None:
        raise ConfigError(
            f"{override.input_line}: {group} cannot be left out; choose one by {group}=..., see clickexp --help"
        )
    lists = [value for value in _values(override) if isinstance(value, list)]
    if lists and group in SINGLE:
        each = ",".join(map(str, lists[0]))
        key = override.get_key_element()
        mixed = f"; mix them with model=mixture 'model.components=[{each}]'" if group == "model" else ""
        raise ConfigError(
            f"{override.input_line}: a run has one {group}; sweep over several with -m {key}={each}{mixed}"
        )
    if group in SEVERAL and override.package is None and [] in lists and group in NEEDED:
        raise ConfigError(f"{override.input_line}: give at least one, such as {group}=click, or leave it out")


def _canonical(override: Override, swept: Set[str]) -> str:
    line, key = override.input_line, override.key_or_group
    if _chooses_tower(override):
        return f"{TOWERS}@{line}"
    if override.type is OverrideType.CHANGE and "." in key and key.split(".")[0] in swept:
        # else Hydra would look for the key in the default option, before it takes up those of the sweep
        return line if override.is_sweep_override() else f"{key}=choice({line.partition('=')[2]})"
    return line


def _chooses_tower(override: Override) -> bool:
    """Whether it names options of a role; a value, such as null or an interpolation, is none."""
    if override.type is not OverrideType.CHANGE or override.key_or_group not in ROLES:
        return False
    values = list(_values(override))
    names = [value for value in values if isinstance(value, str | Glob) and not str(value).startswith("${")]
    return override.package is None and bool(values) and len(names) == len(values)


def _values(override: Override) -> Iterator[Any]:
    value = override.value()
    for each in value.list if isinstance(value, ChoiceSweep) else [value]:
        yield each.text if isinstance(each, QuotedString) else each


def _after(words: Sequence[str], word: str) -> str:
    """The word that follows, if it may be a value."""
    following = words[words.index(word) + 1 :][:1]
    return "".join(each for each in following if "=" not in each and not each.startswith("-")) or "..."


def _advice(word: str, before: Sequence[str], after: str = "...") -> str:
    """Of a word that is no override, such as ubm, or --model in `--model pbm`."""
    name, equals, value = word.lstrip("-").partition("=")
    if word.startswith("--"):
        example = f"{name}={value if equals else after}"
        return f"{word}: settings are written as key=value, without dashes: {example}. See clickexp --help"
    if word.startswith("-"):
        return f"{word}: there is no such option; see clickexp --help"
    if before and "=" in before[-1]:
        return f"{word}: settings are written as key=value, values of a sweep with commas: -m {before[-1]},{word}"
    return f"{word}: settings are written as key=value, without blanks, such as model=pbm. See clickexp --help"


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; see clickexp --help")
