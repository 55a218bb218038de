"""What Hydra composes of the configurations in conf/, each choice of options once in a process; not to be changed."""

import copy
import functools
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, open_dict
from places import ROOT

from clickexp.experiment.resolve import Config, resolve
from clickexp.experiment.run import run_experiment
from clickexp.experiment.values import compose_values
from clickexp.runs.run import Run

CONF = ROOT / "conf"


def options(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


@functools.cache
def parsed(override: str) -> Override:
    return OverridesParser.create().parse_overrides([override])[0]


def chooses(override: str) -> bool:
    """Whether it chooses an option, which decides what is composed; others set values of what was composed."""
    key = parsed(override).key_or_group
    return parsed(override).package is not None or (CONF / key).is_dir() or key.startswith("hydra/")


class Repository(CachingConfigRepository):
    """Reads each file once in a process: Hydra reads it for each composition, which takes a third of its time."""

    read = {}

    def load_config(self, config_path: str):
        if config_path not in self.read:
            self.read[config_path] = self.delegate.load_config(config_path=config_path)
        if config_path not in self.cache:
            self.cache[config_path] = copy.deepcopy(self.read[config_path])
        return self.cache[config_path]


@functools.cache
def with_hydra(*overrides: str) -> DictConfig:
    """The configuration and Hydra's own."""
    chosen = tuple(filter(chooses, overrides))
    if len(chosen) < len(overrides):
        config = copy.deepcopy(with_hydra(*chosen))
        # as Hydra does itself, after it has composed for a tenth of a second or two
        ConfigLoaderImpl._apply_overrides_to_config(
            [parsed(each) for each in overrides if not chooses(each)], config
        )
        return config
    with (
        initialize_config_dir(str(CONF), version_base="1.3"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(config_loader_impl, "CachingConfigRepository", Repository)
        return compose("config", list(overrides), return_hydra_config=True)


@functools.cache
def composed(*overrides: str) -> DictConfig:
    config = copy.deepcopy(with_hydra(*overrides))
    with open_dict(config):
        del config["hydra"]
    return config


def values_of(config: DictConfig, overrides: Sequence[str]) -> dict:
    """The configuration as a run records it."""
    # components of mixtures are composed, too
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose_values(config, list(overrides)).values


@functools.cache
def values(*overrides: str) -> dict:
    return values_of(composed(*overrides), overrides)


def resolved(*overrides: str) -> Config:
    """The configuration as a run checks it before it reads data."""
    config = composed(*overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return resolve(config, overrides)


def run_in(folder: Path, *overrides: str) -> Run:
    """The result of a run in this folder, which also names the overrides, as the command leaves them."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra/overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    config = composed(*overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return run_experiment(config, folder, overrides=overrides)
