"""Preparation of a log: processor time and wall time per session, by one process and by several.

    python scripts/bench/preparing.py --sessions 8000000 --workers 1,2
    python scripts/bench/preparing.py --format yandex

The log is made up: Zipf queries, five to ten documents of fifty each, in parquet files, or the text of
`readers.py`. Each way runs as the command does, in turn; processor time is that of all its processes. The packs must be
equal.
"""

import argparse
import ctypes
import filecmp
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from readers import write_yandex

COMMAND = [sys.executable, "-c", "from clickexp.cli.data import main; main()"]
SUBREAPER = 36


def write_log(folder: Path, sessions: int, files: int) -> None:
    """Files of equal numbers of sessions."""
    rng = np.random.default_rng(0)
    for number in range(files):
        count = sessions // files
        queries = rng.zipf(1.3, count) % (sessions // 5)
        lengths = rng.integers(5, 11, count)
        rows = np.repeat(np.arange(count), lengths)
        documents = pl.DataFrame(
            {
                "row": rows,
                "query_doc_ids": queries[rows] * 1000 + rng.zipf(1.5, len(rows)) % 50,
                "clicks": rng.random(len(rows)) < 0.2,
            }
        )
        lists = documents.group_by("row", maintain_order=True).agg("query_doc_ids", "clicks")
        table = lists.drop("row").with_columns(query_id=pl.Series(queries))
        table.write_parquet(folder / f"part-{number:03}.parquet")


def measured(words: list[str]) -> tuple[float, float]:
    """Processor and wall seconds of a command and of all processes that it started."""
    begun, before = time.perf_counter(), _used()
    subprocess.run([*COMMAND, *words], check=True, capture_output=True)
    wall = time.perf_counter() - begun
    while True:
        try:
            os.wait()  # those that the command has left are ours now
        except ChildProcessError:
            break
    return _used() - before, wall


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def assert_equal(folder: Path, other: Path) -> None:
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    equal, *_ = filecmp.cmpfiles(folder, other, names, shallow=False)
    assert equal == names, f"{other} differs"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=8_000_000)
    parser.add_argument("--format", choices=["lists", "yandex"], default="lists")
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--workers", default="1,2", help="numbers of workers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the log is written meanwhile")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    ways = {"one process": []}
    ways |= {f"workers={count}": [f"workers={count}"] for count in options.workers.split(",")}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        source, keys = folder / "log", ["name=log"]
        if options.format == "yandex":
            write_yandex(source, options.sessions)
        else:
            source.mkdir()
            write_log(source, options.sessions, options.files)
            keys.append("pair_key=query_document")
        seconds = {way: [] for way in ways}
        for repeat in range(options.repeats):
            for way, words in ways.items():
                target = folder / f"{way}-{repeat}"
                given = ["prepare", options.format, str(source), str(target)]
                found = measured([*given, *keys, *words])
                seconds[way].append(found)
                assert_equal(folder / "one process-0", target)
        print(f"{options.sessions:,} sessions of {options.format}; median of {options.repeats}")
        print(f"{'':12} {'CPU us/session':>14} {'wall s':>8}")
        for way, found in seconds.items():
            cpu, wall = np.median(found, axis=0)
            print(f"{way:12} {1e6 * cpu / options.sessions:14.2f} {wall:8.1f}")


if __name__ == "__main__":
    main()
