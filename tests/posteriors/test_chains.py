"""Gibbs samples of cascade models, against enumeration of what users do, quadrature, and closed forms."""

import itertools

import numpy as np
import pytest
from scipy.special import expit, log_expit, logit

from clickexp.models import ClickChainModel, DependentClickModel, DynamicBayesianNetwork
from clickexp.posteriors.chains import (
    Lists,
    NormalPrior,
    Readers,
    draw_logits,
    draw_shared,
)
from clickexp.posteriors.continuation import (
    EVENTS,
    around_probabilities,
    covariance_of,
    enough_draws,
)

DRAWS = 20_000
IDS = np.array([2, 0, 1])
PROBABILITIES = {
    "attraction": np.array([0.3, 0.6, 0.45]),
    "satisfaction": np.array([0.7, 0.2, 0.4]),
    "continuation": np.array([0.8]),
    "continuation_exam_no_click": np.array([0.7]),
    "continuation_click_not_satisfied": np.array([0.9]),
    "continuation_click_satisfied": np.array([0.4]),
}
BY_POSITION = np.array([0.5, 0.9, 0.6, 0.3])


def probability_of(event, place, probabilities):
    """Of an event at a place of the list: that of a row, by role, or a number."""
    if not isinstance(event, str):
        return event
    of_role = probabilities[event]
    if len(of_role) == 1:
        return of_role[0]
    return of_role[place + 1 if len(of_role) == 4 else IDS[place]]


def histories(events, probabilities, length):
    """All that a user may do: (probability, clicks, what has come true of each event, as (event, place, outcome))."""

    def walk(place, chance, clicks, seen):
        if place == length or chance == 0:
            yield chance, clicks, seen
            return

        def split(event, seen):
            p = probability_of(event, place, probabilities)
            for outcome, share in ((True, p), (False, 1 - p)):
                yield outcome, share, [*seen, (event, place, outcome)]

        for click, of_click, after_click in split(events.attraction, seen):
            options = [(events.skipped, 1.0, after_click)]
            if click and place < length - 1:
                options = [
                    (events.satisfied if satisfied else events.unsatisfied, share, after)
                    for satisfied, share, after in split(events.satisfaction, after_click)
                ]
            now = (*clicks, click)
            if place == length - 1:
                yield chance * of_click, now, after_click
                continue
            for event, share, after in options:
                for goes_on, of_going, end in split(event, after):
                    total = chance * of_click * share * of_going
                    if goes_on:
                        yield from walk(place + 1, total, now, end)
                    else:
                        yield total, (*now, *[False] * (length - place - 1)), end

    return walk(0, 1.0, (), [])


def expected_counts(events, probabilities, clicks):
    """Of events that come true and do not, by row of each role, given clicks."""
    counts = {role: np.zeros((len(p), 2)) for role, p in probabilities.items()}
    total = 0.0
    for chance, made, seen in histories(events, probabilities, len(clicks)):
        if made != clicks:
            continue
        total += chance
        for event, place, outcome in seen:
            if isinstance(event, str):
                size = len(probabilities[event])
                row = 0 if size == 1 else place + 1 if size == 4 else IDS[place]
                counts[event][row, 0 if outcome else 1] += chance
    return {role: of_role / total for role, of_role in counts.items()}


@pytest.mark.parametrize("kind", [DynamicBayesianNetwork, ClickChainModel, DependentClickModel])
def test_counts_are_those_of_all_that_users_may_do(kind):
    """For each list of clicks on up to three documents, the mean of the draws is the sum over all histories."""
    events, rng = EVENTS[kind], np.random.default_rng(0)
    roles = {event for event in events if isinstance(event, str)}
    probabilities = {role: PROBABILITIES[role] for role in roles}
    if kind is DependentClickModel:
        probabilities["continuation"] = BY_POSITION
    for length in (1, 2, 3):
        ids = np.broadcast_to(np.pad(IDS[:length], (0, 3 - length)), (DRAWS, 3))
        positions = np.broadcast_to(np.arange(1, 4), (DRAWS, 3))
        rows = {
            role: {3: ids, 4: positions, 1: np.zeros((1, 1), int)}[len(p)]
            for role, p in probabilities.items()
        }
        for clicks in itertools.product([False, True], repeat=length):
            made = np.broadcast_to(np.pad(clicks, (0, 3 - length)), (DRAWS, 3))
            lists = Lists(rows, made, np.full(DRAWS, length))
            sizes = {role: len(p) for role, p in probabilities.items()}
            logits = {role: logit(p) for role, p in probabilities.items()}
            found = Readers(events, lists, sizes).counts(logits, rng)
            for role, right in expected_counts(events, probabilities, clicks).items():
                # a count of one list is at most 3, so that its variance is at most 3 times its mean
                error = np.sqrt(3 * right / DRAWS)
                assert (np.abs(found[role] / DRAWS - right) <= 5 * error + 1e-12).all(), (
                    clicks,
                    role,
                )


def test_a_click_that_rounds_to_certain_satisfaction_is_none_where_the_user_went_on():
    """A probability of 0 / 0."""
    events, ids = EVENTS[DynamicBayesianNetwork], np.arange(3)[None]
    rows = {"attraction": ids, "satisfaction": ids, "continuation": np.zeros((1, 1), int)}
    lists = Lists(rows, np.array([[True, True, False]]), np.array([3]))
    readers = Readers(events, lists, {"attraction": 3, "satisfaction": 3, "continuation": 1})
    logits = {
        "attraction": np.zeros(3),
        "satisfaction": np.full(3, 40.0),
        "continuation": np.full(1, 2.0),
    }
    counts = readers.counts(logits, np.random.default_rng(0))["satisfaction"]
    assert counts.tolist() == [[0, 1], [1, 0], [0, 0]]


def test_logits_have_the_moments_of_their_posteriors():
    """Of documents without clicks, with clicks alone, and with many impressions, by quadrature."""
    totals = np.array([[0.0, 0.0], [0, 3], [4, 0], [2, 5], [300, 700]])
    grid = np.linspace(-9, 7, 4001)
    log_density = (
        totals[:, :1] * log_expit(grid) + totals[:, 1:] * log_expit(-grid) - (grid + 1) ** 2 / 3
    )
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    mean = density @ grid
    deviation = np.sqrt(density @ grid**2 - mean**2)
    chains, rng = 4000, np.random.default_rng(0)
    size = 5 * chains
    prior = NormalPrior(np.full(size, -1.0), np.ones((size, 1)), 1.5)
    logits, of_chains = np.zeros(size), np.tile(totals, (chains, 1))
    for _ in range(25):
        logits = draw_logits(logits, of_chains, prior, rng)
    found = logits.reshape(chains, 5)
    assert (np.abs(found.mean(axis=0) - mean) < 4 * deviation / np.sqrt(chains)).all()
    np.testing.assert_allclose(found.std(axis=0), deviation, rtol=0.05)


def test_proposals_do_not_depend_on_the_draw_before():
    """Else the chance to accept one, which takes them for independent, would be another."""
    size = 1000
    totals = np.random.default_rng(0).poisson(3.0, (size, 2)).astype(float)
    prior = NormalPrior(np.full(size, -1.0), np.ones((size, 1)), 1.5)
    before = np.stack([np.full(size, -6.0), np.full(size, 2.0)])
    after = np.stack([draw_logits(x, totals, prior, np.random.default_rng(1)) for x in before])
    are_accepted = (after != before).all(axis=0)
    assert are_accepted.sum() > size / 2
    np.testing.assert_array_equal(*after[:, are_accepted])


def test_numbers_of_a_prior_are_found_from_logits():
    rng = np.random.default_rng(0)
    query, lines = np.repeat(np.arange(400), 10), rng.standard_normal((4000, 2))
    of_query = rng.normal(0, 0.5, 400)[query]
    group = np.arange(4000) % 10 // 5
    deviations = np.array([0.8, 0.4])[group]
    logits = -1 + lines @ [0.6, -0.3] + of_query + deviations * rng.standard_normal(4000)
    prior = NormalPrior(np.full(4000, -1.0), lines, 1.0, query, group)
    variances, means = [], []
    for _ in range(300):
        prior.draw(logits, rng)
        variances.append(prior.variances[[0, 5]])
        means.append(prior.means)
    assert np.mean(variances[50:], axis=0) == pytest.approx([0.64, 0.16], rel=0.1)
    errors = np.mean(means[50:], axis=0) - (-1 + lines @ [0.6, -0.3] + of_query)
    # ten documents tell what their query shares: 1 / sqrt(5 / .64 + 5 / .16 + 1 / .25)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(0.152, rel=0.1)


def test_shared_probabilities_have_beta_posteriors_and_stay_where_nothing_is_counted():
    rng, totals = np.random.default_rng(0), np.array([[0.0, 0.0], [30, 10]])
    draws = np.array([draw_shared(np.array([0.4, 0.0]), totals, rng) for _ in range(20_000)])
    assert (draws[:, 0] == 0.4).all()
    assert expit(draws[:, 1]).mean() == pytest.approx(30.5 / 41, abs=5 * 0.07 / np.sqrt(20_000))


def autoregressive(correlation, rng):
    """Draws of a number of variance 1, without an end."""
    state = rng.normal()
    while True:
        yield np.array([state, 3.0])  # another number never moves
        state = correlation * state + np.sqrt(1 - correlation**2) * rng.normal()


@pytest.mark.parametrize(("correlation", "counted"), [(0.0, 60), (0.8, 180), (0.99, 360)])
def test_draws_that_are_alike_are_more(correlation, counted):
    """15 have to be independent: of n, (1 - c) / (1 + c) are; 400 count at most, in multiples of 60."""
    numbers, totals = [], []
    for seed in range(20):
        chain = autoregressive(correlation, np.random.default_rng(seed))
        draws = enough_draws(chain, 60, lambda done, total: totals.append((done, total)))
        assert totals[-1] == (len(draws) * 3 // 2, len(draws) * 3 // 2)
        numbers.append(len(draws))
    assert np.median(numbers) == pytest.approx(counted, abs=60)
    assert 60 <= min(numbers) and max(numbers) <= 400


def test_intervals_are_wider_where_few_draws_are_independent():
    """Of AR(1) draws with correlation .8, one in nine counts: 95% of intervals around means of 90 hold the truth."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        draws = np.array([*itertools.islice(autoregressive(0.8, rng), 90)])[:, :1]
        truth = rng.normal()  # of the posterior that is sampled
        deviation = np.sqrt(covariance_of(draws)[0, 0])
        held += abs(draws.mean() - truth) < 1.96 * deviation
    assert held / 400 == pytest.approx(0.95, abs=0.035)


def test_a_probability_that_may_be_0_has_an_interval_on_its_side():
    """Logits of Beta(.5, 5) draws are -3.5 in the mean with a deviation of 2.3: their interval would end at .73."""
    rng = np.random.default_rng(0)
    draws = np.stack([rng.beta(0.5, 5, 20_000), rng.beta(800, 200, 20_000)], axis=1)
    found = around_probabilities(logit(draws))
    middle, deviations = found.mean(axis=0), np.sqrt(np.diag(covariance_of(found)))
    np.testing.assert_allclose(expit(middle), draws.mean(axis=0))
    assert deviations[0] == pytest.approx(
        np.sqrt(0.5 * 5 / 5.5**2 / 6.5) / (5 * 0.5 / 5.5**2), rel=0.05
    )
    # far from 0, as logits have it
    assert deviations[1] == pytest.approx(np.std(logit(draws[:, 1])), rel=0.01)
