"""Documents that were not shown, wherever they stand: neither examined nor read past, in every model.

The oracle enumerates the story of the documents that were shown, at their positions; a model sees them with holes.
"""

import functools

import jax
import numpy as np
import oracle
import zoo
from flax import nnx
from refusals import refuses

from clickexp.data.batches import at_step, with_mask
from clickexp.errors import DataError
from clickexp.models import CascadeModel
from clickexp.types import SHOWN_FIRST, ByRank

FLOOR = np.log(1e-8)
"""What the cascade model gives a second click, which its story never has."""

HOLES = np.array([[0, 1, 0, 1, 1], [1, 0, 1, 1, 0], [0, 0, 1, 0, 1], [1, 1, 0, 0, 1]], bool)


def every_mask():
    """Each list under each of the 2^RANKS masks, none shown and all shown among them; clicks also where hidden."""
    ids, positions = (np.repeat(x, len(zoo.VECTORS), axis=0) for x in zoo.lists())
    clicks = np.random.default_rng(3).random(ids.shape) < 0.4
    return {
        "query_doc_ids": ids,
        "positions": positions,
        "clicks": clicks,
        "mask": np.tile(zoo.VECTORS, (zoo.LISTS, 1)),
    }


def compacted(batch):
    """The same lists with the documents shown at the front, and padding behind them."""
    order = np.argsort(~batch["mask"], axis=1, kind="stable")
    moved = {name: np.take_along_axis(values, order, axis=1) for name, values in batch.items()}
    return {
        **{name: values * moved["mask"] for name, values in moved.items()},
        "mask": moved["mask"],
    }


@functools.cache
def stories(case):
    """Of each row of every_mask: the documents shown, and the joint and hidden events of the story about them."""
    model, batch = zoo.random_model(case), every_mask()
    found = []
    for ids, positions, mask in zip(
        *(batch[name] for name in ("query_doc_ids", "positions", "mask")), strict=True
    ):
        parameters = case.probabilities(model, ids[mask], positions[mask])
        hidden = oracle.hidden(case.story, **parameters)
        examined = parameters.get("true_positive", hidden["examined"])
        found.append((mask, *oracle.enumerate_clicks(case.story, **parameters), examined))
    return found


@functools.cache
def said(case):
    return zoo.runner(case.name).predict(zoo.random_model(case), every_mask())


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


@zoo.every_model
def test_marginal_and_examination_are_those_of_the_documents_shown(case):
    outputs = said(case)
    for row, (mask, joint, vectors, examined) in enumerate(stories(case)):
        close(np.exp(outputs["clicks"][row, mask]), oracle.marginal(joint, vectors))
        close(np.exp(outputs["examination"][row, mask]), np.broadcast_to(examined, mask.sum()))
        assert np.all(outputs["clicks"][row, ~mask] == -np.inf)


@zoo.every_model
def test_conditional_and_loss_are_those_of_the_documents_shown(case):
    outputs, clicks = said(case), every_mask()["clicks"]
    for row, (mask, joint, vectors, _) in enumerate(stories(case)):
        seen = clicks[row, mask]
        known = oracle.conditional(joint, vectors)[(vectors == seen).all(axis=1)][0]
        if case.name == "CM marginal":  # after a click it has no story, as the cascade model
            known = np.where(np.cumsum(seen) - seen == 0, oracle.marginal(joint, vectors), np.nan)
        expected = np.log(np.maximum(np.nan_to_num(known), np.exp(FLOOR)))
        actual = outputs["conditional_clicks"][row, mask]
        if case.name in ("CM", "CM marginal"):
            close(actual, expected)
        possible = ~np.isnan(known) & (known > 0)
        close(actual[possible], expected[possible])
        losses = -np.log(np.where(seen, known, 1 - known)[possible])
        close(outputs["loss"][row, mask][possible], losses)
        assert np.all(outputs["loss"][row, ~mask] == 0)
        assert np.all(outputs["conditional_clicks"][row, ~mask] == -np.inf)


@zoo.nightly_every_model
def test_hiding_documents_is_leaving_them_out(case):
    """Loss and gradient with holes are those of shorter lists, at moderate and at extreme logits."""
    batch = every_mask()
    for scale in 1.0, 1e4:
        model = zoo.random_model(case, scale)
        for actual, expected in zip(
            *(
                jax.tree.leaves(zoo.runner(case.name).loss(model, each))
                for each in (batch, compacted(batch))
            ),
            strict=True,
        ):
            assert np.isfinite(actual).all()
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


@zoo.nightly_every_model
def test_nothing_that_a_hidden_document_holds_matters(case):
    batch, rng = every_mask(), np.random.default_rng(4)
    other = {
        "query_doc_ids": rng.integers(0, zoo.PAIRS, batch["mask"].shape).astype(np.int32),
        "positions": rng.integers(0, 2, batch["mask"].shape).astype(np.int32),
        "clicks": ~batch["clicks"],
    }
    changed = {name: np.where(batch["mask"], batch[name], values) for name, values in other.items()}
    actual = zoo.runner(case.name).predict(zoo.random_model(case), {**batch, **changed})
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), actual, said(case)
    )


@zoo.every_exact_model
def test_samples_are_of_the_documents_shown(case):
    """Click vectors and hidden events of one list under masks with holes, within 5 sigma."""
    ids, positions = (x[0] for x in zoo.lists())
    model, nothing = zoo.random_model(case), np.zeros_like(HOLES)
    shown = {"query_doc_ids": np.tile(ids, (4, 1)), "positions": np.tile(positions, (4, 1))}
    batch = zoo.repeated({**shown, "clicks": nothing, "mask": HOLES})
    sample = zoo.runner(case.name).sample(model, batch, jax.random.key(8))
    for kind, mask in enumerate(HOLES):
        parameters = case.probabilities(model, ids[mask], positions[mask])
        joint, vectors = oracle.enumerate_clicks(case.story, **parameters)
        clicks = sample.clicks[kind :: len(HOLES)]
        zoo.within_5_sigma((clicks[:, None, mask] == vectors).all(axis=-1), joint)
        hidden = oracle.hidden(case.story, **parameters)
        for event, name in ("examination", "examined"), ("satisfaction", "satisfied"):
            if event in case.hidden:
                zoo.within_5_sigma(
                    getattr(sample, event)[kind :: len(HOLES)][:, mask], hidden[name]
                )
        events = (event for event in sample._replace(component=None) if event is not None)
        assert not any(event[kind :: len(HOLES)][:, ~mask].any() for event in events)


def test_a_hidden_first_document_changes_nothing_below():
    """Cascade model, attraction 1/2: P(click) of the first document shown is 1/2 in every sense."""
    model = CascadeModel(3, rngs=nnx.Rngs(0))
    ones = np.ones((20_000, 2), np.int32)
    batch = {"query_doc_ids": ones, "clicks": ones > 0, "mask": ones * np.array([0, 1])}

    @nnx.jit
    def predicted(model, few):
        return (
            model.predict_clicks(few),
            model.predict_conditional_clicks(few),
            -model.compute_loss(few),
        )

    for log_prob in predicted(model, {name: values[:1] for name, values in batch.items()}):
        np.testing.assert_allclose(np.exp(np.ravel(log_prob)[-1]), 1 / 2, rtol=1e-6)
    sample = nnx.jit(lambda model, batch, key: model.sample(batch, key))
    clicks = np.asarray(sample(model, batch, jax.random.key(0)).clicks)
    assert not clicks[:, 0].any()
    zoo.within_5_sigma(clicks[:, 1], 1 / 2)


@zoo.nightly_every_model
def test_a_mask_made_from_lengths_changes_nothing(case):
    """It has no holes, which spares models the care for them."""
    lengths = np.tile(np.arange(zoo.RANKS + 1), 16)
    batch, model, run = (
        zoo.every_click_vector(lengths),
        zoo.random_model(case),
        zoo.runner(case.name),
    )
    packed = {
        **batch,
        "clicks": batch["clicks"] | ~batch["mask"],
        SHOWN_FIRST: lengths.astype(np.int32),
    }
    actual = run.predict(model, {name: values[1:] for name, values in packed.items()})
    expected = {name: values[1:] for name, values in run.predict(model, batch).items()}
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), actual, expected
    )


@zoo.by_tier([zoo.DBN], nightly=[zoo.CM, zoo.UBM])
def test_lengths_beside_a_mask_with_holes_mislead_no_compiled_program(case):
    """Eagerly they are an error; a compiled program, which knows no values, goes by the mask."""
    model, batch = zoo.random_model(case), every_mask()
    beside = {**batch, "lengths": np.full(len(batch["mask"]), zoo.RANKS, np.int32)}
    with refuses(DataError, "lengths", "mask"):
        model.predict_clicks(beside)
    clicks = nnx.jit(lambda model, batch: model.predict_clicks(batch))(model, beside)
    np.testing.assert_allclose(clicks, said(case)["clicks"], rtol=1e-6, atol=1e-6)


def test_only_a_mask_made_from_lengths_spares_the_care_for_holes():
    arrays = {
        "clicks": np.zeros((2, 3, 4), bool),
        "lengths": np.array([[4, 2, 1], [3, 3, 0]], np.int32),
    }
    assert ByRank(at_step(with_mask(arrays), 1)).mask is None
    given = {**arrays, "mask": np.ones((2, 3, 4), bool)}
    assert ByRank(at_step(with_mask(given), 1)).mask.all()
