"""Natural gradients of posteriors where steps could overshoot: rows with many documents, bursts and steep towers."""

import numpy as np
import optax
import pytest
from flax import nnx
from small_logs import sigmoid

from clickexp.data import Sessions
from clickexp.models import DocumentCTRModel
from clickexp.parameters import Parameter
from clickexp.parameters.table import new_table
from clickexp.training import EarlyStopping, NaturalGradient, Optimizer, Trainer
from clickexp.training.optimizers import with_rate

PRECISION, RATE = 1.5, 0.3
TRUTH = np.array([0.02, 0.3, 0.5, 0.93])
RULE = NaturalGradient(0.5, posterior_rate=RATE)


class Last(EarlyStopping):
    """Keeps the state of every epoch, so that of the last."""

    def update(self, values):
        return True


class Steep(Parameter):
    """A logit that moves `slope` times as fast as the number in its table."""

    def __init__(self, slope):
        self.slope = slope
        self.table = new_table(len(TRUTH) + 1, 1, PRECISION, "normal", learns_prior=False)

    def logit(self, batch):
        return self.slope * self.table.take(batch["query_doc_ids"])[..., 0]


def log_of(impressions, in_bursts):
    """Lists of one document each, in random order or one document after the other; clicks per document."""
    rng = np.random.default_rng(impressions)
    ids = np.repeat(np.arange(1, len(TRUTH) + 1, dtype=np.int32), impressions)
    ids = ids if in_bursts else rng.permutation(ids)
    clicks = rng.random(len(ids)) < TRUTH[ids - 1]
    log = Sessions.from_arrays(query_doc_ids=ids[:, None], clicks=clicks[:, None], query_doc_pairs=len(TRUTH))
    return log, np.bincount(ids, clicks)[1:]


def integrated(clicks, impressions, slope):
    """Means and standard deviations of the normal posteriors with the highest evidence lower bound, in float64."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    found = []
    for count in clicks:
        mean, log_sd = 0.0, np.log(0.3)
        for _ in range(4000):
            sd = np.exp(log_sd)
            error = impressions * sigmoid(slope * (mean + sd * nodes)) - count
            first = slope * weights @ error + PRECISION * mean
            second = slope * sd * weights @ (error * nodes) + PRECISION * sd * sd - 1
            curvature = PRECISION + impressions * slope**2 / 4
            mean, log_sd = mean - first / curvature, log_sd - second / (2 + sd * sd * curvature)
        found.append((mean, np.exp(log_sd)))
    return np.array(found).T


@pytest.mark.parametrize(
    ("impressions", "batch", "in_bursts", "slope"),
    [
        (3000, 12_000, False, 1.0),
        (3000, 100, False, 1.0),
        (300, 300, True, 1.0),
        (300, 40, False, 20.0),
        (3000, 1_000, False, 20.0),
    ],
    ids=["whole log", "small batches", "bursts", "steep", "steep, many documents"],
)
def test_rows_reach_the_best_normal_posterior(impressions, batch, in_bursts, slope):
    log, clicks = log_of(impressions, in_bursts)
    tower = Steep(slope)
    model = DocumentCTRModel(len(TRUTH), ctr=tower, rngs=nnx.Rngs(0))
    optimizer = Optimizer(with_rate(optax.adam, 0.01), RULE)
    Trainer(optimizer, 60, Last(), batch_size=batch, shuffle=not in_bursts, decays=0).train(model, log, log)
    rows = tower.table.get_value()
    mean, sd = (np.asarray(each)[1:, 0] for each in (rows.means(rows.values), rows.deviations(rows.values)))
    expected, deviation = integrated(clicks, impressions, slope)
    assert np.abs((mean - expected) / deviation).max() < 0.3
    assert np.abs(np.log(sd / deviation)).max() < 0.3
