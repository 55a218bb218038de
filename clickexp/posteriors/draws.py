"""Metrics over the posterior: how much a test value may differ, given what is known of each document."""

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from clickexp.data import Dataset
from clickexp.evaluation.evaluator import USUAL, Evaluator, Groups
from clickexp.evaluation.groups import HeldOut
from clickexp.models.base import Model

_INTERVAL = (0.025, 0.975)
"""Quantiles that bound a 95% interval."""


class PosteriorInterval(NamedTuple):
    """A metric over models drawn from the posterior.

    Attributes:
        mean: Mean over the draws.
        low: Lower bound of the central 95% of the draws.
        high: Upper bound of it.
    """

    mean: float
    low: float
    high: float


def evaluate_draws(
    model: Model,
    dataset: Dataset,
    metrics: Groups,
    evaluator: Evaluator = USUAL,
    *,
    draws: int,
    seed: int = 0,
) -> dict[str, PosteriorInterval]:
    """Evaluates models drawn from the posteriors of tables on the test sessions and labelled lists.

    The predictions of the model itself integrate over the posteriors, so that its log-likelihood lies above the mean
    over draws. The intervals show what training data leaves open of the parameters, those of `keep_values` what the
    choice of test queries does. Murphy 2022, "Probabilistic machine learning:
    advanced topics", section 9.7.4.

    Args:
        model: A fitted model.
        dataset: Its test part is used.
        metrics: Metrics by group, of which `truth` is left out.
        evaluator: How many sessions at a time, and the logger.
        draws: Number of models; one program evaluates all of them.
        seed: Of the draws.

    Returns:
        An interval per value; none without draws, or where no table of the model has posteriors.
    """
    if not draws or not model.has_posteriors:
        return {}
    keys = jax.random.split(jax.random.key(seed), draws)
    first = model.sample_parameters(keys[0])
    groups = {name: group for name, group in metrics.items() if name != "truth"}
    run = evaluator.compiled(first, HeldOut.test(dataset), groups)
    others = map(model.sample_parameters, keys[1:])
    drawn = [
        run(evaluator.state_of(sample), "test").values()
        for sample in itertools.chain([first], others)
    ]
    return {name: _interval([values[name] for values in drawn]) for name in drawn[0]}


def _interval(values: list[float | int]) -> PosteriorInterval:
    low, high = np.quantile(values, _INTERVAL)
    return PosteriorInterval(float(np.mean(values)), float(low), float(high))


def as_result(intervals: Mapping[str, PosteriorInterval]) -> dict[str, dict[str, float]]:
    """Returns what result.json holds of them: mean, low and high by name."""
    return {name: interval._asdict() for name, interval in intervals.items()}
