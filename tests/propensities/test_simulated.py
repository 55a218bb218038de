"""True propensities of simulated users, against the numbers and the clicks that they were simulated with."""

from functools import partial

import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from small_logs import packed

from clickexp.data import Dataset, Sessions
from clickexp.errors import ConfigError
from clickexp.models import CascadeModel, MixtureModel, PositionBasedModel, TrustBiasModel
from clickexp.propensities import SimulatedPropensities
from clickexp.simulation import open_letor

EXAMINED = [0.9, 0.5, 0.2]
TRUSTED, MISTAKEN = [1.0, 0.8, 0.5], [0.6, 0.3, 0.1]


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        lines = [
            f"{rng.integers(0, 3)} qid:{query} 0:{rng.normal():.3f}"
            for query in range(20)
            for _ in range(4)
        ]
        (tmp_path / f"{name}.txt").write_text("\n".join([*lines[:-1], "2 qid:19 0:1"]) + "\n")
    return tmp_path


def opened(folder, **options):
    return open_letor(
        folder, sessions=20_000, val_sessions=50, test_sessions=50, positions=3, **options
    )


def test_examination_of_the_position_based_user_is_what_was_given(folder):
    found = SimulatedPropensities()(opened(folder, examination_by_rank=EXAMINED))
    assert np.allclose(found.values, np.array(EXAMINED) / EXAMINED[0], rtol=1e-5)
    assert found.offsets == (0, 0, 0)


def test_users_who_trust_have_slopes_and_offsets(folder):
    settings = dict(examination_by_rank=EXAMINED, trust_positive=TRUSTED, trust_negative=MISTAKEN)
    dataset = opened(folder, user=TrustBiasModel, **settings)
    relevant, irrelevant = (np.multiply(EXAMINED, each) for each in (TRUSTED, MISTAKEN))
    found = SimulatedPropensities()(dataset)
    assert np.allclose(
        found.values, (relevant - irrelevant) / (relevant - irrelevant)[0], rtol=1e-5
    )
    assert np.allclose(found.offsets, irrelevant, rtol=1e-5)
    rates = found.of_relevant()
    assert np.allclose(rates.values, relevant / relevant[0], rtol=1e-5) and rates.offsets is None


def test_mixtures_with_users_who_trust_have_no_offsets_in_common(folder):
    users = partial(MixtureModel, [partial(TrustBiasModel), partial(PositionBasedModel)])
    settings = dict(examination_by_rank=EXAMINED, trust_positive=TRUSTED, trust_negative=MISTAKEN)
    found = SimulatedPropensities()(opened(folder, user=users, **settings))
    examined = np.multiply(EXAMINED, np.add(TRUSTED, 1) / 2)
    assert np.allclose(found.values, examined / examined[0], rtol=1e-5) and found.offsets is None


def test_examination_that_depends_on_documents_is_its_mean(folder):
    """A user of the cascade model examines a rank if no document above was clicked."""
    dataset = opened(folder, user=CascadeModel)
    clicks = dataset.train.column("clicks")[:, :2]
    above = np.cumsum(clicks, axis=1)
    share = np.append(1.0, (above == 0).mean(axis=0))
    assert share[-1] < 0.8
    found = np.array(SimulatedPropensities()(dataset).values)
    assert (
        np.abs(found - share) < 4 * np.sqrt(share * (1 - share) * (1 / 20_000 + 1 / 4_096)) + 1e-6
    ).all()


def test_propensities_are_those_of_the_positions_that_the_log_states():
    """Lists leave out the second of four positions; the last one lies behind the last place of a list."""
    positions = np.tile(np.array([[1, 3, 4]], np.int32), (5, 1))
    ids, clicks = np.ones((5, 3), np.int32), np.zeros((5, 3), bool)
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, positions=positions)
    user = PositionBasedModel(query_doc_pairs=1, positions=4, rngs=nnx.Rngs(0))
    examined = np.array([0.5, 0.9, 0.7, 0.5, 0.1], np.float32)
    user.examination.weight[...] = np.log(examined / (1 - examined))
    found = SimulatedPropensities()(Dataset("log", log, log, log, 1, 4, truth=user))
    expected = [1, np.nan, 5 / 9, 1 / 9]
    np.testing.assert_allclose(found.by_position(4)[1:], expected, rtol=1e-5)


def test_the_truth_of_a_log_is_not_known():
    log = packed({"query_doc_ids": np.ones((4, 2), np.int32), "clicks": np.eye(4, 2, dtype=bool)})
    with refuses(ConfigError, "the clicks of log are not simulated", "propensity=harvest"):
        SimulatedPropensities()(Dataset("log", log, log, log, 1, 2))
