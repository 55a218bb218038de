"""Mistakes in the jobs of a sweep, found before the first job starts."""

import functools
from collections.abc import Callable, Container, Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override, OverrideType
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf
from rich import get_console

from clickexp.data.public_logs import how_to_get
from clickexp.errors import ConfigError
from clickexp.experiment.overrides import parsed
from clickexp.experiment.values import current, without_hydra
from clickexp.runs.settings import Settings
from clickexp.runs.store import finished
from clickexp.sweeps.job import compose_job, new_record, reason_to_rerun, searched
from clickexp.sweeps.launcher import runs_elsewhere
from clickexp.utils.sources import is_there

_Compose = Callable[[int], DictConfig]


def check_jobs(
    context: HydraContext, config: DictConfig, jobs: Sequence[Sequence[str]], data: bool = True
) -> None:
    """Raises a ConfigError for what is known to be wrong with jobs before one starts.

    Args:
        context: Hydra's.
        config: The configuration of the sweep.
        jobs: The overrides of each job.
        data: Whether to look for the data of the jobs, too.
    """

    @functools.cache
    def compose(number: int) -> DictConfig:
        return compose_job(context, config, number, jobs[number])

    with get_console().status(f"checking {len(jobs)} jobs"):  # on a terminal alone
        if data and not runs_elsewhere(config):
            _check_data(compose, len(jobs))
        _check_values(compose, jobs)


def _check_data(compose: _Compose, count: int) -> None:
    """Raises a ConfigError where no job of the sweep has a result, or its data on this machine."""
    path = name = None
    for number in range(count):
        composed = compose(number)
        if OmegaConf.is_missing(composed.dataset, "path"):
            continue
        with current(composed):
            path, hydra = composed.dataset.get("path"), HydraConfig.get()
            name = composed.dataset.get("name")
            if path is None or is_there(str(path)):
                return
            record = new_record(without_hydra(composed), hydra)
            folder = finished(*searched(composed, hydra)).get(record.config_hash)
            if folder is not None and not reason_to_rerun(record, folder, composed):
                return
    if path is not None:
        raise ConfigError(
            f"{path}: no such file or folder. Check the path; a configuration has it as dataset.path.{how_to_get(name)}"
        )


def _check_values(compose: _Compose, jobs: Sequence[Sequence[str]]) -> None:
    """Checks each override that any job has, in one job.

    A job is composed unless a composed one differs in numbers only, which then replace its own: composing takes longer
    than all checks. A number at the root, such as a seed, depends on nothing else, so its type and bounds are enough.
    """
    from clickexp.experiment.resolve import resolve
    from clickexp.utils.signatures import check_arguments

    settings, seen, composed = Settings.__dataclass_fields__, set(), {}
    for number, overrides in enumerate(jobs):
        new = set(overrides) - seen
        seen |= new
        numbers = {
            override.input_line: override
            for override in parsed(overrides)
            if _gives_number(override, settings)
        }
        others = frozenset(overrides).difference(numbers)
        if others in composed:
            at_root = {line for line in new if numbers[line].key_or_group in settings}
            for line in at_root:
                check_arguments(Settings, {numbers[line].key_or_group: numbers[line].value()}, "")
            new -= at_root
        if not new:
            continue
        config = compose(composed.setdefault(others, number))
        with current(config):
            cfg = without_hydra(config)
            for override in numbers.values():
                OmegaConf.update(cfg, override.key_or_group, override.value())
            resolve(cfg, [*config.hydra.overrides.hydra, *overrides])


def _gives_number(override: Override, settings: Container[str]) -> bool:
    """Returns whether an override gives an existing key a number, which chooses no option of a group."""
    key, value = override.key_or_group, override.value()
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and override.type is OverrideType.CHANGE and ("." in key or key in settings)
