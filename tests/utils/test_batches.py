"""Batches, sessions and clicks that do not fit: one line that names the key and the remedy, never a number."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo
from flax import nnx
from refusals import refuses

from clickexp import metrics, models
from clickexp.data import Dataset, Sessions
from clickexp.errors import DataError
from clickexp.evaluation import inputs
from clickexp.evaluation.evaluate import check_lists
from clickexp.evaluation.groups import HeldOut
from clickexp.parameters import (
    EmbeddingParameterConfig,
    HashEmbedding,
    LinearParameterConfig,
    PositionParameterConfig,
    QREmbedding,
    RobeDEmbedding,
)
from clickexp.simulation.towers import FixedParameter
from clickexp.training import CountingTrainer, EMTrainer, Trainer
from clickexp.utils.batches import check_values

PAIRS, RANKS = 20, 4
PBM = functools.partial(models.PositionBasedModel, RANKS, PAIRS, rngs=nnx.Rngs(0))
SMALL = dict(batch_size=8, eval_batch_size=8, steps_per_execution=2)
TRAINERS = [Trainer(epochs=1, **SMALL), EMTrainer(1, **SMALL), CountingTrainer(**SMALL)]


def batch(**changed):
    """Two full lists; None takes a key away."""
    ones = np.ones((2, RANKS), np.int32)
    whole = dict(
        query_doc_ids=3 * ones, positions=np.cumsum(ones, axis=1), clicks=ones < 0, mask=ones > 0
    )
    return {name: values for name, values in {**whole, **changed}.items() if values is not None}


def at(key, value, place=(1, 2)):
    """The batch with another value at one document."""
    values = batch()[key].astype(type(value) if key == "clicks" else np.int64)
    values[place] = value
    return batch(**{key: values})


def one_line(parts, call, *args):
    """The message names these parts: the key, its value, and the remedy."""
    with refuses(DataError, *parts.split(" … ")) as error:
        call(*args)
    assert "\n" not in str(error.value)


def calls(model):
    return {
        "loss": model.compute_loss,
        "clicks": model.predict_clicks,
        "conditional": model.predict_conditional_clicks,
        "examination": model.predict_examination,
        "sample": functools.partial(model.sample, rngs=jax.random.key(0)),
    }


WRONG = [
    (
        "query_doc_ids",
        10**7,
        "query_doc_ids … 10000000 … attraction … to 20 … query_doc_pairs=10000000",
    ),
    ("query_doc_ids", 2**32 + 3, "query_doc_ids … 4294967299"),
    ("query_doc_ids", -1, "query_doc_ids … -1 … at least 0"),
    ("positions", 0, "positions … 0 … at least 1"),
    ("positions", 15, "positions … 15 … examination … to 4 … positions=15 or more"),
]


@pytest.mark.parametrize("method", calls(PBM()))
def test_ids_and_positions_without_a_parameter(method):
    call = calls(PBM())[method]
    for key, value, message in WRONG:
        one_line(message, call, at(key, value))
        hidden = at(key, value)
        hidden["mask"] = hidden["mask"] & (hidden[key] == batch()[key])
        call(hidden)


@zoo.nightly_every_model
def test_every_model_knows_its_size(case):
    """The largest id and position are fit, the next are not, in whatever the clicks depend on."""
    model = case.build(rngs=nnx.Rngs(0))
    for key, argument, largest in (
        ("query_doc_ids", "query_doc_pairs", zoo.PAIRS),
        ("positions", "positions", zoo.POSITIONS),
    ):
        model.compute_loss(at(key, largest))
        if argument in case.build.keywords:
            one_line(
                f"{key} … {largest + 1} … {argument}=", model.compute_loss, at(key, largest + 1)
            )


def attraction(**settings):
    return PBM(attraction=EmbeddingParameterConfig(**settings))


@pytest.mark.parametrize(
    "model, largest",
    [
        (attraction(), PAIRS),
        (attraction(parameters=50), 50),
        (attraction(parameters=50, has_padding=False), 49),
        (attraction(embedding_fn=QREmbedding, compression_ratio=2), PAIRS),
        (attraction(embedding_fn=HashEmbedding, compression_ratio=2), 2**31 - 1),
        (attraction(embedding_fn=RobeDEmbedding, compression_ratio=2), 2**31 - 1),
        (PBM(attraction=FixedParameter(np.zeros(7))), 6),
    ],
)
def test_a_tower_states_the_ids_that_it_takes(model, largest):
    model.compute_loss(at("query_doc_ids", largest))
    one_line(f"query_doc_ids … {largest + 1}", model.compute_loss, at("query_doc_ids", largest + 1))


def test_small_tables_of_derived_indices():
    """UBM with room for half of its positions, and DRCTR with room for half of its pairs."""
    examination = PositionParameterConfig(use_feature="examination_idx", parameters=15)
    ubm = models.UserBrowsingModel(RANKS, PAIRS, examination, rngs=nnx.Rngs(0))
    one_line("positions … 4 … examination … up to 2", ubm.compute_loss, batch())
    ctr = EmbeddingParameterConfig(use_feature="ctr_idx", parameters=11 * RANKS - 1)
    drctr = models.DocumentRankCTRModel(RANKS, PAIRS, ctr, rngs=nnx.Rngs(0))
    drctr.compute_loss(at("query_doc_ids", 10))
    one_line("query_doc_ids … 11 … up to 10", drctr.compute_loss, at("query_doc_ids", 11))


def test_only_what_an_output_depends_on_has_to_fit():
    PBM().predict_relevance(at("positions", 15))
    PBM().predict_relevance(batch(positions=None))
    models.DocumentCTRModel(PAIRS, rngs=nnx.Rngs(0)).compute_loss(at("positions", 15))
    one_line(
        "positions",
        models.RankCTRModel(RANKS, rngs=nnx.Rngs(0)).predict_relevance,
        at("positions", 15),
    )


WIDE = [(np.int64, 2**31 + 5), (np.int64, -(2**31) - 1), (np.uint64, 2**63 + 9)]


@pytest.mark.parametrize("dtype, value", WIDE)
@pytest.mark.parametrize("shape", [(2, RANKS), (2, 1), (2,), (2, RANKS, 3)])
def test_integers_that_32_bits_do_not_hold_are_refused_where_they_are_read(dtype, value, shape):
    """JAX would wrap them around to others. Beside documents there may be anything."""
    visits = np.full(shape, 3, dtype)
    visits.flat[-1] = value
    wide = batch(visits=visits)
    one_line(f"visits … {value} … 32 bits", check_values, wide, [], lambda key: True)
    check_values(wide, [], lambda key: key != "visits")
    check_values(batch(visits=np.minimum(visits, 2**31 - 1).clip(3)), [], lambda key: True)
    if len(shape) == 2 and shape[1] > 1:
        check_values(
            {**wide, "mask": np.array([[True] * RANKS, [True, False, False, False]])},
            [],
            lambda key: True,
        )


@pytest.mark.parametrize("value", [0.5, 2.0, np.nan, -1.0])
def test_clicks_are_0_or_1(value):
    message, wrong = f"clicks … {value} … 0 or 1", at("clicks", value)
    log_probs = np.full((2, RANKS), -1.0, np.float32)
    click_metrics = (
        metrics.LogLikelihood(),
        metrics.Perplexity(),
        metrics.ConditionalPerplexity(),
        metrics.AUC(),
    )
    model = PBM()
    one_line(message, model.compute_loss, wrong)
    one_line(
        message, model.predict_conditional_clicks, {**wrong, "clicks": jnp.asarray(wrong["clicks"])}
    )
    for trainer in TRAINERS[:2]:
        one_line(message, trainer.train, model, [wrong], [batch()])
        one_line(message, trainer.train, model, [batch()], [wrong])
        one_line(message, trainer.evaluate, model, [wrong])
    for metric in click_metrics:
        outputs = dict(log_probs=log_probs, conditional_log_probs=log_probs, clicks=wrong["clicks"])
        update = functools.partial(metric.update, **outputs)
        one_line(message, update)
        hidden = batch()["mask"].copy()
        hidden[1, 2] = False
        update(where=hidden)


MALFORMED = [
    (dict(mask=None), "no mask … Add it"),
    (dict(clicks=None), "no clicks … Add it"),
    (dict(query_doc_ids=None), "no query_doc_ids"),
    (dict(positions=None), "no positions"),
    (dict(query_doc_ids=np.ones(RANKS, np.int32)), "query_doc_ids … (4,) … [batch, rank]"),
    (dict(clicks=np.zeros((2, 3), bool)), "clicks … (2, 3) … mask … (2, 4)"),
    (dict(clicks=[[0] * RANKS] * 2), "clicks … list … NumPy or JAX array"),
    (dict(query_doc_ids=np.ones((2, RANKS))), "query_doc_ids … float64 … integers"),
    (dict(labels=np.full((2, RANKS), "good")), "labels … <U4 … numbers"),
    (dict(clicks=np.full((2, RANKS), "no")), "clicks … <U2 … 0 and 1"),
    (dict(mask=np.full((2, RANKS), 0.5)), "mask … 0.5 … 0 or 1"),
    (dict(lengths=np.array([1, 2])), "lengths … mask"),
]


def test_malformed_batches():
    model = PBM()
    for changed, message in MALFORMED:
        one_line(message, model.compute_loss, batch(**changed))


def test_a_missing_document_of_pairs_has_its_remedy():
    of_documents = PBM(
        attraction=EmbeddingParameterConfig(use_feature="document_ids", parameters=3)
    )
    one_line("It has … dataset.pair_key=query_document", of_documents.compute_loss, batch())


def test_a_missing_feature_is_named_in_compiled_programs_too():
    model = PBM(attraction=LinearParameterConfig(features=3))
    message = "no query_doc_features"
    one_line(message, model.compute_loss, batch())
    one_line(message, TRAINERS[0].train, model, [batch()], [batch()])
    one_line(message, TRAINERS[0].evaluate, model, [batch()])


def test_compiled_programs_are_left_alone():
    """They know no values, and compute the same as before."""
    model, fit = PBM(), batch()
    expected = model.compute_loss(fit)
    assert jax.jit(lambda b: model.compute_loss(b))(fit) == expected
    jax.jit(lambda b: model.compute_loss(b))(at("positions", 15))
    each = jax.vmap(lambda b: model.compute_loss(jax.tree.map(lambda x: x[None], b)))(fit)
    np.testing.assert_allclose(each.mean(), expected, rtol=1e-6)


def packed(largest=PAIRS, ranks=RANKS, pairs=None, sessions=20):
    """Sessions whose last one shows the largest id, in its last rank."""
    ids = np.random.default_rng(0).integers(1, min(largest, PAIRS) + 1, (sessions, ranks))
    ids[-1, -1] = largest
    clicks = np.random.default_rng(1).random(ids.shape) < 0.3
    return Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=pairs)


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: type(trainer).__name__)
def test_trainers_check_sessions_and_batches(trainer):
    model = (
        models.DocumentRankCTRModel(RANKS, PAIRS, rngs=nnx.Rngs(0))
        if trainer is TRAINERS[2]
        else PBM()
    )
    fit, ids, positions = packed(), packed(largest=500), packed(ranks=9)
    for wrong, message in (
        (ids, "query_doc_ids … 500 … query_doc_pairs=500"),
        (positions, "positions … 9 … positions=9"),
        ([batch(), at("query_doc_ids", 500)], "query_doc_ids … 500"),
        ([batch(), at("positions", 0)], "positions … 0"),
        ([batch(mask=None)], "no mask"),
    ):
        one_line(message, trainer.train, model, wrong, fit)
        one_line(message, trainer.train, model, fit, wrong)
        one_line(message, trainer.evaluate, model, wrong)
        one_line(message, trainer.test, model, wrong)
    truth = {"ll": metrics.Examination()}
    held_out, groups = HeldOut(ids, truth=PBM()), {"truth": truth}
    one_line("query_doc_ids … 500", trainer.evaluator.compiled, model, held_out, groups)


class Counted(list):
    """Batches that know how often they were iterated."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


@pytest.mark.parametrize("trainer", TRAINERS[:2], ids=lambda trainer: type(trainer).__name__)
def test_faults_of_validation_batches_show_before_training(trainer):
    train = Counted([batch()])
    one_line(
        "query_doc_ids … 500", trainer.train, PBM(), train, [batch(), at("query_doc_ids", 500)]
    )
    assert train.passes == 0
    val = Counted([batch()])
    trainer.train(PBM(), train, iter(val))  # what comes once is left for the only epoch
    assert val.passes == 1


def test_batches_are_looked_through_in_one_complete_pass(monkeypatch):
    looked = []
    monkeypatch.setattr(inputs, "check_values", lambda batch, *_: looked.append(batch))
    model, given = PBM(), Counted([batch(), batch()])
    data = inputs.checked(given, model, model.compute_loss, "clicks")
    next(iter(data))
    for _ in range(3):
        assert len(list(data)) == 2
    assert len(looked) == 1 + 2 and given.passes == 4


def test_what_a_view_of_sessions_shows_has_to_fit_and_not_what_it_might():
    """A part of a log states the largest id of the whole."""
    whole = packed(largest=500)
    TRAINERS[0].evaluate(PBM(), whole.slice(0, 10))
    one_line("query_doc_ids … 500", TRAINERS[0].evaluate, PBM(), whole.slice(10, 20))
    TRAINERS[0].evaluate(PBM(), packed(pairs=10**6))


def test_ranking_checks_what_relevance_depends_on():
    """Labelled lists are longer than those that users saw: for a click rate per rank there is no parameter."""
    ids = np.ones((3, 2 * RANKS), np.int32)
    lists = Sessions.from_arrays(
        query_doc_ids=ids, clicks=ids < 0, labels=np.cumsum(ids, axis=1) % 3
    )
    trainer = TRAINERS[0]
    assert trainer.evaluate_ranking(PBM(), lists).compute()
    rctr = models.RankCTRModel(RANKS, rngs=nnx.Rngs(0))
    message = "positions … 8 … ctr … up to 4"
    one_line(message, trainer.evaluate_ranking, rctr, lists)
    one_line("no labels", trainer.evaluate_ranking, PBM(), packed())
    dataset = Dataset("small", packed(), packed(), packed(), PAIRS, RANKS, ranking=lists)
    groups = {"ranking": metrics.ranking_metrics()}
    one_line(f"labelled lists … {message} … metric=click", check_lists, rctr, dataset, groups)
    check_lists(PBM(), dataset, groups)
    check_lists(rctr, dataset, {})


def test_labels_whose_gains_overflow_are_an_error():
    """Before training, where metrics have exponential gains: 2^127 is near the largest number of float32."""
    ids = np.ones((2, 3), np.int32)
    linear = {"ranking": {"ndcg": metrics.NDCG([3], form="linear"), "mrr": metrics.MRR()}}
    for largest, fits in (100, True), (101, False):
        lists = Sessions.from_arrays(query_doc_ids=ids, clicks=ids < 0, labels=ids * largest)
        dataset = Dataset("small", packed(), packed(), packed(), PAIRS, RANKS, ranking=lists)
        check_lists(PBM(), dataset, linear)
        if fits:
            check_lists(PBM(), dataset, {"ranking": metrics.ranking_metrics()})
            assert np.isfinite(TRAINERS[0].evaluate_ranking(PBM(), lists).compute()["ndcg@3"])
        else:
            one_line(
                "labels … 101", check_lists, PBM(), dataset, {"ranking": metrics.ranking_metrics()}
            )
