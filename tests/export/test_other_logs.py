"""Fitted runs beside logs that they were not fitted to: the numbers of a document stay those of its name."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from refusals import refuses
from untrained import new_run

import clickexp
from clickexp.errors import DataError, UserError
from clickexp.export.export import export
from clickexp.online.runs import compare_runs

DOCUMENTS, RANKS, SESSIONS = 9, 4, 200


def rows(seed=0, documents=DOCUMENTS):
    """Lists of documents by name, the later ones clicked more often."""
    rng = np.random.default_rng(seed)
    lists = np.stack([rng.permutation(documents)[:RANKS] for _ in range(SESSIONS)])
    return lists, rng.random(lists.shape) < (lists + 1) / (2 * documents)


def write(file, lists, clicks, name="doc{}", **more):
    names = [[name.format(document) for document in each] for each in lists]
    pl.DataFrame({"query_doc_ids": names, "clicks": clicks.tolist(), **more}).write_parquet(file)
    return file


def attraction(folder):
    table = pl.read_parquet(folder / "documents.parquet")
    return dict(zip(table["document"], table["attraction"], strict=True))


PARQUET = ["dataset=lists", "dataset.pair_key=document", "model=pbm"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose documents have attractions of their own, and what its export says on the log that it is of."""
    folder = tmp_path_factory.mktemp("other")
    file = write(folder / "log.parquet", *rows())
    made = new_run(folder / "run", *PARQUET, f"dataset.path={file}", "attraction.posterior=none")
    export(made, folder / "first")
    return made, attraction(folder / "first")


@pytest.fixture(scope="module")
def trained(run, tmp_path_factory):
    """A run with posteriors, of the same log."""
    folder = tmp_path_factory.mktemp("trained")
    settings = {
        "logger": "console",
        "progress": "off",
        "report": False,
        "cache_dir": str(folder / "cache"),
    }
    given = [*PARQUET, f"dataset.path={run[0].parent / 'log.parquet'}", "trainer.epochs=1"]
    return clickexp.run(*given, folder=folder / "run", shared_intervals=False, **settings).folder


@pytest.fixture
def again(run, tmp_path):
    """The same rows in another order, in which documents first appear in another order."""
    lists, clicks = rows()
    return write(tmp_path / "log.parquet", lists[::-1], clicks[::-1])


def test_documents_keep_their_attraction_where_the_log_is_written_in_another_order(
    run, again, tmp_path, capsys
):
    folder, expected = run
    lists, clicks = rows()
    capsys.readouterr()
    export(folder, tmp_path / "out", dataset=again)
    said = capsys.readouterr().err
    assert "not the log that" in said and "Attraction is that of training alone" in said
    assert attraction(tmp_path / "out") == pytest.approx(expected)
    table = pl.read_parquet(tmp_path / "out/documents.parquet").sort("document")
    train = slice(0, round(0.8 * SESSIONS))
    shown, clicked = lists[::-1][train], clicks[::-1][train]
    np.testing.assert_array_equal(
        table["impressions"], np.bincount(shown.ravel(), minlength=DOCUMENTS)
    )
    np.testing.assert_array_equal(table["clicks"], np.bincount(shown[clicked], minlength=DOCUMENTS))


def test_the_log_that_the_run_was_fitted_to_is_not_reported(run, tmp_path, capsys):
    """Neither as it is, nor from a copy of the run and the log on another machine."""
    folder, expected = run
    capsys.readouterr()
    export(folder, tmp_path / "out")
    copied = shutil.copytree(folder, tmp_path / "run")
    log = shutil.copyfile(folder.parent / "log.parquet", tmp_path / "copy.parquet")
    export(copied, tmp_path / "copied", dataset=log)
    assert "not the log" not in capsys.readouterr().err
    assert (
        attraction(tmp_path / "out") == attraction(tmp_path / "copied") == pytest.approx(expected)
    )


def test_rankings_and_rankers_go_by_name(run, again, tmp_path):
    folder, expected = run
    lists = write(tmp_path / "lists.parquet", *rows(1))
    export(folder, tmp_path / "a", rank=lists, numpy=True)
    export(folder, tmp_path / "b", rank=lists, numpy=True, dataset=again)
    a, b = (pl.read_parquet(tmp_path / output / "ranking.parquet") for output in "ab")
    assert a.equals(b)
    for _, one in a.group_by("list"):
        assert [*one["document"]] == sorted(one["document"], key=expected.get, reverse=True)
    scores = [np.load(tmp_path / output / "ranker.npz") for output in "ab"]
    for name in scores[0].files:
        np.testing.assert_array_equal(scores[0][name], scores[1][name])


def test_draws_go_by_name_and_intervals_are_those_of_the_log_of_the_run(trained, again, tmp_path):
    export(trained, tmp_path / "a", thompson=3)
    export(trained, tmp_path / "b", thompson=3, dataset=again)
    a, b = (pl.read_parquet(tmp_path / output / "thompson.parquet") for output in "ab")
    assert a.equals(b)
    a, b = ({*pl.read_parquet_schema(tmp_path / output / "documents.parquet")} for output in "ab")
    assert a - b == {"attraction_sd", "attraction_low", "attraction_high", "effective_impressions"}


def test_documents_that_the_run_does_not_know_are_counted_and_have_no_row(run, tmp_path, capsys):
    folder, expected = run
    lists, clicks = rows(2, documents=DOCUMENTS + 3)
    other = write(tmp_path / "more.parquet", lists, clicks)
    export(folder, tmp_path / "out", dataset=other, predict="")
    unknown = int((lists >= DOCUMENTS).sum())
    assert f"{unknown} of the {lists.size} shown are unknown" in capsys.readouterr().err
    assert attraction(tmp_path / "out") == pytest.approx(expected)
    predicted = pl.read_parquet(tmp_path / "out/predictions.parquet")
    names = [
        [f"doc{document}" if document < DOCUMENTS else None for document in each]
        for each in lists[-20:]
    ]
    assert predicted["documents"].to_list() == names
    with refuses(DataError, "documents of the lists to rank", "--dataset"):
        compare_runs(folder, folder, folder, dataset=other)


def test_users_judge_the_documents_that_a_run_knows_by_name(run, tmp_path):
    """The test lists are the same, and documents appear in another order before them."""
    folder, _ = run
    lists, clicks = rows()
    order = [*range(100)][::-1] + [*range(100, SESSIONS)]
    other = write(tmp_path / "log.parquet", lists[order], clicks[order])
    a, b = (
        compare_runs(folder, folder, folder, dataset=log, sessions=2000) for log in (None, other)
    )
    assert a.days == b.days


@pytest.mark.parametrize(
    "name, given", [("{}", "document"), ("nothing{}", "no document of this log")]
)
def test_ids_of_another_kind_are_refused(run, name, given, tmp_path):
    lists, clicks = rows()
    other = write(tmp_path / "other.parquet", lists, clicks, name)
    if name == "{}":
        pl.read_parquet(other).cast({"query_doc_ids": pl.List(pl.Int64)}).write_parquet(other)
    with refuses(DataError, given, "Write ids alike"):
        export(run[0], tmp_path / "out", dataset=other)


def test_a_run_that_does_not_say_what_it_is_of_is_refused(run, tmp_path):
    copied = shutil.copytree(run[0], tmp_path / "run")
    (copied / "result.json").write_text(json.dumps({"model": "PBM"}))
    with refuses(UserError, "result.json", "Fit the model again"):
        export(copied)


def test_a_relative_path_starts_where_the_run_was_started(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(Path("log.parquet"), *rows())
    folder = new_run(tmp_path / "run", *PARQUET, "dataset.path=log.parquet")
    export(folder, tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    write(Path("log.parquet"), *rows(5))  # what lies there under the same name is another log
    export(folder, tmp_path / "b")
    assert attraction(tmp_path / "a") == attraction(tmp_path / "b")
    tables = [pl.read_parquet(tmp_path / output / "documents.parquet") for output in "ab"]
    assert tables[0].equals(tables[1])


def test_ids_that_are_numbers_in_the_log_are_refused_on_another_one(tmp_path):
    """Simulated documents have no names: those of another log are others under the same ids."""
    folder = new_run(tmp_path / "run", "dataset=simulated", "dataset.sessions=100", "model=pbm")
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("sessions: 100\n", "sessions: 101\n"))
    with refuses(UserError, "not the log that", "fit the model"):
        export(folder)
