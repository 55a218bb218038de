"""What the trainer computes, against float64 loops over documents."""

import inspect

import numpy as np
import optax
import pytest
from flax import nnx
from small_logs import fill_tables, packed, ragged_log, shown, sigmoid, state_of

from clickexp.metrics import LogLikelihood
from clickexp.models import DocumentCTRModel, GlobalCTRModel, PositionBasedModel, UserBrowsingModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.training import LazySGD, Optimizer, Trainer, lazy_adam, lazy_adamw
from clickexp.training import trainer as trainer_module

RANKS, PAIRS = 4, 15
LOG = ragged_log(90, RANKS, PAIRS)
VAL = ragged_log(37, RANKS, PAIRS, seed=1)
LL = {"ll": LogLikelihood()}
STILL = optax.sgd(0.0)
EPOCH = trainer_module.MIN_STEPS


def trained(model, optimizer, columns=LOG, val=VAL, epochs=2, **options):
    options = (
        dict(
            metrics=LL,
            early_stopping=None,
            batch_size=16,
            eval_batch_size=16,
            steps_per_execution=2,
        )
        | options
    )
    return Trainer(optimizer, epochs, **options).train(
        model, packed(columns, PAIRS), packed(val, PAIRS)
    )


def position_based(seed=0):
    return fill_tables(PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(0)), seed)


def click_probabilities(model, columns):
    """PBM's e_r a_d in float64."""
    rows = np.asarray(model.attraction.table.get_value().values, np.float64)[:, 0]
    attraction = sigmoid(rows[columns["query_doc_ids"]] + float(model.attraction.baseline[...]))
    examination = sigmoid(np.asarray(model.examination.weight[...], np.float64)[1:])
    return examination * attraction


def log_likelihoods(probabilities, columns):
    return np.log(np.where(columns["clicks"], probabilities, 1 - probabilities))


def test_reported_losses_are_means_over_documents():
    """Lists of all lengths, short last batches; the model does not move."""
    model = position_based()
    record = trained(model, STILL, epochs=1).history[0]
    for columns, loss in ((LOG, record["train/loss"]), (VAL, record["val/loss"])):
        values = log_likelihoods(click_probabilities(model, columns), columns)
        assert loss == pytest.approx(-values[shown(columns)].mean(), rel=1e-6)
    assert record["val/ll"] == -record["val/loss"]
    assert record["sessions"] == 90


def test_evaluated_metrics_are_means_over_documents():
    model = position_based()
    metrics = Trainer(batch_size=16, eval_batch_size=16, steps_per_execution=2).evaluate(
        model, packed(VAL, PAIRS)
    )
    values, mask = log_likelihoods(click_probabilities(model, VAL), VAL), shown(VAL)
    per_rank = [values[mask[:, rank], rank].mean() for rank in range(RANKS)]
    perplexities = np.exp(-np.array(per_rank))
    expected = {
        "ll": values[mask].mean(),
        "ppl": perplexities.mean(),
        "cond_ppl": perplexities.mean(),
    }
    assert metrics.compute() == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(metrics.compute_per_rank()["ll"], per_rank, rtol=1e-6)
    np.testing.assert_allclose(metrics.compute_per_rank()["ppl"], perplexities, rtol=1e-6)


def test_evaluation_does_not_depend_on_batches():
    model, values = position_based(), []
    for batch_size, steps in ((1, 3), (16, 2), (64, 16)):
        trainer = Trainer(eval_batch_size=batch_size, steps_per_execution=steps)
        values.append(trainer.test_clicks(model, packed(VAL, PAIRS), LL)["test_ll"])
    assert values == pytest.approx([values[0]] * 3, rel=1e-6)


def global_losses(columns, seed, epochs, batch, rate):
    """Losses by epoch of one logit under descent, each document weighing 1 / (batch * RANKS)."""
    logit, losses = 0.0, []
    for epoch in range(1, epochs + 1):
        order = np.arange(len(columns["clicks"]))
        if seed is not None:
            order = np.random.default_rng((seed, epoch)).permutation(len(order))
        total = 0.0
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            clicks = columns["clicks"][rows][shown(columns)[rows]]
            total -= np.log(sigmoid(np.where(clicks, logit, -logit))).sum()
            logit -= rate * (sigmoid(logit) - clicks).sum() / (batch * RANKS)
        losses.append(total / shown(columns).sum())
    return losses


@pytest.mark.parametrize(
    "seed",
    [pytest.param(None, marks=pytest.mark.nightly), pytest.param(0, marks=pytest.mark.nightly), 3],
)
def test_order_of_sessions_and_weight_of_documents(seed):
    """90 sessions in batches of 16: their order is that of (seed, epoch).

    A document in the short last batch weighs as any other.
    """
    columns = {name: values[np.argsort(LOG["clicks"].sum(1))] for name, values in LOG.items()}
    options = dict(shuffle=seed is not None, seed=seed or 0)
    report = trained(GlobalCTRModel(rngs=nnx.Rngs(0)), optax.sgd(4.0), columns, epochs=3, **options)
    losses = [record["train/loss"] for record in report.history]
    expected = {s: global_losses(columns, s, 3, 16, 4.0) for s in (None, 0, 3)}
    np.testing.assert_allclose(losses, expected.pop(seed), rtol=2e-6)
    assert all(np.abs(np.subtract(losses, other)).max() > 1e-4 for other in expected.values())


def test_dense_optimizers_train_tables():
    """optax.adamw on every parameter against AdamW in float64: every row decays at every step."""
    free = EmbeddingParameterConfig(add_baseline=False)
    model = fill_tables(DocumentCTRModel(PAIRS, free, rngs=nnx.Rngs(0)))
    rows = np.asarray(model.ctr.table.get_value().values, np.float64)[:, 0]
    first, second, step = np.zeros_like(rows), np.zeros_like(rows), 0
    rate, decay, b1, b2 = 0.05, 0.1, 0.9, 0.999
    for _ in range(2):
        for start in range(0, 90, 16):
            batch = {name: values[start : start + 16] for name, values in LOG.items()}
            mask, ids, grad = shown(batch), batch["query_doc_ids"], np.zeros_like(rows)
            np.add.at(grad, ids[mask], (sigmoid(rows[ids]) - batch["clicks"])[mask] / (16 * RANKS))
            step += 1
            first, second = b1 * first + (1 - b1) * grad, b2 * second + (1 - b2) * grad**2
            scaled = first / (1 - b1**step) / (np.sqrt(second / (1 - b2**step)) + 1e-8)
            rows -= rate * (scaled + decay * rows)
    report = trained(model, optax.adamw(rate, weight_decay=decay), shuffle=False)
    assert report.best_epoch == 2
    np.testing.assert_allclose(model.ctr.table.get_value().values[:, 0], rows, rtol=1e-4, atol=1e-5)


def run_of(**options):
    """Losses by epoch, and the parameters in the end."""
    model = fill_tables(DocumentCTRModel(PAIRS, rngs=nnx.Rngs(0)))
    history = trained(model, lazy_adam(), **options).history
    return [(record["train/loss"], record["val/loss"]) for record in history], state_of(model)


@pytest.mark.nightly
def test_a_seed_fixes_every_bit_however_many_steps_a_dispatch():
    one, same, other, four = (
        run_of(**o) for o in (dict(), dict(), dict(seed=2), dict(steps_per_execution=4))
    )
    assert one[0] == same[0] != other[0]
    for a, b in zip(one[1], same[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != c).any() for a, c in zip(one[1], other[1], strict=True))
    np.testing.assert_allclose(one[0], four[0], rtol=1e-6)
    for a, d in zip(one[1], four[1], strict=True):
        np.testing.assert_allclose(a, d, rtol=1e-5, atol=1e-6)


def as_batches(columns, size, **more):
    columns = dict(columns, mask=shown(columns), **more)
    columns.pop("lengths")
    count = len(columns["clicks"])
    return [
        {n: v[start : start + size] for n, v in columns.items()} for start in range(0, count, size)
    ]


@pytest.mark.parametrize(
    "kind", [PositionBasedModel, pytest.param(UserBrowsingModel, marks=pytest.mark.nightly)]
)
def test_lists_of_batches_train_as_packed_sessions_do(kind):
    """Batches with a mask, float clicks and explicit positions, in place of packed columns."""
    columns = ragged_log(64, RANKS, PAIRS)
    positions = np.tile(np.arange(1, RANKS + 1, dtype=np.int32), (64, 1))
    batches = as_batches(
        columns | dict(clicks=columns["clicks"].astype(np.float32)), 16, positions=positions
    )

    def build():
        return fill_tables(kind(RANKS, PAIRS, rngs=nnx.Rngs(0)))

    packed_model, listed_model, optimizer = (
        build(),
        build(),
        Optimizer(optax.adam(0.05), LazySGD(0.1)),
    )
    packed_report = trained(packed_model, optimizer, columns, columns, shuffle=False)
    listed_report = Trainer(optimizer, 2, None, metrics=LL).train(listed_model, batches, batches)
    for a, b in zip(packed_report.history, listed_report.history, strict=True):
        for name in ("train/loss", "val/loss", "sessions"):
            assert a[name] == pytest.approx(b[name], rel=1e-6)
    for a, b in zip(state_of(packed_model), state_of(listed_model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_documents_of_a_short_listed_batch_count_once():
    model = position_based()
    batches = as_batches(VAL, 16)
    metrics = Trainer().evaluate(model, batches, LL)
    values = log_likelihoods(click_probabilities(model, VAL), VAL)
    assert metrics.compute()["ll"] == pytest.approx(values[shown(VAL)].mean(), rel=1e-6)


FITTING = {
    1: 1,
    2 * EPOCH - 1: 1,
    2 * EPOCH: 2,
    4 * EPOCH - 1: 2,
    4 * EPOCH: 4,
    4096 * EPOCH - 1: 2048,
    4096 * EPOCH: 4096,
    10**7: 4096,
}


def test_the_batch_size_fits_the_log(monkeypatch):
    """The largest power of 2, up to 4096, that makes EPOCH steps; a size that is given stays."""
    sizes, log = [], packed(LOG, PAIRS)

    class Stop(Exception):
        pass

    def feed(data, batch_size, *rest):
        sizes.append(batch_size)
        raise Stop

    monkeypatch.setattr(trainer_module, "feed", feed)
    learners = [
        Trainer(STILL, batch_size=given).learner(GlobalCTRModel(rngs=nnx.Rngs(0)))
        for given in (None, 48)
    ]
    for sessions, expected in FITTING.items():
        monkeypatch.setattr(trainer_module, "session_count", lambda data: sessions)
        for learner in learners:
            with pytest.raises(Stop):
                learner.run_pass(log, 1)
        assert sizes[-2:] == [expected, 48], sessions


@pytest.mark.parametrize("of_rows, of_optax", [(lazy_adam, optax.adam), (lazy_adamw, optax.adamw)])
def test_moments_of_rows_decay_as_those_of_optax_do(of_rows, of_optax):
    ours, theirs = (inspect.signature(each).parameters for each in (of_rows, of_optax))
    for name in ("b1", "b2", "eps"):
        assert ours[name].default == theirs[name].default
