"""Metrics of Rax against arithmetic and a float64 sort; ties, masks and poison.

Lists are in one shape, for which each function is compiled once.
"""

import functools
import math

import numpy as np
import pytest
import rax

from clickexp.metrics import RaxMetric

FUNCTIONS = [rax.dcg_metric, rax.ndcg_metric, rax.mrr_metric]
LISTS, RANKS, CUTOFF = 30, 10, 3


def measure(metric_fn, scores, labels, where, top_n=None, **settings):
    metric = RaxMetric(metric_fn, top_n, **settings)
    metric.update(scores=scores, labels=labels, where=where)
    return metric.compute()


def measure_one(metric_fn, scores, labels, top_n=None):
    """The value of one short list, in the shape of all."""
    arrays = [np.zeros((LISTS, RANKS), kind) for kind in ("f4", "i4", "?")]
    for array, values in zip(arrays, (scores, labels, np.ones(len(labels))), strict=True):
        array[0, : len(labels)] = values
    return measure(metric_fn, *arrays, top_n=top_n)


def dcg(gains, top_n):
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:top_n], start=1))


def expected(metric_fn, scores, labels, top_n):
    """The metric of one list without ties, by its definition."""
    ranked = [max(labels[i], 0) for i in sorted(range(len(scores)), key=lambda i: -scores[i])]
    if metric_fn is rax.mrr_metric:
        return max(
            [1 / rank for rank, y in enumerate(ranked[:top_n], start=1) if y >= 1], default=0.0
        )
    gains = [2**y - 1 for y in ranked]
    ideal = dcg(sorted(gains, reverse=True), top_n)
    return dcg(gains, top_n) / (1.0 if metric_fn is rax.dcg_metric else ideal or 1.0)


def expected_mean(metric_fn, scores, labels, where, top_n):
    shown = [(s[m], y[m]) for s, y, m in zip(scores, labels, where, strict=True) if m.any()]
    return np.mean([expected(metric_fn, s, y, top_n) for s, y in shown])


def lists(seed, count=LISTS):
    """Scores without ties, labels from -2, and masks with holes; one list has no document."""
    rng = np.random.default_rng(seed)
    scores = rng.permuted(np.tile(np.arange(RANKS), (count, 1)), axis=1).astype(np.float32)
    where = rng.random((count, RANKS)) < 0.7
    where[:, 0] = True
    where[0] = False
    return scores, rng.integers(-2, 5, (count, RANKS)).astype("i4"), where


def test_textbook_values():
    scores, labels = [3.0, 1.0, 2.0, 0.5], [1, 0, 2, 4]
    value = 1 / math.log2(1 + 1) + 3 / math.log2(2 + 1)
    ideal = 15 / math.log2(1 + 1) + 3 / math.log2(2 + 1) + 1 / math.log2(3 + 1)
    assert measure_one(rax.dcg_metric, scores[:3], labels[:3]) == pytest.approx(value)
    assert measure_one(rax.dcg_metric, scores, labels, CUTOFF) == pytest.approx(value)
    assert measure_one(rax.ndcg_metric, scores, labels, CUTOFF) == pytest.approx(value / ideal)
    assert measure_one(rax.mrr_metric, scores[:3], [0, 4, 1]) == pytest.approx(1 / 2)
    assert measure_one(rax.mrr_metric, scores, [0, 0, 0, 4], CUTOFF) == 0


@pytest.mark.parametrize(
    "top_n", [None, CUTOFF, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 20))]
)
def test_matches_the_definition_in_float64(top_n):
    for metric_fn in FUNCTIONS:
        value = expected_mean(metric_fn, *lists(0), top_n)
        assert measure(metric_fn, *lists(0), top_n) == pytest.approx(value, rel=1e-5), (
            metric_fn.__name__
        )


def test_padding_never_counts():
    scores, labels, where = lists(1)
    for metric_fn in FUNCTIONS:
        clean = measure(metric_fn, scores, labels, where, CUTOFF)
        for score in (np.nan, np.inf, -np.inf, 1e6):
            dirty = np.where(where, scores, score), np.where(where, labels, np.nan)
            assert measure(metric_fn, *dirty, where, CUTOFF) == clean, (metric_fn.__name__, score)


def test_lists_without_documents_change_nothing():
    scores, labels, where = lists(2)
    metric = RaxMetric(rax.ndcg_metric, CUTOFF)
    metric.update(scores=scores, labels=labels, where=where)
    before = metric.compute()
    metric.update(scores=scores, labels=labels, where=np.zeros_like(where))
    assert metric.compute() == before
    assert metric.total("lists")[0] == LISTS - 1
    assert (
        measure(lambda s, y, *, where, reduce_fn: s.max(axis=-1) * 0 + 1, scores, labels, where)
        == 1
    )
    assert math.isnan(metric.empty().compute())


def test_spam_counts_as_irrelevant():
    scores = [3.0, 2.0, 1.0]
    spam, irrelevant = ([-2, 1, -1], [0, 1, 0])
    assert measure_one(rax.dcg_metric, scores, spam) == measure_one(
        rax.dcg_metric, scores, irrelevant
    )


def test_a_constant_score_has_the_dcg_of_a_random_ranking():
    """Wherever the relevant document stands."""
    labels = np.tile(np.eye(RANKS), (3, 1)) * 3
    scores = np.repeat([0.0, -np.inf, np.inf], RANKS)[:, None] + np.zeros(RANKS)
    discounts = [1 / math.log2(rank + 1) for rank in range(1, RANKS + 1)]
    for top_n in (None, CUTOFF):
        random_dcg = (2**3 - 1) * sum(discounts[:top_n]) / RANKS
        for row in range(LISTS):
            where = np.repeat(np.arange(LISTS) == row, RANKS).reshape(LISTS, RANKS)
            value = measure(rax.dcg_metric, scores, labels, where, top_n)
            assert value == pytest.approx(random_dcg, rel=1e-5), (scores[row, 0], labels[row])


@pytest.mark.parametrize("orders", [3, pytest.param(10, marks=pytest.mark.nightly)])
def test_ties_within_a_padded_list_are_fair_wherever_the_relevant_document_stands(orders):
    count = 2000
    scores = np.tile([9.0, 1.0, 1.0, 0.0, 1.0, 1.0], (count, 1))  # the tied fill ranks 2 to 4
    where = np.tile([True, True, True, True, True, False], (count, 1))
    discounts = [1 / math.log2(rank + 1) for rank in (2, 3, 4)]
    for place in (1, 2, 4):
        value = measure(rax.dcg_metric, scores, np.eye(6)[[place] * count], where, orders=orders)
        assert value == pytest.approx(
            np.mean(discounts), abs=5 * np.std(discounts) / math.sqrt(count)
        ), place


def test_a_document_with_log_zero_is_ranked_last_not_dropped():
    value = measure_one(rax.dcg_metric, [-np.inf, -1.0, -2.0], [1, 0, 0])
    assert value == pytest.approx(1 / math.log2(3 + 1))


def test_a_score_of_nan_is_an_error_that_names_the_batch():
    scores, labels, where = lists(3)
    outputs = {"scores": scores, "labels": labels.astype(np.float32), "where": where}
    metric = RaxMetric(rax.ndcg_metric, CUTOFF)
    metric.update(**outputs)
    before = metric.compute()
    outputs["scores"][5, 0] = np.nan
    with pytest.raises(ValueError, match=r"RaxMetric\(ndcg_metric, top_n=3\): 1 lists of batch 2 "):
        metric.update(**outputs)
    assert metric.compute() == before


def test_short_batches_weigh_by_lists_and_merging_equals_one_pass():
    scores, labels, where = lists(4, LISTS + 3)
    parts = [slice(0, LISTS), slice(LISTS, LISTS + 3)]
    metrics = [RaxMetric(rax.dcg_metric, CUTOFF) for _ in parts]
    one_pass = RaxMetric(rax.dcg_metric, CUTOFF)
    for metric, part in zip(metrics, parts, strict=True):
        for target in (metric, one_pass):
            target.update(scores=scores[part], labels=labels[part], where=where[part])
    assert metrics[1].merge(metrics[0]).compute() == one_pass.compute()
    value = expected_mean(rax.dcg_metric, scores, labels, where, CUTOFF)
    assert one_pass.compute() == pytest.approx(value, rel=1e-6)


def test_settings_must_agree_to_merge():
    with pytest.raises(TypeError, match="top_n=5.*top_n=10"):
        RaxMetric(rax.dcg_metric, 5).merge(RaxMetric(rax.dcg_metric, 10))


def test_one_trace_a_shape():
    traces = []

    @functools.wraps(rax.dcg_metric)
    def counted(*args, **kwargs):
        traces.append(1)
        return rax.dcg_metric(*args, **kwargs)

    metric = RaxMetric(counted, top_n=2)
    for seed in range(3):
        metric.update(**dict(zip(("scores", "labels", "where"), lists(seed), strict=True)))
    metric.empty().update(scores=np.zeros((LISTS, RANKS)), labels=np.zeros((LISTS, RANKS)))
    assert len(traces) == 1


def test_missing_arguments_and_differing_shapes_are_named():
    with pytest.raises(TypeError, match="needs labels, and was passed scores"):
        RaxMetric(rax.dcg_metric).update(scores=np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"\(1, 2\), \(1, 3\), \(1, 2\)"):
        RaxMetric(rax.dcg_metric).update(scores=np.zeros((1, 2)), labels=np.zeros((1, 3)))
