"""Test metrics over models drawn from the posteriors, against quadrature and one draw after the other."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from flax import nnx
from hydra import compose, initialize_config_dir
from places import ROOT
from posteriors import NORMAL, PRECISION, filled, prior_mean

from clickexp.evaluation.evaluate import evaluate
from clickexp.evaluation.evaluator import Evaluator
from clickexp.evaluation.groups import click_metrics
from clickexp.experiment.run import run_experiment
from clickexp.metrics import LogLikelihood, ranking_metrics
from clickexp.models import DocumentCTRModel, PositionBasedModel
from clickexp.posteriors.draws import as_result, evaluate_draws
from clickexp.simulation import simulate

SIZES = dict(sessions=600, queries=20, documents_per_query=6, positions=5)
GROUPS = {"click": click_metrics(), "ranking": ranking_metrics(["ndcg"], [5])}


@pytest.fixture(scope="module")
def data():
    return simulate(PositionBasedModel, **SIZES)


def dctr(data, config=NORMAL):
    return DocumentCTRModel(query_doc_pairs=data.query_doc_pairs, ctr=config, rngs=nnx.Rngs(0))


def test_log_likelihood_of_draws_has_the_mean_that_quadrature_gives(data):
    """E log P(c | z) of each document shown: below the log-likelihood of the mean probability."""
    model, draws = filled(dctr(data)), 60
    rows = np.asarray(model.ctr.table.get_value().values, np.float64)
    ids, clicks = data.test.column("query_doc_ids"), data.test.column("clicks")
    shown = np.arange(data.test.ranks) < data.test.column("lengths")[:, None]
    row, sign = rows[ids[shown]], np.where(clicks[shown], 1, -1)
    mean, sd = row[:, 0] + prior_mean(row[:, 2]) - 1, np.exp(row[:, 1]) / PRECISION**0.5
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    z = sign[:, None] * (mean[:, None] + sd[:, None] * nodes)
    expected = (-np.logaddexp(0, -z) @ weights).mean() / weights.sum()
    found = evaluate_draws(model, data, GROUPS, draws=draws)["ll"]
    spread = (found.high - found.low) / 4
    assert (
        found.low < found.mean < found.high and abs(found.mean - expected) < 5 * spread / draws**0.5
    )
    integrated = np.log((1 / (1 + np.exp(-z))) @ weights / weights.sum()).mean()
    value = evaluate(model, data, GROUPS).values()["ll"]
    assert value == pytest.approx(integrated, abs=1e-4) and value > found.mean


def test_mean_and_quantiles_are_those_of_single_draws(data):
    sizes = {"positions": 5, "query_doc_pairs": data.query_doc_pairs}
    model = filled(PositionBasedModel(attraction=NORMAL, **sizes, rngs=nnx.Rngs(0)))
    found = evaluate_draws(model, data, GROUPS, Evaluator(128), draws=7, seed=3)
    assert list(found) == ["ll", "ppl", "cond_ppl", "ndcg@5", "loss"]
    singles = [
        evaluate(model.sample_parameters(key), data, GROUPS).values()
        for key in jax.random.split(jax.random.key(3), 7)
    ]
    for name, interval in found.items():
        values = np.sort([single[name] for single in singles])
        assert interval.mean == pytest.approx(values.mean(), rel=1e-5)
        assert interval.low == pytest.approx(0.85 * values[0] + 0.15 * values[1], rel=1e-5)
        assert interval.high == pytest.approx(0.85 * values[-1] + 0.15 * values[-2], rel=1e-5)
        assert values[0] < values[-1]
    assert as_result(found)["ll"] == {
        "mean": found["ll"].mean,
        "low": found["ll"].low,
        "high": found["ll"].high,
    }


def test_one_program_evaluates_all_draws(data):
    model, traced = filled(dctr(data)), []

    class Traced(LogLikelihood):
        def statistics(self, **outputs):
            traced.append(outputs["where"].shape)
            return super().statistics(**outputs)

    for draws in (1, 4):
        traced.append(None)
        evaluate_draws(model, data, {"click": {"ll": Traced()}}, draws=draws)
    once = traced.index(None, 1) - 1
    assert once > 0 and len(traced) == 2 * (once + 1)


def test_nothing_to_draw(data):
    assert evaluate_draws(filled(dctr(data)), data, GROUPS, draws=0) == {}
    assert (
        evaluate_draws(
            dctr(data, dataclasses.replace(NORMAL, posterior="none")), data, GROUPS, draws=5
        )
        == {}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the experiment of a small log with further overrides: its result, and its folder."""
    small = [f"dataset.{key}={value}" for key, value in SIZES.items()]
    own = [
        "model=dctr",
        "metric=click",
        "draws=3",
        "logger=[]",
        "report=false",
        "shared_intervals=false",
    ]

    def run(*overrides):
        folder = tmp_path_factory.mktemp("run")
        overrides = [*small, *own, f"cache_dir={folder / 'cache'}", *overrides]
        config = compose("config", overrides)
        return run_experiment(config, folder, overrides=overrides), folder

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield run


def test_results_of_runs_hold_the_intervals(run, capsys):
    result, folder = run("attraction.posterior=normal", "trainer.epochs=1")
    assert result.test_draws.keys() == {"ll", "ppl", "cond_ppl", "loss"}
    written = json.loads((folder / "result.json").read_text())["test_draws"]
    assert written == {name: each.model_dump() for name, each in result.test_draws.items()}
    assert all(each["low"] < each["mean"] < each["high"] for each in written.values())
    ll, printed = written["ll"], capsys.readouterr().out
    assert "posterior draws" in printed
    # beside those of training
    row = re.search(r" ll +(-\S+) +(-\S+) to (-\S+)$", printed, re.MULTILINE)
    assert row, printed
    for shown, value in zip(row.groups(), (ll["mean"], ll["low"], ll["high"]), strict=True):
        digits = len(shown.partition(".")[2])
        assert digits >= 3 and shown == f"{value:.{digits}f}"


def test_draws_without_posteriors_have_no_effect_which_runs_say(run, capsys):
    result, _ = run("attraction.posterior=none", "trainer=counting")
    assert "test_draws" not in result
    assert "draws=3 has no effect" in capsys.readouterr().out
