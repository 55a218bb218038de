"""Jobs of a sweep as tasks of a Ray cluster, or of a Ray that is started on this machine."""

# pyright takes this file for the package ray
# pyright: reportAttributeAccessIssue=false

import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import ray

from clickexp.errors import UserError, reason
from clickexp.sweeps.backends.remote import Call, Outcome, RemotePool
from clickexp.sweeps.backends.worker import GRACE
from clickexp.utils.bounds import PositiveFloat

_SILENCE = 15.0
"""Seconds without an answer after which the head of a cluster is given up. Ray aborts this process after 60."""


class RayPool(RemotePool):
    """Jobs as tasks of Ray. The arguments are the keys of conf/launcher/ray.yaml, which explains each.

    Raises:
        UserError: No cluster is found, or one without room for a job.
    """

    def __init__(
        self,
        address: str | None,
        num_gpus: float | None,
        num_cpus: float,
        resources: dict[str, float],
        max_retries: int,
        job_minutes: PositiveFloat | None,
        init: dict[str, Any],
    ):
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, ignore_reinit_error=True, **init)
        except ConnectionError as error:
            where = f"hydra.launcher.address={address}" if address else "RAY_ADDRESS"
            raise UserError(
                f"launcher=ray: no cluster answers at {where}: start one by 'ray start --head', or take "
                f"hydra.launcher.address=local, a Ray of the sweep's own. Ray says: {' '.join(str(error).split())}"
            ) from error
        except (RuntimeError, ValueError) as error:
            raise UserError(f"launcher=ray: {' '.join(str(error).split())}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own aborts the process
        there = ray.cluster_resources()
        gpus = min(there.get("GPU", 0), 1) if num_gpus is None else num_gpus
        needs = {"CPU": num_cpus, "GPU": gpus, **resources}
        room = min(there.get(name, 0) // amount for name, amount in needs.items() if amount)
        if room < 1:
            has = {name: there.get(name, 0) for name in needs}
            raise UserError(
                f"launcher=ray: a job needs {needs}, the cluster has {has}; lower hydra.launcher.num_gpus, num_cpus"
            )
        super().__init__("ray", int(room), job_minutes)
        task = ray.remote(
            num_cpus=num_cpus, num_gpus=gpus, resources=resources, max_retries=max_retries
        )
        self.task = task(_call)
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head, self._heard = (host, int(port)), time.monotonic()
        self._is_lost = False

    def send(self, calls: Sequence[Call]) -> Sequence[ray.ObjectRef | None]:
        """Starts a task for each call; none where the head is lost."""
        if self._is_lost:
            return [None] * len(calls)
        return [self.task.remote(call) for call in calls]

    def has_ended(self, handle: ray.ObjectRef | None) -> bool:
        """Returns whether a task is over, or lost with the head of the cluster."""
        if not self._head_answers():
            return self._is_lost
        return bool(ray.wait([handle], timeout=0)[0])

    def outcome(self, handle: ray.ObjectRef | None) -> Outcome | str:
        """Returns how a task ended; Ray's error where its worker died."""
        if self._is_lost:
            host, port = self._head
            return f"the head of the Ray cluster, {host}:{port}, does not answer any more"
        try:
            return ray.get(cast(ray.ObjectRef, handle))
        except ray.exceptions.RayTaskError as error:
            return f"its process was lost ({reason(error.cause, context=False)})"
        except ray.exceptions.RayError as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"

    def cancel(self, handles: Sequence[ray.ObjectRef]) -> None:
        """Cancels tasks and waits for their ends; those whose workers do not answer are ended by force."""
        if self._is_lost:
            return
        for handle in handles:
            ray.cancel(handle)
        _, left = ray.wait(list(handles), num_returns=len(handles), timeout=GRACE)
        for handle in left:
            ray.cancel(handle, force=True)

    def _head_answers(self) -> bool:
        """Whether the head takes connections. Once it is lost, nothing is asked of Ray, which would abort."""
        if not self._is_lost:
            try:
                socket.create_connection(self._head, timeout=_SILENCE / 3).close()
            except OSError:
                self._is_lost = time.monotonic() - self._heard > _SILENCE
                return False
            self._heard = time.monotonic()
        return not self._is_lost


def _call(call: Call) -> Outcome:
    return call()
