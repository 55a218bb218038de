"""What a validation computes: the model's own loss, and metrics of clicks, rankings and truth."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from refusals import refuses
from small_logs import packed, ragged_log, shown, sigmoid

from clickexp.data import Dataset
from clickexp.errors import ConfigError
from clickexp.evaluation.evaluate import evaluate, validation_metrics
from clickexp.evaluation.groups import click_metrics
from clickexp.metrics import AUC, Correlation, LogLikelihood, Perplexity, ranking_metrics
from clickexp.models import DocumentCTRModel, PositionBasedModel
from clickexp.models.base import Model
from clickexp.parameters import EmbeddingParameterConfig, Sizes, build_parameter
from clickexp.simulation import simulate
from clickexp.training import EarlyStopping, LazySGD, Optimizer, Trainer

RANKS, PAIRS = 4, 40
LOG, OTHER = ragged_log(64, RANKS, PAIRS), ragged_log(64, RANKS, PAIRS, seed=1)
LABELS = np.random.default_rng(3).integers(0, 3, PAIRS + 1).astype(np.float32)
OVERFIT = Optimizer(optax.sgd(0.5), LazySGD(0.2))
SIZES = dict(decays=0, batch_size=16, eval_batch_size=32, steps_per_execution=2)
FREE = EmbeddingParameterConfig(posterior="none", prior_precision=0.0, baseline=0.0)


def labelled(columns):
    return packed(
        {**columns, "labels": np.where(shown(columns), LABELS[columns["query_doc_ids"]], 0)}, PAIRS
    )


TRAIN, VAL = packed(LOG, PAIRS), labelled(OTHER)


def ndcg(scores, labels, mask, cutoff=3):
    """Mean over lists with relevant documents in float64 numpy; scores without ties."""
    values = []
    for score, label, where in zip(scores, labels, mask, strict=True):
        gains, discounts = 2.0 ** label[where] - 1, 1 / np.log2(np.arange(2, 2 + where.sum()))
        found = gains[np.argsort(-score[where])][:cutoff] @ discounts[:cutoff]
        ideal = np.sort(gains)[::-1][:cutoff] @ discounts[:cutoff]
        values += [found / ideal] if ideal else []
    return np.mean(values)


def scores_of(model):
    return np.asarray(model.ctr.table.get_value().values, np.float64)[:, 0]


LISTS = labelled(ragged_log(20, RANKS, PAIRS, seed=5, full=True))


@pytest.mark.parametrize("lists", [pytest.param(None, marks=pytest.mark.nightly), LISTS])
def test_early_stopping_on_a_ranking_metric(lists):
    """Of labelled lists, or of the validation sessions; the model is left in the best epoch."""
    model = DocumentCTRModel(PAIRS, FREE, rngs=nnx.Rngs(0))
    stopping, ndcg_at_3 = EarlyStopping("ndcg@3", patience=2), ranking_metrics(["ndcg"], [3])
    trainer = Trainer(OVERFIT, 20, stopping, groups={"ranking": ndcg_at_3}, **SIZES)
    report = trainer.train(model, TRAIN, VAL, val_lists=lists)
    values = [record["val/ndcg@3"] for record in report.history]
    assert report.best_epoch == 1 + int(np.argmax(values))
    assert report.epochs == report.best_epoch + 3
    data = VAL if lists is None else lists
    ids, labels, lengths = (data.column(name) for name in ("query_doc_ids", "labels", "lengths"))
    mask = np.arange(RANKS) < lengths[:, None]
    expected = ndcg(scores_of(model)[ids], labels.astype(np.float64), mask)
    assert values[report.best_epoch - 1] == pytest.approx(expected, rel=1e-5)
    assert {"val/ll", "val/ppl", "val/cond_ppl", "val/loss"} < set(report.history[0])


def test_ranking_metrics_need_labels_and_click_metrics_a_click_model():
    with refuses(ConfigError, "'ndcg@3'", "loss, ll, ppl, "):
        Trainer(early_stopping=EarlyStopping("ndcg@3"))
    trainer = Trainer(OVERFIT, 2, EarlyStopping("ll"), **SIZES)
    with refuses(ConfigError, "'ll'", "loss") as caught:
        trainer.train(Ranker(PAIRS, rngs=nnx.Rngs(0)), TRAIN, VAL)
    assert "ppl" not in str(caught.value)
    metrics = {"r": Correlation("attraction")}
    truth = Trainer(OVERFIT, 2, EarlyStopping("r"), groups={"truth": metrics}, **SIZES)
    with refuses(ConfigError, "'r'", "loss, ll, ppl, cond_ppl"):
        truth.train(DocumentCTRModel(PAIRS, FREE, rngs=nnx.Rngs(0)), TRAIN, VAL)


@pytest.mark.nightly
def test_early_stopping_on_the_truth():
    sizes = dict(sessions=400, queries=8, documents_per_query=5, positions=4)
    data = simulate(PositionBasedModel, **sizes)
    model = PositionBasedModel(4, data.query_doc_pairs, rngs=nnx.Rngs(0))
    stopping, metrics = EarlyStopping("r", patience=20), {"r": Correlation("attraction")}
    trainer = Trainer(OVERFIT, 6, stopping, groups={"truth": metrics}, **SIZES)
    report = trainer.train(model, data.train, data.val, truth=data.truth)
    values = [record["val/r"] for record in report.history]
    assert report.best_epoch == 1 + int(np.argmax(values))
    ids, lengths = (np.asarray(data.val.column(name)) for name in ("query_doc_ids", "lengths"))
    ids = ids[np.arange(ids.shape[1]) < lengths[:, None]]
    batch = dict(query_doc_ids=ids[None], mask=np.ones((1, ids.size), bool))
    fitted, true = (np.exp(each.predict_attraction(batch))[0] for each in (model, data.truth))
    assert max(values) == pytest.approx(np.corrcoef(fitted, true)[0, 1], abs=1e-4)


class Ranker(Model):
    """Squared error of the score against the click."""

    name = "ranker"

    def __init__(self, pairs, *, rngs):
        self.tower = build_parameter("tower", None, FREE, Sizes(pairs), rngs=rngs)

    def relevance(self, batch):
        return self.tower.logit(batch)

    def compute_loss(self, batch, aggregate=True):
        errors = jnp.where(
            batch["mask"], (self.relevance(batch) - batch["clicks"].astype("float32")) ** 2, 0.0
        )
        return errors.mean() if aggregate else errors


def squared_error(scores, columns):
    return ((scores[columns["query_doc_ids"]] - columns["clicks"]) ** 2)[shown(columns)].mean()


def test_a_ranker_is_validated_by_its_own_loss():
    """Fitted rows are the means of clicks; its test has its loss and ranking metrics, no clicks."""
    model = Ranker(PAIRS, rngs=nnx.Rngs(0))
    trainer = Trainer(Optimizer(optax.set_to_zero(), LazySGD(0.05)), 60, None, **SIZES)
    report = trainer.train(model, TRAIN, TRAIN)
    scores = np.asarray(model.tower.table.get_value().values, np.float64)[:, 0] + float(
        model.tower.baseline[...]
    )
    assert report.per_rank == {} and set(report.history[0]) >= {"train/loss", "val/loss"}
    best = report.history[report.best_epoch - 1]
    assert best["val/loss"] == pytest.approx(squared_error(scores, LOG), rel=1e-5)
    seen = shown(LOG)
    counts = np.bincount(LOG["query_doc_ids"][seen], minlength=PAIRS + 1)
    means = np.bincount(LOG["query_doc_ids"][seen], LOG["clicks"][seen], PAIRS + 1) / np.maximum(
        counts, 1
    )
    np.testing.assert_allclose(scores[counts > 2], means[counts > 2], atol=0.12)

    groups = {
        "click": click_metrics(),
        "ranking": ranking_metrics(["ndcg"], [3]),
        "test": {"auc": AUC()},
    }
    dataset = Dataset("lists", VAL, VAL, VAL, PAIRS, RANKS, ranking=VAL)
    result = evaluate(model, dataset, groups).result()
    assert (
        set(result["test"]) == {"ndcg@3", "loss"} and result["per_rank"] == result["curves"] == {}
    )
    assert result["higher_is_better"] == {"ndcg@3": True, "loss": False}
    assert result["test"]["loss"] == pytest.approx(squared_error(scores, OTHER), rel=1e-5)


class Penalised(DocumentCTRModel):
    """A click model whose loss is not its likelihood."""

    def compute_loss(self, batch, aggregate=True):
        penalty = jnp.where(batch["mask"], 0.5 * self.ctr.logit(batch) ** 2, 0.0)
        return super().compute_loss(batch, aggregate) + (penalty.mean() if aggregate else penalty)


def test_a_click_model_may_have_a_loss_of_its_own():
    model = Penalised(PAIRS, FREE, rngs=nnx.Rngs(0))
    report = Trainer(OVERFIT, 5, None, metrics={"ll": LogLikelihood()}, **SIZES).train(
        model, TRAIN, VAL
    )
    record = report.history[report.best_epoch - 1]
    logits = (scores_of(model) + float(model.ctr.baseline[...]))[OTHER["query_doc_ids"]]
    documents, clicks = shown(OTHER), OTHER["clicks"]
    likelihoods = np.log(np.where(clicks, sigmoid(logits), sigmoid(-logits)))[documents]
    assert record["val/ll"] == pytest.approx(likelihoods.mean(), rel=1e-5)
    assert record["val/loss"] == pytest.approx(
        (0.5 * logits[documents] ** 2 - likelihoods).mean(), rel=1e-5
    )
    assert report.best_epoch == 1 + int(np.argmin([r["val/loss"] for r in report.history]))


def test_a_validation_has_the_metrics_that_are_watched():
    groups = {"click": click_metrics(), "test": {"auc": AUC(), "skip_ppl": Perplexity("skips")}}
    groups |= {
        "ranking": ranking_metrics(["ndcg", "mrr"], [3]),
        "truth": {"r": Correlation("attraction")},
    }
    assert validation_metrics(groups, ["loss"])["groups"] == {}
    assert list(validation_metrics(groups, ["auc"])["metrics"]) == ["ll", "ppl", "cond_ppl", "auc"]
    watched = validation_metrics(groups, ["ndcg@3"])["groups"]
    assert set(watched) == {"ranking"} and set(watched["ranking"].metrics) == {"ndcg", "mrr"}
    assert set(validation_metrics(groups, ["r", "mrr@3"])["groups"]) == {"ranking", "truth"}
    assert validation_metrics({"ranking": groups["ranking"]}, ["loss"]) == {"groups": {}}
