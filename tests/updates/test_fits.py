"""Chains of fits against the best normal posterior of all clicks, by quadrature in float64."""

import numpy as np
import pytest
from flax import nnx
from numpy.polynomial.hermite_e import hermegauss
from scipy import optimize

from clickexp.data import Sessions
from clickexp.models import DocumentCTRModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.posteriors.exported import row_tables
from clickexp.posteriors.rows import newton_refined
from clickexp.training import Trainer
from clickexp.training.checkpoint import read_parameters, save_model
from clickexp.training.earlier import EarlierLogs
from clickexp.updates.growth import Sizes, take_over

pytestmark = pytest.mark.nightly

DOCUMENTS, SESSIONS, RANKS = 60, 1200, 3
TOWER = EmbeddingParameterConfig(posterior="normal", add_baseline=False)


def halves():
    rng = np.random.default_rng(0)
    rate = rng.beta(2, 5, DOCUMENTS + 1)
    ids = rng.integers(1, DOCUMENTS + 1, (2 * SESSIONS, RANKS)).astype(np.int32)
    clicks = rng.random(ids.shape) < rate[ids]
    parts = slice(0, SESSIONS), slice(SESSIONS, None)
    return [
        Sessions.from_arrays(
            query_doc_ids=ids[part], clicks=clicks[part], query_doc_pairs=DOCUMENTS
        )
        for part in parts
    ]


def best(clicks, impressions, prior_mean, precision):
    """Mean and deviation of the normal posterior of a logit with the highest evidence bound."""
    nodes, weights = hermegauss(60)
    weights = weights / weights.sum()

    def loss(theta):
        mean, sd = theta[0], np.exp(theta[1])
        z = mean + sd * nodes
        expected = weights @ (clicks * z - impressions * np.logaddexp(0, z))
        away = precision * (sd**2 + (mean - prior_mean) ** 2)
        return -expected + (away - 1 - np.log(precision * sd**2)) / 2

    found = optimize.minimize(loss, [prior_mean, -1.0], tol=1e-10).x
    return found[0], np.exp(found[1])


def test_two_halves_of_a_log_know_what_the_whole_does(tmp_path):
    first, second = halves()
    model = DocumentCTRModel(DOCUMENTS, TOWER, rngs=nnx.Rngs(0))
    report = Trainer(seed=0).train(model, first, first)
    model = newton_refined(model, row_tables(model), first)
    save_model(model, tmp_path / "model.npz")
    later = DocumentCTRModel(DOCUMENTS, TOWER, rngs=nnx.Rngs(0))
    take_over(later, read_parameters(tmp_path / "model.npz"), Sizes(RANKS), 1.0)
    trainer = Trainer(seed=0, earlier=EarlierLogs(report.documents))
    counted = trainer.train(later, second, second).documents
    later = newton_refined(later, row_tables(later), second)
    ids, clicks = (
        np.concatenate([part.column(name).ravel() for part in (first, second)])
        for name in ("query_doc_ids", "clicks")
    )
    impressions = np.bincount(ids, minlength=DOCUMENTS + 1)
    np.testing.assert_array_equal(counted[("ctr", "table")].sums[:, 0], impressions)
    rows = later.ctr.table.get_value()
    prior = float(rows.prior.mean[0]), float(np.exp(rows.prior.log_precision))
    clicked = np.bincount(ids, clicks, DOCUMENTS + 1)
    expected = np.array(
        [best(c, n, *prior) for c, n in zip(clicked[1:], impressions[1:], strict=True)]
    )
    mean, sd = (
        np.asarray(each)[1:, 0] for each in (rows.means(rows.values), rows.deviations(rows.values))
    )
    away = (mean - expected[:, 0]) / expected[:, 1]
    assert np.mean(away**2) < 0.06**2  # of an error of 1 that the log leaves
    assert np.mean(np.log(sd / expected[:, 1]) ** 2) < 0.03**2
    # the prior is that of all rows
    np.testing.assert_allclose(prior[0], mean.mean(), atol=5e-3)  # refitted before the Newton step
    np.testing.assert_allclose(1 / prior[1], np.mean((mean - mean.mean()) ** 2 + sd**2), rtol=0.05)
