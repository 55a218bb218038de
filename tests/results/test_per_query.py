"""Kept values of single sessions and lists, from a run to intervals and paired tests."""

import dataclasses
import shutil

import numpy as np
import polars as pl
import pytest
import zoo
from flax import nnx
from refusals import refuses
from scipy import stats

from clickexp.data import Sessions
from clickexp.errors import UserError
from clickexp.evaluation.evaluate import evaluate
from clickexp.evaluation.evaluator import Evaluator
from clickexp.evaluation.groups import click_metrics
from clickexp.metrics import (
    ConditionalPerplexity,
    LogLikelihood,
    Metric,
    Perplexity,
    SelfNormalizedDCG,
    ranking_metrics,
)
from clickexp.metrics.base import VALUE, PerList
from clickexp.models import PositionBasedModel, RankCTRModel, UserBrowsingModel
from clickexp.results.per_query import interval, paired_test, samples
from clickexp.simulation import simulate

METRICS = {
    "ranking": ranking_metrics(["ndcg"], [3, 5]),
    "test": {
        "click_ppl": Perplexity("clicks"),
        "skip_ppl": Perplexity("skips"),
    },  # which keep nothing of their own
}


def cut(sessions):
    """The same lists, of which users saw the first one to five documents."""
    lengths = np.random.default_rng(2).integers(1, sessions.ranks + 1, sessions.count)
    shown = np.arange(sessions.ranks) < lengths[:, None]
    columns = {
        name: np.where(shown, sessions.column(name), 0) for name in ("query_doc_ids", "clicks")
    }
    short = Sessions.from_arrays(**columns, lengths=lengths, query_ids=sessions.column("query_ids"))
    return short.with_pairs(sessions.query_doc_pairs)


def evaluated(model, data):
    groups = {"click": click_metrics(), **METRICS}
    return evaluate(model, data, groups, Evaluator(128), keep_values=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder, evaluation and intervals of PBM and of the click rate by rank on one log, with random parameters.

    Its test lists have one to five documents.
    """
    data = simulate(
        UserBrowsingModel, sessions=3000, queries=60, documents_per_query=6, positions=5
    )
    data = dataclasses.replace(data, test=cut(data.test))
    sizes = dict(positions=5, rngs=nnx.Rngs(0))
    models = {
        "pbm": PositionBasedModel(query_doc_pairs=data.query_doc_pairs, **sizes),
        "rctr": RankCTRModel(**sizes),
    }
    done, rng = {}, np.random.default_rng(0)
    for name, model in models.items():
        zoo.fill(model, lambda shape: rng.normal(0, 1, shape))
        folder = tmp_path_factory.mktemp(name)
        evaluation = evaluated(model, data)
        done[name] = folder, evaluation.result(), evaluation.keep(data, folder)
    return data, done


def test_kept_values_come_to_the_same_metric_as_the_sums(runs):
    for folder, result, intervals in runs[1].values():
        assert intervals.keys() == {"ll", "ppl", "cond_ppl", "ndcg@3", "ndcg@5"}
        for metric, (low, high) in intervals.items():
            value = result["test"][metric]
            assert samples(folder, metric).total() == pytest.approx(value, rel=1e-5), metric
            assert low <= value <= high and interval(folder, metric).low == low, metric


def test_a_metric_of_rankings_by_clicks_is_a_ratio_of_sums_over_queries(tmp_path):
    """Each query moves it by what it has beyond its weight, over the weights of the others."""
    data = simulate(
        PositionBasedModel, sessions=4000, queries=500, documents_per_query=6, positions=5
    )
    model = PositionBasedModel(query_doc_pairs=data.query_doc_pairs, positions=5, rngs=nnx.Rngs(0))
    zoo.fill(model, lambda shape: np.random.default_rng(7).normal(0, 1, shape))
    metric = SelfNormalizedDCG([3], propensity=[1.0, 0.7, 0.5, 0.4, 0.3])
    groups = {"counterfactual": {"dcg": metric}, "ranking": METRICS["ranking"]}
    evaluation = evaluate(model, data, groups, Evaluator(128), keep_values=True)
    bounds = evaluation.keep(data, tmp_path)
    kept = samples(tmp_path, "dcg@3")
    value = evaluation.groups["counterfactual"].compute()["dcg@3"]
    assert kept.total() == pytest.approx(value, rel=1e-5)
    numerator, weight = kept.sums.T
    moved = (numerator - kept.total() * weight) / (weight.sum() - weight)
    expected = kept.total() + (len(weight) - 1) * moved
    np.testing.assert_allclose(kept.pseudo_values(), expected, rtol=1e-6)
    assert bounds["dcg@3"][0] < value < bounds["dcg@3"][1]
    assert 0 < samples(tmp_path, "ndcg@3").total() < 1  # of the labelled lists


class ClicksOnTop(Metric):
    """The share of lists whose first document is clicked, or the clicks of all, of which none is kept."""

    def __init__(self, keeps: bool):
        super().__init__()
        self.keeps = keeps

    def statistics(self, *, clicks, **_):
        values = clicks[0].astype(float)
        kept = {VALUE: PerList(values[:, None])} if self.keep_values and self.keeps else {}
        return {"clicks": values.sum(), "lists": values.size, **kept}

    def compute(self):
        return self.total("clicks") / self.total("lists")


def test_metrics_of_rankings_by_clicks_may_keep_no_weights_or_nothing(runs, tmp_path):
    """One without values has no interval, and takes those of others with it as little as the run."""
    data, _ = runs
    model = RankCTRModel(5, rngs=nnx.Rngs(0))
    metrics = {"kept": ClicksOnTop(True), "summed": ClicksOnTop(False)}
    groups = {"counterfactual": metrics, "ranking": METRICS["ranking"]}
    evaluation = evaluate(model, data, groups, Evaluator(data.test.count), keep_values=True)
    bounds = evaluation.keep(data, tmp_path)
    assert "summed" not in bounds
    low, high = bounds["kept"]
    assert low < data.test.column("clicks")[:, 0].mean() < high


def test_a_row_a_session_in_the_order_of_the_data(runs):
    data, done = runs
    frame = pl.read_parquet(done["pbm"][0] / "test_sessions.parquet")
    np.testing.assert_array_equal(frame["query_id"], data.test.column("query_ids"))
    observed = frame["observed_log_prob"].to_numpy()
    assert observed.shape == (data.test.count, 5)
    clicked = data.test.column("clicks")[:, 0]
    first = samples_of_rank_ctr(done["rctr"][0])
    np.testing.assert_allclose(first[clicked], first[clicked][0], rtol=1e-6)
    np.testing.assert_allclose(np.exp(first[clicked][0]) + np.exp(first[~clicked]), 1, rtol=1e-6)


def samples_of_rank_ctr(folder):
    """Log-probability of what was observed at the first rank, which all lists share."""
    return pl.read_parquet(folder / "test_sessions.parquet")["observed_log_prob"].to_numpy()[:, 0]


def test_the_paired_test_is_that_of_the_differences_of_queries(runs):
    (pbm, *_), (rctr, *_) = runs[1].values()
    result = paired_test(pbm, rctr, "ndcg@5")
    a, b = (
        pl.read_parquet(folder / "test_lists.parquet")["ndcg@5"].to_numpy()
        for folder in (pbm, rctr)
    )
    counted = np.isfinite(a)  # not so lists without a relevant document
    a, b = a[counted], b[counted]
    assert result.difference == pytest.approx(a.mean() - b.mean(), abs=1e-7)
    assert result.p_t == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-6)
    clicks = paired_test(pbm, rctr, "ll")
    assert clicks.low <= clicks.difference <= clicks.high and clicks.queries <= 60


def test_the_convention_of_pyclick_is_kept_with_the_values(runs, tmp_path):
    data, _ = runs
    kinds = {"ll": LogLikelihood, "ppl": Perplexity, "cond_ppl": ConditionalPerplexity}
    groups = {"click": {name: kind(rank_normalization="pyclick") for name, kind in kinds.items()}}
    evaluation = evaluate(RankCTRModel(5, rngs=nnx.Rngs(0)), data, groups, keep_values=True)
    evaluation.keep(data, tmp_path)
    for name in kinds:
        value = evaluation.result()["test"][name]
        assert samples(tmp_path, name).total() == pytest.approx(value, rel=1e-5)


def test_a_folder_may_have_signs_of_patterns_in_its_name(runs, tmp_path):
    folder, copy = runs[1]["pbm"][0], tmp_path / "seed=[1]*"
    shutil.copytree(folder, copy)
    for metric in ("ll", "ndcg@5"):
        assert samples(copy, metric).total() == samples(folder, metric).total()


def test_lists_of_a_search_session_are_one_unit(runs, tmp_path):
    """Sums over search sessions by hand; metrics of labelled lists stay per query."""
    test = runs[0].test
    users = np.random.default_rng(1).integers(0, 40, test.count) - 20
    values = {
        name: test.column(name) for name in ("query_doc_ids", "clicks", "lengths", "query_ids")
    }
    log = Sessions.from_arrays(**values, session_ids=users).with_pairs(runs[0].query_doc_pairs)
    data = dataclasses.replace(runs[0], test=log)
    for name, model in (("a", RankCTRModel), ("b", PositionBasedModel)):
        sizes = {} if name == "a" else {"query_doc_pairs": data.query_doc_pairs}
        model = model(positions=5, **sizes, rngs=nnx.Rngs(0))
        (tmp_path / name).mkdir()
        evaluation = evaluated(model, data)
        evaluation.keep(data, tmp_path / name)
    found = samples(tmp_path / "a", "ll")
    frame = pl.read_parquet(tmp_path / "a" / "test_sessions.parquet")
    observed = frame["observed_conditional_log_prob"].to_numpy()
    np.testing.assert_array_equal(frame["search_session"], users)
    np.testing.assert_array_equal(found.queries, np.unique(users))
    expected = [np.nansum(observed[users == user]) for user in np.unique(users)]
    np.testing.assert_allclose(found.sums[:, :5].sum(axis=1), expected, rtol=1e-6)
    result = paired_test(tmp_path / "a", tmp_path / "b", "ll")
    assert (result.unit, result.queries) == ("search sessions", 40)
    assert paired_test(tmp_path / "a", tmp_path / "b", "ndcg@5").unit == "queries"
    with refuses(UserError, "search sessions", "of queries"):
        paired_test(tmp_path / "a", runs[1]["rctr"][0], "ll")


@pytest.mark.parametrize(
    "spoiled", [b"", b"PAR1" * 9, None], ids=["empty", "marks alone", "a column less"]
)
@pytest.mark.parametrize("metric", ["ll", "ndcg@3"])
def test_damaged_values_are_an_error(runs, metric, spoiled, tmp_path):
    folder = shutil.copytree(runs[1]["pbm"][0], tmp_path / "pbm")
    for file in folder.glob("test_*.parquet"):
        if spoiled is None:
            frame = pl.read_parquet(file)
            frame.drop("query_id").write_parquet(file)
        else:
            file.write_bytes(spoiled)
    with refuses(UserError, str(folder), "damaged", "Run the experiment again"):
        samples(folder, metric)


def test_missing_values_are_an_error(runs, tmp_path):
    with refuses(UserError, "keep_values=true"):
        interval(tmp_path, "ll")
    folder = runs[1]["pbm"][0]
    with refuses(UserError, "mrr@3", "ll, cond_ppl, ppl, ndcg@3, ndcg@5"):
        samples(folder, "mrr@3")
