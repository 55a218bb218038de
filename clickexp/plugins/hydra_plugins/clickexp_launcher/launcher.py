"""The launchers, where Hydra looks for its plugins. What they do is in clickexp.sweeps.launcher."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import MISSING, DictConfig

for _name, _conf in {
    "accelerators": {"pool": "clickexp.sweeps.backends.slots.device_pool"},
    "clickexp_slurm": {"pool": "clickexp.sweeps.backends.slurm.SlurmPool"},
    "clickexp_ray": {"pool": "clickexp.sweeps.backends.ray.RayPool"},
    # of a backend outside the package, whose class `pool` names
    "clickexp_queue": {"pool": MISSING},
}.items():
    _target = {"_target_": "hydra_plugins.clickexp_launcher.launcher.QueueLauncher"}
    ConfigStore.instance().store(
        group="hydra/launcher", name=_name, node={**_target, **_conf}, provider="clickexp"
    )


class QueueLauncher(Launcher):
    """Each job in a fresh process, as soon as there is a device for it: here, in SLURM, or in Ray.

    Args:
        options: Keys of hydra.launcher, which the queue reads from the configuration; see conf/launcher.
    """

    def __init__(self, **options: Any) -> None: ...

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra hands to each launcher."""
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Checks the jobs and runs them; see `clickexp.sweeps.launcher.launch`."""
        from clickexp.sweeps.checks import check_jobs
        from clickexp.sweeps.launcher import launch

        check_jobs(self.hydra_context, self.config, job_overrides)
        return launch(
            self.hydra_context, self.task_function, self.config, job_overrides, initial_job_idx
        )
