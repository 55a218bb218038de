"""Ranking metrics of lists that were judged in part: what does not count, and what counts as what."""

import math

import numpy as np
import pytest
from metric_updates import updated

from clickexp import metrics
from clickexp.metrics.ranking.registry import AT_CUTOFFS

NAN = np.nan
SCORES = np.array([[3, 2, 1], [3, 2, 1], [3, 2, 1], [3, 2, 1], [2, 2, 1.0]])
LABELS = np.array([[2, 0, 1], [NAN, NAN, NAN], [NAN, 0, 3], [0, 0, 0], [NAN, 1, 0]])
WHERE = np.ones((5, 3), bool)
"""A list judged whole, one unjudged, one in part, one without a relevant document, one in part with ties."""
ALL = {**{name: AT_CUTOFFS[name] for name in ("ndcg", "map_min", "err")}, "tau": metrics.KendallTau}
"""A metric of each way of computing."""


def dcg(*labels):
    return sum((2**y - 1) / math.log2(1 + rank) for rank, y in enumerate(labels, 1))


def outputs(rows=slice(None), labels=LABELS):
    return dict(scores=SCORES[rows], labels=labels[rows], where=WHERE[rows])


@pytest.mark.parametrize("name", ALL)
def test_lists_without_labels_do_not_count_and_documents_without_are_irrelevant(name):
    metric = ALL[name]()
    found = updated(metric, **outputs()).compute()
    judged = outputs([0, 2, 3, 4], np.where(np.isnan(LABELS), 0, LABELS))
    assert found == updated(metric, **judged).compute()


@pytest.mark.parametrize("name", ALL)
def test_removed_documents_leave_condensed_lists(name):
    metric = ALL[name](unjudged_documents="removed")
    kept = {**outputs(), "where": ~np.isnan(LABELS), "labels": np.nan_to_num(LABELS)}
    assert updated(metric, **outputs()).compute() == updated(ALL[name](), **kept).compute()


def test_values_by_hand():
    """nDCG and reciprocal rank of each list, with both rules; ties are averaged after documents are removed."""
    irrelevant = [dcg(2, 0, 1) / dcg(2, 1), dcg(0, 0, 3) / dcg(3), (dcg(1) + dcg(0, 1)) / 2]
    removed = [irrelevant[0], dcg(0, 3) / dcg(3), 1]
    for rule, expected in (("irrelevant", irrelevant), ("removed", removed)):
        found = updated(metrics.NDCG(unjudged_documents=rule), **outputs())
        assert found.compute() == pytest.approx(np.mean(expected), rel=1e-6)
        counting = metrics.NDCG(unjudged_documents=rule, no_relevant="zero")
        found = updated(counting, **outputs())
        assert found.compute() == pytest.approx(np.mean([*expected, 0]), rel=1e-6)
    skipping = metrics.MRR(unjudged_documents="removed")
    assert updated(skipping, **outputs()).compute() == pytest.approx((1 + 1 / 2 + 1) / 3)


def test_what_was_not_judged_is_counted():
    assert updated(metrics.UnjudgedLists, **outputs()).compute() == 1
    assert updated(metrics.ListsWithoutRelevant, **outputs()).compute() == 1  # of lists with labels
    shares = updated(metrics.JudgedShare([1, 2, 5]), **outputs()).compute()
    expected = [[1, 1, 1], [0, 1 / 2, 2 / 3], [1, 1, 1], [1 / 2, 1 / 2, 2 / 3]]
    np.testing.assert_allclose(shares, np.mean(expected, axis=0), rtol=1e-6)


def test_padding_is_no_document_without_a_label():
    """Nothing below a list's end is unjudged, whatever is there; a list without documents is no unjudged list."""
    where = np.array([[True, False, False], [False] * 3])
    labels = np.array([[1, NAN, NAN], [NAN] * 3])
    batch = dict(scores=np.zeros((2, 3)), labels=labels, where=where)
    assert updated(metrics.UnjudgedLists, **batch).compute() == 0
    assert updated(metrics.JudgedShare(), **batch).compute() == 1
    assert updated(metrics.NDCG(), **batch).compute() == 1


def test_values_of_lists_without_labels_are_missing():
    metric = metrics.NDCG(1)
    metric.keep_values = True
    metric.update(**outputs())
    np.testing.assert_array_equal(np.isnan(metric.values()["value"][:, 0]), [0, 1, 0, 1, 0])
