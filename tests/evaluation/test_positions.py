"""Rank is the position that models look up: the same number of impressions in each table of one log."""

import numpy as np
import polars as pl
import pytest
from flax import nnx

from clickexp.data import Dataset, Sessions
from clickexp.data.derived import DerivedColumn
from clickexp.data.inspect.summary import summaries
from clickexp.data.schema import Column
from clickexp.evaluation.evaluate import evaluate
from clickexp.evaluation.evaluator import Evaluator
from clickexp.evaluation.groups import click_metrics
from clickexp.evaluation.references import references
from clickexp.export.examination import examination
from clickexp.metrics import AUC, ExpectedCalibrationError, LogLikelihood
from clickexp.models import DynamicBayesianNetwork, PositionBasedModel
from clickexp.results.per_query import samples

METRICS = {**click_metrics(), "ece": ExpectedCalibrationError(), "auc": AUC()}
LISTS = 64


def log(kind, seed=0):
    """Lists of three documents: with an ad at rank 2 of half of them, or with the ranks 2 and 3 merged."""
    rng = np.random.default_rng(seed)
    ads = rng.random(LISTS) < 0.5
    positions = {
        "ads": np.where(ads[:, None], [1, 3, 4], [1, 2, 3]),
        "merged": np.where(ads[:, None], [1, 2, 2], [1, 2, 4]),
        "from the second": np.where(ads[:, None], [2, 3, 4], [2, 4, 5]),
    }[kind]
    clicks = rng.random((LISTS, 3)) < 0.6 / positions
    ids = rng.integers(1, 6, (LISTS, 3))
    columns = {"query_doc_ids": ids, "clicks": clicks, "positions": positions}
    return Sessions.from_arrays(
        **columns, query_ids=rng.integers(0, 9, LISTS), query_doc_pairs=5
    ).with_pairs(5)


def dataset_of(kind):
    parts = [log(kind, seed) for seed in range(3)]
    return Dataset("log", *parts, query_doc_pairs=5, positions=max(p.positions for p in parts))


def model_of(dataset, kind=PositionBasedModel):
    sizes = {"positions": dataset.positions} if kind is PositionBasedModel else {}
    model = kind(query_doc_pairs=5, **sizes, rngs=nnx.Rngs(0))
    if kind is PositionBasedModel:
        model.examination.weight[...] = np.linspace(2, -2, dataset.positions + 1)
    return model


KINDS = ["ads", "merged", "from the second"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_has_as_many_impressions_everywhere(kind):
    """In what inspect counts, per-rank figures of a run, exports, and propensities."""
    dataset = dataset_of(kind)
    test = dataset.test
    expected = np.bincount(test.column("positions").ravel(), minlength=dataset.positions + 1)[1:]
    clicks = np.bincount(
        test.column("positions")[test.column("clicks")], minlength=dataset.positions + 1
    )[1:]
    expected, clicks = expected[: test.positions], clicks[: test.positions]
    inspected = summaries(dataset)["test"]
    assert inspected.shown_by_rank.tolist() == expected.tolist()
    assert inspected.clicks_by_rank.tolist() == clicks.tolist()
    assert test.by_position.shown[1:].tolist() == expected.tolist()
    model = model_of(dataset)
    assert evaluate(model, dataset, {"click": METRICS}, Evaluator(16)).per_rank()["sessions"] == (
        expected.tolist()
    )
    for each in (model, model_of(dataset, DynamicBayesianNetwork)):
        table = examination(each, test)
        shown = np.flatnonzero(expected)
        assert table["rank"].to_list() == (shown + 1).tolist()
        assert table["impressions"].to_list() == expected[shown].tolist()
        np.testing.assert_allclose(table["click_rate"], clicks[shown] / expected[shown])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ready_made", [False, True])
def test_metrics_by_rank_are_those_of_documents_at_that_position(kind, ready_made):
    """In float64 from single predictions; of packed sessions and of batches that come ready-made."""
    dataset = dataset_of(kind)
    model, test = model_of(dataset), dataset.test
    columns = {name: test.column(name) for name in ("query_doc_ids", "clicks", "positions")}
    batch = {**columns, "mask": np.ones((LISTS, 3), bool)}
    cuts = slice(0, 30), slice(30, LISTS)  # the first of which may not show the last position
    batches = [{key: values[cut] for key, values in batch.items()} for cut in cuts]
    found = Evaluator(16).clicks(model, batches if ready_made else test, METRICS)
    click = np.asarray(model.predict_clicks(batch), np.float64)
    observed = np.where(columns["clicks"], click, np.log1p(-np.exp(click)))
    at = columns["positions"]
    ranks = range(1, test.positions + 1)
    ll = [observed[at == rank].mean() if (at == rank).any() else np.nan for rank in ranks]
    np.testing.assert_allclose(found.compute_per_rank()["ll"], ll, rtol=1e-5)
    np.testing.assert_allclose(found.compute_per_rank()["ppl"], np.exp(-np.array(ll)), rtol=1e-5)
    assert found.compute()["ppl"] == pytest.approx(np.nanmean(np.exp(-np.array(ll))), rel=1e-5)
    assert found.compute()["ll"] == pytest.approx(observed.mean(), rel=1e-5)
    reliable = found.metrics["ece"].curve()["documents"]
    assert reliable.sum(axis=0).tolist() == [(at == rank).sum() for rank in ranks]


def test_padding_of_ready_made_batches_may_hold_any_position():
    """Tables of ranks do not grow by it."""
    dataset = dataset_of("ads")
    test, ranks = dataset.test, [1, 2, 3, 4]
    columns = {name: test.column(name) for name in ("query_doc_ids", "clicks", "positions")}
    batch = {key: np.pad(values, ((0, 0), (0, 1))) for key, values in columns.items()}
    batch["positions"][:, 3] = 10**9
    batch["mask"] = np.arange(4)[None] < np.full((LISTS, 1), 3)
    model = model_of(dataset)
    found = [Evaluator(16).clicks(model, data, METRICS) for data in ([batch], test)]
    padded, packed = (each.compute_per_rank()["ll"] for each in found)
    assert len(padded) == len(ranks)
    np.testing.assert_allclose(padded, packed, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_kept_values_come_to_the_same_metric_as_the_sums(kind, tmp_path):
    """Also where a list has two documents at one position, whose values a rank keeps both."""
    dataset = dataset_of(kind)
    groups = {"click": click_metrics()}
    found = evaluate(model_of(dataset), dataset, groups, Evaluator(16), keep_values=True)
    found.keep(dataset, tmp_path)
    for metric in ("ll", "ppl", "cond_ppl"):
        assert samples(tmp_path, metric).total() == pytest.approx(found.values()[metric], rel=1e-5)
    kept = pl.read_parquet(tmp_path / "test_sessions.parquet")
    assert len(kept) == LISTS
    numbers = kept["observed_log_prob"].to_numpy()
    assert (~np.isnan(numbers)).sum(axis=1).tolist() == [3] * LISTS


def test_rank_ctr_beside_a_model_has_its_ranks():
    """A rank that no list shows has no figure, and takes no part in the mean over ranks."""
    dataset = dataset_of("from the second")
    found = references(model_of(dataset), dataset, Evaluator())["rank-CTR"]
    assert np.isnan(found["per_rank"]["ppl"][0]) and len(found["per_rank"]["ppl"]) == 5
    assert found["test"]["ppl"] == pytest.approx(np.nanmean(found["per_rank"]["ppl"]))


def test_conventions_of_one_document_per_rank_refuse_merged_positions():
    """PyClick divides by lists, of which a rank with two documents would count two."""
    dataset = dataset_of("merged")
    metrics = {"ll": LogLikelihood(rank_normalization="pyclick")}
    with pytest.raises(
        ValueError, match=r"several documents at one position.*rank_normalization=own"
    ):
        Evaluator().clicks(model_of(dataset), dataset.test, metrics)


def test_columns_that_no_metric_reads_are_not_read_where_lists_have_positions():
    """Such as the query of each document, which a log of documents alone does not have."""

    class Unread(DerivedColumn):
        column = Column("unread", np.int32)
        reads = ("query_doc_ids",)

        def compute(self, packed, rows):
            raise AssertionError("read")

        def bounds(self):
            return 0, 0

    dataset = dataset_of("ads")
    metrics = Evaluator().clicks(model_of(dataset), dataset.test.deriving(Unread()), METRICS)
    expected = Evaluator().clicks(model_of(dataset), dataset.test, METRICS)
    assert metrics.compute() == expected.compute()
