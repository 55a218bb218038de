"""Logs of which nothing can be learned, or that are very small: an error that says so, or a report."""

import numpy as np
import polars as pl
import pytest
from compositions import resolved
from refusals import refuses

import clickexp
from clickexp.cli.export import main as export
from clickexp.errors import DataError
from clickexp.experiment.build import build, open_loggers
from clickexp.loggers import Logger
from clickexp.runs.run import Run

SMALL = {"model": "pbm", "dataset": "lists", "logger": [], "progress": "off", "trainer.epochs": 1}


def write(file, clicks, ids=None):
    """A session per row of clicks, and of ids, by default two documents in turn."""
    ids = np.tile([[0, 1], [1, 0]], (len(clicks), 1))[: len(clicks)] if ids is None else ids
    pl.DataFrame(
        {"query_doc_ids": ids.tolist(), "clicks": clicks.astype(int).tolist()}
    ).write_parquet(file)
    return {"dataset.path": file, "cache_dir": file.parent / "cache", "folder": file.parent / "out"}


@pytest.mark.parametrize("value, words", [(0, "no document"), (1, "every document")])
def test_a_log_without_clicks_or_with_nothing_else_cannot_be_fitted(value, words, tmp_path):
    places = write(tmp_path / "log.parquet", np.full((40, 2), value))
    with refuses(DataError, words, "training sessions"):
        clickexp.run(report=False, **SMALL, **places)
    # which has no tower that starts at the click rate
    with refuses(DataError, words, "training sessions"):
        given = {
            **SMALL,
            **places,
            "model": "ranker",
            "attraction.posterior": "none",
            "attraction.baseline": 0.0,
        }
        clickexp.run(report=False, **given)


ONE_EACH = {
    "dataset.train_sessions": [0, 38],
    "dataset.val_sessions": [38, 39],
    "dataset.test_sessions": [39, 40],
}


@pytest.mark.nightly
def test_a_test_set_of_one_session_has_a_report(tmp_path):
    places = write(tmp_path / "log.parquet", np.random.default_rng(0).random((40, 2)) < 0.5)
    result = clickexp.run(**SMALL, **places, **ONE_EACH)
    assert result.result.data.sessions["test"] == 1
    assert result.report.exists()
    assert result.plot("calibration").axes


@pytest.mark.nightly
def test_a_tower_that_knows_no_positions_has_no_ratios(tmp_path):
    """And the run has its result."""
    places = write(tmp_path / "log.parquet", np.random.default_rng(0).random((40, 2)) < 0.5)
    result = clickexp.run(**SMALL, **places, **ONE_EACH, examination="global").result
    assert result.propensity == [] and np.isfinite(result.test["ll"])


def test_the_result_has_what_the_run_warned_of(tmp_path):
    """Before training and after it: what was left out, doubts of the log, and settings without effect."""
    places = write(tmp_path / "log.parquet", np.random.default_rng(0).random((40, 2)) < 0.5)
    log = pl.read_parquet(places["dataset.path"])
    pl.concat([log, log[:1].with_columns(clicks=pl.lit([0]))]).write_parquet(places["dataset.path"])
    options = {
        "attraction.posterior": "none",
        "draws": 2,
        "report": False,
        "dataset.invalid": "drop",
    }
    warned = clickexp.run(**SMALL, **places, **options).result.warnings
    assert warned[0] == "invalid=drop left rows (1) out of the log"
    assert any("lists" in warning for warning in warned[1:-1])
    assert warned[-1].startswith("draws=2 has no effect")
    assert Run.read(places["folder"]).warnings == warned


@pytest.mark.parametrize("largest, warned", [(2_000_000, True), (90, False)])
def test_ids_such_as_hashes_are_named_before_tables_have_a_row_for_each(
    largest, warned, tmp_path, capsys
):
    rng = np.random.default_rng(0)
    ids = rng.permuted(np.tile([largest - 1, largest], (40, 1)), axis=1)
    places = write(tmp_path / "log.parquet", rng.random((40, 2)) < 0.5, ids)
    given = [f"{key}={places[key]}" for key in ("dataset.path", "cache_dir")]
    config = resolved("model=pbm", "dataset=lists", "logger=[]", "progress=off", *given)
    with open_loggers(config) as logger:
        build(config, tmp_path, logger)
    printed = "".join(capsys.readouterr())
    for part in ("2,000,000", "80 documents", "dataset.pair_key=query_document"):
        assert (part in printed) is warned


def test_declared_columns_that_the_model_does_not_read_are_named(tmp_path, capsys):
    """A column that is packed and silently unused looks as if it had an effect."""
    places = write(tmp_path / "log.parquet", np.random.default_rng(0).random((40, 2)) < 0.5)
    log = pl.read_parquet(places["dataset.path"])
    log.with_columns(ad=pl.col("clicks"), price=pl.col("clicks")).write_parquet(
        places["dataset.path"]
    )
    given = [f"{key}={places[key]}" for key in ("dataset.path", "cache_dir")]
    given += [f"+dataset.columns.{name}={{dtype: int32}}" for name in ("ad", "price")]
    config = resolved("model=pbm", "dataset=lists", "logger=[]", "progress=off", *given)
    with open_loggers(config) as logger:
        build(config, tmp_path, logger)
    assert "declares: ad, price." in " ".join("".join(capsys.readouterr()).split())


@pytest.mark.parametrize(
    "error, reasons", [(ValueError, ["ValueError: it broke"]), (KeyboardInterrupt, [])]
)
def test_loggers_receive_the_error_that_ends_a_run(error, reasons):
    """Not that somebody interrupted it."""
    received = []

    class Alerts(Logger):
        def failed(self, reason):
            received.append(reason)

    config = resolved("model=pbm", "logger=[]", "progress=off")
    config.loggers["alerts"] = Alerts()
    with pytest.raises(error), open_loggers(config):
        raise error("it\nbroke")
    assert received == reasons


@pytest.mark.parametrize(
    "swapped, named", [(False, True), pytest.param(True, False, marks=pytest.mark.nightly)]
)
def test_an_export_names_positions_that_no_document_links(swapped, named, tmp_path, capsys):
    """Each document at one position only: clicks separate no examination from attraction, whatever intervals say."""
    rng = np.random.default_rng(0)
    ids = np.tile([[0, 1], [1, 0] if swapped else [0, 1]], (20, 1))
    places = write(tmp_path / "log.parquet", rng.random((40, 2)) < 0.5, ids)
    clickexp.run(report=False, **SMALL, **places)
    capsys.readouterr()
    export([str(tmp_path / "out")])
    printed = capsys.readouterr()
    for words in (
        "no document links the groups of positions 1 | 2",
        "1 of 2 documents have an open interval",
    ):
        assert (words in printed.err) is named and words not in printed.out
    examination = pl.read_csv(tmp_path / "out/export/examination.csv")
    documents = pl.read_parquet(tmp_path / "out/export/documents.parquet").sort("query_doc_id")
    for bound in ("low", "high"):
        assert documents[f"attraction_{bound}"].is_null().to_list() == [False, named]
        assert examination[f"propensity_{bound}"].is_null().to_list()[1] or not named
    assert documents["attraction_sd"].is_not_null().all()
