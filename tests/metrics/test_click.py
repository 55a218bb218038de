"""Click metrics against float64 loops, and the way their sums add up."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_updates import updated

from clickexp.metrics import ConditionalPerplexity, LogLikelihood, Perplexity, click
from clickexp.metrics.base import outputs_by_rank
from clickexp.numerics import LogPair

pytestmark = pytest.mark.as_users
METRICS = [LogLikelihood, Perplexity, ConditionalPerplexity]


def batch(seed, lists, ranks):
    """Outputs of a model whose marginal and conditional predictions differ; lists padded at the end."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, ranks + 1, lists)
    return {
        "log_probs": np.log(rng.uniform(0.01, 0.99, (lists, ranks))).astype(np.float32),
        "conditional_log_probs": np.log(rng.uniform(0.01, 0.99, (lists, ranks))).astype(np.float32),
        "clicks": rng.random((lists, ranks)) < 0.4,
        "where": np.arange(ranks) < lengths[:, None],
    }


def observed_per_rank(log_probs, clicks, where):
    """For each rank, the log-probabilities of what happened there, in float64."""
    per_rank = [[] for _ in range(log_probs.shape[1])]
    for i, r in np.argwhere(where):
        p = math.exp(float(log_probs[i, r]))
        per_rank[r].append(math.log(p if clicks[i, r] else 1 - p))
    return [values for values in per_rank if values]


def expected(metric, b):
    """(value, value per rank) by the definitions."""
    reads = "log_probs" if metric is Perplexity else "conditional_log_probs"
    per_rank = observed_per_rank(b[reads], b["clicks"], b["where"])
    if metric is LogLikelihood:
        return np.mean(sum(per_rank, [])), [np.mean(values) for values in per_rank]
    perplexities = [2 ** -np.mean(np.array(values) / math.log(2)) for values in per_rank]
    return np.mean(perplexities), perplexities


@pytest.mark.parametrize(
    "shape",
    [
        (40, 6),
        *(pytest.param(shape, marks=pytest.mark.nightly) for shape in ((1, 1), (1, 7), (5, 1))),
    ],
)
def test_matches_the_definition_in_float64(shape):
    b = batch(0, *shape)
    for metric in METRICS:
        value, per_rank = expected(metric, b)
        result = updated(metric, b)
        assert result.compute() == pytest.approx(value, rel=1e-5), metric.__name__
        np.testing.assert_allclose(result.compute_per_rank(), per_rank, rtol=1e-5)
        np.testing.assert_array_equal(result.counts, [n for n in b["where"].sum(axis=0) if n])


def test_textbook_values():
    b = {
        "log_probs": np.log([[0.25, 0.5], [0.25, 0.75]]),
        "cond_log_probs": np.log([[0.25, 0.5], [0.25, 0.75]]),
        "clicks": np.array([[1, 0], [0, 1]]),
        "where": np.array([[True, True], [True, False]]),
    }
    first = 2 ** -((math.log2(0.25) + math.log2(0.75)) / 2)
    second = 2 ** -math.log2(0.5)
    assert updated(Perplexity, b).compute() == pytest.approx((first + second) / 2)
    assert updated(ConditionalPerplexity, b).compute() == pytest.approx((first + second) / 2)
    ll = (math.log(0.25) + math.log(0.75) + math.log(0.5)) / 3
    assert updated(LogLikelihood, b).compute() == pytest.approx(ll)


def test_both_names_of_the_conditional_and_integer_clicks_are_read():
    b = batch(1, 6, 4)
    renamed = {"cond_log_probs": b["conditional_log_probs"], "clicks": b["clicks"].astype(np.int32)}
    for metric in (LogLikelihood, ConditionalPerplexity):
        assert (
            updated(metric, b).compute()
            == updated(metric, renamed | {"where": b["where"]}).compute()
        )


def test_without_a_mask_every_document_counts():
    b = batch(2, 6, 4)
    everything = b | {"where": np.ones((6, 4), bool)}
    assert (
        updated(Perplexity, b | {"where": None}).compute()
        == updated(Perplexity, everything).compute()
    )


def test_padding_never_counts():
    b = batch(3, 9, 5)
    names = ("log_probs", "conditional_log_probs")
    for metric, garbage in itertools.product(METRICS, (np.nan, -np.inf, np.inf, 3.0)):
        dirty = {name: np.where(b["where"], b[name], np.float32(garbage)) for name in names}
        dirty = b | dirty | {"clicks": b["clicks"] | ~b["where"]}
        clean = updated(metric, b).compute_per_rank()
        np.testing.assert_array_equal(updated(metric, dirty).compute_per_rank(), clean)
        pairs = {name: LogPair(dirty[name], dirty[name]) for name in names}
        assert np.isfinite(updated(metric, dirty | pairs).compute()), (metric.__name__, garbage)


def test_pairs_stay_exact_where_a_plain_log_probability_cannot():
    pair = LogPair(np.float32([[0.0, -1e4]]), np.float32([[-1e4, 0.0]]))
    likely = {"cond_log_probs": pair, "clicks": np.array([[1, 0]])}
    unlikely = {"cond_log_probs": pair, "clicks": np.array([[0, 1]])}
    assert updated(LogLikelihood, likely).compute() == 0
    assert updated(LogLikelihood, unlikely).compute() == -1e4
    assert updated(ConditionalPerplexity, likely).compute() == 1
    assert updated(ConditionalPerplexity, unlikely).compute() == math.inf


def test_a_short_last_batch_weighs_by_its_documents():
    full, short = batch(4, 30, 5), batch(5, 2, 5)
    together = {name: np.concatenate([full[name], short[name]]) for name in full}
    for metric in METRICS:
        value, _ = expected(metric, together)
        assert updated(metric, full, short).compute() == pytest.approx(value, rel=1e-5)


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(5)), cut=st.integers(0, 5), metric=st.sampled_from(METRICS))
def test_merging_parts_in_any_order_equals_one_pass_exactly(order, cut, metric):
    batches = [batch(seed, 4, 3) for seed in range(5)]
    one_pass = updated(metric, *batches)
    left = updated(metric, *(batches[i] for i in order[:cut]))
    right = updated(metric, *(batches[i] for i in order[cut:]))
    before = left.total("documents").sum()
    merged = left.merge(right)
    assert merged.compute() == one_pass.compute()
    np.testing.assert_array_equal(merged.compute_per_rank(), one_pass.compute_per_rank())
    assert left.total("documents").sum() == before


def test_a_billion_documents_are_added_up_to_a_millionth():
    p, count = 0.9, 2**19
    b = {
        "cond_log_probs": np.full((count, 1), np.log(p), np.float32),
        "clicks": np.ones((count, 1)),
    }
    metric, statistics = LogLikelihood(), LogLikelihood().statistics(**outputs_by_rank(b))
    float32 = np.float32(0)
    for _ in range(2000):
        metric.add(statistics)
        float32 += np.float32(count) * np.float32(np.log(p))
    assert metric.counts[0] == 2000 * count > 1e9
    assert metric.compute() == pytest.approx(math.log(p), rel=1e-7)
    assert abs(float32 / (2000 * count) - math.log(p)) > 1e-6 * abs(math.log(p))


@settings(max_examples=20, deadline=None)
@given(
    order=st.permutations(range(12)),
    cuts=st.sets(st.integers(1, 11)),
    metric=st.sampled_from(METRICS),
)
def test_shards_of_any_size_in_any_order_agree(order, cuts, metric):
    """Up to rounding: the sums of a shard are of float32.

    Given predictions and their complements, as models have them: XLA may round a logarithm by an array's shape.
    """
    b = batch(1, 12, 5)
    for name in ("log_probs", "conditional_log_probs"):
        log_prob = b[name]
        b[name] = LogPair(
            log_prob, np.log1p(-np.exp(log_prob.astype(np.float64))).astype(np.float32)
        )
    ends = [0, *sorted(cuts), 12]
    portions = [list(order[i:j]) for i, j in itertools.pairwise(ends)]
    shards = [jax.tree.map(lambda x, rows=rows: x[rows], b) for rows in portions]
    first, *others = (updated(metric, shard) for shard in shards)
    merged = functools.reduce(metric.merge, others, first)
    assert merged.compute() == pytest.approx(updated(metric, b).compute(), rel=5e-7)


def test_the_number_of_ranks_may_differ_between_updates():
    for lengths in itertools.permutations([2, 5, 3]):
        batches = [batch(seed, 6, ranks) for seed, ranks in enumerate(lengths)]
        padding = [((0, 0), (0, 5 - ranks)) for ranks in lengths]
        padded = [{k: np.pad(v, pad) for k, v in b.items()} for b, pad in zip(batches, padding)]
        together = {name: np.concatenate([b[name] for b in padded]) for name in padded[0]}
        value, per_rank = expected(Perplexity, together)
        result = updated(Perplexity, *batches)
        assert result.compute() == pytest.approx(value, rel=1e-5), lengths
        np.testing.assert_allclose(result.compute_per_rank(), per_rank, rtol=1e-5)


def test_ranks_without_documents():
    where = np.array([[True, False, True, False]])
    b = {"log_probs": np.log(np.full((1, 4), 0.25)), "clicks": np.ones((1, 4)), "where": where}
    result = updated(Perplexity, b)
    np.testing.assert_allclose(result.compute_per_rank(), [4, np.nan, 4], rtol=1e-6)
    np.testing.assert_array_equal(result.counts, [1, 0, 1])
    assert result.compute() == pytest.approx(4)


def test_before_the_first_document_and_after_reset():
    shown = batch(7, 4, 3)
    unshown = shown | {"where": np.zeros((4, 3), bool)}
    for metric in METRICS:
        result = updated(metric, shown)
        result.reset()
        for nothing in (metric(), result, updated(metric, unshown)):
            assert math.isnan(nothing.compute())
            assert nothing.compute_per_rank().size == 0


def test_stacked_statistics_of_a_scan_equal_updates():
    batches = [batch(seed, 4, 3) for seed in range(3)]
    stack = {name: np.stack([b[name] for b in batches]) for name in batches[0]}
    scan = jax.jit(
        lambda data: jax.lax.map(
            lambda b: [metric().statistics(**outputs_by_rank(b)) for metric in METRICS], data
        )
    )
    for metric, statistics in zip(METRICS, scan(stack), strict=True):
        scanned, result = metric(), updated(metric, *batches)
        scanned.add(statistics, stacked=True)
        assert scanned.compute() == pytest.approx(result.compute(), rel=1e-6), metric.__name__
        np.testing.assert_array_equal(scanned.counts, result.counts)


def test_one_trace_a_shape(monkeypatch):
    traces, as_pair = [], click.as_pair
    monkeypatch.setattr(click, "as_pair", lambda x: traces.append(1) or as_pair(x))
    for seed in range(3):
        updated(LogLikelihood, batch(seed, 11, 13), batch(seed, 11, 13))
    assert len(traces) == 1
    updated(LogLikelihood, batch(0, 12, 13))
    assert len(traces) == 2


def test_unknown_arguments_are_ignored_and_missing_ones_named():
    b = batch(8, 2, 2)
    updated(
        Perplexity,
        {"log_probs": b["log_probs"], "clicks": b["clicks"], "labels": None, "colour": "red"},
    )
    with pytest.raises(TypeError, match="Perplexity needs log_probs, and was passed clicks"):
        Perplexity().update(clicks=b["clicks"])
    with pytest.raises(
        TypeError, match="LogLikelihood needs conditional_log_probs or cond_log_probs"
    ):
        LogLikelihood().update(log_probs=b["log_probs"], clicks=b["clicks"])
    with pytest.raises(TypeError, match="needs clicks"):
        Perplexity().update(log_probs=b["log_probs"])


def test_shapes_that_differ_are_refused():
    b = batch(9, 3, 2)
    with pytest.raises(ValueError, match=r"Perplexity.*\(3, 2\), \(3, 2\), \(3, 1\)"):
        Perplexity().update(**b | {"where": b["where"][:, :1]})


def test_metrics_of_another_kind_do_not_merge():
    with pytest.raises(TypeError, match="cannot merge Perplexity with ConditionalPerplexity"):
        Perplexity().merge(ConditionalPerplexity())
