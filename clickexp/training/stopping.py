"""Early stopping."""

import dataclasses
import math

from flax.training import early_stopping as flax_stopping

from clickexp.errors import ConfigError
from clickexp.objective import lower_is_better


@dataclasses.dataclass
class EarlyStopping:
    """Stops after more than `patience` epochs in a row that do not improve `metric` by more than `min_delta`.

    metric: name of a validation metric. mode: "min", "max", or "auto", which minimises losses and
    perplexities and maximises everything else.
    """

    metric: str = "loss"
    patience: int = 1
    min_delta: float = 1e-5
    mode: str = "auto"

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "min", "max"):
            raise ConfigError(f"early_stopping.mode is auto, min or max, not {self.mode!r}")
        lower = lower_is_better(self.metric) if self.mode == "auto" else self.mode == "min"
        self.sign = 1.0 if lower else -1.0
        self.reset()

    def reset(self) -> None:
        self.best = math.inf
        self.failures = 0

    def update(self, values: dict[str, float]) -> bool:
        """Whether this epoch is the best so far. A value that is not a number is no improvement."""
        value = self.sign * values[self.metric]
        improved = self.best - value > self.min_delta
        self.best = min(value, self.best) if improved else self.best
        self.failures = 0 if improved else self.failures + 1
        return improved

    @property
    def should_stop(self) -> bool:
        return self.failures > self.patience


Stopping = EarlyStopping | flax_stopping.EarlyStopping | None
"""What trainers take: see `early_stopping_of`."""


def early_stopping_of(given: object) -> EarlyStopping | None:
    """The rule that a trainer follows, from ours, Flax's, or None for no early stopping.

    Args:
        given: `flax.training.early_stopping.EarlyStopping` means the same min_delta and patience on the validation
            loss. Training starts from a fresh count, whatever the instance has seen.

    Raises:
        ConfigError: for anything else.
    """
    match given:
        case None | EarlyStopping():
            return given
        case flax_stopping.EarlyStopping():
            return EarlyStopping(patience=given.patience, min_delta=float(given.min_delta))
    raise ConfigError(
        f"early_stopping={given!r}: give clickexp.EarlyStopping(...), "
        "flax.training.early_stopping.EarlyStopping(...), or None to train all epochs"
    )
