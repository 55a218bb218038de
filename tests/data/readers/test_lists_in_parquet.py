"""Parquet: what is read, how it is cut, split and cached, and what is refused."""

import datetime

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refuses

from clickexp.data import open_lists
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.readers.lists import REQUIRED
from clickexp.errors import DataError


def random_rows(count: int, longest: int = 6, seed: int = 0) -> list[dict]:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        size = int(rng.integers(1, longest + 1))
        rows.append(
            {
                "query_doc_ids": rng.integers(0, 99, size).tolist(),
                "clicks": rng.integers(0, 2, size).tolist(),
                "query_id": int(rng.integers(0, 12)),
                "positions": np.sort(rng.choice(longest, size, replace=False) + 1).tolist(),
                "labels": rng.integers(-2, 5, size).tolist(),
            }
        )
    return rows


def write(path, rows, **types):
    table = pa.Table.from_pylist(rows)
    for name, kind in types.items():
        field = table.schema.get_field_index(name)
        table = table.set_column(field, name, table.column(name).cast(kind))
    pq.write_table(table, path, row_group_size=7)
    return path


def lists(sessions, name) -> list[list]:
    """The column as Python lists again, checking that padding is 0."""
    values, lengths = sessions.column(name), sessions.column("lengths")
    assert not values[np.arange(sessions.ranks) >= lengths[:, None]].any()
    return [row[:length].tolist() for row, length in zip(values, lengths)]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_every_value_arrives(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(SourceTable, "batch_rows", 8)
    rows = random_rows(50)
    calls = []
    path = write(tmp_path / "log.parquet", rows)
    dataset = open_lists(path, cache=cache, progress=lambda *call: calls.append(call))
    parts = (dataset.train, dataset.val, dataset.test)
    assert [part.count for part in parts] == [40, 5, 5]
    for name in ("query_doc_ids", "clicks", "positions", "labels"):
        assert sum((lists(part, name) for part in parts), []) == [row[name] for row in rows]
    queries = np.concatenate([part.column("query_ids") for part in parts])
    assert queries.tolist() == [row["query_id"] for row in rows]
    assert (dataset.name, dataset.positions, dataset.train.ranks) == ("log", 6, 6)
    assert dataset.query_doc_pairs == max(max(row["query_doc_ids"]) for row in rows)
    assert dataset.ranking is dataset.test
    assert calls == sorted(calls) and len(calls) > 1 and calls[-1] == (50, 50)


LIST_TYPES = {
    "uint16": dict(query_doc_ids=pa.list_(pa.uint16()), clicks=pa.list_(pa.bool_())),
    "large": dict(query_doc_ids=pa.large_list(pa.int64()), clicks=pa.large_list(pa.float32())),
    "fixed": dict(query_doc_ids=pa.list_(pa.int32(), 3), clicks=pa.list_(pa.uint8(), 3)),
}


@pytest.mark.parametrize("types", LIST_TYPES.values(), ids=LIST_TYPES)
def test_types_of_lists(tmp_path, cache, types, monkeypatch):
    monkeypatch.setattr(SourceTable, "batch_rows", 3)  # slices of lists
    rows = [{"query_doc_ids": [i, 2 * i, 3 * i], "clicks": [i % 2, 0, 1]} for i in range(20)]
    dataset = open_lists(write(tmp_path / "log.parquet", rows, **types), cache=cache)
    assert lists(dataset.train, "query_doc_ids") == [row["query_doc_ids"] for row in rows[:16]]
    assert lists(dataset.train, "clicks") == [row["clicks"] for row in rows[:16]]
    assert (
        set(dataset.train.columns) == {"query_doc_ids", "clicks", "lengths"}
        and dataset.ranking is None
    )


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum([f"d{i}" for i in range(9)]), pl.String])
def test_text_in_dictionaries_is_text(tmp_path, cache, kind, monkeypatch):
    monkeypatch.setattr(SourceTable, "batch_rows", 3)
    spelled = [[f"d{(i * j) % 9}" for j in range(1, 4)] for i in range(20)]
    table = pl.DataFrame(
        {
            "query_doc_ids": spelled,
            "clicks": [[0, 1, 0]] * 20,
            "query_id": [row[0] for row in spelled],
        },
        schema_overrides={"query_doc_ids": pl.List(kind), "query_id": kind},
    )
    table.write_parquet(tmp_path / "log.parquet")
    dataset = open_lists(tmp_path / "log.parquet", cache=cache, pair_key="query_document")
    ids, queries = {}, {}
    expected = [
        [ids.setdefault((row[0], document), len(ids) + 1) for document in row] for row in spelled
    ]
    numbers = [queries.setdefault(row[0], len(queries) + 1) for row in spelled]
    parts = (dataset.train, dataset.val, dataset.test)
    assert sum((lists(part, "query_doc_ids") for part in parts), []) == expected
    assert np.concatenate([part.column("query_ids") for part in parts]).tolist() == numbers


def test_a_folder_in_the_order_of_names_as_polars_writes_it(tmp_path, cache):
    rows = random_rows(30)
    for name, part in (("b", rows[10:25]), ("a", rows[:10]), ("c", rows[25:])):
        pl.DataFrame(part).write_parquet(tmp_path / f"{name}.parquet")
    ranges = dict(train_sessions=[20, 30], val_sessions=[0, 10], test_sessions=[10, 20])
    dataset = open_lists(tmp_path, cache=cache, **ranges)
    assert lists(dataset.train, "query_doc_ids") == [row["query_doc_ids"] for row in rows[20:]]
    assert lists(dataset.val, "clicks") == [row["clicks"] for row in rows[:10]]
    assert lists(dataset.test, "labels") == [row["labels"] for row in rows[10:20]]


def test_long_lists_are_cut_and_counted(tmp_path, cache):
    rows = random_rows(40)
    dataset = open_lists(write(tmp_path / "log.parquet", rows), cache=cache, positions=4)
    assert dataset.train.ranks == 4
    assert lists(dataset.train, "query_doc_ids") == [row["query_doc_ids"][:4] for row in rows[:32]]
    assert lists(dataset.test, "labels") == [row["labels"][:4] for row in rows[36:]]
    assert dataset.notes["cut_lists"] == sum(len(row["clicks"]) > 4 for row in rows) > 0


def test_positions_must_leave_room(tmp_path, cache):
    path = write(tmp_path / "log.parquet", random_rows(10))
    for positions in (0, -1):
        with refuses(DataError, f"positions is {positions}", "no rank is left"):
            open_lists(path, cache=cache, positions=positions)


def test_columns_may_have_other_names_or_be_left_out(tmp_path, cache):
    theirs = {"ids": "query_doc_ids", "c": "clicks", "labels": "labels"}
    rows = [{name: row[ours] for name, ours in theirs.items()} for row in random_rows(20)]
    names = {"query_doc_ids": "ids", "clicks": "c", "labels": None}
    dataset = open_lists(write(tmp_path / "log.parquet", rows), cache=cache, columns=names)
    assert (
        lists(dataset.train, "clicks") == [row["c"] for row in rows[:16]]
        and not dataset.train.has_labels
    )


def test_held_out_queries_are_filtered_by_training_sessions(tmp_path, cache):
    rows = random_rows(60)
    path = write(tmp_path / "log.parquet", rows)
    dataset = open_lists(path, cache=cache, min_train_sessions_per_query=5)
    queries = [row["query_id"] for row in rows]
    frequent = {query for query in queries if queries[:48].count(query) >= 5}
    expected = [query for query in queries[54:] if query in frequent]
    assert dataset.test.column("query_ids").tolist() == expected and 0 < len(expected) < 6
    with refuses(DataError, "Lower min_train_sessions_per_query"):
        open_lists(path, cache=cache, min_train_sessions_per_query=49)


def test_a_second_open_reads_the_pack_and_a_changed_file_is_packed_again(tmp_path, cache):
    path = write(tmp_path / "log.parquet", random_rows(20))
    calls = []
    packed = dict(cache=cache, progress=lambda *call: calls.append(call))
    open_lists(path, **packed)
    packings = len(calls)
    assert packings > 0
    ranges = dict(train_sessions=[0, 5], val_sessions=[5, 6], test_sessions=[6, 7])
    assert open_lists(path, **packed, **ranges).train.count == 5
    assert len(calls) == packings
    rows = random_rows(25, seed=1)
    assert open_lists(write(path, rows), **packed).train.count == 20
    assert len(calls) > packings
    assert open_lists(path, **packed, positions=2).train.ranks == 2
    assert len(list(cache.iterdir())) == 3


def broken(row: int, **changes) -> list[dict]:
    rows = [{"query_doc_ids": [1, 2, 3], "clicks": [0, 1, 0], "query_id": 4} for _ in range(30)]
    rows[row] = rows[row] | changes
    return rows


BAD_ROWS = {
    "negative id": (
        broken(17, query_doc_ids=[1, -5, 3]),
        "row 17",
        "query_doc_ids holds -5",
        "integers",
    ),
    "large id": (
        broken(3, query_doc_ids=[1, 2**40, 3]),
        "row 3",
        "query_doc_ids holds 1099511627776",
    ),
    "shorter clicks": (
        broken(21, clicks=[0]),
        "row 21",
        "clicks has length 1",
        "query_doc_ids has 3",
    ),
    "null in list": (broken(9, clicks=[0, None, 1]), "row 9", "clicks holds null"),
    "null list": (broken(11, query_doc_ids=None), "row 11", "query_doc_ids holds null"),
    "null query": (broken(12, query_id=None), "row 12", "query_id"),
    "two clicks": (broken(14, clicks=[0, 2, 1]), "row 14", "clicks holds 2"),
    "empty list": (
        broken(15, query_doc_ids=[], clicks=[]),
        "row 15",
        "the list is empty",
        "Drop the row",
    ),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_named_and_nothing_is_left(tmp_path, cache, case, monkeypatch):
    rows, place, *parts = BAD_ROWS[case]
    monkeypatch.setattr(SourceTable, "batch_rows", 8)
    write(tmp_path / "a.parquet", broken(0))
    write(tmp_path / "b.parquet", rows)
    with refuses(DataError, f"b.parquet, {place}:", *parts):
        open_lists(tmp_path, cache=cache)
    assert not any(cache.iterdir())


BAD_COLUMNS = {
    "NaN click": (dict(clicks=[0.0, float("nan")]), {}, "row 0", "clicks holds nan"),
    "text clicks": (dict(clicks=["0", "2"]), {}, "row 0", "clicks holds 2", "true or false"),
    "no list": (dict(query_doc_ids=1), {}, "query_doc_ids holds integers", "one list per row"),
    "float ids": (
        dict(query_doc_ids=[1.0, 2.5]),
        {},
        "row 0",
        "query_doc_ids holds 2.5",
        "Ids",
    ),
    "float query": (dict(query_id=1.5), {}, "row 0", "query_id holds 1.5", "64-bit integers"),
    "infinite label": (dict(labels=[1.0, float("inf")]), {}, "row 0", "labels holds inf"),
    "long labels": (
        dict(labels=[1, 2, 3]),
        {},
        "row 0",
        "labels has length 3",
        "query_doc_ids has 2",
    ),
    "position 0": (dict(positions=[0, 1]), {}, "row 0", "positions holds 0", "integers from 1"),
    "positions out of order": (
        dict(positions=[3, 1]),
        {},
        "row 0",
        "1 after 3",
        "Sort the documents",
    ),
    "text query": (dict(query_id="shoes"), {}, "query_id holds text"),
    "misnamed": (dict(), {"clicks": "click"}, "no column 'click' for clicks", "['query_doc_ids'"),
    "nearest": (dict(), {"query_doc_ids": "query_docs_id"}, "perhaps to 'query_doc_ids'"),
    "asked for": (dict(), {"labels": "grades"}, "no column 'grades' for labels"),
    "left out": (dict(), {"clicks": None}, "columns.clicks=null", "needs"),
    "bad key": (dict(), {"query_ids": "q"}, "columns", "['query_ids']"),
    "number for a key": (dict(), {1: {"dtype": "int32"}}, "columns", "key 1", "write '1'"),
}


@pytest.mark.parametrize("case", BAD_COLUMNS)
def test_bad_columns_are_named(tmp_path, cache, case):
    changes, columns, *parts = BAD_COLUMNS[case]
    row = {"query_doc_ids": [1, 2], "clicks": [0, 1]} | changes
    with refuses(DataError, *parts):
        open_lists(write(tmp_path / "log.parquet", [row] * 10), cache=cache, columns=columns)


def test_documents_out_of_order_are_named_by_their_row(tmp_path, cache):
    """The first position of a list may be above the last one of the list before; positions may be merged."""
    rows = [
        {"query_doc_ids": [1, 2, 3], "clicks": [0, 1, 0], "positions": [1, 2, 2]} for _ in range(30)
    ]
    assert open_lists(write(tmp_path / "log.parquet", rows), cache=cache).positions == 2
    rows[17]["positions"] = [1, 3, 2]
    with refuses(
        DataError,
        "log.parquet, row 17",
        "positions has 2 after 3",
        "Sort the documents of each list",
    ):
        open_lists(write(tmp_path / "log.parquet", rows), cache=cache)


def test_an_id_outside_the_table_names_its_file_and_row(tmp_path, cache):
    write(tmp_path / "a.parquet", broken(0))
    write(tmp_path / "b.parquet", broken(4, query_doc_ids=[1, 70, 2]))
    assert open_lists(tmp_path, cache=cache, query_doc_pairs=70).query_doc_pairs == 70
    with refuses(DataError, "b.parquet, row 4", "query_doc_ids holds 70", "0 to", "69"):
        open_lists(tmp_path, cache=cache, query_doc_pairs=69)


def test_files_that_cannot_be_read(tmp_path, cache):
    with refuses(DataError, "nowhere", "no such file"):
        open_lists(tmp_path / "nowhere", cache=cache)
    with refuses(DataError, "no *.parquet, *.csv, *.tsv"):
        open_lists(tmp_path, cache=cache)
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1 and no more")
    with refuses(DataError, "bad.parquet", "cannot be read as parquet"):
        open_lists(path, cache=cache)
    pq.write_table(pa.Table.from_pylist(random_rows(3)).slice(0, 0), path)
    with refuses(DataError, f"{path}: ", "no sessions", "Check the path"):
        open_lists(path, cache=cache)
    path = write(tmp_path / "cut.parquet", random_rows(300), query_doc_ids=pa.list_(pa.int64()))
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)
    with refuses(DataError, "cut.parquet", "cannot be read as parquet"):
        open_lists(path, cache=cache)


def test_files_of_a_folder_need_the_same_columns(tmp_path, cache):
    write(tmp_path / "a.parquet", random_rows(10))
    write(tmp_path / "b.parquet", [{key: row[key] for key in REQUIRED} for row in random_rows(5)])
    with refuses(DataError, "b.parquet: no column", "columns.positions=null"):
        open_lists(tmp_path, cache=cache)


def test_times_of_any_kind_order_the_lists_of_a_search_session(tmp_path):
    rng = np.random.default_rng(0)
    minutes = rng.permutation(60)
    when = np.datetime64("2014-03-01T23:40:00", "us") + minutes.astype("timedelta64[m]")
    own = {"search_session": rng.integers(0, 20, 60), "minute": minutes, "when": when}
    frame = pl.DataFrame(random_rows(60)).with_columns(
        **{name: pl.Series(values) for name, values in own.items()}
    )
    kinds = {
        "dates": frame,
        "text": frame.with_columns(when=pl.Series(np.datetime_as_string(when))),
        "categories": frame.with_columns(
            when=pl.Series(np.datetime_as_string(when), dtype=pl.Categorical)
        ),
        "numbers": frame.with_columns(when=pl.Series(minutes / 7)),
        "sorted": frame.sort("minute"),
    }
    names = ["session_index", "session_clicks", "document_seen"]
    found = {}
    for kind, table in kinds.items():
        table.write_parquet(tmp_path / f"{kind}.parquet")
        columns = {
            "minute": {"dtype": "int32", "per": "session"},
            "time": None if kind == "sorted" else "when",
        }
        dataset = open_lists(path=tmp_path / f"{kind}.parquet", columns=columns)
        parts = (dataset.train, dataset.val, dataset.test)
        rows = {
            name: np.concatenate([part.column(name) for part in parts])
            for name in [*names, "minute"]
        }
        found[kind] = {name: rows[name][np.argsort(rows["minute"])] for name in names}
    assert found["sorted"]["session_index"].max() > 1
    for kind in kinds:
        for name in names:
            np.testing.assert_array_equal(
                found[kind][name], found["sorted"][name], err_msg=f"{kind} {name}"
            )


def test_times_that_are_none_are_refused(tmp_path):
    for number, word in enumerate(["01/02/2014", "", "soon", "5", "2014-13-01", None]):
        times = pl.Series(["2014-03-01", word, "2014-03-02"])
        table = pl.DataFrame(random_rows(3)).with_columns(search_session=pl.lit(1), when=times)
        table.write_parquet(tmp_path / f"{number}.parquet")
        with refuses(DataError, f"{number}.parquet, row 1", "when holds"):
            open_lists(path=tmp_path / f"{number}.parquet", columns={"time": "when"})


KINDS = {"seconds": ["5", "7"], "dates": ["2014-03-01", "2014-03-02"]}
VALUES = {"seconds": [5, 7], "dates": [datetime.date(2014, 3, 1)] * 2}


@pytest.mark.parametrize("first", KINDS)
def test_times_of_two_kinds_are_refused_across_files_and_batches(first, tmp_path, monkeypatch):
    second = next(kind for kind in KINDS if kind != first)
    lists = pl.DataFrame(random_rows(2)).with_columns(search_session=pl.lit(1))
    for kinds, *parts in (
        (KINDS, "b.parquet, row 0", "time holds"),
        (VALUES, "b.parquet: ", "times"),
    ):
        for name, kind in {"a": first, "b": second}.items():
            lists.with_columns(time=pl.Series(kinds[kind])).write_parquet(
                tmp_path / f"{name}.parquet"
            )
        with refuses(DataError, *parts):
            open_lists(path=tmp_path, columns={"time": "time"})
    monkeypatch.setattr(SourceTable, "batch_rows", 2)
    both = pl.concat([lists.with_columns(time=pl.Series(KINDS[kind])) for kind in (first, second)])
    both.write_parquet(tmp_path / "both.parquet")
    with refuses(DataError, "both.parquet, row 2", "time holds"):
        open_lists(path=tmp_path / "both.parquet", columns={"time": "time"})


def test_lists_without_a_search_session_are_refused_with_the_way_out(tmp_path):
    table = pl.DataFrame(random_rows(12)).with_columns(
        search_session=pl.Series([4, None, *range(10)])
    )
    table.write_parquet(tmp_path / "log.parquet")
    with refuses(DataError, "row 1", "search_session holds null", "columns.search_session=null"):
        open_lists(path=tmp_path / "log.parquet")
    assert (
        "session_ids"
        not in open_lists(tmp_path / "log.parquet", columns={"search_session": None}).train.columns
    )
