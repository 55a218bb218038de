"""Every command in the README, in docs/ and at the head of a configuration file composes."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from clickexp.experiment.overrides import canonical

ROOT = Path(__file__).resolve().parent.parent


def commands(text):
    """The arguments of each line that starts with clickexp, joined over backslashes, without comments."""
    joined = re.sub(r"\\\n[# ]*", " ", text)
    lines = re.findall(r"^(?:#|   )? *(clickexp(?: .*)?)$", joined, re.MULTILINE)
    return [shlex.split(re.sub(r"  +[^ =]+ [^=]*$", "", line), comments=True)[1:] for line in lines]


def documented():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = {str(page.relative_to(ROOT)): commands(page.read_text()) for page in pages}
    for file in sorted((ROOT / "conf").rglob("*.yaml")):
        head = "\n".join(line for line in file.read_text().splitlines() if line.startswith("#"))
        found[str(file.relative_to(ROOT))] = commands(head)
    return [(source, " ".join(arguments)) for source, lists in found.items() for arguments in lists]


def first_of_sweep(override):
    parsed = OverridesParser.create().parse_overrides([override])[0]
    if not parsed.is_sweep_override():
        return override
    discrete = parsed.is_discrete_sweep()
    value = next(parsed.sweep_string_iterator()) if discrete else parsed.value().start
    return f"{parsed.get_key_element()}={value}"


DOCUMENTED = documented()


def test_commands_are_found():
    sources = [source for source, _ in DOCUMENTED]
    assert sources.count("README.md") >= 6 and sum(source.startswith("docs/") for source in sources) >= 60
    assert {f"conf/{group}" for group in ("model", "dataset", "optimizer")} <= {
        s.rsplit("/", 1)[0] for s in sources
    }


@pytest.mark.parametrize("arguments", sorted({arguments for _, arguments in DOCUMENTED}))
def test_a_documented_command_composes(arguments):
    composed(arguments)


def composed(arguments):
    given = [word for word in shlex.split(arguments) if word not in ("-m", "--help", "--cfg", "job")]
    overrides = [first_of_sweep(word) for word in given if "glob(" not in word]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", canonical(overrides))
    assert not OmegaConf.missing_keys(config)
