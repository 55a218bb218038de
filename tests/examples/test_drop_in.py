"""Code that uses the field's documented models, towers and metrics runs here after changing the import."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rax
from flax import nnx

import clickexp
from clickexp import models
from clickexp.metrics import (
    ConditionalPerplexity,
    LogLikelihood,
    MultiMetric,
    Perplexity,
    RaxMetric,
)
from clickexp.models import PositionBasedModel, UserBrowsingModel
from clickexp.parameters import Combination, DeepCrossParameterConfig, LinearParameterConfig

PAIRS, RANKS = 50, 6


def make_batch(seed=0, sessions=8, ranks=RANKS):
    """A batch with the narrow types of the field: int16 positions, float16 clicks."""
    rng = np.random.default_rng(seed)
    mask = np.arange(ranks) < rng.integers(1, ranks + 1, sessions)[:, None]
    return {
        "query_doc_ids": np.where(mask, rng.integers(1, PAIRS + 1, (sessions, ranks)), 0).astype(
            np.int32
        ),
        "query_doc_features": rng.normal(size=(sessions, ranks, 136)).astype(np.float32),
        "bias_features": rng.normal(size=(sessions, ranks, 8)).astype(np.float32),
        "positions": np.where(mask, np.arange(1, ranks + 1), 0).astype(np.int16),
        "clicks": (mask & (rng.random((sessions, ranks)) < 0.3)).astype(np.float16),
        "mask": mask,
        "labels": rng.integers(0, 5, (sessions, ranks)).astype(np.float32),
    }


@pytest.fixture
def batch():
    return make_batch()


def test_position_based_model_as_documented(batch):
    model = PositionBasedModel(positions=10, query_doc_pairs=1_000_000, rngs=nnx.Rngs(42))
    assert model.compute_loss(batch).shape == ()
    assert model.predict_clicks(batch).shape == (8, RANKS)


def test_towers_from_configs_as_documented(batch):
    model = PositionBasedModel(
        examination=LinearParameterConfig(use_feature="bias_features", features=8),
        attraction=DeepCrossParameterConfig(
            use_feature="query_doc_features",
            features=136,
            cross_layers=2,
            deep_layers=2,
            combination=Combination.STACKED,
        ),
        rngs=nnx.Rngs(42),
    )
    lp, clp = model.predict_clicks(batch), model.predict_conditional_clicks(batch)
    np.testing.assert_array_equal(lp, clp)
    assert np.isfinite(lp[batch["mask"]]).all() and np.isfinite(model.compute_loss(batch))


@pytest.mark.parametrize("spelling", ["conditional_log_probs", "cond_log_probs"])
def test_click_metrics_as_documented(batch, spelling):
    model = UserBrowsingModel(positions=RANKS, query_doc_pairs=PAIRS, rngs=nnx.Rngs(42))
    lp, clp = model.predict_clicks(batch), model.predict_conditional_clicks(batch)
    metrics = MultiMetric(ll=LogLikelihood(), ppl=Perplexity(), cond_ppl=ConditionalPerplexity())
    metrics.update(log_probs=lp, **{spelling: clp}, clicks=batch["clicks"], where=batch["mask"])
    values = metrics.compute()
    assert values["ll"] == pytest.approx(-float(model.compute_loss(batch)), rel=1e-5)
    clicked = batch["clicks"][:, 0] > 0  # every list has a first document
    log2 = np.log2(np.where(clicked, np.exp(lp[:, 0]), 1 - np.exp(lp[:, 0])))
    per_rank = metrics.compute_per_rank()
    assert list(per_rank) == ["ll", "ppl", "cond_ppl"]
    assert per_rank["ppl"][0] == pytest.approx(2 ** -log2.mean(), rel=1e-5)
    assert values["ppl"] == pytest.approx(per_rank["ppl"].mean())
    metrics.reset()
    assert np.isnan(metrics.compute()["ll"])


def test_ranking_metrics_as_documented():
    metrics = MultiMetric(**{"dcg@10": RaxMetric(rax.dcg_metric, top_n=10)})
    s, y, mask = (
        np.array([[0.1, 0.9, 5.0]]),
        np.array([[1.0, 3.0, 4.0]]),
        np.array([[True, True, False]]),
    )
    metrics.update(scores=s, labels=y, where=mask)
    assert metrics.compute() == {"dcg@10": pytest.approx(7 / np.log2(2) + 1 / np.log2(3), rel=1e-6)}


ALL = {
    "CascadeModel": dict(query_doc_pairs=PAIRS),
    "PositionBasedModel": dict(positions=RANKS, query_doc_pairs=PAIRS),
    "UserBrowsingModel": dict(positions=RANKS, query_doc_pairs=PAIRS),
    "DependentClickModel": dict(positions=RANKS, query_doc_pairs=PAIRS),
    "ClickChainModel": dict(query_doc_pairs=PAIRS),
    "DynamicBayesianNetwork": dict(query_doc_pairs=PAIRS),
    "TrustBiasModel": dict(positions=RANKS, query_doc_pairs=PAIRS),
    "MixtureModel": dict(
        models=[models.PositionBasedModel, models.ClickChainModel],
        positions=RANKS,
        query_doc_pairs=PAIRS,
    ),
    "GlobalCTRModel": {},
    "RankCTRModel": dict(positions=RANKS),
    "DocumentCTRModel": dict(query_doc_pairs=PAIRS),
    "DocumentRankCTRModel": dict(positions=RANKS, query_doc_pairs=PAIRS),
}


def answers(model, batch):
    names = "compute_loss", "predict_clicks", "predict_conditional_clicks", "predict_relevance"
    return [getattr(model, name)(batch) for name in names]


SOME = "GlobalCTRModel", "UserBrowsingModel", "MixtureModel"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOME else pytest.mark.nightly) for name in ALL]
)
def test_every_model_reads_the_narrow_types_of_the_field(batch, name):
    """NumPy arrays, JAX arrays, traced ones: the same answers as for int32 positions and boolean clicks."""
    model = getattr(models, name)(**ALL[name], rngs=nnx.Rngs(42))
    wide = {
        **batch,
        "positions": batch["positions"].astype(np.int32),
        "clicks": batch["clicks"] > 0,
    }
    traced = jax.jit(lambda batch: answers(model, batch))
    expected = traced(wide)
    for actual in answers(model, batch), traced(jax.tree.map(jnp.asarray, batch)):
        jax.tree.map(
            lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6), actual, expected
        )
    clicks = model.sample(batch, rngs=nnx.Rngs(0)).clicks
    assert clicks.shape == (8, RANKS) and not clicks[~batch["mask"]].any()


def test_long_lists_fit_although_their_positions_are_narrow():
    """200 positions: 200 * 201 states of rank and last click are more than an int16 holds."""
    batch = make_batch(ranks=200)
    model = UserBrowsingModel(positions=200, query_doc_pairs=PAIRS, rngs=nnx.Rngs(0))
    rank, last = np.meshgrid(np.arange(201), np.arange(201), indexing="ij")
    model.examination.weight[...] = jnp.asarray((rank - last).reshape(-1) / 100, jnp.float32)
    wide = {**batch, "positions": batch["positions"].astype(np.int32)}
    losses = jax.jit(lambda *batches: [model.compute_loss(each) for each in batches])(batch, wide)
    np.testing.assert_array_equal(*losses)


def test_trainer_as_documented(capsys):
    from clickexp import Trainer, UserBrowsingModel

    train_loader = [make_batch(seed) for seed in range(3)] + [make_batch(3, sessions=5)]
    val_loader = [make_batch(10)]
    model = UserBrowsingModel(positions=RANKS, query_doc_pairs=PAIRS, rngs=nnx.Rngs(42))
    before = model.compute_loss(val_loader[0])
    trainer = Trainer(optimizer=optax.adamw(0.003), epochs=2)
    report = trainer.train(model, train_loader, val_loader)
    assert report.epochs == 2 and report.sessions == 2 * 29
    assert model.compute_loss(val_loader[0]) < before
    tested = trainer.test(model, val_loader)
    assert tested["test_ll"] == pytest.approx(-float(model.compute_loss(val_loader[0])), rel=1e-5)
    assert tested.keys() == {"test_ll", "test_ppl", "test_cond_ppl"}
    assert capsys.readouterr().out == ""


def test_top_level_names_are_those_of_the_packages():
    assert set(clickexp.__all__) <= set(dir(clickexp))
    assert clickexp.UserBrowsingModel is UserBrowsingModel
    for name in clickexp.__all__:
        assert getattr(clickexp, name).__name__ == name
    with pytest.raises(AttributeError, match="Trainr"):
        clickexp.Trainr  # noqa: B018


def test_importing_the_package_loads_nothing_heavy():
    code = "import clickexp, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "clickexp" in loaded
    assert not {"jax", "flax", "optax", "numpy", "hydra", "wandb", "polars", "pyarrow"} & loaded
