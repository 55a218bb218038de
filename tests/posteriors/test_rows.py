"""Refined posteriors of rows against Newton steps in float64, and exact ones on a grid."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from posteriors import NORMAL, PRECISION, filled, prior_mean
from scipy.special import expit

from clickexp.data import Sessions
from clickexp.metrics import LogLikelihood
from clickexp.models import DocumentCTRModel, DynamicBayesianNetwork, PositionBasedModel
from clickexp.posteriors import rows as rows_module
from clickexp.posteriors.rows import newton_refined
from clickexp.training import Trainer

IMPRESSIONS, CLICKS = np.array([0, 1, 20, 200]), np.array([0, 1, 3, 0])
"""Of ids 0 to 3."""


def click_rates():
    """A model whose posteriors are near those of the log, and the log: one document per list."""
    model = filled(DocumentCTRModel(query_doc_pairs=4, ctr=NORMAL, rngs=nnx.Rngs(0)))
    ids = np.repeat(np.arange(4), IMPRESSIONS)
    clicks = np.concatenate(
        [np.arange(number) < c for number, c in zip(IMPRESSIONS, CLICKS, strict=True)]
    )
    return model, Sessions.from_arrays(
        query_doc_ids=ids[:, None].astype(np.int32), clicks=clicks[:, None], query_doc_pairs=4
    )


def posterior(table):
    """Offsets from the prior and standard deviations of all rows."""
    values = np.asarray(table.get_value().values, np.float64)
    return values[:, 0], np.exp(values[:, 1]) / PRECISION**0.5


@pytest.mark.parametrize("longest", [1.0, np.inf])
def test_a_step_is_newtons_on_the_bound(longest):
    """Rows that the log does not show stay, or become their prior where they are under another one."""
    model, log = click_rates()
    before = np.asarray(model.ctr.table.get_value().values).copy()
    offset, sd = posterior(model.ctr.table)
    refined = newton_refined(model, [model.ctr.table], log, longest=longest)
    found, found_sd = posterior(refined.ctr.table)
    logit = offset + prior_mean(before[:, 2]) + float(model.ctr.baseline[...])
    points = expit(logit + sd * np.array([[1.0], [-1.0]]))
    number, clicks = (np.pad(each, (0, len(logit) - 4)) for each in (IMPRESSIONS, CLICKS))
    curvature = number * (points * (1 - points)).mean(axis=0)
    gradient = number * points.mean(axis=0) - clicks
    total = PRECISION + curvature
    most = longest * total**-0.5
    step = np.clip((gradient + PRECISION * offset) / total, -most, most)
    moves = (number > 0) | np.isinf(longest)
    assert not moves.all() or np.isinf(longest)
    expected = np.where(moves, offset - step, offset)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found_sd, np.where(moves, total**-0.5, sd), rtol=1e-4)
    np.testing.assert_array_equal(model.ctr.table.get_value().values, before)


def test_steps_from_far_off_lead_near_the_clicks():
    """Far above its click rate a document has no curvature, so that a whole step would end as far below it."""
    model, log = click_rates()
    rows = model.ctr.table.get_value()
    values = rows.values.at[2, :2].set(jnp.float32([12.0, np.log(0.5 * PRECISION**0.5)]))
    model.ctr.table.set_value(dataclasses.replace(rows, values=values))
    offset, sd = posterior(model.ctr.table)
    offsets = [offset[2]]
    for _ in range(20):
        model = newton_refined(model, [model.ctr.table], log, longest=np.inf)
        offset, after = posterior(model.ctr.table)
        assert abs(offset[2] - offsets[-1]) < 4.001 * max(sd[2], 1.0)
        offsets, sd = [*offsets, offset[2]], after
    assert offsets[1] == pytest.approx(12 - 4, rel=1e-5)
    center = prior_mean(np.asarray(values[2:3, 2])) + float(model.ctr.baseline[...])
    grid = np.linspace(-15, 15, 3001)
    logit = grid + center
    logs = CLICKS[2] * logit - IMPRESSIONS[2] * np.logaddexp(0, logit) - PRECISION * grid**2 / 2
    weights = np.exp(logs - logs.max())
    mean = np.average(grid, weights=weights)
    assert abs(offsets[-1] - mean) < 0.1 * np.sqrt(np.average((grid - mean) ** 2, weights=weights))


def test_large_logs_and_other_tables_stay_as_they_are(monkeypatch):
    model, log = click_rates()
    assert newton_refined(model, [], log) is model
    monkeypatch.setattr(rows_module, "_MOST_SESSIONS", log.count - 1)
    assert newton_refined(model, [model.ctr.table], log) is model


@pytest.mark.parametrize("steps", [64, pytest.param(256, marks=pytest.mark.nightly)])
def test_tables_of_the_same_ids_have_separate_signs(steps):
    """A list that shows a document twice couples its attraction and satisfaction."""
    towers = dict(attraction=NORMAL, satisfaction=NORMAL)
    model = filled(
        DynamicBayesianNetwork(positions=2, query_doc_pairs=1, **towers, rngs=nnx.Rngs(0))
    )
    # with deviations near 0, so that draws are means
    for tower in (model.attraction, model.satisfaction):
        rows = tower.table.get_value()
        tower.table.set_value(dataclasses.replace(rows, values=rows.values.at[:, 1].set(-12.0)))
    number = steps * 256  # steps of the pass, with signs of their own, and lists of each
    ids, clicks = np.ones((1, 2), np.int32), np.array([[True, False]])
    log = Sessions.from_arrays(
        query_doc_ids=np.repeat(ids, number, 0),
        clicks=np.repeat(clicks, number, 0),
        query_doc_pairs=1,
    )
    batch = {"query_doc_ids": ids, "clicks": clicks, "mask": np.ones((1, 2), bool)}
    batch["positions"] = np.array([[1, 2]])
    graphdef, state = nnx.split(model)

    def loss(moved):
        model = nnx.merge(graphdef, state, copy=True)
        for tower, by in zip((model.attraction, model.satisfaction), moved, strict=True):
            rows = tower.table.get_value()
            tower.table.set_value(dataclasses.replace(rows, values=rows.values.at[1, 0].add(by)))
        return jnp.sum(model.compute_loss(batch, aggregate=False))

    hessian = np.asarray(jax.jit(jax.hessian(loss))(jnp.zeros(2)), np.float64)
    better = newton_refined(model, [model.attraction.table, model.satisfaction.table], log)
    _, sd = posterior(better.attraction.table)
    own = (sd[1] ** -2 - PRECISION) / number
    # with the same signs it would be off by all of the element beside the diagonal
    four_deviations = 4 / steps**0.5 * abs(hessian[0, 1])
    assert own == pytest.approx(hessian[0, 0], abs=four_deviations)
    assert abs(hessian[0, 1]) > 0.01


@pytest.mark.nightly
def test_settled_posteriors_are_nearer_to_exact_ones():
    """Of PBM's attraction on a sparse log, for its learned prior and examination, on a grid."""
    rng, queries, documents, ranks, sessions = np.random.default_rng(0), 60, 10, 5, 2_400
    pairs = queries * documents
    truth, examination = rng.normal(-1.0, 1.0, pairs + 1), np.arange(1, ranks + 1) ** -0.7
    query = rng.integers(queries, size=sessions)
    shown = np.argsort(rng.random((sessions, documents)), axis=1)[:, :ranks]
    ids = (1 + query[:, None] * documents + shown).astype(np.int32)
    clicks = rng.random(ids.shape) < examination * expit(truth[ids])
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=pairs)
    model = PositionBasedModel(ranks, pairs, click_rate=float(clicks.mean()), rngs=nnx.Rngs(0))
    Trainer(seed=0, metrics={"ll": LogLikelihood()}).train(model, log, log)
    better = newton_refined(model, [model.attraction.table], log)

    grid = np.linspace(-12, 8, 801)
    rows = model.attraction.table.get_value()
    theta = expit(np.asarray(model.examination.weight, np.float64))[1 : ranks + 1]
    x = np.asarray(rows.values, np.float64)[:, 2]
    mean = float(model.attraction.baseline[...]) + float(rows.prior.mean[0])
    middle = mean + np.stack([x, x**2 - 1], axis=1) @ np.asarray(rows.prior.slopes[:, 0])
    logs = -np.exp(float(rows.prior.log_precision)) * (grid - middle[1:, None]) ** 2 / 2
    for rank in range(ranks):
        rate = theta[rank] * expit(grid)
        clicked = np.bincount(ids[clicks[:, rank], rank], minlength=pairs + 1)[1:, None]
        number = np.bincount(ids[:, rank], minlength=pairs + 1)[1:, None]
        logs += clicked * np.log(rate) + (number - clicked) * np.log1p(-rate)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    mean = weights @ grid
    sd = np.sqrt(weights @ grid**2 - mean**2)

    def off(found):
        """Spread of standard deviations over exact ones, and of means in exact deviations."""
        all_ids = np.arange(1, pairs + 1, dtype=np.int32)[None]
        m, v = found.attraction.posterior({"query_doc_ids": all_ids})
        return np.std(np.log(np.sqrt(v[0]) / sd)), np.std((np.asarray(m[0]) - mean) / sd)

    (trained_sd, trained_mean), (settled_sd, settled_mean) = off(model), off(better)
    assert settled_sd < 0.6 * trained_sd and settled_mean < trained_mean
    assert settled_sd == pytest.approx(0, abs=0.06) and settled_mean == pytest.approx(0, abs=0.1)
