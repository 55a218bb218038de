"""Readers of raw logs: result pages a second, beside a reader in plain Python, and peak memory.

    python scripts/bench/readers.py --pages 1000000

The log is made up: sessions of one to four pages of ten URLs, Zipf queries of 20 documents each, half a click a page.
Each side runs in a separate process.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from clickexp.data import prepare
from clickexp.data.readers.yandex import open_yandex

CHUNK = 50_000
POSITIONS = 10


def write_yandex(file: Path, pages: int, seed: int = 0) -> None:
    """About `pages` result pages in the layout of the Yandex Relevance Prediction Challenge."""
    rng = np.random.default_rng(seed)
    session = 0
    with open(file, "w") as out:
        for start in range(0, pages, CHUNK):
            count = min(CHUNK, pages - start)
            queries = np.minimum(rng.zipf(1.2, count), 20_000_000)
            urls = (
                queries[:, None] * 20 % 90_000_000
                + rng.random((count, 20)).argsort(axis=1)[:, :POSITIONS]
            )
            clicks, begins = rng.random((count, POSITIONS)) < 0.05, rng.random(count) < 0.5
            lines = []
            lists = zip(queries.tolist(), urls.tolist(), clicks, begins.tolist(), strict=True)
            for query, shown, clicked, begin in lists:
                session += begin
                lines.append(
                    f"{session}\t0\tQ\t{query}\t{query % 200}\t" + "\t".join(map(str, shown))
                )
                lines += [f"{session}\t9\tC\t{shown[rank]}" for rank in np.flatnonzero(clicked)]
            out.write("\n".join(lines) + "\n")


def read_in_python(file: Path) -> int:
    """The same ids and clicks by dictionaries and lists; kept in memory, not written."""
    numbers, pages, session = {}, [], []
    current = None
    with open(file) as lines:
        for line in lines:
            fields = line.split("\t")
            if fields[0] != current:
                current, session = fields[0], []
            if fields[2] == "Q":
                query, urls = int(fields[3]), [int(url) for url in fields[5:]]
                ids = [numbers.setdefault((query, url), len(numbers) + 1) for url in urls]
                pages.append((query, ids, [0] * len(urls)))
                session.append((urls, pages[-1][2]))
            else:
                url = int(fields[3])
                for urls, clicks in reversed(session):
                    if url in urls:
                        clicks[urls.index(url)] = 1
                        break
    return len(pages)


def read(file: Path) -> int:
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        return (
            prepare(open_yandex.read, open_yandex.format, file, Path(folder) / "log")
            .parts["sessions"]
            .count
        )


def measured(task: Callable[[Path], int], file: Path) -> tuple[float, float, float]:
    """Pages a second, pages a second of processor time, and how many MB the peak memory grew by."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (task, file))


def _measure(task: Callable[[Path], int], file: Path) -> tuple[float, float, float]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu = time.perf_counter(), time.process_time()
    pages = task(file)
    rates = pages / (time.perf_counter() - start), pages / (time.process_time() - cpu)
    return *rates, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the log is written meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = Path(folder) / "clicks.txt"
        write_yandex(file, options.pages)
        print(
            f"{options.pages:,} pages, {file.stat().st_size / 1e6:.0f} MB; median of {options.repeats}"
        )
        rounds = [
            [measured(task, file) for task in (read, read_in_python)]
            for _ in range(options.repeats)
        ]
        print(f"{'':12} {'pages/s':>11} {'pages/CPU s':>11} {'peak MB':>7}")
        for name, (rate, cpu, memory) in zip(
            ("clickexp", "plain Python"), np.median(rounds, axis=0), strict=True
        ):
            print(f"{name:12} {rate:11,.0f} {cpu:11,.0f} {memory:7.0f}")
        rate, cpu, _ = np.median([np.divide(*pair) for pair in rounds], axis=0)
        print(f"{'ratio':12} {rate:11.1f} {cpu:11.1f}")


if __name__ == "__main__":
    main()
