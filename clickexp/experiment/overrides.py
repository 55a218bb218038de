"""The words of a command line: options, and overrides in the form that Hydra takes."""

import argparse
import contextlib
import importlib.util
import re
import shlex
from collections import Counter
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, NoReturn, cast

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    Override,
    OverrideType,
    Quote,
    QuotedString,
)
from hydra.errors import HydraException, OverrideParseException

from clickexp.errors import ConfigError
from clickexp.experiment.conf import CONF, default_groups, roles
from clickexp.runs.settings import GROUPS, TOWERS, Group
from clickexp.utils.suggest import did_you_mean

_SEARCHPATH = "hydra.searchpath"
_COMPLETION = re.compile("(install|uninstall|query)=(bash|zsh|fish)")
_SEVERAL = re.compile(r",([A-Za-z_][\w.@/]*=)")
"""Where another setting begins that a comma ties to the one before."""
_ALONE = ("multirun", "run", "cfg", "info", "shell_completion")
"""Options of Hydra of which a command has one at most."""
_OPTIONS = ("--version", "--help", "--multirun", "--config-dir", "--cfg", "--info")
"""Those that are looked for most."""
_PLAIN = re.compile(r"[\w./+@-]+")
"""Text that Hydra takes as it is."""
_PRIOR = "prior"
"""The node of which `prior=FOLDER` sets the folder."""
_IN_PROCESS = "basic"
"""The launcher that runs jobs one after the other in this process."""


class CommandLine:
    """The words of a command, parsed.

    Attributes:
        options: As Hydra's parser reads them.
        overrides: With roles as groups.
        arguments: All words in the order that Hydra takes.
        version: Whether the version was asked for.

    Raises:
        ConfigError: A word is neither an option nor an override.
    """

    def __init__(self, words: Sequence[str]) -> None:
        parser = get_args_parser()
        parser.error = _refuse
        self.version = "--version" in words
        options, unknown = parser.parse_known_intermixed_args(
            [word for word in words if word != "--version"]
        )
        self.options: argparse.Namespace = options
        if unknown:
            raise ConfigError(_advice(unknown[0]))
        _check_alone(options)
        _check_swept_once(options.overrides)
        counts = Counter(options.overrides)
        flags = []
        # the value of an option comes before the overrides that look like it
        for word in reversed(words):
            if counts[word]:
                counts[word] -= 1
            else:
                flags.insert(0, word)
        self.overrides: list[str] = list(options.overrides)
        if options.shell_completion:
            _check_completion(self.overrides)
        else:
            self.overrides = canonical(options.overrides, *self.folders)
        # Hydra would take no override behind an option that is between two
        self.arguments = [*flags, *self.overrides]

    @property
    def folders(self) -> list[Path]:
        """The user's own configurations."""
        paths: list[str] = []
        for override in parsed(self.options.overrides):
            value = override.value()
            if override.key_or_group == _SEARCHPATH and isinstance(value, list):
                paths += map(str, value)
        paths += [self.options.config_dir] if self.options.config_dir else []
        return [*map(folder_of, paths)]

    @property
    def searchpath(self) -> list[str]:
        """The override that lets Hydra find them; none if there are none."""
        paths = ",".join(f"'file://{folder}'" for folder in self.folders)
        return [f"{_SEARCHPATH}=[{paths}]"] if paths else []


def _check_alone(options: argparse.Namespace) -> None:
    flags = [f"--{name.replace('_', '-')}" for name in _ALONE if getattr(options, name)]
    if len(flags) > 1:
        raise ConfigError(f"{' and '.join(flags)} exclude each other. Leave {flags[0]} out.")


def _check_swept_once(overrides: Sequence[str]) -> None:
    """ConfigError for a key that is given twice, once as a sweep: of two values the last counts, here of all jobs."""
    by_key: dict[str, list[Override]] = {}
    for override in parsed(overrides) if len(overrides) > 1 else ():
        if not override.is_delete():
            by_key.setdefault(override.get_key_element().lstrip("+"), []).append(override)
    for key, several in by_key.items():
        if len(several) > 1 and any(override.is_sweep_override() for override in several):
            lines = " and ".join(map(line_of, several))
            raise ConfigError(f"{lines}: give {key} once, with all its values")


def _check_completion(overrides: Sequence[str]) -> None:
    if len(overrides) != 1 or not _COMPLETION.fullmatch(overrides[0]):
        raise ConfigError(
            "--shell-completion: one of install=SHELL, uninstall=SHELL and query=SHELL, for bash, zsh or fish: "
            'eval "$(clickexp -sc install=bash)"'
        )


def folder_of(path: str) -> Path:
    """Returns the folder that an entry of Hydra's search path names: itself, file://FOLDER or pkg://MODULE."""
    scheme, _, place = path.rpartition("://")
    spec = None
    if scheme == "pkg":
        with contextlib.suppress(ImportError, ValueError):  # Hydra warns of it
            spec = importlib.util.find_spec(place)
    return Path(
        spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else place
    ).absolute()


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Parses overrides.

    Raises:
        ConfigError: One is not key=value, or has a value that needs quotes.
    """
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        key, equals, value = error.override.partition("=")
        if _SEVERAL.search(value):
            apart = _SEVERAL.sub(r" \1", error.override)
            raise ConfigError(
                f"{error.override}: settings have blanks between them, {apart}"
            ) from error
        if not equals and not key.startswith("~"):
            raise ConfigError(_advice(error.override)) from error
        quoted = f'{key}="{value}"'
        is_list = value[:1] in "[{(" or value.endswith(",")
        if is_list or set(value) & set("'\"") or not _parses(quoted):
            reason = " ".join(error.message.partition("\nSee ")[0].split())  # without Hydra's link
            raise ConfigError(f"{error.override}: {reason}") from error
        hint = f"Hydra reads this value in quotes only: {shlex.quote(quoted)}"
        raise ConfigError(f"{error.override}: {hint}") from error


def _parses(override: str) -> bool:
    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return True


def line_of(override: Override) -> str:
    """An override as it was typed."""
    return cast(str, override.input_line)  # only what was made by hand has none


def canonical(overrides: Sequence[str], *folders: Path) -> list[str]:
    """Overrides with the choice of a role's tower as Hydra knows it: attraction=deep as parameter@attraction=deep.

    A key inside a group that a sweep varies becomes part of the sweep, so that only some of the options need have it.

    Args:
        overrides: As they were typed.
        folders: The user's own configurations, which may have more roles.

    Raises:
        ConfigError: No run can be made of one, such as ~model or model=[pbm,ubm].
    """
    typed = parsed(overrides)
    swept = {o.package or o.key_or_group for o in typed if o.is_sweep_override()}
    lines = [_canonical(override, swept, roles(*folders)) for override in typed]
    for override in parsed(lines):
        _check(override)
    return lines


def check_launcher(overrides: Sequence[str]) -> None:
    """Checks the overrides of a single run.

    Raises:
        ConfigError: One chooses how the jobs of a sweep are launched.
    """
    for override in parsed(overrides):
        if (
            override.key_or_group in ("launcher", "hydra/launcher")
            and override.value() != _IN_PROCESS
        ):
            raise ConfigError(
                f"{override.input_line}: launchers start the jobs of a sweep, and this is a single run; add -m, "
                "or leave it out"
            )


def _check(override: Override) -> None:
    """ConfigError for a choice that no run can be made of. Whether there is such an option Hydra finds out."""
    group, line = override.key_or_group, line_of(override)
    kind = GROUPS.get(group, Group())
    required = kind.required and override.package is None
    if override.is_delete():
        if required:
            raise ConfigError(
                f"{line}: {group} cannot be left out; choose one by {group}=..., see clickexp --help"
            )
    elif group in default_groups() and override.is_add():
        raise ConfigError(
            f"{line}: the configuration has a {group}, write it without the plus: {line[1:]}"
        )
    elif group in (TOWERS, *default_groups()):
        for value in values_of(override):
            _check_choice(value, override, kind.several, required)


def _check_choice(value: Any, override: Override, several: bool, required: bool) -> None:
    """ConfigError for a value that is no option, and for a list that a group does not take."""
    group, line = override.key_or_group, line_of(override)
    if isinstance(value, list):
        _check_list(value, override, several)
    if value == [] and required:
        raise ConfigError(f"{line}: give at least one, such as {group}=click, or leave it out")
    if not isinstance(value, str | list | Glob):
        raise ConfigError(
            f"{line}: choose an option of {group}, see clickexp --help, or leave it out"
        )


def _check_list(options: Sequence[Any], override: Override, several: bool) -> None:
    """ConfigError for a list of options of a group of which a run has one."""
    if several:
        return
    group, names = override.key_or_group, ",".join(map(str, options))
    mixed = (
        f"; mix them with model=mixture 'model.components=[{names}]'" if group == "model" else ""
    )
    raise ConfigError(
        f"{line_of(override)}: a run has one {group}; sweep over several with "
        f"-m {override.get_key_element()}={names}{mixed}"
    )


def _canonical(override: Override, swept: Set[str], known_roles: Sequence[str]) -> str:
    line, key = line_of(override), override.key_or_group
    if key == _PRIOR and override.type is OverrideType.CHANGE and not override.package:
        return line.replace(_PRIOR, f"{_PRIOR}.run", 1)
    if key in known_roles and _names_towers(override):
        return f"{TOWERS}@{line}"
    of_swept = (
        override.type is OverrideType.CHANGE and "." in key and key.partition(".")[0] in swept
    )
    if of_swept and not override.is_sweep_override():
        # else Hydra would look for the key in the default option, before it takes up those of the sweep
        return f"{key}=choice({override.get_value_element_as_str()})"
    return line


def _names_towers(override: Override) -> bool:
    """Whether it names options; a value, such as null or an interpolation, is none."""
    values = values_of(override)
    names = [
        value
        for value in values
        if isinstance(value, str | Glob) and not str(value).startswith("${")
    ]
    return (
        override.type is OverrideType.CHANGE
        and override.package is None
        and 0 < len(values) == len(names)
    )


def quoted(text: str) -> str:
    """Returns a text as Hydra reads it, whatever signs it has."""
    is_plain = _PLAIN.fullmatch(text) and not text.isdecimal()
    return text if is_plain else QuotedString(text, Quote.single).with_quotes()


def values_of(override: Override) -> list[Any]:
    """The values of an override, one or those of a sweep over choices."""
    value = override.value()
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    return [one.text if isinstance(one, QuotedString) else one for one in values]


def _advice(word: str) -> str:
    """Of a word that is no override, such as ubm, or --model in `--model pbm`."""
    if word.startswith(("--resume", "--continue")):
        return f"{word}: hydra.run.dir=FOLDER continues the run that began in FOLDER, with the words that it had"
    if word.startswith("--") and (option := did_you_mean(word, _OPTIONS)):
        return f"{word}: there is no such option.{option} See clickexp --help"
    groups = [group for group in GROUPS if (CONF / group / f"{word}.yaml").is_file()]
    example = f"{groups[0]}={word}" if groups else "model=pbm"
    return (
        f"{word}: settings are written as key=value, without dashes and blanks, such as {example}; values of a sweep "
        "with commas, as in -m model=pbm,ubm. See clickexp --help"
    )


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; see clickexp --help")
