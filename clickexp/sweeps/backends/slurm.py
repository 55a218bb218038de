"""Jobs of a sweep as an array of SLURM jobs, through submitit."""

import dataclasses
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError, FailedSubmissionError, UncompletedJobError

from clickexp.errors import UserError
from clickexp.sweeps.backends.remote import Call, Outcome, RemotePool
from clickexp.utils.bounds import PositiveInt
from clickexp.utils.signatures import check_arguments

_OWN = ("timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "name")
"""Parameters that submitit has for every scheduler; all others carry a prefix."""
_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)
_SECONDS_TO_KILL = 60
"""Longer than the 30 seconds (KillWait) that SLURM leaves by default between asking a job to end and killing it."""


@dataclasses.dataclass(frozen=True)
class _Options:
    """Keys of conf/launcher/slurm.yaml."""

    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    gpus_per_node: PositiveInt | None
    cpus_per_task: PositiveInt
    mem_gb: float | None
    timeout_min: PositiveInt
    signal_delay_s: int
    max_num_timeout: int
    array_parallelism: PositiveInt
    name: str
    modules: list[str]
    setup: list[str]
    additional_parameters: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Requeued:
    """A call that is repeated when SLURM preempts it or its time is up; the run continues from its checkpoint.

    Attributes:
        call: The call.
    """

    call: Call

    def __call__(self) -> Outcome:
        """Makes the call and returns how its process ended."""
        outcome = self.call()
        if outcome.returncode in _STOPPED:
            time.sleep(_SECONDS_TO_KILL)  # SLURM is about to requeue or end the job, which has no outcome yet
        return outcome

    def checkpoint(self) -> DelayedSubmission:
        """Returns what submitit submits again."""
        return DelayedSubmission(self)


class SlurmPool(RemotePool):
    """Jobs as an array of SLURM.

    Args:
        options: Keys of conf/launcher/slurm.yaml.
        folder: That of the sweep; submitit keeps its files in .submitit there.

    Raises:
        ConfigError: An option has a value of another type.
        UserError: SLURM is not at hand or refuses the jobs.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path):
        check_arguments(_Options, options, "hydra.launcher")
        options = {name: value for name, value in options.items() if value is not None}
        super().__init__("slurm", options["array_parallelism"])
        modules = [f"module load {name}" for name in options.pop("modules")]
        options["setup"] = [*modules, *options["setup"]]
        options["additional_parameters"] = {"requeue": True, **options["additional_parameters"]}
        timeouts = options.pop("max_num_timeout")
        try:
            self.executor = submitit.AutoExecutor(
                folder / ".submitit" / "%j", cluster="slurm", slurm_max_num_timeout=timeouts
            )
        except RuntimeError as error:
            raise UserError(
                "launcher=slurm: srun is not found; start the sweep on a SLURM machine"
            ) from error
        self.executor.update_parameters(
            **{name if name in _OWN else f"slurm_{name}": value for name, value in options.items()}
        )

    def send(self, calls: Sequence[Call]) -> Sequence[submitit.Job]:
        """Submits the calls as one array; a UserError where SLURM refuses them."""
        try:
            return self.executor.submit_array([Requeued(call) for call in calls])
        except (FailedJobError, FailedSubmissionError) as error:
            cause = str(error).strip().rpartition("\n")[2].removeprefix("sbatch: ")
            raise UserError(
                f"launcher=slurm: {cause}. Start the sweep where sbatch reaches a cluster, with a partition, account "
                "and qos that you may use (hydra.launcher.partition=...)"
            ) from error

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
        subprocess.run(["scancel", *(handle.job_id for handle in handles)], check=False)  # noqa: S603, S607
