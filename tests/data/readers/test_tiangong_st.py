"""The TianGong-ST text layout, on generated files and on real logs where they are."""

import json

import numpy as np
import pytest
from places import REAL_LOGS
from refusals import refuses

from clickexp.data import open_tiangong_st
from clickexp.data.readers.tiangong_st import FILES
from clickexp.errors import DataError

REAL = REAL_LOGS / "web_search_sessions"


def random_lists(count: int, seed: int, labelled: bool = False) -> list[tuple]:
    """(query, documents, clicks[, labels]) of 2 to 5 documents."""
    rng = np.random.default_rng(seed)
    lists = []
    for _ in range(count):
        size = rng.integers(2, 6)
        row = (
            int(rng.integers(0, 9)),
            rng.integers(0, 40, size).tolist(),
            rng.integers(0, 2, size).tolist(),
        )
        lists.append(row + ((rng.integers(-2, 5, size).tolist(),) if labelled else ()))
    return lists


def line(query, documents, clicks, *labels) -> str:
    return "\t".join(map(str, [7, query, documents, [1] * len(documents), clicks, *labels]))


PARTS = {
    "train": random_lists(30, 1),
    "val": random_lists(8, 2),
    "test": random_lists(9, 3),
    "ranking": random_lists(5, 4, labelled=True),
}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "log"
    path.mkdir()
    for part, rows in PARTS.items():
        (path / FILES[part]).write_text("\n".join(line(*row) for row in rows) + "\n")
    return path


def numbered(pair_key: str, positions: int) -> tuple[dict[str, list[list[int]]], int]:
    """Ids by a dictionary, in order of first appearance."""
    ids, lists = {}, {}
    for part, rows in PARTS.items():
        lists[part] = [
            [
                ids.setdefault(
                    (query, document) if pair_key == "query_document" else document, len(ids) + 1
                )
                for document in documents[:positions]
            ]
            for query, documents, *_ in rows
        ]
    return lists, len(ids)


def cut(sessions, name: str) -> list[list]:
    values, lengths = sessions.column(name), sessions.column("lengths")
    assert not values[np.arange(sessions.ranks) >= lengths[:, None]].any()
    return [row[:length].tolist() for row, length in zip(values, lengths)]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("positions, ranks", [(10, 10), (4, 4), (None, 5)])
@pytest.mark.parametrize("pair_key", ["query_document", "document"])
def test_every_value_arrives(folder, tmp_path, pair_key, positions, ranks, cached):
    options = dict(
        pair_key=pair_key, positions=positions, cache=tmp_path / "cache" if cached else None
    )
    for _ in range(1 + cached):
        dataset = open_tiangong_st(folder, **options)
        ids, pairs = numbered(pair_key, ranks)
        for part, rows in PARTS.items():
            sessions = getattr(dataset, part)
            assert cut(sessions, "query_doc_ids") == ids[part]
            assert cut(sessions, "clicks") == [row[2][:ranks] for row in rows]
            assert sessions.column("query_ids").tolist() == [row[0] for row in rows]
            assert sessions.query_doc_pairs == pairs
        assert cut(dataset.ranking, "labels") == [row[3][:ranks] for row in PARTS["ranking"]]
        assert not dataset.test.has_labels
        assert (dataset.query_doc_pairs, dataset.positions, dataset.train.ranks) == (
            pairs,
            ranks,
            ranks,
        )
        long = sum(len(row[1]) > ranks for rows in PARTS.values() for row in rows)
        assert dataset.notes.get("cut_lists", 0) == long


def test_a_changed_file_is_read_again(folder, tmp_path):
    options = dict(cache=tmp_path / "cache")
    assert open_tiangong_st(folder, **options).val.count == 8
    (folder / FILES["val"]).write_text(line(1, [2], [0]))
    assert open_tiangong_st(folder, **options).val.count == 1


def test_ranking_is_optional_and_files_may_have_other_names(folder):
    (folder / FILES["ranking"]).unlink()
    (folder / FILES["val"]).rename(folder / "dev.txt")
    dataset = open_tiangong_st(folder, files={"val": "dev.txt"})
    assert dataset.ranking is None
    assert dataset.val.count == 8
    (folder / FILES["ranking"]).write_text("")
    assert open_tiangong_st(folder, files={"val": "dev.txt", "ranking": None}).ranking is None
    with refuses(DataError, "labels.txt", "no such file", "set files.ranking"):
        open_tiangong_st(folder, files={"val": "dev.txt", "ranking": "labels.txt"})


def test_windows_line_ends_and_spaces(folder):
    (folder / FILES["val"]).write_bytes(
        b"1\t2\t[ 3,4 ]\t[1, 1]\t[0 , 1]\r\n1\t-2\t[5]\t[1]\t[0]\r\n"
    )
    val = open_tiangong_st(folder).val
    assert cut(val, "clicks") == [[False, True], [False]] and val.column("query_ids").tolist() == [
        2,
        -2,
    ]


BAD_LINES = {
    "text": ("nonsense", "'nonsense' does not parse", "separated by tabs: session id"),
    "blank": ("", "'' does not parse"),
    "no brackets": ("1\t2\t3\t[1]\t[0]", "does not parse"),
    "spaces for tabs": ("1 2 [3] [1] [0]", "does not parse"),
    "word in list": ("1\t2\t[3, x]\t[1, 1]\t[0, 0]", "does not parse"),
    "empty list": ("1\t2\t[]\t[]\t[]", "does not parse"),
    "one column less": ("1\t2\t[3]\t[1]", "does not parse"),
    "one column more": ("1\t2\t[3]\t[1]\t[0]\t[1]", "does not parse"),
    "fewer clicks": ("1\t2\t[3, 4]\t[1, 1]\t[0]", "clicks has length 1", "query_doc_ids has 2"),
    "two clicks": ("1\t2\t[3, 4]\t[1, 1]\t[0, 2]", "clicks holds 2"),
    "beyond 64 bits": (f"1\t2\t[3, {10**30}]\t[1, 1]\t[0, 0]", f"query_doc_ids holds '{10**30}'"),
    "query beyond 64 bits": (f"1\t{10**30}\t[3]\t[1]\t[0]", f"query_ids holds '{10**30}'"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_lines_are_named(folder, case):
    bad, *parts = BAD_LINES[case]
    path = folder / FILES["test"]
    lines = path.read_text().splitlines()
    lines[2] = bad
    path.write_text("\n".join(lines))
    with refuses(DataError, f"{path.name}, line 3:", *parts):
        open_tiangong_st(folder)


@pytest.mark.parametrize("shared", [True, False])
def test_search_sessions_that_parts_share_are_pointed_out(shared, tmp_path, caplog):
    for number, part in enumerate(("train", "val", "test"), start=1):
        session = 1 if shared and part != "val" else number
        rows = [[session, 1, [1, 2], [1, 1], [0, 1]], [session, 2, [3], [1], [0]]]
        (tmp_path / FILES[part]).write_text(
            "".join("\t".join(map(str, row)) + "\n" for row in rows)
        )
    open_tiangong_st(tmp_path, files={"ranking": None})
    found = [
        line.getMessage()
        for line in caplog.records
        if "search sessions of training" in line.getMessage()
    ]
    assert [line.startswith("2 lists of validation or test") for line in found] == [True] * shared


def test_labelled_lists_need_relevance(folder):
    (folder / FILES["ranking"]).write_text(line(1, [2], [0]))
    with refuses(DataError, "line 1", "[clicks], [relevance]"):
        open_tiangong_st(folder)


def test_bad_files_and_settings(folder):
    with refuses(DataError, "pair_key is 'query'"):
        open_tiangong_st(folder, pair_key="query")
    with refuses(DataError, "files", "['valid']"):
        open_tiangong_st(folder, files={"valid": "x"})
    (folder / FILES["test"]).write_bytes(b"\xff\xfe")
    with refuses(DataError, "cannot be read", "Save it as UTF-8"):
        open_tiangong_st(folder)
    (folder / FILES["test"]).write_text("")
    with refuses(DataError, "line 1", "'' does not parse"):
        open_tiangong_st(folder)
    (folder / FILES["test"]).unlink()
    with refuses(DataError, "test_per_query_quid.txt", "no such file", "set files.test"):
        open_tiangong_st(folder)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real logs at {REAL}")
def test_real_logs_have_the_counts_of_their_lines():
    """Counts by wc, and by set and sum over the lines read as JSON."""
    dataset = open_tiangong_st(REAL)
    pairs, documents = set(), set()
    for part, name in FILES.items():
        lines = (REAL / name).read_text().splitlines()
        rows = [[json.loads(field) for field in line.split("\t")] for line in lines]
        pairs |= {(row[1], document) for row in rows for document in row[2]}
        documents |= {document for row in rows for document in row[2]}
        sessions = getattr(dataset, part)
        assert sessions.count == len(rows)
        assert sessions.clicks_total == sum(sum(row[4]) for row in rows)
    assert [getattr(dataset, part).count for part in FILES] == [2872, 361, 363, 856]
    assert dataset.query_doc_pairs == len(pairs) == 27964
    assert open_tiangong_st(REAL, pair_key="document").query_doc_pairs == len(documents) == 10959
    labels, counts = np.unique(dataset.ranking.column("labels"), return_counts=True)
    assert dict(zip(labels, counts)) == {-2: 497, 0: 5063, 1: 2170, 2: 692, 3: 101, 4: 37}


def test_all_faults_are_named_and_their_lists_left_out(folder):
    with (folder / FILES["train"]).open("a") as file:
        file.write("7\t1\t[1]\t[1]\nno line\n7\t1\t[1, 2]\t[1, 1]\t[0]\n7\t1\t[1]\t[1]\t[2]\n")
    with (folder / FILES["test"]).open("a") as file:
        file.write("7\t1\t[]\t[]\t[]\n")
    parses = "line 31: '7\\t1\\t[1]\\t[1]' does not parse", "(3 rows, next line 32, ...)"
    others = "line 33: clicks has length 1", "line 34: clicks holds"
    with refuses(DataError, "3 kinds of faults", *parses, *others, "invalid=drop"):
        open_tiangong_st(folder)
    sound = {part: len(rows) for part, rows in PARTS.items()}
    dataset = open_tiangong_st(folder, invalid="drop")
    assert {name: part.count for name, part in dataset.parts.items()} == sound
    assert dataset.notes["dropped_lines"] == 5
