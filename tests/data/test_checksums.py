"""Stored data: damage is found before anything reads it, once per machine and change."""

import json
import os
import shutil
import socket
import zlib

import numpy as np
import polars as pl
import pytest
from refusals import refuses

from clickexp.data import DataError, Log, LogWriter, SourceLocation, checksums, log_format
from clickexp.data.names import read_names

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


@pytest.fixture
def verifications():
    """The calls of a progress that is called during verifications only."""
    return []


@pytest.fixture
def reopen(folder, verifications, monkeypatch):
    """Opens the log and returns how often a verification called back."""
    monkeypatch.setattr(checksums, "_LONG", 0)

    def reopen(folder=folder, **options):
        verifications.clear()
        Log.open(folder, progress=lambda *call: verifications.append(call), **options)
        return len(verifications)

    return reopen


def files_of(folder):
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and ".verified" not in path.parts
    )


def flip(file, bit):
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


@pytest.mark.filterwarnings("ignore")  # of numpy, about headers that look old
def test_damage_is_an_error_or_changes_nothing(folder):
    """Flipped bits, cut ends and other bytes anywhere: what opens holds what was written."""
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
                found = contents(Log.open(folder))
            except DataError as error:
                assert str(folder) in str(error) and "\n" not in str(error)
            else:
                assert found == expected, file
                silent += 1
        file.write_bytes(good)
    assert silent < 60  # blanks in headers, and the name of the checksum itself
    assert contents(Log.open(folder)) == expected


def test_files_are_verified_once(folder, reopen, verifications, monkeypatch, tmp_path):
    assert reopen() == 0  # as this machine has just written it
    shutil.copytree(folder, tmp_path / "copy")  # with the times of modification and the stamp
    assert reopen(tmp_path / "copy") > 0 and reopen(tmp_path / "copy") == 0
    assert verifications == [] and reopen() == 0
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "another/../machine")
        assert reopen() > 0 and reopen() == 0
    assert reopen() == 0  # its own stamp is still there
    calls = reopen(shutil.copytree(folder, tmp_path / "again"))
    assert calls == len(verifications) and verifications[-1][0] == verifications[-1][1] > 0
    assert [done for done, _ in verifications] == sorted(done for done, _ in verifications)


def test_a_change_that_keeps_size_and_time_is_seen(folder, reopen):
    file = folder / "sessions" / "query_doc_ids.npy"
    stat = file.stat()
    flip(file, 8 * stat.st_size - 10)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with refuses(
        DataError, f"{folder}", "damaged: sessions/query_doc_ids.npy (the checksum differs)"
    ):
        reopen()


def test_all_damaged_files_are_named(folder, reopen):
    flip(folder / "features.npy", 8 * 130)
    (folder / "sessions" / "clicks.npy").write_bytes(b"")
    with refuses(DataError, "features.npy (the checksum differs)", "sessions/clicks.npy (empty)"):
        reopen()


def test_a_folder_that_cannot_be_written_has_its_stamp_in_the_cache(folder, reopen, tmp_path):
    shutil.rmtree(folder / ".verified")
    (
        folder / ".verified"
    ).touch()  # in the way: the tests may run as a user who may write everywhere
    assert reopen() > 0 and reopen() > 0
    assert reopen(cache=tmp_path / "cache") > 0 and reopen(cache=tmp_path / "cache") == 0
    flip(folder / "features.npy", 8 * 130)
    with pytest.raises(DataError, match="features.npy"):
        reopen(cache=tmp_path / "cache")


def test_what_a_disk_forgets_is_found_by_verify_and_no_longer_opened(folder, reopen):
    """Damage that no time betrays, as if the stamp had been written after it."""
    flip(folder / "features.npy", 8 * 130)
    [stamp] = (folder / ".verified").iterdir()
    stamp.write_text(checksums._state(folder, _stored(folder)))
    assert reopen() == 0
    with pytest.raises(DataError, match="features.npy"):
        checksums.verify(folder, _stored(folder))
    with pytest.raises(DataError, match="features.npy"):
        reopen()


def _stored(folder):
    from clickexp.data.prepared import log_files

    return log_files(folder)


def rewrite(folder, **changes):
    """log.json as earlier versions wrote it, without checksums."""
    meta = json.loads((folder / "log.json").read_text()) | changes
    kept = {
        key: value
        for key, value in meta.items()
        if value is not None and key not in ("seal", "crc32")
    }
    (folder / "log.json").write_text(json.dumps(kept))


def test_logs_of_earlier_versions_open(folder, reopen):
    expected = contents(Log.open(folder))
    rewrite(folder)
    pack = json.loads((folder / "sessions" / "meta.json").read_text())
    del pack["seal"]
    (folder / "sessions" / "meta.json").write_text(json.dumps(pack))
    shutil.rmtree(folder / ".verified")
    assert contents(Log.open(folder)) == expected and reopen() == 0


def reseal(folder, name, change):
    """Changes the numbers of a column as the author of a log can: checksum and seal are those of the new ones."""
    pack = folder / "sessions"
    values = np.load(pack / f"{name}.npy")
    change(values)
    np.save(pack / f"{name}.npy", values)
    meta = json.loads((pack / "meta.json").read_text())
    meta["crc32"][name] = zlib.crc32(values.tobytes())
    meta.pop("seal")
    (pack / "meta.json").write_text(checksums.sealed(meta))
    shutil.rmtree(folder / ".verified", ignore_errors=True)


@pytest.mark.parametrize(
    "name, value", [("query_doc_ids", -1), ("query_doc_ids", PAIRS + 1), ("lengths", RANKS + 1), ("lengths", 0),
                    ("lengths", -5), ("positions", -1), ("positions", 9), ("clicks", 2)]
)  # fmt: skip
def test_numbers_beyond_their_bounds_are_found_whatever_the_checksums(folder, name, value):
    def change(values):
        values.view(np.uint8 if values.dtype == bool else values.dtype).reshape(-1)[3] = value

    reseal(folder, name, lambda values: None)
    Log.open(folder)
    reseal(folder, name, change)
    with refuses(DataError, f"{name}.npy", f"is {value}", "prepare the data again"):
        Log.open(folder)


@pytest.mark.parametrize(
    "table", [{"document": range(PAIRS - 1)}, {"other": range(PAIRS)}, {"query": range(PAIRS)}]
)
def test_names_that_lack_documents_are_found_where_they_are_read(folder, table):
    rewrite(folder)
    pl.DataFrame(table).write_parquet(folder / "names.parquet")
    log = Log.open(folder)
    with refuses(DataError, "names.parquet", f"{PAIRS} documents", "prepare the data again"):
        read_names(log.names, PAIRS)
    with refuses(DataError, "names.parquet", f"{PAIRS} documents"):
        log.parts["sessions"].column("document_ids")


WRONG = {
    "name": (dict(name=None), "'name' is missing"),
    "parts": (dict(parts=7), "parts is 7"),
    "no parts": (dict(parts=[]), "parts is []"),
    "some parts": (dict(parts=["train", "test"]), "parts is"),
    "outside": (dict(parts=["sessions", "../other"]), "parts is"),
    "notes": (dict(notes=["x"]), "notes is"),
    "note": (dict(notes={"x": {}}), "notes is"),
}


def test_a_wrong_description_is_one_line(folder):
    description = (folder / "log.json").read_text()
    for changes, wrong in WRONG.values():
        rewrite(folder, **changes)
        with refuses(
            DataError, "log.json: cannot be read", wrong, "prepare the data again"
        ) as refused:
            Log.open(folder)
        assert "\n" not in str(refused.value)
        (folder / "log.json").write_text(description)


def test_names_that_are_no_parquet_are_one_line(folder):
    rewrite(folder)
    (folder / "names.parquet").write_bytes(b"PAR1 and no more")
    log = Log.open(folder)
    with refuses(DataError, "log/names.parquet", "cannot be read as parquet"):
        read_names(log.names)


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
