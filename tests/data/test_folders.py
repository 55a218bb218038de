"""Folders being written: whole or not at all, whatever ends the process or the power."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refuses

from clickexp.data import LogWriter, SourceLocation, folders, log_format, open_lists
from clickexp.data.folders import NewFolder
from clickexp.errors import DataError

KILLED = """
import os, signal, sys
from clickexp.data import open_lists
open_lists(sys.argv[1], cache=sys.argv[2], progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rows = [{"query_doc_ids": [1, 2], "clicks": [0, 1]}] * 20
    file = tmp_path_factory.mktemp("source") / "log.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def left_by_killed(source, tmp_path_factory):
    """The cache of a process that was killed."""
    cache = tmp_path_factory.mktemp("cache")
    done = subprocess.run([sys.executable, "-c", KILLED, source, cache], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return cache


@pytest.fixture
def killed(left_by_killed, cache):
    """The folder that a killed process left in the cache."""
    shutil.copytree(left_by_killed, cache, dirs_exist_ok=True)
    [part] = cache.iterdir()
    assert part.name.startswith(".") and any(part.rglob("*"))
    return part


def age(folder, seconds=folders._DAY + 9):
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_what_a_killed_process_left_goes_with_the_next_run_after_a_day(source, cache, killed):
    open_lists(source, cache=cache)
    [kept] = {*cache.iterdir()} - {killed}
    assert not kept.name.startswith(".")
    age(killed, folders._DAY - 60)
    open_lists(source, cache=cache)
    assert killed.exists()
    age(killed)
    open_lists(source, cache=cache)  # reads nothing, and yet
    assert list(cache.iterdir()) == [kept]


def test_what_a_living_process_writes_stays(source, cache):
    with LogWriter(cache / "other", "other", "none") as log:
        [part] = cache.iterdir()
        age(part)
        with log.part("sessions", 1, ["query_doc_ids", "clicks", "lengths"]) as pack:
            one = np.ones((1, 1), int)
            pack.append(dict(query_doc_ids=one, clicks=one, lengths=one[0]), SourceLocation("here"))
            open_lists(source, cache=cache)
    assert (cache / "other" / "log.json").exists() and len(list(cache.iterdir())) == 2


def test_folders_of_others_stay(source, cache):
    for name in (".y.01234567", "z.01234567.clickexp", ".z.0123456g.clickexp"):
        (cache / name / "mine").mkdir(parents=True)
        age(cache / name)
    (cache / ".link.01234567.clickexp").symlink_to(cache / ".y.01234567")
    before = sorted(cache.rglob("*"))
    open_lists(source, cache=cache)
    assert set(before) < set(cache.rglob("*"))


def test_everything_is_on_disk_before_it_has_its_name(source, cache, monkeypatch):
    synced, renamed = {}, []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(file):
        fsync(file)
        stat = os.fstat(file)
        synced[stat.st_ino] = stat.st_size

    def watched_replace(old, new):
        if str(new).startswith(str(cache)) and not str(new.parent.name).startswith("."):
            files = [*old.rglob("*")]
            assert len(files) == 3
            assert all(synced[path.stat().st_ino] == path.stat().st_size for path in files)
            renamed.append(new)
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    open_lists(source, cache=cache)
    assert renamed == list(cache.iterdir()) and cache.stat().st_ino in synced


def test_temporary_folders_go_too(source, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    code = KILLED.replace("cache=sys.argv[2], ", "")
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    subprocess.run([sys.executable, "-c", code, source], capture_output=True, env=environment)
    [part] = (tmp_path / "tmp").iterdir()
    assert part.stat().st_mode & 0o077 == 0
    age(part)
    assert open_lists(source).train.column("query_doc_ids").tolist() == [[1, 2]] * 16
    assert not list((tmp_path / "tmp").iterdir())


def test_two_processes_may_remove_what_a_third_left(source, cache, killed, monkeypatch):
    age(killed)
    rglob = folders.Path.rglob

    def removed_by_another(path, pattern):
        files = list(rglob(path, pattern))
        shutil.rmtree(path, ignore_errors=True)
        return files

    monkeypatch.setattr(folders.Path, "rglob", removed_by_another)
    folders.remove_stale(cache)
    assert not killed.exists()


def test_a_temporary_folder_does_not_wait_for_the_disk(source, monkeypatch):
    monkeypatch.setattr(
        os, "fsync", lambda file: pytest.fail("nobody needs this after a power failure")
    )
    assert open_lists(source).train.count == 16


def test_the_first_whole_folder_stays(tmp_path):
    one, two = NewFolder(tmp_path / "a"), NewFolder(tmp_path / "a")
    for new, text in ((one, "one"), (two, "two")):
        (new.part / "file").write_text(text)
        new.complete(lambda folder: (folder / "file").exists())
        new.discard()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "file"]
    assert (tmp_path / "a" / "file").read_text() == "one"


def test_a_place_that_cannot_be_written_is_one_line(source, tmp_path):
    (tmp_path / "file").touch()
    with refuses(DataError, "file/cache: cannot be written", "Choose another folder"):
        open_lists(source, cache=tmp_path / "file" / "cache")


def test_a_full_disk_is_one_line_and_nothing_stays(source, cache, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with refuses(DataError, f"{cache}: ", "no room", str(source), "Make room"):
        open_lists(source, cache=cache)
    assert not list(cache.iterdir())


def test_too_little_memory_is_one_line(tmp_path):
    def read(source, log):
        raise MemoryError("Unable to allocate 119. GiB for an array")

    (tmp_path / "log.txt").touch()
    with refuses(DataError, "log.txt: ", "too little memory", "Unable to allocate 119. GiB"):
        log_format("tests")(read)(tmp_path / "log.txt", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_folders_are_removed_at_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    folders.remove(tmp_path / "a")
    folders.remove(tmp_path / "a")
    assert not list(tmp_path.iterdir())
