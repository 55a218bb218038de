"""Exports of models that read what follows from pairs and from search sessions."""

import dataclasses
from itertools import product

import numpy as np
import polars as pl
import pytest
from flax import nnx
from refusals import refuses
from small_logs import fill_tables, sigmoid
from untrained import new_run

from clickexp.data import Sessions, open_lists
from clickexp.data.context import CONTEXT
from clickexp.data.folders import temporary
from clickexp.data.history import HISTORY
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.names import NamesFile, read_names
from clickexp.errors import UserError
from clickexp.export.export import export
from clickexp.export.files import Reading, ShownLists, Source
from clickexp.export.fitted import configuration, fitted
from clickexp.export.predict import document_outputs, predictor, single_documents
from clickexp.export.tables import lists_to_predict, write_predictions
from clickexp.models import DynamicBayesianNetwork, PositionBasedModel
from clickexp.parameters import ContextParameterConfig, EmbeddingParameterConfig, SumParameterConfig
from clickexp.simulation import simulate

QUERIES, DOCUMENTS, LISTS, RANKS = 6, 9, 60, 3
TEST = 24
"""Lists of the last users."""
TABLES = ("pair", "document", "query")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Impressions of 20 users, whose lists follow one another."""
    rng, rows = np.random.default_rng(0), []
    for page in range(LISTS):
        query, shown = rng.integers(QUERIES), rng.permutation(DOCUMENTS)[:RANKS]
        own = {"session": page, "query": f"q{query}", "search_session": f"user {page // 3}"}
        for rank, document in enumerate(shown, start=1):
            rows.append(
                {**own, "document": f"d{document}", "rank": rank, "click": int(rng.random() < 0.4)}
            )
    file = tmp_path_factory.mktemp("log") / "impressions.csv"
    pl.DataFrame(rows).write_csv(file)
    return file


def in_context(model):
    """With tables of random numbers, and of PBM attraction that context moves."""
    fill_tables(model)
    if isinstance(model, PositionBasedModel):
        model.attraction.terms["context"].weight[...] += 2.0
    return model


def as_built(model):
    return model


def untrained(folder, log, *overrides, fill=in_context):
    """The folder of a run that was not trained, and its parameters."""
    named = any(each.startswith("dataset=") for each in overrides)
    dataset = [] if named else ["dataset=impressions"]
    run = new_run(folder / "run", *dataset, f"dataset.path={log}", *overrides, fill=fill)
    return run, dict(np.load(run / "model.npz"))


POINTS = [f"+attraction.terms.{name}.posterior=none" for name in TABLES[:2]] + [
    "attraction.terms.query.posterior=none"
]


def test_documents_have_the_sum_of_their_terms_whatever_the_context(log, tmp_path):
    overrides = [
        "model=pbm",
        "parameter@attraction=hierarchical",
        "+context=both",
        "context.role=attraction",
    ]
    run, parameters = untrained(tmp_path, log, *overrides, *POINTS)
    export(run, predict="")
    found = pl.read_parquet(run / "export/documents.parquet")
    assert len(found) == len(pl.read_csv(log).select("query", "document").unique())
    prefix = "attraction/terms/tower/terms"
    tables = {
        name: parameters[f"{prefix}/{name}/table"][:, 0].astype(np.float64) for name in TABLES
    }
    order = {
        name: pl.read_csv(log)[name].unique(maintain_order=True).to_list()
        for name in ("query", "document")
    }
    for row in found.iter_rows(named=True):
        ids = {name: order[name].index(row[name]) + 1 for name in order} | {
            "pair": row["query_doc_id"]
        }
        logit = (
            sum(tables[name][ids[name]] for name in TABLES) + parameters[f"{prefix}/pair/baseline"]
        )
        assert row["attraction"] == pytest.approx(sigmoid(logit), rel=1e-4)
        assert row["relevance"] == row["attraction"]
    assert (
        pl.read_parquet(run / "export/predictions.parquet")["click_probability"].list.len() == RANKS
    ).all()


def test_a_file_has_the_columns_that_its_log_declares(tmp_path):
    """Sessions show the same document under several pairs, which `document_ids` tells."""
    rng, count = np.random.default_rng(2), 120
    shown = np.array([rng.permutation(DOCUMENTS)[:RANKS] + 1 for _ in range(count)])
    lists = {
        "query_doc_ids": (shown + DOCUMENTS * rng.integers(QUERIES, size=(count, 1))).tolist(),
        "document_ids": shown.tolist(),
        "clicks": (rng.random(shown.shape) < 0.4).tolist(),
        "search_session": (np.arange(count) // 4).tolist(),
    }
    pl.DataFrame(lists).write_parquet(tmp_path / "log.parquet")
    overrides = [
        "dataset=lists",
        "+dataset.columns.document_ids={dtype: int32}",
        "model=pbm",
        "+context=document",
    ]
    overrides.append("context.role=attraction")
    halves = [
        "dataset.train_sessions=[0,60]",
        "dataset.val_sessions=[60,64]",
        "dataset.test_sessions=[64,120]",
    ]
    run, _ = untrained(tmp_path, tmp_path / "log.parquet", *overrides, *halves)
    predicted = Predicting(run)
    renamed = pl.DataFrame(lists).rename({"document_ids": "doc"})
    renamed.write_parquet(tmp_path / "renamed.parquet")
    of_file = clicks(predicted(tmp_path / "renamed.parquet", document_ids="doc"))
    np.testing.assert_allclose(of_file[64:], clicks(predicted()), rtol=1e-5)


def test_a_new_pair_borrows_from_its_document_and_its_query(log, tmp_path):
    """As does one of a new query from its document; a new document under a known query has its query."""
    run, parameters = untrained(
        tmp_path, log, "model=pbm", "parameter@attraction=hierarchical", *POINTS, fill=as_built
    )
    with np.load(run / "model.npz") as stored:
        parameters = dict(stored)
    tables = {name: parameters[f"attraction/terms/{name}/table"] for name in TABLES}
    rng = np.random.default_rng(1)
    for name in TABLES[1:]:
        tables[name][1:] = rng.normal(size=tables[name][1:].shape)
    np.savez(run / "model.npz", **parameters)
    order = {
        name: pl.read_csv(log)[name].unique(maintain_order=True).to_list()
        for name in ("query", "document")
    }
    shown = set(pl.read_csv(log).select("query", "document").unique().rows())
    query, document = next(
        pair for pair in product(order["query"], order["document"]) if pair not in shown
    )
    rows = [(query, document), ("new", document), (query, "new"), ("new", "new")]
    lists = {"query_id": [row[0] for row in rows], "query_doc_ids": [[row[1]] for row in rows]}
    pl.DataFrame(lists).write_parquet(tmp_path / "lists.parquet")
    for task in ("predict", "rank"):
        export(run, **{task: tmp_path / "lists.parquet"})
    found = pl.read_parquet(run / "export/predictions.parquet")["relevance"].list.first().to_numpy()
    numbers = {
        name: {key: number for number, key in enumerate(keys, 1)} for name, keys in order.items()
    }
    ids = [
        {name: numbers[name].get(key, 0) for name, key in zip(numbers, row, strict=True)}
        for row in rows
    ]
    baseline = parameters["attraction/terms/pair/baseline"]
    logits = [
        sum(tables[name][each[name], 0] for name in each) + tables["pair"][0, 0] + baseline
        for each in ids
    ]
    np.testing.assert_allclose(found, sigmoid(np.array(logits)).reshape(-1), rtol=1e-5)
    assert len(set(found)) == 4
    ranking = pl.read_parquet(run / "export/ranking.parquet").sort("list")
    np.testing.assert_array_equal(np.argsort(ranking["score"]), np.argsort(found))


def test_a_run_whose_terms_have_posteriors_by_default_is_read(log, tmp_path):
    overrides = ["model=dbn", "parameter@attraction=hierarchical", "+context=list"]
    run, parameters = untrained(tmp_path, log, *overrides, fill=as_built)
    assert parameters["attraction/terms/tower/terms/pair/table"].shape[1] > 1
    model = fitted(run).model
    terms = model.attraction.terms["tower"].terms
    assert all(terms[name].table.get_value().has_posteriors for name in TABLES)


def test_context_of_satisfaction_leaves_documents_as_in_a_new_session():
    data = simulate(
        DynamicBayesianNetwork, sessions=300, queries=9, documents_per_query=4, positions=3
    )
    columns = {name: data.train.column(name) for name in ("query_doc_ids", "clicks", "lengths")}
    train = Sessions.from_arrays(**columns, session_ids=np.arange(data.train.count) // 4)
    data = dataclasses.replace(data, train=train.with_pairs(data.query_doc_pairs))
    terms = {
        "tower": EmbeddingParameterConfig(posterior="none"),
        "context": ContextParameterConfig(),
    }
    satisfaction = SumParameterConfig(terms)
    model = DynamicBayesianNetwork(
        data.query_doc_pairs, satisfaction=satisfaction, rngs=nnx.Rngs(0)
    )
    model.satisfaction.terms["context"].weight[...] += 3.0
    documents = single_documents(data, np.arange(1, 5))
    (_, values) = next(predictor(model, document_outputs)(documents))
    tower = model.satisfaction.terms["tower"]
    expected = tower.prob({"query_doc_ids": np.arange(1, 5)[:, None]})
    np.testing.assert_allclose(values["satisfaction"], expected, rtol=1e-5)


def lists_of(log, file, lists=TEST, **columns):
    """The last impressions as a row per list."""
    table = pl.read_csv(log).sort("session", "rank").group_by("session", maintain_order=True)
    rows = table.agg("document", "click", pl.col("query", "search_session").first()).tail(lists)
    names = {"document": "query_doc_ids", "click": "clicks", "query": "query_id"}
    rows.drop("session").rename(names).with_columns(**columns).write_parquet(file)
    return file


OF_CACM = [
    "model=cacm",
    "model.hidden=4",
    "model.documents.dim=3",
    "model.queries.dim=3",
    "trainer.epochs=8",
]
READERS = {
    "context": [
        "model=pbm",
        "parameter@attraction=hierarchical",
        "+context=both",
        "context.role=attraction",
        *POINTS,
    ],
    "history": OF_CACM,
    "history of pairs": [*OF_CACM, "model.documents.use_feature=query_doc_ids"],
}


PARTS = [
    "dataset.train_sessions=[0,30]",
    "dataset.val_sessions=[30,36]",
    "dataset.test_sessions=[36,60]",
]


class Predicting:
    """Predictions of a run as an export has them, for the test sessions or for files."""

    def __init__(self, run):
        self.folder = run
        self.model, self.log, _ = fitted(run)
        self.names = None if self.log.names is None else read_names(self.log.names)
        self.named = configuration(run)["dataset"].get("columns") or {}

    def lists(self, source, scratch, **columns):
        source = Source(source, {"columns": columns}, self.named)
        return lists_to_predict(self.model, self.log, source, self.names, "none", scratch)

    def __call__(self, source=None, **columns):
        with temporary() as scratch:
            names = None if self.log.names is None else NamesFile(self.log.names)
            own = ShownLists.of_log(self.log.test, names)
            lists = own if source is None else self.lists(source, scratch, **columns)
            write_predictions(self.model, lists, self.folder / "predictions.parquet")
        return pl.read_parquet(self.folder / "predictions.parquet")


def clicks(predictions):
    return np.array(predictions["click_probability"].to_list())


@pytest.mark.parametrize(
    "reader",
    [
        "context",
        *(
            pytest.param(each, marks=pytest.mark.nightly)
            for each in ("history", "history of pairs")
        ),
    ],
)
def test_files_are_predicted_with_the_context_of_their_search_sessions(
    reader, log, tmp_path, capsys, monkeypatch
):
    run, _ = untrained(tmp_path, log, *READERS[reader], *PARTS)
    predicted = Predicting(run)
    of_log = clicks(predicted())
    file = lists_of(log, tmp_path / "lists.parquet")
    of_file, none = predicted(file), predicted(file, search_session=None)
    assert "predicted as the first of its user" not in capsys.readouterr().err
    pl.read_parquet(file).drop("search_session").write_parquet(tmp_path / "unnamed.parquet")
    assert predicted(tmp_path / "unnamed.parquet").equals(none)
    warning = capsys.readouterr().err
    assert (
        "predicted as the first of its user" in warning and "columns.search_session=NAME" in warning
    )
    np.testing.assert_allclose(clicks(of_file), of_log, rtol=1e-5)
    first = np.arange(TEST) % 3 == 0
    np.testing.assert_allclose(clicks(none)[first], of_log[first], rtol=1e-5)
    assert (np.abs(clicks(none) - of_log)[~first].max(axis=1) > 1e-4).all()
    unclicked = tmp_path / "unclicked.parquet"
    pl.read_parquet(file).drop("clicks").write_parquet(unclicked)
    with refuses(UserError, "unclicked.parquet", "column clicks", "columns.search_session=null"):
        predicted(unclicked)
    predicted(unclicked, search_session=None)
    monkeypatch.setattr(SourceTable, "batch_rows", 4)  # which cuts search sessions
    (tmp_path / "files").mkdir()
    pl.read_parquet(file)[:8].write_parquet(tmp_path / "files/a.parquet")
    pl.read_parquet(file)[8:].write_parquet(tmp_path / "files/b.parquet")
    np.testing.assert_allclose(clicks(predicted(tmp_path / "files")), of_log, rtol=1e-5)


@pytest.mark.parametrize("reader", ["context", pytest.param("history", marks=pytest.mark.nightly)])
def test_files_are_in_the_order_that_the_run_was_trained_with(reader, log, tmp_path):
    """Times run against the order of the rows; users have the name that the log gives them."""
    timed = (
        pl.read_csv(log).with_columns(when=-pl.col("session")).rename({"search_session": "user"})
    )
    timed.write_csv(tmp_path / "timed.csv")
    named = ["dataset.columns.time=when", "dataset.columns.search_session=user"]
    run, _ = untrained(tmp_path, tmp_path / "timed.csv", *READERS[reader], *named, *PARTS)
    predicted = Predicting(run)
    own = clicks(predicted())
    pages = {name: pl.Series(-np.arange(TEST)) for name in ("when", "at")}
    file = lists_of(log, tmp_path / "lists.parquet", **pages)
    pl.read_parquet(file).rename({"search_session": "user"}).write_parquet(file)
    for columns in ({}, {"time": "at"}):
        np.testing.assert_allclose(clicks(predicted(file, **columns)), own, rtol=1e-5)
    assert np.abs(clicks(predicted(file, time=None)) - own).max() > 1e-4
    lists = predicted.lists(file, tmp_path / "scratch").sessions
    for name in (*CONTEXT, *HISTORY):
        own = predicted.log.test.column(name)
        np.testing.assert_array_equal(lists.column(name), own, err_msg=name)
    pl.read_parquet(file).drop("when").write_parquet(tmp_path / "unnamed.parquet")
    with refuses(UserError, "'when' for time", "columns.time to one of"):
        predicted(tmp_path / "unnamed.parquet")
    predicted.named = {"search_session": "user"}
    with refuses(UserError, "columns.time=NAME", "columns.time=null"):
        predicted(file)


def test_a_click_on_a_document_that_the_log_does_not_have_is_context(log, tmp_path):
    """Its session shows it again, which the file tells by its name."""
    run, _ = untrained(tmp_path, log, *READERS["context"], *PARTS)
    lists = {
        "query_id": ["q0", "q0"],
        "query_doc_ids": [["new", "d1"], ["newer", "new"]],
        "clicks": [[1, 0], [0, 0]],
        "search_session": ["user", "user"],
    }
    pl.DataFrame(lists).write_parquet(tmp_path / "lists.parquet")
    found = Predicting(run).lists(tmp_path / "lists.parquet", tmp_path / "scratch").sessions
    np.testing.assert_array_equal(found.column("document_seen"), [[0, 0], [0, 2]])


@pytest.mark.parametrize("overrides", [["model=ubm"], ["model=pbm", "+context=list"]])
def test_lists_of_any_number_are_predicted_and_ranked_without_context(
    overrides, log, tmp_path, monkeypatch, capsys
):
    """Relevance is that in a new search session, so that ranking needs none."""
    run, _ = untrained(tmp_path, log, *overrides, fill=as_built)
    (tmp_path / "files").mkdir()
    sessions = pl.Series(np.arange(LISTS) / 2.0)
    lists = lists_of(log, tmp_path / "lists.parquet", LISTS, search_session=sessions)
    pl.read_parquet(lists)[:50].write_parquet(tmp_path / "files/a.parquet")
    pl.read_parquet(lists)[50:].write_parquet(tmp_path / "files/b.parquet")
    monkeypatch.setattr(SourceTable, "batch_rows", 10)
    export(run, rank=tmp_path / "files")
    assert pl.read_parquet(run / "export/ranking.parquet")["list"].max() == LISTS
    if "+context=list" not in overrides:
        assert len(Predicting(run)(tmp_path / "files")) == LISTS
        assert "search" not in capsys.readouterr().err


def test_unknown_documents_are_not_ranked_by_the_row_of_a_document(tmp_path):
    """Where ids of the log start at 0; where they start at 1, row 0 is that of no document."""
    for least in (0, 1):
        ids = [[least, least + 1]] * 40
        pl.DataFrame({"query_doc_ids": ids, "clicks": [[1, 0]] * 40}).write_parquet(
            tmp_path / "log.parquet"
        )
        pl.DataFrame({"query_doc_ids": [[999, 1]]}).write_parquet(tmp_path / "lists.parquet")
        dataset = open_lists(tmp_path / "log.parquet", cache=tmp_path / str(least))
        (tmp_path / f"scratch-{least}").mkdir()
        source, scratch = Source(tmp_path / "lists.parquet"), tmp_path / f"scratch-{least}"
        reading = Reading(source, dataset, None, ["query_doc_ids"], to_rank=True)
        if least == 0:
            with refuses(
                UserError, "1 of the 2 documents", "not in the log", "dataset.pair_key=document"
            ):
                reading.lists(scratch)
        else:
            found = reading.lists(scratch).sessions
            np.testing.assert_array_equal(found.column("query_doc_ids"), [[0, 1]])
