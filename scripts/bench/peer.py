"""One benchmark task of CLAX on a log that log.py wrote, with settings in JSON; prints lines of JSON.

Runs in the peer's own environment and imports nothing of clickexp:

    PEER/bin/python scripts/bench/peer.py LOG '{"task": "throughput", "model": "PBM", "workers": 2}'
    PEER/bin/python scripts/bench/peer.py LOG '{"task": "fit", "model": "UBM"}'

`workers` is the DataLoader's num_workers, or null for batches that were collated in memory beforehand.
"""

import collections
import contextlib
import inspect
import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import clax
import numpy as np
import optax
import pyarrow as pa
import pyarrow.parquet as pq
from clax.datasets import YandexDataset
from flax import nnx
from flax.training.early_stopping import EarlyStopping
from torch.utils.data import DataLoader

MODELS = {
    "CM": clax.CascadeModel,
    "PBM": clax.PositionBasedModel,
    "UBM": clax.UserBrowsingModel,
    "DCM": clax.DependentClickModel,
    "CCM": clax.ClickChainModel,
    "DBN": clax.DynamicBayesianNetwork,
    "SDBN": clax.DynamicBayesianNetwork,
    "GCTR": clax.GlobalCTRModel,
    "RCTR": clax.RankCTRModel,
    "DCTR": clax.DocumentCTRModel,
    "DRCTR": clax.DocumentRankCTRModel,
}
FIXED = {"SDBN": {"fix_continuation": True}}
LEARNING_RATE = 0.003
NEVER = 10**6


class Batches:
    """Sessions [start, stop) of a log's parquet folder, as the peer's batches."""

    def __init__(self, log: Path, start: int, stop: int, batch_size: int):
        self.dataset = YandexDataset(log / "parquet", (start, stop))
        self.start, self.stop, self.batch_size = start, stop, batch_size

    def loader(self, workers: int | None):
        """A torch DataLoader, or a list for workers=None."""
        if workers is None:
            return self.in_memory()
        return DataLoader(
            self.dataset,
            batch_size=self.batch_size,
            collate_fn=self.dataset.collate_fn,
            num_workers=workers,
            persistent_workers=workers > 0,
            timeout=300 if workers else 0,
        )

    def in_memory(self) -> list[dict[str, np.ndarray]]:
        """What a DataLoader without workers yields, made at once; the first batch is compared with it."""
        count = self.stop - self.start
        columns = self._columns()
        names = ("query_id", "n", "query_doc_ids", "positions", "mask", "clicks")
        batches = [
            {name: columns[name][at : at + self.batch_size] for name in names}
            for at in range(0, count, self.batch_size)
        ]
        expected = next(iter(self.loader(0)))
        assert list(expected) == list(batches[0])
        for name, values in expected.items():
            assert values.dtype == batches[0][name].dtype and np.array_equal(
                values, batches[0][name]
            ), name
        return batches

    def shapes(self, workers: int | None) -> list[int]:
        """The batch sizes that a pass yields; of several files, each worker takes every workers-th."""
        ranges = self.dataset.file_ranges
        assert len(ranges) > 1 or not workers, (
            "the peer cuts up a single file: give it more sessions"
        )
        shares = [ranges[worker :: workers or 1] for worker in range(workers or 1)]
        counts = [sum(stop - start for _, start, stop in share) for share in shares]
        rests = {count % self.batch_size for count in counts}
        return sorted(rests - {0}) + [self.batch_size] * (max(counts) >= self.batch_size)

    def _columns(self) -> dict[str, np.ndarray]:
        files = [path for path, _, _ in self.dataset.file_ranges]
        first = self.dataset.file_ranges[0][1]
        count = self.stop - self.start
        table = (
            pa.concat_tables([pq.read_table(file) for file in files])
            .slice(first, count)
            .combine_chunks()
        )
        lists = (table[name].chunk(0) for name in ("query_doc_ids", "clicks"))
        documents, clicks = (values.flatten().to_numpy() for values in lists)
        shape = (count, len(documents) // count)
        return dict(
            query_id=table["query_id"].to_numpy().astype(np.int32),
            n=np.full(count, shape[1], np.int16),
            query_doc_ids=documents.reshape(shape).astype(np.int32),
            positions=np.tile(np.arange(1, shape[1] + 1, dtype=np.int16), (count, 1)),
            mask=np.ones(shape, bool),
            clicks=clicks.reshape(shape).astype(np.float16),
        )


class Timed:
    """A loader that notes when its passes start and are half done.

    The first pass yields `warm` instead, and runs the loader once for its own sake: its workers stay.
    """

    def __init__(self, loader, warm: list[dict[str, np.ndarray]]):
        self.loader, self.warm = loader, warm
        self.starts: list[float] = []
        self.halves: list[float] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        self.starts.append(time.perf_counter())
        if len(self.starts) == 1:
            yield from self.warm
            collections.deque(self.loader, maxlen=0)
            self.halves.append(time.perf_counter())
            return
        for number, batch in enumerate(self.loader):
            if number == len(self) // 2:
                self.halves.append(time.perf_counter())
            yield batch


def build(name: str, log: dict, seed: int):
    """A model as the peer's README makes it.

    DRCTR looks up row id * positions + position in a table of query_doc_pairs * positions + 1 rows, too few
    for the last id, which would make everything NaN: it gets a pair more.
    """
    wanted = inspect.signature(MODELS[name].__init__).parameters
    known = dict(
        query_doc_pairs=log["query_doc_pairs"] + (name == "DRCTR"), positions=log["positions"]
    )
    sizes = {key: known[key] for key in known if key in wanted}
    return MODELS[name](**sizes, **FIXED.get(name, {}), rngs=nnx.Rngs(seed))


def throughput(
    folder: Path, log: dict, model: str, workers: int | None, batch_size: int = 4096, epochs: int = 1,
    sessions: int | None = None,
) -> Iterator[dict]:  # fmt: skip
    """Seconds of whole epochs, after one that only compiles every shape of a batch.

    With `sessions`, only so many training sessions, and validation sessions in proportion.
    """
    sizes = log["sizes"]
    count = min(sessions or sizes["train"], sizes["train"])
    held_out = max(1, sizes["val"] * count // sizes["train"])
    train = Batches(folder, 0, count, batch_size)
    val = Batches(folder, sizes["train"], sizes["train"] + held_out, batch_size)
    loaders = [Timed(part.loader(workers), warm_batches(part, workers)) for part in (train, val)]
    patient = EarlyStopping(patience=NEVER)
    trainer = clax.Trainer(optax.adamw(LEARNING_RATE), epochs=1 + epochs, early_stopping=patient)
    trainer.train(build(model, log, 0), *loaders)
    ends = [*loaders[0].starts[1:], time.perf_counter()]
    for epoch, (start, end) in enumerate(zip(loaders[0].starts, ends, strict=True)):
        trained = loaders[1].starts[epoch]
        half = loaders[0].halves[epoch]
        yield dict(epoch=epoch, sessions=count if epoch else 0, seconds=end - start, training=trained - start,
                   halves=[half - start, trained - half])  # fmt: skip


def warm_batches(batches: Batches, workers: int | None) -> list[dict[str, np.ndarray]]:
    """One batch of every size that is to come."""
    longest = next(iter(batches.loader(0)))
    return [
        {name: values[:size] for name, values in longest.items()}
        for size in batches.shapes(workers)
    ]


def fit(
    folder: Path, log: dict, model: str, seed: int = 0, batch_size: int = 4096
) -> Iterator[dict]:
    """Test metrics after training with the peer's early stopping, epochs run, and wall seconds."""
    ends = np.cumsum([0, *(log["sizes"][split] for split in ("train", "val", "test"))])
    parts = [Batches(folder, *map(int, ends[n : n + 2]), batch_size).in_memory() for n in range(3)]
    fitted = build(model, log, seed)
    trainer = clax.Trainer(optimizer=optax.adamw(LEARNING_RATE), epochs=50)
    start = time.perf_counter()
    history = trainer.train(fitted, *parts[:2])
    seconds = time.perf_counter() - start
    tested = trainer.test_clicks(fitted, parts[2]).iloc[0]
    metrics = {name: float(tested[f"test_{name}"]) for name in ("ll", "ppl", "cond_ppl", "loss")}
    yield {**metrics, "epochs": int(history["val_loss"].notna().sum()), "seconds": seconds}


TASKS = {"throughput": throughput, "fit": fit}


def main() -> None:
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    log = json.loads((folder / "log.json").read_text())
    with contextlib.redirect_stdout(io.StringIO()):  # the peer's progress table
        results = list(TASKS[settings.pop("task")](folder, log, **settings))
    for result in results:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
