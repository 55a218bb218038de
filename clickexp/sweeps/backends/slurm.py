"""Jobs of a sweep as an array of SLURM jobs, through submitit."""

import dataclasses
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import (
    DelayedSubmission,
    FailedJobError,
    FailedSubmissionError,
    UncompletedJobError,
)

from clickexp.errors import ConfigError, UserError
from clickexp.sweeps.backends.remote import Call, Outcome, RemotePool
from clickexp.utils import hosts
from clickexp.utils.bounds import PositiveFloat, PositiveInt

_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)
_SECONDS_TO_KILL = 60
"""Longer than the 30 seconds (KillWait) that SLURM leaves by default between asking a job to end and killing it."""


@dataclasses.dataclass(frozen=True)
class _Requeued:
    """A call that is repeated when SLURM preempts it or its time is up; the run continues from its checkpoint.

    Attributes:
        call: The call.
    """

    call: Call

    def __call__(self) -> Outcome:
        """Makes the call, in each task of the job, and returns how its process ended."""
        outcome = dataclasses.replace(self.call, environment=_task(os.environ))()
        if outcome.returncode in _STOPPED and not outcome.ended_for:
            # SLURM is about to requeue or end the job, which has no outcome yet
            time.sleep(_SECONDS_TO_KILL)
        return outcome

    def checkpoint(self) -> DelayedSubmission:
        """Returns what submitit submits again."""
        return DelayedSubmission(self)


def _task(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables by which the tasks of a job find each other, from those of SLURM; the first runs where srun does."""
    port = _FIRST_PORT + int(environment["SLURM_JOB_ID"]) % _PORTS
    address = f"{environment['SLURM_LAUNCH_NODE_IPADDR']}:{port}"
    return hosts.environment(
        address, int(environment["SLURM_NTASKS"]), int(environment["SLURM_PROCID"])
    )


_FIRST_PORT, _PORTS = 61440, 4096
_MINUTES_TO_START = 5
"""Of a job, from which on its own time counts."""


class SlurmPool(RemotePool):
    """Jobs as an array of SLURM.

    The arguments besides `folder` are the keys of conf/launcher/slurm.yaml, which explains each.

    Args:
        folder: That of the sweep; submitit keeps its files in .submitit there.

    Raises:
        UserError: SLURM is not at hand or refuses the jobs.
        ConfigError: A job may take longer than SLURM lets it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        partition: str | None,
        account: str | None,
        qos: str | None,
        constraint: str | None,
        nodes: PositiveInt,
        gpus_per_node: PositiveInt | None,
        cpus_per_task: PositiveInt,
        mem_gb: float | None,
        timeout_min: PositiveInt,
        job_minutes: PositiveFloat | None,
        signal_delay_s: int,
        max_num_timeout: int,
        array_parallelism: PositiveInt,
        name: str,
        modules: list[str],
        setup: list[str],
        additional_parameters: dict[str, Any],
    ):
        super().__init__("slurm", array_parallelism, job_minutes)
        if job_minutes is not None:
            if job_minutes > timeout_min:
                raise ConfigError(
                    f"hydra.launcher.job_minutes={job_minutes:g}: SLURM ends a job after timeout_min={timeout_min}. "
                    "Lower the one, or raise the other."
                )
            # for a machine whose processes hang, too, and so that short jobs come first
            timeout_min = min(
                timeout_min, math.ceil(job_minutes + signal_delay_s / 60) + _MINUTES_TO_START
            )
        self.files = folder / ".submitit"
        try:
            self.executor = submitit.AutoExecutor(
                self.files / "%j", cluster="slurm", slurm_max_num_timeout=max_num_timeout
            )
        except RuntimeError as error:
            raise UserError(
                "launcher=slurm: srun is not found; start the sweep on a SLURM machine"
            ) from error
        options = {
            "name": name,
            "timeout_min": timeout_min,
            "mem_gb": mem_gb,
            "nodes": nodes,
            "cpus_per_task": cpus_per_task,
            "gpus_per_node": gpus_per_node,
            "slurm_partition": partition,
            "slurm_account": account,
            "slurm_qos": qos,
            "slurm_constraint": constraint,
            "slurm_signal_delay_s": signal_delay_s,
            "slurm_array_parallelism": array_parallelism,
            "slurm_setup": [*(f"module load {module}" for module in modules), *setup],
            "slurm_additional_parameters": {"requeue": True, **additional_parameters},
        }
        self.executor.update_parameters(
            **{key: value for key, value in options.items() if value is not None}
        )

    def send(self, calls: Sequence[Call]) -> Sequence[submitit.Job]:
        """Submits the calls as one array; a UserError where SLURM refuses them."""
        are_first = not self.files.exists()
        try:
            jobs = self.executor.submit_array([_Requeued(call) for call in calls])
        except (FailedJobError, FailedSubmissionError) as error:
            if are_first:
                shutil.rmtree(self.files, ignore_errors=True)
            cause = str(error).strip().rpartition("\n")[2].removeprefix("sbatch: ")
            raise UserError(
                f"launcher=slurm: {cause}. Start the sweep where sbatch reaches a cluster, with a partition, account "
                "and qos that you may use (hydra.launcher.partition=...)"
            ) from error
        return [job.task(0) for job in jobs]

    def has_ended(self, handle: submitit.Job) -> bool:
        """Returns whether SLURM is done with a job."""
        return handle.done()

    def outcome(self, handle: submitit.Job) -> Outcome | str:
        """Returns how a job ended; SLURM's word for it where its process could not report."""
        try:
            return handle.result()
        except (FailedJobError, UncompletedJobError):
            return f"SLURM job {handle.job_id} ended as {handle.state}; see {handle.paths.stderr}"

    def cancel(self, handles: Sequence[submitit.Job]) -> None:
        """Cancels jobs, running or not."""
        subprocess.run(["scancel", *(handle.job_id for handle in handles)], check=False)  # noqa: S603, S607  # SLURM
