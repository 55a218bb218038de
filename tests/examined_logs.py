"""Logs of users whose examination is known, and models as training may leave them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy.special import logit

from clickexp.data import Column, Sessions
from clickexp.models import PositionBasedModel, TrustBiasModel, UserBrowsingModel

RANKS, QUERIES, CANDIDATES = 4, 150, 8
PAIRS = QUERIES * CANDIDATES
BY_RANK = np.array([0.0, 0.9, 0.6, 0.4, 0.25])
AFTER_CLICKS = 0.7
"""Factor of the examination of UBM below a click."""


def examination_of(kind, last):
    """Examination by position, below a last click at `last`, 0 for none."""
    after = np.where(np.asarray(last) > 0, AFTER_CLICKS, 1.0) if kind is UserBrowsingModel else 1.0
    return BY_RANK * np.asarray(after)


def log_of(rng, kind, sessions=20_000, noise=1.5):
    """A log of lists of the best by attraction, a beta distribution, and noise."""
    truth = rng.beta(1, 3, PAIRS + 1)
    query = rng.integers(0, QUERIES, sessions)
    candidates = 1 + query[:, None] * CANDIDATES + np.arange(CANDIDATES)
    scores = logit(truth[candidates]) + rng.normal(0, noise, candidates.shape)
    ids = np.take_along_axis(candidates, np.argsort(-scores, axis=1)[:, :RANKS], axis=1)
    clicks, last = np.zeros(ids.shape, bool), np.zeros(sessions, int)
    for rank in range(RANKS):
        examined = examination_of(kind, last[:, None])
        examined = np.broadcast_to(examined, (sessions, RANKS + 1))[:, rank + 1]
        clicks[:, rank] = rng.random(sessions) < examined * truth[ids[:, rank]]
        last = np.where(clicks[:, rank], rank + 1, last)
    log = Sessions.from_arrays(
        query_doc_ids=ids.astype(np.int32), clicks=clicks, query_doc_pairs=PAIRS
    )
    return truth, log


def cells_of(kind):
    """Truth by cell of the tower of examination, 0 where there is none."""
    if kind is PositionBasedModel:
        return BY_RANK
    table = np.stack([examination_of(kind, last) for last in range(RANKS + 1)], axis=1)
    return np.where(np.arange(RANKS + 1)[:, None] > np.arange(RANKS + 1), table, 0.0).ravel()


def fitted(kind, truth, log, **settings):
    """A model as training may leave it: rows near the truth, and examination of lower ranks a tenth too low.

    That of layouts and rates of trust bias are as they begin.
    """
    sizes = dict(positions=RANKS, query_doc_pairs=PAIRS, columns={"device": 2})
    model = kind(**sizes, rngs=nnx.Rngs(0), **settings)
    ids, lists = log.column("query_doc_ids"), log.count * RANKS
    impressions = np.bincount(ids.ravel(), minlength=PAIRS + 1)
    ranks = np.broadcast_to(np.log(np.arange(1, RANKS + 1)), ids.shape)
    means = np.bincount(ids.ravel(), ranks.ravel(), PAIRS + 1) / np.maximum(impressions, 1)
    assert lists == impressions.sum()
    shown = impressions > 0
    x = np.where(shown, (means - means[shown].mean()) / means[shown].std(), np.inf)
    rows = model.attraction.table.get_value()
    if rows.prior is not None:
        deviations = 1 / np.sqrt(impressions * 0.5 * truth + 0.5)
        offsets = logit(truth) - np.asarray(rows.prior.mean)
        values = jnp.stack(
            [
                offsets,
                np.log(deviations) + float(rows.prior.log_precision) / 2,
                *[x] * rows.by_rank,
            ],
            axis=1,
        )
        changed = dataclasses.replace(rows, values=jnp.float32(values))
        model.attraction.table.set_value(changed)
    if settings.get("examination") or kind is TrustBiasModel:
        return model
    cells = cells_of(kind)
    lower = np.where(np.arange(len(cells)) // (len(cells) // (RANKS + 1)) > 1, 0.9, 1.0)
    used = cells > 0
    weight = np.where(used, logit(np.where(used, cells * lower, 0.5)), 0.0)
    model.examination.weight[...] = jnp.float32(weight)
    return model


BELOW = np.array([1.0, 1.0, 0.8, 0.6, 0.5])
"""Share of the clicks that are left on device 2, by rank."""


def log_of_devices(rng, sessions=20_000):
    """A third of the lists is of device 2, where documents at rank r get the share BELOW of the clicks of device 1."""
    truth, log = log_of(rng, PositionBasedModel, sessions)
    device = 1 + (rng.random(log.count) < 1 / 3)
    ids, clicks = log.column("query_doc_ids"), log.column("clicks")
    left = rng.random(clicks.shape) < np.where(device[:, None] == 2, BELOW[1:], 1.0)
    column = Column("device", "int8", per="session")
    return truth, Sessions.from_arrays(
        query_doc_ids=ids,
        clicks=clicks & left,
        query_doc_pairs=PAIRS,
        extra={column: device.astype(np.int8)},
    )


def log_of_trust(rng, sessions=20_000):
    """A log of lists by attraction and noise, and its true- and false-positive rates."""
    true, false = BY_RANK[1:] * 0.95, BY_RANK[1:] * [0.4, 0.25, 0.15, 0.1]
    attraction, log = log_of(rng, PositionBasedModel, sessions)
    ids = log.column("query_doc_ids")
    clicks = rng.random(ids.shape) < false + (true - false) * attraction[ids]
    return (
        true,
        false,
        Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=PAIRS),
    )
