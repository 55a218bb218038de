"""Early stopping."""

import dataclasses
import math
from typing import Annotated

from clickexp.bounds import Bounds, NonNegativeInt, check_values
from clickexp.errors import ConfigError
from clickexp.objective import lower_is_better


@dataclasses.dataclass
class EarlyStopping:
    """Stops after more than `patience` epochs in a row that do not improve `metric` by more than `min_delta`.

    metric: name of a validation metric. mode: "min", "max", or "auto", which minimises losses and
    perplexities and maximises everything else.
    """

    metric: str = "loss"
    patience: NonNegativeInt = 1
    min_delta: Annotated[float, Bounds(least=0, infinite=True)] = 1e-5
    mode: str = "auto"

    def __post_init__(self) -> None:
        check_values(type(self).__init__, {"patience": self.patience, "min_delta": self.min_delta})
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
        improved = value < self.best - self.min_delta
        self.best = min(value, self.best) if improved else self.best
        self.failures = 0 if improved else self.failures + 1
        return improved

    @property
    def should_stop(self) -> bool:
        return self.failures > self.patience
