"""The launchers, where Hydra looks for its plugins. What they do is in clickexp.sweeps.launcher."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import MISSING, DictConfig


@dataclass
class _QueueConf:
    _target_: str = "hydra_plugins.clickexp_launcher.launcher.QueueLauncher"
    pool: str = MISSING


@dataclass
class QueueConf(_QueueConf):
    """Keys of a backend outside the package: pool names its class, options are its arguments."""

    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class AcceleratorsConf(_QueueConf):
    """Keys of conf/launcher/accelerators.yaml."""

    pool: str = "clickexp.sweeps.backends.slots.DevicePool"
    workers: int | None = None
    jobs_per_device: int = 1


@dataclass
class SlurmConf(_QueueConf):
    """Keys of conf/launcher/slurm.yaml."""

    pool: str = "clickexp.sweeps.backends.slurm.SlurmPool"
    partition: str | None = MISSING
    account: str | None = MISSING
    qos: str | None = MISSING
    constraint: str | None = MISSING
    gpus_per_node: int | None = MISSING
    cpus_per_task: int = MISSING
    mem_gb: float | None = MISSING
    timeout_min: int = MISSING
    signal_delay_s: int = MISSING
    max_num_timeout: int = MISSING
    array_parallelism: int = MISSING
    name: str = MISSING
    modules: list[str] = MISSING
    setup: list[str] = MISSING
    additional_parameters: dict[str, Any] = MISSING


@dataclass
class RayConf(_QueueConf):
    """Keys of conf/launcher/ray.yaml."""

    pool: str = "clickexp.sweeps.backends.ray.RayPool"
    address: str | None = MISSING
    num_gpus: float | None = MISSING
    num_cpus: float = MISSING
    resources: dict[str, float] = MISSING
    max_retries: int = MISSING
    init: dict[str, Any] = MISSING


for _name, _conf in {
    "clickexp_queue": QueueConf,
    "accelerators": AcceleratorsConf,
    "clickexp_slurm": SlurmConf,
    "clickexp_ray": RayConf,
}.items():
    ConfigStore.instance().store(group="hydra/launcher", name=_name, node=_conf, provider="clickexp")


class QueueLauncher(Launcher):
    """Each job in a fresh process, as soon as there is a device for it: here, in SLURM, or in Ray.

    Args:
        options: Keys of hydra.launcher, which the queue reads from the configuration.
    """

    def __init__(self, **options: Any) -> None: ...

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Takes what Hydra hands to each launcher."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs; see `clickexp.sweeps.launcher.launch`."""
        from clickexp.sweeps.launcher import launch

        return launch(self.hydra_context, self.task_function, self.config, job_overrides, initial_job_idx)
