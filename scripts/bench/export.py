"""Exports of large tables: processor time and peak memory of clickexp-export --predict, beside those of training.

    python scripts/bench/export.py --queries 500000

The log is made up: queries of twelve documents with Beta-distributed attraction, four lists of five documents each
in noisy order, text as ids. Both commands run twice: the second time, their compiled programs are kept, and the packed
log. Then an export is sampled while it runs, for the most bytes on the device: of arrays with a row per document,
without what compiled programs hold meanwhile.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

DOCUMENTS, RANKS, LISTS = 12, 5, 4
TRAIN = (
    "dataset=lists dataset.pair_key=query_document dataset.columns.query_doc_ids=documents "
    "dataset.columns.query_id=query model=pbm trainer.epochs=1 save_model=true logger=[]"
)


def write_log(file: Path, queries: int, seed: int = 0) -> None:
    """Lists of the position-based model, examined with probability rank^-0.7."""
    rng = np.random.default_rng(seed)
    query = rng.integers(0, queries, LISTS * queries)
    attraction = rng.beta(1, 4, (queries, DOCUMENTS))[query]
    noisy = attraction + rng.gumbel(0, 0.3, attraction.shape)
    order = np.argsort(-noisy, axis=1)[:, :RANKS]
    shown = np.take_along_axis(attraction, order, axis=1)
    clicks = rng.random(shown.shape) < shown * np.arange(1, RANKS + 1) ** -0.7
    ids = query[:, None] * DOCUMENTS + order
    columns = {
        "query": query.astype(str),
        "documents": [[f"d{each}" for each in row] for row in ids.tolist()],
        "clicks": clicks.astype(np.int8).tolist(),
    }
    pl.DataFrame(columns).write_parquet(file)


def measured(command: list[str]) -> tuple[float, float]:
    """Returns processor seconds and peak MiB of a command."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} fails; run it alone to see why")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def print_device_bytes(run: Path, documents: int) -> None:
    """Exports a run, and prints the most bytes per document that arrays on the device had at a time."""
    import jax

    from clickexp.export.export import export

    peak, has_ended = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not has_ended.wait(0.003):
            sizes = {}
            for array in jax.live_arrays():
                if array.ndim and len(array) >= documents and not array.is_deleted():
                    sizes[array.unsafe_buffer_pointer()] = array.nbytes  # several may share one
            peak = max(peak, sum(sizes.values()))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    export(run, report=lambda _: None)
    has_ended.set()
    sampler.join()
    print(f"{peak / documents:.0f} bytes per document on the device")


def in_other_process(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function in a new process."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=500_000)
    arguments = parser.parse_args()
    scripts = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.parquet"
        # in another process: Linux counts the peak of this one as that of what it starts
        in_other_process(write_log, log, arguments.queries)
        for turn in ("first", "second"):
            run = Path(folder) / turn
            train = [scripts / "clickexp", f"dataset.path={log}", f"cache_dir={folder}/cache"]
            train += [f"hydra.run.dir={run}", *TRAIN.split()]
            export = [scripts / "clickexp-export", run, "--predict"]
            for name, command in {"train": train, "export": export}.items():
                seconds, memory = measured([str(word) for word in command])
                print(f"{name:7} {turn:7} {seconds:6.1f} CPU s {memory:7,.0f} MiB", flush=True)
        table = pl.scan_parquet(run / "export" / "documents.parquet")
        documents = table.select(pl.len()).collect().item()
        print(f"{documents:,} documents")
        in_other_process(print_device_bytes, run, documents)


if __name__ == "__main__":
    main()
