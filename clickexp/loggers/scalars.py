"""A base for dashboards that take numbers by step."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from clickexp.loggers.base import Logger, Split, Vectors
from clickexp.loggers.values import by_layout, epoch_metrics, final_values, steps_by_rank
from clickexp.runs.run import Run


class ScalarLogger(Logger, ABC):
    """Reports epochs, ranks and final values as numbers by name at a step: a backend states where these go.

    Epochs are steps of train/*, val/* and speed/*; ranks are steps of rank/SPLIT/METRIC, and of rank/NAME/METRIC for
    references such as rank-CTR. Test metrics, intervals and values of the best epoch are final/test/ll and the like.
    """

    @abstractmethod
    def scalars(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        """Reports numbers.

        Args:
            steps: By step, and by name.
        """

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Reports the metrics of an epoch."""
        self.scalars({record["epoch"]: epoch_metrics(record)})

    def per_rank(self, split: Split, values: Vectors) -> None:
        """Reports the values by rank, ranks as steps."""
        self.scalars(steps_by_rank(split, values))

    def reference(self, name: str, values: Vectors) -> None:
        """Reports the values by rank of a reference."""
        self.scalars(steps_by_rank(name, values))

    def result(self, result: Run) -> None:
        """Reports final values at step 0, and curves of layouts and of references."""
        self.scalars({0: {f"final/{name}": value for name, value in final_values(result).items()}})
        self.per_rank("test", by_layout(result))
        for name, reference in result.references.items():
            self.reference(name, reference.per_rank)
