"""Stored data: sizes are checked where a log is opened, all else where it is verified."""

import json
import os
import zlib

import numpy as np
import polars as pl
import pytest
from refusals import refuses
from stored_logs import reseal

from clickexp.data import (
    Log,
    LogWriter,
    SourceLocation,
    checksums,
    log_format,
    open_lists,
    prepare,
)
from clickexp.data.arrays import GrowingArray
from clickexp.data.checksums import REMEDY, DamagedError
from clickexp.data.description import Description
from clickexp.data.names import read_names
from clickexp.data.prepared import verify_log
from clickexp.data.records import columns_of, width_of
from clickexp.errors import DataError

SESSIONS, RANKS, PAIRS = 12, 3, 20


def columns(seed=0):
    rng = np.random.default_rng(seed)
    shape = (SESSIONS, RANKS)
    return dict(
        query_doc_ids=rng.integers(1, PAIRS + 1, shape),
        clicks=rng.random(shape) < 0.5,
        lengths=np.full(SESSIONS, RANKS),
        positions=rng.integers(1, 9, shape),
    )


def read(source, log):
    """A reader of anything: the same sessions, features and names each time."""
    with log.part("sessions", RANKS, list(columns())) as pack:
        pack.append(columns(), SourceLocation(str(source)))
    log.add_features(np.random.default_rng(1).random((PAIRS, 2)))
    log.names.append(document=np.arange(PAIRS) * 7)
    log.note("cut_lists", 0)
    log.progress(SESSIONS, SESSIONS)


def contents(log):
    """Everything that a log holds."""
    part = log.parts["sessions"]
    arrays = {name: values.tolist() for name, values in part.columns.items()}
    bounds = part.query_doc_pairs, part.positions
    names = read_names(log.names).rows()
    return (
        arrays,
        bounds,
        part.features.values.tolist(),
        names,
        log.name,
        log.format,
        dict(log.notes),
    )


@pytest.fixture
def folder(tmp_path):
    with LogWriter(tmp_path / "log", "small", "none") as log:
        read("nowhere", log)
    return tmp_path / "log"


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(file, bit):
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


@pytest.mark.filterwarnings("ignore")  # of numpy, about headers that look old
def test_damage_is_an_error_or_changes_nothing(folder):
    """Flipped bits, cut ends and other bytes anywhere: what verifies holds what was written."""
    rng, expected, silent = np.random.default_rng(0), contents(Log.open(folder)), 0
    for file in files_of(folder):
        good = file.read_bytes()
        damaged = [
            b"",
            good[:-1],
            good[: len(good) // 2],
            b"\0" * len(good),
            b"\xff" * len(good),
            b"PK\3\4" + good,
        ]
        for bit in rng.integers(0, 8 * len(good), 25):
            file.write_bytes(good)
            flip(file, bit)
            damaged.append(file.read_bytes())
        for data in damaged:
            file.write_bytes(data)
            try:
                verify_log(folder)
                found = contents(Log.open(folder))
            except DataError as error:
                assert str(folder) in str(error) and "\n" not in str(error)
            else:
                assert found == expected, file
                silent += 1
        file.write_bytes(good)
    assert silent < 60  # blanks in headers, and those of log.json
    assert contents(Log.open(folder)) == expected


def test_a_file_of_another_size_does_not_open(folder):
    for file in files_of(folder):
        good = file.read_bytes()
        for data in (b"", good[:-1], good + b"\0"):
            file.write_bytes(data)
            with refuses(DataError, str(folder), file.name):
                Log.open(folder)
        file.write_bytes(good)
    assert contents(Log.open(folder))


def test_a_damage_that_keeps_the_size_is_found_by_verify(folder):
    file = folder / "sessions" / "records.npy"
    flip(file, 8 * file.stat().st_size - 10)
    Log.open(folder)
    with refuses(DataError, f"{folder}", "damaged: sessions/records.npy (the checksum differs)"):
        verify_log(folder)


def test_a_pipe_in_the_place_of_an_array_is_not_waited_for(folder):
    file = folder / "sessions" / "records.npy"
    file.unlink()
    os.mkfifo(file)
    with refuses(DataError, f"{file}: cannot be read", "no file"):
        Log.open(folder)


@pytest.mark.parametrize("byte", [1, 3])
def test_an_id_that_the_log_cannot_have_is_no_document(folder, byte):
    """A byte of a 32-bit id makes it too large, or negative; the sizes of the files say nothing of it."""
    file = folder / "sessions" / "records.npy"
    last = file.stat().st_size - 4 * (width_of(RANKS) - RANKS + 1)
    flip(file, 8 * (last + byte) + 7)
    part = Log.open(folder).parts["sessions"]
    with refuses(
        DataError, f"{folder / 'sessions'}: query_doc_ids holds", "prepare the data again"
    ):
        part.check_stored_ids()


def test_all_damaged_files_are_named(folder):
    flip(folder / "features.npy", 8 * 130)
    (folder / "sessions" / "positions.npy").write_bytes(b"")
    with refuses(
        DataError, "features.npy (the checksum differs)", "sessions/positions.npy (it has 0"
    ):
        verify_log(folder)


def test_a_verification_reports_the_bytes(folder, monkeypatch):
    monkeypatch.setattr(checksums, "_LONG", 0)
    calls = []
    verify_log(folder, lambda *call: calls.append(call))
    assert calls[-1][0] == calls[-1][1] > 0
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


@pytest.mark.parametrize(
    "name, value", [("query_doc_ids", -1), ("query_doc_ids", PAIRS + 1), ("lengths", RANKS + 1),
                    ("lengths", 0), ("lengths", -5), ("positions", -1), ("positions", 99), ("clicks", 2)]
)  # fmt: skip
def test_numbers_that_no_log_has_are_found_whatever_the_checksums(folder, name, value):
    """As whoever writes a log can make checksum and seal those of the new numbers."""
    stored = name if name == "positions" else "records"
    file = folder / "sessions" / f"{stored}.npy"
    values = np.load(file)
    column = columns_of(values)[name] if stored == "records" else values
    column = column.view(np.uint8) if name == "clicks" else column
    column[(1, *[0] * (column.ndim - 1))] = value
    np.save(file, values)
    part = json.loads((folder / "log.json").read_text())["parts"]["sessions"]
    reseal(folder, {"crc32": part["crc32"] | {stored: zlib.crc32(values.tobytes())}}, "sessions")
    with refuses(DataError, f"{folder}/sessions, row ", f"{name} holds {value}"):
        verify_log(folder)


@pytest.mark.parametrize("name", ["positions", "query_doc_pairs"])
def test_sizes_that_nothing_fills_are_found_whatever_the_seal(tmp_path, name):
    """A model of the log would get a table of a billion rows."""
    source, folder = tmp_path / "log.parquet", tmp_path / "log"
    pl.DataFrame({"query_doc_ids": [[1, 2]] * 9, "clicks": [[1, 0]] * 9}).write_parquet(source)
    prepare(open_lists.read, "lists", source, folder, pair_key="document")
    assert verify_log(folder)
    reseal(folder, {name: 10**9}, "sessions")
    with refuses(DamagedError, f"{folder}/sessions", f"{name} is 1000000000", REMEDY):
        verify_log(folder)


@pytest.mark.parametrize(
    "table", [{"document": range(PAIRS - 1)}, {"other": range(PAIRS)}, {"query": range(PAIRS)}]
)
def test_names_that_lack_documents_are_found_where_they_are_read(folder, table):
    names = folder / "names.parquet"
    pl.DataFrame(table).write_parquet(names)
    rename(folder, names)
    log = Log.open(folder)
    with refuses(DataError, "names.parquet", f"{PAIRS} documents", "prepare the data again"):
        read_names(log.names, PAIRS)
    with refuses(DataError, "names.parquet", f"{PAIRS} documents"):
        log.parts["sessions"].column("document_ids")


WRONG = {
    "name": (dict(name=None), "name: "),
    "parts": (dict(parts=7), ""),
    "no parts": (dict(parts={}), "parts is []"),
    "outside": (dict(parts={"sessions": {}, "../other": {}}), "parts."),
    "notes": (dict(notes=["x"]), ""),
}


def test_a_wrong_description_is_one_line(folder):
    description = (folder / "log.json").read_text()
    for changes, wrong in WRONG.values():
        reseal(folder, changes)
        with refuses(
            DataError, "log.json: cannot be read", wrong, "prepare the data again"
        ) as refused:
            Log.open(folder)
        assert "\n" not in str(refused.value)
        (folder / "log.json").write_text(description)


def test_names_that_are_no_parquet_are_one_line(folder):
    names = folder / "names.parquet"
    names.write_bytes(b"PAR1 and no more")
    rename(folder, names)
    with refuses(DataError, "log/names.parquet", "cannot be read as parquet"):
        read_names(Log.open(folder).names)


def rename(folder, names):
    """Describes other names as those of the log."""
    files = json.loads((folder / "log.json").read_text())["files"]
    reseal(
        folder, {"files": files | {names.name: [names.stat().st_size, checksums.checksum(names)]}}
    )


def test_a_damaged_cache_is_made_again_with_a_line(tmp_path, caplog):
    calls = []
    source, opener = (
        tmp_path / "source.txt",
        log_format("tests")(lambda path, log: calls.append(read(path, log))),
    )
    source.touch()
    splits = dict(train_sessions=0.5, val_sessions=0.25, test_sessions=0.25)

    def opened():
        parts = opener(source, cache=tmp_path / "cache", **splits).parts
        return [part.column("query_doc_ids").tolist() for part in parts.values()]

    expected, [kept] = opened(), (tmp_path / "cache").iterdir()
    assert opened() == expected and len(calls) == 1 and not caplog.messages
    for count, file in enumerate(files_of(kept), start=2):
        file.write_bytes(b"")
        caplog.clear()
        assert opened() == expected and len(calls) == count
        [message] = caplog.messages
        assert file.name in message and message.endswith(f"Reading {source} again.")
        assert [path.name for path in (tmp_path / "cache").iterdir()] == [kept.name]
    (kept / "log.json").unlink()
    assert opened() == expected and "log.json is missing" in caplog.messages[-1]


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (1000, 77), (3, 1 << 20)])
def test_checksums_of_parts_join_to_that_of_the_whole(sizes):
    first, second = (np.random.default_rng(size).bytes(size) for size in sizes)
    joined = checksums.joined_checksum(zlib.crc32(first), zlib.crc32(second), len(second))
    assert joined == zlib.crc32(first + second)


def test_rows_that_are_written_apart_make_the_array(tmp_path):
    values = np.random.default_rng(0).integers(0, 99, (7, 3, 2)).astype(np.int16)
    """The last ones first, as a process does that is quicker than another."""
    whole = GrowingArray(tmp_path / "a.npy", np.int16, (3, 2))
    end = GrowingArray(tmp_path / "a.npy", np.int16, (3, 2), first=4)
    end.append(values[4:5])
    end.append(values[5:].astype(np.int64))
    end.close()
    begin = GrowingArray(tmp_path / "a.npy", np.int16, (3, 2), first=0)
    begin.append(values[:4])
    begin.close()
    for part in (begin, end):
        whole.extend(part.rows, part.crc)
    whole.close()
    np.save(tmp_path / "b.npy", values)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert whole.crc == zlib.crc32(values.tobytes())


IMPOSSIBLE = {
    "no category": ("device", -1, 3),
    "below all": ("device", 0, -1),
    "no length": ("records", (0, RANKS + 1), 0),
    "longer than a list": ("records", (0, RANKS + 1), 1 << 30),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_numbers_that_no_log_has_are_found_whatever_the_checksums_say(case, tmp_path):
    """Whoever writes a log can seal it, too: nothing of it may be an index without a check."""
    rows = pl.DataFrame(
        {
            "query_doc_ids": [[*range(1, RANKS + 1)]] * 10,
            "clicks": [[1] + [0] * (RANKS - 1)] * 10,
            "device": ["a", "b"] * 5,
        }
    )
    rows.write_parquet(tmp_path / "log.parquet")
    device = {"device": {"dtype": "category", "per": "session"}}
    folder = tmp_path / "log"
    prepare(open_lists.read, "lists", tmp_path / "log.parquet", folder, columns=device)
    name, index, value = IMPOSSIBLE[case]
    file = folder / f"sessions/{name}.npy"
    array = np.load(file)
    array[index] = value
    np.save(file, array)
    stated = Description.read(folder).parts["sessions"].crc32
    reseal(folder, {"crc32": {**stated, name: zlib.crc32(array.tobytes())}}, "sessions")
    with refuses(DataError, str(folder), name if name == "device" else "lengths"):
        verify_log(folder)
    with refuses(DataError, name if name == "device" else "lengths", REMEDY):
        for part in Log.open(folder).dataset().parts.values():
            part.check_stored_ids()
            part.column("device")
