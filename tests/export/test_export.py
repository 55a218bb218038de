"""Exports of fitted models: every number follows from the parameters and the log, by NumPy alone.

The command also draws figures, which takes most of its time; most tests call what it calls.
"""

import contextlib
import gzip
import importlib.util
import io
import itertools
import json
import os
import pickle
import re
import shutil
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import polars as pl
import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from places import ROOT
from refusals import refuses
from small_logs import ragged_log, shown, sigmoid
from untrained import new_run

from clickexp.cli.export import main
from clickexp.data.folders import temporary
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.names import read_names
from clickexp.errors import UserError
from clickexp.evaluation import scores as scores_module
from clickexp.experiment.build import build_model
from clickexp.experiment.instantiate import constructor
from clickexp.experiment.run import run_experiment
from clickexp.experiment.values import default_value
from clickexp.export import drawn, files
from clickexp.export import fitted as module
from clickexp.export.export import export
from clickexp.export.figures import figures_of
from clickexp.export.files import Source
from clickexp.export.fitted import fitted
from clickexp.export.tables import lists_to_predict, write_predictions
from clickexp.export.trust import check_targets
from clickexp.posteriors.shared import SharedPosterior
from clickexp.results.figures.log import write_figures
from clickexp.utils.tables.numbers import interval

CONF = ROOT / "conf"
RANKS, PAIRS, SESSIONS = 4, 30, 200
TRAIN, VAL = slice(0, 160), slice(160, 180)
TEST = slice(180, 200)
LOG = ragged_log(SESSIONS, RANKS, PAIRS, seed=5)
SHOWN = shown(LOG)
NEW = ragged_log(7, RANKS, PAIRS, seed=6)


def write_log(columns, file, **names):
    """The columns as lists in a parquet file; names: what they are called there, None leaves one out."""
    names = {"query_doc_ids": "query_doc_ids", "clicks": "clicks"} | names
    there = shown(columns)
    lists = {
        names[key]: [row[mask].tolist() for row, mask in zip(columns[key], there, strict=True)]
        for key in ("query_doc_ids", "clicks")
        if names[key]
    }
    pl.DataFrame({**lists, "query_id": np.arange(len(there)) + 100}).write_parquet(file)
    return file


def untrained(folder, log, *overrides, dataset="lists"):
    """A run that was not trained, and its parameters."""
    run = new_run(folder / "run", f"dataset={dataset}", f"dataset.path={log}", *overrides)
    return run, dict(np.load(run / "model.npz"))


def copied(run, folder):
    """The folder of a run elsewhere, without what was exported."""
    return shutil.copytree(run, folder / "run", ignore=shutil.ignore_patterns("export"))


def probability(parameters, role):
    """Of each document, from the table [ids, 1] and its baseline."""
    return sigmoid(parameters[f"{role}/table"][:, 0] + parameters[f"{role}/baseline"])


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write_log(LOG, tmp_path_factory.mktemp("log") / "clicks.parquet")


@pytest.fixture(scope="module")
def pbm(log, tmp_path_factory):
    """A run that was trained, exported by the command with predictions of new sessions.

    What the command prints is beside it. With its parameters.
    """
    folder = tmp_path_factory.mktemp("pbm")
    overrides = [
        "dataset=lists",
        f"dataset.path={log}",
        f"cache_dir={folder}",
        "model=pbm",
        "attraction.posterior=none",
        "metric=click",
        "trainer.epochs=2",
        "report=false",
        "logger=console",
        "progress=off",
    ]
    (folder / "run").mkdir()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        run_experiment(compose("config", overrides), folder / "run", overrides=overrides)
    new = write_log(NEW, folder / "new.parquet", query_doc_ids="docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceTable, "batch_rows", 3)  # several batches of a file, the last one short
        patch.setattr(scores_module, "_BATCH", 2)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main([str(folder / "run"), "--predict", str(new), "columns.query_doc_ids=docs"])
    (folder / "printed").write_text(printed.getvalue())
    return folder / "run", dict(np.load(folder / "run/model.npz"))


def test_examination_of_pbm_is_its_tower(pbm):
    run, parameters = pbm
    table = pl.read_csv(run / "export/examination.csv")
    examination = sigmoid(parameters["examination/weight"][1:])
    assert table["rank"].to_list() == [1, 2, 3, 4] and np.ptp(examination) > 1e-3
    np.testing.assert_allclose(table["examination"], examination, rtol=1e-6)
    np.testing.assert_allclose(table["propensity"], examination / examination[0], rtol=1e-6)
    assert table["impressions"].to_list() == SHOWN[TEST].sum(axis=0).tolist()


def test_propensities_and_shared_parameters_have_intervals(pbm):
    """The shared posterior of the run, by the delta method: log s(z) has the slope s(-z)."""
    run, parameters = pbm
    posterior = SharedPosterior.load(run / "shared.npz")
    weights = parameters["examination/weight"][1:].astype(float)
    to_first = np.zeros((RANKS, len(posterior.names)))
    for rank in range(RANKS):
        to_first[rank, posterior.names.index(f"examination/weight[{rank + 1}]")] += sigmoid(
            -weights[rank]
        )
        to_first[rank, posterior.names.index("examination/weight[1]")] -= sigmoid(-weights[0])
    sd = np.sqrt(np.diag(to_first @ posterior.covariance @ to_first.T))
    table, shared = (
        pl.read_csv(run / "export" / name) for name in ("examination.csv", "shared.csv")
    )
    np.testing.assert_allclose(table["propensity_sd"], sd, rtol=1e-4, atol=1e-6)
    for sign, end in ((-1, "low"), (1, "high")):
        expected = table["propensity"] * np.exp(sign * 1.959964 * sd)
        np.testing.assert_allclose(table[f"propensity_{end}"], expected, rtol=1e-4)
        np.testing.assert_allclose(shared[f"relative_{end}"], expected, rtol=1e-4)
    assert shared["parameter"].to_list() == ["examination"] * RANKS and (sd[1:] > 0).all()
    result = json.loads((run / "result.json").read_text())
    assert [each["position"] for each in result["propensity"]] == table["rank"].to_list()
    assert [each["relative_low"] for each in result["shared"]] == pytest.approx(
        shared["relative_low"].to_list()
    )


def figures(run):
    """Names of what the command draws of an export."""
    table = run / "export/examination.csv"
    examination = pl.read_csv(table) if table.exists() else None
    return [name for name, _ in figures_of(examination, run / "export/documents.parquet")]


def test_a_ranker_has_the_propensities_that_it_learned(log, tmp_path):
    run, parameters = untrained(tmp_path, log, "model=ranker", "debias=dla")
    learned = np.float32([0, 0.3, -0.2, -0.9, -1.4])
    assert parameters["learned"].shape == learned.shape
    np.savez(run / "model.npz", **{**parameters, "learned": learned})
    export(run)
    table = pl.read_csv(run / "export/examination.csv")
    curve = np.exp(learned[1:].astype(float))
    np.testing.assert_allclose(table["propensity"], curve / curve[0], rtol=1e-5)
    rates = (LOG["clicks"][TEST] & SHOWN[TEST]).sum(axis=0) / SHOWN[TEST].sum(axis=0)
    np.testing.assert_allclose(table["click_rate"], rates)
    assert "examination" in figures(run)


@pytest.mark.parametrize("model", ["dctr", pytest.param("two_towers", marks=pytest.mark.nightly)])
def test_models_that_know_no_examination_have_no_propensities(model, log, tmp_path):
    """Weights by 1 at all ranks would correct nothing."""
    run, _ = untrained(tmp_path, log, f"model={model}")
    export(run)
    table = pl.read_csv(run / "export/examination.csv")
    assert table["propensity"].is_null().all() and table["click_rate"].is_not_null().all()
    assert figures(run) == ["attraction"]


def test_documents_have_attraction_and_training_counts(pbm):
    run, parameters = pbm
    table = pl.read_parquet(run / "export/documents.parquet")
    assert table.columns == ["query_doc_id", "attraction", "relevance", "impressions", "clicks"]
    ids = table["query_doc_id"].to_numpy()
    np.testing.assert_array_equal(ids, np.unique(LOG["query_doc_ids"][SHOWN]))
    there, clicked = SHOWN[TRAIN], LOG["clicks"][TRAIN]
    for name, mask in (("impressions", there), ("clicks", clicked)):
        expected = np.bincount(LOG["query_doc_ids"][TRAIN][mask], minlength=PAIRS + 1)
        np.testing.assert_array_equal(table[name], expected[ids])
    for name in ("attraction", "relevance"):
        np.testing.assert_allclose(
            table[name], probability(parameters, "attraction")[ids], rtol=1e-5
        )


def test_predictions_of_new_sessions(pbm):
    run, parameters = pbm
    table = pl.read_parquet(run / "export/predictions.parquet")
    assert table["query_id"].to_list() == [100, 101, 102, 103, 104, 105, 106]
    examination, attraction = (
        sigmoid(parameters["examination/weight"][1:]),
        probability(parameters, "attraction"),
    )
    for session, there in enumerate(shown(NEW)):
        ids = NEW["query_doc_ids"][session][there]
        assert table["query_doc_ids"][session].to_list() == ids.tolist()
        click = attraction[ids] * examination[: len(ids)]
        np.testing.assert_allclose(table["click_probability"][session], click, rtol=1e-5)
        np.testing.assert_allclose(
            table["conditional_click_probability"][session], click, rtol=1e-5
        )
        np.testing.assert_allclose(table["relevance"][session], attraction[ids], rtol=1e-5)


def written_as(kind, table, folder):
    """Rows of lists in a file of a kind, as people have them."""
    file = folder / f"new.{kind}"
    if kind.startswith("csv"):
        text = table.with_columns(
            pl.col(pl.List(pl.Int64)).cast(pl.List(pl.String)).list.join(" ")
        ).write_csv(separator=";")
        content = text.encode()
    else:
        content = table.write_ndjson().encode()
    file.write_bytes(gzip.compress(content) if kind.endswith(".gz") else content)
    return file


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "jsonl.gz"])
def test_all_kinds_of_files_are_predicted_and_ranked(kind, pbm, tmp_path):
    """As the same rows in parquet; here positions count from 0."""
    lists = write_log(NEW, tmp_path / "new.parquet")
    table = pl.read_parquet(lists).with_columns(
        pl.col("clicks").cast(pl.List(pl.Int64)),
        positions=pl.col("query_doc_ids").list.eval(pl.int_range(pl.len())),
    )
    own, text = tmp_path / "own", tmp_path / "text"
    export(pbm[0], own, predict=lists, rank=lists)
    file = written_as(kind, table.rename({"query_doc_ids": "docs"}), tmp_path)
    options = ["columns.query_doc_ids=docs", "first_rank=0"]
    export(pbm[0], text, predict=file, rank=file, options=options)
    for name in ("predictions.parquet", "ranking.parquet"):
        assert pl.read_parquet(text / name).equals(pl.read_parquet(own / name)), name


def test_a_file_that_changes_with_another_export_is_named(pbm, tmp_path, capsys):
    first, second = (
        write_log(part, tmp_path / name)
        for name, part in (("a.parquet", NEW), ("b.parquet", ragged_log(7, RANKS, PAIRS, seed=8)))
    )
    for lists, replaced in ((first, []), (first, []), (second, ["ranking.parquet"])):
        export(pbm[0], tmp_path / "out", rank=lists)
        lines = [line for line in capsys.readouterr().err.splitlines() if "replaced" in line]
        assert [Path(line.partition(":")[0]).name for line in lines] == replaced


@pytest.fixture(scope="module")
def with_posteriors(log, tmp_path_factory):
    """A run whose tables have posteriors, exported with the order of a draw.

    They are not refined: they have nothing to do with the log.
    """
    overrides = ["model=pbm", "attraction.posterior=normal_by_rank"]
    run, _ = untrained(tmp_path_factory.mktemp("posteriors"), log, *overrides)
    rng = np.random.default_rng(0)
    parameters = {
        "attraction/baseline": np.float32(-0.5),
        "attraction/table": rng.normal(0, 0.5, (PAIRS + 1, 3)).astype(np.float32),
        "attraction/table/prior/log_precision": np.float32(0.3),
        "attraction/table/prior/mean": np.array([0.2], np.float32),
        "attraction/table/prior/slopes": np.array([[0.4], [-0.1]], np.float32),
        "attraction/table/log_ranks": np.array([1.0, 0.5, 0.3], np.float32),
        "examination/weight": np.zeros(RANKS + 1, np.float32),
    }
    np.savez(run / "model.npz", **parameters)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clickexp.posteriors.rows._MOST_SESSIONS", 0)
        export(run, thompson=5)
    return run, parameters


def test_attraction_of_posteriors_is_their_mean_probability(with_posteriors):
    """By quadrature at 100 nodes."""
    run, parameters = with_posteriors
    table = pl.read_parquet(run / "export/documents.parquet")
    rows = parameters["attraction/table"][table["query_doc_id"].to_numpy()]
    offset, spread, x = rows.T.astype(np.float64)
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    mean = -0.3 + offset + 0.4 * x - 0.1 * (x**2 - 1)
    draws = mean[:, None] + np.exp(spread - 0.15)[:, None] * nodes
    expected = sigmoid(draws) @ weights / weights.sum()
    np.testing.assert_allclose(table["attraction"], expected, rtol=1e-2)


def test_documents_in_the_order_of_a_draw(with_posteriors):
    run, _ = with_posteriors
    model = fitted(run).model
    table = pl.read_parquet(run / "export/thompson.parquet")
    ids = {"query_doc_ids": np.arange(PAIRS + 1, dtype=np.int32)[None]}
    scores = np.asarray(model.sample_parameters(jax.random.key(5)).attraction.prob(ids))[0]
    np.testing.assert_allclose(table["score"], scores[table["query_doc_id"].to_numpy()], rtol=1e-5)
    assert table["query_id"].unique().sort().to_list() == [*range(100, 300)]
    for _, group in table.group_by("query_id"):
        ranks = [*range(1, len(group) + 1)]
        assert group["rank"].to_list() == ranks and group["score"].is_sorted(descending=True)


def test_predictions_of_the_log_itself(pbm, tmp_path, monkeypatch):
    """In its order, so that they stand beside the rows that it was read from."""
    monkeypatch.setattr(files, "_PIECE", 3)
    export(pbm[0], tmp_path, predict="")
    table = pl.read_parquet(tmp_path / "predictions.parquet")
    assert table["query_id"].to_list() == [*range(280, 300)]
    ids = LOG["query_doc_ids"][TEST][SHOWN[TEST]]
    np.testing.assert_array_equal(table["query_doc_ids"].explode(), ids)
    examination = np.broadcast_to(sigmoid(pbm[1]["examination/weight"][1:]), (20, RANKS))[
        SHOWN[TEST]
    ]
    click = probability(pbm[1], "attraction")[ids] * examination
    np.testing.assert_allclose(table["click_probability"].explode(), click, rtol=1e-5)


def test_a_log_that_has_moved(pbm, log, tmp_path):
    moved = tmp_path / "elsewhere.parquet"
    moved.write_bytes(log.read_bytes())
    export(pbm[0], tmp_path / "out", dataset=moved, part="train")
    for name, read in (("documents.parquet", pl.read_parquet), ("examination.csv", pl.read_csv)):
        other = read(pbm[0] / "export" / name)
        found = read(tmp_path / "out" / name)
        of_part = ["impressions", "click_rate"]
        assert found.drop(of_part, strict=False).equals(other.drop(of_part, strict=False))
    assert found["impressions"].to_list() == SHOWN[TRAIN].sum(axis=0).tolist()


def test_examination_of_a_cascade_model_is_its_mean_over_sessions(log, tmp_path):
    """DBN: users read on with probability g (1 - a s), whatever they click."""
    run, parameters = untrained(tmp_path, log, "model=dbn")
    new = write_log(NEW, tmp_path / "new.parquet")
    export(run, predict=new)
    attraction, satisfaction = (
        probability(parameters, role) for role in ("attraction", "satisfaction")
    )
    onward = sigmoid(parameters["continuation/weight"][0, 0])
    ids = LOG["query_doc_ids"][TEST]
    stay = onward * (1 - attraction[ids] * satisfaction[ids])
    examined = np.cumprod(np.concatenate([np.ones((len(ids), 1)), stay[:, :-1]], axis=1), axis=1)
    mean = np.average(examined, axis=0, weights=SHOWN[TEST])
    table = pl.read_csv(run / "export/examination.csv")
    np.testing.assert_allclose(table["examination"], mean, rtol=1e-5)

    documents = pl.read_parquet(run / "export/documents.parquet")
    rows = documents["query_doc_id"].to_numpy()
    np.testing.assert_allclose(documents["satisfaction"], satisfaction[rows], rtol=1e-5)
    np.testing.assert_allclose(documents["relevance"], (attraction * satisfaction)[rows], rtol=1e-5)

    predicted = pl.read_parquet(run / "export/predictions.parquet")
    for session, there in enumerate(shown(NEW)):
        examining, expected = 1.0, []  # P(examining | clicks above)
        for id, click in zip(
            NEW["query_doc_ids"][session][there], NEW["clicks"][session][there], strict=True
        ):
            a, s = attraction[id], satisfaction[id]
            expected.append(examining * a)
            examining = onward * ((1 - s) if click else examining * (1 - a) / (1 - examining * a))
        np.testing.assert_allclose(
            predicted["conditional_click_probability"][session], expected, rtol=1e-4
        )


def test_sessions_without_clicks_and_shared_tables(log, tmp_path):
    """A mixture of PBM and DCTR with one table, both equally likely."""
    overrides = ["model=mixture", "model.components=[pbm,dctr]"]
    run, parameters = untrained(tmp_path, log, *overrides)
    new = write_log(NEW, tmp_path / "new.parquet", clicks=None)
    export(run, predict=new)
    predicted = pl.read_parquet(run / "export/predictions.parquet")
    assert predicted.columns == ["query_id", "query_doc_ids", "click_probability", "relevance"]
    assert np.ptp(parameters["prior"]) == 0
    attraction = probability(parameters, "models/0/attraction")
    examination = sigmoid(parameters["models/0/examination/weight"][1:])
    for session, there in enumerate(shown(NEW)):
        ids = NEW["query_doc_ids"][session][there]
        click = attraction[ids] * (examination[: len(ids)] + 1) / 2
        np.testing.assert_allclose(predicted["click_probability"][session], click, rtol=1e-5)


def spelled_rows(sessions, seed, documents=9):
    """(query, documents, clicks) of three documents each, ids as text."""
    rng = np.random.default_rng(seed)
    return [
        (
            f"q{rng.integers(4)}",
            [f"http://{d}" for d in rng.permutation(documents)[:3]],
            rng.integers(0, 2, 3).tolist(),
        )
        for _ in range(sessions)
    ]


def write_rows(rows, file, columns=("query_id", "query_doc_ids", "clicks")):
    pl.DataFrame(dict(zip(columns, zip(*rows)))).write_parquet(file)
    return file


PAIR_KEYS = {
    "query_document": lambda query, document: (query, document),
    "document": lambda query, document: (document,),
}


@pytest.fixture(
    scope="module", params=["query_document", pytest.param("document", marks=pytest.mark.nightly)]
)
def spelled(request, tmp_path_factory):
    """A run on a log whose ids are text, exported with predictions of the test sessions.

    With its parameters, rows, and ids by a dictionary in the order of the log.
    """
    folder, rows, ids = tmp_path_factory.mktemp("spelled"), spelled_rows(SESSIONS, 1), {}
    name_of = PAIR_KEYS[request.param]
    for query, documents, _ in rows:
        for document in documents:
            ids.setdefault(name_of(query, document), len(ids) + 1)
    log = write_rows(rows, folder / "log.parquet")
    run, parameters = untrained(folder, log, "model=pbm", f"dataset.pair_key={request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_PIECE", 5)
        patch.setattr(scores_module, "_BATCH", 5)
        export(run, predict="")
    return run, parameters, rows, ids, name_of


def test_documents_have_the_names_that_the_log_gives_them(spelled):
    run, parameters, rows, ids, name_of = spelled
    impressions, clicks = Counter(), Counter()
    for query, documents, clicked in rows[TRAIN]:
        for document, click in zip(documents, clicked):
            impressions[name_of(query, document)] += 1
            clicks[name_of(query, document)] += click
    table = pl.read_parquet(run / "export/documents.parquet")
    named = ["query", "document"][-len(next(iter(ids))) :]
    assert table.columns == [
        "query_doc_id",
        *named,
        "attraction",
        "relevance",
        "impressions",
        "clicks",
    ]
    assert table.select(named).rows() == list(ids) and table["query_doc_id"].to_list() == list(
        ids.values()
    )
    assert table["impressions"].to_list() == [impressions[name] for name in ids]
    assert table["clicks"].to_list() == [clicks[name] for name in ids]
    np.testing.assert_allclose(
        table["attraction"], probability(parameters, "attraction")[1:], rtol=1e-5
    )


def assert_predicted(folder, sessions, spelled):
    """Predictions in a folder are those of the parameters, by the ids of the log; returns the ids shown."""
    _, parameters, _, ids, name_of = spelled
    table = pl.read_parquet(folder / "predictions.parquet")
    if "query" in table.columns:
        assert table["query"].to_list() == [query for query, *_ in sessions]
    assert table["documents"].to_list() == [documents for _, documents, _ in sessions]
    found = [[ids.get(name_of(query, d), 0) for d in documents] for query, documents, _ in sessions]
    assert table["query_doc_ids"].to_list() == found
    examination = sigmoid(parameters["examination/weight"][1:])[:3]
    click = probability(parameters, "attraction")[found] * examination
    np.testing.assert_allclose(np.stack(table["click_probability"].to_list()), click, rtol=1e-5)
    return table, found


def test_predictions_of_test_sessions_in_the_ids_of_the_log(spelled):
    run, _, rows, ids, _ = spelled
    table, found = assert_predicted(run / "export", rows[TEST], spelled)
    assert ("query" in table.columns) == (len(next(iter(ids))) == 2)
    assert min(map(min, found)) > 0


def predict_with(run, source, output):
    """Writes the predictions of an export alone."""
    model, log, _ = fitted(run)
    names = None if log.names is None else read_names(log.names)
    with temporary() as scratch:
        lists = lists_to_predict(model, log, Source(source), names, "none", scratch)
        write_predictions(model, lists, output / "predictions.parquet")


def test_predictions_of_new_sessions_in_the_ids_of_the_log(spelled, tmp_path, monkeypatch, capsys):
    """They show documents that the log does not have: these have row 0."""
    sessions = spelled_rows(12, 7, documents=12)
    given = write_rows(sessions, tmp_path / "new.parquet")
    for owner, name in (
        (SourceTable, "batch_rows"),
        (files, "_PIECE"),
        (scores_module, "_BATCH"),
    ):
        monkeypatch.setattr(owner, name, 5)
    predict_with(spelled[0], given, tmp_path)
    table, found = assert_predicted(tmp_path, sessions, spelled)
    assert "query" in table.columns
    unknown = sum(id == 0 for ids in found for id in ids)
    assert unknown > 0
    assert f"new.parquet: {unknown} of the 36 documents shown" in capsys.readouterr().err


def test_other_ids_than_the_log_has_are_refused(spelled, tmp_path):
    numbers = write_rows([(1, [1, 2, 3], [0, 0, 0])], tmp_path / "numbers.parquet")
    with refuses(UserError, "query_doc_ids holds 1", "has text", "Write them as text"):
        predict_with(spelled[0], numbers, tmp_path)
    assert not (tmp_path / "predictions.parquet").exists()


def test_attraction_of_features(tmp_path):
    """A tower of features: the vectors come from the dataset, and so does the model's size."""
    rng = np.random.default_rng(0)
    for name, queries in (("train", 20), ("test", 6)):
        lines = [
            f"{rng.integers(0, 3)} qid:{query} "
            + " ".join(f"{n}:{rng.normal():.3f}" for n in (1, 2, 3))
            for query in range(queries)
            for _ in range(5)
        ]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    sizes = [
        "dataset.sessions=300",
        "dataset.val_sessions=50",
        "dataset.test_sessions=50",
        "dataset.positions=3",
    ]
    sizes.append("dataset.policy=random")
    tower = ["model=pbm", "parameter@attraction=linear", "+attraction.input_norm=null"]
    run, parameters = untrained(tmp_path, tmp_path, *sizes, *tower, dataset="letor")
    export(run)
    documents = pl.read_parquet(run / "export/documents.parquet")
    dataset = constructor(module.configuration(run)["dataset"], "dataset")()
    vectors = dataset.train.features.values[documents["query_doc_id"].to_numpy()].astype(np.float64)
    weights = {name: values for name, values in parameters.items() if name.startswith("attraction")}
    (kernel,) = (values for values in weights.values() if values.size == vectors.shape[1])
    bias = sum(values.item() for values in weights.values() if values.size == 1)
    np.testing.assert_allclose(
        documents["attraction"], sigmoid(vectors @ kernel.ravel() + bias), rtol=1e-4
    )


def foreign(folder):
    (folder / "config.yaml").write_text("a: 1\n")
    return [str(folder)]


def without_model(folder):
    (folder / "result.json").write_text("{}")
    (folder / "config.yaml").write_text("{dataset: {}, model: {}, seed: 1, max_sessions: null}")
    return [str(folder)]


def interrupted(folder):
    """A run that has a checkpoint of its second epoch, and no result."""
    without_model(folder)
    (folder / "result.json").unlink()
    (folder / ".hydra").mkdir()
    (folder / ".hydra/overrides.yaml").write_text("[model=pbm]")
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n')
    (folder / "checkpoint.npz").touch()
    return [str(folder)]


def copy(pbm, folder, **changes):
    config = OmegaConf.load(pbm / "config.yaml")
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, merge=False)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    for name in ("model.npz", "result.json"):
        (folder / name).write_bytes((pbm / name).read_bytes())
    return [str(folder)]


def half(arguments):
    model = Path(*arguments, "model.npz")
    os.truncate(model, model.stat().st_size // 2)
    return arguments


def predict(pbm, columns, folder):
    given = write_log(columns, folder / "some.parquet")
    return [str(pbm), "--output", str(folder), "--predict", str(given)]


def sweep(folder):
    for job in (10, 2, 0):
        (folder / f"{job}").mkdir()
        (folder / f"{job}/model.npz").touch()
    return [str(folder)]


SIMULATED = {"_target_": "clickexp.simulation.simulate"}
OTHER = ragged_log(100, RANKS, PAIRS + 9)
HIGH = {**NEW, "query_doc_ids": np.where(shown(NEW), 31, 0)}
WRONG = {
    "no folder": (
        lambda pbm, folder: [str(folder / "nowhere")],
        ("no such folder", "folder of a run"),
    ),
    "no run": (lambda pbm, folder: [str(folder)], ("not the folder of a run", "config.yaml")),
    "a sweep": (
        lambda pbm, folder: sweep(folder),
        ("Name one of them: {folder}/0, {folder}/2, {folder}/10",),
    ),
    "another config": (lambda pbm, folder: foreign(folder), ("config.yaml", "dataset and model")),
    "interrupted": (
        lambda pbm, folder: interrupted(folder),
        ("has not finished (last epoch: 2)", "clickexp model=pbm", "hydra.run.dir="),
    ),
    "no model": (lambda pbm, folder: without_model(folder), ("no model.npz", "save_model=true")),
    "half a model": (
        lambda pbm, folder: half(copy(pbm, folder)),
        ("model.npz", "BadZipFile", "Run the experiment again"),
    ),
    "no log": (
        lambda pbm, folder: copy(pbm, folder, dataset__path="gone/log"),
        ("gone/log", "--dataset"),
    ),
    "another log": (
        lambda pbm, folder: [str(pbm), "--dataset", str(write_log(OTHER, folder / "other.parquet"))],
        ("another model or data",),
    ),
    "simulated": (
        lambda pbm, folder: [*copy(pbm, folder, dataset=SIMULATED), "--dataset", str(folder)],
        ("--dataset {folder}", "Leave it out"),
    ),
    "unknown option": (
        lambda pbm, folder: [str(pbm), "--predict", "x", "rows=3"],
        ("rows=3: there is no option rows;", "columns.KEY=NAME"),
    ),
    "option for a file": (
        lambda pbm, folder: [str(pbm), "--predict", "progress=off"],
        ("progress=off: an option in the place of the path of --predict", "columns.KEY=NAME"),
    ),
    "option for lists": (
        lambda pbm, folder: [str(pbm), "--rank", "header=a"],
        ("header=a: an option in the place of the path of --rank", "header"),
    ),
    "option for a run": (
        lambda pbm, folder: ["header=a", str(pbm)],
        ("header=a: an option in the place of the path of RUN",),
    ),
    "option for nothing": (
        lambda pbm, folder: [str(pbm), "columns.clicks=c"],
        ("columns.clicks=c", "--predict"),
    ),
    "unknown id": (
        lambda pbm, folder: predict(pbm, HIGH, folder),
        ("some.parquet, row 0", "query_doc_ids holds 31", "query_doc_pairs, 30"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_reported_in_one_line(wrong, pbm, tmp_path, capsys):
    arguments, parts = WRONG[wrong]
    arguments = arguments(pbm[0], tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    # if slow
    lines = [line for line in capsys.readouterr().err.splitlines() if "% in " not in line]
    assert stopped.value.code == 1 and len(lines) == 1
    assert lines[0].startswith("clickexp-export: ")
    assert all(part.format(folder=tmp_path) in lines[0] for part in parts), lines[0]
    assert not list(tmp_path.rglob("predictions*"))


def one_long(file, **columns):
    """Sessions one of which, to which all would be padded, is long."""
    lengths = [1] * 2000 + [20_000]
    pl.DataFrame({"query_doc_ids": [[1] * length for length in lengths], **columns}).write_parquet(
        file
    )
    return file


WIDE = {**NEW, "query_doc_ids": np.ones((7, 6), np.int32), "clicks": np.zeros((7, 6), bool)}
WIDE["lengths"] = np.full(7, 6)
FIRST = {"positions": [[1]] * 2000 + [[1] * 20_000]}


def test_sessions_that_cannot_be_predicted_are_refused(pbm, tmp_path):
    wide, long, first = (tmp_path / f"{name}.parquet" for name in ("wide", "long", "first"))
    (tmp_path / "some.log").write_text("query_doc_ids\n1\n")
    os.mkfifo(tmp_path / "pipe.parquet")
    disordered = tmp_path / "disordered.parquet"
    pl.DataFrame({"query_doc_ids": [[1, 2]], "positions": [[2, 1]]}).write_parquet(disordered)
    for source, parts in (
        (tmp_path / "nowhere.parquet", ("nowhere.parquet", "no such file or folder")),
        (tmp_path / "pipe.parquet", ("pipe.parquet", "neither a file nor a folder")),
        (tmp_path / "some.log", ("some.log", "the ending of the name shows no kind of file")),
        (disordered, ("row 0", "1 after 2", "Sort the documents")),
        (write_log(WIDE, wide), ("position 6", "knows 4", "Cut the lists")),
        (one_long(long), ("row 2000", "20000 documents", "on average 11.0", "all 2001")),
        (one_long(first, **FIRST), ("row 2000", "20000 documents", "on average 11.0", "all 2001")),
    ):
        with refuses(UserError, *parts):
            predict_with(pbm[0], source, tmp_path)
    assert not list(tmp_path.rglob("predictions*"))


def test_models_without_a_parameter_by_position_predict_longer_lists_than_training_shows(
    log, tmp_path
):
    """P(click at rank k) = a (g (1 - a s))^(k - 1) of a list of one document of DBN."""
    points = "attraction.posterior=none", "satisfaction.posterior=none"
    run, parameters = untrained(tmp_path, log, "model=dbn", *points)
    predict_with(run, write_log(WIDE, tmp_path / "wide.parquet"), tmp_path)
    table = pl.read_parquet(tmp_path / "predictions.parquet")
    a, s = (probability(parameters, role)[1] for role in ("attraction", "satisfaction"))
    g = sigmoid(parameters["continuation/weight"].item())
    expected = np.tile(a * (g * (1 - a * s)) ** np.arange(6), (7, 1))
    found = np.array(table["click_probability"].to_list())
    np.testing.assert_allclose(found, expected, rtol=1e-5)


ATTACKS = ("shutil.copyfile", "through a module", "positional", "numpy.load", "distutils.spawn")


class Touch:
    """Pickled, what creates a file when it is read."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def attacks(folder, marker):
    """Calls that create the marker, by what a configuration names."""
    seed, pickled = folder / "seed", folder / "pickled.npy"
    seed.touch()
    pickled.write_bytes(pickle.dumps(Touch(marker)))
    copy = {"src": str(seed), "dst": str(marker)}
    return {
        "shutil.copyfile": {"_target_": "shutil.copyfile", **copy},
        "through a module": {"_target_": "clickexp.data.folders.shutil.copyfile", **copy},
        "positional": {"_target_": "shutil.copyfile", "_args_": list(copy.values())},
        "numpy.load": {"_target_": "numpy.load", "file": str(pickled), "allow_pickle": True},
        "distutils.spawn": {
            "_target_": "distutils.spawn.spawn",
            "cmd": ["/bin/touch", str(marker)],
        },
    }


def put(config, place, node):
    *path, last = place.split(".")
    for key in path:
        config = config.setdefault(key, {})
    config[last] = [node] if last == "list" else node


PLACES = ("dataset", "model.attraction", "model.attraction.embedding_fn", "dataset.columns.list")
EACH_ONCE = [
    ("numpy.load", "dataset"),
    ("shutil.copyfile", "model.attraction"),
    ("positional", "model.attraction.embedding_fn"),
    ("through a module", "dataset.columns.list"),
    ("distutils.spawn", "dataset"),
]


@pytest.mark.parametrize(
    "attack, place",
    [
        pytest.param(*pair, marks=() if pair in EACH_ONCE else pytest.mark.nightly)
        for pair in itertools.product(ATTACKS, PLACES)
    ],
)
def test_a_folder_of_someone_else_calls_nothing_of_theirs(attack, place, pbm, tmp_path, capsys):
    if attack == "distutils.spawn" and importlib.util.find_spec("distutils") is None:
        pytest.skip("this Python has no distutils")
    marker = tmp_path / "marker"
    run = copied(pbm[0], tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    node = attacks(tmp_path, marker)[attack]
    put(config, place, node)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(SystemExit, match="1"):
        main([str(run)])
    error = capsys.readouterr().err
    assert node["_target_"] in error and "--trust" in error and error.count("\n") == 1
    assert not marker.exists() and not (run / "export").exists()
    with contextlib.suppress(BaseException):  # what comes back is no dataset or model
        fitted(run, trust=True)
    assert marker.exists()


@pytest.mark.parametrize(
    "place, target, parts",
    [
        ("dataset", "builtins.dict", ("builtins.dict makes dict", "a Dataset is needed")),
        ("model", "os.getcwd", ("os.getcwd makes str", "a Model is needed")),
        ("model.attraction", "builtins.dict", ("PositionBasedModel fails: Type",)),
    ],
)
def test_what_trusted_code_makes_is_checked(
    place, target, parts, pbm, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(
        module,
        "build_model",
        lambda make, *_: make() if place == "model" else build_model(make, *_),
    )
    run = copied(pbm[0], tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    path = config["dataset"]["path"]
    put(config, place, {"_target_": target, **({"path": path} if place == "dataset" else {})})
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(SystemExit, match="1"):
        main([str(run), "--trust"])
    error = capsys.readouterr().err
    assert error.startswith("clickexp-export: ") and error.count("\n") == 1
    assert all(part in error for part in parts), error


def test_only_what_runs_leave_is_built(capfd):
    node = {
        "_target_": "clickexp.simulation.open_letor",
        "path": "x",
        "user": "clickexp.models.CascadeModel",
    }
    check_targets(node, "dataset")
    located, home = "clickexp.utils.signatures.located", "${oc.env:HOME}"
    for change, parts in (
        ({"user": "shutil.copyfile"}, ("dataset.user='shutil.copyfile'", "no model")),
        ({"user": located}, (f"dataset.user='{located}'", "no model")),
        ({"files": {"train": home}}, (f"dataset.files.train='{home}'", "interpolations")),
        ({"files": "${oc.decode:'{_target_: os.getcwd}'}"}, ("dataset.files", "interpolations")),
        ({"_args_": ["somewhere"]}, ("dataset._args_", "positional")),
    ):
        with refuses(UserError, *parts):
            check_targets(node | change, "dataset")
    for target in (
        "clickexp.data.prepare",
        "clickexp.data.arrays.GrowingArray",
        "clickexp.export.export.export",
        "clickexp.__main__.main",
        "clickexp.nothing",
        ["clickexp.simulation.open_letor"],
        None,
    ):
        with refuses(UserError, "dataset", str(target), "no model, tower or dataset of clickexp"):
            check_targets(node | {"_target_": target}, "dataset")
    assert capfd.readouterr().err == ""


def test_a_refused_module_is_not_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    for node in (
        {"_target_": "evil.Tower"},
        {"_target_": "clickexp.simulation.open_letor", "user": "evil.Tower"},
    ):
        with refuses(UserError, "evil.Tower"):
            check_targets(node, "dataset")
    assert not (tmp_path / "marker").exists()


def test_a_configuration_that_never_ends_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "{seed: 1, max_sessions: null, dataset: &d {path: x, of: *d}, model: {}}"
    )
    with refuses(UserError, str(tmp_path), "aliases"):
        export(tmp_path)


def test_a_pipe_in_the_place_of_the_log_is_not_waited_for(pbm, tmp_path):
    run = copied(pbm[0], tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    os.mkfifo(tmp_path / "log.parquet")
    config["dataset"]["path"] = str(tmp_path / "log.parquet")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with refuses(UserError, "log.parquet", "--dataset"):
        export(run)


def test_only_the_dataset_and_the_model_are_built(pbm, tmp_path):
    """The rest of a configuration may name anything, such as dense optimizers or metrics of one's own."""
    run = copied(pbm[0], tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    node = attacks(tmp_path, tmp_path / "marker")["shutil.copyfile"]
    for part in (
        "optimizer",
        "trainer",
        "metric",
        "logger",
        "attraction",
        "search",
        "reproduction",
        "hydra",
    ):
        config[part] = dict(node)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    export(run)
    assert (run / "export/documents.parquet").exists() and not (tmp_path / "marker").exists()


@pytest.mark.parametrize("part", ["dataset", "model", "parameter"])
def test_all_that_our_own_configurations_build_is_trusted(part):
    for file in sorted((CONF / part).glob("*.yaml")):
        for target in re.findall(r"^\s*_target_: (\S+)", file.read_text(), re.MULTILINE):
            if target != "???":  # a tower of the user's own
                check_targets({"_target_": target}, file.stem)


def test_a_pickle_in_the_place_of_parameters_is_not_read(pbm, tmp_path):
    run = copied(pbm[0], tmp_path)
    names = [*np.load(run / "model.npz")]
    objects = np.empty(1, object)
    objects[0] = Touch(tmp_path / "marker")
    np.savez(run / "model.npz", **dict.fromkeys(names, objects))
    with refuses(UserError, "model.npz", "damaged (ValueError)"):
        export(run)
    assert not (tmp_path / "marker").exists()


def test_links_in_a_folder_do_not_lead_what_is_written_elsewhere(pbm, tmp_path):
    run, mine = copied(pbm[0], tmp_path), tmp_path / "mine"
    mine.write_text("mine")
    (run / "export").mkdir()
    for name in ("examination.csv", "documents.parquet", "predictions.parquet"):
        (run / "export" / name).symlink_to(mine)
        (run / "export" / f"{name}.part").symlink_to(mine)
    export(run, predict="")
    assert mine.read_text() == "mine" and len(pl.read_csv(run / "export/examination.csv")) == RANKS


@pytest.mark.parametrize("output", [None, "mine"])
def test_a_link_to_figures_leads_nothing_elsewhere(tmp_path, monkeypatch, output):
    monkeypatch.setattr(drawn, "export", lambda *_, **__: pytest.fail("work starts"))
    folder = tmp_path / (output or "export")
    folder.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (folder / "figures").symlink_to(tmp_path / "elsewhere")
    with refuses(UserError, f"{folder}/figures", "Remove the link", "--output"):
        drawn.export_drawn(tmp_path, output and folder)
    with refuses(UserError, f"{folder}/figures"):
        write_figures({}, folder)


def test_an_export_is_drawn_from_a_folder_of_any_name(tmp_path, monkeypatch, capsys):
    """Signs of patterns are no patterns."""

    def write(run, output, **options):
        pl.DataFrame({"parameter": ["continuation"]}).write_csv(output / "shared.csv")

    monkeypatch.setattr(drawn, "export", write)
    monkeypatch.setattr("clickexp.export.figures.figures_of", lambda *_: {})
    folder = tmp_path / "seed=[1]*"
    folder.mkdir()
    drawn.export_drawn(tmp_path, folder, as_json=True)
    assert json.loads(capsys.readouterr().out)["shared"] == [{"parameter": "continuation"}]


def test_a_folder_does_not_choose_where_export_writes(pbm, tmp_path):
    run, mine = copied(pbm[0], tmp_path), tmp_path / "mine"
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["dataset"]["cache"] = str(tmp_path / "cache")
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    mine.mkdir()
    (run / "export").symlink_to(mine)
    with refuses(UserError, f"{run}/export", "--output"):
        export(run)
    export(run, tmp_path / "tables")
    assert not [*mine.iterdir()] and not (tmp_path / "cache").exists()
    fitted(run, trust=True)
    assert (tmp_path / "cache").exists()


def test_export_reads_the_log_that_runs_here_have_packed(pbm, tmp_path, monkeypatch):
    run = copied(pbm[0], tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["dataset"]["cache"] = "outputs/cache"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    fitted(run)
    assert [*(tmp_path / "outputs/cache").iterdir()]


def test_an_export_shares_what_is_compiled_with_runs_made_here(pbm, monkeypatch):
    folders = []
    monkeypatch.setattr(module, "share_compilations", folders.append)
    fitted(pbm[0])
    assert folders == [Path(default_value("cache_dir"))]


def test_ratios_that_the_log_leaves_open_are_said_to_be(pbm, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("clickexp.posteriors.intervals._OPEN", 0)
    monkeypatch.setattr("clickexp.export.figures.figures_of", lambda *_: ())
    main([str(pbm[0]), "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines() if line.startswith("examination ")]
    assert [line[-1] for line in lines[1:]] == ["open"] * (RANKS - 1)
    assert "open: the log does not determine the ratio" in printed


def test_tables_are_drawn(pbm):
    folder = pbm[0] / "export"
    names = ("predictions.parquet", "examination.csv", "shared.csv", "documents.parquet")
    printed = (pbm[0].parent / "printed").read_text().splitlines()
    assert printed[:4] == [f"{folder}/{name}" for name in names]
    assert printed[-1] == f"figures: {folder}/figures"
    shared = pl.read_csv(folder / "shared.csv").to_dicts()
    assert [line.split()[:2] for line in printed if line.startswith("examination ")] == [
        ["examination", str(row["position"])] for row in shared
    ]
    row = shared[1]
    ratio = f"{row['relative']:.4f} {interval(row['relative_low'], row['relative_high'])}"
    assert any(" ".join(line.split()).endswith(ratio) for line in printed)
    names = ["attraction.pdf", "attraction.png", "examination.pdf", "examination.png"]
    assert sorted(file.name for file in (folder / "figures").iterdir()) == names


def test_tables_are_there_as_json(pbm, tmp_path, capsys):
    main([str(pbm[0]), "--output", str(tmp_path), "--json"])
    content = json.loads(capsys.readouterr().out)
    names = ("examination.csv", "shared.csv", "documents.parquet")
    assert content["files"] == [f"{tmp_path}/{name}" for name in names]
    assert content["figures"] == f"{tmp_path}/figures"
    assert content["examination"] == pl.read_csv(tmp_path / "examination.csv").to_dicts()
    assert len(content["examination"]) == RANKS
    assert content["shared"] == pl.read_csv(tmp_path / "shared.csv").to_dicts()


def targets(group):
    """What the options of a group call."""
    for file in sorted((ROOT / "conf" / group).glob("*.yaml")):
        node = yaml.safe_load(file.read_text())
        if isinstance(node, dict) and node.get("_target_", "???") != "???":
            yield file.stem, node["_target_"]


GROUPS = ("model", "loss", "debias", "propensity", "parameter", "vectors", "context", "dataset")


def test_every_option_that_a_run_keeps_is_built_without_trust():
    for group in GROUPS:
        for name, target in targets(group):
            check_targets({"_target_": target}, f"{group}={name}")
