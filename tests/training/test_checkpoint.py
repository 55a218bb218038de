"""Fitted parameters on disk."""

import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_logs import fill_tables, ragged_log, shown, state_of

from clickexp.errors import UserError
from clickexp.models import (
    DocumentCTRModel,
    DynamicBayesianNetwork,
    PositionBasedModel,
    RankCTRModel,
    UserBrowsingModel,
)
from clickexp.parameters import DeepCrossParameterConfig, DeepParameterConfig, EmbeddingParameterConfig, Table
from clickexp.training.checkpoint import load_model, save_model

RANKS, PAIRS = 4, 12
LOG = ragged_log(8, RANKS, PAIRS)
BATCH = dict(
    query_doc_ids=jnp.asarray(LOG["query_doc_ids"]),
    clicks=jnp.asarray(LOG["clicks"]),
    mask=jnp.asarray(shown(LOG)),
    positions=jnp.arange(1, RANKS + 1, dtype=jnp.int32)[None],
    query_doc_features=jnp.asarray(np.random.default_rng(0).normal(size=(8, RANKS, 3)), jnp.float32),
)
CROSS = DeepCrossParameterConfig(features=3, hidden_units=4, deep_layers=1)
DROPOUT = DeepParameterConfig(features=3, hidden_units=4, layers=1, dropout=0.5)
WIDE = EmbeddingParameterConfig(embedding_features=3)

MODELS = {
    "RCTR": lambda seed: RankCTRModel(RANKS, click_rate=0.1 * (1 + seed), rngs=nnx.Rngs(seed)),
    "PBM": lambda seed: PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(seed)),
    "PBM, wide rows": lambda seed: PositionBasedModel(RANKS, PAIRS, attraction=WIDE, rngs=nnx.Rngs(seed)),
    "UBM": lambda seed: UserBrowsingModel(RANKS, PAIRS, rngs=nnx.Rngs(seed)),
    "DBN": lambda seed: DynamicBayesianNetwork(PAIRS, rngs=nnx.Rngs(seed)),
    "DBN, networks": lambda seed: DynamicBayesianNetwork(None, CROSS, DROPOUT, rngs=nnx.Rngs(seed)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_is_the_saved_one(name, tmp_path):
    model, other = (fill_tables(MODELS[name](seed), seed) for seed in (0, 1))
    for each in (model, other):
        each.eval()
    save_model(model, tmp_path / "model.npz")
    assert any((a != b).any() for a, b in zip(state_of(model), state_of(other), strict=True))
    assert load_model(other, tmp_path / "model.npz") is other
    for a, b in zip(state_of(model), state_of(other), strict=True):
        np.testing.assert_array_equal(a, b)
    for predict in ("predict_clicks", "predict_conditional_clicks", "predict_relevance"):
        np.testing.assert_array_equal(getattr(model, predict)(BATCH), getattr(other, predict)(BATCH))


def pbm(posterior, pairs=PAIRS):
    tower = EmbeddingParameterConfig(posterior=posterior)
    return PositionBasedModel(RANKS, pairs, attraction=tower, rngs=nnx.Rngs(0))


PRIOR = {
    "attraction/table/prior/log_precision": (),
    "attraction/table/prior/mean": (1,),
}
BY_RANK = {"attraction/table/prior/slope": (1,), "attraction/table/log_ranks": (2,)}


@pytest.mark.parametrize(
    "posterior, rows",
    [
        ("none", {"attraction/table": (PAIRS + 1, 1)}),
        ("normal", {"attraction/table": (PAIRS + 1, 2), **PRIOR}),
        ("normal_by_rank", {"attraction/table": (PAIRS + 1, 3), **PRIOR, **BY_RANK}),
    ],
)
def test_arrays_are_named_by_their_path(posterior, rows, tmp_path):
    save_model(pbm(posterior), tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as stored:
        shapes = {name: stored[name].shape for name in stored}
    assert shapes == {"attraction/baseline": (), **rows, "examination/weight": (RANKS + 1,)}


def test_posteriors_are_loaded_as_they_were_saved(tmp_path):
    rng, model, other = np.random.default_rng(0), pbm("normal_by_rank"), pbm("normal_by_rank")
    learned = nnx.state(model, (nnx.Param, Table))
    nnx.update(
        model, jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), learned)
    )
    save_model(model, tmp_path / "model.npz")
    load_model(other, tmp_path / "model.npz")
    for a, b in zip(state_of(model), state_of(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert other.attraction.posterior(BATCH)[1] is not None


@pytest.mark.parametrize("features", [1, 3])
def test_a_model_without_posteriors_is_loaded_as_numbers(features, tmp_path):
    """As the files of earlier versions, into what is a table of posteriors today."""
    points, posteriors = (
        PositionBasedModel(
            RANKS,
            PAIRS,
            attraction=EmbeddingParameterConfig(embedding_features=features, posterior=posterior),
            rngs=nnx.Rngs(seed),
        )
        for seed, posterior in enumerate(("none", "normal"))
    )
    save_model(fill_tables(points), tmp_path / "model.npz")
    load_model(posteriors, tmp_path / "model.npz")
    for predict in ("predict_clicks", "predict_conditional_clicks", "predict_relevance"):
        np.testing.assert_array_equal(getattr(posteriors, predict)(BATCH), getattr(points, predict)(BATCH))


def test_a_file_of_another_size_leaves_posteriors_as_they_are(tmp_path):
    save_model(pbm("none"), tmp_path / "model.npz")
    model = pbm("normal", PAIRS + 1)
    with pytest.raises(ValueError, match="attraction/table differ"):
        load_model(model, tmp_path / "model.npz")
    assert model.attraction.posterior(BATCH)[1] is not None


@pytest.mark.parametrize(
    "build, named",
    [
        (lambda: PositionBasedModel(RANKS, PAIRS + 1, rngs=nnx.Rngs(0)), "attraction/table"),
        (lambda: PositionBasedModel(RANKS + 1, PAIRS, rngs=nnx.Rngs(0)), "examination/weight"),
        (lambda: DocumentCTRModel(PAIRS, rngs=nnx.Rngs(0)), "attraction/baseline.*ctr/table.*weight"),
        (lambda: MODELS["PBM, wide rows"](0), "attraction/projection, attraction/table"),
    ],
)
def test_another_structure_is_an_error_that_names_file_and_arrays(build, named, tmp_path):
    save_model(MODELS["PBM"](0), tmp_path / "model.npz")
    model = build()
    before = state_of(model)
    with pytest.raises(ValueError, match=f"model.npz was written by another.*{named}"):
        load_model(model, tmp_path / "model.npz")
    for a, b in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="model.npz"):
        load_model(MODELS["PBM"](0), tmp_path / "model.npz")


def test_a_model_that_cannot_be_written_leaves_the_one_before(tmp_path):
    """As on a full disk: files may not grow beyond some bytes."""
    file = tmp_path / "model.npz"
    save_model(MODELS["PBM"](0), file)
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large.*model.npz"):
            save_model(MODELS["DBN"](1), file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*tmp_path.iterdir()] == [file] and file.read_bytes() == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content.replace(b"NUMPY", b"NUMPI"),
        lambda content: b"no archive",
    ],
)
def test_a_damaged_model_is_an_error_in_one_line(spoil, tmp_path):
    file = tmp_path / "model.npz"
    save_model(MODELS["PBM"](0), file)
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(UserError, match=r"model.npz is damaged \(\w+\)\. Run the experiment again\.$"):
        load_model(MODELS["PBM"](0), file)
