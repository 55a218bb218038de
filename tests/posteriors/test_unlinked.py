"""What a log leaves open, against the derivatives of click probabilities by all that a model has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_tables import with_fixed_tables
from flax import nnx
from jax.flatten_util import ravel_pytree

from clickexp.data import Sessions
from clickexp.data.inspect.identifiability import identifiability
from clickexp.models import (
    CascadeModel,
    PositionBasedModel,
    TrustBiasModel,
    TwoTowersModel,
    UserBrowsingModel,
)
from clickexp.parameters import EmbeddingParameterConfig, HashEmbedding, PositionParameter, Table
from clickexp.posteriors.intervals import shared_intervals
from clickexp.posteriors.shared import SharedPosterior
from clickexp.posteriors.unlinked import with_open_factors

PAIRS, RANKS = 8, 4
APART = [[1, 2, 5, 6], [2, 1, 6, 5], [3, 4, 7, 8], [4, 3, 8, 7]]
"""Documents link positions 1 and 2, and 3 and 4."""
LINKED = [*APART, [1, 2, 3, 4]]
NUMBERS = EmbeddingParameterConfig(posterior="none")
KINDS = {PositionBasedModel: 1, UserBrowsingModel: 1, TwoTowersModel: 1, TrustBiasModel: 2}
"""Models, and how many directions a second group of positions leaves open."""


def log_of(lists):
    ids = np.repeat(np.array(lists, np.int32), 2**RANKS, axis=0)
    clicks = np.tile(np.array(list(np.ndindex(*[2] * RANKS)), bool), (len(lists), 1))
    return Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=PAIRS)


def groups_of(log):
    return identifiability(log).groups


def model_of(kind, **towers):
    """With random numbers in all towers of positions."""
    model = kind(
        positions=RANKS,
        query_doc_pairs=PAIRS,
        **{"attraction": NUMBERS, **towers},
        rngs=nnx.Rngs(0),
    )
    rng = np.random.default_rng(0)
    for tower in vars(model).values():
        if isinstance(tower, PositionParameter):
            tower.weight[...] = jnp.asarray(rng.normal(size=tower.weight.shape), jnp.float32)
    if kind is TrustBiasModel:
        model.true_positive.weight[...] = model.false_positive.weight[...] + 1.5
    return model


def batch_of(log):
    shape = (log.count, RANKS)
    columns = {name: log.column(name) for name in ("query_doc_ids", "clicks")}
    return {
        **columns,
        "positions": np.tile(np.arange(1, RANKS + 1), (log.count, 1)),
        "mask": np.ones(shape, bool),
    }


def posterior_of(model, log):
    """A random covariance of the numbers of positions that the log moves."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params):
        model = nnx.merge(graphdef, params, rest, copy=True)
        first = jax.tree.leaves(params)[0].reshape(-1)[0]
        return with_fixed_tables(model, first).compute_loss(batch_of(log))

    names = [
        f"{'/'.join(map(str, path))}[{place}]"
        for path, slope in nnx.to_flat_state(jax.grad(loss)(params))
        for place in np.flatnonzero(slope[...])
        if path[-1] == "weight"
    ]
    root = 0.02 * np.random.default_rng(0).normal(size=(len(names), len(names)))
    return SharedPosterior(tuple(names), root @ root.T)


def derivatives(model, log, posterior):
    """Of log P(clicks) of each list, by the numbers of the posterior and by those of documents."""
    graphdef, params, tables, rest = nnx.split(model, nnx.Param, Table, ...)
    theta, back = ravel_pytree(params)
    rows, back_to_rows = ravel_pytree(tables)

    def log_probs(theta, rows):
        whole = nnx.merge(graphdef, back(theta), back_to_rows(rows), rest, copy=True)
        return -jnp.sum(whole.compute_loss(batch_of(log), aggregate=False), axis=1)

    by_theta, by_rows = jax.jacfwd(log_probs, argnums=(0, 1))(theta, rows)
    return np.asarray(by_theta)[:, posterior.places(model)], np.asarray(by_rows)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_open_changes_no_probability_of_clicks(kind):
    """To first order, where documents take it up; and nothing else is."""
    log, model = log_of(APART), model_of(kind)
    posterior = posterior_of(model, log)
    more = with_open_factors(model, posterior, groups_of(log)).covariance - posterior.covariance
    values, vectors = np.linalg.eigh(more)
    unknown = vectors[:, values > 1e-6 * values.max()]
    assert unknown.shape[1] == KINDS[kind]
    by_theta, by_rows = derivatives(model, log, posterior)
    moved = by_theta @ unknown
    left = moved - by_rows @ np.linalg.lstsq(by_rows, moved, rcond=1e-5)[0]
    assert np.abs(left).max() < 1e-3 * np.abs(moved).max()


def test_an_open_shift_of_two_towers_has_a_deviation_of_100():
    log, model = log_of(APART), model_of(TwoTowersModel)
    posterior = posterior_of(model, log)
    more = with_open_factors(model, posterior, groups_of(log)).covariance - posterior.covariance
    of_later = [place for place, name in enumerate(posterior.names) if name[-3:] in ("[3]", "[4]")]
    np.testing.assert_allclose(more[np.ix_(of_later, of_later)], 100.0**2, rtol=1e-6)
    assert np.count_nonzero(more) == len(of_later) ** 2 == 4


@pytest.mark.parametrize("kind", KINDS)
def test_ratios_are_open_between_groups_and_as_before_within(kind):
    log, model = log_of(APART), model_of(kind)
    posterior = posterior_of(model, log)
    before = {
        (e.position, e.last_click): e
        for e in shared_intervals(model, posterior)
        if e.relative is not None
    }
    widened = with_open_factors(model, posterior, groups_of(log))
    after = {
        (e.position, e.last_click): e
        for e in shared_intervals(model, widened)
        if e.relative is not None
    }
    assert before.keys() == after.keys() and {position for position, _ in after} == {1, 2, 3, 4}
    for (position, last), each in after.items():
        assert each.relative == before[position, last].relative
        if position > 2:
            assert each.relative_low is None and each.relative_high is None
        else:
            np.testing.assert_allclose(each.sd, before[position, last].sd, rtol=1e-4, atol=1e-6)


def test_a_ratio_within_a_later_group_stays():
    log, model = log_of(APART), model_of(PositionBasedModel)
    posterior = posterior_of(model, log)

    def ratio(model):
        return jnp.diff(jax.nn.log_sigmoid(model.examination.weight[...][3:5]))

    found = [
        each.covariance_of(model, ratio)[0, 0]
        for each in (posterior, with_open_factors(model, posterior, groups_of(log)))
    ]
    np.testing.assert_allclose(*found, rtol=1e-3)


SHARED = {
    "positions are linked": (PositionBasedModel, LINKED, {}),
    "documents have numbers in common": (
        PositionBasedModel,
        APART,
        {"attraction": EmbeddingParameterConfig(embedding_fn=HashEmbedding, compression_ratio=2)},
    ),
    "clicks determine the scale": (CascadeModel, APART, {}),
}


@pytest.mark.parametrize("case", SHARED)
def test_nothing_is_left_open_where(case):
    kind, lists, towers = SHARED[case]
    model, log = model_of(kind, **towers), log_of(lists)
    names = [f"examination/weight[{position}]" for position in range(1, RANKS + 1)]
    posterior = SharedPosterior(tuple(names), np.eye(RANKS))
    assert with_open_factors(model, posterior, groups_of(log)) is posterior
