"""Propensities of logs whose first ranks are not shown, and of positions that are not ranks in the list."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from flax import nnx
from scipy.special import expit

from clickexp.data import Sessions
from clickexp.data.schema import Column
from clickexp.export.examination import examination
from clickexp.export.export import _without_formulas
from clickexp.models import PositionBasedModel, UserBrowsingModel
from clickexp.parameters import ContextParameterConfig, PositionParameterConfig, SumParameterConfig
from clickexp.parameters.layouts import LayoutParameterConfig
from clickexp.posteriors.shared import SharedPosterior

CLICKS = np.array([[1, 0], [1, 1], [0, 1]], bool)
AT = np.array([[3, 6], [3, 6], [6, 3]], np.int32)
"""Positions of a log that shows the third and the sixth only."""
LOG = Sessions.from_arrays(
    query_doc_ids=np.array([[1, 2], [2, 3], [1, 3]], np.int32),
    clicks=CLICKS,
    positions=AT,
    query_doc_pairs=3,
)
LOGITS = np.array([0.0, 2.0, 0.0, 1.0, 0.0, 0.0, -1.0])


def pbm():
    model = PositionBasedModel(positions=6, query_doc_pairs=3, rngs=nnx.Rngs(0))
    model.examination.weight[...] = jnp.asarray(LOGITS, jnp.float32)
    return model


def test_propensities_are_relative_to_the_first_position_that_the_log_shows():
    """Nothing is known of position 1, so that a ratio to it would be one to the prior."""
    variances = np.array([0.2, 0.3])
    posterior = SharedPosterior(
        ("examination/weight[3]", "examination/weight[6]"), np.diag(variances)
    )
    low, high = expit(LOGITS[3]), expit(LOGITS[6])
    sd = np.sqrt(variances @ [(1 - low) ** 2, (1 - high) ** 2])
    for table in (examination(pbm(), LOG), examination(pbm(), LOG, posterior)):
        assert table["rank"].to_list() == [3, 6]
        np.testing.assert_allclose(table["propensity"], [1, high / low], rtol=1e-6)
    np.testing.assert_allclose(table["propensity_sd"], [0, sd], rtol=1e-5)
    np.testing.assert_allclose(
        table["propensity_low"], [1, high / low * np.exp(-1.96 * sd)], rtol=1e-4
    )
    np.testing.assert_allclose(
        table["propensity_high"], [1, high / low * np.exp(1.96 * sd)], rtol=1e-4
    )


def test_an_interval_that_the_log_leaves_open_has_no_bounds():
    posterior = SharedPosterior(
        ("examination/weight[3]", "examination/weight[6]"), np.diag([0.2, 100.0])
    )
    table = examination(pbm(), LOG, posterior)
    assert table["propensity_sd"][1] > 7
    assert table["propensity_low"].to_list() == [1, None] and table[
        "propensity_high"
    ].to_list() == [1, None]


def test_examination_that_depends_on_positions_is_averaged_by_position():
    """UBM: examination depends on the position of the last click above, of which P(click) is known in advance."""
    model = UserBrowsingModel(positions=6, query_doc_pairs=3, rngs=nnx.Rngs(0))
    logits = np.random.default_rng(0).normal(size=model.examination.weight[...].shape)
    model.examination.weight[...] = jnp.asarray(logits, jnp.float32)
    radix = model.indices()[model.examination.config.use_feature].radix
    cells = {(at, last): at * radix + last for at, last in ((3, 0), (3, 6), (6, 0), (6, 3))}
    given = {cell: expit(logits.ravel()[place]) for cell, place in cells.items()}
    batch = {
        "query_doc_ids": np.array([[1]]),
        "positions": np.array([[1]]),
        "mask": np.ones((1, 1), bool),
    }
    attraction = float(np.exp(model.predict_relevance(batch))[0, 0])

    def second(at, above):
        clicked = attraction * given[above, 0]
        return clicked * given[at, above] + (1 - clicked) * given[at, 0]

    curve = [
        np.mean([given[3, 0], given[3, 0], second(3, 6)]),
        np.mean([second(6, 3), second(6, 3), given[6, 0]]),
    ]
    names = tuple(f"examination/weight[{place}]" for place in cells.values())
    table = examination(model, LOG, SharedPosterior(names, np.diag([0.1, 0.2, 0.3, 0.4])))
    assert table["rank"].to_list() == [3, 6] and table["impressions"].to_list() == [3, 3]
    np.testing.assert_allclose(table["click_rate"], [3 / 3, 1 / 3])
    np.testing.assert_allclose(table["examination"], curve, rtol=1e-5)
    np.testing.assert_allclose(table["propensity"], [1, curve[1] / curve[0]], rtol=1e-5)
    assert table["propensity_sd"][0] == pytest.approx(0) and table["propensity_sd"][1] > 0
    assert table["propensity_low"][1] < curve[1] / curve[0] < table["propensity_high"][1]


def test_context_of_search_sessions_leaves_examination_by_position():
    """Context that adds nothing: the mean over sessions is the tower at each position."""
    terms = {
        "position": PositionParameterConfig(),
        "context": ContextParameterConfig(["session_index"]),
    }
    model = PositionBasedModel(6, 3, examination=SumParameterConfig(terms), rngs=nnx.Rngs(0))
    tower = model.examination.terms["position"]
    tower.weight[...] = jnp.asarray(LOGITS[: tower.weight[...].size], jnp.float32)
    model.examination.terms["context"].weight[...] *= 0
    log = Sessions.from_arrays(
        query_doc_ids=LOG.column("query_doc_ids"),
        clicks=CLICKS,
        positions=AT,
        query_doc_pairs=3,
        extra={Column("session_index", np.float32, per="session"): np.zeros(3, np.float32)},
    )
    names = tuple(f"examination/terms/position/weight[{position}]" for position in (3, 6))
    table = examination(model, log, SharedPosterior(names, np.diag([0.2, 0.3])))
    assert table["rank"].to_list() == [3, 6]
    np.testing.assert_allclose(table["examination"], expit(LOGITS[[3, 6]]), rtol=1e-5)
    np.testing.assert_allclose(
        table["propensity"], [1, expit(LOGITS[6]) / expit(LOGITS[3])], rtol=1e-5
    )
    assert table["propensity_sd"][0] == pytest.approx(0) and table["propensity_sd"][1] > 0


def test_lists_may_be_narrower_than_the_log():
    """There is a row for each position, and none for columns that only padding has."""
    log = Sessions.from_arrays(
        query_doc_ids=np.array([[1, 2, 0, 0], [2, 1, 0, 0]], np.int32),
        clicks=np.array([[1, 0, 0, 0], [1, 1, 0, 0]], bool),
        positions=np.array([[1, 2, 0, 0], [1, 2, 0, 0]], np.int32),
        lengths=np.array([2, 2]),
        query_doc_pairs=2,
    )
    assert log.positions < log.ranks
    model = PositionBasedModel(positions=2, query_doc_pairs=2, rngs=nnx.Rngs(0))
    table = examination(model, log)
    assert table["rank"].to_list() == [1, 2]
    assert table["click_rate"].to_list() == [1.0, 0.5]


def test_examination_of_layouts_is_that_of_their_numbers():
    """Intervals lie around it; predictions count the spreads of differences, too."""
    tower = LayoutParameterConfig(PositionParameterConfig(), ["device"])
    model = PositionBasedModel(6, 3, columns={"device": 1}, examination=tower, rngs=nnx.Rngs(0))
    shared, differences = model.examination.terms.values()
    shared.weight[...] = jnp.asarray(LOGITS, jnp.float32)
    rows = differences.table.get_value()
    moved = np.random.default_rng(0).normal(size=len(rows.values))
    values = rows.values.at[:, 0].set(jnp.asarray(moved, jnp.float32))
    differences.table.set_value(dataclasses.replace(rows, values=values))
    log = Sessions.from_arrays(
        query_doc_ids=LOG.column("query_doc_ids"),
        clicks=CLICKS,
        positions=AT,
        query_doc_pairs=3,
        extra={Column("device", np.int32, per="session"): np.array([0, 1, 1], np.int32)},
    )
    table = examination(model, log).sort("device", "rank")
    assert table["rank"].to_list() == [3, 6, 3, 6]
    cells = np.array([3, 6, 7 + 3, 7 + 6])
    mean = float(rows.prior.mean[0])
    expected = expit(LOGITS[[3, 6, 3, 6]] + mean + moved[cells])
    np.testing.assert_allclose(table["examination"], expected, rtol=1e-5)


def test_names_of_layouts_in_csv_are_no_formulas():
    table = pl.DataFrame({"device": ["=1+1", "tv", "-0.5"], "rank": [-1, 2, 3]})
    assert _without_formulas(table).write_csv().split()[1:] == ["'=1+1,-1", "tv,2", "-0.5,3"]
