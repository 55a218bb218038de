"""Sums by documents are those by directions, for models whose documents are independent given the clicks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layout_logs import layout_log
from small_logs import packed, ragged_log

from clickexp import models
from clickexp.parameters import (
    DeepParameterConfig,
    EmbeddingParameterConfig,
    GlobalParameterConfig,
    HashEmbedding,
    Rows,
    Table,
)
from clickexp.parameters.layouts import with_shared_cells
from clickexp.posteriors.derivatives import Passes, linear_towers
from clickexp.posteriors.information import prepared

RANKS, PAIRS = 4, 30
SIZES = {"query_doc_pairs": PAIRS, "positions": RANKS, "click_rate": 0.3}
MODELS = {
    "pbm": (models.PositionBasedModel, {}),
    "ubm": (models.UserBrowsingModel, {}),
    "trust bias": (models.TrustBiasModel, {}),
    "two towers": (models.TwoTowersModel, {}),
    "dctr": (models.DocumentCTRModel, {}),
    "one examination": (models.PositionBasedModel, {"examination": GlobalParameterConfig()}),
    "points": (
        models.PositionBasedModel,
        {"attraction": EmbeddingParameterConfig(posterior="none")},
    ),
}


def built(name):
    """A model with random numbers, posteriors of several widths among them."""
    model_class, towers = MODELS[name]
    wanted = {key: SIZES[key] for key in SIZES if name != "dctr" or key != "positions"}
    return randomized(model_class(**wanted, **towers, rngs=nnx.Rngs(0)))


def randomized(model):
    rng = np.random.default_rng(1)
    for _, variable in nnx.iter_graph(model):
        if isinstance(variable, Table):
            rows: Rows = variable.get_value()
            values = np.array(rows.values)
            values[:, : rows.numbers] = rng.normal(scale=0.5, size=(len(values), rows.numbers))
            variable.set_value(rows.__class__(**{**vars(rows), "values": jnp.asarray(values)}))
        elif isinstance(variable, nnx.Param):
            shape = variable[...].shape
            variable.set_value(jnp.asarray(rng.normal(size=shape), jnp.float32))
    model.eval()
    return model


FEW = ("ubm", "trust bias")


@pytest.mark.parametrize(
    "name",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.nightly) for name in MODELS],
)
def test_sums_by_documents_are_those_by_directions(name):
    check_sums(built(name), packed(ragged_log(300, RANKS, PAIRS), PAIRS))


@pytest.mark.parametrize(
    "kind",
    [
        models.PositionBasedModel,
        *(
            pytest.param(each, marks=pytest.mark.nightly)
            for each in (models.UserBrowsingModel, models.TrustBiasModel)
        ),
    ],
)
def test_so_are_those_of_layouts(kind):
    dataset = layout_log(400)
    sizes = {**SIZES, "query_doc_pairs": dataset.query_doc_pairs, "columns": dataset.columns}
    model = kind(**sizes, **kind.with_layouts({}, ("device",)), rngs=nnx.Rngs(0))
    check_sums(with_shared_cells(randomized(model)), dataset.train)


def check_sums(model, log):
    """Compares sums of all numbers and rows, and of some of them."""
    assert linear_towers(model) == linear_towers(nnx.clone(model)) != ()  # which share programs
    passes, state, data = prepared(model, log)
    others = Passes(passes.graphdef)
    moved, _ = others.reads(state, data)
    np.testing.assert_array_equal(passes.reads(state, data)[0], moved)
    sizes = {path: len(t.get_value().values) for path, t in nnx.to_flat_state(state[1])}
    for step in (1, 2):
        used = np.flatnonzero(moved)[::step]
        kept = {path: np.arange(0, size, step) for path, size in sizes.items()}
        found, wanted = (each.sums(state, used, kept, data) for each in (passes, others))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            largest = np.abs(other).max(initial=1e-3)
            np.testing.assert_allclose(one, other, rtol=0, atol=3e-6 * largest)
        for each, whole in (passes, found), (others, wanted):
            part = each.sums(state, used, kept, data, cross_only=True)
            for path, columns in part.rows.items():
                np.testing.assert_array_equal(columns, whole.rows[path][..., : len(used)])


class WithTemperature(models.PositionBasedModel):
    """A model with a shared number outside its towers."""

    name = "Temperature"

    def setup(self, rngs):
        self.temperature = nnx.Param(jnp.ones(()))


def test_other_models_are_differentiated_by_directions():
    towers = [
        EmbeddingParameterConfig(embedding_fn=HashEmbedding, compression_ratio=2),
        EmbeddingParameterConfig(use_feature="positions"),
        DeepParameterConfig(features=3),
    ]
    others = [
        models.PositionBasedModel(**SIZES, attraction=tower, rngs=nnx.Rngs(0)) for tower in towers
    ]
    others += [
        WithTemperature(**SIZES, rngs=nnx.Rngs(0)),
        models.DynamicBayesianNetwork(query_doc_pairs=PAIRS, rngs=nnx.Rngs(0)),
    ]
    assert not any(map(linear_towers, others))
