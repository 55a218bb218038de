"""A whole job beside that of another checkout: time outside the epochs of training by phase, and peak memory.

    python scripts/bench/job.py --sessions 2000000 --other ../before

The log is made up: sessions of ten documents with Zipf ids, as many ids as sessions, clicks of the position-based
model. Each side trains the default model three times, in turns: with empty caches, once more, and for four epochs. The
third less the second is the time of three epochs with their validations, which is taken off the first two. `phases.py`
splits each job.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from export import measured

RANKS, CHUNK = 10, 1 << 20
EPOCHS = 4


def write_log(file: Path, sessions: int, pairs: int) -> None:
    """Sessions of the position-based model, examined with probability rank^-0.7."""
    rng = np.random.default_rng(0)
    attraction = 1 / (1 + np.exp(-rng.normal(-1.0, 1.2, pairs + 1).astype(np.float32)))
    examination = np.arange(1, RANKS + 1, dtype=np.float32) ** -0.7
    lists = pa.list_(pa.int32()), pa.list_(pa.bool_())
    schema = pa.schema(dict(zip(("query_doc_ids", "clicks"), lists, strict=True)))
    with pq.ParquetWriter(file, schema) as writer:
        for start in range(0, sessions, CHUNK):
            shape = min(CHUNK, sessions - start), RANKS
            ids = np.minimum((pairs + 1) ** rng.random(shape), pairs).astype(np.int32)
            clicks = rng.random(shape, np.float32) < attraction[ids] * examination
            ends = pa.array(np.arange(0, ids.size + 1, RANKS, dtype=np.int32))
            columns = [pa.ListArray.from_arrays(ends, each.ravel()) for each in (ids, clicks)]
            writer.write_table(pa.table(columns, schema=schema))


class Job(NamedTuple):
    """Time and memory of a job.

    Attributes:
        seconds: Wall and processor seconds by phase, as `phases.py` has them, and of the whole process.
        peak: MiB.
    """

    seconds: dict[str, list[float]]
    peak: float


class Side:
    """The jobs of one checkout.

    Args:
        tree: The checkout.
        reader: Its name of the reader of lists.
        log: The log.
        folder: For caches and runs.
    """

    def __init__(self, tree: Path, reader: str, log: Path, folder: Path):
        self._path = f"{tree}:{tree / 'clickexp' / 'plugins'}"
        self._folder, self._words = folder, [f"dataset={reader}", f"dataset.path={log}"]

    def job(self, name: str, epochs: int) -> Job:
        """Returns what a training of so many epochs takes."""
        os.environ["PYTHONPATH"] = self._path
        words = [f"trainer.epochs={epochs}", f"hydra.run.dir={self._folder / name}"]
        words += [f"cache_dir={self._folder / 'cache'}", "logger=jsonl", *self._words]
        program = Path(__file__).with_name("phases.py")
        file = self._folder.with_name(f"{self._folder.name}-{name}.json")
        start = time.perf_counter()
        processor, peak = measured([sys.executable, str(program), str(file), *words])
        whole = [time.perf_counter() - start, processor]
        return Job({**json.loads(file.read_text()), "whole": whole}, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, help="ids; by default as many as sessions")
    parser.add_argument("--other", type=Path, required=True, help="the other checkout")
    parser.add_argument("--reader", default="lists", help="what it calls the reader of lists")
    arguments = parser.parse_args()
    here = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.parquet"
        write_log(log, arguments.sessions, arguments.pairs or arguments.sessions)
        sides = {
            "other": Side(arguments.other.resolve(), arguments.reader, log, Path(scratch, "other")),
            "this": Side(here, "lists", log, Path(scratch, "this")),
        }
        jobs = {}
        for name, epochs in {"cold": 1, "warm": 1, "long": EPOCHS}.items():
            for side, of_side in sides.items():
                jobs[side, name] = of_side.job(name, epochs)
                _print(f"{side} {name}", jobs[side, name])
        for name in ("cold", "warm"):
            for place, unit in enumerate(("wall", "CPU")):
                other, this = (_outside(jobs, side, name, place) for side in sides)
                print(
                    f"outside epochs, {name}: {this:.1f} {unit} s, {this / other:.2f} of the other"
                )


def _outside(jobs: Mapping[tuple[str, str], Job], side: str, name: str, place: int) -> float:
    """Returns seconds outside the epochs: those of a job of one epoch less what a further one takes."""
    whole = {each: jobs[side, each].seconds["whole"][place] for each in (name, "warm", "long")}
    return whole[name] - (whole["long"] - whole["warm"]) / (EPOCHS - 1)


def _print(name: str, job: Job) -> None:
    print(f"\n{name:16} wall s  CPU s  (peak {job.peak:,.0f} MiB)")
    for phase, (wall, processor) in job.seconds.items():
        print(f"  {phase:12} {wall:8.1f} {processor:6.1f}")


if __name__ == "__main__":
    main()
