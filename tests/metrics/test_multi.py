"""Several metrics under one roof."""

import functools

import jax
import numpy as np
import pytest
import rax

from clickexp.metrics import (
    NDCG,
    ConditionalPerplexity,
    LogLikelihood,
    Metric,
    MultiMetric,
    Perplexity,
    RaxMetric,
)
from clickexp.metrics.base import outputs_by_rank


def outputs(seed, count=4, ranks=3):
    rng = np.random.default_rng(seed)
    log_probs = np.log(rng.uniform(0.1, 0.9, (2, count, ranks))).astype(np.float32)
    return {
        "log_probs": log_probs[0],
        "conditional_log_probs": log_probs[1],
        "clicks": rng.random((count, ranks)) < 0.5,
        "where": np.ones((count, ranks), bool),
        "scores": rng.normal(size=(count, ranks)).astype(np.float32),
        "labels": rng.integers(0, 5, (count, ranks)),
        "unheard_of": None,
    }


def everything():
    return {
        "ppl": Perplexity(),
        "ll": LogLikelihood(),
        "dcg@10": RaxMetric(rax.dcg_metric, top_n=10),
        "cond_ppl": ConditionalPerplexity(),
    }


def test_each_metric_gets_its_outputs_and_names_keep_their_order():
    for multi in (MultiMetric(everything()), MultiMetric(**everything())):
        multi.update(**outputs(0))
        for name, metric in everything().items():
            metric.update(**outputs(0))
            assert multi.compute(prefix="test/")[f"test/{name}"] == metric.compute()
        assert list(multi.compute()) == ["ppl", "ll", "dcg@10", "cond_ppl"]
        assert list(multi.compute_per_rank("val/")) == ["val/ppl", "val/ll", "val/cond_ppl"]
        of_ll = multi.metrics["ll"].compute_per_rank()
        np.testing.assert_array_equal(multi.compute_per_rank()["ll"], of_ll)


class Quantiles(Metric):
    """A metric of three numbers, whose ways differ."""

    suffixes = ("_error", "_share", "_count")
    higher_is_better = {"_error": False, "_share": True}


def test_which_way_is_better_is_listed_by_name():
    multi = MultiMetric(
        {"ll": LogLikelihood(), "ppl": Perplexity(), "q": Quantiles(), "ndcg": NDCG([1, 5]), "own": Metric(),
         "rax": RaxMetric(rax.mrr_metric), "gap": RaxMetric(rax.mrr_metric, higher_is_better=False)}
    )  # fmt: skip
    assert multi.higher_is_better == {
        "ll": True, "ppl": False, "q_error": False, "q_share": True, "q_count": None,
        "ndcg@1": True, "ndcg@5": True, "own": None, "rax": True, "gap": False,
    }  # fmt: skip
    assert list(multi.higher_is_better) == multi.names


def test_what_was_given_is_copied():
    given = everything()
    given["ll"].update(**outputs(0))
    value = given["ll"].compute()
    multi = MultiMetric(given)
    assert multi.compute()["ll"] == value
    multi.update(**outputs(1))
    multi.metrics["ll"].sums["documents"] += 1
    assert given["ll"].compute() == value
    assert np.isnan(given["ppl"].compute())


def test_merge_equals_one_pass_exactly_and_reset_forgets():
    one_pass, left, right = (MultiMetric(everything()) for _ in range(3))
    for seed, part in enumerate((left, right, left)):
        part.update(**outputs(seed))
        one_pass.update(**outputs(seed))
    merged = right.merge(left)
    assert merged.compute() == one_pass.compute()
    one_pass.reset()
    assert all(np.isnan(value) for value in one_pass.compute().values())
    assert all(np.isnan(value) for value in merged.empty().compute().values())
    assert not np.isnan(merged.compute()["ll"])


def test_stacked_statistics_of_a_scan_equal_updates():
    batches = [{k: v for k, v in outputs(seed).items() if v is not None} for seed in range(3)]
    stack = {name: np.stack([b[name] for b in batches]) for name in batches[0]}
    scanned, updated = MultiMetric(everything()), MultiMetric(everything())
    scan = jax.jit(
        lambda data: jax.lax.map(lambda b: scanned.statistics(**outputs_by_rank(b)), data)
    )
    scanned.add(scan(stack), stacked=True)
    for b in batches:
        updated.update(**b)
    assert scanned.compute() == pytest.approx(updated.compute(), rel=1e-6)


def test_empty_copies_merge_also_where_the_function_is_a_partial():
    multi = MultiMetric(dcg=RaxMetric(functools.partial(rax.dcg_metric, topn=2)))
    multi.update(**outputs(0))
    assert multi.empty().merge(multi).compute() == multi.compute()


def test_different_names_do_not_merge():
    with pytest.raises(TypeError, match=r"\['ll'\] with \['ppl'\]"):
        MultiMetric(ll=LogLikelihood()).merge(MultiMetric(ppl=Perplexity()))
