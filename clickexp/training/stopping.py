"""Early stopping."""

import dataclasses
import math
from typing import Annotated, ClassVar

from annotated_types import Ge
from flax.training import early_stopping as flax_stopping
from pydantic import AllowInfNan

from clickexp.errors import ConfigError
from clickexp.runs.objective import Stated, higher_is_better
from clickexp.utils.bounds import NonNegativeInt, OneOf, check_numbers


@dataclasses.dataclass
class EarlyStopping:
    """Stops after more than `patience` epochs in a row that do not improve `metric` by more than `min_delta`.

    The rule of Flax's EarlyStopping, except that nan and infinitely bad values never improve. Once learning rates have
    fallen, the last of the epochs that are equally good, to `min_delta`, counts as the best: it has the least of the
    noise that steps leave in parameters.

    Attributes:
        metric: Name of a validation metric.
        patience: Epochs without improvement after which training continues.
        min_delta: Smaller changes are no improvement.
        mode: "min", "max", or "auto", the way that the metric states (`higher_is_better`).
        keeps_last: Whether the model is that of the last epoch, and not that of the best.
    """

    keeps_last: ClassVar[bool] = False

    metric: str = "loss"
    patience: NonNegativeInt = 1
    min_delta: Annotated[float, Ge(0), AllowInfNan()] = 1e-5
    mode: Annotated[str, OneOf("auto", "min", "max")] = "auto"

    def __post_init__(self) -> None:
        check_numbers(type(self).__init__, vars(self))
        self.reset()

    def directed(self, stated: Stated) -> "EarlyStopping":
        """A fresh copy with the mode that "auto" means.

        Args:
            stated: Which way metrics are better, by name; see `clickexp.runs.objective.higher_is_better`.

        Raises:
            ConfigError: It is not known.
        """
        better = higher_is_better(self.metric, stated)
        if self.mode == "auto" and better is None:
            raise ConfigError(
                f"early_stopping.metric={self.metric}: the metric does not state which way it is better. Set "
                "higher_is_better = True or False in its class, or early_stopping.mode=min or max"
            )
        return dataclasses.replace(
            self, mode=self.mode if self.mode != "auto" else "max" if better else "min"
        )

    def reset(self) -> None:
        """Forgets all epochs."""
        self.best = math.inf
        self.failures = 0
        self.lowered = False

    def restart(self) -> None:
        """Counts failures from 0, at lower learning rates."""
        self.failures, self.lowered = 0, True

    def update(self, values: dict[str, float]) -> bool:
        """Whether this epoch is the best so far, or after a fall of learning rates as good as the best."""
        if self.mode == "auto":
            self.mode = self.directed({}).mode
        value = values[self.metric] if self.mode == "min" else -values[self.metric]
        improved = self.best - value > self.min_delta
        as_good = self.lowered and value <= self.best + self.min_delta
        self.best = min(value, self.best) if improved else self.best
        self.failures = 0 if improved else self.failures + 1
        return improved or as_good

    @property
    def should_stop(self) -> bool:
        """Whether there were too many epochs without improvement."""
        return self.failures > self.patience


class KeepLast(EarlyStopping):
    """Trains all epochs and keeps the last, the best or not: the rule of a trainer without early stopping."""

    keeps_last = True

    @property
    def should_stop(self) -> bool:
        """Whether there were too many epochs without improvement: never."""
        return False


Stopping = EarlyStopping | flax_stopping.EarlyStopping | None
"""Rules that trainers take: see `early_stopping_of`."""


def early_stopping_of(rule: object) -> EarlyStopping | None:
    """The rule that a trainer follows, from ours, Flax's, or None for no early stopping.

    Args:
        rule: `flax.training.early_stopping.EarlyStopping` means the same min_delta and patience on the validation
            loss. The count starts from zero, whatever the instance has seen.

    Raises:
        ConfigError: It is anything else.
    """
    match rule:
        case None | EarlyStopping():
            return rule
        case flax_stopping.EarlyStopping():
            return EarlyStopping(patience=rule.patience, min_delta=float(rule.min_delta))
    raise ConfigError(
        f"early_stopping={rule!r}: give clickexp.EarlyStopping(...), "
        "flax.training.early_stopping.EarlyStopping(...), or None to train all epochs"
    )
