"""Metrics of Rax against arithmetic and a float64 sort; ties, masks and poison."""

import functools
import math

import numpy as np
import pytest
import rax

from clickexp.metrics import RaxMetric

FUNCTIONS = [rax.dcg_metric, rax.ndcg_metric, rax.mrr_metric]


def measure(metric_fn, scores, labels, where=None, top_n=None, **settings):
    metric = RaxMetric(metric_fn, top_n, **settings)
    metric.update(scores=np.asarray(scores), labels=np.asarray(labels), where=where)
    return metric.compute()


def dcg(gains, top_n):
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:top_n], start=1))


def expected(metric_fn, scores, labels, top_n):
    """The metric of one list without ties, by its definition."""
    ranked = [max(labels[i], 0) for i in sorted(range(len(scores)), key=lambda i: -scores[i])]
    if metric_fn is rax.mrr_metric:
        return max([1 / rank for rank, y in enumerate(ranked[:top_n], start=1) if y >= 1], default=0.0)
    gains = [2**y - 1 for y in ranked]
    ideal = dcg(sorted(gains, reverse=True), top_n)
    return dcg(gains, top_n) / (1.0 if metric_fn is rax.dcg_metric else ideal or 1.0)


def lists(seed, count, ranks):
    """Scores without ties, labels from -2, and masks with holes; one list has no document."""
    rng = np.random.default_rng(seed)
    scores = rng.permuted(np.tile(np.arange(ranks), (count, 1)), axis=1).astype(np.float32)
    where = rng.random((count, ranks)) < 0.7
    where[:, 0] = True
    where[0] = False
    return scores, rng.integers(-2, 5, (count, ranks)), where


def test_textbook_values():
    scores, labels = [[3.0, 1.0, 2.0]], [[1, 0, 2]]
    value = 1 / math.log2(1 + 1) + 3 / math.log2(2 + 1)
    ideal = 3 / math.log2(1 + 1) + 1 / math.log2(2 + 1)
    assert measure(rax.dcg_metric, scores, labels) == pytest.approx(value)
    assert measure(rax.dcg_metric, scores, labels, top_n=1) == pytest.approx(1.0)
    assert measure(rax.ndcg_metric, scores, labels, top_n=2) == pytest.approx(value / ideal)
    assert measure(rax.mrr_metric, [[3.0, 1.0, 2.0]], [[0, 4, 1]]) == pytest.approx(1 / 2)
    assert measure(rax.mrr_metric, [[3.0, 1.0, 2.0]], [[0, 4, 0]], top_n=2) == 0


@pytest.mark.parametrize("top_n", [None, 1, 3, 20])
@pytest.mark.parametrize("metric_fn", FUNCTIONS)
def test_matches_the_definition_in_float64(metric_fn, top_n):
    scores, labels, where = lists(0, 30, 7)
    shown = [(s[m], y[m]) for s, y, m in zip(scores, labels, where, strict=True) if m.any()]
    values = [expected(metric_fn, s, y, top_n) for s, y in shown]
    assert measure(metric_fn, scores, labels, where, top_n) == pytest.approx(np.mean(values), rel=1e-5)


@pytest.mark.parametrize("metric_fn", FUNCTIONS)
def test_padding_never_counts(metric_fn):
    scores, labels, where = lists(1, 12, 6)
    clean = measure(metric_fn, scores, labels, where, top_n=3)
    for score in (np.nan, np.inf, -np.inf, 1e6):
        dirty = np.where(where, scores, score), np.where(where, labels, np.nan)
        assert measure(metric_fn, *dirty, where, top_n=3) == clean


def test_lists_without_documents_change_nothing():
    scores, labels, where = lists(2, 12, 6)
    metric = RaxMetric(rax.ndcg_metric, top_n=5)
    metric.update(scores=scores, labels=labels, where=where)
    before = metric.compute()
    metric.update(scores=scores, labels=labels, where=np.zeros_like(where))
    assert metric.compute() == before
    assert metric.total("lists")[0] == 11
    assert measure(lambda s, y, *, where, reduce_fn: s.max(axis=-1) * 0 + 1, scores, labels, where) == 1
    assert math.isnan(metric.empty().compute())


def test_spam_counts_as_irrelevant():
    scores = [[3.0, 2.0, 1.0]]
    assert measure(rax.dcg_metric, scores, [[-2, 1, -1]]) == measure(rax.dcg_metric, scores, [[0, 1, 0]])


@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("score", [0.0, -np.inf, np.inf])
def test_a_constant_score_has_the_dcg_of_a_random_ranking(place, score):
    labels = np.eye(10)[[place]] * 3
    random_dcg = (2**3 - 1) * np.mean([1 / math.log2(rank + 1) for rank in range(1, 11)])
    assert measure(rax.dcg_metric, np.full((1, 10), score), labels) == pytest.approx(random_dcg, rel=1e-5)
    at_3 = (2**3 - 1) * sum(1 / math.log2(rank + 1) for rank in range(1, 4)) / 10
    assert measure(rax.dcg_metric, np.full((1, 10), score), labels, top_n=3) == pytest.approx(at_3, rel=1e-5)


@pytest.mark.parametrize("orders", [3, 10])
@pytest.mark.parametrize("place", [1, 2, 4])
def test_ties_within_a_padded_list_are_fair_wherever_the_relevant_document_stands(place, orders):
    count = 2000
    scores = np.tile([9.0, 1.0, 1.0, 0.0, 1.0, 1.0], (count, 1))  # the tied fill ranks 2 to 4
    where = np.tile([True, True, True, True, True, False], (count, 1))
    value = measure(rax.dcg_metric, scores, np.eye(6)[[place] * count], where, orders=orders)
    discounts = [1 / math.log2(rank + 1) for rank in (2, 3, 4)]
    assert value == pytest.approx(np.mean(discounts), abs=5 * np.std(discounts) / math.sqrt(count))


def test_a_document_with_log_zero_is_ranked_last_not_dropped():
    value = measure(rax.dcg_metric, [[-np.inf, -1.0, -2.0]], [[1, 0, 0]])
    assert value == pytest.approx(1 / math.log2(3 + 1))


@pytest.mark.parametrize("poisoned", ["scores", "labels"])
def test_nan_is_an_error_that_names_the_batch(poisoned):
    scores, labels, where = lists(3, 8, 4)
    outputs = {"scores": scores, "labels": labels.astype(np.float32), "where": where}
    metric = RaxMetric(rax.ndcg_metric, top_n=3)
    metric.update(**outputs)
    before = metric.compute()
    outputs[poisoned][5, 0] = np.nan
    with pytest.raises(ValueError, match=r"RaxMetric\(ndcg_metric, top_n=3\): 1 lists of batch 2 hold a NaN"):
        metric.update(**outputs)
    assert metric.compute() == before


def test_short_batches_weigh_by_lists_and_merging_equals_one_pass():
    scores, labels, where = lists(4, 20, 5)
    parts = [slice(0, 17), slice(17, 20)]
    metrics = [RaxMetric(rax.dcg_metric, 3) for _ in parts]
    one_pass = RaxMetric(rax.dcg_metric, 3)
    for metric, part in zip(metrics, parts, strict=True):
        for target in (metric, one_pass):
            target.update(scores=scores[part], labels=labels[part], where=where[part])
    assert metrics[1].merge(metrics[0]).compute() == one_pass.compute()
    assert one_pass.compute() == pytest.approx(measure(rax.dcg_metric, scores, labels, where, 3), rel=1e-6)


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
        metric.update(**dict(zip(("scores", "labels", "where"), lists(seed, 9, 4), strict=True)))
    metric.empty().update(scores=np.zeros((9, 4)), labels=np.zeros((9, 4)))
    assert len(traces) == 1


def test_missing_arguments_and_differing_shapes_are_named():
    with pytest.raises(TypeError, match="needs labels, and was passed scores"):
        RaxMetric(rax.dcg_metric).update(scores=np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"\(1, 2\), \(1, 3\), \(1, 2\)"):
        RaxMetric(rax.dcg_metric).update(scores=np.zeros((1, 2)), labels=np.zeros((1, 3)))
