"""Readers of raw logs: result pages a second, beside a reader in plain Python, and peak memory.

    python scripts/bench/readers.py --pages 1000000
    python scripts/bench/readers.py --pages 200000 --formats

The log is made up: sessions of one to four pages of ten URLs, Zipf queries of 20 documents each, half a click a page.
With --formats the same pages are written in each kind of file. Each side runs in a separate process.
"""

import argparse
import functools
import gzip
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import clickexp.data

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


def read(file: Path, opener: str = "open_yandex", **options: Any) -> int:
    reader = getattr(clickexp.data, opener)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        log = clickexp.data.prepare(
            reader.read, reader.format, file, Path(folder) / "log", **options
        )
        return log.parts["sessions"].count


def write_formats(folder: Path, pages: int) -> dict[str, tuple[Path, str, dict[str, Any]]]:
    """Pages in every kind of file: each with its reader and options."""
    rng = np.random.default_rng(0)
    queries = np.minimum(rng.zipf(1.2, pages), 20_000_000)
    urls = queries[:, None] * 20 % 90_000_000 + rng.random((pages, 20)).argsort(1)[:, :POSITIONS]
    clicks = (rng.random((pages, POSITIONS)) < 0.05).astype(np.int8)
    lists = pl.DataFrame({"query_id": queries, "query_doc_ids": urls, "clicks": clicks})
    lists = lists.with_columns(pl.col("query_doc_ids", "clicks").arr.to_list())
    rows = pl.DataFrame(
        {
            "session": np.repeat(np.arange(pages), POSITIONS),
            "query": np.repeat(queries, POSITIONS),
            "document": urls.ravel(),
            "rank": np.tile(np.arange(1, POSITIONS + 1), pages),
            "click": clicks.ravel(),
        }
    )
    shown = rows.group_by("session", "query", maintain_order=True).agg(
        shown=pl.struct("document", "rank", "click")
    )
    cells = lists.with_columns(
        pl.col("query_doc_ids", "clicks").cast(pl.List(pl.String)).list.join(" ")
    )
    counts = rows.group_by("query", "document", "rank", maintain_order=True).agg(
        impressions=pl.len(), clicks=pl.sum("click")
    )
    lists.write_parquet(folder / "lists.parquet")
    lists.write_ndjson(folder / "lists.jsonl")
    cells.write_csv(folder / "lists.csv")
    rows.write_parquet(folder / "rows.parquet")
    rows.write_ndjson(folder / "rows.jsonl")
    rows.write_csv(folder / "rows.csv")
    shown.write_parquet(folder / "shown.parquet")
    shown.write_ndjson(folder / "shown.jsonl")
    counts.write_parquet(folder / "counts.parquet")
    write_yandex(folder / "clicks.txt", pages)
    for name in ("rows.csv", "clicks.txt"):
        packed = gzip.compress((folder / name).read_bytes(), 1)
        (folder / f"{name}.gz").write_bytes(packed)
    keyed = {"pair_key": "query_document"}
    fields: dict[str, str] = {key: f"shown.{key}" for key in ("document", "rank", "click")}
    readers = {
        "lists": ("open_lists", keyed),
        "rows": ("open_impressions", {}),
        "shown": ("open_impressions", {"columns": fields}),
        "counts": ("open_counts", {}),
        "clicks": ("open_yandex", {}),
    }
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return {file.name: (file, *readers[file.name.partition(".")[0]]) for file in files}


def measure_formats(folder: Path, pages: int, repeats: int) -> None:
    """Prints a line per kind of file; counts are of impressions instead of pages."""
    print(f"{pages:,} pages; median of {repeats}")
    print(f"{'':16} {'MB':>6} {'pages/s':>11} {'pages/CPU s':>11} {'peak MB':>7}")
    for name, (file, opener, options) in write_formats(folder, pages).items():
        task = functools.partial(read, opener=opener, **options)
        rate, cpu, memory = np.median(
            np.array([measured(task, file) for _ in range(repeats)]), axis=0
        )
        size = file.stat().st_size / 1e6
        print(f"{name:16} {size:6.0f} {rate:11,.0f} {cpu:11,.0f} {memory:7.0f}")


def measured(task: Callable[[Path], int], file: Path) -> tuple[float, float, float]:
    """Pages a second, pages a second of processor time, and how many MB the peak memory grew by."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (task, file))


def _measure(task: Callable[[Path], int], file: Path) -> tuple[float, float, float]:
    before = _peak()
    start, cpu = time.perf_counter(), time.process_time()
    pages = task(file)
    rates = pages / (time.perf_counter() - start), pages / (time.process_time() - cpu)
    return *rates, (_peak() - before) / 1024


def _peak() -> int:
    """Peak memory of this process in KiB; what getrusage says of a new process includes its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the log is written meanwhile")
    parser.add_argument("--formats", action="store_true", help="each kind of file instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.formats:
            measure_formats(Path(folder), options.pages, options.repeats)
            return
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
        ours, theirs = np.moveaxis(np.array(rounds), 1, 0)
        rate, cpu, _ = np.median(ours / theirs, axis=0)
        print(f"{'ratio':12} {rate:11.1f} {cpu:11.1f}")


if __name__ == "__main__":
    main()
