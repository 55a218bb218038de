"""hydra/launcher=accelerators, where Hydra looks for its plugins. What it does is in clickexp.sweeps.launcher."""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class AcceleratorsLauncherConf:
    _target_: str = "hydra_plugins.clickexp_launcher.launcher.AcceleratorsLauncher"
    workers: int | None = None
    jobs_per_device: int = 1


ConfigStore.instance().store(
    group="hydra/launcher", name="accelerators", node=AcceleratorsLauncherConf, provider="clickexp"
)


class AcceleratorsLauncher(Launcher):
    """One job at a time on each accelerator of this machine, or on each share of its CPU cores."""

    def __init__(self, workers: int | None, jobs_per_device: int) -> None:
        super().__init__()
        self.workers = workers
        self.jobs_per_device = jobs_per_device

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from clickexp.sweeps.launcher import launch

        return launch(self.hydra_context, self.task_function, self.config, job_overrides, initial_job_idx)
