"""What a fitted model is worth on the test set: clicks, rankings, and the truth where it is known."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clickexp.data import Dataset
from clickexp.errors import DataError
from clickexp.metrics import Metric, MultiMetric
from clickexp.models import ClickModel
from clickexp.training.base import BaseTrainer, per_rank
from clickexp.training.inputs import checked

Groups = Mapping[str, Mapping[str, Metric]]


@dataclass(frozen=True)
class Evaluation:
    """Metrics of the test set. clicks, lists: the metrics themselves, of sessions and of labelled lists."""

    clicks: MultiMetric
    lists: MultiMetric | None
    truth: MultiMetric | None

    def result(self) -> dict[str, Any]:
        """`test`: numbers by name; `per_rank`: vectors of one length, rank 1 first; `curves`: what else to draw;
        `higher_is_better`: by name what each metric states.
        """
        parts = [part for part in (self.clicks, self.lists, self.truth) if part is not None]
        test = {name: value for part in parts for name, value in part.compute().items()}
        stated = {name: better for part in parts for name, better in part.higher_is_better.items()}
        return {
            "test": {**test, "loss": -test["ll"]},
            "higher_is_better": {**stated, "loss": False},
            "per_rank": per_rank(self.clicks),
            "curves": self.clicks.compute_curves(),
        }

    def keep(self, dataset: Dataset, folder: Path) -> dict[str, list[float]]:
        """Writes the values of single sessions and lists; returns 95% intervals [low, high] of the metrics."""
        # here, since only such runs need what these import
        from clickexp.metrics.uncertainty import bootstrap_interval
        from clickexp.values import OBSERVED, samples, write_values

        write_values(folder, dataset.test, self.clicks, dataset.ranking, self.lists)
        names = [name for name in self.clicks.compute() if name in OBSERVED]
        names += [name for name in self.lists.values()] if self.lists else []
        intervals = {name: bootstrap_interval(samples(folder, name)) for name in names}
        return {name: [interval.low, interval.high] for name, interval in intervals.items()}


def check_lists(model: ClickModel, dataset: Dataset, metrics: Groups) -> None:
    """DataError where the labelled lists do not fit the model, which is better known before training."""
    if dataset.ranking is not None and metrics.get("ranking"):
        try:
            checked(dataset.ranking, model, model.predict_relevance, "labels")
        except DataError as error:
            raise DataError(f"labelled lists: {error} metric=click leaves them out.") from error


def evaluate(
    model: ClickModel, dataset: Dataset, trainer: BaseTrainer, metrics: Groups, *, keep_values: bool = False
) -> Evaluation:
    """Evaluates on the test sessions and, as far as the dataset has them, labelled lists and the true user.

    metrics: by group: `test` for the sessions, besides those of the trainer's validation; `ranking` for the lists;
    `truth` for fitted against true probabilities.
    """

    def kept(group: Mapping[str, Metric]) -> Mapping[str, Metric]:
        return MultiMetric(group).keep_values().metrics if keep_values else group

    clicks = trainer.evaluate(model, dataset.test, kept({**trainer.metrics, **metrics.get("test", {})}))
    lists = truth = None
    if dataset.ranking is not None and metrics.get("ranking"):
        lists = trainer.evaluate_ranking(model, dataset.ranking, kept(metrics["ranking"]))
    if dataset.truth is not None and metrics.get("truth"):
        truth = trainer.evaluate_truth(model, dataset.truth, dataset.test, metrics["truth"])
    return Evaluation(clicks, lists, truth)
