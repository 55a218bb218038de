"""The places where jobs of a sweep run: this machine's accelerators, or shares of its CPU cores."""

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise

from clickexp.errors import UserError
from clickexp.sweeps.backends.base import CANCELLED, Job, Outcome, Slot
from clickexp.sweeps.backends.pool import SILENCE, Pool
from clickexp.utils.bounds import PositiveFloat, PositiveInt

log = logging.getLogger(__name__)
_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_DEFAULT_MEMORY = 0.9
_LOOK = "import jax, json; print(json.dumps([jax.default_backend(), jax.local_device_count()]))"
# AMD's GPUs heed the first, too
_VISIBLE = {
    "gpu": "CUDA_VISIBLE_DEVICES",
    "tpu": "TPU_VISIBLE_CHIPS",
}
_ONE_CHIP = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}


def device_pool(
    workers: PositiveInt | None = None,
    jobs_per_device: PositiveInt = 1,
    job_minutes: PositiveFloat | None = None,
) -> Pool:
    """Returns processes on the accelerators of this machine, or on shares of its cores; see `device_slots`.

    Args:
        workers: See `device_slots`.
        jobs_per_device: The same.
        job_minutes: Minutes after which a job is ended; None for no limit.
    """
    return _DevicePool(device_slots(workers, jobs_per_device), job_minutes=job_minutes)


class _DevicePool(Pool):
    """Leaves out a device on which JAX does not start after a job has failed: it would take the others, and fail."""

    def _leave(self, job: Job, outcome: Outcome | str) -> None:
        super()._leave(job, outcome)
        others = len(self.free) + len(self.running) > 1
        if job.returncode and outcome != CANCELLED and others and not _starts(job.slot):
            self.free.remove(job.slot)
            log.warning("%s is left out: JAX does not start on it any more", job.slot.name)


def _starts(slot: Slot) -> bool:
    """Whether JAX starts on the device of a slot; always on a CPU."""
    if not slot.environment:
        return True
    try:
        return slot.name.startswith(_devices(slot.environment)[0])
    except UserError:
        return False


def device_slots(workers: int | None = None, jobs_per_device: int = 1) -> list[Slot]:
    """Returns the places for jobs on this machine. This process never starts JAX; another one looks.

    Args:
        workers: The most jobs at a time; without accelerators, slots that divide the cores, by default half as many.
        jobs_per_device: Jobs that share an accelerator and its memory.
    """
    platform, count = _devices({})
    if platform == "cpu":
        return cpu_slots(own_cores(), workers)
    slots = accelerator_slots(platform, count, jobs_per_device, os.environ)
    return slots[: workers or None]


def accelerator_slots(
    platform: str, count: int, jobs_per_device: int, environment: Mapping[str, str]
) -> list[Slot]:
    """Returns slots that see one device each.

    Args:
        platform: gpu or tpu.
        count: Of the devices.
        jobs_per_device: Slots that share a device.
        environment: Variables, one of which may already narrow the devices.
    """
    if platform not in _VISIBLE:
        raise UserError(
            f"launcher=accelerators cannot divide devices of kind {platform}; use launcher=basic"
        )
    narrowed = environment.get(_VISIBLE[platform])
    devices = narrowed.split(",")[:count] if narrowed else [str(index) for index in range(count)]
    more = _ONE_CHIP if platform == "tpu" else {}
    if jobs_per_device > 1:
        fraction = float(environment.get(_MEMORY, _DEFAULT_MEMORY)) / jobs_per_device
        more = {**more, _MEMORY: f"{fraction:.3f}"}
    return [
        Slot(
            name=f"{platform}:{device}" + (f".{part}" if jobs_per_device > 1 else ""),
            environment={_VISIBLE[platform]: device, **more},
        )
        for part in range(jobs_per_device)
        for device in devices
    ]


def cpu_slots(cores: list[int], workers: int | None = None) -> list[Slot]:
    """Returns slots that divide the cores, by default half as many; more slots than cores share them."""
    workers = workers or max(len(cores) // 2, 1)
    bounds = [len(cores) * index // workers for index in range(workers + 1)]
    shares = [tuple(cores[start:end]) for start, end in pairwise(bounds)]
    if workers > len(cores):
        shares = [(cores[index % len(cores)],) for index in range(workers)]
    return [Slot(f"cpu:{index}", cores=share) for index, share in enumerate(shares)]


def this_slot(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the name of the machine and the devices that a scheduler has given to this process."""
    devices = [
        f"{kind}:{environment[name]}" for kind, name in _VISIBLE.items() if environment.get(name)
    ]
    return " ".join([socket.gethostname(), *devices])


def _devices(environment: Mapping[str, str]) -> tuple[str, int]:
    """Returns platform and number of devices, as a process with these variables sees them that JAX starts in."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return "cpu", 1
    try:
        done = subprocess.run(  # noqa: S603  # fixed words
            [sys.executable, "-c", _LOOK],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=SILENCE,  # a broken device may never answer
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"JAX does not start on this machine in {SILENCE / 60:g} minutes: other programs may leave it no time. Try "
            "again, or say JAX_PLATFORMS=cpu, with which it is not asked for devices"
        ) from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"JAX does not start on this machine: {reason}")
    platform, count = json.loads(done.stdout.splitlines()[-1])
    return platform, count


def own_cores() -> list[int]:
    """Returns the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
