"""Programs that are compiled before the model is trained, while another thread may want them."""

import threading

import jax
import numpy as np
import pytest
from flax import nnx

from clickexp.data import Dataset, Sessions
from clickexp.data.features import Features
from clickexp.data.feed import Compiled
from clickexp.evaluation.evaluate import compiled_test, evaluate
from clickexp.evaluation.groups import click_metrics
from clickexp.models import PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig, LinearParameterConfig

RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 9, (40, 3)).astype(np.int32)
GROUPS = {"click": click_metrics()}


@pytest.mark.parametrize("features", [None, RNG.random((9, 2)).astype(np.float16)])
def test_what_is_compiled_ahead_serves_the_evaluation(monkeypatch, features):
    """Known by shapes alone, of another state of the model, and without a word to the reader."""
    sessions = Sessions.from_arrays(
        query_doc_ids=IDS,
        clicks=RNG.random(IDS.shape) < 0.4,
        query_doc_pairs=8,
    )
    if features is not None:
        sessions = sessions.with_features(Features(features))
    dataset = Dataset("log", 8, 3, sessions, sessions, sessions)
    tower = EmbeddingParameterConfig() if features is None else LinearParameterConfig()
    sizes = {"positions": 3, "query_doc_pairs": 8, "features": sessions.feature_lengths}
    models = [PositionBasedModel(attraction=tower, **sizes, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
    compiled, told = compiled_test(models[0], dataset, GROUPS), []
    monkeypatch.setattr(Compiled, "listener", told.append)
    compiled.compile((jax.eval_shape(lambda: nnx.state(models[0])),))
    programs = [program for each in compiled.programs for program in each.programs.values()]
    assert len(programs) == len(compiled.programs) and not told
    found = compiled((nnx.state(models[1]),), "test").values()
    assert [p for each in compiled.programs for p in each.programs.values()] == programs
    assert not told
    assert found == pytest.approx(evaluate(models[1], dataset, GROUPS).values(), nan_ok=True)


def test_two_threads_that_want_one_program_share_it():
    traced = []

    def function(x):
        traced.append(x)
        return x + 1

    added = Compiled(function)
    threads = [threading.Thread(target=added.program, args=(np.ones(3),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(added(np.ones(3)), np.full(3, 2.0))
    assert len(traced) == 1
