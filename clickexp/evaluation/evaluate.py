"""What a fitted model is worth on the test set: clicks, rankings, and the truth where it is known."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clickexp.data import Dataset
from clickexp.errors import DataError
from clickexp.evaluation.inputs import checked
from clickexp.evaluation.model_evaluator import ModelEvaluator, per_rank
from clickexp.metrics import Metric, MultiMetric
from clickexp.models import ClickModel

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
        from clickexp.evaluation.per_query import OBSERVED, samples, write_values
        from clickexp.evaluation.significance import bootstrap_interval

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
    model: ClickModel,
    dataset: Dataset,
    metrics: Groups,
    evaluator: ModelEvaluator | None = None,
    *,
    keep_values: bool = False,
) -> Evaluation:
    """Evaluates on the test sessions and, as far as the dataset has them, labelled lists and the true user.

    Args:
        metrics: By group: `click` and `test` for the sessions, `ranking` for the lists, `truth` for fitted against
            true probabilities.
        evaluator: How many sessions at a time, and the logger.
        keep_values: Whether metrics keep the values of single sessions and lists.
    """

    def kept(group: Mapping[str, Metric]) -> Mapping[str, Metric]:
        return MultiMetric(group).keep_values().metrics if keep_values else group

    evaluator = evaluator or ModelEvaluator()
    clicks = evaluator.clicks(model, dataset.test, kept({**metrics["click"], **metrics.get("test", {})}))
    lists = truth = None
    if dataset.ranking is not None and metrics.get("ranking"):
        lists = evaluator.ranking(model, dataset.ranking, kept(metrics["ranking"]))
    if dataset.truth is not None and metrics.get("truth"):
        truth = evaluator.truth(model, dataset.truth, dataset.test, metrics["truth"])
    return Evaluation(clicks, lists, truth)
