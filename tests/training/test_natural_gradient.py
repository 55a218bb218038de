"""Natural gradients of posteriors where steps could overshoot or be lost: frequent rows, bursts and steep towers."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_logs import Last, sigmoid

from clickexp.data import Sessions
from clickexp.models import DocumentCTRModel
from clickexp.parameters import Parameter
from clickexp.parameters.table import new_table
from clickexp.training import NaturalGradient, Optimizer, Trainer
from clickexp.training.optimizers import with_rate

PRECISION = 1.5
TRUTH = np.array([0.02, 0.3, 0.5, 0.93])


class Steep(Parameter):
    """A logit that moves as many times as fast as the number in its table as `slopes` say by rank."""

    def __init__(self, documents, slopes):
        self.slopes = nnx.static(tuple(slopes))
        self.table = new_table(documents + 1, 1, PRECISION, "normal", learns_prior=False)

    def logit(self, batch):
        return np.array(self.slopes, np.float32) * self.table.take(batch["query_doc_ids"])[..., 0]


def log_of(documents, impressions, ranks, in_order):
    """Lists of documents in random order, or one document after the other; impressions and clicks [id, rank]."""
    rng = np.random.default_rng(impressions)
    ids = np.repeat(np.arange(1, documents + 1, dtype=np.int32), impressions)
    ids = (ids if in_order else rng.permutation(ids)).reshape(-1, ranks)
    clicks = rng.random(ids.shape) < np.resize(TRUTH, documents)[ids - 1]
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=documents)
    places = ids.astype(int) * ranks + np.arange(ranks)
    shown, clicked = (
        np.bincount(places.ravel(), weights, (documents + 1) * ranks).reshape(-1, ranks)[1:]
        for weights in (None, clicks.ravel())
    )
    return log, shown, clicked


def best(shown, clicked, slopes):
    """Mean and standard deviation of the normal posterior with the highest evidence lower bound, in float64."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    mean, log_sd = 0.0, np.log(0.3)
    curvature = PRECISION + shown @ np.square(slopes) / 4
    for _ in range(6000):
        sd = np.exp(log_sd)
        error = slopes @ (shown[:, None] * sigmoid(np.outer(slopes, mean + sd * nodes)) - clicked[:, None])
        of_mean = weights @ error + PRECISION * mean
        of_log_sd = sd * weights @ (error * nodes) + PRECISION * sd * sd - 1
        mean, log_sd = mean - of_mean / curvature, log_sd - of_log_sd / (2 + sd * sd * curvature)
    return mean, np.exp(log_sd)


@pytest.mark.parametrize(
    ("documents", "impressions", "slopes", "options"),
    [
        (20, 3000, [1], dict(batch_size=60_000)),
        (20, 3000, [1], dict(batch_size=500)),
        (20, 320, [20], dict(batch_size=200)),
        (20, 3000, [20], dict(batch_size=2000)),
        (20, 3000, [1, 30, 30, 30], dict(batch_size=1500)),
        (40, 1000, [1], dict(batch_size=1000, shuffle=False)),
    ],
    ids=["whole log", "small batches", "steep", "steep, many", "steep below the top", "bursts"],
)
def test_rows_reach_the_best_normal_posterior(documents, impressions, slopes, options):
    log, shown, clicked = log_of(documents, impressions, len(slopes), in_order=not options.get("shuffle", True))
    tower = Steep(documents, slopes)
    for rate in (0.3, 0.05):
        trained(tower, log, rate, 30, **options)
    expected = np.array([best(*each, np.array(slopes, float)) for each in zip(shown, clicked, strict=True)])
    means, deviations = posteriors(tower)
    errors = (means - expected[:, 0]) / expected[:, 1]
    assert np.abs(errors).max() < 0.7 and abs(errors.mean()) < 0.15
    spreads = np.log(deviations / expected[:, 1])
    assert np.abs(spreads).max() < 0.4 and abs(spreads.mean()) < 0.1


def test_changes_below_the_last_digit_of_a_frequent_row_add_up():
    """A document of 400,000 changes its row by less than a number of float32 can; the posterior stays the best."""
    log, shown, clicked = log_of(1, 400_000, 1, in_order=False)
    mean, sd = best(shown[0], clicked[0], np.ones(1))
    tower = Steep(1, [1])
    rows = tower.table.get_value()
    values = jnp.array([[mean, np.log(sd * PRECISION**0.5)]] * 2, jnp.float32)
    tower.table.set_value(dataclasses.replace(rows, values=values))
    trained(tower, log, 0.04, 30, batch_size=4096)
    means, deviations = posteriors(tower)
    assert abs(means[0] - mean) < 0.5 * sd
    assert abs(np.log(deviations[0] / sd)) < 0.3


def trained(tower, log, rate, epochs, **options):
    documents = tower.table.largest_id
    model = DocumentCTRModel(documents, ctr=tower, rngs=nnx.Rngs(0))
    optimizer = Optimizer(with_rate(optax.adam, 0.01), NaturalGradient(0.5, posterior_rate=rate))
    Trainer(optimizer, epochs, Last(), decays=0, **options).train(model, log, log.slice(0, 100))


def posteriors(tower):
    """Means and standard deviations of documents."""
    rows = tower.table.get_value()
    return [np.asarray(each)[1:, 0] for each in (rows.means(rows.values), rows.deviations(rows.values))]
