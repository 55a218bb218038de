"""Exports of large tables: processor time and peak memory of clickexp-export --predict, beside those of training.

    python scripts/bench/export.py --queries 500000

The log is made up: queries of twelve documents with Beta-distributed attraction, four lists of five documents each
in noisy order, text as ids. Both commands run twice: the second time, their compiled programs are kept, and the packed
log.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=500_000)
    arguments = parser.parse_args()
    scripts = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.parquet"
        # in another process: Linux counts the peak of this one as that of what it starts
        writer = multiprocessing.get_context("spawn").Process(
            target=write_log, args=(log, arguments.queries)
        )
        writer.start()
        writer.join()
        for turn in ("first", "second"):
            run = Path(folder) / turn
            train = [scripts / "clickexp", f"dataset.path={log}", f"cache_dir={folder}/cache"]
            train += [f"hydra.run.dir={run}", *TRAIN.split()]
            export = [scripts / "clickexp-export", run, "--predict"]
            for name, command in {"train": train, "export": export}.items():
                seconds, memory = measured([str(word) for word in command])
                print(f"{name:7} {turn:7} {seconds:6.1f} CPU s {memory:7,.0f} MiB", flush=True)
        documents = pl.scan_parquet(run / "export" / "documents.parquet")
        print(f"{documents.select(pl.len()).collect().item():,} documents")


if __name__ == "__main__":
    main()
