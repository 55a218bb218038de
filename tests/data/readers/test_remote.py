"""Logs at URLs: an HTTP server, and memory that stands for a store of objects."""

import functools
import gzip
import http.server
import os
import sys
import threading
import time
from contextlib import nullcontext

import fsspec
import polars as pl
import pytest
from compositions import composed
from fsspec import AbstractFileSystem
from fsspec.registry import _registry as known
from hydra.utils import instantiate
from refusals import refuses

from clickexp.data import open_impressions, open_lists, open_tiangong_st, open_yandex, prepare
from clickexp.data.shares.prepare import sharing
from clickexp.errors import DataError

ROWS = "session,query,document,rank,click\n" + "".join(
    f"{n},q,d{n % 7},1,{n % 2}\n" for n in range(30)
)
SPLIT = {"train_sessions": [0, 10], "val_sessions": [10, 20], "test_sessions": [20, 30]}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        self.server.requests.append(self.path)


@pytest.fixture
def served(tmp_path):
    """The URL of a folder, and the folder."""
    (tmp_path / "www/log").mkdir(parents=True)
    handler = functools.partial(_Quiet, directory=str(tmp_path / "www"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.requests = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    fsspec.filesystem("http").invalidate_cache()
    yield f"http://127.0.0.1:{server.server_address[1]}/log", tmp_path / "www/log", server.requests
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def memory():
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()


def write_days(folder):
    for day in (1, 2):
        (folder / f"date=2025-11-0{day}").mkdir()
        ids = [[day, 5], [6]] * 8
        frame = pl.DataFrame({"query_doc_ids": ids, "clicks": [[0, 1], [1]] * 8})
        frame.write_parquet(folder / f"date=2025-11-0{day}/part.parquet")


def test_a_folder_of_a_server_is_read_as_one_of_this_machine(served):
    url, folder, _ = served
    write_days(folder)
    options = {"columns": {"time": "date"}}
    for path in (url, f"{url}/"):
        there, here = open_lists(path, **options), open_lists(folder, **options)
        for name in here.train.columns:
            assert (there.train.column(name) == here.train.column(name)).all()
    file = f"{url}/date=2025-11-01/part.parquet"
    assert open_lists(file).train.column("query_doc_ids")[0].tolist() == [1, 5]


def test_a_cache_of_a_url_is_read_again_where_the_file_has_changed(served, tmp_path):
    url, folder, requests = served
    (folder / "log.csv").write_text(ROWS)
    options = {"cache": tmp_path / "cache", **SPLIT}
    clicks = [open_impressions(f"{url}/log.csv", **options).train.column("clicks").mean()]
    read = [path for path in requests if path.endswith(".csv")]
    clicks.append(open_impressions(f"{url}/log.csv", **options).train.column("clicks").mean())
    assert len(list((tmp_path / "cache").iterdir())) == 1 and len(read) > 1
    (folder / "log.csv").write_text(ROWS.replace(",1,0\n", ",1,1\n"))
    os.utime(folder / "log.csv", (time.time() + 9,) * 2)
    fsspec.filesystem("http").invalidate_cache()
    clicks.append(open_impressions(f"{url}/log.csv", **options).train.column("clicks").mean())
    assert clicks == [0.5, 0.5, 1.0]


def test_readers_of_text_take_urls(memory, tmp_path):
    lines = "1\t0\tQ\t5\t0\t7\t8\t9\n1\t3\tC\t8\n2\t0\tQ\t6\t0\t7\t10\n" * 1
    memory.pipe("/log/clicks.txt", (lines + "3\t0\tQ\t5\t0\t8\t7\n").encode())
    memory.pipe("/log/labels.txt", b"5 0 8 1\n")
    split = {"train_sessions": [0, 1], "val_sessions": [1, 2], "test_sessions": [2, 3]}
    dataset = open_yandex("memory://log/clicks.txt", relevance="memory://log/labels.txt", **split)
    assert dataset.train.column("clicks").tolist()[0][:3] == [False, True, False]
    assert dataset.ranking is not None
    for part in ("train", "valid", "test"):
        memory.pipe(f"/st/{part}_per_query_quid.txt", b"7\t2\t[11, 12]\t[1, 1]\t[1, 0]\n")
    assert open_tiangong_st("memory://st").train.count == 1


def test_a_run_takes_a_url(memory, tmp_path):
    memory.pipe("/log/a.csv", ROWS.encode())
    path = ["dataset.path=memory://log", f"cache_dir={tmp_path}"]
    dataset = instantiate(composed("dataset=impressions", *path)["dataset"])
    assert dataset.name == "log" and dataset.train.count == 24


class Bucket(AbstractFileSystem):
    """Objects in a folder of this machine, which are called as those of Google's and Amazon's stores are."""

    protocol = ("gs", "gcs", "s3", "s3a")
    root = None

    def info(self, path, **_):
        file = self.root / path
        kind = {"type": "directory" if file.is_dir() else "file"}
        return {"name": path, "size": file.stat().st_size, "mtime": file.stat().st_mtime, **kind}

    def ls(self, path, detail=True, **_):
        found = [self.info(f"{path}/{file.name}") for file in (self.root / path).iterdir()]
        return found if detail else [each["name"] for each in found]

    def _open(self, path, mode="rb", **_):
        return open(self.root / path, mode)


@pytest.mark.parametrize("protocol", ["gs", "s3"])
def test_stores_of_objects_are_read_as_folders(protocol, tmp_path, monkeypatch):
    for name in Bucket.protocol:
        monkeypatch.setitem(known, name, Bucket)
    monkeypatch.setattr(Bucket, "root", tmp_path)
    (tmp_path / "bucket/log").mkdir(parents=True)
    write_days(tmp_path / "bucket/log")
    options = {"columns": {"time": "date"}}
    there = open_lists(f"{protocol}://bucket/log", **options)
    here = open_lists(tmp_path / "bucket/log", **options)
    for name in here.train.columns:
        assert (there.train.column(name) == here.train.column(name)).all()
    (tmp_path / "bucket/a.csv").write_text(ROWS)
    pl.read_csv(tmp_path / "bucket/a.csv").write_ndjson(tmp_path / "bucket/b.jsonl")
    (tmp_path / "bucket/c.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    for name in ("a.csv", "b.jsonl", "c.csv.gz"):
        assert open_impressions(f"{protocol}://bucket/{name}").train.clicks_total == 12


@pytest.mark.parametrize("protocol, package, extra", [("gs", "gcsfs", "gcs"), ("s3", "s3fs", "s3")])
def test_a_missing_package_is_named_with_its_extra(protocol, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with refuses(DataError, f"{protocol}://", package, f"clickexp[{extra}]"):
        open_lists(f"{protocol}://bucket/log")


def test_urls_that_lead_nowhere(served):
    url, _, _ = served
    for path, parts in (
        (f"{url}/none.csv", ("none.csv", "no such file")),
        ("memory://none", ("no such file",)),
        ("sftp9://host/log.csv", ("no protocol 'sftp9'", "s3://")),
        ("http://127.0.0.1:9/log.csv", ("127.0.0.1:9",)),
    ):
        with refuses(DataError, *parts):
            open_impressions(path)


@pytest.mark.parametrize("method", ["info", "_open"])
def test_a_bucket_that_refuses_access_is_named(method, tmp_path, monkeypatch):
    """Before processes start: a file whose existence or content the store refuses to show."""

    def refused(*_, **__):
        raise PermissionError("Forbidden")

    def never(*_):
        raise AssertionError

    for name in Bucket.protocol:
        monkeypatch.setitem(known, name, Bucket)
    monkeypatch.setattr(Bucket, "root", tmp_path)
    monkeypatch.setattr(Bucket, method, refused)
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/clicks.txt").write_text("1\t0\tQ\t5\t0\t7\n" * 3)
    for read in (open_yandex.read, sharing(open_yandex, 2, lambda _: nullcontext(never))):
        with refuses(DataError, "gs://bucket/clicks.txt", "cannot be re", "Forbidden"):
            prepare(read, "yandex", "gs://bucket/clicks.txt", tmp_path / "log")
