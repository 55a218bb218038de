"""The programs in examples/extend run through the command, and stay as short as the README states."""

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from flax import nnx
from hydra import compose, initialize_config_dir
from places import ROOT
from refusals import refuses
from scipy import stats

from clickexp.data import Dataset, Features, Sessions
from clickexp.data.context import CONTEXT
from clickexp.data.names import read_names
from clickexp.errors import ConfigError
from clickexp.evaluation.evaluator import Evaluator
from clickexp.evaluation.groups import HeldOut, metric_groups
from clickexp.experiment.conf import CONF
from clickexp.experiment.overrides import canonical
from clickexp.experiment.resolve import resolve
from clickexp.export.export import export
from clickexp.export.ranker import described
from clickexp.loggers import RunInfo
from clickexp.metrics import LogLikelihood
from clickexp.models import DocumentCTRModel, PositionBasedModel, UserBrowsingModel
from clickexp.parameters import Rows, Sizes
from clickexp.propensities import Propensities
from clickexp.results.loading import find_runs
from clickexp.results.reproductions import reproductions
from clickexp.runs.run import Run
from clickexp.simulation import simulate
from clickexp.sweeps.backends.remote import Call

EXAMPLES = ROOT / "examples/extend"
TINY = "dataset.sessions=400 dataset.queries=10 trainer.epochs=2 logger=[] progress=off".split()


def on_the_path(monkeypatch, example):
    """The modules of an example, in place of those that another test imported under their names."""
    monkeypatch.syspath_prepend(str(EXAMPLES / example))
    for file in (EXAMPLES / example).glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)


def clickexp(folder, example, *arguments):
    """The command as the head of the example's configuration has it, in a folder of the test."""
    path = os.pathsep.join([str(ROOT), str(EXAMPLES / example)])
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "clickexp",
            "--config-dir",
            str(EXAMPLES / example / "conf"),
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )


SHORT = {
    "debias/tempered_hinge.py": 40,
    "gru/gru_click_model.py": 60,
    "launcher/ssh_launcher.py": 80,
    "listwise/listwise_ranker.py": 25,
    "group/order.py": 35,
    "logger/sqlite_logger.py": 30,
    "metric/best_first.py": 15,
    "optimizer/lazy_lion.py": 20,
    "propensity/power_law.py": 25,
    "scan/context_tower.py": 35,
    "stream/streamed_pages.py": 45,
    "tower/factorization.py": 45,
    "session/pauses.py": 25,
}


@pytest.mark.parametrize("file, most", SHORT.items())
def test_an_example_is_short(file, most):
    assert len((EXAMPLES / file).read_text().splitlines()) <= most


def test_a_recurrence_sees_the_clicks_above_and_no_others(monkeypatch):
    on_the_path(monkeypatch, "gru")
    from gru_click_model import GRUClickModel

    model = GRUClickModel(positions=4, query_doc_pairs=9, rngs=nnx.Rngs(0))
    positions = np.tile(np.arange(1, 5, dtype=np.int32), (2, 1))
    batch = {"query_doc_ids": positions, "positions": positions, "mask": positions > 0}
    # the lists differ in the click at the second rank alone
    clicks = np.array([[1, 0, 1, 0], [1, 1, 1, 0]], bool)
    predict = jax.jit(lambda clicks: model.predict_conditional_clicks({**batch, "clicks": clicks}))
    one, other = np.asarray(predict(clicks))
    np.testing.assert_allclose(one[:2], other[:2], rtol=1e-6)
    assert (np.abs(one[2:] - other[2:]) > 1e-6).all()


@pytest.mark.nightly
def test_a_recurrence_trains_and_is_tested_like_any_model(tmp_path):
    done = clickexp(
        tmp_path,
        "gru",
        "model=gru",
        *TINY,
        "dataset.positions=4",
        "metric=click",
        "hydra.run.dir=run",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["model"] == "GRU" and result["train"]["epochs"] == 2
    ppl, conditional = result["test"]["ppl"], result["test"]["cond_ppl"]
    assert 1 < conditional < 2 and 1 < ppl < 2 and conditional != ppl
    ranks = result["per_rank"]
    # nothing is above the first rank; below it the clicks above matter
    np.testing.assert_allclose(ranks["ppl"][0], ranks["cond_ppl"][0], rtol=1e-5)
    assert not np.allclose(ranks["ppl"][1:], ranks["cond_ppl"][1:], rtol=1e-5)


def result_of(done, folder):
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "run/result.json").read_text())


def checked(monkeypatch, example, *overrides):
    """The configuration of the command, as far as it can be checked without data."""
    on_the_path(monkeypatch, example)
    own = EXAMPLES / example / "conf"
    given = canonical(overrides, own)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        found = f"hydra.searchpath=['file://{own}']"
        return resolve(compose("config", [found, "logger=console", *given]), given)


def test_a_ranker_is_not_optimised_for_metrics_of_clicks(monkeypatch):
    with refuses(ConfigError, "optimized_metric=val/ll", "the run reports"):
        checked(monkeypatch, "listwise", "model=listwise", "optimized_metric=val/ll")


@pytest.mark.nightly
def test_a_listwise_loss_recovers_the_order_of_a_simulated_log(tmp_path, monkeypatch):
    """Lists come in random order, so that clicks order documents as attraction does; ranks correlate by Spearman."""
    log = "dataset.sessions=6000 dataset.queries=5 dataset.policy_noise=1000 trainer.epochs=12 seed=3".split()
    points = ["model=listwise", "attraction.posterior=none"]
    done = clickexp(tmp_path, "listwise", *points, *TINY, *log, "hydra.run.dir=run")
    result = result_of(done, tmp_path)
    per_rank = Run.read(tmp_path / "run").per_rank
    assert result["model"] == "Listwise" and per_rank == {} and "ppl" not in result["test"]
    assert result["val"]["loss"] < result["test"]["loss"] + 1 and result["test"]["ndcg@10"] > 0.9
    with np.load(tmp_path / "run/model.npz") as stored:
        (scores,) = (stored[name][1:, 0] for name in stored if stored[name].ndim == 2)
        (offset,) = (stored[name].item() for name in stored if stored[name].ndim < 2)
    data = simulate(UserBrowsingModel, sessions=6000, queries=5, policy_noise=1000, seed=3)
    ids = np.arange(1, data.query_doc_pairs + 1, dtype=np.int32)[None]
    truth = data.truth.predict_attraction(dict(query_doc_ids=ids, mask=ids > 0))[0]
    # scores of a listwise loss compare within a query only
    lists = np.split(np.arange(ids.size), 5)
    correlations = [stats.spearmanr(scores[each], truth[each]).statistic for each in lists]
    assert np.mean(correlations) > 0.9
    on_the_path(monkeypatch, "listwise")
    export(tmp_path / "run", predict="", trust=True)
    files = {file.name: pl.read_parquet(file) for file in (tmp_path / "run/export").iterdir()}
    assert set(files) == {"documents.parquet", "predictions.parquet"}
    documents, predictions = files["documents.parquet"], files["predictions.parquet"]
    ids = documents["query_doc_id"].to_numpy() - 1
    np.testing.assert_allclose(np.log(documents["relevance"]), scores[ids] + offset, atol=1e-4)
    assert "attraction" not in documents.columns and "click_probability" not in predictions.columns
    assert len(predictions) == data.test.count


def searches(rng):
    """A log of 60 search sessions of several lists, in any order, whose times are seconds."""
    session = rng.integers(0, 60, 200)
    ids = rng.integers(1, 20, (200, 3))
    return dict(
        query_doc_ids=ids,
        clicks=rng.random((200, 3)) < 0.4,
        session_ids=session,
        times=rng.permutation(200) * 7.0,
    )


def test_a_column_of_context_of_the_user_against_a_loop(monkeypatch):
    on_the_path(monkeypatch, "session")
    monkeypatch.delitem(CONTEXT, "pause", raising=False)
    import pauses

    columns = searches(np.random.default_rng(0))
    log = Sessions.from_arrays(**columns)
    last, expected = {}, np.zeros(200)
    for row in np.argsort(columns["times"]):
        session, time = columns["session_ids"][row], columns["times"][row]
        expected[row] = time - last.get(session, time)
        last[session] = time
    np.testing.assert_allclose(log.column("pause"), expected)
    assert log.bounds("pause") == (0, expected.max())
    without = {name: values for name, values in columns.items() if name != "times"}
    assert "pause" not in Sessions.from_arrays(**without).derived

    tower = pauses.ContextParameterConfig(columns=["pause"]).build(Sizes(), rngs=nnx.Rngs(0))
    tower.weight.set_value(jnp.array([1.0, 2.0]))
    offset = tower({"pause": expected[:, None].astype(np.float32)})[:, 0]
    np.testing.assert_allclose(offset, (expected > 0) + 2 * np.log1p(expected), rtol=1e-6)


@pytest.mark.nightly
def test_a_column_of_context_of_the_user_in_a_run_and_its_predictions(tmp_path):
    columns = searches(np.random.default_rng(0))
    listed = {name: values.tolist() for name, values in columns.items()}
    table = pl.DataFrame(listed).rename({"session_ids": "search_session", "times": "time"})
    table.write_parquet(tmp_path / "log.parquet")
    log = ["dataset=lists", "dataset.path=log.parquet", "dataset.columns.time=time"]
    options = [*log, "model=pbm", "+context=pause", *TINY[2:], "hydra.run.dir=run"]
    result_of(clickexp(tmp_path, "session", *options), tmp_path)
    path = {**os.environ, "PYTHONPATH": f"{ROOT}:{EXAMPLES / 'session'}", "JAX_PLATFORMS": "cpu"}
    export = "from clickexp.cli.export import main; main()"
    command = [sys.executable, "-c", export, "run", "--trust", "--predict", "log.parquet"]
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_padded_sessions_do_not_count_in_a_listwise_loss(monkeypatch):
    on_the_path(monkeypatch, "listwise")
    from listwise_ranker import ListwiseRanker

    model = ListwiseRanker(query_doc_pairs=9, rngs=nnx.Rngs(0))
    ids, clicks = np.arange(1, 10, dtype=np.int32).reshape(3, 3), np.eye(3)
    batch = {
        "query_doc_ids": ids,
        "clicks": clicks,
        "mask": np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]], bool),
    }
    losses = model.compute_loss(batch, aggregate=False)
    assert losses[2] == 0 and model.compute_loss(batch) == pytest.approx(float(losses[:2].mean()))


def test_configurations_of_examples_are_complete(monkeypatch):
    for example, *overrides in (
        ("gru", "model=gru"),
        ("columns", "dataset=pages", "dataset.path=pages.jsonl", "model=page"),
        ("metric", "metric=[click,best_first]", "optimized_metric=val/best_first@1"),
        ("group", "metric=[click,order]", "optimized_metric=val/same_order"),
        ("optimizer", "optimizer=lazy_lion", "model=dctr"),
        ("scan", "model=pbm", "attraction=context"),
        ("tower", "model=pbm", "attraction=factorization", "dataset=letor", "dataset.path=lists"),
        ("debias", "model=ranker", "loss=hinge", "debias=tempered"),
        ("propensity", "model=ranker", "debias=ips", "propensity=power_law", "propensity.eta=0.7"),
        ("stream", "dataset=stream", "dataset.path=pages.jsonl.gz"),
        ("logger", "logger=[jsonl,sqlite]"),
        ("session", "model=ubm", "+context=pause", "dataset=tiangong_st", "dataset.path=."),
        ("reproduction", "+experiment=my_paper", "model=pbm", "seed=1"),
    ):
        checked(monkeypatch, example, *overrides)


@pytest.mark.nightly
def test_published_figures_have_a_verdict(tmp_path):
    done = clickexp(
        tmp_path, "reproduction", "+experiment=my_paper", "model=pbm", "seed=1", "hydra.run.dir=run"
    )
    assert done.returncode == 0
    (found,) = reproductions(find_runs([tmp_path / "run"])[0])
    verdicts = {row.metric: row.verdict for row in found.rows}
    assert verdicts["ppl"].split() in (["inside", "0.02"], ["outside", "0.02"])
    assert verdicts["ll"] == "not comparable"


@pytest.mark.nightly
def test_early_stopping_and_search_on_a_metric_of_the_user(tmp_path):
    options = [
        "model=pbm",
        "metric=[click,best_first]",
        "trainer.early_stopping.metric=best_first@1",
    ]
    options.append("optimized_metric=val/best_first@1")
    done = clickexp(tmp_path, "metric", *options, *TINY[:3], "logger=[jsonl]", "hydra.run.dir=run")
    result = result_of(done, tmp_path)
    assert set(result["test"]) >= {"best_first@1", "best_first@3", "loss"}
    assert result["higher_is_better"]["best_first@1"] is True
    records = [
        json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    ]
    values = [record["val/best_first@1"] for record in records if "val/best_first@1" in record]
    assert result["val"]["best_first@1"] == max(values) == values[result["train"]["best_epoch"] - 1]


def test_the_metric_of_the_user_against_a_loop(monkeypatch):
    on_the_path(monkeypatch, "metric")
    from best_first import BestFirst

    rng = np.random.default_rng(0)
    scores, labels = (
        rng.normal(size=(50, 6)).astype(np.float32),
        rng.integers(0, 3, (50, 6)).astype(np.float32),
    )
    where = np.arange(6) < rng.integers(1, 7, 50)[:, None]
    metric = BestFirst([1, 3], no_relevant="zero")
    metric.update(scores=scores, labels=labels, where=where)
    for cutoff, value in zip((1, 3), metric.compute(), strict=True):
        hits = [
            label[w].max() > 0 and label[w][np.argsort(-score[w])][:cutoff].max() == label[w].max()
            for score, label, w in zip(scores, labels, where, strict=True)
        ]
        assert value == pytest.approx(np.mean(hits))


def test_a_group_of_the_user_against_a_loop(monkeypatch):
    """It is validated where it is watched, and results list it under its heading."""
    config = checked(
        monkeypatch, "group", "metric=[click,order]", "trainer.early_stopping.metric=same_order"
    )
    group = config.trainer.metric_groups["order"]
    model = DocumentCTRModel(9, rngs=nnx.Rngs(0))
    values = np.random.default_rng(0).normal(size=(10, 1)).astype(np.float32)
    model.ctr.table.set_value(Rows(jnp.asarray(values), 1))
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 5, 30)
    ids = np.where(np.arange(4) < lengths[:, None], rng.integers(1, 10, (30, 4)), 0)
    sessions = Sessions.from_arrays(
        query_doc_ids=ids, clicks=ids > 4, lengths=lengths, query_doc_pairs=9
    )
    evaluation = Evaluator().compiled(model, HeldOut(sessions), {"order": group})(
        (nnx.state(model),), "test"
    )
    pairs = [
        values[row[rank], 0] > values[row[rank + 1], 0]
        for row, length in zip(ids, lengths, strict=True)
        for rank in range(length - 1)
    ]
    assert evaluation.groups["order"].compute() == {"same_order": pytest.approx(np.mean(pairs))}
    assert group.heading == "order of the log"


def test_metrics_in_no_group_are_refused():
    with refuses(ConfigError, "metric.novelty", "_target_"):
        metric_groups({"novelty": {"ll": LogLikelihood()}})


@pytest.mark.nightly
def test_early_stopping_on_a_group_of_the_user(tmp_path):
    options = ["model=pbm", "metric=[click,order]", "trainer.early_stopping.metric=same_order"]
    done = clickexp(tmp_path, "group", *options, *TINY, "hydra.run.dir=run")
    result = result_of(done, tmp_path)
    assert 0 < result["test"]["same_order"] < 1 and "same_order" in result["val"]
    assert result["groups"]["order of the log"] == ["same_order"]


def test_a_row_optimizer_of_the_user_against_dense_float64(monkeypatch):
    """All rows are in every batch, so that the rows' rule is the dense one."""
    on_the_path(monkeypatch, "optimizer")
    from lazy_lion import LazyLion

    rng = np.random.default_rng(0)
    row, m = rng.normal(size=(7, 2)), np.zeros((7, 2))
    found, state = row.astype(np.float32), [np.zeros((7, 2), np.float32)]
    for step in range(1, 20):
        grad = rng.normal(size=(7, 2))
        row, m = row - 0.1 * np.sign(0.9 * m + 0.1 * grad), 0.99 * m + 0.01 * grad
        found, state = LazyLion(0.1).update(found, state, grad.astype(np.float32), jnp.int32(step))
        np.testing.assert_allclose(found, row, atol=1e-5)


@pytest.mark.nightly
def test_a_row_optimizer_of_the_user_trains(tmp_path):
    options = "optimizer=lazy_lion model=dctr metric=click hydra.run.dir=run".split()
    done = clickexp(tmp_path, "optimizer", *options, *TINY)
    assert result_of(done, tmp_path)["train"]["epochs"] == 2


def test_a_backend_of_the_user_starts_a_call_on_each_host_and_reads_how_it_ended(
    tmp_path, monkeypatch
):
    """What is in ssh's place ends well on one host and badly on the other."""
    on_the_path(monkeypatch, "launcher")
    from ssh_launcher import SSHPool

    code = "import pickle, sys; host = sys.argv[1]; pickle.dump(host, sys.stdout.buffer); sys.exit(host == 'b')"
    pool = SSHPool(["a", "b"], [sys.executable, "-c", code, "{host}"])
    handles = pool.send([Call(".", tmp_path, print, (), []) for _ in "ab"])
    for handle in handles:
        handle.process.wait()
    assert pool.idle == [] and all(pool.has_ended(handle) for handle in handles)
    assert [pool.outcome(handle) for handle in handles] == [
        "a",
        "b: exit code 1",
    ] and pool.idle == ["a", "b"]
    for handle in handles:
        handle.process.stdout.close()


@pytest.mark.nightly
def test_another_launcher_runs_every_job(tmp_path):
    """Without ssh: the Python of a job starts here."""
    arguments = ["launcher=ssh", "hydra.launcher.command=[]", "hydra.launcher.hosts=[a,b]"]
    done = clickexp(
        tmp_path,
        "launcher",
        "-m",
        *arguments,
        "model=gctr",
        *TINY,
        "seed=1,2",
        "hydra.sweep.dir=sweep",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = [
        json.loads((tmp_path / f"sweep/{number}/job.json").read_text()) for number in range(2)
    ]
    assert [record["status"] for record in records] == ["finished"] * 2
    for number in range(2):
        result = json.loads((tmp_path / f"sweep/{number}/result.json").read_text())
        assert result["model"] == "GCTR" and result["seed"] == number + 1


@pytest.mark.nightly
def test_a_tower_that_looks_rows_up_in_a_scan_trains(tmp_path):
    done = clickexp(
        tmp_path,
        "scan",
        "model=pbm",
        "attraction=context",
        *TINY,
        "metric=click",
        "hydra.run.dir=run",
    )
    result = result_of(done, tmp_path)
    assert result["train"]["epochs"] == 2 and np.isfinite(result["test"]["ll"])
    with np.load(tmp_path / "run/model.npz") as stored:
        assert (
            sum(stored[name].ndim == 2 and np.abs(stored[name]).max() > 0.01 for name in stored)
            == 1
        )


def test_a_tower_that_looks_rows_up_in_a_scan(monkeypatch):
    """Its logits are those of a loop in float64, hidden documents left out."""
    on_the_path(monkeypatch, "scan")
    from context_tower import ContextTower

    rng = np.random.default_rng(0)
    tower = ContextTower(9)
    rows = rng.normal(size=(10, 1))
    tower.table.set_value(Rows(jnp.asarray(rows, jnp.float32), 1))
    tower.baseline[...], tower.contrast[...] = 0.3, 0.7
    ids, mask = rng.integers(0, 10, (20, 5)), rng.random((20, 5)) < 0.7
    logits = np.asarray(tower.logit({"query_doc_ids": ids, "mask": mask}))
    for row, (each, shown) in enumerate(zip(ids, mask, strict=True)):
        above = 0.0
        for rank in np.flatnonzero(shown):
            assert logits[row, rank] == pytest.approx(
                0.3 + rows[each[rank], 0] - 0.7 * above, abs=1e-5
            )
            above = above / 2 + rows[each[rank], 0]


def test_columns_of_a_reader_are_those_of_its_lines(tmp_path, monkeypatch):
    files = [file for file in (EXAMPLES / "columns").rglob("*") if file.suffix in (".py", ".yaml")]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 70
    on_the_path(monkeypatch, "columns")
    from pages import open_pages

    page = {"query_doc_ids": [3, 5], "clicks": [0, 1], "height": [1.5, 2.0], "device": 1}
    short = {"query_doc_ids": [4], "clicks": [1], "height": [0.5], "device": 0}
    (tmp_path / "pages.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in [page, short] * 5)
    )
    train = open_pages(
        tmp_path / "pages.jsonl", train_sessions=0.8, val_sessions=0.1, test_sessions=0.1
    ).train
    assert train.column("height")[:2].tolist() == [[1.5, 2.0], [0.5, 0.0]]
    assert train.column("device")[:2].tolist() == [1, 0] and train.count == 8


@pytest.mark.nightly
def test_columns_of_a_reader_reach_the_model(tmp_path):
    """The simulated effects of the session's device and the document's height are recovered."""
    rng = np.random.default_rng(0)
    sessions, documents, ranks = 8000, 12, 4
    shown = np.argsort(rng.random((sessions, documents)), axis=1)[:, :ranks]
    device, height = rng.integers(0, 2, sessions), rng.normal(size=(sessions, ranks)).round(2)
    logit = np.array([2.0, 1.0, 0.5, 0.0]) - 1.5 * device[:, None] + 0.8 * height
    attraction = np.linspace(0.2, 0.9, documents)[shown]
    clicks = rng.random((sessions, ranks)) < attraction / (1 + np.exp(-logit))
    with open(tmp_path / "pages.jsonl", "w") as file:
        for row in zip(
            (shown + 1).tolist(), clicks.tolist(), height.tolist(), device.tolist(), strict=True
        ):
            file.write(
                json.dumps(
                    dict(zip(("query_doc_ids", "clicks", "height", "device"), row, strict=True))
                )
                + "\n"
            )
    settings = "trainer.epochs=30 optimizer.learning_rate=0.05 logger=[] progress=off hydra.run.dir=run".split()
    done = clickexp(
        tmp_path, "columns", "dataset=pages", "dataset.path=pages.jsonl", "model=page", *settings
    )
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "run/model.npz") as fitted:
        positions, device, slope = (fitted[name] for name in ("position/weight", "device", "slope"))
    # log-odds of 32,000 documents: a standard error of about 0.05
    np.testing.assert_allclose(device[1] - device[0], -1.5, atol=0.2)
    np.testing.assert_allclose(slope, 0.8, atol=0.15)
    np.testing.assert_allclose(np.diff(positions[1:]), [-1.0, -0.5, -0.5], atol=0.3)


def test_a_tower_of_the_user_is_served(monkeypatch):
    """Its logit is a sum over pairs of features; NumPy and ONNX compute the same."""
    on_the_path(monkeypatch, "tower")
    from factorization import FactorizationConfig

    rng = np.random.default_rng(0)
    features = rng.normal(size=(21, 4)).astype(np.float32)
    ids = rng.integers(1, 21, (30, 5)).astype(np.int32)
    clicks = rng.random(ids.shape) < 0.3
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=20)
    log = log.with_features(Features(features))
    dataset = Dataset("log", log, log, log, 20, 5)
    tower = FactorizationConfig(factors=3)
    settings = dict(positions=5, query_doc_pairs=20, features=log.feature_lengths)
    model = PositionBasedModel(attraction=tower, **settings, rngs=nnx.Rngs(0))
    ranker = described(model, dataset)
    own = model.attraction
    factors, kernel = np.asarray(own.factors[...]), np.asarray(own.linear.kernel[...])
    pairs = factors @ factors.T
    expected = [
        x @ kernel[:, 0] + sum(pairs[i, j] * x[i] * x[j] for i in range(4) for j in range(i))
        for x in features.astype(np.float64)
    ]
    expected = -np.logaddexp(0, -np.array(expected))
    np.testing.assert_allclose(ranker.score(features), expected, atol=1e-6)
    pytest.importorskip("onnx", reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime")
    from clickexp.export.onnx_graph import onnx_model

    session = runtime.InferenceSession(onnx_model(ranker).SerializeToString())
    (scores,) = session.run(None, {"features": features})
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_a_loss_and_a_correction_of_the_user_against_a_loop(monkeypatch):
    on_the_path(monkeypatch, "debias")
    from tempered_hinge import HingeLoss, TemperedPropensity

    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20, 5)).astype(np.float32)
    clicks, mask = rng.random((20, 5)) < 0.4, np.arange(5) < rng.integers(1, 6, 20)[:, None]
    curve = [1.0, 0.5, 0.25, 0.01, 0.2]
    debias = TemperedPropensity(Propensities(tuple(curve)), clip=0.04)
    positions = np.broadcast_to(np.arange(1, 6, dtype=np.int32), mask.shape)
    batch = {"clicks": clicks, "mask": mask, "positions": positions}
    losses = np.asarray(debias.loss(HingeLoss(), scores, batch))
    for row in range(20):
        shown = np.flatnonzero(mask[row])
        skipped = [j for j in shown if not clicks[row, j]]
        expected = 0.0
        for i in shown:
            if clicks[row, i]:
                weight = max(curve[i], 0.04) ** -0.5
                margins = [max(0, 1 - scores[row, i] + scores[row, j]) for j in skipped]
                expected += weight * sum(margins)
        assert losses[row] == pytest.approx(expected, rel=1e-5)
    sessions = Sessions.from_arrays(query_doc_ids=np.ones((20, 5), np.int32), clicks=clicks)
    weights = np.maximum(curve, 0.04) ** -0.5 * clicks
    effective = weights.sum() ** 2 / (weights**2).sum()  # of its own weights
    assert debias.weighting(sessions).effective == pytest.approx(effective, rel=1e-5)


@pytest.mark.nightly
def test_a_loss_and_a_correction_of_the_user_train(tmp_path):
    options = "model=ranker loss=hinge debias=tempered hydra.run.dir=run".split()
    result = result_of(clickexp(tmp_path, "debias", *options, *TINY), tmp_path)
    assert result["model"] == "Ranker(hinge, tempered)" and np.isfinite(result["test"]["loss"])
    assert result["weighting"]["clip"] == 0.05


def test_a_source_of_propensities_is_relative_to_the_first_position(monkeypatch):
    on_the_path(monkeypatch, "propensity")
    from power_law import PowerLaw

    found = PowerLaw(0.5)(SimpleNamespace(positions=4))
    np.testing.assert_allclose(found.values, [1, 2**-0.5, 3**-0.5, 0.5])
    assert found.source == "1 / k^0.5"


def test_a_source_without_offsets_is_refused_where_they_are_needed(monkeypatch):
    affine = ["model=ranker", "debias=affine", "propensity=power_law"]
    with refuses(ConfigError, "debias=affine", "PowerLaw", "debias=ips"):
        checked(monkeypatch, "propensity", *affine)


def test_a_reader_of_portions_numbers_text_across_them(tmp_path, monkeypatch):
    on_the_path(monkeypatch, "stream")
    import streamed_pages

    monkeypatch.setattr(streamed_pages, "LINES", 4)
    rng = np.random.default_rng(0)
    pages = []
    for _ in range(30):
        urls = rng.permutation(6)[: rng.integers(1, 5)]
        results = [{"url": f"u{url}", "clicked": bool(rng.random() < 0.5)} for url in urls]
        pages.append({"query": f"q{rng.integers(3)}", "results": results})
    with gzip.open(tmp_path / "pages.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(page) + "\n" for page in pages)
    parts = {"train_sessions": [0, 28], "val_sessions": [28, 29], "test_sessions": [29, None]}
    dataset = streamed_pages.open_stream(tmp_path / "pages.jsonl.gz", ranks=3, **parts)
    numbers = {}
    for row, page in enumerate(pages[:28]):
        shown = page["results"][:3]
        keys = [(page["query"], result["url"]) for result in shown]
        ids = [numbers.setdefault(key, len(numbers) + 1) for key in keys]
        assert dataset.train.column("query_doc_ids")[row, : len(ids)].tolist() == ids
        clicks = [result["clicked"] for result in shown]
        assert dataset.train.column("clicks")[row, : len(ids)].tolist() == clicks
    names = read_names(dataset.names, dataset.query_doc_pairs)
    assert names.select("query", "document").rows()[: len(numbers)] == [*numbers]
    assert dataset.notes["cut_lists"] == sum(len(page["results"]) > 3 for page in pages)


def test_a_logger_of_the_user_writes_rows(tmp_path, monkeypatch):
    on_the_path(monkeypatch, "logger")
    from sqlite_logger import SqliteLogger

    file = tmp_path / "runs.sqlite"
    for name in ("a", "b"):
        logger = SqliteLogger(str(file))
        logger.start(RunInfo(tmp_path / name, {}, name, "project"))
        logger.epoch({"epoch": 1, "val/loss": np.float32(0.5)})
        logger.result(Run(model="PBM", dataset="log", test_set="0", test={"ll": -0.3}))
    with sqlite3.connect(file) as database:
        epochs = database.execute("SELECT * FROM epochs").fetchall()
        results = database.execute("SELECT * FROM results").fetchall()
    assert [row[:2] for row in epochs] == [(str(tmp_path / name), 1) for name in "ab"]
    assert json.loads(epochs[0][2]) == {"epoch": 1, "val/loss": 0.5}
    assert results[1][1] == "PBM" and json.loads(results[1][2]) == {"ll": -0.3}
