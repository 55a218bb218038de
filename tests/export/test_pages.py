"""Files with a row per document shown are predicted and ranked as the same log with a row per page."""

import numpy as np
import polars as pl
import pytest
from refusals import refuses
from stored_logs import write_table as write
from untrained import new_run

from clickexp.data import open_lists
from clickexp.data.ingest import pages
from clickexp.data.log_format import prepare
from clickexp.errors import FaultyLogError, UserError
from clickexp.export.export import export

COLUMNS = {"session": "visit", "query": "query", "document": "url", "rank": "slot", "click": "hit"}


def rows_of(seed, sessions=30):
    """Impressions of pages whose slots have gaps, with a price and a device, and words for queries."""
    rng, rows = np.random.default_rng(seed), []
    for session in range(sessions):
        slots = np.sort(1 + rng.permutation(5)[: rng.integers(1, 5)]).tolist()
        urls = rng.permutation(9)[: len(slots)].tolist()
        device = ("phone", "tablet")[session % 2]
        rows += [
            (
                f"s{session}",
                f"q{session % 3}",
                f"u{url}",
                slot,
                int(rng.random() < 0.4),
                float(rng.normal()),
                device,
            )
            for slot, url in zip(slots, urls, strict=True)
        ]
    names = [*COLUMNS.values(), "price", "device"]
    return pl.DataFrame(rows, names, orient="row")


def as_lists(rows):
    """A row per page, in the order in which pages begin."""
    rows = rows.unique(["visit", "url"], keep="first", maintain_order=True)
    lists = (
        rows.sort("slot")
        .group_by("visit")
        .agg(
            pl.col("query").first().alias("query_id"),
            pl.col("url").alias("query_doc_ids"),
            pl.col("hit").alias("clicks"),
            pl.col("slot").alias("positions"),
            pl.col("price"),
            pl.col("device").first(),
        )
    )
    order = rows["visit"].unique(maintain_order=True).to_list()
    return lists.sort(pl.col("visit").replace_strict(order, range(len(order)))).drop("visit")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """PBM on the log, whose examination is that of devices."""
    folder = tmp_path_factory.mktemp("pages")
    rows_of(0, 60).write_parquet(folder / "log.parquet")
    given = ["dataset=impressions", f"dataset.path={folder / 'log.parquet'}", "model=pbm"]
    given += [f"dataset.columns.{key}={name}" for key, name in COLUMNS.items()]
    given += ["+dataset.columns.device={dtype: category, per: session}", "examination_by=[device]"]
    return new_run(folder / "run", *given)


def shuffled(rows, seed=1):
    """The rows apart, and one of them twice; pages begin in another order."""
    order = np.random.default_rng(seed).permutation(len(rows))
    return pl.concat([rows[order], rows[order[:1]]])


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_rows_apart_are_predicted_as_pages(run, tmp_path, ending, monkeypatch):
    monkeypatch.setattr(pages, "_GATHERED", 4)
    rows = shuffled(rows_of(2))
    write(rows, tmp_path / f"rows.{ending}")
    as_lists(rows).write_parquet(tmp_path / "lists.parquet")
    found = {}
    for name in (f"rows.{ending}", "lists.parquet"):
        export(run, tmp_path / "out", predict=tmp_path / name)
        found[name] = pl.read_parquet(tmp_path / "out/predictions.parquet")
    first, second = found.values()
    assert first["documents"].to_list() == second["documents"].to_list()
    assert first["query"].to_list() == second["query"].to_list()
    for name in ("click_probability", "conditional_click_probability", "relevance"):
        np.testing.assert_allclose(
            first[name].explode().to_numpy(), second[name].explode().to_numpy(), rtol=1e-6
        )


def test_names_may_be_given_and_those_of_the_run_are_known(run, tmp_path):
    rows = rows_of(3, 5)
    new = {"visit": "page", "url": "thing", "slot": "at", "hit": "went"}
    rows.rename(new).write_csv(tmp_path / "other.csv", separator=";")
    rows.write_csv(tmp_path / "same.csv")
    scores = []
    options = [f"columns.{key}={new[COLUMNS[key]]}" for key in ("session", "document", "rank")]
    for name, given in (("other.csv", [*options, "columns.click=went"]), ("same.csv", [])):
        export(run, tmp_path, predict=tmp_path / name, options=given)
        scores.append(pl.read_parquet(tmp_path / "predictions.parquet")["relevance"].to_list())
    assert scores[0] == scores[1]


def spoilt(rows):
    """A log with faults, and its rows that are left: others of their pages, where these were not clicked."""
    first = dict(zip(rows["visit"].reverse(), reversed(range(len(rows)))))
    unclicked, unknown, alone = (first[visit] for visit in ("s3", "s4", "s5"))
    at = pl.int_range(pl.len())
    rows = rows.with_columns(hit=pl.when(at == unclicked).then(0).otherwise("hit"))
    faulty = rows.with_columns(
        url=pl.when(at != unclicked).then("url"),
        hit=pl.when(at != unknown).then("hit"),
        visit=pl.when(at != alone).then("visit"),
    )
    return faulty, rows.filter(~at.is_in([unclicked, alone]), pl.col("visit") != "s4")


def without_faults(run, source):
    """What is predicted for the rows of a file that have no faults."""
    export(run, source.parent / "out", predict=source, options=["invalid=drop"])
    return pl.read_parquet(source.parent / "out/predictions.parquet")


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_faulty_rows_are_left_out_where_asked_for(run, tmp_path, ending, capsys):
    faulty, left = spoilt(rows_of(5))
    write(faulty, tmp_path / f"faulty.{ending}")
    write(left, tmp_path / f"left.{ending}")
    first, second = (
        without_faults(run, tmp_path / f"{name}.{ending}") for name in ("faulty", "left")
    )
    assert first.equals(second)
    said = capsys.readouterr().err
    assert all(f"missing {key} 1" in said for key in ("session", "document", "click"))
    with refuses(FaultyLogError, "3 kinds of faults", "invalid=drop leaves out") as caught:
        export(run, tmp_path / "out", predict=tmp_path / f"faulty.{ending}")
    assert caught.value.options == {"invalid": "drop"}


def test_faulty_lists_are_left_out(run, tmp_path, capsys):
    lists = as_lists(rows_of(6))
    faulty = lists.with_columns(
        clicks=pl.when(pl.int_range(pl.len()) == 2).then([7]).otherwise("clicks"),
        query_id=pl.when(pl.int_range(pl.len()) != 4).then("query_id"),
    )
    faulty.write_parquet(tmp_path / "faulty.parquet")
    lists.filter(~pl.int_range(pl.len()).is_in([2, 4])).write_parquet(tmp_path / "left.parquet")
    first, second = (
        without_faults(run, tmp_path / f"{name}.parquet") for name in ("faulty", "left")
    )
    assert first.equals(second)
    said = capsys.readouterr().err
    assert all(f"{kind} 1" in said for kind in ("missing query ids", "differing lengths"))


def test_ranks_from_0_are_no_faults_to_leave_out(run, tmp_path):
    rows = rows_of(7).with_columns(pl.col("slot") - 1)
    rows.write_parquet(tmp_path / "rows.parquet")
    with refuses(FaultyLogError, "slot holds 0", "first_rank=0") as caught:
        export(run, tmp_path / "out", predict=tmp_path / "rows.parquet")
    assert caught.value.options == {"first_rank": "0"}


def test_rows_are_ranked_by_page_or_by_query(run, tmp_path):
    """Candidates have no ranks and clicks, and may have no pages."""
    rows = rows_of(4, 9)
    candidates = rows.select("visit", "query", "url")
    candidates.write_csv(tmp_path / "pages.csv")
    candidates.drop("visit").write_csv(tmp_path / "queries.csv")
    export(run, tmp_path, rank=tmp_path / "pages.csv")
    by_page = pl.read_parquet(tmp_path / "ranking.parquet")
    assert by_page["list"].n_unique() == 9 and len(by_page) == len(candidates)
    export(run, tmp_path, rank=tmp_path / "queries.csv")
    by_query = pl.read_parquet(tmp_path / "ranking.parquet")
    assert by_query["list"].n_unique() == 3 and len(by_query) == len(candidates)
    first = by_query.unique(["query", "document"]).sort("query", "document")["score"]
    second = by_page.unique(["query", "document"]).sort("query", "document")["score"]
    assert first.to_list() == second.to_list()


def candidates_without_clicks(folder, run, name):
    """Ranks and predicts lists whose columns are called as those of the log, without clicks; returns the scores."""
    lists = as_lists(rows_of(5)).select(query="query_id", items="query_doc_ids")
    lists.write_parquet(folder / f"{name}.parquet")
    export(run, folder / name, rank=folder / f"{name}.parquet", predict=folder / f"{name}.parquet")
    predicted = pl.read_parquet(folder / f"{name}/predictions.parquet")
    assert predicted["relevance"].list.len().to_list() == lists["items"].list.len().to_list()
    return pl.read_parquet(folder / f"{name}/ranking.parquet")


def test_lists_without_clicks_are_read_as_those_of_the_run(tmp_path):
    """Also where a prepared log has kept no names of columns: lists of what is called as documents are."""
    log = as_lists(rows_of(0, 60)).select(query="query_id", items="query_doc_ids", clicks="clicks")
    log.write_parquet(tmp_path / "log.parquet")
    named = {"path": tmp_path / "log.parquet", "pair_key": "query_document"}
    named |= {"columns.query_doc_ids": "items", "columns.query_id": "query"}
    of_lists = [f"dataset.{key}={value}" for key, value in named.items()]
    run = new_run(tmp_path / "run", "dataset=lists", *of_lists, "model=pbm")
    stated = {"query_doc_ids": "items", "query_id": "query"}
    prepare(open_lists.read, "lists", tmp_path / "log.parquet", tmp_path / "prepared",
            pair_key="query_document", columns=stated)  # fmt: skip
    of_prepared = ["dataset=prepared", f"dataset.path={tmp_path / 'prepared'}", "model=pbm"]
    prepared = new_run(tmp_path / "of_prepared", *of_prepared)
    first, second = (
        candidates_without_clicks(tmp_path, of, name)
        for of, name in ((run, "first"), (prepared, "second"))
    )
    assert first.equals(second) and first["document"].null_count() == 0


def test_features_come_from_the_rows(tmp_path):
    """Of columns, and of a list of numbers per row."""
    rows = rows_of(5, 40).with_columns(
        query_doc_features=pl.concat_list(pl.col("price"), pl.col("price") ** 2)
    )
    rows.write_parquet(tmp_path / "log.parquet")
    given = ["dataset=impressions", f"dataset.path={tmp_path / 'log.parquet'}", "model=pbm"]
    given += [f"dataset.columns.{key}={name}" for key, name in COLUMNS.items()]
    given += ["parameter@attraction=linear"]
    for name, features in (("columns", "[price]"), ("vectors", "[query_doc_features]")):
        run = new_run(tmp_path / name, *given, f"dataset.features={features}")
        lists = as_lists(rows).with_columns(
            query_doc_features=pl.col("price").map_elements(
                lambda each: [[x, x * x] for x in each], pl.List(pl.List(pl.Float64))
            )
        )
        lists.drop("device").write_parquet(tmp_path / "lists.parquet")
        rows.drop("device", "hit").write_parquet(tmp_path / "rows.parquet")
        scores = []
        for file in ("rows.parquet", "lists.parquet"):
            export(run, tmp_path, rank=tmp_path / file)
            ranking = pl.read_parquet(tmp_path / "ranking.parquet")
            scores.append(ranking.sort("list", "document")["score"].to_list())
        assert scores[0] == pytest.approx(scores[1], rel=1e-6)


def test_faults_of_rows_are_named_in_their_file(run, tmp_path):
    rows = rows_of(6, 9)
    bad = rows.with_columns(slot=pl.when(pl.int_range(pl.len()) == 3).then(0).otherwise("slot"))
    bad.write_parquet(tmp_path / "bad.parquet")
    with refuses(UserError, "bad.parquet, row 3", "slot holds 0"):
        export(run, tmp_path, predict=tmp_path / "bad.parquet")
    rows.with_columns(pl.col("slot") + 90).write_parquet(tmp_path / "far.parquet")
    with refuses(UserError, "far.parquet", "documents at position 9"):
        export(run, tmp_path, predict=tmp_path / "far.parquet")
    with refuses(UserError, "visits", "The keys are"):
        export(run, tmp_path, predict=tmp_path / "far.parquet", options=["columns.visits=visit"])
    rows.drop("visit").write_parquet(tmp_path / "bare.parquet")
    with refuses(UserError, "bare.parquet", "columns.session=NAME"):
        export(run, tmp_path, predict=tmp_path / "bare.parquet", options=["columns.document=url"])


def test_lists_of_structs_are_pages(run, tmp_path):
    """As those of BigQuery and Spark, with a row per page."""
    rows = rows_of(8, 9)
    struct = pl.struct(id="url", rank="slot", click=pl.col("hit").cast(pl.Boolean))
    pages = rows.group_by("visit", maintain_order=True).agg(
        pl.col("query").first(), struct.alias("shown"), pl.col("device").first()
    )
    pages.drop("visit").write_parquet(tmp_path / "structs.parquet")
    rows.write_parquet(tmp_path / "rows.parquet")
    tables = []
    for name in ("structs", "rows"):
        export(run, tmp_path, predict=tmp_path / f"{name}.parquet")
        tables.append(pl.read_parquet(tmp_path / "predictions.parquet"))
    assert tables[0].equals(tables[1])


def test_clicks_that_options_leave_out_condition_nothing(run, tmp_path):
    """Also where another column is called as those of lists are, such as clicks on earlier days."""
    rows = rows_of(9, 5).with_columns(clicks=pl.lit(17))
    rows.write_parquet(tmp_path / "rows.parquet")
    export(run, tmp_path, predict=tmp_path / "rows.parquet", options=["columns.click=null"])
    assert "conditional_click_probability" not in pl.read_parquet_schema(
        tmp_path / "predictions.parquet"
    )


def test_candidates_of_one_rank_are_all_ranked(run, tmp_path):
    rows = rows_of(9, 5).with_columns(slot=pl.lit(1))
    rows.select("visit", "query", "url", "slot").write_parquet(tmp_path / "rows.parquet")
    export(run, tmp_path, rank=tmp_path / "rows.parquet")
    assert len(pl.read_parquet(tmp_path / "ranking.parquet")) == len(rows)


def test_rows_of_bandits_are_pages_as_in_the_log_of_the_run(tmp_path):
    """Lists of one document at positions of their own, which documents without a query have."""
    rng = np.random.default_rng(0)
    columns = {
        "item_id": rng.integers(0, 5, 90),
        "position": rng.integers(1, 4, 90),
        "click": rng.integers(0, 2, 90),
        "propensity_score": np.full(90, 0.2),
    }
    pl.DataFrame(columns).write_csv(tmp_path / "log.csv")
    run = new_run(
        tmp_path / "run", "dataset=open_bandit", f"dataset.path={tmp_path / 'log.csv'}", "model=pbm"
    )
    export(run, predict=tmp_path / "log.csv")
    found = pl.read_parquet(run / "export/predictions.parquet")
    assert found["documents"].to_list() == [[str(each)] for each in columns["item_id"].tolist()]
