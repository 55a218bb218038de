"""The course of training: which state is kept, when it stops, what it reports, and dropout."""

import dataclasses
import gc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import early_stopping as flax_stopping
from refusals import refuses
from small_logs import fill_tables, packed, ragged_log, shown, state_of

from clickexp.data import Features
from clickexp.data.feed import feed
from clickexp.errors import ConfigError, DataError, DivergedError
from clickexp.evaluation import evaluator as evaluation
from clickexp.loggers.base import Logger
from clickexp.metrics import (
    AUC,
    Examination,
    ExpectedCalibrationError,
    LogLikelihood,
    Metric,
    Perplexity,
    ranking_metrics,
)
from clickexp.models import DocumentCTRModel, PositionBasedModel
from clickexp.parameters import DeepParameterConfig, EmbeddingParameterConfig, LinearParameterConfig
from clickexp.training import (
    EarlyStopping,
    EMTrainer,
    LazySGD,
    NaturalGradient,
    Optimizer,
    Trainer,
    base,
)
from clickexp.training.loop import Checkpoint
from clickexp.training.optimizers import optimizer_of
from clickexp.training.stopping import KeepLast

RANKS, PAIRS = 4, 40
LOG = ragged_log(64, RANKS, PAIRS)
TRAIN = packed(LOG, PAIRS)
VAL = packed(ragged_log(64, RANKS, PAIRS, seed=1), PAIRS)
LL = {"ll": LogLikelihood()}
OVERFIT = Optimizer(optax.sgd(0.5), LazySGD(0.2))
SIZES = dict(decays=0, batch_size=16, eval_batch_size=32, steps_per_execution=2)


def documents(start=0.0):
    """Without a prior it overfits: clicks do not depend on documents."""
    tower = EmbeddingParameterConfig(posterior="none", prior_precision=0.0, baseline=start)
    return DocumentCTRModel(PAIRS, tower, rngs=nnx.Rngs(0))


def validation_loss(model):
    return -Trainer(eval_batch_size=32).evaluate(model, VAL, LL).compute()["ll"]


@dataclasses.dataclass
class Heard(Logger):
    """Records what the trainer reports."""

    epochs: list = dataclasses.field(default_factory=list)
    steps: list = dataclasses.field(default_factory=list)
    losses: list = dataclasses.field(default_factory=list)

    def epoch(self, record):
        self.epochs.append(record)

    def progress(self, phase, epoch, done, total, loss=None):
        self.steps.append((phase, epoch, done, total))
        if phase == "train":
            self.losses.append(loss)


def trained(stopping, epochs, **options):
    """A model, and the report of its training."""
    model = documents()
    return model, Trainer(OVERFIT, epochs, stopping, metrics=LL, **options, **SIZES).train(
        model, TRAIN, VAL
    )


@pytest.fixture(scope="module")
def overfit():
    """A training that stops early: its model, what its logger heard, and its report."""
    heard = Heard()
    model, report = trained(EarlyStopping(patience=2), 40, logger=heard)
    return model, heard, report


def check_best(model, report):
    losses = [record["val/loss"] for record in report.history]
    assert 1 < report.best_epoch < report.epochs == len(losses)
    assert report.best_epoch == 1 + int(np.argmin(losses))
    assert losses[-1] > min(losses) + 1e-3
    assert validation_loss(model) == pytest.approx(min(losses), abs=1e-7)
    sizes = shown(ragged_log(64, RANKS, PAIRS, seed=1)).sum(axis=0).tolist()
    assert report.per_rank["sessions"] == sizes
    mean = np.average(report.per_rank["ll"], weights=report.per_rank["sessions"])
    assert mean == pytest.approx(-min(losses), abs=1e-7)
    assert [record["improved"] for record in report.history] == [
        loss < min(losses[:index], default=np.inf) - 1e-5 for index, loss in enumerate(losses)
    ]


def test_the_model_is_left_in_its_best_state_where_training_stops(overfit):
    model, _, report = overfit
    check_best(model, report)
    assert report.epochs == report.best_epoch + 3


@pytest.mark.nightly
def test_the_model_is_left_in_its_best_state_where_epochs_run_out():
    model, report = trained(None, 12)
    check_best(model, report)
    assert report.epochs == 12


@pytest.mark.nightly
@pytest.mark.parametrize("patience", [0, 2])
def test_training_stops_in_the_epoch_in_which_flax_would(patience):
    rule = flax_stopping.EarlyStopping(min_delta=1e-5, patience=patience)
    _, report = trained(rule, 40)
    for record in report.history:
        assert not rule.should_stop
        rule = rule.update(record["val/loss"])
        assert record["improved"] == rule.has_improved
    assert rule.should_stop and report.epochs < 40


def test_training_goes_on_from_the_restored_state(overfit):
    """A second call starts from the parameters that the first left."""
    model, _, report = overfit
    again = Trainer(optax.sgd(0.0), 1, metrics=LL, **SIZES).train(nnx.clone(model), TRAIN, VAL)
    best = report.history[report.best_epoch - 1]["val/loss"]
    assert again.history[0]["val/loss"] == pytest.approx(best, abs=1e-7)


class Nothing(Metric):
    """A metric that is never a number."""

    higher_is_better = False

    def statistics(self, **outputs):
        return {"zero": jnp.zeros(())}

    def compute(self):
        return float("nan")


def test_tables_of_a_training_are_freed_with_it():
    """No collection of garbage is needed, though Flax leaves states in cycles."""
    model = PositionBasedModel(positions=RANKS, query_doc_pairs=PAIRS, rngs=nnx.Rngs(0))
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    gc.disable()
    try:
        Trainer(epochs=1, **SIZES).train(model, TRAIN, VAL)
        tables = {id(array) for array in jax.live_arrays() if array.shape[:1] == (PAIRS + 1,)}
    finally:
        gc.enable()
    of_model = {id(model.attraction.table.get_value().values)}
    assert tables - before == of_model


@pytest.mark.nightly
def test_without_improvement_the_model_stays_as_it_was():
    model = fill_tables(documents())
    before = state_of(model)
    stopping = EarlyStopping("nothing", patience=2)
    trainer = Trainer(OVERFIT, 9, stopping, metrics={"nothing": Nothing()}, **SIZES)
    report = trainer.train(model, TRAIN, VAL)
    assert (report.epochs, report.best_epoch) == (3, 0)
    for a, b in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


def check_nothing_is_trained(part, nothing):
    parts = {"training": TRAIN, "validation": VAL} | {part: nothing}
    with refuses(ConfigError, f"no {part} sessions"):
        Trainer(OVERFIT, 3, metrics=LL, **SIZES).train(documents(), *parts.values())


def once():
    return iter([{**LOG, "mask": shown(LOG)}])


def test_without_sessions_nothing_is_trained():
    """Else the model would be left untrained."""
    for nothing in (TRAIN.slice(0, 0), []):
        check_nothing_is_trained("training", nothing)
    check_nothing_is_trained("validation", TRAIN.slice(0, 0))


@pytest.mark.nightly
def test_without_sessions_when_they_are_passed_the_model_stays_untrained():
    """Batches that come once are gone; validation is where it shows that there are none."""
    check_nothing_is_trained("training", once())
    for nothing in ([], once()):
        check_nothing_is_trained("validation", nothing)


def diverging(good_steps):
    """Descent that leaves the numbers after so many steps."""
    return optax.sgd(lambda step: jnp.where(step < good_steps, 0.5, jnp.inf))


def test_features_that_are_too_large_are_named_where_training_diverges():
    features = Features(np.full((TRAIN.query_doc_pairs + 1, 2), -1e30, np.float32))
    trainer = Trainer(diverging(0), 9, None, metrics=LL, **SIZES)
    with refuses(DivergedError, "epoch 1", "Features reach 1e+30", "scale them"):
        trainer.train(documents(), TRAIN.with_features(features), VAL)


@pytest.mark.nightly
@pytest.mark.parametrize("good_epochs", [0, 2])
def test_divergence_leaves_the_best_state(good_epochs):
    model, heard = documents(), Heard()
    before = state_of(model)
    trainer = Trainer(diverging(4 * good_epochs), 9, None, metrics=LL, logger=heard, **SIZES)
    with refuses(DivergedError, f"epoch {good_epochs + 1}", "learning rate"):
        trainer.train(model, TRAIN, VAL)
    assert len(heard.epochs) == good_epochs + 1
    if good_epochs:
        best = min(record["val/loss"] for record in heard.epochs[:good_epochs])
        assert validation_loss(model) == pytest.approx(best, abs=1e-7)
    else:
        for a, b in zip(before, state_of(model), strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_interrupted_run_keeps_the_best_state():
    class Impatient(Heard):
        def progress(self, phase, epoch, done, total, loss=None):
            if epoch == 3:
                raise KeyboardInterrupt

    model, heard = documents(), Impatient()
    with pytest.raises(KeyboardInterrupt):
        Trainer(OVERFIT, 9, None, metrics=LL, logger=heard, **SIZES).train(model, TRAIN, VAL)
    assert len(heard.epochs) == 2
    best = min(record["val/loss"] for record in heard.epochs)
    assert validation_loss(model) == pytest.approx(best, abs=1e-7)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "metric, mode, descends",
    [("ll", "auto", True), ("ppl", "auto", True), ("ll", "min", False), ("cond_ppl", "max", False)],
)
def test_early_stopping_on_a_metric_of_choice(metric, mode, descends):
    """On the training log it improves steadily; in the wrong mode the first epoch is the best."""
    stopping = EarlyStopping(metric, patience=1, mode=mode)
    report = Trainer(OVERFIT, 5, stopping, **SIZES).train(documents(), TRAIN, TRAIN)
    assert (report.epochs, report.best_epoch) == ((5, 5) if descends else (3, 1))
    values = [record[f"val/{metric}"] for record in report.history]
    assert (np.diff(values) > 0).all() == (metric == "ll")


def test_a_trainer_settles_which_way_the_metric_of_choice_is_better():
    modes = {"loss": "min", "ll": "max", "ppl": "min", "cond_ppl": "min"}
    for metric, mode in modes.items():
        assert Trainer(early_stopping=EarlyStopping(metric)).early_stopping.mode == mode
        assert EMTrainer(early_stopping=EarlyStopping(metric)).early_stopping.mode == mode
    assert Trainer(early_stopping=EarlyStopping("ll", mode="min")).early_stopping.mode == "min"
    kept = Trainer(epochs=7, early_stopping=None).stopping
    assert (kept.metric, kept.patience) == ("loss", 7)
    assert isinstance(EMTrainer().stopping, KeepLast)


@pytest.fixture
def handed_over(monkeypatch):
    """What a trainer gives to the loop of a training, in place of which this one ends."""

    class Stop(Exception):
        pass

    def call(trainer, model):
        given = []

        def keep(*parts):
            given.extend(parts)
            raise Stop

        monkeypatch.setattr(base, "Loop", keep)
        with pytest.raises(Stop):
            trainer.train(model, TRAIN, VAL)
        return given

    return call


def test_a_trainer_hands_over_what_a_run_gave_it(handed_over):
    """The rule, the logger and the checkpoint, in seconds."""
    heard, stopping = Heard(), EarlyStopping(mode="min")
    files = dict(checkpoint="c.npz", checkpoint_minutes=2, continue_from="earlier.npz")
    trainer = Trainer(OVERFIT, 3, stopping, logger=heard, settings={"a": 1}, **files, **SIZES)
    learner, validation, *rest = handed_over(trainer, documents())
    assert learner.passes == 3 and validation.names == ["loss", "ll", "ppl", "cond_ppl"]
    checkpoint = Checkpoint(Path("c.npz"), 120.0, Path("earlier.npz"), {"a": 1})
    assert rest == [stopping, heard, checkpoint] and rest[1] is heard
    assert Trainer(checkpoint="c.npz", checkpoint_minutes=None).checkpoint is None
    *_, checkpoint = handed_over(Trainer(OVERFIT), documents())
    assert checkpoint == Checkpoint(None, 300.0, None, {})


class FollowsClickVectors(DocumentCTRModel):
    follows_click_vectors = True


def test_marginals_that_take_all_click_vectors_are_computed_where_they_are_watched(handed_over):
    model = FollowsClickVectors(PAIRS, rngs=nnx.Rngs(0))
    names = {
        metric: handed_over(Trainer(OVERFIT, 3, EarlyStopping(metric), **SIZES), model)[1].names
        for metric in ("loss", "ppl", "cond_ppl")
    }
    without = ["loss", "ll", "cond_ppl"]
    assert names == {"loss": without, "ppl": ["loss", "ll", "ppl", "cond_ppl"], "cond_ppl": without}


def test_an_optimizer_is_one_of_ours_or_of_optax():
    rule = optax.sgd(0.1)
    assert optimizer_of(rule) == Optimizer(rule) and optimizer_of(OVERFIT) is OVERFIT
    default = optimizer_of(None).rows
    assert default == NaturalGradient(0.5, posterior_rate=0.3)
    for wrong in (3, LazySGD(0.1)):
        with refuses(ConfigError, f"optimizer={wrong!r}", "an Optimizer", "Optax"):
            optimizer_of(wrong)


class Brier(Metric):
    """Mean squared error of P(click), a metric of a user."""

    higher_is_better = False

    def statistics(self, *, log_probs, clicks, where, **_):
        missed = jnp.exp(jnp.where(clicks, log_probs.complement, log_probs.log))
        errors = jnp.where(where, missed**2, 0)
        return {"errors": jnp.sum(errors), "documents": jnp.sum(where)}

    def compute(self):
        return float(self.total("errors").sum() / self.total("documents").sum())


class Unstated(Brier):
    higher_is_better = None


class Misstated(Brier):
    higher_is_better = "lower"


@pytest.mark.nightly
def test_early_stopping_follows_a_metric_of_a_user():
    """The Brier score falls, then rises; maximised, that of the last epoch would be the best."""
    stopping = EarlyStopping("brier", patience=2)
    trainer = Trainer(OVERFIT, 40, stopping, metrics={**LL, "brier": Brier()}, **SIZES)
    report = trainer.train(documents(), TRAIN, VAL)
    scores = [record["val/brier"] for record in report.history]
    assert 1 < report.best_epoch == 1 + int(np.argmin(scores))
    assert report.epochs == report.best_epoch + 3


def test_early_stopping_goes_the_way_that_a_metric_states():
    stopping = EarlyStopping("brier", patience=2)
    stated = Trainer(early_stopping=stopping, metrics={"brier": Brier()})
    assert stated.early_stopping.mode == "min"
    with refuses(ConfigError, "early_stopping.metric=brier", "higher_is_better"):
        Trainer(early_stopping=stopping, metrics={"brier": Unstated()})
    with refuses(ConfigError, "brier", "Misstated.higher_is_better", "'lower'", "True, False"):
        Trainer(early_stopping=stopping, metrics={"brier": Misstated()})
    for mode in ("min", "max"):
        stated = Trainer(
            early_stopping=EarlyStopping("brier", mode=mode), metrics={"brier": Unstated()}
        )
        assert stated.early_stopping.mode == mode


def test_an_unknown_metric_is_an_error_that_lists_those_there_are():
    with refuses(ConfigError, "'auc'", "loss, ll, ppl, cond_ppl"):
        Trainer(early_stopping=EarlyStopping("auc"))
    with refuses(ConfigError, "'ppl'", "loss, ll") as caught:
        Trainer(early_stopping=EarlyStopping("ppl"), metrics=LL)
    assert "cond_ppl" not in str(caught.value)


def test_settings_are_in_their_bounds():
    for name in ("epochs", "steps_per_execution", "batch_size", "eval_batch_size"):
        with refuses(ConfigError, f"{name}=0"):
            Trainer(**{name: 0})
    for rate in (0.0, -0.1, float("nan")):
        with refuses(ConfigError, f"learning_rate={rate}"):
            LazySGD(rate)


def test_report_and_logger(overfit):
    _, heard, report = overfit
    epochs = [*range(1, report.epochs + 1)]
    assert report.history == heard.epochs and [r["epoch"] for r in heard.epochs] == epochs
    losses = {"train/loss", "val/ll", "val/loss"}
    rest = {"epoch", "seconds", "compile_seconds", "sessions", "improved"}
    assert set(heard.epochs[0]) == losses | rest
    compiled = [record["compile_seconds"] for record in report.history]
    assert (
        0 < compiled[0] < report.history[0]["seconds"] and sum(compiled) <= report.compile_seconds
    )
    assert compiled[-1] == 0  # everything was compiled in the first epochs
    sessions = 64 * report.epochs
    assert report.sessions == sessions
    assert 0 < report.compile_seconds < report.seconds
    assert sum(record["seconds"] for record in report.history) <= report.seconds
    training_seconds = report.seconds - report.compile_seconds
    assert report.sessions_per_second == pytest.approx(sessions / training_seconds)
    assert report.summary() == dict(
        epochs=report.epochs,
        best_epoch=report.best_epoch,
        sessions=sessions,
        seconds=report.seconds,
        compile_seconds=report.compile_seconds,
        training_seconds=training_seconds,
        sessions_per_second=report.sessions_per_second,
    )
    assert heard.steps == [
        (phase, epoch, done, 64)
        for epoch in epochs
        for phase, done in (("train", 32), ("train", 64), ("val", 64))
    ]
    # that of the dispatch before, since the last may still be computed
    assert heard.losses[::2] == [None] * report.epochs
    losses = [record["train/loss"] for record in report.history]
    np.testing.assert_allclose(heard.losses[1::2], losses, rtol=0.5)


def test_names_of_test_metrics():
    model, trainer = documents(), Trainer(eval_batch_size=32)
    labelled = packed({**LOG, "labels": (LOG["query_doc_ids"] % 3).astype(np.float32)}, PAIRS)
    assert set(trainer.test(model, VAL)) == {"test_ll", "test_ppl", "test_cond_ppl"}
    names = {f"test_{metric}@{n}" for metric in ("dcg", "ndcg", "mrr") for n in (1, 3, 5, 10)}
    values = trainer.test_ranking(model, labelled)
    assert set(values) == names and all(0 <= value < 10 for value in values.values())


def test_ranking_metrics_of_a_model_that_knows_the_labels():
    """Rows ordered as labels give nDCG 1, reversed ones less; no document has label 0."""
    labels = 1 + np.arange(PAIRS + 1, dtype=np.float32) % 4
    labelled = packed(
        {**LOG, "labels": np.where(shown(LOG), labels[LOG["query_doc_ids"]], 0)}, PAIRS
    )
    values = []
    for sign in (1, -1):
        model = documents()
        rows = model.ctr.table.get_value()
        model.ctr.table.set_value(
            dataclasses.replace(rows, values=jnp.asarray(sign * labels[:, None]))
        )
        metrics = ranking_metrics(["ndcg"], [3])
        values.append(
            Trainer(eval_batch_size=32).test_ranking(model, labelled, metrics)["test_ndcg@3"]
        )
    assert values[0] == pytest.approx(1.0, abs=1e-6) and values[1] < 0.9


def linear_ranker():
    """Attraction is the sum of the features; ten positions, though lists to rank are longer."""
    tower = LinearParameterConfig("query_doc_features", features=3, input_norm=None)
    model = PositionBasedModel(positions=10, attraction=tower, rngs=nnx.Rngs(0))
    model.attraction.linear.kernel[...] = jnp.ones((3, 1))
    return model


def labelled(lists, documents, seed):
    """A batch as a loader of annotations makes it: without clicks, ids and positions."""
    rng = np.random.default_rng(seed)
    mask = np.arange(documents) < rng.integers(2, documents + 1, lists)[:, None]
    return {
        "query_doc_features": rng.normal(size=(lists, documents, 3)).astype(np.float32),
        "labels": (mask * rng.integers(0, 5, (lists, documents))).astype(np.float16),
        "mask": mask,
        "n": mask.sum(axis=1).astype(np.int16),
    }


def dcg_at_3(batch):
    """Of each list, ranked by the sum of the features, in float64 numpy."""
    values = []
    for features, labels, mask in zip(
        batch["query_doc_features"], batch["labels"], batch["mask"], strict=True
    ):
        order = np.argsort(-features[mask].astype(np.float64).sum(axis=1))
        gains = 2.0 ** labels[mask].astype(np.float64)[order][:3] - 1
        values.append(np.sum(gains / np.log2(np.arange(2, 2 + len(gains)))))
    return values


def test_lists_to_rank_need_labels_and_no_clicks():
    """Batches may come once, and may give lengths in place of a mask."""
    batches = [labelled(5, 12, seed=0), labelled(3, 30, seed=1)]
    expected = np.mean(dcg_at_3(batches[0]) + dcg_at_3(batches[1]))
    dcg = ranking_metrics(["dcg"], [3])
    tested = Trainer().test_ranking(linear_ranker(), batches, dcg)
    assert tested == {"test_dcg@3": pytest.approx(expected, rel=1e-5)}
    for batch in batches:
        del batch["mask"]
        batch["lengths"] = batch.pop("n").astype(np.int32)
    trainer = Trainer(groups={"ranking": dcg})
    again = trainer.evaluate_ranking(linear_ranker(), iter(batches)).compute("test_")
    assert again == tested


def test_a_batch_without_what_is_needed_is_an_error_that_names_it():
    model, batch = linear_ranker(), labelled(5, 4, seed=0)
    without = {name: {key: value for key, value in batch.items() if key != name} for name in batch}
    documents = {"query_doc_ids": np.ones((2, 4), np.int32), "mask": np.ones((2, 4), bool)}
    with refuses(DataError, "no clicks", "Add it"):
        Trainer().test_clicks(model, [batch])
    with refuses(DataError, "no labels", "Add it"):
        Trainer().test_ranking(model, [without["labels"]])
    with refuses(DataError, "no mask", "Add it"):
        Trainer().test_ranking(model, [without["mask"]])
    with refuses(DataError, "no clicks"):
        Trainer(optax.sgd(0.1)).train(model, [batch], [batch])
    with refuses(DataError, "no clicks"):
        EMTrainer().train(PositionBasedModel(4, 10, rngs=nnx.Rngs(0)), [documents], [documents])


def test_long_lists_are_evaluated_fewer_at_a_time_to_the_same_values(monkeypatch):
    model, trainer = documents(), Trainer(eval_batch_size=32)
    metrics = {
        "ppl": Perplexity(),
        "auc": AUC(),
        "ece": ExpectedCalibrationError(),
        "e": Examination(),
    }
    value = trainer.evaluate(model, VAL, metrics).compute()
    batches = []
    monkeypatch.setattr(evaluation, "_MOST_NUMBERS", 5 * RANKS)
    monkeypatch.setattr(
        evaluation,
        "feed",
        lambda data, *sizes, **places: batches.append(sizes) or feed(data, *sizes, **places),
    )
    # sums of float32 per batch, which are off in the last digit
    assert trainer.evaluate(model, VAL, metrics).compute() == pytest.approx(value, rel=5e-7)
    assert batches == [(5, 1)]


FEATURES = np.random.default_rng(0).normal(size=(64, RANKS, 3)).astype(np.float32)
BATCHES = [dict(clicks=LOG["clicks"], mask=np.ones((64, RANKS), bool), query_doc_features=FEATURES)]


def dropout_model():
    tower = DeepParameterConfig(features=3, hidden_units=8, layers=1, dropout=0.5)
    return PositionBasedModel(RANKS, attraction=tower, rngs=nnx.Rngs(0))


def dropout_counts(model):
    return [
        int(count[...]) for _, count in nnx.iter_graph(model) if isinstance(count, nnx.RngCount)
    ]


def test_dropout_acts_in_training_and_not_in_evaluation():
    """At rate 0 the weights stay, so that losses differ by what is dropped alone."""
    model = dropout_model()
    before = dropout_counts(model)
    still = Trainer(optax.sgd(0.0), 3, EarlyStopping(patience=3), metrics=LL)
    report = still.train(model, BATCHES, BATCHES)
    train, val = (
        [record[f"{part}/loss"] for record in report.history] for part in ("train", "val")
    )
    assert len(set(train)) == 3 and len(set(val)) == 1 and not set(train) & set(val)
    after = dropout_counts(model)
    assert all(a > b for a, b in zip(after, before, strict=True)) and len(after) > 0


@pytest.mark.nightly
def test_towers_without_tables_learn():
    model = dropout_model()
    report = Trainer(optax.adam(0.05), 8, None, metrics=LL).train(model, BATCHES, BATCHES)
    assert report.history[-1]["val/loss"] < report.history[0]["val/loss"] - 0.01
