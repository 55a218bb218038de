"""The epochs of a training, whatever one pass over the data does: validation, stopping, best state, checkpoint."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clickexp.data import Sessions
from clickexp.data.feed import Compiled, Data, fingerprint
from clickexp.errors import ConfigError, DivergedError, UserError
from clickexp.evaluation.evaluation import RankVectors
from clickexp.evaluation.evaluator import CompiledEvaluation, ModelState
from clickexp.loggers.base import Logger
from clickexp.models.base import Model
from clickexp.training.checkpoint import check_same, load_training, save_training
from clickexp.training.spread import OneDevice
from clickexp.training.stopping import EarlyStopping
from clickexp.utils import hosts
from clickexp.utils.memory import return_freed_memory


@dataclasses.dataclass(frozen=True)
class FitReport:
    """Report of a training.

    Attributes:
        epochs: Passes over the training data.
        best_epoch: The epoch whose state the model is left in, from 1; 0 if none improved it.
        sessions: Training sessions, each as often as it was passed.
        seconds: Wall time with data loading and validation.
        compile_seconds: The compilation inside it, which depends on what was compiled before.
        history: One record per epoch, as loggers receive it.
        per_rank: Validation metrics of the best epoch by rank.
        documents: How many training documents each row of a table with a prior serves, those of earlier logs included,
            and at which ranks; None of trainings without posteriors.
    """

    epochs: int
    best_epoch: int
    sessions: int
    seconds: float
    compile_seconds: float
    history: list[dict[str, Any]]
    per_rank: RankVectors
    documents: Mapping[tuple, Any] | None = None

    @property
    def training_seconds(self) -> float:
        """Wall time without compilation."""
        return self.seconds - self.compile_seconds

    @property
    def sessions_per_second(self) -> float:
        """Training sessions per second of `training_seconds`."""
        return self.sessions / max(self.training_seconds, 1e-9)

    def summary(self) -> dict[str, int | float]:
        """The numbers that result.json holds."""
        fields = ("epochs", "best_epoch", "sessions")
        times = ("seconds", "compile_seconds", "training_seconds", "sessions_per_second")
        return {name: getattr(self, name) for name in (*fields, *times)}


class Learner:
    """The part of a trainer that changes a model in one pass over the training data.

    Attributes:
        passes: Passes at most.
        warmup_passes: The first passes, whose states are kept only until a later one: not everything is learned yet.
        devices: What lies where.
        state: Everything that passes change, a pytree of arrays, on the devices.
        like: Shapes of what a checkpoint holds: the state and a snapshot, on one device.
        programs: What is compiled, for the report.
        settings: What else has to be the same where a training continues, by name.

    Args:
        state: That before the first pass, on one device.
        devices: What lies where.
    """

    passes: int
    warmup_passes: int = 0
    programs: Sequence[Compiled] = ()
    settings: Mapping[str, Any] = {}

    def __init__(self, state: Any, devices: OneDevice):
        self.devices = devices
        self.like = jax.eval_shape(lambda state: (state, self.snapshot(state, None)), state)
        self.state: Any = devices.lay(state)

    def compile(self, data: Data) -> ModelState | None:
        """Compiles ahead of the first pass over the data, in a thread.

        Returns:
            Shapes of the model's state, as evaluators take it; None where they show only later.
        """
        return None

    def start(self, data: Data) -> None:
        """Prepares for the first pass; not called where a training continues."""

    def documents(self, data: Data) -> Mapping[tuple, Any] | None:
        """Those that rows of tables serve, by table; see `FitReport`."""
        return None

    def run_pass(self, data: Data, epoch: int) -> tuple[float | None, int]:
        """One pass.

        Returns:
            The mean training loss per document, if it is known, and the number of sessions.
        """
        raise NotImplementedError

    def decay(self) -> bool:
        """Lowers the learning rates where validation no longer improves; False where training should rather stop."""
        return False

    def model_state(self) -> ModelState:
        """The model's state, as evaluators take it."""
        raise NotImplementedError

    def snapshot(self, state: Any, old: Any) -> Any:
        """The part of the state that `restore` needs, in separate arrays; pure, so that it is compiled.

        Args:
            state: That of the learner.
            old: An earlier snapshot, whose memory is used, or None.
        """
        return jax.tree.map(jnp.copy, state)  # else jit returns its arguments

    def restore(self, model: Model, best: Any) -> None:
        """Puts a snapshot into the model; None where no epoch was an improvement."""
        raise NotImplementedError

    def resume(self, state: Any) -> None:
        """Takes up the state from a checkpoint."""
        self.state = state

    def release(self) -> None:
        """Frees the state of a training that is over; the learner and what it has compiled refer to each other."""
        self.state = None


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A file that keeps the whole state of a training, so that an interrupted one continues to the same numbers.

    Attributes:
        file: Its path; None for no checkpoints.
        seconds: Least time between two.
        earlier: The file to continue from, where it is an error if training cannot; None for `file`, if there is one.
        settings: Names and values of what makes a training what it is, such as its learning rate.
    """

    file: Path | None = None
    seconds: float = 0.0
    earlier: Path | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_MANY_FEATURES = 100_000
"""Rows of features that are looked at for a remedy."""
_LARGE_FEATURE = 1e15
"""Features beyond it have squares whose sums float32 may not hold."""
_NO_SESSIONS = "there are no {} sessions; batches must come again each time they are iterated"
_RISE = 0.01
"""Share of the validation loss by which the last epoch may be worse than the best one without a warning."""
_COURSE = ("best_epoch", "per_rank", "history")
"""Attributes of a loop that checkpoints keep besides arrays and times."""


class Loop:
    """One training.

    Args:
        learner: What one pass does.
        validation: What is computed on held-out data after each.
        stopping: Which epochs are improvements, and when to stop.
        logger: Receives records, progress and messages.
        checkpoint: Where to continue from, and what to write.
    """

    def __init__(
        self,
        learner: Learner,
        validation: CompiledEvaluation,
        stopping: EarlyStopping,
        logger: Logger,
        checkpoint: Checkpoint,
    ):
        self.learner, self.validation = learner, validation
        self.logger, self.checkpoint = logger, checkpoint
        self.stopping = dataclasses.replace(stopping)
        self.snapshot = Compiled(learner.snapshot, donate_argnums=1, keep_unused=True)
        self.best: Any = None
        self.best_epoch = 0
        self.per_rank: RankVectors = {}
        self.history: list[dict[str, Any]] = []
        self.start = self.saved = time.perf_counter()
        self.earlier = {"seconds": 0.0, "compile_seconds": 0.0}

    def times(self) -> dict[str, float]:
        """Wall time so far and the compilation inside it, before an interruption included."""
        programs = self.snapshot, *self.learner.programs, *self.validation.programs
        compiled = sum(program.seconds for program in programs)
        return {
            "seconds": self.earlier["seconds"] + time.perf_counter() - self.start,
            "compile_seconds": self.earlier["compile_seconds"] + compiled,
        }

    def compile(self, train: Data) -> None:
        """Compiles ahead of the first epoch what can be; in a thread."""
        state = self.learner.compile(train)
        if state is not None:
            self.validation.compile(state)

    def run(self, train: Data, val: Data) -> None:
        """Trains until early stopping ends it, or as long as the learner does.

        Raises:
            DivergedError: The training loss is not finite.
            ConfigError: The checkpoint must be continued from and cannot be, or there are no sessions.
        """
        for part, data in (("training", train), ("validation", val)):
            if isinstance(data, Sessions) and not data.count:
                raise ConfigError(_NO_SESSIONS.format(part))
        same = self._same(train, val)
        if not self._continues(same):
            self.learner.start(train)
            return_freed_memory()
        for epoch in range(len(self.history) + 1, self.learner.passes + 1):
            if self._epoch(train, epoch):
                return
            self._save(same)
        if self.stopping.keeps_last:
            self._warn_of_rise()

    def _epoch(self, train: Data, epoch: int) -> bool:
        """One pass and its validation; whether training should stop."""
        before = self.times()
        loss, sessions = self.learner.run_pass(train, epoch)
        if not sessions:
            raise ConfigError(_NO_SESSIONS.format("training"))
        values, per_rank = self._validated(epoch)
        if epoch <= self.learner.warmup_passes + 1:
            self.stopping.reset()
        improved = self.stopping.update(values)
        spent = {name: seconds - before[name] for name, seconds in self.times().items()}
        losses = {} if loss is None else {"train/loss": loss}
        validated = {f"val/{name}": value for name, value in values.items()}
        passed = {"sessions": sessions, "improved": improved}
        record = {"epoch": epoch, **losses, **validated, **spent, **passed}
        self.history.append(record)
        self.logger.epoch(record)
        if loss is not None and not math.isfinite(loss):
            raise DivergedError(f"the training loss is {loss} in epoch {epoch}. {_remedy(train)}")
        if improved or self.stopping.keeps_last:
            self.best = self.snapshot(self.learner.state, self.best)
            self.best_epoch, self.per_rank = epoch, per_rank
        return self._ends(epoch)

    def _validated(self, epoch: int) -> tuple[dict[str, float], RankVectors]:
        """The values of a validation, and those per rank."""
        evaluation = self.validation(self.learner.model_state(), "val", epoch)
        values, per_rank = evaluation.values(), evaluation.per_rank()
        if math.isnan(values["loss"]) and not any(per_rank.get("sessions", [True])):
            raise ConfigError(_NO_SESSIONS.format("validation"))
        return values, per_rank

    def _warn_of_rise(self) -> None:
        """Warns where an earlier epoch has predicted validation sessions better than the last one, which is kept."""
        losses = [record["val/loss"] for record in self.history]
        best = min(range(len(losses)), key=losses.__getitem__, default=0)
        if losses and losses[-1] > (1 + _RISE) * losses[best]:
            self.logger.warning(
                f"validation loss rises from {losses[best]:.4f} after epoch {best + 1} to {losses[-1]:.4f} at the end, "
                "whose model is kept: parameters fit chance. Fewer epochs or iterations, stronger priors, or "
                "early_stopping help"
            )

    def _ends(self, epoch: int) -> bool:
        """Whether training should stop after a pass; learning rates that can fall do so instead."""
        if not self.stopping.should_stop:
            return False
        if not self.learner.decay():
            return True
        self.stopping.restart()
        self.logger.message(f"learning rates are lowered after epoch {epoch}")
        return False

    def report(self, train: Data) -> FitReport:
        """Report of what was run on the training sessions."""
        sessions = sum(record["sessions"] for record in self.history)
        seconds, compiling = self.times().values()
        epochs = len(self.history)
        return FitReport(
            epochs,
            self.best_epoch,
            sessions,
            seconds,
            compiling,
            self.history,
            self.per_rank,
            self.learner.documents(train),
        )

    def release(self) -> None:
        """Frees the arrays of a training that is over."""
        self.best = None
        self.learner.release()

    def _same(self, train: Data, val: Data) -> dict[str, Mapping[str, Any]]:
        """Facts that have to be the same where training continues, besides the structure of its arrays."""
        data = {"training data": fingerprint(train), "validation data": fingerprint(val)}
        return {"settings": self.checkpoint.settings, "of": {**self.learner.settings, **data}}

    def _save(self, same: Mapping[str, Any]) -> None:
        """Writes the checkpoint if it is time to; a full disk is no reason to stop."""
        file = self.checkpoint.file
        if file is None or not hosts.broadcast(self._is_due()):
            return
        best = self.snapshot(self.learner.state, None) if self.best is None else self.best
        rule = {name: getattr(self.stopping, name) for name in ("best", "failures", "lowered")}
        course = {name: getattr(self, name) for name in _COURSE}
        facts = {**same, **course, "stopping": rule, "earlier": self.times()}
        blocks = self.learner.devices.blocks((self.learner.state, best), self.learner.like)
        try:
            if jax.process_index() == 0:
                save_training(file, blocks, facts)
        except OSError as error:
            self.logger.warning(f"cannot write {file}: {error}")
        for _ in blocks:  # processes exchange also what nobody writes
            pass
        self.saved = time.perf_counter()

    def _is_due(self) -> bool:
        return time.perf_counter() - self.saved >= self.checkpoint.seconds

    def _continues(self, same: Mapping[str, Any]) -> bool:
        """Takes up the training that left the checkpoint; False where there is none that fits."""
        file = self.checkpoint.earlier or self.checkpoint.file
        stored = self._stored(file, same)
        if hosts.broadcast(stored is not None) != (stored is not None):
            raise UserError(
                f"{file}: not all processes can read it. Hosts share the folder of a run."
            )
        if stored is None:
            return False
        (state, best), facts = stored
        self.learner.resume(state)
        vars(self).update({name: facts[name] for name in (*_COURSE, "earlier")})
        self.best = best if self.best_epoch else None
        vars(self.stopping).update(facts["stopping"])
        for record in self.history:
            self.logger.epoch(record)
        self.logger.message(f"training continues after epoch {len(self.history)}")
        return True

    def _stored(
        self, file: Path | None, same: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """The arrays and facts in a checkpoint; None where there is none that fits."""
        must_continue = self.checkpoint.earlier is not None
        if file is None or not file.exists():
            if must_continue:
                raise ConfigError(f"{file}: there is no checkpoint to continue from")
            return None
        try:
            check_same(file, same)
            trained, facts = load_training(file, self.learner.like, self.learner.devices)
            new = [
                name for name in self.validation.names if f"val/{name}" not in facts["history"][-1]
            ]
            if new:
                raise ValueError(f"its epochs were not validated by {', '.join(new)}")
        except ValueError as error:
            if must_continue:
                raise ConfigError(
                    f"the checkpoint to continue from cannot be used: {error}. Give what it is of, or train anew "
                    "without continue_from."
                ) from error
            self.logger.warning(
                f"training starts from scratch, since {file} cannot be used: {error}"
            )
            return None
        return trained, facts


def _remedy(train: Data) -> str:
    """Returns the remedy where a loss is no number."""
    features = train.features if isinstance(train, Sessions) else None
    if features is not None:
        largest = np.nanmax(np.abs(features.values[:_MANY_FEATURES]), initial=0.0)
        if largest > _LARGE_FEATURE:
            return f"Features reach {largest:.0e}, so scale them; dataset=letor does by dataset.transform=log1p."
    return "Lower the learning rate."
