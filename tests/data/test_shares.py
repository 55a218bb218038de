"""Logs that several processes read are, to the bit, those that one process reads."""

import filecmp
import gzip
import pickle
from contextlib import nullcontext
from pathlib import Path

import fsspec
import numpy as np
import polars as pl
import pytest
from refusals import refuses

from clickexp.data import names, prepare
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.log_files import Piece
from clickexp.data.names import read_names
from clickexp.data.prepared import Log, verify_log
from clickexp.data.readers import tiangong_st
from clickexp.data.shares import prepare as shares
from clickexp.data.shares.prepare import shares_of, sharing
from clickexp.errors import DataError
from clickexp.experiment.formats import FORMATS

WORKERS = [1, 2, 4]


def copied(value):
    return pickle.loads(pickle.dumps(value))


def here(function, arguments, ended):
    """Calls a function in this process, with what other processes would have of arguments and results."""
    results = []
    for each in arguments:
        results.append(copied(function(*copied(each))))
        ended()
    return results


def twice(function, arguments, ended):
    """Calls a function again, as of processes that died when they had done their work."""
    for each in arguments:
        function(*each)
    return here(function, arguments, ended)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A share per worker, and several batches in a file."""
    monkeypatch.setattr(shares, "_SHARES_PER_WORKER", 1)
    monkeypatch.setattr(names, "_BLOCK", 5)
    monkeypatch.setattr(SourceTable, "batch_rows", 7)


def prepared(source, folder, workers=None, format="lists", call=here, **options):
    opener = FORMATS[format]
    read = opener.read
    if workers is not None:
        read = sharing(opener, workers, lambda _: nullcontext(call))
    return prepare(read, opener.format, source, folder, **options)


def contents(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def assert_equal(folder, other):
    files = contents(folder)
    assert files == contents(other)
    _, *differing = filecmp.cmpfiles(folder, other, files, shallow=False)
    assert differing == [[], []]


def assert_faults_are_alike(folder, workers, place, **options):
    """Several processes name the faulty rows of a log as one process does, and drop the same."""
    with pytest.raises(DataError) as one:
        prepared(folder / "log", folder / "one", **options)
    with pytest.raises(DataError) as several:
        prepared(folder / "log", folder / "several", workers, **options)
    assert str(one.value) == str(several.value) and place in str(one.value)
    prepared(folder / "log", folder / "one", invalid="drop", **options)
    prepared(folder / "log", folder / "several", workers, invalid="drop", **options)
    assert_equal(folder / "one", folder / "several")


def pages(count, seed, text=False, longest=6):
    """Queries, documents and clicks of some pages."""
    rng = np.random.default_rng(seed)
    queries = rng.integers(0, 9, count).tolist()
    documents = [rng.integers(0, 12, rng.integers(1, longest)).tolist() for _ in range(count)]
    clicks = [rng.integers(0, 2, len(each)).tolist() for each in documents]
    if text:
        queries = [f"wie geht {query}?" for query in queries]
        documents = [[f"http://d/ø{document}" for document in each] for each in documents]
    return {"query_id": queries, "query_doc_ids": documents, "clicks": clicks}


def plain(number):
    return pages(11 + number, number, longest=4 + number)


def text(number):
    return pages(11 + number, number, text=True)


def rich(number):
    """Search sessions, times, positions, features with categories that come later, and labels in some files."""
    table = pages(13, number, text=True)
    lengths = [len(each) for each in table["clicks"]]
    rng = np.random.default_rng(number + 100)
    table["search_session"] = [f"user {at // 3} of {number}" for at in range(13)]
    table["at"] = [1_700_000_000 + 60 * at + 10_000 * number for at in range(13)]
    table["positions"] = [list(range(2, 2 + length)) for length in lengths]
    table["price"] = [rng.random(length).tolist() for length in lengths]
    brands = [f"brand {brand}" for brand in "edcba"[number : number + 2]]
    table["brand"] = [[brands[at % 2] for at in range(length)] for length in lengths]
    if number in (1, 3):
        table["labels"] = [[float(at) for at in range(length)] for length in lengths]
    return table


LOGS = {
    "rows of tables": (plain, {}),
    "integers": (plain, {"pair_key": "query_document"}),
    "documents alone": (plain, {"pair_key": "document", "columns": {"query_id": None}}),
    "text": (text, {"pair_key": "query_document"}),
    "cut": (text, {"pair_key": "query_document", "positions": 3}),
    "rich": (
        rich,
        {
            "pair_key": "query_document",
            "columns": {"time": "at", "brand": {"dtype": "category"}},
            "features": ["price", "brand"],
        },
    ),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("log", LOGS)
def test_shares_of_the_files_join_to_the_log_of_one_process(log, workers, tmp_path):
    table, options = LOGS[log]
    (tmp_path / "log").mkdir()
    for number in range(4):
        pl.DataFrame(table(number)).write_parquet(tmp_path / f"log/{number}.parquet")
    prepared(tmp_path / "log", tmp_path / "one", **options)
    prepared(tmp_path / "log", tmp_path / "several", workers, **options)
    assert_equal(tmp_path / "one", tmp_path / "several")
    assert verify_log(tmp_path / "several")


def test_what_is_done_again_is_done_alike(tmp_path):
    """Each of the rounds, whose files are there already."""
    table, options = LOGS["rich"]
    (tmp_path / "log").mkdir()
    for number in range(4):
        pl.DataFrame(table(number)).write_parquet(tmp_path / f"log/{number}.parquet")
    prepared(tmp_path / "log", tmp_path / "one", **options)
    prepared(tmp_path / "log", tmp_path / "several", 2, call=twice, **options)
    assert_equal(tmp_path / "one", tmp_path / "several")


@pytest.mark.parametrize("options", [{}, {"pair_key": "query_document"}])
@pytest.mark.parametrize("workers", WORKERS)
def test_the_largest_id_that_is_allowed_is_that_of_the_log(workers, options, tmp_path):
    """Whether ids are those of the files or numbered over all of them, and whether the log has one so large."""
    (tmp_path / "log").mkdir()
    for number in range(4):
        pl.DataFrame(plain(number)).write_parquet(tmp_path / f"log/{number}.parquet")
    allowed = {**options, "query_doc_pairs": 1000}
    prepared(tmp_path / "log", tmp_path / "one", **allowed)
    several = prepared(tmp_path / "log", tmp_path / "several", workers, **allowed)
    assert_equal(tmp_path / "one", tmp_path / "several")
    assert several.parts["sessions"].query_doc_pairs == 1000
    with refuses(DataError, "query_doc_ids holds", "query_doc_pairs, 10"):
        prepared(tmp_path / "log", tmp_path / "few", workers, **{**options, "query_doc_pairs": 10})


@pytest.mark.parametrize("text", [False, True])
def test_folders_state_columns_and_a_file_may_be_empty(text, tmp_path):
    """Keys of text have second ones, which a share without lists lacks."""
    for day in range(3):
        folder = tmp_path / f"log/day={day}"
        folder.mkdir(parents=True)
        table = pl.DataFrame(pages(9, day, text=text))
        table.head(0 if day == 1 else 9).write_parquet(folder / "rows.parquet")
    options = {"columns": {"day": {"dtype": "category", "per": "session"}}, "pair_key": "document"}
    prepared(tmp_path / "log", tmp_path / "one", **options)
    prepared(tmp_path / "log", tmp_path / "several", 4, **options)
    assert_equal(tmp_path / "one", tmp_path / "several")


@pytest.mark.parametrize("workers", WORKERS)
def test_ids_of_an_earlier_log_are_kept(workers, tmp_path):
    for name, numbers in (("old", [7]), ("log", range(4))):
        (tmp_path / name).mkdir()
        for number in numbers:
            pl.DataFrame(text(number)).write_parquet(tmp_path / name / f"{number}.parquet")
    options = {"pair_key": "query_document"}
    old = prepared(tmp_path / "old", tmp_path / "yesterday", **options)
    options["earlier"] = read_names(old.names)
    prepared(tmp_path / "log", tmp_path / "one", **options)
    several = prepared(tmp_path / "log", tmp_path / "several", workers, **options)
    assert_equal(tmp_path / "one", tmp_path / "several")
    assert read_names(several.names).head(len(options["earlier"])).equals(options["earlier"])


def impressions(number, session="page {}"):
    """A row per document; rows of a page lie apart."""
    table = pages(12, number)
    rows = [
        {"session": session.format(12 * number + at), "query": query, "document": document,
         "rank": rank, "click": click}
        for at, (query, documents, clicks) in enumerate(zip(*table.values()))
        for rank, (document, click) in enumerate(zip(documents, clicks), 1)
    ]  # fmt: skip
    np.random.default_rng(number).shuffle(rows)
    return pl.DataFrame(rows)


@pytest.mark.parametrize("workers", WORKERS)
def test_impressions_whose_pages_lie_in_one_file_each(workers, tmp_path):
    (tmp_path / "log").mkdir()
    for number in range(4):
        impressions(number).write_csv(tmp_path / f"log/{number}.csv")
    options = {"format": "impressions"}
    prepared(tmp_path / "log", tmp_path / "one", **options)
    prepared(tmp_path / "log", tmp_path / "several", workers, **options)
    assert_equal(tmp_path / "one", tmp_path / "several")


WRITTEN = {"parquet": "write_parquet", "csv": "write_csv", "jsonl": "write_ndjson"}
DEVICE = {"columns": {"device": {"dtype": "int8", "per": "session"}}}


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("kind", WRITTEN)
def test_impressions_of_files_without_labels_lie_beside_those_of_others(kind, workers, tmp_path):
    """Whose columns would come in another order: pages of a device on both sides of the end of a file."""
    (tmp_path / "log").mkdir()
    labels = []
    for number in range(4):
        rows = impressions(number).sort("session", "rank")
        label, device = pl.col("document") % 5, pl.lit(number % 2)
        rows = rows.with_columns(device=device, label=label if number % 2 else pl.lit(None))
        labels += rows["label"].to_list()
        rows = rows if number % 2 else rows.drop("label")
        getattr(rows, WRITTEN[kind])(tmp_path / f"log/{number}.{kind}")
    log = prepared(tmp_path / "log", tmp_path / "out", workers, "impressions", **DEVICE)
    part = log.parts["sessions"]
    shown = np.arange(part.ranks) < part.column("lengths")[:, None]
    np.testing.assert_array_equal(part.column("labels")[shown], np.array(labels, float))
    assert part.column("device").tolist() == np.repeat([0, 1, 0, 1], 12).tolist()


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("first", [True, False])
def test_a_column_that_some_files_lack_is_named(first, kind, workers, tmp_path):
    (tmp_path / "log").mkdir()
    for number in range(2):
        rows = impressions(number)
        if (number == 0) is first:
            rows = rows.with_columns(search_session=pl.lit(number))
        getattr(rows, WRITTEN[kind])(tmp_path / f"log/{number}.{kind}")
    lacking, other = (f"{number}.{kind}" for number in (int(first), int(not first)))
    words = f"{lacking}: no column 'search_session'", other, "columns.search_session=null"
    with refuses(DataError, *words):
        prepared(tmp_path / "log", tmp_path / "out", workers, "impressions")
    columns = {"search_session": None}
    assert prepared(tmp_path / "log", tmp_path / "kept", workers, "impressions", columns=columns)


def test_pages_across_files_are_refused(tmp_path):
    (tmp_path / "log").mkdir()
    impressions(0).write_csv(tmp_path / "log/0.csv")
    impressions(1, "page {}").with_columns(session=pl.lit("page 3")).head(1).write_csv(
        tmp_path / "log/1.csv"
    )
    prepared(tmp_path / "log", tmp_path / "one", format="impressions", invalid="drop")
    with refuses(DataError, "1 result pages", "without workers"):
        prepared(tmp_path / "log", tmp_path / "several", 2, format="impressions", invalid="drop")


def faulty(folder):
    """Three files with faults of two kinds; most rows of the last one have one."""
    folder.mkdir()
    for number in range(3):
        table = pages(10, number)
        table["clicks"][7 + number] = [7] * len(table["clicks"][7 + number])
        if number == 2:
            table["query_doc_ids"] = [[] if at < 6 else each for at, each in
                                      enumerate(table["query_doc_ids"])]  # fmt: skip
        pl.DataFrame(table).write_parquet(folder / f"{number}.parquet")


@pytest.mark.parametrize("workers", WORKERS)
def test_faults_of_all_shares_are_named_and_counted_together(workers, tmp_path):
    faulty(tmp_path / "log")
    with pytest.raises(DataError) as one:
        prepared(tmp_path / "log", tmp_path / "one")
    with pytest.raises(DataError) as several:
        prepared(tmp_path / "log", tmp_path / "several", workers)
    assert str(one.value) == str(several.value) and "(3 rows" in str(one.value)
    prepared(tmp_path / "log", tmp_path / "one", invalid="drop")
    prepared(tmp_path / "log", tmp_path / "several", workers, invalid="drop")
    assert_equal(tmp_path / "one", tmp_path / "several")


@pytest.mark.parametrize("workers", WORKERS)
def test_row_groups_of_a_large_file_are_shared(workers, tmp_path):
    """Beside a small one, with faults in rows that are counted from the start of the file."""
    (tmp_path / "log").mkdir()
    table = pages(90, 1, text=True)
    table["clicks"][77] = [7] * len(table["clicks"][77])
    pl.DataFrame(table).write_parquet(tmp_path / "log/0.parquet", row_group_size=8)
    pl.DataFrame(text(2)).write_parquet(tmp_path / "log/1.parquet")
    options = {"pair_key": "query_document"}
    pieces = FORMATS["lists"].pieces(tmp_path / "log", workers)
    groups = [share.spans for share in shares_of(pieces, workers)]
    assert len(groups) == workers
    assert not workers > 2 or len({tuple(ranges) for ranges in groups[:3]}) == 1
    assert_faults_are_alike(tmp_path, workers, "row 77", **options)


def test_pages_of_one_file_are_read_by_one_process(tmp_path):
    """Where they lie across its row groups."""
    impressions(0).write_parquet(tmp_path / "log.parquet", row_group_size=3)
    prepared(tmp_path / "log.parquet", tmp_path / "one", format="impressions")
    prepared(tmp_path / "log.parquet", tmp_path / "several", 4, format="impressions")
    assert_equal(tmp_path / "one", tmp_path / "several")


def test_columns_and_times_of_another_kind_are_refused(tmp_path):
    for name, times in (
        ("units", [1_700_000_000, 1_700_000_000_000]),
        ("kinds", [1, "2025-01-01"]),
    ):
        (tmp_path / name).mkdir()
        for number, time in enumerate(times):
            table = {**pages(5, number), "search_session": [1] * 5, "at": [time] * 5}
            pl.DataFrame(table).write_parquet(tmp_path / f"{name}/{number}.parquet")
    options = {"columns": {"time": "at"}}
    for name in ("units", "kinds"):
        for workers in (None, 2):
            with refuses(DataError, "1.parquet", "alike"):
                prepared(tmp_path / name, tmp_path / f"{name}{workers}", workers, **options)


def test_no_sessions_are_an_error(tmp_path):
    (tmp_path / "log").mkdir()
    for number in range(2):
        pl.DataFrame(plain(number)).head(0).write_parquet(tmp_path / f"log/{number}.parquet")
    with refuses(DataError, "no sessions to pack", "no rows"):
        prepared(tmp_path / "log", tmp_path / "several", 2)


@pytest.mark.parametrize("pair_key", ["query_document", "document"])
@pytest.mark.parametrize("workers", [None, 2])
def test_texts_that_share_a_key_are_refused(workers, pair_key, tmp_path, monkeypatch):
    """Keys of two bits, which twelve documents share."""
    from clickexp.data.ingest import numbering

    keys_of = numbering.keys_of
    monkeypatch.setattr(numbering, "keys_of", lambda values: keys_of(values) & np.uint64(3))
    (tmp_path / "log").mkdir()
    for number in range(2):
        pl.DataFrame(text(number)).write_parquet(tmp_path / f"log/{number}.parquet")
    with refuses(DataError, "one 64-bit key", "2^32"):
        prepared(tmp_path / "log", tmp_path / "out", workers, pair_key=pair_key)


def test_texts_of_two_shares_that_share_a_key_are_refused(tmp_path, monkeypatch):
    from clickexp.data.ingest import numbering

    monkeypatch.setattr(numbering, "keys_of", lambda values: np.full(len(values), 5, np.uint64))
    (tmp_path / "log").mkdir()
    for number in range(2):
        one = {"query_id": ["q"], "query_doc_ids": [[f"d{number}"]], "clicks": [[1]]}
        pl.DataFrame(one).write_parquet(tmp_path / f"log/{number}.parquet")
    with refuses(DataError, "one 64-bit key"):
        prepared(tmp_path / "log", tmp_path / "out", 2, pair_key="document")


def test_groups_follow_one_another_and_weigh_alike(tmp_path):
    sizes = [10, 1, 1, 8, 20, 0, 40]
    files = [tmp_path / str(number) for number in range(len(sizes))]
    for file, size in zip(files, sizes, strict=True):
        file.write_bytes(b"x" * size)
    pieces = [Piece.of(file) for file in files]
    groups = [share.spans for share in shares_of(pieces, 3)]
    assert [file for group in groups for file in group] == files
    assert [[Path(file).name for file in group] for group in groups] == [
        ["0", "1", "2", "3"],
        ["4", "5"],
        ["6"],
    ]
    assert len(shares_of(pieces, 100)) <= len(files)


def test_logs_open_as_others_do(tmp_path):
    (tmp_path / "log").mkdir()
    for number in range(3):
        pl.DataFrame(text(number)).write_parquet(tmp_path / f"log/{number}.parquet")
    prepared(tmp_path / "log", tmp_path / "several", 3, pair_key="query_document", name="mine")
    log = Log.open(tmp_path / "several")
    assert log.name == "mine" and log.parts["sessions"].count == 11 + 12 + 13


def test_files_at_a_url_are_shared(tmp_path):
    files = fsspec.filesystem("memory")
    for number in range(3):
        with files.open(f"/shared/{number}.parquet", "wb") as out:
            pl.DataFrame(text(number)).write_parquet(out)
    for target, workers in (("one", None), ("several", 2)):
        options = {"pair_key": "query_document", "name": "log"}
        prepared("memory://shared", tmp_path / target, workers, **options)
    assert_equal(tmp_path / "one", tmp_path / "several")


def yandex_text(faulty=()):
    """Sessions of several pages and clicks, some of which begin like others; with CR LF at the ends of some lines."""
    rng = np.random.default_rng(0)
    lines = []
    for session in (*range(95, 125), 95):
        for query in rng.integers(0, 6, rng.integers(1, 4)):
            urls = rng.choice(9, rng.integers(1, 8), replace=False).tolist()
            lines.append([session, 0, "Q", query, 1, *urls])
            lines += [[session, 9, "C", url] for url in rng.integers(0, 9, 2)]
    text = ["\t".join(map(str, line)) for line in lines]
    for place in faulty:
        text[place] = "nobody knows"
    return "\r\n".join(text[:40]) + "\r\n" + "\n".join(text[40:])


def line_before(text, start):
    return int(text[:start].rstrip(b"\r\n").rpartition(b"\n")[2].split(b"\t")[0])


@pytest.mark.parametrize("workers", [*WORKERS, 50])
def test_a_text_is_shared_where_its_sessions_begin(workers, tmp_path, monkeypatch):
    """Also in more shares than sessions, and where a share has many blocks."""
    monkeypatch.setattr("clickexp.data.readers.yandex._BLOCK_BYTES", 100)
    source = tmp_path / "clicks.txt"
    source.write_bytes(yandex_text().encode())
    text = source.read_bytes()
    pieces = FORMATS["yandex"].pieces(source, workers)
    spans = [share.span(source) for share in shares_of(pieces, workers)]
    assert b"".join(text[span.start : span.stop] for span in spans) == text
    assert len(spans) == workers or 20 < len(spans) <= 31
    for span in spans[1:]:
        assert line_before(text, span.start) != int(text[span.start :].split(b"\t")[0])
    prepared(source, tmp_path / "one", format="yandex", positions=5)
    prepared(source, tmp_path / "several", workers, format="yandex", positions=5)
    assert_equal(tmp_path / "one", tmp_path / "several")


@pytest.mark.parametrize("workers", [*WORKERS, 50])
def test_faulty_lines_of_a_shared_text_have_their_numbers(workers, tmp_path):
    """Sessions are not cut beside them, since they may belong to either."""
    source = tmp_path / "clicks.txt"
    source.write_bytes(yandex_text(faulty=[0, 77, 78, 120, 150]).encode())
    with pytest.raises(DataError) as one:
        prepared(source, tmp_path / "one", format="yandex")
    with pytest.raises(DataError) as several:
        prepared(source, tmp_path / "several", workers, format="yandex")
    assert str(one.value) == str(several.value)
    assert "line 1:" in str(one.value) and "(5 lines, next line 78, 79, ...)" in str(one.value)
    prepared(source, tmp_path / "one", format="yandex", invalid="drop")
    prepared(source, tmp_path / "several", workers, format="yandex", invalid="drop")
    assert_equal(tmp_path / "one", tmp_path / "several")


def test_texts_that_cannot_be_cut_are_read_by_one_process(tmp_path):
    """A compressed one, and one of a single session."""
    packed, single = tmp_path / "clicks.txt.gz", tmp_path / "single.txt"
    packed.write_bytes(gzip.compress(yandex_text().encode()))
    single.write_text("7\t0\tQ\t1\t1\t5\t6\n" * 20)
    for source in (packed, single):
        folders = tmp_path / f"{source.stem} one", tmp_path / f"{source.stem} several"
        prepared(source, folders[0], format="yandex", name="log")
        prepared(source, folders[1], 4, format="yandex", name="log")
        assert_equal(*folders)


def test_texts_without_pages_are_an_error(tmp_path):
    (tmp_path / "clicks.txt").write_text("")
    for workers in (None, 2):
        with refuses(DataError, "clicks.txt", "no sessions to pack", "SessionID TimePassed Q"):
            prepared(tmp_path / "clicks.txt", tmp_path / "several", workers, format="yandex")
        with refuses(DataError, str(tmp_path), "cannot be read", "Name a text file"):
            prepared(tmp_path, tmp_path / "several", workers, format="yandex")


@pytest.mark.parametrize("workers", [*WORKERS, 50])
@pytest.mark.parametrize("faulty", [[], [0, 77, 150]])
def test_labels_of_a_shared_text_are_numbered_behind_all_its_pages(workers, faulty, tmp_path):
    """Of pairs that shares have shown or that nobody has, with a faulty line."""
    source, relevance = tmp_path / "clicks.txt", tmp_path / "labels.txt"
    source.write_bytes(yandex_text(faulty).encode())
    labels = [f"{query} 1 {url} {(query + url) % 3}" for query in range(8) for url in range(12)]
    relevance.write_text("\n".join([*labels, labels[3], *["nobody knows"] * bool(faulty)]))
    options = {"format": "yandex", "relevance": str(relevance)}
    if faulty:
        with pytest.raises(DataError) as one:
            prepared(source, tmp_path / "one", **options)
        with pytest.raises(DataError) as several:
            prepared(source, tmp_path / "several", workers, **options)
        assert str(one.value) == str(several.value)
        assert "labels.txt, line 98:" in str(one.value) and "next line 78, 151" in str(one.value)
        options["invalid"] = "drop"
    log = prepared(source, tmp_path / "one", **options)
    prepared(source, tmp_path / "several", workers, **options)
    assert_equal(tmp_path / "one", tmp_path / "several")
    pairs = read_names(log.names).rows()
    shown = set(pairs[: int(log.parts["sessions"].column("query_doc_ids").max())])
    never = {(query, url) for query in range(8) for url in range(12)} - shown
    assert log.notes["labelled_pairs_never_shown"] == len(never) > 0
    assert {*pairs[len(shown) :]} == never


@pytest.mark.parametrize("workers", [*WORKERS, 50])
@pytest.mark.parametrize("options", [{}, {"pair_key": "document", "positions": None}])
def test_a_log_that_comes_split_is_shared_by_files(options, workers, tmp_path):
    """A faulty line among them, and labels of what was shown in no part before."""
    rng = np.random.default_rng(0)
    (tmp_path / "log").mkdir()
    for part, file in tiangong_st.FILES.items():
        lines = []
        for at in range(12):
            size = rng.integers(1, 7)
            documents = rng.integers(0, 30, size).tolist()
            lists = [documents, [1] * len(documents), rng.integers(0, 2, size).tolist()]
            lists += [rng.integers(-2, 5, size).tolist()] if part == "ranking" else []
            lines.append("\t".join(map(str, [at, int(rng.integers(0, 5)), *lists])))
        if part == "val":
            lines[4] = "nobody knows"
        (tmp_path / "log" / file).write_text("\n".join(lines))
    options = {**options, "format": "tiangong_st"}
    assert_faults_are_alike(tmp_path, workers, "line 5", **options)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_file_of_two_parts_is_read_once(workers, tmp_path):
    """That for validation is also that for the test, in whichever shares its pieces are."""
    (tmp_path / "log").mkdir()
    for number, part in enumerate(("train", "test")):
        line = "0\t{}\t[1, 2]\t[1, 1]\t[0, 1]\n".format
        text = "".join(map(line, range(number, number + 9)))
        (tmp_path / "log" / tiangong_st.FILES[part]).write_text(text)
    options = {"format": "tiangong_st", "files": {"val": tiangong_st.FILES["test"]}}
    prepared(tmp_path / "log", tmp_path / "one", **options)
    prepared(tmp_path / "log", tmp_path / "several", workers, **options)
    assert_equal(tmp_path / "one", tmp_path / "several")


def vectors_of_pages(file, seed, columns, size=5):
    """Lists of documents, each of which is one of nine vectors, with further columns."""
    rng = np.random.default_rng(seed)
    documents = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float16)
    lengths = rng.integers(1, size, 20)
    rows = {
        "query_doc_features": [documents[rng.integers(0, 9, length)].tolist() for length in lengths]
    }
    rows |= {
        name: [draw(rng, length).tolist() for length in lengths] for name, draw in columns.items()
    }
    rows["brand"] = [[f"brand {at % 3 + seed}" for at in range(length)] for length in lengths]
    pl.DataFrame(rows).write_parquet(file, row_group_size=6)


@pytest.mark.parametrize("workers", [*WORKERS, 50])
@pytest.mark.parametrize("form", ["vectors", "columns", "clicks alone"])
def test_documents_that_are_vectors_are_numbered_over_all_shares(form, workers, tmp_path):
    """Each vector is stored once, and categories are the same document whoever reads them."""
    (tmp_path / "log").mkdir()
    shown = {
        "positions": lambda _, length: np.arange(1, length + 1),
        "clicks": lambda rng, length: rng.integers(0, 2, length),
    }
    for number in range(3):
        vectors_of_pages(tmp_path / f"log/part-0_split-{number}.parquet", number, shown)
    if form != "clicks alone":
        labels = {"labels": lambda rng, length: rng.integers(0, 5, length)}
        vectors_of_pages(tmp_path / "log/annotations.parquet", 7, labels, size=14)
    options = {"format": "baidu_ultr_uva"}
    if form == "columns":
        options["features"] = ["query_doc_features", "brand"]
    log = prepared(tmp_path / "log", tmp_path / "one", **options)
    prepared(tmp_path / "log", tmp_path / "several", workers, **options)
    assert_equal(tmp_path / "one", tmp_path / "several")
    vectors = log.parts["sessions"].features.values
    assert len(np.unique(vectors, axis=0)) == len(vectors) == 10 or form == "columns"


def test_vectors_of_other_widths_are_refused(tmp_path):
    """Of clicks and of labels, which two processes may read."""
    (tmp_path / "log").mkdir()
    for name, width in (("part-0_split-0", 4), ("annotations", 3)):
        vectors = [[[0.5] * width], [[0.25] * width] * 2]
        rows = {"query_doc_features": vectors, "clicks": [[1], [0, 1]], "labels": [[2], [1, 0]]}
        table = pl.DataFrame({**rows, "positions": [[1], [1, 2]]})
        table.write_parquet(tmp_path / f"log/{name}.parquet")
    for workers in (None, 2):
        with refuses(DataError, str(tmp_path / "log"), "3", "4"):
            prepared(tmp_path / "log", tmp_path / "out", workers, format="baidu_ultr_uva")


def test_one_process_reads_what_cannot_be_divided_and_says_so(tmp_path, caplog):
    """Of counts, rows of all files are in one random order."""
    counts = pl.DataFrame(
        {
            "query": [1, 1],
            "document": [1, 2],
            "rank": [1, 2],
            "impressions": [9, 9],
            "clicks": [3, 1],
        }
    )
    counts.write_csv(tmp_path / "log.csv")
    prepared(tmp_path / "log.csv", tmp_path / "one", None, "counts")
    prepared(tmp_path / "log.csv", tmp_path / "several", 2, "counts")
    assert "workers: counts is read by one process" in caplog.text
    assert_equal(tmp_path / "one", tmp_path / "several")
