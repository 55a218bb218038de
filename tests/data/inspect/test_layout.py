"""Layouts of logs that nobody has named, by names that people give their columns."""

import errno
import json

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refuses

from clickexp.data import open_lists
from clickexp.data.ingest.source_table import TextForm
from clickexp.data.ingest.tables import open_tables
from clickexp.data.inspect.layout import detect
from clickexp.errors import DataError
from clickexp.experiment.formats import FORMATS

HEADERS = {
    "visit,query,doc,rank,click": {"session": "visit"},
    "visit_id,keyword,item_id,position,clicked": {"session": "visit_id", "query": "keyword"},
    "sid,q,url,pos,is_click": {"session": "sid", "document": "url"},
    "search_id,query,sku,slot,clicked": {"session": "search_id", "document": "sku"},
    "request_id,query,product,slot,clicked": {"session": "request_id"},
    "pageview,query,product,slot,clicked": {"session": "pageview"},
    "pageview_id,visit_id,query,doc,rank,click": {"session": "pageview_id", "search_session": "visit_id"},
    "session_id,page,query,doc,rank,click": {"session": "session_id"},
    "session,request_id,query,doc,rank,click": {},
    "session,query,Product Name,rank,click": {"document": "Product Name"},
    "session,query,product_name,sku,rank,click": {"document": "sku"},
    "Sitzungs-ID,Suchbegriff,Produkt,Position,Klick": {"session": "Sitzungs-ID", "query": "Suchbegriff"},
    "session,Anfrage,Artikelnummer,Rang,geklickt": {"query": "Anfrage", "document": "Artikelnummer"},
}  # fmt: skip


def table(folder, header, *rows):
    (folder / "log.csv").write_text("\n".join([header, *rows]))
    return folder / "log.csv"


@pytest.mark.parametrize("header", HEADERS)
def test_names_that_people_give_are_keys(header, tmp_path):
    found = detect(table(tmp_path, header, *["1,1,1,1,1,1"[: header.count(",") * 2 + 1]]), FORMATS)
    assert found.format == "impressions"
    expected = {f"columns.{key}": name for key, name in HEADERS[header].items()}
    assert expected.items() <= found.options.items()
    sessions = {"columns.session", "columns.search_session"} & found.options.keys()
    assert sessions <= expected.keys()


@pytest.mark.parametrize(
    "header", ["Query,Page,Clicks,Impressions,CTR,Position", "query,url,rank,shown,clicks"]
)
def test_counts_are_no_impressions_and_no_lists(header, tmp_path):
    row = "lathe,/a,9,20,45%,1" if "CTR" in header else "lathe,/a,1,20,9"
    found = detect(table(tmp_path, header, row), FORMATS)
    assert found.format == "counts"
    dataset = FORMATS["counts"](
        tmp_path,
        columns={key.partition(".")[2]: name for key, name in found.options.items()},
    )
    assert sum(part.clicks_total for part in dataset.parts.values()) == 9
    with refuses(DataError, "line 2: rank holds '1.5'", "a mean over impressions"):
        mean = row.removesuffix("1") + "1.5" if "CTR" in header else "lathe,/a,1.5,20,9"
        FORMATS["counts"](
            table(tmp_path, header, mean),
            columns={key.partition(".")[2]: name for key, name in found.options.items()},
            invalid="drop",
        )


def shown(**fields):
    """Four pages of two documents in structs."""
    structs = [[{key: values[at] for key, values in fields.items()} for at in (0, 1)]] * 4
    return pl.DataFrame({"q": ["a", "b", "a", "b"], "hits": structs})


def test_structs_in_lists_are_impressions_where_they_have_ranks(tmp_path):
    shown(doc_id=["x", "y"], rank=[2, 1], clicked=[1, 0]).write_parquet(tmp_path / "log.parquet")
    found = detect(tmp_path / "log.parquet", FORMATS)
    assert found.format == "impressions"
    assert found.options == {
        "columns.query": "q",
        "columns.document": "hits.doc_id",
        "columns.rank": "hits.rank",
        "columns.click": "hits.clicked",
        "columns.session": "null",
    }


def test_structs_in_lists_are_lists_where_they_have_none(tmp_path):
    shown(id=["x", "y"], click=[1, 0]).write_ndjson(tmp_path / "log.jsonl")
    found = detect(tmp_path / "log.jsonl", FORMATS)
    assert found.format == "lists"
    columns = {key.partition(".")[2]: name for key, name in found.options.items() if "." in key}
    assert columns == {"query_doc_ids": "hits.id", "clicks": "hits.click", "query_id": "q"}
    dataset = open_lists(
        tmp_path / "log.jsonl", columns=columns, pair_key=found.options["pair_key"]
    )
    assert dataset.train.clicks_total == dataset.train.count


def test_what_is_read_besides_is_not_called_unread(tmp_path):
    header = "session,query,document,rank,click,label,price"
    found = detect(table(tmp_path, header, "1,1,1,1,1,1,1"), FORMATS)
    assert found.left_out == ["price"]


def test_lists_in_cells_of_text_are_columns_by_name_like_those_of_parquet(tmp_path):
    found = detect(table(tmp_path, "query_doc_ids,clicks,keyword,price", "3 5,0 1,jax,1"), FORMATS)
    assert "by the names of columns: query_doc_ids, clicks, keyword as query_id" in found.reason
    assert found.left_out == ["price"]
    # text is numbered
    assert found.options == {"columns.query_id": "keyword", "pair_key": "query_document"}


def test_a_column_that_an_option_names_is_read(tmp_path):
    file = table(tmp_path, "session,query,document,rank,click,Event_Time,price", "1,1,1,1,1,1,1")
    found = detect(file, FORMATS)
    assert found.left_out == ["Event_Time", "price"]
    named = detect(file, FORMATS, {"time": "Event_Time"})
    assert named.reason.endswith("Event_Time as time")
    assert named.left_out == ["price"]
    counts = table(tmp_path, "query,document,rank,impressions,clicks,date", "1,1,1,1,1,1")
    assert detect(counts, FORMATS).left_out == ["date"]


def test_all_columns_that_are_read_are_named(tmp_path):
    """Those of the options, and those that are read where they are there."""
    header = "query,query_doc_ids,clicks,positions,labels,when,note"
    file = table(tmp_path, header, "jax,3 5,0 1,1 2,0 1,2025-03-01,x")
    found = detect(file, FORMATS, {"time": "when", "search_session": None})
    taken = "query_doc_ids, clicks, query as query_id, positions, labels, when as time"
    assert found.reason.endswith(f"by the names of columns: {taken}")
    assert found.left_out == ["note"]
    assert detect(file, FORMATS).left_out == ["when", "note"]


def test_rows_of_bandits_say_what_a_page_may_be(tmp_path):
    file = table(tmp_path, "timestamp,item_id,position,click", "1,2,1,0")
    with refuses(DataError, "columns.session=null pair_key=document") as caught:
        detect(file, FORMATS)
    names = {"columns.document": "item_id", "columns.rank": "position"}
    unknown = {"columns.session": "NAME", "columns.query": "NAME"}
    assert caught.value.options == {"format": "impressions", **names, **unknown}


def test_rows_without_ranks_ask_for_them(tmp_path):
    file = table(tmp_path, "session,query,document,click", "1,1,1,0")
    with refuses(DataError, "session, query, document, click", "as ranks are", "order") as caught:
        detect(file, FORMATS)
    assert caught.value.options == {"format": "impressions", "columns.rank": "NAME"}


def test_clicks_apart_from_impressions_are_to_be_joined(tmp_path):
    """The columns of one of the files alone would mislead."""
    (tmp_path / "clicks.csv").write_text("session,document\n1,a\n")
    (tmp_path / "shown.csv").write_text("session,document,rank\n1,a,1\n")
    parts = (
        "clicks.csv: session, document;",
        "shown.csv: session, document, rank",
        "From a warehouse",
    )
    with refuses(DataError, *parts):
        detect(tmp_path, FORMATS)


def test_unknown_names_are_asked_for_in_a_command(tmp_path):
    with refuses(DataError, "do not show the layout", "session, query (optional)") as caught:
        detect(table(tmp_path, "besuch,query,sku,platz,clicked", "1,1,1,1,1"), FORMATS)
    known = {"columns.document": "sku", "columns.click": "clicked"}
    unknown = {"columns.session": "NAME", "columns.rank": "NAME"}
    assert caught.value.options == {"format": "impressions", **known, **unknown}


EVENTS = {
    "ranking": {"event": "ranking", "id": "r0", "items": [{"id": "a"}]},
    "pyClickModels": {"search_keys": {"t": "a"}, "judgment_keys": [{"session": []}]},
}


@pytest.mark.parametrize("name", EVENTS)
def test_events_name_the_sql_that_joins_them(name, tmp_path):
    (tmp_path / "part-0").write_text(json.dumps(EVENTS[name]) + "\n")
    with refuses(DataError, "metarank" if name == "ranking" else name, "From events", "MODULE:"):
        detect(tmp_path / "part-0", FORMATS)


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.jsonl"])
def test_no_format_is_proposed_for_a_file_that_cannot_be_read(name, tmp_path, monkeypatch):
    """Damaged, or closed to its reader: another format would not open it."""
    file = tmp_path / name
    file.write_bytes(b"PAR1 and no more")
    with refuses(DataError, name) as caught:
        detect(file, FORMATS)
    assert "format=" not in str(caught.value)

    def closed(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    for library, opens in ((pa, "OSFile"), (pq, "ParquetFile")):
        monkeypatch.setattr(library, opens, closed)
    with refuses(DataError, f"{name}: cannot be read (Permission denied)", "Ask for") as caught:
        detect(file, FORMATS)
    assert "format=" not in str(caught.value)


def test_lists_as_text_in_parquet_name_the_way_out(tmp_path):
    log = pl.DataFrame({"query_doc_ids": ["[1, 2]"] * 4, "clicks": ["[1, 0]"] * 4})
    log.write_parquet(tmp_path / "log.parquet")
    assert detect(tmp_path / "log.parquet", FORMATS).format == "lists"
    with refuses(DataError, "one list per row", "write_csv(OTHER)"):
        open_lists(tmp_path / "log.parquet")
    pl.read_parquet(tmp_path / "log.parquet").write_csv(tmp_path / "log.csv")
    assert open_lists(tmp_path / "log.csv").train.clicks_total == 2


def test_fractions_with_decimal_commas_are_no_lists(tmp_path):
    """Beside lists, which have other signs or three numbers somewhere."""
    header = "session;query;document;rank;click;price;shown"
    (tmp_path / "log.csv").write_text(f"{header}\n1;q;d;1;1;12,34;3,5,8\n1;q;e;2;0;7;4,6\n")
    (table,) = open_tables(tmp_path / "log.csv", {}, {}, ())
    lists = {name: kind.is_list for name, kind in table.kinds().items()}
    assert lists == {name: name == "shown" for name in header.split(";")}


def test_how_text_is_written_is_known_where_the_layout_is_looked_for(tmp_path):
    """Its encoding, its separator, where other marks are in names, and names of columns without a line of them."""
    header = "session;query;document (url, or none);rank;click"
    rows = "\n".join([header, "1;caf\xe9;d;1;1"])
    (tmp_path / "log.csv").write_bytes(rows.encode("cp1252"))
    with refuses(DataError, "log.csv", "encoding=cp1252") as caught:
        detect(tmp_path / "log.csv", FORMATS)
    assert caught.value.options == {"encoding": "cp1252"}
    with refuses(DataError, "document (url, or none)"):
        detect(tmp_path / "log.csv", FORMATS, text=TextForm(encoding="cp1252"))
    (tmp_path / "bare.txt").write_text("1!q!d!1!1\n")
    names = ["session", "query", "document", "rank", "click"]
    found = detect(tmp_path / "bare.txt", FORMATS, text=TextForm("!", names))
    assert found.format == "impressions"


@pytest.mark.parametrize(
    "header, remedy",
    [("session#query#document#rank#click", "separator="), ("s0,lamp,sku,1,0", "header=[NAME")],
)
def test_a_first_line_that_names_no_columns_is_answered_with_how_text_is_written(
    header, remedy, tmp_path
):
    row = header.replace("session", "s1")
    with refuses(DataError, "show no layout", remedy) as caught:
        detect(table(tmp_path, header, row), FORMATS)
    assert not caught.value.options
