"""The scorer that is exported with rankers, on networks and tables written by hand."""

import json

import numpy as np
import pytest

from clickexp.runs.scorer import Scorer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3))
LAYERS = [
    {"kind": "dense", "kernel": "k", "bias": "b"},
    {"kind": "layer_norm", "epsilon": 1e-3, "scale": "s", "bias": "t"},
    {"kind": "activation", "name": "relu"},
]
ARRAYS = {
    "k": RNG.normal(size=(3, 4)), "b": RNG.normal(size=4), "s": RNG.normal(size=4), "t": RNG.normal(size=4),
    "ck": RNG.normal(size=(3, 3)), "cb": RNG.normal(size=3), "table": np.array([0.5, -1.0, 2.0]),
}  # fmt: skip
DENSE = X @ ARRAYS["k"] + ARRAYS["b"]
CENTRED = DENSE - DENSE.mean(axis=1, keepdims=True)
SPREAD = np.sqrt((CENTRED**2).mean(axis=1, keepdims=True) + 1e-3)
DEEP = np.maximum(CENTRED / SPREAD * ARRAYS["s"] + ARRAYS["t"], 0)
CROSSED = X * (X @ ARRAYS["ck"] + ARRAYS["cb"]) + X


def scorer(folder, *towers, features=None, transform=None, **arrays):
    description = {"model": "R", "features": features, "transform": transform, "towers": towers}
    np.savez(folder / "ranker.npz", description=json.dumps(description), **ARRAYS, **arrays)
    return Scorer(folder / "ranker.npz")


def network(combination, **more):
    layers = {"input": [], "deep": LAYERS, "cross": [{"kernel": "ck", "bias": "cb"}]}
    output = {"output": {"kernel": "w", "bias": "z"}}
    return {
        "kind": "network",
        "combination": combination,
        "log_probability": False,
        **layers,
        **output,
        **more,
    }


TABLE = {"kind": "table", "values": "table", "log_probability": True}


def test_a_network_is_the_sum_of_its_layers(tmp_path):
    """Deep and crossed side by side, and deep behind crossed, whose layers are then as wide as what they read."""
    w, z = RNG.normal(size=(7, 1)), RNG.normal(size=1)
    found = scorer(tmp_path, network("parallel"), features=3, w=w, z=z).score(X)
    np.testing.assert_allclose(found, (np.concatenate([DEEP, CROSSED], axis=1) @ w + z)[:, 0])
    stacked = scorer(tmp_path, network("stacked", deep=[LAYERS[2]]), features=3, w=w[:3], z=z)
    np.testing.assert_allclose(stacked.score(X), (np.maximum(CROSSED, 0) @ w[:3] + z)[:, 0])
    assert stacked.rank(X).tolist() == np.argsort(-stacked.score(X)).tolist()


def test_features_are_transformed_once(tmp_path):
    w, z = RNG.normal(size=(3, 1)), np.zeros(1)
    towers = network("stacked", deep=[], cross=[])
    log = scorer(tmp_path, towers, features=3, transform="log1p", w=w, z=z)
    transformed = np.sign(X) * np.log1p(np.abs(X))
    np.testing.assert_allclose(log.score(X), (transformed @ w)[:, 0])
    np.testing.assert_allclose(log.score(transformed, transformed=True), log.score(X))


def test_ids_that_a_table_does_not_know_have_its_first_row(tmp_path):
    tables = scorer(tmp_path, TABLE)
    expected = -np.log1p(np.exp(-np.array([0.5, -1.0, 2.0, 0.5, 0.5])))
    np.testing.assert_allclose(tables.score(ids=[0, 1, 2, 3, -1]), expected)
    assert (
        tables.rank(ids=[1, 2, 3]).tolist() == [1, 2, 0]
        and tables.reads_ids
        and tables.width is None
    )


def test_what_a_tower_reads_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match="ids"):
        scorer(tmp_path, TABLE).score()
    reads = scorer(tmp_path, network("stacked"), features=3, w=np.zeros((4, 1)), z=np.zeros(1))
    for given, named in ((None, "3 numbers"), (X[:, :2], r"\(5, 2\)")):
        with pytest.raises(ValueError, match=named):
            reads.score(given)
