"""A model that takes over an earlier run's parameters: sites against float64, and tables that have grown."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from small_logs import packed, ragged_log

from clickexp.errors import ConfigError
from clickexp.models import (
    DocumentCTRModel,
    DocumentRankCTRModel,
    PositionBasedModel,
    UserBrowsingModel,
)
from clickexp.parameters import EmbeddingParameterConfig, HashEmbedding, PositionParameterConfig
from clickexp.parameters.layouts import LayoutParameterConfig
from clickexp.parameters.table import Table, powers
from clickexp.training import NaturalGradient, Trainer
from clickexp.training.checkpoint import read_parameters, save_model
from clickexp.training.sparse import learned_priors, packing
from clickexp.updates.growth import Sizes, take_over

RANKS, PAIRS, MORE = 4, 30, 37
LOG = packed(ragged_log(128, RANKS, PAIRS - 2), PAIRS)
"""Without the last two pairs."""
WIDE = EmbeddingParameterConfig(posterior="normal_by_rank", embedding_features=2)


def trained(model):
    Trainer(epochs=5, seed=0).train(model, LOG, LOG)
    return model


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Parameters of a run, and the documents that it has counted."""
    file = tmp_path_factory.mktemp("run") / "model.npz"
    model = PositionBasedModel(RANKS, PAIRS, attraction=WIDE, rngs=nnx.Rngs(0))
    report = Trainer(epochs=5, seed=0).train(model, LOG, LOG)
    save_model(model, file)
    return read_parameters(file), report.documents


@pytest.fixture(scope="module")
def stored(first):
    return first[0]


def moments(rows):
    """Means and precisions of rows in float64, from their definition."""
    values = np.asarray(rows.values, np.float64)
    offsets, spreads, x = (
        values[:, : rows.dim],
        values[:, rows.dim : 2 * rows.dim],
        values[:, 2 * rows.dim],
    )
    known = np.isfinite(x)
    of_ranks = np.where(known[:, None], np.asarray(powers(np.where(known, x, 0.0))), 0.0)
    center = np.asarray(rows.prior.mean) + of_ranks @ np.asarray(rows.prior.slopes, np.float64)
    tau = np.exp(float(rows.prior.log_precision))
    return center + offsets, tau * np.exp(-2 * spreads), center, tau


def without_documents(tables, documents):
    """Tables as training starts with those that this log has no documents of."""
    found = {
        path: learned_priors.Documents(jnp.zeros_like(each.sums), jnp.zeros(()))
        for path, each in documents.items()
    }
    return learned_priors.shares(tables, found, documents)


def test_an_update_without_clicks_is_the_posterior_of_the_run(first):
    """Prior times site gives back what each row knew, also in a larger table."""
    stored, documents = first
    model = PositionBasedModel(RANKS, MORE, attraction=WIDE, rngs=nnx.Rngs(1))
    before = PositionBasedModel(RANKS, PAIRS, attraction=WIDE, rngs=nnx.Rngs(1))
    take_over(before, stored, Sizes(RANKS), None)
    take_over(model, stored, Sizes(RANKS), 1.0)
    rows = model.attraction.table.get_value()
    mean, precision, center, tau = moments(rows)
    expected_mean, expected_precision, _, _ = moments(before.attraction.table.get_value())
    site, tilt = (np.asarray(each, np.float64) for each in rows.site(rows.values))
    np.testing.assert_allclose((tau * center + tilt) / (tau + site), mean, atol=1e-6)
    np.testing.assert_allclose(tau + site, precision, rtol=1e-6)
    np.testing.assert_allclose(mean[: PAIRS + 1], expected_mean, atol=1e-6)
    np.testing.assert_allclose(precision[: PAIRS + 1], expected_precision, rtol=1e-6)
    tables = packing.pack(nnx.state(model, Table), NaturalGradient(0.5))
    laid = packing.learned(tables)["attraction"]["table"].get_value()
    trained_mean, trained_precision, _, _ = moments(laid)
    np.testing.assert_allclose(trained_mean, mean, atol=1e-6)
    np.testing.assert_allclose(trained_precision, precision, rtol=1e-6)
    np.testing.assert_array_equal(laid.values[:, rows.numbers :], rows.values[:, rows.numbers :])
    grown = {
        path: dataclasses.replace(each, sums=np.pad(each.sums, ((0, MORE - PAIRS), (0, 0))))
        for path, each in documents.items()
    }
    tables = packing.learned(without_documents(tables, grown))
    started = moments(tables["attraction"]["table"].get_value())
    shown = slice(1, PAIRS - 1)
    np.testing.assert_allclose(started[0][shown], expected_mean[shown], atol=1e-6)
    np.testing.assert_allclose(started[1][shown], expected_precision[shown], rtol=1e-6)
    assert np.abs(tilt[1 : PAIRS - 1]).min() > 0 and not tilt[PAIRS - 1 :].any()
    np.testing.assert_array_equal(precision[PAIRS + 1 :], tau)


def test_half_of_what_rows_know_is_forgotten_after_a_half_life(stored):
    whole, half = (
        PositionBasedModel(RANKS, PAIRS, attraction=WIDE, rngs=nnx.Rngs(1)) for _ in range(2)
    )
    take_over(whole, stored, Sizes(RANKS), 1.0)
    taken = take_over(half, stored, Sizes(RANKS), 0.5)
    mean, precision, center, tau = moments(whole.attraction.table.get_value())
    less, kept, _, _ = moments(half.attraction.table.get_value())
    known = precision > tau
    np.testing.assert_allclose((kept - tau)[known], 0.5 * (precision - tau)[known], rtol=1e-4)
    pulled = ((precision * mean - tau * center) / 2 + tau * center) / kept
    np.testing.assert_allclose(less[known], pulled[known], atol=1e-5)
    assert taken.forgotten == pytest.approx(0.5)


def test_new_positions_do_not_move_what_is_known_of_others(tmp_path):
    """UBM's table of positions and last clicks has another width with more positions."""
    small = trained(UserBrowsingModel(RANKS, PAIRS, rngs=nnx.Rngs(0)))
    save_model(small, tmp_path / "model.npz")
    large = UserBrowsingModel(RANKS + 2, PAIRS, rngs=nnx.Rngs(0))
    start = np.asarray(large.examination.weight[...])
    taken = take_over(large, read_parameters(tmp_path / "model.npz"), Sizes(RANKS), 1.0)
    old = np.asarray(small.examination.weight[...]).reshape(RANKS + 1, RANKS + 1)
    new = np.asarray(large.examination.weight[...]).reshape(RANKS + 3, RANKS + 3)
    np.testing.assert_array_equal(new[: RANKS + 1, : RANKS + 1], old)
    np.testing.assert_array_equal(new[RANKS + 1 :].ravel(), start[(RANKS + 1) * (RANKS + 3) :])
    assert [*taken.places] == ["examination/weight"]


def test_rows_by_document_and_position_stay_with_these(tmp_path):
    """More documents come behind; more positions would move all rows, as would more buckets of a hash."""
    small = trained(DocumentRankCTRModel(RANKS, PAIRS, rngs=nnx.Rngs(0)))
    save_model(small, tmp_path / "model.npz")
    parameters = read_parameters(tmp_path / "model.npz")
    large = DocumentRankCTRModel(RANKS, MORE, rngs=nnx.Rngs(0))
    take_over(large, parameters, Sizes(RANKS), 1.0)
    old, new = (np.asarray(m.ctr.table.get_value().values)[:, :3] for m in (small, large))
    at = 5 * RANKS + 2 - 1  # of pair 5 at position 2
    np.testing.assert_allclose(new[at], old[at], atol=1e-6)
    with refuses(ConfigError, "ctr/table", "cannot grow"):
        take_over(
            DocumentRankCTRModel(RANKS + 1, PAIRS, rngs=nnx.Rngs(0)), parameters, Sizes(RANKS), 1.0
        )
    tower = EmbeddingParameterConfig(embedding_fn=HashEmbedding, compression_ratio=2)
    hashed = trained(PositionBasedModel(RANKS, PAIRS, attraction=tower, rngs=nnx.Rngs(0)))
    save_model(hashed, tmp_path / "hashed.npz")
    more = PositionBasedModel(RANKS, MORE, attraction=tower, rngs=nnx.Rngs(0))
    with refuses(ConfigError, "attraction/table", "parameters=N"):
        take_over(more, read_parameters(tmp_path / "hashed.npz"), Sizes(RANKS), 1.0)


def test_layouts_and_positions_that_are_new_come_between_known_cells(tmp_path):
    """A cell is layout (positions + 1) + position; layouts that are not known come last."""
    tower = LayoutParameterConfig(PositionParameterConfig(), ("device", "ad"))

    def build(ranks, device, ad):
        sizes = dict(columns={"device": device, "ad": ad}, examination=tower)
        return PositionBasedModel(ranks, PAIRS, **sizes, rngs=nnx.Rngs(0))

    small, large = build(RANKS, 1, 1), build(RANKS + 1, 2, 1)
    table = small.examination.terms["differences"].table
    rows = table.get_value()
    values = np.random.default_rng(0).normal(size=rows.values.shape).astype(np.float32)
    table.set_value(dataclasses.replace(rows, values=jnp.asarray(values)))
    save_model(small, tmp_path / "model.npz")
    stored = read_parameters(tmp_path / "model.npz")
    taken = take_over(large, stored, Sizes(RANKS, {"device": 1, "ad": 1}), 1.0)
    expected = np.zeros((7 * (RANKS + 2), 2), np.float32)
    known = set()
    for old, new in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 6)]:
        for position in range(RANKS + 1):
            at = new * (RANKS + 2) + position
            expected[at] = values[old * (RANKS + 1) + position]
            known.add(at)
    found = large.examination.terms["differences"].table.get_value().values
    np.testing.assert_allclose(found[:, 0], expected[:, 0], atol=1e-5)
    differences = "examination/terms/differences"
    assert set(taken.places[f"{differences}/table"]) == known
    assert set(taken.places[f"{differences}/weight"]) == known


def test_a_prior_that_becomes_wide_leaves_rows_that_are_normal():
    """What a skip has taken off the precision of a row is at most a quarter of that of the prior of now."""
    model = PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(0))
    rows = model.attraction.table.get_value().with_sites()
    values = np.array(rows.values)
    values[3, -2:], values[4, -2:] = [-2.5, 0.2], [1.0, 33.0]
    prior = dataclasses.replace(rows.prior, log_precision=jnp.log(jnp.float32(10.0)))
    rows = dataclasses.replace(rows, values=jnp.asarray(values), prior=prior)
    model.attraction.table.set_value(rows)
    tables = packing.pack(nnx.state(model, Table), NaturalGradient(0.5))
    tables = packing.learned(learned_priors.refit_priors(tables))
    wide = tables["attraction"]["table"].get_value()
    assert float(jnp.exp(wide.prior.log_precision)) < 2.5 and np.isfinite(wide.values[:, :2]).all()


def test_a_run_of_another_model_is_refused(stored):
    with refuses(ConfigError, "ctr/table", "clickexp-update"):
        take_over(DocumentCTRModel(PAIRS, rngs=nnx.Rngs(0)), stored, Sizes(RANKS), 1.0)
    narrow = PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(0))
    with refuses(ConfigError, "attraction/"):
        take_over(narrow, stored, Sizes(RANKS), 1.0)
    fewer = PositionBasedModel(RANKS, PAIRS - 5, attraction=WIDE, rngs=nnx.Rngs(0))
    with refuses(ConfigError, "attraction/table"):
        take_over(fewer, stored, Sizes(RANKS), 1.0)
