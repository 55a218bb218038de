"""Natural gradients where steps could overshoot or be lost: frequent rows, bursts, steep towers."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_logs import Last, sigmoid

from clickexp.data import Sessions
from clickexp.metrics import LogLikelihood
from clickexp.models import DocumentCTRModel
from clickexp.parameters import Parameter
from clickexp.parameters.table import new_table
from clickexp.training import NaturalGradient, Optimizer, Trainer
from clickexp.training.optimizers import with_rate

PRECISION = 1.5
TRUTH = np.array([0.02, 0.3, 0.5, 0.93])


class Steep(Parameter):
    """A logit that is the number in its table times the slope of the rank."""

    def __init__(self, documents, slopes):
        self.slopes = nnx.static(tuple(slopes))
        self.table = new_table(documents + 1, 1, PRECISION, "normal", learns_prior=False)

    def logit(self, batch):
        return np.array(self.slopes, np.float32) * self.table.take(batch["query_doc_ids"])[..., 0]


def log_of(documents, impressions, ranks, in_order):
    """Lists of documents at random or one after the other; impressions and clicks by rank."""
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
    """Means and deviations of the normal posteriors with the highest evidence lower bounds."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    means, log_sds = np.zeros(len(shown)), np.full(len(shown), np.log(0.3))
    curvatures = PRECISION + shown @ np.square(slopes) / 4
    for _ in range(6000):
        sds = np.exp(log_sds)
        z = means[:, None] + np.outer(sds, nodes)
        rates = sigmoid(z[:, :, None] * slopes)  # document, node, rank
        errors = np.einsum("dnr,dr,r->dn", rates, shown, slopes) - (clicked @ slopes)[:, None]
        of_means = errors @ weights + PRECISION * means
        of_log_sds = sds * ((errors * nodes) @ weights) + PRECISION * sds * sds - 1
        means = means - of_means / curvatures
        log_sds = log_sds - of_log_sds / (2 + sds * sds * curvatures)
    return means, np.exp(log_sds)


STEEP_BELOW = "steep below the top"
CASES = {
    "whole log": (20, 3000, [1], dict(batch_size=60_000)),
    "small batches": (20, 3000, [1], dict(batch_size=500)),
    "steep": (20, 320, [20], dict(batch_size=200)),
    "steep, many": (20, 3000, [20], dict(batch_size=2000)),
    STEEP_BELOW: (20, 3000, [1, 30, 30, 30], dict(batch_size=1500)),
    "bursts": (40, 1000, [1], dict(batch_size=1000, shuffle=False)),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == STEEP_BELOW else pytest.mark.nightly)
        for name in CASES
    ],
)
def test_rows_reach_the_best_normal_posterior(name):
    documents, impressions, slopes, options = CASES[name]
    in_order = not options.get("shuffle", True)
    log, shown, clicked = log_of(documents, impressions, len(slopes), in_order)
    tower = Steep(documents, slopes)
    for rate in (0.3, 0.05):
        trained(tower, log, rate, 30, **options)
    best_means, best_deviations = best(shown, clicked, np.array(slopes, float))
    means, deviations = posteriors(tower)
    errors = (means - best_means) / best_deviations
    assert np.abs(errors).max() < 0.7 and abs(errors.mean()) < 0.15
    spreads = np.log(deviations / best_deviations)
    assert np.abs(spreads).max() < 0.4 and abs(spreads.mean()) < 0.1


@pytest.mark.nightly
def test_changes_below_the_last_digit_of_a_frequent_row_add_up():
    """One of 400,000 documents changes its row by less than float32 can; it stays the best."""
    log, shown, clicked = log_of(1, 400_000, 1, in_order=False)
    (mean,), (sd,) = best(shown, clicked, np.ones(1))
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
    settings = dict(decays=0, metrics={"ll": LogLikelihood()}, eval_batch_size=100)
    trainer = Trainer(optimizer, epochs, Last(), **settings, **options)
    trainer.train(model, log, log.slice(0, 100))


def posteriors(tower):
    """Means and standard deviations of documents."""
    rows = tower.table.get_value()
    return [
        np.asarray(each)[1:, 0] for each in (rows.means(rows.values), rows.deviations(rows.values))
    ]
