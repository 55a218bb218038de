"""Samplers against enumeration: click vectors and hidden events within 5 sigma."""

import functools

import jax
import numpy as np
import oracle
import zoo
from flax import nnx

from clickexp.models import UserBrowsingModel
from clickexp.simulation.towers import DecayingExamination

SHORT = 500


@functools.cache
def sampled(case):
    """(model, ids [K], positions [K], sample): one list, many sessions, the first ones cut short."""
    ids, positions = (x[0] for x in zoo.lists())
    mask = np.ones(zoo.RANKS, bool)
    batch = zoo.repeated(
        {"query_doc_ids": ids, "positions": positions, "clicks": ~mask, "mask": mask}
    )
    batch["mask"][:SHORT, 2:] = False
    model = zoo.random_model(case)
    sample = zoo.runner(case.name).sample(model, batch, jax.random.key(7))
    return model, ids, positions, sample._replace(component=None)


@zoo.every_exact_model
def test_click_vectors_are_as_frequent_as_their_probability(case):
    model, ids, positions, sample = sampled(case)
    joint, vectors = oracle.enumerate_clicks(
        case.story, **case.probabilities(model, ids, positions)
    )
    drawn = (sample.clicks[SHORT:, None] == vectors).all(axis=-1)
    zoo.within_5_sigma(drawn, joint)


@zoo.every_exact_model
def test_hidden_events_are_as_frequent_as_their_probability(case):
    model, ids, positions, sample = sampled(case)
    parameters = case.probabilities(model, ids, positions)
    hidden = oracle.hidden(case.story, **parameters)
    expected = {"examination": "examined", "satisfaction": "satisfied"}
    assert {name for name, event in sample._asdict().items() if event is not None} == {
        "clicks",
        *case.hidden,
    }
    for name in case.hidden:
        probability = parameters[name] if name == "attraction" else hidden[expected[name]]
        zoo.within_5_sigma(getattr(sample, name)[SHORT:], probability)


@zoo.every_exact_model
def test_hidden_events_fit_the_clicks(case):
    *_, sample = sampled(case)
    if "examination" in case.hidden:
        np.testing.assert_array_equal(sample.clicks, sample.examination & sample.attraction)
    if "satisfaction" in case.hidden:
        assert not (sample.satisfaction & ~sample.clicks).any()


@zoo.every_exact_model
def test_nothing_happens_where_no_document_is_shown(case):
    *_, sample = sampled(case)
    events = [event for event in sample if event is not None]
    assert all(
        event.shape == sample.clicks.shape and not event[:SHORT, 2:].any() for event in events
    )


def test_a_key_and_an_equal_stream_draw_the_same():
    model, batch = zoo.random_model(zoo.DCTR), zoo.every_click_vector()
    by_stream = model.sample(batch, rngs=nnx.Rngs(3)).clicks
    np.testing.assert_array_equal(model.sample(batch, nnx.Rngs(3)()).clicks, by_stream)
    assert (model.sample(batch, nnx.Rngs(4)).clicks != by_stream).any()


def test_users_of_the_simulation_are_sampled_as_they_are_predicted():
    """UBM whose examination decays with the distance to the last click."""
    model = UserBrowsingModel(
        zoo.POSITIONS, zoo.PAIRS, DecayingExamination(2.0, 1.5), rngs=nnx.Rngs(0)
    )
    ids, positions = (x[0] for x in zoo.lists())
    distance = positions[:, None] - np.array([0, *positions])
    examination = zoo.sigmoid(2.0 - 1.5 * np.log(np.maximum(distance, 1)))
    joint, vectors = oracle.enumerate_clicks(
        oracle.user_browsing_model, examination=examination, attraction=np.full(zoo.RANKS, 0.5)
    )
    shown = np.ones(zoo.RANKS, bool)
    batch = zoo.repeated(
        {"query_doc_ids": ids, "positions": positions, "clicks": ~shown, "mask": shown}
    )
    sample = nnx.jit(lambda model, batch, key: model.sample(batch, key).clicks)
    clicks = np.asarray(sample(model, batch, jax.random.key(1)))
    zoo.within_5_sigma((clicks[:, None] == vectors).all(axis=-1), joint)
    one = {name: values[:1] for name, values in batch.items()}
    predicted = np.exp(nnx.jit(lambda model: model.predict_clicks(one))(model))
    np.testing.assert_allclose(predicted[0], oracle.marginal(joint, vectors), rtol=1e-5)
