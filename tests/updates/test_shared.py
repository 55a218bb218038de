"""The prior of shared parameters: its gradient, what it leaves open, and its posterior, against float64 NumPy."""

import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from scipy.special import log_expit
from small_logs import packed, ragged_log
from small_runs import write_run

from clickexp.data import Dataset
from clickexp.data.encoding import EncodedColumn, Encoder, Encoding
from clickexp.errors import ConfigError
from clickexp.models import DependentClickModel, PositionBasedModel, UserBrowsingModel
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig
from clickexp.parameters.layouts import LayoutParameterConfig
from clickexp.posteriors.shared import Estimate, SharedPosterior, count_shared
from clickexp.runs.run import Run
from clickexp.runs.settings import PriorSettings
from clickexp.training.earlier import SharedPrior, shared_names
from clickexp.updates import chain
from clickexp.updates.chain import EarlierRun
from clickexp.updates.change import changes, released
from clickexp.updates.shared import combined, move_shared, prior_of, pull_on

RANKS, PAIRS = 4, 20
NAMES = tuple(f"examination/weight[{position}]" for position in range(1, RANKS + 1))


def model_of(examination):
    tower = EmbeddingParameterConfig(posterior="normal_by_rank", add_baseline=False)
    model = PositionBasedModel(RANKS, PAIRS, attraction=tower, rngs=nnx.Rngs(0))
    model.examination.weight[...] = np.append(
        0.0, np.log(examination) - np.log1p(-np.asarray(examination))
    )
    return model


EXAMINATION = [0.8, 0.5, 0.4, 0.2]
COVARIANCE = np.diag([0.3, 0.1, 0.2, 0.4]) + 0.05


@pytest.fixture
def prior():
    return prior_of(model_of(EXAMINATION), SharedPosterior(NAMES, COVARIANCE), 1.0)


def negative_log(prior, examination):
    away = np.log(examination) - prior.center
    return away @ prior.information @ away / 2


def test_the_prior_is_of_ratios_of_examination(prior):
    """A common factor costs nothing; a single ratio costs what its covariance says."""
    assert prior.names == NAMES and prior.is_factor.all()
    scaled = 0.6 * np.array(EXAMINATION)
    assert negative_log(prior, scaled) < 1e-3
    slopes = 1 - np.array(EXAMINATION)
    contrast = np.array([[-1, 1, 0, 0], [-1, 0, 1, 0], [-1, 0, 0, 1]])
    of_ratios = contrast @ (COVARIANCE * np.outer(slopes, slopes)) @ contrast.T
    away = np.array([0.1, -0.2, 0.3])
    moved = np.array(EXAMINATION) * np.exp(np.append(0.0, away))
    expected = away @ np.linalg.inv(of_ratios) @ away / 2
    assert negative_log(prior, moved) == pytest.approx(expected, rel=2e-3)


def test_a_step_pulls_by_the_gradient_of_its_share(prior):
    model = model_of([0.6, 0.5, 0.45, 0.3])
    params = nnx.state(model, nnx.Param)
    pull = prior.pull(params)
    pull.share = 0.25
    ((_, found),) = nnx.to_flat_state(pull.gradient(params))
    theta = np.asarray(model.examination.weight[...], np.float64)

    def loss(theta):
        return 0.25 * negative_log(prior, np.exp(log_expit(theta[1:])))

    steps = 1e-5 * np.eye(len(theta))
    expected = [(loss(theta + step) - loss(theta - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(found.get_value(), expected, rtol=2e-3, atol=1e-3)
    by_name = pull_on(model, prior)
    np.testing.assert_allclose(
        [0.25 * by_name[name] for name in NAMES], expected[1:], rtol=2e-3, atol=1e-3
    )


def test_information_of_logs_adds_up(prior):
    """Also of numbers that one of the logs says nothing of."""
    model = model_of(EXAMINATION)
    own = SharedPosterior((NAMES[1], NAMES[2]), np.diag([0.5, 0.25]))
    both = combined(model, own, prior)
    places = [both.names.index(name) for name in NAMES]
    slopes = 1 - np.array(EXAMINATION)
    expected = prior.information * np.outer(slopes, slopes) + np.diag([0.0, 2.0, 4.0, 0.0])
    found = np.linalg.inv(both.covariance)[np.ix_(places, places)]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        np.linalg.inv(combined(model, None, prior).covariance),
        prior.information * np.outer(slopes, slopes),
        rtol=1e-3,
        atol=1e-3,
    )


def test_two_days_of_layouts_count_twice_and_their_common_prior_once():
    """Clicks tell sums of what layouts share and of differences; variances of ratios, by the inverse in float64."""
    settings = PositionBasedModel.with_layouts({}, ["device"])
    model = PositionBasedModel(RANKS, PAIRS, **settings, columns={"device": 1}, rngs=nnx.Rngs(0))
    cells = [layout * (RANKS + 1) + at for layout in (0, 1) for at in range(1, RANKS + 1)]
    names = tuple(
        [f"examination/terms/shared/weight[{at}]" for at in range(1, RANKS + 1)]
        + [f"examination/terms/differences/weight[{cell}]" for cell in cells]
    )
    sums = np.concatenate([np.tile(np.eye(RANKS), (2, 1)), np.eye(2 * RANKS)], axis=1)
    of_log = sums.T @ np.diag(np.linspace(5, 40, 2 * RANKS)) @ sums
    # the prior of differences has the precision 1, and what layouts share nearly none
    of_prior = np.diag([1e-3] * RANKS + [1.0] * 2 * RANKS)
    day = SharedPosterior(names, np.linalg.inv(of_log + of_prior))
    both = combined(model, day, prior_of(model, day, 1.0, differences=True))
    ratios = (sums[1:] - sums[0])[:, :]
    found = ratios @ both.covariance @ ratios.T
    np.testing.assert_allclose(
        found, ratios @ np.linalg.inv(2 * of_log + of_prior) @ ratios.T, rtol=0.02, atol=1e-3
    )
    (alone,) = (combined(model, None, prior_of(model, day, 1.0, differences=True)),)
    np.testing.assert_allclose(
        ratios @ alone.covariance @ ratios.T,
        ratios @ day.covariance @ ratios.T,
        rtol=0.02,
        atol=1e-3,
    )


def test_a_log_that_says_nothing_leaves_the_posterior_of_ratios(prior):
    model, slopes = model_of(EXAMINATION), 1 - np.array(EXAMINATION)
    ratios = np.column_stack([-np.ones(RANKS - 1), np.eye(RANKS - 1)]) * slopes
    found = combined(model, None, prior)
    assert found.names == NAMES
    np.testing.assert_allclose(
        ratios @ found.covariance @ ratios.T, ratios @ COVARIANCE @ ratios.T, rtol=1e-6, atol=1e-6
    )


def test_settling_is_the_newton_step_to_the_optimum_of_both():
    """Of a log-likelihood and a prior that are quadratic, in one step; never farther than a deviation, or 1."""
    center, covariance = np.array([0.01, -0.02]), np.array([[0.02, 0.01], [0.01, 0.03]])
    names = NAMES[:2]
    model = model_of([0.5, 0.5, 0.5, 0.5])
    prior = SharedPrior(names, np.zeros(2, bool), center, np.linalg.inv(covariance))
    own, step = np.diag([0.05, 0.01]), np.array([0.005, -0.004])
    move_shared(model, Estimate(SharedPosterior(names, own), step), prior)
    both = np.linalg.inv(own) + np.linalg.inv(covariance)
    expected = np.linalg.solve(
        both, np.linalg.solve(own, step) + np.linalg.solve(covariance, center)
    )
    np.testing.assert_allclose(model.examination.weight[...][1:3], expected, atol=1e-5)
    model = model_of([0.5, 0.5, 0.5, 0.5])
    move_shared(
        model, Estimate(SharedPosterior(names[:1], np.array([[0.01]])), np.array([5.0])), None
    )
    assert model.examination.weight[...][1] == pytest.approx(0.1, rel=1e-4)
    vague = SharedPosterior(names[:1], np.array([[100.0]]))
    move_shared(model, Estimate(vague, np.array([5.0])), None)
    assert model.examination.weight[...][1] == pytest.approx(1.1, rel=1e-4)


def test_a_change_is_found_where_ratios_differ_and_not_where_the_scale_does(prior):
    model = model_of(EXAMINATION)
    own = SharedPosterior(NAMES, 0.01 * np.eye(RANKS))
    slopes = 1 - np.array(EXAMINATION)
    scale = Estimate(own, np.full(RANKS, 0.5) / slopes)
    assert changes(model, scale, prior) == []
    (found,) = changes(model, Estimate(own, np.array([0.0, 0.0, 0.0, -8.0])), prior)
    assert found.parameter == "examination" and found.p < 1e-4 and found.positions == [4]
    assert found.largest < -1
    assert released(prior, [found]) is None
    near_one = SharedPosterior(NAMES, np.diag([2.0, 0.01, 0.01, 0.01]))
    assert changes(model, Estimate(near_one, np.array([-8.0, 0.0, 0.0, 0.0])), prior) == []


def test_what_is_not_contradicted_keeps_its_prior():
    names = (*NAMES[:2], "attraction/baseline")
    information = np.linalg.inv(np.diag([1.0, 2.0, 0.5]) + 0.1)
    prior = SharedPrior(names, np.array([True, True, False]), np.zeros(3), information)
    found = type("Change", (), {"parameter": "examination"})()
    kept = released(prior, [found])
    assert kept.names == ("attraction/baseline",)
    np.testing.assert_allclose(kept.information, [[1 / 0.6]], rtol=1e-9)


def test_names_follow_the_vector_of_all_parameters():
    model = PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(0))
    names = shared_names(nnx.state(model, nnx.Param))
    assert names == ["attraction/baseline", *(f"examination/weight[{i}]" for i in range(RANKS + 1))]


def test_an_update_says_what_it_leaves_as_it_is(tmp_path, monkeypatch):
    """Noise in shared parameters of large logs, and categories that feature vectors of the first log lack."""
    write_run(tmp_path / "day1", update={"run": "day0", "updates": 30, "sessions": 1, "logs": []})
    run = EarlierRun(tmp_path, Run.read(tmp_path / "day1"), PriorSettings(run=str(tmp_path)))
    sessions = packed(ragged_log(64, RANKS, PAIRS), PAIRS)
    brand = EncodedColumn(name="brand", categories=["a", "b"])
    encoding = Encoding(
        categories={"brand": ["a", "b", "c"], "device": ["phone"]},
        features=Encoder(columns=[brand], fill=[0.0]),
    )
    parts = sessions, sessions, sessions
    dataset = Dataset("log", *parts, PAIRS, RANKS, encoding=encoding)
    model = model_of(EXAMINATION)
    categories, old = run.advice(dataset, model)
    assert "brand" in categories and " c " in categories and "a, b" not in categories
    assert "update 31" in old
    layouts = LayoutParameterConfig(
        PositionParameterConfig(use_feature="examination_idx"), ["device"]
    )
    by_click = UserBrowsingModel(
        RANKS, PAIRS, columns={"device": 1}, examination=layouts, rngs=nnx.Rngs(0)
    )
    no_test = [*run.advice(dataset, by_click)][1]
    assert "no check of change is made of the examination of layouts" in no_test
    strict = EarlierRun(tmp_path, run.result, PriorSettings(run="day1", on_change="error"))
    with refuses(ConfigError, "prior.on_change", "model=pbm"):
        strict.continued(by_click, None)
    of_chain = DependentClickModel(RANKS, PAIRS, rngs=nnx.Rngs(0))
    monkeypatch.setattr(chain, "WORK", 64 * count_shared(of_chain) - 1)
    more = [*run.advice(dataset, of_chain)]
    assert len(more) == 3 and "shared parameters keep the noise" in more[1]
    assert len([*run.advice(dataset, model)]) == 2  # whose examination moves afterwards
