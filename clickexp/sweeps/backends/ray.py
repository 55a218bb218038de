"""Jobs of a sweep as tasks of a Ray cluster, or of a Ray that is started on this machine."""

# pyright takes this file for the package ray
# pyright: reportAttributeAccessIssue=false

import dataclasses
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import ray

from clickexp.errors import UserError, reason, with_class
from clickexp.sweeps.backends.remote import Call, Outcome, RemotePool
from clickexp.sweeps.backends.worker import GRACE
from clickexp.utils.bounds import PositiveFloat, PositiveInt
from clickexp.utils.hosts import environment as environment_of

_SILENCE = 15.0
"""Seconds without an answer after which the head of a cluster is given up. Ray aborts this process after 60."""


class _Tasks(NamedTuple):
    """A job: its tasks, one on each host, and what keeps room for them."""

    tasks: list[ray.ObjectRef]
    group: Any = None


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
        hosts: PositiveInt,
        max_retries: int,
        job_minutes: PositiveFloat | None,
        init: dict[str, Any],
    ):
        _connect(address, init)
        resources_of_cluster = ray.cluster_resources()
        if num_gpus is None:
            num_gpus = min(resources_of_cluster.get("GPU", 0), 1)
        needs = {"CPU": num_cpus, "GPU": num_gpus, **resources}
        super().__init__("ray", _room(needs, hosts, resources_of_cluster), job_minutes)
        self._needs, self._hosts = needs, hosts
        retries = max_retries if hosts == 1 else 0  # one process is of no use to others
        task = ray.remote(
            num_cpus=num_cpus, num_gpus=num_gpus, resources=resources, max_retries=retries
        )
        self.task: Any = task(_call)  # Ray's stubs know one argument of what it calls
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head, self._heard = (host, int(port)), time.monotonic()
        self._is_lost = False

    def send(self, calls: Sequence[Call]) -> Sequence[_Tasks | None]:
        """Starts a task for each call; none where the head is lost."""
        if self._is_lost:
            return [None] * len(calls)
        return [self._started(call) for call in calls]

    def _started(self, call: Call) -> _Tasks:
        """Starts a task, or one on each host of a job, which receive the address of the first."""
        if self._hosts == 1:
            return _Tasks([self.task.remote(call)])
        bundle = {name: amount for name, amount in self._needs.items() if amount}
        group = ray.util.placement_group([bundle] * self._hosts, strategy="SPREAD")
        place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        places = [place(group, number) for number in range(self._hosts)]
        address = ray.remote(num_cpus=0)(_address).options(scheduling_strategy=places[0]).remote()
        tasks = [
            self.task.options(scheduling_strategy=place).remote(call, address, self._hosts, index)
            for index, place in enumerate(places)
        ]
        return _Tasks(tasks, group)

    def has_ended(self, handle: _Tasks | None) -> bool:
        """Returns whether the first task is over, or lost with the head of the cluster."""
        if not self._head_answers():
            return self._is_lost
        return bool(ray.wait(cast(_Tasks, handle).tasks[:1], timeout=0)[0])

    def outcome(self, handle: _Tasks | None) -> Outcome | str:
        """Returns how the first task ended; Ray's error where its worker died."""
        if self._is_lost:
            host, port = self._head
            return f"the head of the Ray cluster, {host}:{port}, does not answer any more"
        tasks, group = cast(_Tasks, handle)
        try:
            return ray.get(tasks[0])
        except ray.exceptions.RayTaskError as error:
            return f"its process was lost ({reason(error.cause, context=False)})"
        except ray.exceptions.RayError as error:
            return with_class(error)
        finally:
            if group is not None:
                ray.util.remove_placement_group(group)

    def cancel(self, handles: Sequence[_Tasks]) -> None:
        """Cancels tasks and waits for their ends; those whose workers do not answer are ended by force."""
        if self._is_lost:
            return
        tasks = [task for handle in handles for task in handle.tasks]
        for task in tasks:
            ray.cancel(task)
        _, left = ray.wait(tasks, num_returns=len(tasks), timeout=GRACE)
        for task in left:
            ray.cancel(task, force=True)
        for handle in handles:
            if handle.group is not None:
                ray.util.remove_placement_group(handle.group)

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


def _connect(address: str | None, init: dict[str, Any]) -> None:
    """Connects with a cluster, or starts a Ray on this machine; a UserError where neither is possible."""
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


def _room(needs: Mapping[str, float], hosts: int, resources: Mapping[str, float]) -> int:
    """Returns how many jobs run at once on the resources of a cluster; a UserError where none does."""
    has = {name: resources.get(name, 0) for name in needs}
    room = min(has[name] // amount for name, amount in needs.items() if amount) // hosts
    if room < 1:
        raise UserError(
            f"launcher=ray: a job needs {needs} on each of {hosts} hosts, the cluster has {has}; lower "
            "hydra.launcher.num_gpus, num_cpus or hosts"
        )
    return int(room)


def _call(call: Call, address: str = "", processes: int = 1, number: int = 0) -> Outcome:
    environment = environment_of(address, processes, number)
    return dataclasses.replace(call, environment=environment)()


def _address() -> str:
    """Returns that of this machine, with a port that is free."""
    with socket.create_server(("", 0)) as server:
        return f"{ray.util.get_node_ip_address()}:{server.getsockname()[1]}"
