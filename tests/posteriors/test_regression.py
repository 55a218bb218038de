"""What documents out of a sample tell, against sums over all documents and against repeated samples."""

import numpy as np
import pytest
from scipy.special import expit

from clickexp.models import PositionBasedModel, TrustBiasModel, UserBrowsingModel
from clickexp.posteriors import population
from clickexp.posteriors.policy_prior import lists_of_queries
from clickexp.posteriors.population import Population, sampled
from clickexp.posteriors.regression import Features, Regression
from clickexp.posteriors.towers import tower_of_examination
from clickexp.utils.progress import no_report
from tests.examined_logs import (
    PAIRS,
    fitted,
    log_of,
    log_of_devices,
    log_of_trust,
)

NUMBER, SAMPLED = 20_000, 1000


def scores_and_features(rng, noise):
    """Scores with the mean 0 that features explain but for noise; two features are the same."""
    offsets = rng.normal(size=(NUMBER, 3)) @ rng.normal(size=(3, 3))
    offsets = offsets[:, [0, 1, 2, 2]]
    scores = offsets @ rng.normal(size=(4, 2)) + noise * rng.normal(size=(NUMBER, 2))
    return scores, offsets + [1.0, -3, 0, 0]


def of_sample(scores, features, chosen):
    """The score and the information of all documents, as those of a sample."""
    parts = np.array_split(chosen, 3)
    regression = Regression.of(
        ((scores[part], features[part]) for part in parts), features.mean(axis=0)
    )
    some = scores[chosen]
    return regression.of_all(some.sum(axis=0), some.T @ some, len(chosen) / len(scores))


def test_scores_that_features_explain_are_those_of_all_documents():
    rng = np.random.default_rng(0)
    scores, features = scores_and_features(rng, noise=0.0)
    chosen = rng.choice(NUMBER, SAMPLED, replace=False)
    score, information = of_sample(scores, features, chosen)
    found = np.linalg.solve(information, score)
    expected = np.linalg.solve(scores.T @ scores, scores.sum(axis=0))
    np.testing.assert_allclose(found, expected, rtol=0.05)
    # a sum of squares around 0: that of the mean of the sample does not grow
    some = scores[chosen]
    np.testing.assert_allclose(information, some.T @ some * NUMBER / SAMPLED, rtol=0.15)


def test_estimates_vary_as_their_information_says():
    """Of logs whose numbers are 0: in units of their deviations, estimates have the variance 1."""
    rng, squares = np.random.default_rng(1), []
    for _ in range(300):
        scores, features = scores_and_features(rng, noise=0.7)
        score, information = of_sample(scores, features, np.arange(SAMPLED))
        squares.append(score @ np.linalg.solve(information, score))
    # chi-square of 2 numbers
    assert np.mean(squares) == pytest.approx(2, abs=0.35)


def test_features_that_explain_nothing_leave_what_the_sample_tells():
    rng = np.random.default_rng(2)
    scores, features = rng.normal(size=(NUMBER, 2)), rng.normal(size=(NUMBER, 1))
    score, information = of_sample(scores, features, np.arange(SAMPLED))
    some = scores[:SAMPLED]
    np.testing.assert_allclose(score, some.sum(axis=0), atol=3)
    np.testing.assert_allclose(information, some.T @ some, rtol=0.02, atol=20)


def population_of(kind):
    rng = np.random.default_rng(3)
    layouts = kind.with_layouts({}, ["device"]) if kind is UserBrowsingModel else {}
    truth, log = {
        PositionBasedModel: lambda: log_of(rng, kind, 500),
        UserBrowsingModel: lambda: log_of_devices(rng, 500),
        TrustBiasModel: lambda: (rng.beta(1, 3, PAIRS + 1), log_of_trust(rng, 500)[-1]),
    }[kind]()
    model = fitted(kind, truth, log, **layouts)
    tower, rows = tower_of_examination(model), model.attraction.table.get_value()
    queries = lists_of_queries(log, PAIRS + 1, no_report)
    return Population.of(log, tower, rows, model.attraction.level, queries, None), log


@pytest.mark.parametrize("kind", [PositionBasedModel, UserBrowsingModel, TrustBiasModel])
def test_sums_over_all_documents_are_those_over_parts(kind, monkeypatch):
    """Layouts are among those of UBM."""
    monkeypatch.setattr(population, "_ROWS", 100)
    of_log, log = population_of(kind)
    tower, documents = of_log.tower, of_log.under_policy(of_log.sampled)
    assert not of_log.is_sampled and len(documents.means) == len(of_log.ids) < PAIRS
    cells = np.unique((documents.clicks + documents.skips).tocoo().col)
    of_log = of_log.in_cells(cells)
    documents = of_log.under_policy(of_log.sampled)
    assert documents.clicks.sum() == np.count_nonzero(log.column("clicks"))
    logits = tower.logits()[tower.rates(cells)]
    features = Features(tower.kind, logits, lambda z: np.stack([z, z**2]))
    by_document = features.of(documents)
    mean = features.mean(of_log)
    np.testing.assert_allclose(mean, by_document.mean(axis=0), rtol=1e-6, atol=1e-8)
    # the derivative of the log-likelihood by the logarithm of the last rate, where logits are their means
    step, clicks, skips = 1e-5 * (np.arange(len(logits)) == len(logits) - 1), *documents[:2]
    values = [
        np.sum(
            tower.kind(clicks, skips, documents.means[:, None]).log_likelihood(
                logits + sign * step / (1 - expit(logits))
            )
        )
        for sign in (1, -1)
    ]
    slope = mean[len(cells) + len(logits) - 1] * len(of_log.ids)
    assert slope == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5)


@pytest.mark.parametrize(
    ("documents", "shown", "taken"),
    [(40_000, 2, 40_000), (200_000, 2, 200_000), (10**6, 2, 250_000)]
    + [(10**6, 5, 100_000), (10**6, 25, 50_000)],
)
def test_documents_that_few_lists_show_are_more(documents, shown, taken):
    """They say less each, and take as long."""
    chosen = sampled(np.arange(documents), np.full(documents, shown))
    assert len(chosen) == pytest.approx(taken, rel=1e-3)


def test_mean_ranks_are_from_their_mean_over_impressions():
    of_log, log = population_of(PositionBasedModel)
    ids = log.column("query_doc_ids")
    ranks = np.broadcast_to(np.arange(1, ids.shape[1] + 1), ids.shape)
    for document in of_log.ids[::100]:
        shown = ranks[ids == document]
        expected = (shown.sum() - len(shown) * ranks.mean()) / (len(shown) + 1) / ranks.mean()
        assert of_log.ranks[document] == pytest.approx(expected, abs=1e-5)
