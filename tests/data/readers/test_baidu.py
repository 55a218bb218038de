"""The parquet folders of Yandex and Baidu-ULTR that CLAX reads, generated small."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from clickexp.data import open_baidu_ultr_uva, open_lists, prepare
from clickexp.data.ingest.source_table import SourceTable
from clickexp.errors import DataError

WIDTH = 5
VECTORS = pa.list_(pa.list_(pa.float32()))
WHOLE = dict(train_sessions=[0, 21], val_sessions=[21, 24], test_sessions=[24, 27])


def folder_of(path, sessions=27, seed=0, kind=VECTORS, documents=17):
    """The layout of Baidu-ULTR-UvA, and its rows: sessions with gaps in their positions, and annotations."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(documents, WIDTH)).astype(np.float32)
    clicked, labelled = [], []
    for _ in range(sessions):
        size = int(rng.integers(1, 7))
        shown = vectors[rng.integers(0, documents, size)].tolist()
        positions = np.sort(1 + rng.permutation(9)[:size]).tolist()
        positions[0] = 1
        clicked.append([shown, positions, rng.integers(0, 2, size).tolist()])
    for size in (12, 3, 1):
        shown = np.concatenate([vectors, rng.normal(size=(3, WIDTH))])[
            rng.integers(0, documents + 3, size)
        ]
        labelled.append([shown.tolist(), rng.integers(0, 5, size).tolist()])
    path.mkdir()
    write(path / "part-0_split-0.parquet", clicked[:10], kind=kind)
    write(path / "part-0_split-1.parquet", clicked[10:], kind=kind)
    write(path / "annotations.parquet", labelled, ("query_doc_features", "labels"), kind)
    return clicked, labelled


def write(path, rows, names=("query_doc_features", "positions", "clicks"), kind=VECTORS):
    columns = dict(zip(names, map(list, zip(*rows))))
    columns["query_doc_features"] = pa.array(columns["query_doc_features"], kind)
    pq.write_table(pa.table(columns), path, row_group_size=4)


def lists(sessions, name):
    rows = zip(sessions.column(name), sessions.column("lengths"))
    return [values[:length].tolist() for values, length in rows]


def halves(rows):
    return [np.asarray(shown, np.float16).tolist() for shown in rows]


KINDS = {
    "float32": VECTORS,
    "double": pa.large_list(pa.list_(pa.float64())),
    "half": pa.list_(pa.list_(pa.float16(), WIDTH)),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_document_has_its_vector_and_equal_ones_share_it(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(SourceTable, "vector_rows", 4)
    clicked, labelled = folder_of(tmp_path / "uva", kind=kind)
    calls = []
    dataset = open_baidu_ultr_uva(
        tmp_path / "uva", positions=None, progress=lambda *call: calls.append(call), **WHOLE
    )
    parts = (dataset.train, dataset.val, dataset.test)
    ids = sum((lists(part, "query_doc_ids") for part in parts), []) + lists(
        dataset.ranking, "query_doc_ids"
    )
    table = dataset.train.features.values
    assert table.dtype == np.float16 and not table[0].any()
    expected = halves(row[0] for row in clicked + labelled)
    assert [table[row].tolist() for row in ids] == expected
    distinct = {}
    for vector in (tuple(vector) for shown in expected for vector in shown):
        distinct.setdefault(vector, len(distinct) + 1)
    assert ids == [[distinct[tuple(vector)] for vector in shown] for shown in expected]
    assert len(table) == len(distinct) + 1 == dataset.query_doc_pairs + 1
    for name, at in (("positions", 1), ("clicks", 2)):
        assert sum((lists(part, name) for part in parts), []) == [row[at] for row in clicked]
    assert lists(dataset.ranking, "labels") == [row[1] for row in labelled]
    assert dataset.ranking.ranks == 12 and dataset.ranking.features is dataset.train.features
    assert calls == sorted(calls) and calls[-1] == (
        30,
        30,
        "file 3 of 3 (annotations.parquet), 30 rows",
    )


def test_what_is_shown_below_is_dropped(tmp_path):
    clicked, _ = folder_of(tmp_path / "uva")
    clicked[-1][1] = [position + 20 for position in clicked[-1][1]]
    write(tmp_path / "uva" / "part-0_split-1.parquet", clicked[10:])
    dataset = open_baidu_ultr_uva(tmp_path / "uva", positions=4)
    kept = [[click for position, click in zip(*row[1:]) if position <= 4] for row in clicked]
    found = sum((lists(part, "clicks") for part in (dataset.train, dataset.val, dataset.test)), [])
    assert found == kept[:-1]
    assert dataset.notes["dropped_lists_without_documents"] == 1
    assert dataset.notes["cut_lists"] == sum(len(k) < len(row[1]) for k, row in zip(kept, clicked))
    assert dataset.train.ranks == dataset.positions == 4


def test_annotations_may_be_left_out(tmp_path):
    folder_of(tmp_path / "uva")
    assert open_baidu_ultr_uva(tmp_path / "uva", annotations=None).ranking is None
    (tmp_path / "uva" / "annotations.parquet").rename(tmp_path / "uva" / "labels.parquet")
    assert open_baidu_ultr_uva(tmp_path / "uva").ranking is None
    assert open_baidu_ultr_uva(tmp_path / "uva", annotations="labels.parquet").ranking.count == 3
    with refuses(DataError, "experts.parquet", "no such file"):
        open_baidu_ultr_uva(tmp_path / "uva", annotations="experts.parquet")


def session(**changes):
    row = (
        dict(query_doc_features=[[1.0] * WIDTH, [2.0] * WIDTH], positions=[1, 2], clicks=[0, 1])
        | changes
    )
    return list(row.values())


BAD = {
    "short vector": (session(query_doc_features=[[1.0] * WIDTH, [2.0]]), "a vector of 1 numbers"),
    "empty vector": (session(query_doc_features=[[], []]), "a vector of 0 numbers"),
    "NaN": (
        session(query_doc_features=[[1.0] * WIDTH, [float("nan")] * WIDTH]),
        "holds nan",
        "Features",
    ),
    "too large": (session(query_doc_features=[[1e5] * WIDTH] * 2), "holds 100000"),
    "null vector": (
        session(query_doc_features=[[1.0] * WIDTH, None]),
        "query_doc_features holds null",
    ),
    "null number": (
        session(query_doc_features=[[1.0] * WIDTH, [None] * WIDTH]),
        "features holds null",
    ),
    "lengths": (session(clicks=[1]), "clicks has length 1", "query_doc_features has 2"),
    "position 0": (session(positions=[0, 1]), "positions holds 0"),
    "same position": (session(positions=[1] * 2), "number of documents holds 2"),
    "click": (session(clicks=[0, 3]), "clicks holds 3"),
    "no documents": (session(query_doc_features=[], positions=[], clicks=[]), "the list is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named_and_nothing_is_left(tmp_path, case, monkeypatch):
    row, *parts = BAD[case]
    monkeypatch.setattr(SourceTable, "vector_rows", 4)
    folder_of(tmp_path / "uva")
    write(tmp_path / "uva" / "part-1_split-0.parquet", [session(positions=[1, 9])] * 5 + [row])
    with refuses(DataError, "part-1_split-0.parquet, row 5:", *parts):
        open_baidu_ultr_uva(tmp_path / "uva", positions=1, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


def test_folders_and_columns_that_do_not_fit(tmp_path):
    folder_of(tmp_path / "uva")
    for path, options, *parts in (
        (tmp_path / "uva" / "annotations.parquet", {}, "not a folder"),
        (tmp_path, {}, "no part-*_split-*.parquet file"),
        (tmp_path / "uva", dict(columns={"labels": "grades"}), "no column 'grades'", "labels"),
        (tmp_path / "uva", dict(columns={"ids": "x"}), "columns", "['ids']"),
        (tmp_path / "uva", dict(positions=0), "positions is 0", "no rank is left"),
    ):
        with refuses(DataError, *parts):
            open_baidu_ultr_uva(path, **options)
    for kind, values in (
        (pa.list_(pa.float32()), [0.5]),
        (pa.list_(pa.list_(pa.string())), [["1"]]),
    ):
        write(tmp_path / "uva" / "part-0_split-0.parquet", [[values, [1], [0]]], kind=kind)
        with refuses(DataError, "query_doc_features holds lists of"):
            open_baidu_ultr_uva(tmp_path / "uva")


NUMBERS = st.sampled_from([0.0, -0.0, 1.5, 6e4, 1e6, float("nan"), None])
DOCUMENTS = st.lists(st.lists(NUMBERS, min_size=2, max_size=2) | st.just([1.0]), max_size=3)
SHOWN, CLICKED = (st.lists(st.integers(0, most), max_size=3) for most in (3, 2))


@pytest.mark.parametrize("examples", [25, pytest.param(100, marks=pytest.mark.nightly)])
def test_broken_rows_give_a_data_error_or_a_whole_log(examples, tmp_path):
    @settings(max_examples=examples, deadline=None)
    @given(rows=st.lists(st.tuples(DOCUMENTS, SHOWN, CLICKED), min_size=1, max_size=4))
    def check(rows):
        source = tmp_path / "uva"
        source.mkdir(exist_ok=True)
        write(source / "part-0_split-0.parquet", rows)
        try:
            log = prepare(
                open_baidu_ultr_uva.read, "baidu_ultr_uva", source, tmp_path / "log", positions=2
            )
        except DataError:
            pass
        else:
            assert log.parts["sessions"].documents == sum(
                p in (1, 2) for _, shown, _ in rows for p in shown
            )
            shutil.rmtree(tmp_path / "log")
        assert [file.name for file in tmp_path.iterdir()] == ["uva"]

    check()


@pytest.fixture
def hashed(tmp_path):
    """The layout of Baidu-ULTR: hashes of 31 bits, lists of up to 22."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 2**31, rng.integers(1, 23)).tolist() for _ in range(30)]
    for name, part in (("part-0", rows[:20]), ("part-1", rows[20:]), ("other", rows)):
        table = {"query_doc_ids": part, "clicks": [[0] * len(row) for row in part]}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    return tmp_path, rows


@pytest.mark.parametrize("pair_key", ["document", None])
def test_hashes_are_numbered_or_stay(hashed, pair_key):
    path, rows = hashed
    dataset = open_lists(path, files="part-*.parquet", pair_key=pair_key, positions=10)
    ids = {}
    for hash in (hash for row in rows for hash in row[:10]):
        ids.setdefault(hash, len(ids) + 1)
    found = sum(
        (lists(part, "query_doc_ids") for part in (dataset.train, dataset.val, dataset.test)), []
    )
    number = ids.get if pair_key else int
    assert found == [[number(hash) for hash in row[:10]] for row in rows]
    assert dataset.query_doc_pairs == (len(ids) if pair_key else max(ids))


def test_all_faults_are_named_and_their_rows_left_out(tmp_path):
    clicked, labelled = folder_of(tmp_path / "uva")
    sound = ("no documents", "same position")  # of an empty list nothing says the type
    bad = [row for name, (row, *_) in BAD.items() if name not in sound]
    write(tmp_path / "uva" / "part-0_split-1.parquet", [*clicked[10:14], *bad, *clicked[14:]])
    kinds = "6 kinds", "a vector of 1 numbers", "holds nan, 100000", "features holds null (2 rows"
    others = "clicks has length 1", "positions holds 0", "clicks holds 3", "invalid=drop"
    with refuses(DataError, "split-1.parquet, row 4", *kinds, *others):
        open_baidu_ultr_uva(tmp_path / "uva")
    dataset = open_baidu_ultr_uva(tmp_path / "uva", invalid="drop")
    whole = [dataset.train, dataset.val, dataset.test]
    kept = [[click for position, click in zip(*row[1:]) if position <= 10] for row in clicked]
    assert sum((lists(part, "clicks") for part in whole), []) == [row for row in kept if row]
    assert dataset.notes["dropped_rows"] == len(bad)
    assert dataset.ranking.count == len(labelled)


def of_columns(rows, seed=1):
    """A price with gaps, a flag and a brand for each document of some rows."""
    rng = np.random.default_rng(seed)
    columns = {"price": [], "sale": [], "brand": []}
    for shown, *_ in rows:
        price = rng.normal(50, 9, len(shown)).astype(np.float32).tolist()
        columns["price"].append([None if rng.random() < 0.2 else each for each in price])
        columns["sale"].append((rng.random(len(shown)) < 0.5).tolist())
        columns["brand"].append(rng.choice(["acme", "bolt", "core"], len(shown)).tolist())
    return columns


def test_vectors_are_made_of_columns_and_standardised_by_the_training_documents(tmp_path):
    """By definition in float64: what stands in training sessions counts once for each time it is shown."""
    clicked, labelled = folder_of(tmp_path / "uva", documents=60)
    made = of_columns(clicked + labelled)
    for name, first, last in (
        ("part-0_split-0", 0, 10),
        ("part-0_split-1", 10, 27),
        ("annotations", 27, 30),
    ):
        file = tmp_path / "uva" / f"{name}.parquet"
        table = pq.read_table(file)
        for column, values in made.items():
            table = table.append_column(column, pa.array(values[first:last]))
        pq.write_table(table, file)
    dataset = open_baidu_ultr_uva(
        tmp_path / "uva",
        features=["price", "sale", "query_doc_features", "brand"],
        missing="indicator",
        standardize=True,
        positions=None,
        **WHOLE,
    )
    shown = [sum((list(values) for values in made[name][:21]), []) for name in made]
    columns = dict(zip(made, shown, strict=True))
    prices = np.array([each for each in columns["price"] if each is not None], np.float64)
    deviation = np.sqrt(((prices - prices.mean()) ** 2).sum() / len(columns["price"]))
    vectors = np.concatenate([np.asarray(row[0], np.float32) for row in clicked[:21]])
    vectors = vectors.astype(np.float64)
    brands = dataset.categories["brand"]
    assert brands == list(dict.fromkeys(columns["brand"]))
    found = dataset.train.features.values
    assert found.dtype == np.float32 and dataset.train.standardized == {"query_doc_features"}
    rows = [*zip(clicked + labelled, *(made[name] for name in made), strict=True)]
    ids = sum((lists(part, "query_doc_ids") for part in dataset.parts.values()), [])
    assert len(ids) == len(rows)
    for numbers, ((shown, *_), price, sale, brand) in zip(ids, rows, strict=True):
        absent = np.array([each is None for each in price])
        filled = np.array([prices.mean() if each is None else each for each in price])
        own = (np.asarray(shown, np.float32) - vectors.mean(axis=0)) / vectors.std(axis=0)
        expected = [(filled - prices.mean())[:, None] / deviation, np.array(sale)[:, None], own]
        expected += [np.array(brand)[:, None] == np.array(brands), absent[:, None]]
        np.testing.assert_allclose(found[numbers], np.concatenate(expected, axis=1), atol=2e-5)


def test_features_of_annotated_folders_that_cannot_be_are_refused(tmp_path):
    folder_of(tmp_path / "uva")
    column = {"columns": {"age": {"dtype": "float32"}}}
    for options, *parts in (
        ({"features": ["clicks"]}, "features has clicks"),
        ({"features": ["price"]}, "no column 'price'"),
        (column, "columns.age", "features", "dataset=lists"),
    ):
        with refuses(DataError, *parts):
            open_baidu_ultr_uva(tmp_path / "uva", **options)
