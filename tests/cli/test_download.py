"""`clickexp-data download` against a server on this machine that answers as Hugging Face does."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import polars as pl
import pytest
from local_server import LocalServer
from places import ROOT
from refusals import refuses

from clickexp.cli.download import download
from clickexp.data.public_logs import PUBLIC
from clickexp.errors import ConfigError, UserError

COMMIT = "a" * 40


class Hub(LocalServer):
    """Has the files of one repository; of `cut` ones it sends half."""

    def __init__(self, files, cut=()):
        super().__init__(_Handler)
        self.files, self.cut, self.fetched = files, cut, []

    def entry(self, path):
        content = self.files[path]
        digest = hashlib.sha256(content).hexdigest()
        lfs = {"oid": digest, "size": len(content), "pointerSize": 130}
        return {"type": "file", "path": path, "size": len(content), "oid": "b" * 40, "lfs": lfs}


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.partition("?")[0]
        if re.fullmatch(rf"/api/datasets/[\w/-]+?/tree/{COMMIT}", path):
            tree = [self.server.entry(name) for name in self.server.files]
            self.reply(json.dumps(tree).encode(), "application/json", body)
        elif re.fullmatch(r"/api/datasets/[\w-]+/[\w-]+", path):
            described = {"id": path.removeprefix("/api/datasets/"), "sha": COMMIT}
            self.reply(json.dumps(described).encode(), "application/json", body)
        elif file := re.fullmatch(r"/datasets/[\w/-]+?/resolve/\w+/(.+)", path):
            content = self.server.files[file[1]]
            if body:
                self.server.fetched.append(file[1])
            self.reply(content, "application/octet-stream", body, file[1] in self.server.cut)
        else:
            self.reply(b"{}", "application/json", body)

    def reply(self, content, kind, body, is_cut=False):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.end_headers()
        if body:
            self.wfile.write(content[: len(content) // 2] if is_cut else content)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two files of a log, and one of another."""
    folder = tmp_path_factory.mktemp("log")
    content = {}
    for number in range(2):
        lists = {
            "query_doc_ids": [[1, 2], [2, 1]] * 20,
            "clicks": [[1, 0], [0, 1]] * 20,
            "query_id": [0] * 40,
        }
        pl.DataFrame(lists).write_parquet(folder / "part.parquet")
        content[f"yandex/part-{number}.parquet"] = (folder / "part.parquet").read_bytes()
    content["baidu-ultr/part-0.parquet"] = b"another log"
    return content


def run(hub, folder, *words):
    env = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(folder / "hf"),
    }
    code = "from clickexp.cli.data import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "download", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_log_is_downloaded_whole_and_once(files, tmp_path):
    with Hub(files) as hub:
        code, printed = run(hub, tmp_path, "yandex_clax", "data")
        assert code == 0, printed
        assert "next: clickexp dataset=yandex_clax dataset.path=data/yandex" in printed
        assert {file.name for file in (tmp_path / "data/yandex").glob("*")} == {
            "part-0.parquet",
            "part-1.parquet",
        }
        for name in ("yandex/part-0.parquet", "yandex/part-1.parquet"):
            assert (tmp_path / "data" / name).read_bytes() == files[name]
        fetched = len(hub.fetched)
        assert run(hub, tmp_path, "yandex_clax", "data")[0] == 0
        assert len(hub.fetched) == fetched == 2


def test_some_files_alone_and_one_that_ends_too_early(files, tmp_path):
    with Hub(files, cut=["yandex/part-1.parquet"]) as hub:
        code, printed = run(hub, tmp_path, "yandex_clax", "data", "--files", "*0.parquet")
        assert code == 0, printed
        assert [file.name for file in (tmp_path / "data/yandex").glob("*")] == ["part-0.parquet"]
        code, printed = run(hub, tmp_path, "yandex_clax", "data")
        assert code == 1 and "The same command again goes on" in printed
        assert "Traceback" not in printed
        code, printed = run(hub, tmp_path, "yandex_clax", "data", "--files", "*9.parquet")
        assert code == 1 and "Change --files" in printed
    code, printed = run(hub, tmp_path, "yandex_clax", "data")
    assert code == 1 and "philipphager/clax-datasets: " in printed and "Traceback" not in printed


def test_a_full_disk_has_its_remedy(tmp_path, monkeypatch):
    """A file that cannot be written raises what a full disk does, as one of a megabyte did."""
    import huggingface_hub

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "dataset_info", lambda *args: SimpleNamespace(sha="")
    )
    with refuses(UserError, str(tmp_path), "no space", "--files", "same command again"):
        download("yandex_clax", str(tmp_path / "data"))


def test_an_unknown_name_lists_the_public_logs():
    with pytest.raises(ConfigError, match=r"choose yandex_clax.*Did you mean yandex_clax"):
        download("yandex_clx", "data")


@pytest.mark.parametrize("words", [[], ["-m", "seed=1,2"]])
def test_a_public_log_that_is_not_there_has_its_command(words, tmp_path):
    given = [*words, "dataset=yandex_clax", "dataset.path=my/yandex", "model=pbm", "logger=jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "clickexp", *given], cwd=tmp_path, capture_output=True, text=True
    )
    printed = " ".join(done.stderr.split())
    assert done.returncode == 1 and "my/yandex: no such file or folder" in printed
    assert "clickexp-data download yandex_clax FOLDER fetches it into FOLDER/yandex" in printed


def test_every_public_log_is_an_option():
    assert set(PUBLIC) <= {file.stem for file in (ROOT / "conf/dataset").glob("*.yaml")}
