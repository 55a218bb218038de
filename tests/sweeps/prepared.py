"""The command that prepares a log, by one process and by several."""

import filecmp
import os
import subprocess
import sys

import numpy as np
import polars as pl
from places import ROOT

COMMAND = [sys.executable, "-c", "from clickexp.cli.data import main; main()"]


def check_preparing(folder, env, *words):
    """Prepares a log of four files with these words, too, and compares all files.

    Args:
        folder: For the log.
        env: Variables of the processes.
        words: Options.
    """
    (folder / "log").mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        documents = [rng.integers(0, 30, 5).tolist() for _ in range(50)]
        rows = {
            "query_id": [f"query {query}" for query in rng.integers(0, 9, 50)],
            "query_doc_ids": [[f"doc {each}" for each in shown] for shown in documents],
            "clicks": rng.integers(0, 2, (50, 5)).tolist(),
        }
        pl.DataFrame(rows).write_parquet(folder / f"log/{number}.parquet")
    for target, options in (("one", ()), ("several", ("workers=2", *words))):
        given = ["prepare", "lists", "log", target, "pair_key=query_document", *options]
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "clickexp/plugins")])}
        done = subprocess.run(
            [*COMMAND, *given], cwd=folder, env={**env, **path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    files = [path for path in (folder / "one").rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(folder / "one")) for path in files)
    others = [path for path in (folder / "several").rglob("*") if path.is_file()]
    assert names == sorted(str(path.relative_to(folder / "several")) for path in others)
    equal, *_ = filecmp.cmpfiles(folder / "one", folder / "several", names, shallow=False)
    assert equal == names
