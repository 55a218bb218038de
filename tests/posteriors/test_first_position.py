"""Intervals of attraction of trust bias have the errors of the click rate at the first position."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import expit, logit
from scipy.stats import norm

from clickexp.data import Sessions
from clickexp.models import PositionBasedModel, TrustBiasModel
from clickexp.posteriors.exported import exported
from clickexp.posteriors.first_position import FirstPosition
from clickexp.posteriors.policy_prior import PolicyPrior, ShownByRow, UnderPolicy
from clickexp.posteriors.shared import SharedPosterior
from clickexp.training import Trainer

NAMES = "false_positive/weight[1]", "false_positive/weight[2]", "true_positive/weight[1]"


def moments(model, ids):
    mean, variance = model.attraction.posterior({"query_doc_ids": ids[None]})
    return np.asarray(mean[0], np.float64), np.asarray(variance[0], np.float64)


def rates(model):
    return (float(expit(tower.weight[1])) for tower in (model.true_positive, model.false_positive))


def deviation(error):
    """Of the logit whose click rate is a 95% end away for an error to first order."""
    return np.log1p(1.959964 * error) / 1.959964


def test_documents_shown_elsewhere_have_the_errors_of_the_first_position():
    """Of two documents per query, one is always first. Its click rate is what the log says, whatever t and f are."""
    rng = np.random.default_rng(0)
    queries, lists = 120, 400
    truth = rng.normal(-1.0, 1.0, 2 * queries + 1)
    ids = np.tile(1 + np.arange(2 * queries).reshape(-1, 2), (lists, 1)).astype(np.int32)
    t, f = np.array([[0.9, 0.6], [0.3, 0.2]])
    clicks = rng.random(ids.shape) < f + (t - f) * expit(truth[ids])
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=2 * queries)
    model = TrustBiasModel(2, 2 * queries, click_rate=float(clicks.mean()), rngs=nnx.Rngs(0))
    Trainer(seed=0, epochs=4).train(model, log, log)
    shown, clicked = (
        np.bincount(ids.ravel(), weights, 2 * queries + 1) for weights in (None, clicks.ravel())
    )
    sd = np.array([0.6, 0.0, 0.3])
    posterior = SharedPosterior(NAMES, np.diag(sd**2))
    given, found, *_ = exported(model, log, shown, clicked, posterior)
    t, f = rates(model)
    first, second = ids[:queries].T
    mean, variance = moments(given, second)
    a = expit(mean)
    errors = np.hypot(sd[0] * f * (1 - f) / a, sd[2] * t * (1 - t) / (1 - a)) / (t - f)
    changed_mean, changed = moments(found, second)
    np.testing.assert_array_equal(changed_mean, mean)
    np.testing.assert_allclose(changed, variance + deviation(errors) ** 2, rtol=0.03)
    assert np.median(changed / variance) > 1.1
    # of those that clicks tell and their prior does not
    _, variance = moments(given, first)
    surest = variance < np.median(variance)
    np.testing.assert_allclose(moments(found, first)[1][surest], variance[surest], rtol=0.02)


def under_policy(rng, model, documents):
    """Posteriors of documents of queries of five, by chance."""
    rows = model.attraction.table.get_value()
    values = np.array(rows.values)
    values[:, 0] = rng.normal(0, 0.5, len(values))
    values[:, 1] = np.log(rng.uniform(0.2, 0.9, len(values))) / 2
    values[:, rows.numbers] = rng.normal(size=len(values))
    prior = dataclasses.replace(rows.prior, log_precision=jnp.float32(0.8))
    rows = dataclasses.replace(rows, values=jnp.asarray(values), prior=prior)
    model.attraction.table.set_value(rows)
    lists = 5.0 + 40 * (np.arange(documents + 1) // 5 % 7)
    impressions = np.floor(lists * rng.random(documents + 1)) + 1
    lists[0] = impressions[0] = 0
    x = values[:, rows.numbers]
    shown = ShownByRow(impressions, x, lists, np.arange(documents + 1) // 5)
    by_lists = PolicyPrior(constant=0.4, of_few=2.0, mean=0.2, slopes=(0.1,) * 7, center=-0.3)
    return UnderPolicy(model, rows, shown, np.arange(1, documents + 1), by_lists)


def test_documents_follow_the_prior_that_is_fitted_again():
    """The most likely mean by lists, and posteriors under it, where the log pulls at logits."""
    rng = np.random.default_rng(1)
    documents = 300
    model = TrustBiasModel(2, documents, rngs=nnx.Rngs(0))
    under = under_policy(rng, model, documents)
    posterior = SharedPosterior(NAMES, np.eye(3))
    first = FirstPosition.of(model, posterior, under)
    chosen = np.arange(1, documents + 1)
    pulls = rng.normal(0, 1, (documents, 3))
    intervals = under.intervals()
    rows = intervals.attraction.table.get_value()
    moves = first.moves(NAMES, rows, chosen, lambda part: pulls[part])(slice(0, documents))

    seen = under.shown
    n, lists, x = (each[chosen].astype(float) for each in (seen.impressions, seen.lists, seen.x))
    many, of_share = lists / (lists + 8), 1.7 * norm.ppf((n + 0.5) / (lists + 1)) + 0.3
    of_many, of_few = (weight * np.stack([of_share, x]) for weight in (many, 1 - many))
    curved = [of_share**2, of_share * x, x**2]
    lines = np.stack([np.ones(documents), *of_many, *of_few, *curved], axis=1)
    variances = np.exp(2 * np.asarray(under.rows.values, np.float64)[chosen, 1])
    precisions, spreads = 1 / variances - 1, 0.4 + 2.0 / (n + 2)
    scale = np.exp(0.4)
    # on the means of factors of clicks, with a standard normal prior
    weights = 1 / (1 / precisions + spreads)
    of_factors = pulls / scale / precisions[:, None]
    of_mean = np.linalg.solve(
        lines.T @ (weights[:, None] * lines) + np.eye(8), lines.T @ (weights[:, None] * of_factors)
    )
    own = 1 / (precisions + 1 / spreads)
    pulled = precisions[:, None] * of_factors + lines @ of_mean / spreads[:, None]
    expected = own[:, None] * pulled
    mean, variance = moments(intervals, chosen)
    np.testing.assert_allclose(variance, own / scale**2, rtol=1e-4)
    t, f = rates(model)

    def same_rate(sign):
        """Logits under these t and f that have the click rates of others."""
        shifted = [expit(logit(each) + sign * 1e-4) for each in (t, f)]
        found = []
        for true, false in ((t, shifted[1]), (t, f), (shifted[0], f)):
            rate = false + (true - false) * expit(mean)
            found.append(logit((rate - f) / (t - f)))
        return np.stack(found, axis=1)

    by_rate = (same_rate(1) - same_rate(-1)) / 2e-4
    found = variance[:, None] * pulls + moves
    np.testing.assert_allclose(found, expected / scale + by_rate, rtol=1e-3, atol=1e-3)
    assert np.abs(moves - by_rate).max() > 0.05


@pytest.mark.parametrize("kind", [PositionBasedModel, TrustBiasModel])
def test_models_without_both_rates_of_the_first_position_have_none(kind):
    rng = np.random.default_rng(2)
    model = kind(2, 300, rngs=nnx.Rngs(0))
    under = under_policy(rng, model, 300)
    names = ("examination/weight[1]",) if kind is PositionBasedModel else NAMES[:1]
    assert FirstPosition.of(model, SharedPosterior(names, np.eye(1)), under) is None
