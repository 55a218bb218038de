"""The sweepers, where Hydra looks for its plugins. What they do is in clickexp.sweeps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from clickexp.errors import UserError, install


@dataclass
class GridSweeperConf:
    """Keys of hydra/sweeper=basic, those of Hydra's own, in whose place it is."""

    _target_: str = "hydra_plugins.clickexp_sweeper.sweeper.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


@dataclass
class SearchSweeperConf:
    """Keys of hydra/sweeper=search."""

    _target_: str = "hydra_plugins.clickexp_sweeper.sweeper.SearchSweeper"
    params: dict[str, str] = field(default_factory=dict)


for _name, _conf in {"basic": GridSweeperConf, "search": SearchSweeperConf}.items():
    ConfigStore.instance().store(group="hydra/sweeper", name=_name, node=_conf, provider="clickexp")


class _Raising:
    """A launcher that raises the error of the first job that failed; Hydra prints a line of overrides before it."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        results = self._launcher.launch(job_overrides, initial_job_idx)
        for failed in (job for job in results if job.status is JobStatus.FAILED):
            raise failed._return_value
        return results


class GridSweeper(BasicSweeper):
    """Hydra's own, with checks that find more than its own, in less time, before the first job starts."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra hands to each sweeper."""
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        assert self.launcher is not None  # noqa: S101  # after setup
        self.launcher: Any = _Raising(self.launcher)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Raises a ConfigError where jobs have mistakes, or no data to read; our launchers check it themselves."""
        from clickexp.sweeps.checks import check_jobs
        from clickexp.sweeps.launcher import LAUNCHER

        assert self.hydra_context is not None and self.config is not None  # noqa: S101  # after setup
        if self.config.hydra.launcher._target_ != LAUNCHER:
            check_jobs(self.hydra_context, self.config, batch)


class SearchSweeper(Sweeper):
    """Trials that Optuna proposes, one at a time on each free device.

    Args:
        params: Overrides, those of presets.
    """

    def __init__(self, params: dict[str, str]) -> None:
        super().__init__()
        self.params = params

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra hands to each sweeper."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def sweep(self, arguments: list[str]) -> Any:
        """Runs the trials and returns the best value."""
        try:
            from clickexp.sweeps.search import search
        except ModuleNotFoundError as error:
            if error.name != "optuna":
                raise
            raise UserError(f"search=... needs Optuna: {install('search')}") from error
        overrides = [*(f"{key}={value}" for key, value in self.params.items()), *arguments]
        assert self.hydra_context is not None and self.config is not None  # noqa: S101  # after setup
        return search(self.hydra_context, self.task_function, self.config, overrides)
