"""Metrics of users: what they receive, and that it is checked before training."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses

from clickexp.data import Dataset, Sessions
from clickexp.errors import ConfigError
from clickexp.evaluation.evaluate import check_metrics, evaluate
from clickexp.metrics import Metric
from clickexp.models import PositionBasedModel

RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 9, (40, 3)).astype(np.int32)
CLICKS = RNG.random(IDS.shape) < 0.4


class Gini(Metric):
    """Inequality of the number of documents that are shown."""

    def __init__(self, documents):
        self.documents = documents
        super().__init__()

    def statistics(self, *, query_doc_ids, where, **_):
        shown = jnp.where(where, query_doc_ids, 0).ravel()
        return {"shown": jnp.zeros(self.documents + 1, jnp.int32).at[shown].add(1)}

    def compute(self):
        counts = np.sort(self.total("shown")[1:])
        places = np.arange(1, len(counts) + 1)
        return float((2 * places - len(counts) - 1) @ counts / (len(counts) * counts.sum()))


class OfPrices(Gini):
    def statistics(self, *, prices, **_):
        return {"shown": prices}


@pytest.fixture
def dataset():
    sessions = Sessions.from_arrays(query_doc_ids=IDS, clicks=CLICKS, query_doc_pairs=8)
    return Dataset("log", 8, 3, sessions, sessions, sessions)


@pytest.fixture
def model():
    return PositionBasedModel(positions=3, query_doc_pairs=8, rngs=nnx.Rngs(0))


def test_metrics_receive_the_ids_of_documents(dataset, model):
    groups = {"click": {"gini": Gini(8)}}
    check_metrics(model, dataset, groups)
    found = evaluate(model, dataset, groups)
    counts = np.bincount(IDS.ravel(), minlength=9)[1:]
    differences = np.abs(counts[:, None] - counts[None]).sum()
    expected = differences / (2 * len(counts) * counts.sum())
    assert found.groups["click"].compute()["gini"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("group", ["click", "test"])
def test_what_a_metric_lacks_is_named_before_training(group, dataset, model):
    with refuses(ConfigError, "metric gini", "prices", "query_doc_ids"):
        check_metrics(model, dataset, {group: {"gini": OfPrices(8)}})


def test_groups_without_data_are_left_out(dataset, model):
    without_labels = dataclasses.replace(dataset, ranking=None)
    check_metrics(model, without_labels, {"ranking": {"gini": OfPrices(8)}})
