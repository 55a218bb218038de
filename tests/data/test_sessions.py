"""Packed sessions: checks, views, the folder on disk."""

import numpy as np
import pytest
from refusals import refuses
from stored_logs import reseal, stored

from clickexp.data import Log, LogWriter, Sessions, SourceLocation
from clickexp.data.prepared import verify_log
from clickexp.errors import DataError


def ragged(count: int, ranks: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random padded sessions with every optional column."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, ranks + 1, count)
    shown = np.arange(ranks) < lengths[:, None]
    return {
        "query_doc_ids": rng.integers(1, 50, (count, ranks)) * shown,
        "clicks": (rng.random((count, ranks)) < 0.3) & shown,
        "lengths": lengths,
        "query_ids": rng.integers(-9, 9, count),
        "positions": rng.integers(1, 2 * ranks, (count, ranks)) * shown,
        "labels": rng.integers(-2, 5, (count, ranks)).astype(np.float64) * shown,
    }


def same(sessions: Sessions, arrays: dict[str, np.ndarray], rows=slice(None)) -> bool:
    return set(sessions.columns) == set(arrays) and all(
        np.array_equal(sessions.column(name), values[rows]) for name, values in arrays.items()
    )


def test_from_arrays_packs_types_and_counts():
    arrays = ragged(40, 5)
    sessions = Sessions.from_arrays(**arrays)
    types = {name: str(values.dtype) for name, values in sessions.columns.items()}
    assert types == {
        "query_doc_ids": "int32",
        "clicks": "bool",
        "lengths": "int32",
        "query_ids": "int64",
        "positions": "int32",
        "labels": "float32",
    }
    assert same(sessions, arrays)
    assert (sessions.count, sessions.ranks, sessions.has_labels) == (40, 5, True)
    assert sessions.documents == arrays["lengths"].sum()
    assert sessions.clicks_total == arrays["clicks"].sum()
    assert sessions.query_doc_pairs == arrays["query_doc_ids"].max()
    assert sessions.positions == arrays["positions"].max()


def test_without_lengths_lists_are_full_and_ranks_are_positions():
    ids, clicks = [[3, 0], [1, 2]], [[0.0, 1.0], [1, 0]]
    sessions = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=9)
    assert sessions.column("lengths").tolist() == [2, 2]
    assert sessions.column("clicks").tolist() == [[False, True], [True, False]]
    assert (sessions.positions, sessions.query_doc_pairs, sessions.has_labels) == (2, 9, False)


BAD = {
    "negative id": (
        dict(query_doc_ids=[[1, 2], [-7, 2]]),
        "log.x, row 1",
        "query_doc_ids holds -7",
    ),
    "id above 32 bits": (
        dict(query_doc_ids=[[1, 2], [3, 2**31]]),
        "row 1",
        "query_doc_ids holds 2147483648",
    ),
    "id above the table": (
        dict(query_doc_ids=[[1, 2], [3, 5]], query_doc_pairs=4),
        "row 1",
        "ids holds 5",
    ),
    "float id": (dict(query_doc_ids=[[1.0, 2.0], [3.0, 2.0]]), "query_doc_ids", "float64"),
    "half a click": (dict(clicks=[[0, 1], [0.5, 0]]), "row 1", "clicks holds 0.5"),
    "two clicks": (dict(clicks=[[0, 1], [2, 0]]), "row 1", "clicks holds 2"),
    "NaN click": (dict(clicks=[[0, np.nan], [1, 0]]), "row 0", "clicks holds nan"),
    "text click": (dict(clicks=[["a", "b"], ["c", "d"]]), "clicks", "<U1"),
    "id on padding": (dict(lengths=[2, 1]), "row 1", "query_doc_ids holds 2", "the length"),
    "empty list": (dict(lengths=[0, 2]), "row 0", "lengths holds 0"),
    "long list": (dict(lengths=[2, 3]), "row 1", "lengths holds 3"),
    "infinite label": (dict(labels=[[1, 1e39], [0, 1]]), "row 0", "labels holds 1e"),
    "position 0": (dict(positions=[[1, 2], [1, 0]]), "row 1", "positions holds 0"),
    "other ranks": (dict(clicks=[[0, 1, 0], [0, 1, 0]]), "clicks", "(2, 3)"),
    "other sessions": (dict(query_ids=[1, 2, 3]), "query_ids", "(3,)"),
    "one axis": (dict(query_doc_ids=[1, 2]), "query_doc_ids", "(2,)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_values_name_place_and_value(case):
    changes, *parts = BAD[case]
    arrays = dict(query_doc_ids=[[1, 2], [3, 2]], clicks=[[0, 1], [0, 0]]) | changes
    with refuses(DataError, *parts):
        Sessions.from_arrays(**arrays, location=SourceLocation("log.x"))


def test_click_on_padding_alone():
    with refuses(DataError, "row 6", "clicks holds True", "the length"):
        Sessions.from_arrays(
            query_doc_ids=[[4, 0]], clicks=[[0, 1]], lengths=[1], location=SourceLocation("x", 6)
        )


def test_views_compose():
    arrays = ragged(60, 4)
    sessions = Sessions.from_arrays(**arrays)
    numbers = np.arange(60)
    chosen = np.array([7, 7, 3, 30, 0])
    part = sessions.slice(10, 50).select(chosen).slice(1, 4).select([2, 0])
    assert same(part, arrays, numbers[10:50][chosen][1:4][[2, 0]])
    assert part.count == 2 and part.documents == part.column("lengths").sum()
    assert np.shares_memory(sessions.slice(10, 50).columns["clicks"], sessions.columns["clicks"])
    with pytest.raises(IndexError, match="in 0 to 39"):
        sessions.slice(10, 50).select([40])
    with pytest.raises(IndexError):
        sessions.select([-1])


@pytest.mark.parametrize("chunk", [7, 1000])
def test_stored_sessions_open_equal(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("clickexp.data.view._CHUNK", chunk)
    arrays = ragged(50, 3)
    view = Sessions.from_arrays(**arrays, query_doc_pairs=99).select(np.arange(49, 9, -1))
    opened = stored(view, tmp_path / "a" / "log")
    assert same(opened, arrays, np.arange(49, 9, -1))
    assert (opened.query_doc_pairs, opened.positions) == (99, view.positions)
    assert (opened.documents, opened.clicks_total) == (view.documents, view.clicks_total)
    verify_log(tmp_path / "a" / "log")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["log"]
    with pytest.raises(ValueError, match="read-only"):
        opened.columns["clicks"][0, 0] = True


def _cut_file(folder):
    path = folder / "sessions/records.npy"
    path.write_bytes(path.read_bytes()[:-3])


def _other_shape(folder):
    np.save(folder / "sessions/records.npy", np.zeros((3, 3), np.int32))


def _other_header(folder):
    path = folder / "sessions/records.npy"
    path.write_bytes(path.read_bytes().replace(b"(20, 5)", b"(10, 9)"))


def _other_key(**changes):
    return lambda folder: reseal(folder, changes, "sessions")


def _other_digit(folder):
    text = (folder / "log.json").read_text()
    (folder / "log.json").write_text(text.replace('"count": 20', '"count": 21'))


META, RECORDS = "log.json: cannot be read", "sessions/records.npy"
DAMAGES = {
    "cut": (_cut_file, f"{RECORDS}: cannot be read"),
    "empty": (lambda folder: (folder / RECORDS).write_bytes(b""), f"{RECORDS}: cannot be read"),
    "gone": (lambda folder: (folder / RECORDS).unlink(), RECORDS, "No such"),
    "shape": (_other_shape, f"{RECORDS}: it is int32[3, 3], not int32[20, 5]"),
    "header": (_other_header, f"{RECORDS}: cannot be read"),
    "digit": (_other_digit, META, "the checksum differs"),
    "description empty": (lambda folder: (folder / "log.json").write_text(""), META, "Expecting"),
    "description a list": (lambda folder: (folder / "log.json").write_text("[]"), META, "it holds"),
    "version": (lambda folder: reseal(folder, {"version": 0}), META, "version"),
    "key": (_other_key(ranks=None), META, "parts.sessions.ranks"),
    "sums": (_other_key(crc32=[]), META),
    "columns": (_other_key(crc32={"../../clicks": 1}), META, "../../clicks"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_folder_does_not_open(tmp_path, case):
    damage, *parts = DAMAGES[case]
    stored(Sessions.from_arrays(**ragged(20, 3)), tmp_path / "log")
    damage(tmp_path / "log")
    with refuses(DataError, f"{tmp_path}/log", *parts) as refused:
        Log.open(tmp_path / "log")
    assert "\n" not in str(refused.value) and "prepare the data again" in str(refused.value)


def test_a_log_is_written_whole_or_not_at_all(tmp_path):
    good = Sessions.from_arrays(**ragged(5, 3)).columns
    bad = dict(good, lengths=np.array([1, 1, 9, 1, 1]))
    with refuses(DataError, "part.x, line 12", "lengths holds 9"):
        with LogWriter(tmp_path / "log", "log", "none") as log:
            with log.part("sessions", 3, good) as pack:
                pack.append(good, SourceLocation("part.x", 5, "line"))
                pack.append(bad, SourceLocation("part.x", 10, "line"))
    with refuses(DataError, "part.y, row 0", "query_doc_ids holds"):
        with LogWriter(tmp_path / "log", "log", "none") as log:
            with log.part("sessions", 3, good, max_id=0) as pack:
                pack.append(good, SourceLocation("part.y"))
    with refuses(DataError, "no sessions"):
        with LogWriter(tmp_path / "log", "log", "none") as log:
            with log.part("sessions", 3, good):
                pass
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_writers_wins(tmp_path):
    one, two = (Sessions.from_arrays(**ragged(5, 3, seed)) for seed in (1, 2))
    with LogWriter(tmp_path / "log", "log", "none") as late:
        with late.part("sessions", 3, one.columns) as pack:
            pack.append(one.columns, SourceLocation("one"))
        stored(two, tmp_path / "log")
    assert same(Log.open(tmp_path / "log").parts["sessions"], dict(two.columns))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_missing_column_is_named():
    with refuses(DataError, "no query_ids"):
        Sessions.from_arrays(query_doc_ids=np.array([[1]]), clicks=np.array([[1]])).column(
            "query_ids"
        )
