"""Reference values of a result against models that are fitted and evaluated as any other."""

import dataclasses
import itertools

import numpy as np
import pytest
from flax import nnx

from clickexp.data import Dataset, Sessions
from clickexp.evaluation.evaluator import Evaluator
from clickexp.evaluation.groups import click_metrics
from clickexp.evaluation.references import RANDOM, RANK_CTR, TRUTH, references
from clickexp.metrics import MRR, NDCG
from clickexp.models import Model, PositionBasedModel, RankCTRModel, Ranker, UserBrowsingModel
from clickexp.simulation import simulate
from clickexp.training import CountingTrainer


@pytest.fixture(scope="module")
def simulated():
    return simulate(UserBrowsingModel, sessions=600, queries=20, positions=4)


def shuffled(count, seed):
    """Lists of one to five documents, at positions that are not their ranks, those after the third never clicked."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, count)
    there = np.arange(5) < lengths[:, None]
    positions = np.where(there, rng.integers(1, 8, (count, 5)), 0)
    clicks = there & (rng.random((count, 5)) < 1 / np.maximum(positions, 1)) & (np.arange(5) < 3)
    ids = np.where(there, rng.integers(1, 9, (count, 5)), 0)
    return Sessions.from_arrays(
        query_doc_ids=ids, clicks=clicks, lengths=lengths, positions=positions, query_doc_pairs=8
    )


def model_of(dataset):
    sizes = {"positions": dataset.positions, "query_doc_pairs": dataset.query_doc_pairs}
    return PositionBasedModel(**sizes, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def log():
    """Of shuffled lists, by users who are not known."""
    parts = [shuffled(count, seed) for seed, count in enumerate((500, 50, 200))]
    return Dataset("log", *parts, query_doc_pairs=8, positions=7)


@pytest.fixture(scope="module")
def of_simulated(simulated):
    return references(model_of(simulated), simulated, Evaluator())


@pytest.mark.parametrize("kind", [pytest.param("simulated", marks=pytest.mark.nightly), "shuffled"])
def test_rank_ctr_is_the_model_fitted_by_counting(kind, request):
    if kind == "simulated":
        dataset, every = (
            request.getfixturevalue("simulated"),
            request.getfixturevalue("of_simulated"),
        )
    else:
        dataset = request.getfixturevalue("log")
        every = references(model_of(dataset), dataset, Evaluator())
        assert list(every) == [RANK_CTR]
    found = every[RANK_CTR]
    fitted = RankCTRModel(positions=dataset.positions, rngs=nnx.Rngs(0))
    CountingTrainer().train(fitted, dataset.train, dataset.val)
    expected = Evaluator().clicks(fitted, dataset.test, click_metrics())
    assert found["test"] == pytest.approx(expected.compute(), rel=1e-5)
    for name, vector in expected.compute_per_rank().items():
        np.testing.assert_allclose(found["per_rank"][name], vector, rtol=1e-5)


def test_the_true_user_is_evaluated_as_a_model(simulated, of_simulated):
    found = of_simulated[TRUTH]
    expected = Evaluator().clicks(simulated.truth, simulated.test, click_metrics())
    assert found["test"] == pytest.approx(expected.compute(), rel=1e-6)
    examination = found["per_rank"]["examination"]
    assert len(examination) == 4 and examination == sorted(examination, reverse=True)


def test_rankers_without_metrics_or_labels_have_none(simulated, log):
    assert references(Model.__new__(Model), simulated, Evaluator()) == {}
    assert references(Model.__new__(Model), log, Evaluator(), {"ranking": {"ndcg": NDCG(3)}}) == {}


def test_rankers_are_held_against_the_mean_over_all_orders(simulated):
    labels, lengths = (
        np.array([[0, 2, 1, 3], [1, 0, 0, 0], [2, 2, 0, 1]], np.float32),
        np.array([4, 3, 4]),
    )
    ids = np.where(np.arange(4) < lengths[:, None], np.arange(1, 13).reshape(3, 4), 0)
    lists = Sessions.from_arrays(query_doc_ids=ids, clicks=ids > 99, lengths=lengths, labels=labels)
    dataset = dataclasses.replace(simulated, ranking=lists)
    ranker = Ranker(query_doc_pairs=12, rngs=nnx.Rngs(0))
    groups = {"ranking": {"ndcg": NDCG(3), "mrr": MRR(2)}}
    found = references(ranker, dataset, Evaluator(), groups)
    ndcg, mrr = [], []
    for list_, length in zip(labels, lengths, strict=True):
        orders = np.array(list(itertools.permutations(list_[:length])))
        gains = (2.0**orders - 1)[:, :3] @ (1 / np.log2(np.arange(2, 5)))
        ndcg.append(gains.mean() / gains.max())
        first = (orders > 0).argmax(axis=1) + 1
        mrr.append(np.where(first <= 2, 1 / first, 0).mean())
    assert found[RANDOM]["test"] == pytest.approx(
        {"ndcg@3": np.mean(ndcg), "mrr@2": np.mean(mrr)}, rel=1e-5
    )
