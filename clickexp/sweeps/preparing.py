"""Pools of processes that prepare a log: of this machine, or those that sweeps have on Ray and SLURM."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from clickexp.errors import ConfigError
from clickexp.sweeps.backends.base import BasePool
from clickexp.sweeps.backends.pool import Pool
from clickexp.sweeps.backends.slots import cpu_slots, own_cores
from clickexp.sweeps.calls import PoolCalls
from clickexp.utils.bounds import OneOf, PositiveInt

PROCESSES = "processes"
LaunchedBy = Annotated[str, OneOf(PROCESSES, "ray", "slurm")]
_IMPORTED = (
    "clickexp.data.readers.impressions",
    "clickexp.data.readers.lists",
    "clickexp.data.readers.yandex",
    "clickexp.data.shares.writing",
    "clickexp.sweeps.calls",
)
_ON_CPUS = {"ray": "hydra.launcher.num_gpus=0", "slurm": "hydra.launcher.gpus_per_node=null"}
"""Jobs of these launchers would ask for accelerators, which preparing a log does not use."""


class Workers:
    """Opens the calls of `clickexp.data.shares`.

    Args:
        workers: Jobs at a time; None takes one per core of this machine.
        launcher: Where they run.
        overrides: Keys of hydra.launcher, as on the command line.

    Attributes:
        count: Jobs at a time.

    Raises:
        ConfigError: Of a scheduler the number of jobs is missing, or processes of this machine have keys.
    """

    def __init__(
        self,
        workers: PositiveInt | None = None,
        launcher: LaunchedBy = PROCESSES,
        overrides: Sequence[str] = (),
    ):
        if workers is None and launcher != PROCESSES:
            raise ConfigError(f"launcher={launcher}: give the jobs at a time, such as workers=16")
        if overrides and launcher == PROCESSES:
            raise ConfigError(
                f"{overrides[0]}: processes of this machine have no such key. Leave it out, or give launcher=ray or "
                "launcher=slurm."
            )
        self.count = workers or len(own_cores())
        self._launcher, self._overrides = launcher, list(overrides)

    def __call__(self, folder: Path) -> PoolCalls:
        """Opens calls whose files go into a folder."""
        if self._launcher == PROCESSES:
            pool: BasePool = Pool(cpu_slots(own_cores(), self.count), imported=_IMPORTED)
        else:
            # here, since Hydra takes as long to import as a small log to prepare
            from clickexp.sweeps.launcher import composed_pool

            words = [f"launcher={self._launcher}", _ON_CPUS[self._launcher], *self._overrides]
            pool = composed_pool(words, folder)
            pool.imported = _IMPORTED
            del pool.free[self.count :]
        return PoolCalls(pool, folder)
