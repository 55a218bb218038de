"""The benchmark of estimated parameters: its users, its figures, what it reads from models, and how it resumes."""

import dataclasses

import numpy as np
import pytest
from flax import nnx
from places import ROOT
from scipy import stats
from scipy.special import expit, logit

from clickexp.parameters import EmbeddingParameterConfig
from clickexp.posteriors.shared import SharedPosterior
from clickexp.simulation.towers import FixedParameter
from clickexp.training import Trainer

pytestmark = pytest.mark.nightly
ALL = ("PBM", "UBM", "TrustBias", "DBN", "DCM", "CCM", "DCTR", "DRCTR")


@pytest.fixture
def bench(monkeypatch):
    """The program's module, with those that it imports."""
    monkeypatch.syspath_prepend(ROOT / "scripts/bench")
    return pytest.importorskip("parameters")


def small(bench, user, policy="random", seed=0, **options):
    settings = dict(queries=5, documents=12, impressions=20) | options
    return bench.users.simulate(bench.Design(user, policy, **settings), seed)


def true_towers(user, truth):
    """The true parameters in towers of clickexp."""

    def by_position(probabilities):
        return FixedParameter(
            np.concatenate([[0.0], logit(np.clip(probabilities, 0, 1 - 1e-7))]), "positions"
        )

    shared = truth.shared
    match user:
        case "PBM":
            towers = {"examination": by_position(shared["examination"])}
        case "UBM":
            table = np.zeros((11, 11))
            table[1:, :10] = logit(np.clip(shared["examination"], 0, 1 - 1e-7))
            towers = {"examination": FixedParameter(table.ravel(), "examination_idx")}
        case "TrustBias":
            towers = {role: by_position(values) for role, values in shared.items()}
        case "DBN":
            towers = {"continuation": FixedParameter(logit(shared["continuation"]).item())}
            towers["satisfaction"] = FixedParameter(truth.satisfaction)
        case "DCM":
            towers = {"continuation": by_position(shared["continuation"])}
        case "CCM":
            names = "exam_no_click", "click_not_satisfied", "click_satisfied"
            values = zip(names, logit(shared["continuation"]), strict=True)
            towers = {
                f"continuation_{name}": FixedParameter(value.item()) for name, value in values
            }
        case "DCTR":
            return {"ctr": FixedParameter(truth.attraction)}
    return {**towers, "attraction": FixedParameter(truth.attraction)}


@pytest.mark.parametrize("user", [user for user in ALL if user != "DRCTR"])
def test_users_click_as_the_models_of_their_names(bench, user):
    log = small(bench, user)
    sizes = {"positions": 10, "query_doc_pairs": 60}
    model = bench.methods.MODELS[user](**true_towers(user, log.truth), **sizes, rngs=nnx.Rngs(0))
    part = bench.users.Part(log.test.ids[:2000], log.test.clicks[:2000])
    expected = bench.methods.predictions(model, part)
    np.testing.assert_allclose(
        bench.users.conditional(user, log.truth, part), expected, rtol=2e-5, atol=1e-6
    )


@pytest.mark.parametrize("user", ALL)
def test_clicks_are_drawn_with_the_probabilities_that_are_stated(bench, user):
    log = small(bench, user)
    rates = bench.users.conditional(user, log.truth, log.test)
    deviation = np.sqrt((rates * (1 - rates)).sum(axis=0))
    assert (np.abs((log.test.clicks - rates).sum(axis=0)) < 4.5 * deviation + 1e-9).all()


def test_other_truths_are_powers_of_the_first(bench):
    first, other = (small(bench, "DBN", power=power) for power in (1.0, 2.0))
    np.testing.assert_allclose(other.truth.shared["continuation"], [0.81])
    np.testing.assert_array_equal(other.truth.attraction, first.truth.attraction)
    assert other.test.clicks[:, 5:].mean() < first.test.clicks[:, 5:].mean()


def test_policies_order_by_attraction_as_far_as_they_are_strong(bench):
    def at_top(policy):
        log = small(bench, "PBM", policy, documents=20)
        return (
            log.truth.attraction[log.test.ids[:, 0]].mean()
            - log.truth.attraction[log.test.ids].mean()
        )

    random, *others = map(at_top, ("random", "weak", "medium", "strong"))
    assert abs(random) < 0.1 and 0.1 < others[0] < others[1] < others[2]


def test_sizes_of_a_log_are_those_of_its_design(bench):
    log = small(bench, "PBM", impressions=40, skew=0.0)
    shown = np.bincount(log.train.ids.ravel(), minlength=61)
    assert log.train.ids.shape == (240, 10) and shown[0] == 0 and shown[1:].mean() == 40
    assert all(len(set(row)) == 10 for row in log.train.ids.tolist())
    assert (np.ptp((log.train.ids - 1) // 12, axis=1) == 0).all()  # documents of one query


def fitted(bench, parameters, **options):
    return bench.Fitted(0.0, parameters, **options)


@pytest.mark.parametrize("user", ALL)
def test_the_truth_has_no_error(bench, user):
    log = small(bench, user)
    predictions = bench.users.conditional(user, log.truth, log.test)
    found = bench.figures(log, fitted(bench, log.truth, predictions=predictions))
    assert found and all(abs(value) < 1e-12 for value in found.values())


def test_errors_are_those_of_hand_made_estimates(bench):
    log = small(bench, "PBM")
    examination = 0.5 * log.truth.shared["examination"]
    examination[3] *= 1.09
    half = dataclasses.replace(log.truth, shared={"examination": examination})
    found = bench.figures(log, fitted(bench, half))
    # a common factor is no error, 9 % at one of nine ranks
    assert found["examination"] == pytest.approx(0.09 / 9)
    clicks = 1 / (1 + np.exp(-log.truth.attraction[1:]))
    assert found["attraction"] == pytest.approx(0.5 * clicks.mean())

    log = small(bench, "DBN")
    moved = dataclasses.replace(
        log.truth,
        shared={"continuation": np.array([0.88])},
        satisfaction=log.truth.satisfaction + 0.3,
    )
    found = bench.figures(
        log,
        fitted(bench, moved, prior_means={"satisfaction": log.truth.satisfaction[1:].mean() - 0.2}),
    )
    assert found["continuation"] == pytest.approx(0.02)
    assert found["satisfaction"] == pytest.approx(0.3) and found[
        "prior satisfaction"
    ] == pytest.approx(0.2)


def test_slopes_of_trust_bias_are_compared_as_clicks_identify_them(bench):
    """Attraction a' = (a - 0.1) / 0.8 with t' = f + 0.9 (t - f), f' = f + 0.1 (t - f) is the same user."""
    log = small(bench, "TrustBias", impressions=100)
    logits = np.clip(log.truth.attraction, logit(0.11), logit(0.89))
    true, false = log.truth.shared["true_positive"], log.truth.shared["false_positive"]
    truth = bench.users.Parameters(log.truth.shared, logits)
    same = {
        "true_positive": false + 0.9 * (true - false),
        "false_positive": false + 0.1 * (true - false),
    }
    attraction = (1 / (1 + np.exp(-logits)) - 0.1) / 0.8
    estimate = bench.users.Parameters(same, logit(attraction))
    found = bench.figures(dataclasses.replace(log, truth=truth), fitted(bench, estimate))
    assert found["examination"] < 1e-9 and found["attraction"] < 1e-9


@pytest.mark.parametrize("user", ["PBM", "UBM", "TrustBias", "DBN", "DCM"])
def test_coverage_counts_the_intervals_that_hold_the_truth(bench, user):
    """Means that lie off by the stated spread: 95 %. The intervals of half of them stretched: more. None: less."""
    log = small(bench, user, queries=2000, impressions=1)
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.3, 2.0, log.truth.attraction.shape)
    mean = log.truth.attraction + spread * rng.standard_normal(spread.shape)
    estimate = dataclasses.replace(log.truth, attraction=mean)
    for factor, expected in ((1.0, 0.95), (0.5, 0.673), (2.0, 0.99991)):
        found = bench.figures(log, fitted(bench, estimate, spread={"attraction": factor * spread}))
        assert found["coverage of attraction"] == pytest.approx(expected, abs=0.007)
        assert found["coverage of attraction, shown"] == pytest.approx(expected, abs=0.01)
        assert "coverage of satisfaction" not in found


def test_coverage_of_shown_pairs_leaves_the_others_out(bench):
    log = small(bench, "PBM", "strong", queries=50, impressions=1)
    unseen = np.setdiff1d(np.arange(1, 601), log.train.ids)
    mean, spread = log.truth.attraction.copy(), np.full(601, 0.1)
    mean[unseen] += 1.0
    found = bench.figures(
        log,
        fitted(
            bench, dataclasses.replace(log.truth, attraction=mean), spread={"attraction": spread}
        ),
    )
    assert len(unseen) > 50 and found["coverage of attraction, shown"] == 1.0
    assert found["coverage of attraction"] == pytest.approx(1 - len(unseen) / 600)


def test_intervals_of_small_attraction_are_counted_by_true_and_by_estimated_size(bench):
    """Of three documents, estimated .01, .04 and .5, the first is .03 in truth, which its interval leaves out."""
    log = small(bench, "PBM")
    truth = bench.users.Parameters(log.truth.shared, logit(np.array([0.5, 0.03, 0.04, 0.5])))
    low, high = np.array([[0.1, 0.005, 0.02, 0.4], [0.9, 0.02, 0.08, 0.6]])
    estimate = dataclasses.replace(truth, attraction=logit(np.array([0.5, 0.01, 0.04, 0.5])))
    train = bench.users.Part(np.array([[1, 2, 3]]), np.zeros((1, 3), bool))
    known = dataclasses.replace(log, truth=truth, train=train)
    bounds = {"attraction": logit(np.stack([low, high]))}
    found = bench.figures(known, fitted(bench, estimate, bounds=bounds))
    assert found["coverage of attraction"] == pytest.approx(2 / 3)
    assert found["width of attraction, shown"] == pytest.approx((0.015 + 0.06 + 0.2) / 3)
    assert "coverage, true below 0.02" not in found and found["coverage, true below 0.05"] == 0.5
    assert found["coverage, estimated below 0.02"] == 0.0
    assert found["width, estimated below 0.02"] == pytest.approx(0.015)
    assert found["width, true below 0.05"] == pytest.approx((0.015 + 0.06) / 2)


def test_families_of_attraction_have_the_densities_that_they_are_drawn_from(bench):
    for family in bench.users.FAMILIES:
        attraction = expit(
            small(bench, "PBM", queries=1000, impressions=1, family=family).truth.attraction
        )
        density = np.exp(bench.users.log_density(family, bench.methods.LOGITS))
        step = np.diff(bench.methods.LOGITS[:2]).item()
        below = step * np.cumsum(density)
        assert below[-1] == pytest.approx(1.0, abs=1e-4)
        drawn = stats.kstest(
            logit(attraction), lambda at, below=below: np.interp(at, bench.methods.LOGITS, below)
        )
        assert drawn.pvalue > 1e-4


def test_exact_posteriors_of_examined_documents_are_beta_distributions(bench):
    counts = np.array([[[0.0, 30.0, 5.0]], [[0.0, 0.0, 2.0]]])  # skips and clicks in one cell
    prior = bench.users.log_density("beta", bench.methods.LOGITS)
    probabilities = bench.methods.posterior_of_rows(counts, np.ones(1), prior)
    attraction = expit(bench.methods.LOGITS)
    for row, (a, b) in zip(probabilities, ((1, 3), (1, 33), (3, 8)), strict=True):
        posterior = stats.beta(a, b)
        assert row @ attraction == pytest.approx(posterior.mean(), rel=1e-3)
        assert row @ attraction**2 == pytest.approx(posterior.moment(2), rel=1e-3)


def test_counts_of_documents_lie_in_the_cells_of_examination(bench):
    train = bench.users.Part(np.array([[2, 1, 3]]), np.array([[False, True, False]]))
    log = dataclasses.replace(small(bench, "UBM"), train=train)
    skips, clicks = bench.methods.click_counts(log)
    # the last list position has the cell of a click at the second
    assert np.argwhere(skips).tolist() == [[0, 2], [2 * 10 + 2, 3]]
    assert np.argwhere(clicks).tolist() == [[1 * 10, 1]]


@pytest.mark.parametrize("user", ["PBM", "UBM"])
def test_exact_intervals_hold_the_truth_wherever_estimates_are(bench, user):
    log = small(bench, user, queries=400, impressions=20, family="mixture")
    found = bench.figures(log, bench.METHODS["exact"](log, 0))
    assert found["coverage of attraction"] == pytest.approx(0.95, abs=0.012)
    assert found["coverage, estimated below 0.05"] == pytest.approx(0.95, abs=0.015)


def test_exact_posteriors_in_blocks_are_those_of_all_rows(bench, monkeypatch):
    log = small(bench, "PBM")
    examination = log.truth.shared["examination"]
    prior = bench.users.log_density(log.design.family, bench.methods.LOGITS)
    rows = bench.methods.posterior_of_rows(bench.methods.click_counts(log), examination, prior)
    sizes = []

    def of_block(counts, examination, log_density, of=bench.methods.posterior_of_rows):
        sizes.append(counts.shape[2])
        return of(counts, examination, log_density)

    monkeypatch.setattr(bench.methods, "posterior_of_rows", of_block)
    monkeypatch.setattr(bench.methods, "EXACT_ROWS", 50)
    found = bench.METHODS["exact"](log, 0)
    assert max(sizes) == 50 and sum(sizes) == len(rows)
    np.testing.assert_allclose(found.parameters.attraction, rows @ bench.methods.LOGITS, rtol=1e-9)
    for end, tail in zip(found.bounds["attraction"], (0.025, 0.975), strict=True):
        below = rows @ (bench.methods.LOGITS[:, None] < end)
        np.testing.assert_array_less(np.diag(below), tail)
        upto = rows @ (bench.methods.LOGITS[:, None] <= end)
        assert (np.diag(upto) >= tail - 1e-12).all()


@pytest.mark.parametrize("user", [user for user in ALL if user not in ("DCTR", "DRCTR")])
def test_parameters_are_read_from_models_in_their_places(bench, user):
    """The formulas of the users, with what was read from a model, predict what the model predicts."""
    log = small(bench, user, "medium")
    for name in ("map", "em", "counting"):
        found = bench.METHODS[name](log, 0)
        if found is not None:
            again = bench.users.conditional(user, found.parameters, log.test)
            np.testing.assert_allclose(again, found.predictions, rtol=1e-4, atol=1e-6)
            assert not found.spread and (name == "map") == ("attraction" in found.prior_means)


def test_tables_of_examination_are_read_at_any_radix(bench):
    """Logits that are their own rows tell from where each was taken."""
    for radix in (10, 11):
        found = {"examination": np.arange(11.0 * 11) / 100, "attraction": np.zeros(61)}
        table = bench.methods.estimated("UBM", found, 60, radix).shared["examination"]
        rows = np.arange(1, 11)[:, None] * radix + np.arange(10)
        np.testing.assert_allclose(logit(table), rows / 100)


def test_prior_means_are_those_that_models_learn(bench):
    log = small(bench, "DBN")
    found = bench.METHODS["map"](log, 0)
    sizes = dict(query_doc_pairs=60, click_rate=float(log.train.clicks.mean()))
    points = {
        "attraction": EmbeddingParameterConfig(posterior="none"),
        "satisfaction": EmbeddingParameterConfig(posterior="none", baseline=0.0),
    }
    model = bench.methods.MODELS["DBN"](**sizes, **points, rngs=nnx.Rngs(0))
    train, val = (bench.methods.sessions(part, 60) for part in (log.train, log.val))
    Trainer(seed=0).train(model, train, val)
    for role in ("attraction", "satisfaction"):
        assert found.prior_means[role] == pytest.approx(
            float(getattr(model, role).baseline[...]), abs=1e-5
        )
    assert found.prior_means.keys() == {"attraction", "satisfaction"}


def test_posteriors_are_read_from_models(bench):
    """A row never shown keeps the prior, those shown often are surer, and intervals hold the truth."""
    log = small(bench, "DBN", queries=100, impressions=40)
    found = bench.METHODS["posterior"](log, 0)
    shown = np.bincount(log.train.ids.ravel(), minlength=1201)
    for role in ("attraction", "satisfaction"):
        mean, spread = getattr(found.parameters, role), found.spread[role]
        assert spread.shape == mean.shape and np.median(spread[shown > 100]) < 0.8 * spread[0]
    measured = bench.figures(log, found)
    assert measured["coverage of attraction"] > 0.85 and measured["coverage of satisfaction"] > 0.85


@pytest.mark.timeout(900)
@pytest.mark.parametrize("user", ["UBM", "DBN", "CCM"])
def test_intervals_of_shared_parameters_of_trained_models_hold_the_truth(bench, user):
    """Of eight logs; where a log has one interval, at least six hold it with probability .994.

    Errors of CCM's two numbers after clicks correlate by -.8, so that a log is about one observation of them, too: of
    120 intervals of 40 logs, 108 hold.
    """
    held = []
    for seed in range(8):
        log = small(bench, user, queries=100, impressions=10, seed=seed)
        held.append(bench.figures(log, bench.METHODS["posterior"](log, 0))["coverage of shared"])
    assert np.mean(held) > 0.85 if user == "UBM" else np.mean(held) >= 0.75


@pytest.mark.timeout(900)
def test_trust_bias_separates_true_from_false_positives(bench):
    """Of three logs. A start at which all ranks are examined left slopes 8% off, and .74 of the intervals held."""
    found = []
    for seed in range(3):
        log = small(bench, "TrustBias", queries=400, documents=20, impressions=40, seed=seed)
        found.append(bench.figures(log, bench.METHODS["posterior"](log, 0)))
    assert np.mean([each["examination"] for each in found]) < 0.05
    assert np.mean([each["coverage of shared"] for each in found]) > 0.85


@pytest.mark.parametrize("user", ["PBM", "UBM", "TrustBias", "DBN", "DCM", "CCM"])
def test_intervals_of_shared_parameters_are_in_the_order_of_the_truth(bench, user):
    """Narrow ones around true towers hold the truth; those of an order that is not the truth's would not."""
    log, names = small(bench, user), []
    model = bench.methods.MODELS[user](positions=10, query_doc_pairs=60, rngs=nnx.Rngs(0))
    for role, tower in true_towers(user, log.truth).items():
        if role not in ("attraction", "satisfaction"):
            weight = getattr(model, role).weight
            weight[...] = tower.values[...].reshape(weight.shape)
            read = range(weight.size) if weight.size == 1 else range(1, 11)
            if user == "UBM":
                read = [11 * rank + last for rank in range(1, 11) for last in range(rank)]
            names += [f"{role}/weight[{i}]" for i in read]
    narrow = SharedPosterior(tuple(names), 1e-6 * np.eye(len(names)))
    bounds = bench.methods.shared_bounds(user, model, narrow)
    found = bench.figures(log, fitted(bench, log.truth, shared=bounds))
    assert found["coverage of shared"] == 1.0 and (bounds[:, 1] - bounds[:, 0] < 0.02).all()


def test_methods_skip_what_they_cannot_estimate(bench):
    log = small(bench, "TrustBias")
    assert (
        bench.METHODS["em"](log, 0)
        is bench.METHODS["counting"](log, 0)
        is bench.METHODS["click-rate"](log, 0)
        is bench.METHODS["exact"](log, 0)
        is None
    )
    assert bench.METHODS["click-rate"](small(bench, "PBM", "strong"), 0) is None


def test_click_rates_give_relative_examination_of_random_lists(bench):
    log = small(bench, "PBM", impressions=5000)
    assert bench.figures(log, bench.METHODS["click-rate"](log, 0))["examination"] < 0.02


def test_results_that_are_there_are_not_repeated(bench, tmp_path, capsys):
    calls = []

    def method(log, seed):
        calls.append((log.design.user, log.design.impressions, seed))
        return None if log.design.user == "UBM" else bench.Fitted(1.5)

    grid = [bench.Design(user, impressions=n, queries=2) for user in ("PBM", "UBM") for n in (1, 2)]
    file = tmp_path / "results.jsonl"
    first = bench.run(grid[:3], [0], {"a": method}, file)
    assert calls == [("PBM", 1, 0), ("PBM", 2, 0), ("UBM", 1, 0)]
    calls.clear()
    again = bench.run(grid, [0, 1], {"a": method}, file)
    assert again[:3] == first and calls == [
        ("UBM", 2, 0),
        ("PBM", 1, 1),
        ("PBM", 2, 1),
        ("UBM", 1, 1),
        ("UBM", 2, 1),
    ]
    bench.print_results(again)
    shown = capsys.readouterr().out
    assert "PBM, policy random" in shown and "UBM" not in shown and "1.5" in shown
