"""Every reader that numbers ids keeps their names: against dictionaries filled one document at a time."""

import csv

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refuses

from clickexp.data import Log, names, open_lists, prepare
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.names import read_names
from clickexp.data.readers.tiangong_st import FILES
from clickexp.errors import DataError
from clickexp.experiment.formats import FORMATS

RNG = np.random.default_rng(3)
LISTS = [
    (int(RNG.integers(6)), RNG.permutation(12)[: RNG.integers(1, 6)].tolist()) for _ in range(60)
]  # (query, documents)
CUT = 3


def spelled(text):
    """The lists with ids as text, in several scripts, or as large integers."""
    if text:
        return [
            (f"wie geht {query}?", [f"http://d/ø{d},[x]" for d in documents])
            for query, documents in LISTS
        ]
    return [(query - 2**40, [d * 2**58 for d in documents]) for query, documents in LISTS]


def named(lists, pair_key, longest=CUT):
    """(query, document), or (document,), in the order of their ids."""
    ids = {}
    for query, documents in lists:
        for document in documents[:longest]:
            ids.setdefault(
                (query, document) if pair_key == "query_document" else (document,), len(ids) + 1
            )
    return list(ids)


def found(folder, pair_key="query_document"):
    """The same, as the log has it; its sessions show all these ids."""
    log = Log.open(folder)
    table = read_names(log.names)
    assert table.columns == (
        ["query", "document"] if pair_key == "query_document" else ["document"]
    )
    assert max(part.query_doc_pairs for part in log.parts.values()) == len(table)
    return table.rows()


def prepared(format, source, folder, **options):
    prepare(FORMATS[format].read, format, source, folder / "log", **options)
    return folder / "log"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(names, "_BLOCK", 5)
    monkeypatch.setattr(SourceTable, "batch_rows", 7)


@pytest.mark.parametrize("pair_key", ["query_document", "document"])
@pytest.mark.parametrize("text", [True, False], ids=["text", "integers"])
def test_parquet_of_two_files(tmp_path, text, pair_key):
    (tmp_path / "in").mkdir()
    for name, lists in (("a", spelled(text)[:25]), ("b", spelled(text)[25:])):
        rows = [
            {"query_id": q, "query_doc_ids": docs, "clicks": [0] * len(docs)} for q, docs in lists
        ]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / f"{name}.parquet")
    log = prepared("lists", tmp_path / "in", tmp_path, pair_key=pair_key, positions=CUT)
    assert found(log, pair_key) == named(spelled(text), pair_key)


def test_csv(tmp_path):
    lists = [(f" q{query}", [f"d{d}" for d in documents]) for query, documents in LISTS]
    with open(tmp_path / "log.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("query_id", "query_doc_ids", "clicks")])
        writer.writerows((query, " ".join(docs), "0 " * len(docs)) for query, docs in lists)
    log = prepared(
        "lists", tmp_path / "log.csv", tmp_path, pair_key="query_document", positions=CUT
    )
    assert found(log) == [
        (query.strip(), document) for query, document in named(lists, "query_document")
    ]


@pytest.mark.parametrize("pair_key", ["query_document", "document"])
@pytest.mark.parametrize("text", [True, False], ids=["text", "integers"])
def test_impressions(tmp_path, text, pair_key):
    """Their rows stand in any order within a session; ids follow the ranks."""
    rows = []
    for session, (query, documents) in enumerate(spelled(text)):
        shown = [(session, query, document, rank + 1, 0) for rank, document in enumerate(documents)]
        rows += [shown[at] for at in np.random.default_rng(session).permutation(len(shown))]
    columns = ("session", "query", "document", "rank", "click")
    pq.write_table(pa.table(dict(zip(columns, map(list, zip(*rows))))), tmp_path / "log.parquet")
    log = prepared(
        "impressions", tmp_path / "log.parquet", tmp_path, pair_key=pair_key, positions=CUT
    )
    assert found(log, pair_key) == named(spelled(text), pair_key)


@pytest.mark.parametrize("pair_key", ["query_document", "document"])
def test_tiangong_st(tmp_path, pair_key):
    (tmp_path / "in").mkdir()
    for at, (part, name) in enumerate(FILES.items()):
        lines = [
            [1, query - 3, documents, [1] * len(documents), [0] * len(documents)]
            + [[0] * len(documents)] * (part == "ranking")
            for query, documents in LISTS[15 * at : 15 * at + 15]
        ]
        (tmp_path / "in" / name).write_text("\n".join("\t".join(map(str, line)) for line in lines))
    log = prepared("tiangong_st", tmp_path / "in", tmp_path, pair_key=pair_key, positions=CUT)
    assert found(log, pair_key) == named([(query - 3, docs) for query, docs in LISTS], pair_key)


def test_yandex_with_labelled_documents_that_no_page_shows(tmp_path):
    lists = [(query + 10**12, [d * 10**15 for d in documents]) for query, documents in LISTS]
    pages = (["7", "0", "Q", str(query), "0", *map(str, documents)] for query, documents in lists)
    (tmp_path / "log.txt").write_text("".join("\t".join(page) + "\n" for page in pages))
    labels = [(lists[0][0], 5), (3, 4), (lists[0][0], lists[0][1][0]), (3, 9)]
    (tmp_path / "labels").write_text("".join(f"{query} 0 {url} 1\n" for query, url in labels))
    log = prepared(
        "yandex", tmp_path / "log.txt", tmp_path, positions=CUT, relevance=str(tmp_path / "labels")
    )
    labelled = [(query, [document]) for query, document in labels]
    assert found(log) == named(lists + labelled, "query_document")


def test_unsigned_integers_stay_apart_from_signed_ones(tmp_path):
    large = 2**64 - 1
    (tmp_path / "in").mkdir()
    for name, ids in (
        ("a", pa.array([[large, 4]] * 10, pa.list_(pa.uint64()))),
        ("b", pa.array([[-1, 4]])),
    ):
        pq.write_table(
            pa.table({"query_doc_ids": ids, "clicks": [[0, 0]] * len(ids)}),
            tmp_path / "in" / f"{name}.parquet",
        )
    log = prepared("lists", tmp_path / "in" / "a.parquet", tmp_path, pair_key="document")
    assert found(log, "document") == [(large,), (4,)]
    with refuses(DataError, "b.parquet: ", "holds numbers", "a.parquet unsigned"):
        open_lists(tmp_path / "in", pair_key="document")


def test_names_outlive_a_log_that_is_not_kept_and_are_missing_where_ids_are_the_log_s_own(tmp_path):
    rows = [{"query_doc_ids": docs, "clicks": [0] * len(docs)} for _, docs in LISTS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    assert open_lists(tmp_path / "log.parquet").names is None
    dataset = open_lists(tmp_path / "log.parquet", pair_key="document")
    assert read_names(dataset.names).rows() == named(LISTS, "document", longest=9)


@pytest.mark.parametrize("pair_key", ["query_document", "document"])
@pytest.mark.parametrize("text", [True, False], ids=["text", "integers"])
def test_known_names_keep_their_ids_and_new_ones_come_behind(tmp_path, text, pair_key):
    days = []
    # The second day is in another order, has few of the names and no new ones; the third has new ones.
    for day in (spelled(text)[:4], spelled(text)[3:1:-1], spelled(text)[::-1]):
        rows = [{"query_id": q, "query_doc_ids": d, "clicks": [1] * len(d)} for q, d in day]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{len(days)}.parquet")
        read = FORMATS["lists"].read
        earlier = read_names(Log.open(days[-1]).names) if days else None
        options = {"pair_key": pair_key, "positions": CUT, "earlier": earlier}
        source, folder = tmp_path / f"{len(days)}.parquet", tmp_path / f"log{len(days)}"
        prepare(read, "lists", source, folder, **options)
        days.append(folder)
    first = named(spelled(text)[:4], pair_key)
    seen = dict.fromkeys([*first, *named(spelled(text)[::-1], pair_key)])
    assert found(days[0], pair_key) == found(days[1], pair_key) == first
    assert found(days[2], pair_key) == list(seen) and len(seen) > len(first)
    number = {name: place for place, name in enumerate(seen, 1)}
    chunk = Log.open(days[2]).parts["sessions"].chunk()
    for (query, documents), ids in zip(spelled(text)[::-1], chunk["query_doc_ids"], strict=True):
        names = [(query, d) if pair_key == "query_document" else (d,) for d in documents[:CUT]]
        assert ids[: len(names)].tolist() == [number[name] for name in names]


def test_ids_of_another_kind_are_not_continued(tmp_path):
    rows = [{"query_id": 1, "query_doc_ids": [3, 4], "clicks": [0, 1]}] * 3
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    numbers, text = (pl.DataFrame({"document": ids}) for ids in ([3, 9], ["3", "9"]))
    small = numbers.cast(pl.Int8)
    cases = [
        (numbers, "query_document", "pair_key=document"),
        (numbers, None, "Leave out ids="),
        (text, "document", "document is numbers in this log and text"),
    ]
    read, source, log = FORMATS["lists"].read, tmp_path / "log.parquet", tmp_path / "log"
    for earlier, pair_key, message in cases:
        with refuses(DataError, message):
            prepare(read, "lists", source, log, pair_key=pair_key, earlier=earlier)
        assert not log.exists()
    prepare(read, "lists", source, log, pair_key="document", earlier=small)
    assert read_names(Log.open(log).names)["document"].to_list() == [3, 9, 4]


@pytest.mark.parametrize("ids", [[1], [2, 3, 5, 6, 7, 11, 23], [*range(1, 24)], [21, 22, 23]])
def test_names_of_some_ids_are_read_block_by_block(ids, tmp_path):
    documents = np.array([f"d{each}" for each in range(23)])
    writer = names.NamesWriter(tmp_path / "names.parquet")
    writer.append(document=documents[:9])
    writer.append(document=documents[9:])
    writer.close()
    assert pq.ParquetFile(tmp_path / "names.parquet").num_row_groups == 5
    file = names.NamesFile(np.memmap(tmp_path / "names.parquet", np.uint8, "r"), 23)
    found = file.of(np.array(ids, np.int32))
    assert found["document"].to_list() == documents[np.array(ids, int) - 1].tolist()
    assert file.all()["document"].to_list() == documents.tolist()
