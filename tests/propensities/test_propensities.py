"""Propensities from simulated interventions, click rates, runs and lists."""

import dataclasses
import json

import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from small_logs import packed

from clickexp.data import Column, Dataset, Sessions
from clickexp.errors import ConfigError
from clickexp.models import Ranker
from clickexp.models.ranker.debias import AffineCorrection, InversePropensity, NoDebias
from clickexp.propensities import (
    ClickRatePropensities,
    GivenPropensities,
    HarvestedPropensities,
    Propensities,
    RandomizedPropensities,
    RunPropensities,
    Weighting,
)
from clickexp.propensities.exposure import harvest
from clickexp.runs.run import RelativeExamination

EXAMINATION = np.array([1.0, 0.6, 0.45, 0.3, 0.25, 0.2, 0.17, 0.15])
RANKS = len(EXAMINATION)


def swapped(sessions=40_000, queries=20, seed=0, noise=0.7):
    """Documents in the order of their attraction plus noise; users examine the ranks with known probability."""
    rng = np.random.default_rng(seed)
    attraction = rng.uniform(0.1, 0.9, (queries, RANKS))
    query = rng.integers(0, queries, sessions)
    order = np.argsort(-attraction[query] - noise * rng.normal(size=(sessions, RANKS)), axis=1)
    rates = np.take_along_axis(attraction[query], order, axis=1) * EXAMINATION
    ids = 1 + query[:, None] * RANKS + order
    clicks = rng.random(rates.shape) < rates
    return packed({"query_doc_ids": ids.astype(np.int32), "clicks": clicks})


def dataset_of(sessions):
    return Dataset(
        "log", sessions, sessions, sessions, sessions.query_doc_pairs, sessions.positions
    )


@pytest.mark.nightly
@pytest.mark.parametrize("estimator", ["pivot", "all_pairs"])
@pytest.mark.parametrize("queries", [60, 400])
def test_intervals_of_harvested_ratios_hold_as_often_as_the_docs_say(estimator, queries):
    """Of 420 ratios, whose errors within a log depend on each other."""
    held = []
    for seed in range(60):
        found = HarvestedPropensities(estimator)(dataset_of(swapped(8_000, queries, seed)))
        low, high = (np.array(bounds[1:], float) for bounds in (found.low, found.high))
        held += [*((low <= EXAMINATION[1:]) & (EXAMINATION[1:] <= high))]
    assert 0.92 < np.mean(held) < 0.97


def test_harvesting_recovers_examination_of_swaps_within_three_standard_errors():
    log = dataset_of(swapped())
    for estimator in ("pivot", "chain", "all_pairs"):
        found = HarvestedPropensities(estimator)(log)
        errors = np.log(np.array(found.high)[1:] / np.array(found.low)[1:]) / 2 / 1.96
        distance = np.abs(np.log(np.array(found.values)[1:] / EXAMINATION[1:]))
        assert (distance < 3 * errors).all(), estimator
        assert found.values[0] == 1 and (errors < 0.12).all(), estimator


def test_all_pairs_of_positions_tell_more_than_those_with_the_first():
    errors = {}
    for estimator in ("pivot", "all_pairs"):
        found = [
            HarvestedPropensities(estimator)(dataset_of(swapped(8_000, seed=seed)))
            for seed in range(6)
        ]
        errors[estimator] = np.mean(
            [(np.log(np.array(each.values) / EXAMINATION) ** 2) for each in found]
        )
    assert errors["all_pairs"] < errors["pivot"]


def test_pairs_of_positions_do_not_share_a_cell():
    """2 * 6 = 3 * 4: an index of a pair by its product would add the clicks of one to the other."""
    ids = np.array(
        [[9, 1, 8, 7, 6, 5], [4, 3, 2, 10, 11, 1], [9, 8, 5, 6, 7, 10], [9, 8, 7, 5, 12, 13]],
        np.int32,
    )
    clicks = (ids == 1) | (ids == 5)
    found = harvest(packed({"query_doc_ids": ids, "clicks": clicks})).sum(axis=0)
    np.testing.assert_allclose(found[1, 5], 1 / 2)  # document 1 at 2 and 6
    np.testing.assert_allclose(found[5, 1], 1 / 2)
    np.testing.assert_allclose(found[2, 3], 1 / 2)  # document 5 at 6, 3 and 4
    np.testing.assert_allclose(found[2, 5], 1 / 2)


def test_unequal_exposure_is_weighted_out():
    """A document shown 30 times at the first position and 10 times at the second, always clicked half of the time."""
    ids = np.tile(np.array([[1, 2]], np.int32), (40, 1))
    ids[30:] = [2, 1]
    clicks = np.zeros((40, 2), bool)
    clicks[:15, 0] = clicks[30:35, 1] = True
    found = harvest(packed({"query_doc_ids": ids, "clicks": clicks})).sum(axis=0)
    np.testing.assert_allclose(found[0, 1], 15 * 10 / 40)
    np.testing.assert_allclose(found[1, 0], 5 * 30 / 40)


def test_a_log_without_swaps_cannot_be_harvested():
    ids = np.tile(np.arange(1, 5, dtype=np.int32), (50, 1))
    sessions = packed(
        {"query_doc_ids": ids, "clicks": np.random.default_rng(0).random(ids.shape) < 0.5}
    )
    with refuses(ConfigError, "cannot distinguish examination from relevance"):
        HarvestedPropensities()(dataset_of(sessions))


def test_a_position_that_no_document_links_has_no_propensity():
    ids = np.array([[1, 2, 3], [2, 1, 3]] * 30, np.int32)
    sessions = packed(
        {"query_doc_ids": ids, "clicks": np.random.default_rng(0).random(ids.shape) < 0.5}
    )
    found = HarvestedPropensities()(dataset_of(sessions))
    assert found.values[2] is None and found.values[1] is not None
    weighting = Weighting.of(found, 0.05, sessions)
    assert weighting.unknown == (3,) and found.weights(3, 0.05)[3] == 0
    assert any("no propensity for position 3" in line for line in weighting.describe())


def test_click_rates_fall_faster_than_examination_and_randomised_ones_alike():
    sorted_ = ClickRatePropensities()(dataset_of(swapped(noise=0.2)))
    assert (np.array(sorted_.values)[1:] < 0.95 * EXAMINATION[1:]).all()
    random = RandomizedPropensities(None)(dataset_of(swapped(noise=1e6)))
    low, high = np.array(random.low), np.array(random.high)
    middle, spread = np.log(EXAMINATION), np.log(high / low) / 2 / 1.96 * 3
    assert (np.abs(np.log(random.values) - middle)[1:] < spread[1:]).all()


def test_sessions_are_chosen_by_a_column():
    sessions = swapped(6_000, noise=0.2)
    flags = np.arange(6_000) % 3 == 0
    flagged = dataclasses.replace(
        sessions,
        columns={**sessions.columns, "shuffled": flags},
        schema={**sessions.schema, "shuffled": Column("shuffled", bool, "session")},
    )
    found = RandomizedPropensities("shuffled")(dataset_of(flagged))
    assert (
        found.values
        == RandomizedPropensities(None)(dataset_of(sessions.select(np.flatnonzero(flags)))).values
    )
    with refuses(ConfigError, "random", "lengths, shuffled"):
        RandomizedPropensities("random")(dataset_of(flagged))


def test_given_propensities_are_relative_to_the_first():
    found = GivenPropensities([0.5, 0.25, 0.1], [0.2, 0.1, 0.05])(None)
    np.testing.assert_allclose(found.values, [1, 0.5, 0.2])
    np.testing.assert_allclose(found.weights(4, 0.4), [0, 1, 2, 2.5, 0], rtol=1e-6)
    for wrong in ([], [0.0, 1.0], [1.0, -0.5]):
        with refuses(ConfigError, "propensity.values"):
            GivenPropensities(wrong)
    for wrong in ([1, None, 0.3], [1, "much"], [1, float("nan")], [True, False]):
        with refuses(ConfigError, "propensity.values", "finite number per position"):
            GivenPropensities(wrong)
    with refuses(ConfigError, "2 offsets for 3"):
        Propensities((1.0, 0.5, 0.2), offsets=(0.1, 0.1))


def test_where_users_click_no_propensity_is_0():
    """It would be clipped, and so weigh the clicks that refute it most of all."""
    clicks = np.array([[True, False, False], [False, True, False]])
    log = dataset_of(Sessions.from_arrays(query_doc_ids=np.ones((2, 3), np.int32), clicks=clicks))
    with refuses(ConfigError, "propensity.values has 0 for position 2", "1 clicks"):
        GivenPropensities([1, 0, 0])(log)
    assert GivenPropensities([1, 0.5, 0])(log).values == (1.0, 0.5, 0.0)
    assert GivenPropensities([1, 0, 0], [0.1, 0.1, 0.1])(log).values == (1.0, 0.0, 0.0)


def test_propensities_of_a_run_with_their_intervals(tmp_path):
    ratios = [
        {"position": 1, "relative": 1.0},
        {"position": 2, "relative": 0.4, "relative_low": 0.3, "relative_high": 0.5},
    ]
    write_result(tmp_path, model="PBM", propensity=ratios)
    found = RunPropensities(str(tmp_path))(None)
    assert found.values == (1.0, 0.4) and found.low == (None, 0.3) and found.high == (None, 0.5)
    write_result(tmp_path, model="PBM", per_rank={"examination": [0.8, 0.4]})
    assert RunPropensities(str(tmp_path))(None).values == (1.0, 0.5)
    write_result(tmp_path, model="DCTR")
    with refuses(ConfigError, "DCTR has no propensities"):
        RunPropensities(str(tmp_path))(None)
    with refuses(ConfigError, "no result.json"):
        RunPropensities(str(tmp_path / "none"))(None)


def write_result(folder, **parts):
    needed = {"format": 1, "dataset": "clicks", "test_set": "a", "test": {"ll": -0.5}}
    (folder / "result.json").write_text(json.dumps(needed | parts))


def test_a_ratio_that_nothing_is_known_of_is_none():
    """Of a tower that knows no positions, of a position that nobody looks at, and of what JSON cannot hold."""
    unknown = [(None, 0.5), (0, 0.5), (2, 0.0), (2, None), (2, np.inf), (2, np.nan)]
    for position, relative in unknown:
        assert RelativeExamination.known([(position, relative, None, None)]) == []
    (found,) = RelativeExamination.known([(2, 0.5, 0.25, np.inf)])
    assert (found.relative, found.relative_low, found.relative_high) == (0.5, 0.25, None)


RATIO = {"position": 1, "relative": 1.0}


@pytest.mark.parametrize(
    "parts, place",
    [
        ({"propensity": "text"}, "propensity"),
        ({"propensity": {"1": 1.0}}, "propensity"),
        ({"propensity": [1.0, 0.5]}, "propensity/0"),
        ({"propensity": [{"position": 1}]}, "propensity/0/relative"),
        ({"propensity": [RATIO, {"position": "2", "relative": 0.5}]}, "propensity/1/position"),
        ({"propensity": [RATIO, {"position": 10**12, "relative": 0.5}]}, "propensity/1/position"),
        (
            {"propensity": [RATIO, {"position": 2, "relative": float("nan")}]},
            "propensity/1/relative",
        ),
        (
            {"propensity": [RATIO, {"position": 2, "relative": float("inf")}]},
            "propensity/1/relative",
        ),
        ({"propensity": [RATIO, {"position": 2, "relative": -0.5}]}, "propensity/1/relative"),
        ({"propensity": [RATIO, {"position": 1, "relative": 1.0}]}, "1 is given twice"),
        ({"propensity": [{"position": 1, "relative": 7.0}]}, "position 1 is 7"),
        (
            {"propensity": [RATIO, {"position": 2, "relative": 0.5, "relative_low": 0.6}]},
            "outside its interval",
        ),
        (
            {"propensity": [RATIO, {"position": 2, "relative": 5e3, "relative_high": 0.6}]},
            "outside its interval",
        ),
        ({"propensity": [RATIO], "false_positive": "0.1"}, "false_positive"),
        ({"propensity": [RATIO], "false_positive": [0.1], "true_positive": [[1]]}, "true_positive"),
        ({"per_rank": {"examination": 3}}, "per_rank/examination"),
        ({"per_rank": [0.5]}, "per_rank"),
    ],
)
def test_a_damaged_run_gives_no_propensities(tmp_path, parts, place):
    write_result(tmp_path, model="PBM", **parts)
    with refuses(ConfigError, f"propensity.run={tmp_path}", "result.json", place, "repeat"):
        RunPropensities(str(tmp_path))(None)


def test_a_run_that_knows_no_examination_has_no_propensities(tmp_path):
    """Additive towers and click rates of documents report 1 at all ranks, with which weights would do nothing."""
    ones = {"model": "TwoTowers", "per_rank": {"examination": [1.0] * 10}}
    write_result(tmp_path, **ones)
    with refuses(ConfigError, "TwoTowers has no propensities"):
        RunPropensities(str(tmp_path))(None)


@pytest.mark.parametrize("intervals", [False, True])
def test_a_run_of_the_trust_bias_model_has_slopes_and_offsets(tmp_path, intervals):
    result = {
        "model": "TrustBias",
        "per_rank": {"examination": [0.9, 0.6]},
        "false_positive": [0.5, 0.3],
    }
    if intervals:
        result["propensity"] = [{"position": 1, "relative": 1.0}, {"position": 2, "relative": 0.75}]
    write_result(tmp_path, **result)
    found = RunPropensities(str(tmp_path))(None)
    np.testing.assert_allclose(found.values, [1, 0.75])
    assert found.offsets == (0.5, 0.3)
    np.testing.assert_allclose(found.of_relevant().values, [1, 0.6 / 0.9])


def test_lists_of_different_lengths_and_relevance_are_not_compared_with_each_other():
    """Short lists of good documents and long ones of poor ones, in random order; examination falls by 1 / sqrt(k)."""
    rng, count = np.random.default_rng(0), 60_000
    lengths = np.where(np.arange(count) % 2, 3, RANKS).astype(np.int32)
    relevance = np.where(lengths == 3, 0.6, 0.2)[:, None]
    true = 1 / np.sqrt(np.arange(1, RANKS + 1))
    there = np.arange(RANKS) < lengths[:, None]
    clicks = (rng.random((count, RANKS)) < relevance * true) & there
    ids = np.where(there, np.arange(1, RANKS + 1, dtype=np.int32), 0)
    sessions = packed({"query_doc_ids": ids, "clicks": clicks, "lengths": lengths})
    found = RandomizedPropensities(None)(dataset_of(sessions))
    np.testing.assert_allclose(found.values, true, rtol=0.06)
    inside = [
        low <= each <= high for low, each, high in zip(found.low, true, found.high, strict=True)
    ]
    assert sum(inside) >= RANKS - 1


def test_a_run_of_trust_bias_that_does_not_tell_its_rates_is_refused(tmp_path):
    relative = [{"position": 1, "relative": 1.0}, {"position": 2, "relative": 0.8}]
    result = {"model": "TrustBias", "false_positive": [0.3, 0.1], "propensity": relative}
    write_result(tmp_path, **result)
    with refuses(ConfigError, "click rates of relevant documents", "repeat it"):
        RunPropensities(str(tmp_path))(None)
    write_result(tmp_path, **result, true_positive=[0.8, 0.5])
    found = RunPropensities(str(tmp_path))(None).of_relevant()
    np.testing.assert_allclose(found.values, [1, 0.5 / 0.8])


def test_the_effective_sample_size_is_that_of_kong():
    sessions = swapped(2_000)
    weighting = Weighting.of(Propensities(tuple(EXAMINATION)), 0.25, sessions)
    clicks = sessions.column("clicks").sum(axis=0)
    weights = 1 / np.maximum(EXAMINATION, 0.25)
    effective = (clicks * weights).sum() ** 2 / (clicks * weights**2).sum()
    assert weighting.effective == pytest.approx(effective) and weighting.clicks == clicks.sum()
    assert weighting.clipped == (6, 7, 8) and weighting.unknown == ()
    exploding = Weighting.of(Propensities((1.0, *[1e-4] * 7)), 0.0, sessions)
    flat = list(Weighting.of(Propensities((1.0,) * 8), 0.0, sessions).describe())
    assert len(flat) == 1 and exploding.effective < exploding.clicks


def test_propensities_of_positions_that_the_log_does_not_have_are_pointed_out():
    weighting = Weighting.of(Propensities((*EXAMINATION, 0.1, 0.1)), 0.05, swapped(50))
    assert weighting.unused == (RANKS + 1, RANKS + 2)
    assert any(
        f"propensities for position {RANKS + 1}, {RANKS + 2}, where" in line
        for line in weighting.describe()
    )


def test_a_document_beyond_the_last_propensity_has_no_weight():
    """At any position, also one in the tens of thousands."""
    batch = {"positions": np.array([[1, 2, 3, 40_000]], np.int32), "mask": np.ones((1, 4), bool)}
    method = InversePropensity(Propensities((1.0, 0.5)), clip=0.01)
    np.testing.assert_array_equal(method.weights(batch), [[1, 2, 0, 0]])
    many = InversePropensity(Propensities(tuple(1 / np.arange(1, 50_001))), clip=1e-6)
    np.testing.assert_allclose(many.weights(batch), [[1, 2, 3, 40_000]], rtol=1e-6)


def test_the_effective_sample_size_of_weights_by_document():
    """Of those of debias=policy_aware, from a column; clicks at unknown positions have no weight."""
    sessions = swapped(500)
    ids, clicks = sessions.column("query_doc_ids"), sessions.column("clicks")
    of_document = (
        np.random.default_rng(1).uniform(0.01, 1, sessions.query_doc_pairs + 1).astype(np.float32)
    )
    column = Column("policy_propensity", np.float32)
    carrying = Sessions.from_arrays(
        query_doc_ids=ids, clicks=clicks, extra={column: of_document[ids]}
    )
    known = (*EXAMINATION[:-1], None)
    found = Weighting.of(Propensities(known), 0.1, carrying, "policy_propensity")
    weights = (clicks / np.maximum(of_document[ids], 0.1))[:, :-1]
    assert found.effective == pytest.approx(weights.sum() ** 2 / (weights**2).sum(), rel=1e-5)
    assert found.unknown == (RANKS,)


def test_offsets_that_a_correction_leaves_in_are_told():
    offsets = (0.3, *[0.1] * 7)
    given = Propensities(tuple(EXAMINATION), offsets=offsets)
    told = "warning: clicks of irrelevant documents count"
    for kind in (InversePropensity, AffineCorrection):
        lines = kind(given).weighting(swapped(100)).describe()
        assert any(line.startswith(told) for line in lines) == (kind is InversePropensity)
    lines = InversePropensity(Propensities(tuple(EXAMINATION))).weighting(swapped(100)).describe()
    assert not any(line.startswith(told) for line in lines)


def test_a_ranker_resolves_its_source_when_it_is_prepared():
    log = dataset_of(swapped(100))
    source = GivenPropensities((2.0, 1.0))
    for kind in (InversePropensity, NoDebias):
        debias = kind(source) if kind is InversePropensity else kind()
        ranker = Ranker(query_doc_pairs=log.query_doc_pairs, debias=debias, rngs=nnx.Rngs(0))
        assert ranker.prepare(log) is log
        weighting = ranker.debias.weighting(log.train)
        known = None if weighting is None else weighting.propensities.values
        assert known == ((1.0, 0.5) if kind is InversePropensity else None)


def test_propensities_that_rise_are_pointed_out():
    for known, rises in (
        (dict(values=(1.0, 0.9)), None),
        (dict(values=(1.0, 1.2, 0.5, 1.1)), "2, 4"),
        (dict(values=(1.0, 1.2, 1.3), low=(1.0, 0.8, 1.1), high=(1.0, 1.6, 1.5)), "3"),
    ):
        described = Weighting.of(Propensities(**known), 0.05, swapped(50)).describe()
        lines = [line for line in described if "above that" in line]
        assert [f"at position {rises}," in line for line in lines] == (
            [] if rises is None else [True]
        )
