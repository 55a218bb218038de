"""The places where jobs of a sweep run: this machine's accelerators, or shares of its CPU cores."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clickexp.errors import ConfigError, UserError
from clickexp.sweeps.backends.pool import Pool, Slot

MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"
DEFAULT_MEMORY = 0.9
LOOK = "import jax, json; print(json.dumps([jax.default_backend(), jax.local_device_count()]))"
VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}  # AMD's GPUs heed the former, too
ONE_CHIP = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}


class DevicePool(Pool):
    """Processes on the accelerators of this machine, or on shares of its cores.

    Args:
        options: Keys of conf/launcher/accelerators.yaml, those of `device_slots`.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path):
        super().__init__(device_slots(**options))


def device_slots(workers: int | None = None, jobs_per_device: int = 1) -> list[Slot]:
    """A slot for each accelerator that JAX sees, jobs_per_device of them where it is shared.

    Without accelerators: `workers` slots, by default half the cores, which divide the cores. This process
    never starts JAX; another one looks. ConfigError for numbers below 1.
    """
    for name, value in dict(workers=workers, jobs_per_device=jobs_per_device).items():
        if value is not None and value < 1:
            raise ConfigError(f"hydra.launcher.{name}={value}: give at least 1")
    platform, count = _devices()
    if platform == "cpu":
        return cpu_slots(_cores(), workers)
    slots = accelerator_slots(platform, count, jobs_per_device, os.environ)
    return slots[: workers or None]


def accelerator_slots(
    platform: str, count: int, jobs_per_device: int, environment: Mapping[str, str]
) -> list[Slot]:
    """Each slot sees one of `count` devices, among those that the environment already narrows them to."""
    if platform not in VISIBLE:
        raise UserError(f"launcher=accelerators cannot divide devices of kind {platform}; use launcher=basic")
    narrowed = environment.get(VISIBLE[platform])
    devices = narrowed.split(",")[:count] if narrowed else [str(index) for index in range(count)]
    more = ONE_CHIP if platform == "tpu" else {}
    if jobs_per_device > 1:
        fraction = float(environment.get(MEMORY, DEFAULT_MEMORY)) / jobs_per_device
        more = {**more, MEMORY: f"{fraction:.3f}"}
    return [
        Slot(
            name=f"{platform}:{device}" + (f".{part}" if jobs_per_device > 1 else ""),
            environment={VISIBLE[platform]: device, **more},
        )
        for part in range(jobs_per_device)
        for device in devices
    ]


def cpu_slots(cores: list[int], workers: int | None = None) -> list[Slot]:
    """Slots that divide the cores; more slots than cores share them."""
    workers = workers or max(len(cores) // 2, 1)
    bounds = [len(cores) * index // workers for index in range(workers + 1)]
    shares = [tuple(cores[a:b]) for a, b in zip(bounds, bounds[1:])] if workers <= len(cores) else []
    shares = shares or [(cores[index % len(cores)],) for index in range(workers)]
    return [Slot(f"cpu:{index}", cores=share) for index, share in enumerate(shares)]


def this_slot(environment: Mapping[str, str] = os.environ) -> str:
    """Name of the machine and the devices that a scheduler has given to this process."""
    given = [f"{kind}:{environment[name]}" for kind, name in VISIBLE.items() if environment.get(name)]
    return " ".join([socket.gethostname(), *given])


def _devices() -> tuple[str, int]:
    """Platform and number of devices, as a process that JAX starts in sees them."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return "cpu", 1
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"JAX does not start on this machine: {reason}")
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
