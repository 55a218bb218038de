"""Examination by rank, and distance from the truth, against NumPy in float64."""

import math

import numpy as np
import pytest
from metric_updates import updated

from clickexp.metrics import Correlation, Examination, RelativeError, RootMeanSquaredError

RNG = np.random.default_rng(0)
FITTED, TRUE = (RNG.uniform(0.05, 0.95, (50, 4)).astype(np.float32) for _ in range(2))
WHERE = np.arange(4) < RNG.integers(1, 4, 50)[:, None]  # nothing at the last rank
LOGS = {
    name: np.where(WHERE, np.log(x), -np.inf) for name, x in (("fitted", FITTED), ("true", TRUE))
}
OUTPUTS = {
    "attraction_log_probs": LOGS["fitted"],
    "true_attraction_log_probs": LOGS["true"],
    "examination_log_probs": LOGS["fitted"],
    "where": WHERE,
}


def test_examination_is_the_mean_over_the_lists_that_reach_a_rank():
    metric = updated(Examination(), **OUTPUTS)
    expected = [FITTED[WHERE[:, r], r].astype(np.float64).mean() for r in range(3)]
    np.testing.assert_allclose(metric.compute_per_rank(), expected, rtol=1e-6)
    assert metric.compute() == pytest.approx(FITTED[WHERE].astype(np.float64).mean(), rel=1e-6)


def test_root_mean_squared_error_and_correlation():
    fitted, true = (x[WHERE].astype(np.float64) for x in (FITTED, TRUE))
    rmse = updated(RootMeanSquaredError("attraction"), **OUTPUTS)
    assert rmse.compute() == pytest.approx(np.sqrt(np.mean((fitted - true) ** 2)), rel=1e-6)
    correlation = updated(Correlation("attraction"), **OUTPUTS)
    assert correlation.compute() == pytest.approx(np.corrcoef(fitted, true)[0, 1], rel=1e-5)
    half = OUTPUTS | {"attraction_log_probs": LOGS["true"] + math.log(0.5)}
    assert updated(Correlation("attraction"), **half).compute() == pytest.approx(1, rel=1e-5)


def test_a_relative_error_does_not_see_the_scale():
    fitted, true = (x[WHERE].astype(np.float64) for x in (FITTED, TRUE))
    _, residual, _, _ = np.linalg.lstsq(fitted[:, None], true)
    expected = math.sqrt(residual[0] / np.sum(true**2))
    half = OUTPUTS | {"attraction_log_probs": LOGS["fitted"] + math.log(0.5)}
    for outputs in (OUTPUTS, half):
        error = updated(RelativeError("attraction"), **outputs).compute()
        assert error == pytest.approx(expected, rel=1e-6)
    true_half = OUTPUTS | {"attraction_log_probs": LOGS["true"] + math.log(0.5)}
    assert updated(RelativeError("attraction"), **true_half).compute() < 1e-3


def test_a_constant_correlates_with_nothing_and_no_document_is_nan():
    constant = OUTPUTS | {"attraction_log_probs": np.full((50, 4), math.log(0.3), np.float32)}
    assert math.isnan(updated(Correlation("attraction"), **constant).compute())
    errors = RootMeanSquaredError("attraction"), RelativeError("attraction")
    for metric in (Examination(), Correlation("attraction"), *errors):
        assert math.isnan(metric.compute())


def test_the_truth_must_be_given():
    with pytest.raises(TypeError, match="needs true_examination_log_probs"):
        RootMeanSquaredError("examination").update(**OUTPUTS)
