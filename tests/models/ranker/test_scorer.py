"""The scorer that is exported with rankers, on steps written by hand."""

import json

import numpy as np
import pytest

from clickexp.models.ranker.scorer import Scorer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3))
TABLE = np.array([0.5, -1.0, 2.0], np.float32)


def scorer(folder, *steps, features=None, transform=None, **arrays):
    description = {"model": "R", "features": features, "transform": transform, "steps": steps}
    description |= {"encoding": (), "columns": ()}
    np.savez(folder / "ranker.npz", description=json.dumps(description), **arrays)
    return Scorer(folder / "ranker.npz")


def test_steps_read_features_arrays_and_earlier_results(tmp_path):
    k, w = RNG.normal(size=(3, 3)), RNG.normal(size=(6, 1))
    steps = [
        ("mixed", "matmul", ["features", "k"], {}),
        ("crossed", "multiply", ["features", "mixed"], {}),
        ("both", "concatenate", ["crossed", "features"], {}),
        ("column", "matmul", ["both", "w"], {}),
        ("score", "squeeze", ["column"], {}),
    ]
    found = scorer(tmp_path, *steps, features=3, k=k, w=w)
    expected = (np.concatenate([X * (X @ k), X], axis=1) @ w)[:, 0]
    np.testing.assert_allclose(found.score(X), expected)
    assert found.rank(X).tolist() == np.argsort(-expected).tolist()


CENTRED = X - X.mean(axis=1, keepdims=True)
SIGMOID = 1 / (1 + np.exp(-X))
OPERATIONS = {
    "layer_norm": CENTRED / np.sqrt((CENTRED**2).mean(axis=1, keepdims=True) + 1e-3),
    "elu": np.where(X > 0, X, np.exp(X) - 1),
    "relu": np.where(X > 0, X, 0),
    "tanh": np.tanh(X),
    "sigmoid": SIGMOID,
    "silu": X * SIGMOID,
    "softplus": np.log(1 + np.exp(X)),
    "log_sigmoid": np.log(SIGMOID),
}


@pytest.mark.parametrize("operation, expected", OPERATIONS.items())
def test_an_operation(tmp_path, operation, expected):
    settings = {"epsilon": 1e-3} if operation == "layer_norm" else {}
    found = scorer(tmp_path, ("z", operation, ["features"], settings), features=3)
    np.testing.assert_allclose(found.score(X), expected)


def test_features_are_transformed_once(tmp_path):
    w = RNG.normal(size=(3, 1))
    steps = [("matmul", "matmul", ["features", "w"], {})]
    log = scorer(tmp_path, *steps, features=3, transform="log1p", w=w)
    transformed = np.sign(X) * np.log1p(np.abs(X))
    np.testing.assert_allclose(log.score(X), transformed @ w)
    np.testing.assert_allclose(log.score(transformed, transformed=True), log.score(X))


def test_columns_become_features_with_gaps_and_categories(tmp_path):
    steps = [
        ("filled", "fill", ["features", "means"], {}),
        ("price", "take", ["filled", "first"], {}),
        ("code", "take", ["filled", "second"], {}),
        ("brand", "one_hot", ["code", "levels"], {}),
        ("gaps", "is_missing", ["features"], {}),
        ("gap", "take", ["gaps", "first"], {}),
        ("all", "concatenate", ["price", "brand", "gap"], {}),
    ]
    score = [("matmul", "matmul", ["features", "w"], {}), ("score", "squeeze", ["matmul"], {})]
    w = RNG.normal(size=(4, 1))
    arrays = {"means": np.array([7.0, 0.0]), "first": np.array([0]), "second": np.array([1])}
    found = scorer(tmp_path, *score, features=2, w=w, levels=np.array([1.0, 2.0]), **arrays)
    found.description |= {
        "encoding": steps,
        "columns": [["price", 1, None], ["brand", 1, ["acme", "bolt"]]],
    }
    features = found.vectors({"price": [3.0, None, 5.0], "brand": ["bolt", "acme", "new"]})
    by_hand = np.array([[3, 0, 1, 0], [7, 1, 0, 1], [5, 0, 0, 0]]) @ w
    np.testing.assert_allclose(found.score(features), by_hand[:, 0])
    with pytest.raises(ValueError, match="brand"):
        found.vectors({"price": [1.0]})


def test_ids_that_a_table_does_not_know_have_its_first_row(tmp_path):
    steps = [("row", "row", ["table", "ids"], {}), ("log_sigmoid", "log_sigmoid", ["row"], {})]
    tables = scorer(tmp_path, *steps, table=TABLE)
    expected = -np.log1p(np.exp(-np.array([0.5, -1.0, 2.0, 0.5, 0.5])))
    np.testing.assert_allclose(tables.score(ids=[0, 1, 2, 3, -1]), expected)
    assert tables.rank(ids=[1, 2, 3]).tolist() == [1, 2, 0]
    assert tables.reads_ids and tables.width is None


def test_what_a_step_reads_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match="ids"):
        scorer(tmp_path, ("row", "row", ["table", "ids"], {}), table=TABLE).score()
    reads = scorer(tmp_path, ("squeeze", "squeeze", ["features"], {}), features=3)
    for given, named in ((None, "3 numbers"), (X[:, :2], r"\(5, 2\)")):
        with pytest.raises(ValueError, match=named):
            reads.score(given)
