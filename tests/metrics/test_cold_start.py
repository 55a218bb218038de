"""Values by impressions in training against loops over documents in float64."""

import math

import numpy as np
import pytest

from clickexp.metrics import ColdStart, MultiMetric


def outputs(lists=50, ranks=4, seed=0, impressions=None):
    rng = np.random.default_rng(seed)
    shape = (lists, ranks)
    drawn = (
        rng.choice([0, 1, 3, 5, 6, 50, 51, 900], shape)
        if impressions is None
        else np.full(shape, impressions)
    )
    return {
        "conditional_log_probs": np.log(rng.uniform(0.05, 0.9, shape)).astype(np.float32),
        "log_probs": np.log(rng.uniform(0.05, 0.9, shape)).astype(np.float32),
        "clicks": rng.random(shape) < 0.3,
        "where": np.arange(ranks) < rng.integers(1, ranks + 1, lists)[:, None],
        "train_impressions": drawn.astype(np.int32),
    }


def by_loops(given, low, high):
    """ll, ppl and the number of documents with low <= impressions < high."""
    found = []
    for at in zip(*np.nonzero(given["where"]), strict=True):
        if low <= given["train_impressions"][at] < high:
            each = [
                math.exp(np.float64(given[name][at]))
                for name in ("conditional_log_probs", "log_probs")
            ]
            found.append([math.log(p if given["clicks"][at] else 1 - p) for p in each])
    conditional, marginal = np.mean(found, axis=0)
    return conditional, 2 ** (-marginal / math.log(2)), len(found)


def test_each_range_has_its_likelihood_perplexity_and_share():
    given, metric = outputs(), ColdStart()
    metric.update(**given)
    values = MultiMetric(cold=metric).compute()
    total = given["where"].sum()
    for name, (low, high) in {
        "new": (0, 1),
        "1-5": (1, 6),
        "6-50": (6, 51),
        "51+": (51, 10**9),
    }.items():
        ll, ppl, documents = by_loops(given, low, high)
        assert values[f"cold_ll@{name}"] == pytest.approx(ll, rel=1e-5)
        assert values[f"cold_ppl@{name}"] == pytest.approx(ppl, rel=1e-5)
        assert values[f"cold_share@{name}"] == pytest.approx(documents / total, rel=1e-12)


def test_batches_add_up():
    """Up to rounding: the sums of a batch are of float32."""
    parts, metric, whole = [outputs(seed=seed) for seed in (1, 2)], ColdStart(), ColdStart()
    for part in parts:
        metric.update(**part)
    whole.update(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    np.testing.assert_allclose(metric.compute(), whole.compute(), rtol=5e-7)


def test_a_range_without_documents_has_no_value():
    metric = ColdStart()
    metric.update(**outputs(impressions=7))
    values = dict(zip(metric.suffixes, metric.compute(), strict=True))
    assert math.isnan(values["_ll@new"]) and math.isnan(values["_ppl@51+"])
    assert values["_share@6-50"] == 1 and values["_share@new"] == 0
    empty = ColdStart().compute()
    assert np.isnan(empty).all() and empty.size == len(metric.suffixes)


def test_edges_are_chosen():
    metric = ColdStart(edges=[1, 2, 10])
    assert metric.ranges == ["new", "1-1", "2-9", "10+"]
    assert set(metric.higher_is_better) == set(metric.suffixes)
    for edges in ([5, 2], [2, 2], [0, 3], [-1], []):
        with pytest.raises(ValueError, match="that ascend"):
            ColdStart(edges=edges)


def test_impressions_are_needed():
    given = outputs()
    del given["train_impressions"]
    with pytest.raises(TypeError, match="train_impressions"):
        ColdStart().update(**given)
