"""Jobs of a sweep as tasks of a Ray cluster, or of a Ray that is started on this machine."""

# pyright takes this file for the package ray
# pyright: reportAttributeAccessIssue=false

import dataclasses
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from clickexp.errors import UserError
from clickexp.sweeps.backends.remote import Call, Outcome, RemotePool
from clickexp.sweeps.backends.worker import GRACE
from clickexp.utils.signatures import check_arguments


@dataclasses.dataclass(frozen=True)
class _Options:
    """Keys of conf/launcher/ray.yaml."""

    address: str | None
    num_gpus: float | None
    num_cpus: float
    resources: dict[str, float]
    max_retries: int
    init: dict[str, Any]


class RayPool(RemotePool):
    """Jobs as tasks of Ray.

    Args:
        options: Keys of conf/launcher/ray.yaml.
        folder: That of the sweep; unused.

    Raises:
        ConfigError: An option has a value of another type.
        UserError: No cluster is found, or one without room for a job.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path):
        check_arguments(_Options, options, "hydra.launcher")
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=options["address"], ignore_reinit_error=True, **options["init"])
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"launcher=ray: {' '.join(str(error).split())}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own aborts the process
        there = ray.cluster_resources()
        gpus = options["num_gpus"]
        needs = {
            "CPU": options["num_cpus"],
            "GPU": min(there.get("GPU", 0), 1) if gpus is None else gpus,
            **options["resources"],
        }
        room = min(there.get(name, 0) // amount for name, amount in needs.items() if amount)
        if room < 1:
            has = {name: there.get(name, 0) for name in needs}
            raise UserError(
                f"launcher=ray: a job needs {needs}, the cluster has {has}; lower hydra.launcher.num_gpus, num_cpus"
            )
        super().__init__("ray", int(room))
        self.task = ray.remote(
            num_cpus=needs.pop("CPU"),
            num_gpus=needs.pop("GPU"),
            resources=needs,
            max_retries=options["max_retries"],
        )(_run)

    def send(self, calls: Sequence[Call]) -> Sequence[ray.ObjectRef]:
        """Starts a task for each call."""
        return [self.task.remote(call) for call in calls]

    def has_ended(self, handle: ray.ObjectRef) -> bool:
        """Returns whether a task is over."""
        return bool(ray.wait([handle], timeout=0)[0])

    def outcome(self, handle: ray.ObjectRef) -> Outcome | str:
        """Returns how a task ended; Ray's error where its worker died."""
        try:
            return ray.get(handle)
        except ray.exceptions.RayError as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"

    def cancel(self, handles: Sequence[ray.ObjectRef]) -> None:
        """Cancels tasks and waits for their ends."""
        for handle in handles:
            ray.cancel(handle)
        ray.wait(list(handles), num_returns=len(handles), timeout=GRACE)


def _run(call: Call) -> Outcome:
    return call()
