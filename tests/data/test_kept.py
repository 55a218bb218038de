"""Counts that lie beside a prepared log: equal to counting, of these sessions alone, whoever writes meanwhile."""

import math
import os
import shutil
import threading

import numpy as np
import pytest
from refusals import refuses

from clickexp.data import Log, LogWriter, Sessions, SourceLocation, kept
from clickexp.data.by_document import ByDocument
from clickexp.data.inspect.identifiability import identifiability
from clickexp.errors import DataError

RANKS = 4
SPLIT = {"train_sessions": [0, 30], "val_sessions": [30, 40], "test_sessions": [40, 50]}


def columns(seed=0, largest=20):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, RANKS + 1, 50).astype(np.int32)
    shown = np.arange(RANKS) < lengths[:, None]
    ids = np.where(shown, rng.integers(1, largest + 1, shown.shape), 0).astype(np.int32)
    return {
        "query_doc_ids": ids,
        "clicks": shown & (rng.random(shown.shape) < 0.4),
        "lengths": lengths,
    }


def prepared(folder, **settings):
    with LogWriter(folder, "small", "none") as log:
        with log.part("sessions", RANKS, [*columns()]) as part:
            part.append(columns(**settings), SourceLocation("here"))
    return folder


def train(folder, **split):
    return Log.open(folder).dataset(**(SPLIT | split)).train


def expected(sessions, largest):
    """By id, of full arrays."""
    ids, clicks = sessions.column("query_doc_ids"), sessions.column("clicks")
    shown = np.arange(RANKS) < sessions.column("lengths")[:, None]
    ranks = np.broadcast_to(np.arange(1.0, RANKS + 1), ids.shape)
    log_ranks = np.log(ranks)
    by_id = [
        np.bincount(ids[shown], weights[shown], largest + 1)
        for weights in (np.ones(ids.shape), clicks, log_ranks, ranks)
    ]
    return *by_id, np.sum(log_ranks[shown] ** 2)


def assert_counts(sessions, largest=20):
    counts = ByDocument.of(sessions).dense(largest + 1)
    for found, wanted in zip(counts, expected(sessions, largest), strict=False):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def not_counted(*_):
    raise AssertionError("counted again")


@pytest.mark.parametrize("largest", [20, 5000], ids=["by id", "by the ids shown"])
def test_counts_are_made_once(largest, tmp_path, monkeypatch):
    folder = prepared(tmp_path / "log", largest=largest)
    assert_counts(train(folder), largest)
    monkeypatch.setattr("clickexp.data.by_document._counted", not_counted)
    assert_counts(train(folder), largest)


@pytest.mark.parametrize("enough", [None, 20])
def test_links_of_positions_are_counted_once(enough, tmp_path, monkeypatch):
    """They are those of the same sessions in memory, and others where fewer sessions are enough."""
    monkeypatch.setattr("clickexp.data.inspect.identifiability._LEAST_REPEATS", 1)
    folder = prepared(tmp_path / "log", largest=60)
    identifiability(train(folder), 10)
    of_memory = Sessions.from_arrays(**dict(train(folder).columns))
    for counted_again in (True, False):
        if not counted_again:
            monkeypatch.setattr("clickexp.data.inspect.identifiability._counted", not_counted)
            monkeypatch.setattr("clickexp.data.view.ColumnsView.chunks", not_counted)
        found = identifiability(train(folder), enough)
        if counted_again:
            expected = identifiability(of_memory, enough)
        for name in ("positions", "shown", "links", "groups", "movement"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert not math.isnan(expected.movement)


def test_counts_of_other_sessions_are_not_believed(tmp_path):
    """Of another range, of a log that was prepared again, and of another log whose file was copied here."""
    folder, other = prepared(tmp_path / "log"), prepared(tmp_path / "other", seed=1)
    assert_counts(train(folder))
    assert_counts(train(folder, train_sessions=[0, 25]))
    assert_counts(train(other))
    shutil.copy(other / "sessions" / "documents.npz", folder / "sessions")
    assert_counts(train(folder))
    shutil.rmtree(other / "sessions")
    (other / "log.json").unlink()
    assert_counts(train(prepared(tmp_path / "other", seed=2)))


@pytest.mark.parametrize("content", [b"", b"PK\3\4", None], ids=["empty", "no archive", "changed"])
def test_a_damaged_file_is_replaced(content, tmp_path):
    folder = prepared(tmp_path / "log")
    assert_counts(train(folder))
    file = folder / "sessions" / "documents.npz"
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    file.write_bytes(bytes(changed) if content is None else content)
    assert_counts(train(folder))
    assert len(file.read_bytes()) == len(whole)


def test_a_pipe_is_not_waited_for(tmp_path):
    folder = prepared(tmp_path / "log")
    os.mkfifo(folder / "sessions" / "documents.npz")
    assert_counts(train(folder))


def test_parts_and_logs_in_memory_are_counted_and_leave_no_file(tmp_path):
    folder = prepared(tmp_path / "log")
    some = train(folder).select(np.arange(0, 30, 3))
    assert_counts(some)
    assert not list(folder.rglob("*.npz"))


def test_what_cannot_be_written_is_counted(tmp_path, monkeypatch):
    folder = prepared(tmp_path / "log")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept.np, "savez", full)
    assert_counts(train(folder))
    assert [path.name for path in (folder / "sessions").iterdir()] == ["records.npy"]


def test_two_that_count_at_once_leave_one_whole_file(tmp_path, monkeypatch):
    folder, both = prepared(tmp_path / "log"), threading.Barrier(2)
    save = np.savez

    def together(*args, **counts):
        both.wait(10)
        save(*args, **counts)
        both.wait(10)

    monkeypatch.setattr(kept.np, "savez", together)
    threads = [threading.Thread(target=assert_counts, args=[train(folder)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path.name for path in (folder / "sessions").iterdir()} == {
        "records.npy",
        "documents.npz",
    }
    monkeypatch.setattr("clickexp.data.by_document._counted", not_counted)
    assert_counts(train(folder))


@pytest.mark.parametrize("in_place", [True, False])
def test_results_of_two_logs_are_refused(tmp_path, in_place):
    """Files are mapped: bytes written into them are read, those of a file in their place are not."""
    folder, other = prepared(tmp_path / "log"), prepared(tmp_path / "other", seed=1)
    dataset = Log.open(folder).dataset(**SPLIT)
    before = dataset.fingerprint()
    dataset.check_unchanged()
    for file in (folder / "sessions").iterdir():
        copy = other / "sessions" / file.name
        if in_place:
            file.write_bytes(copy.read_bytes())
        else:
            copy.replace(file)
    if in_place:
        with refuses(DataError, str(folder / "sessions"), "overwritten", "Run again"):
            dataset.check_unchanged()
    else:
        dataset.check_unchanged()
    assert dataset.fingerprint() == before


def test_slices_with_equal_ends_are_not_taken_for_each_other(tmp_path):
    """Of packed sessions a fingerprint reads the ends alone: which rows these are belongs to the key."""
    folder = tmp_path / "log"
    ids = np.ones((300_000, 1), np.int32)
    ids[70_000] = 2
    packed = {"query_doc_ids": ids, "clicks": ids == 1, "lengths": np.ones(len(ids), np.int32)}
    with LogWriter(folder, "small", "none") as log:
        with log.part("sessions", 1, [*packed]) as part:
            part.append(packed, SourceLocation("here"))
    sessions = Log.open(folder).parts["sessions"]
    for start, twos in ((0, 1), (160_000, 0)):
        assert ByDocument.of(sessions.slice(start, start + 140_000)).shown[2] == twos
