"""Logs on disk for the benchmarks: the same sessions as clickexp's packs and as the peer's parquet folder.

FOLDER/log.json                 sessions of each split, size of the table, positions, click rate
FOLDER/packed/                  a prepared log of the splits
FOLDER/parquet/part-*.parquet   query_id int32, query_doc_ids list<int32>, clicks list<int8>; the splits
                                one after the other, each in PARTS files, so that workers can share them
"""

import dataclasses
import functools
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import clickexp.data
import clickexp.models
from clickexp.data import LogWriter, Sessions, SourceLocation
from clickexp.simulation import simulate

SPLITS = ("train", "val", "test")
PARTS = 8
CHUNK = 1 << 16
HEAD = 10_000
POSITIONS = 10
CLICK_RATE = 0.15


IDS = ("zipf", "shuffled", "uniform")
"""Zipf with the id as popularity rank, Zipf with ranks shuffled over the table, and uniform ids."""


@dataclasses.dataclass(frozen=True)
class Log:
    """A log in a folder; `sizes` holds the sessions of each split, in file order of the parquet folder."""

    folder: Path
    sizes: Mapping[str, int]
    query_doc_pairs: int
    positions: int
    click_rate: float

    @classmethod
    def open(cls, folder: Path) -> "Log":
        return cls(folder, **json.loads((folder / "log.json").read_text()))

    def sessions(self, split: str) -> Sessions:
        return clickexp.data.Log.open(self.folder / "packed").parts[split]


def packed(folder: Path, parts: Iterable[tuple[str, Sessions]]) -> Mapping[str, Sessions]:
    """Parts of a prepared log, which is written into the folder."""
    with LogWriter(folder, folder.name, "none") as log:
        for name, sessions in parts:
            columns = [sessions.schema[column] for column in sessions.columns]
            with log.part(name, sessions.ranks, columns) as pack:
                pack.append(sessions.columns, SourceLocation(name))
                pack.query_doc_pairs = sessions.query_doc_pairs
    return clickexp.data.Log.open(folder).parts


def drawn(
    folder: Path, ids: str, rows: int, sessions: int, validation: int, *, parquet: bool = True
) -> Log:
    """Sessions of documents drawn one by one over the rows in one of the ways of IDS, with random clicks."""

    def splits() -> Iterator[tuple[str, Sessions]]:
        rng = np.random.default_rng(0)
        uniform = functools.partial(rng.integers, 1, rows + 1, dtype=np.int32)
        draw = uniform if ids == "uniform" else zipf(rows, rng, shuffled=ids == "shuffled")
        for split, count in zip(SPLITS, (sessions, validation, validation), strict=True):
            sizes = [min(CHUNK, count - start) for start in range(0, count, CHUNK)]
            documents = np.concatenate([draw(size=(size, POSITIONS)) for size in sizes])
            clicks = rng.random(documents.shape, np.float32) < CLICK_RATE
            yield (
                split,
                Sessions.from_arrays(query_doc_ids=documents, clicks=clicks, query_doc_pairs=rows),
            )

    return _written(folder / f"{ids}-{rows}-{sessions}-{validation}", splits, parquet)


def simulated(
    folder: Path, user: str, sessions: int, queries: int, seed: int, **options: Any
) -> Log:
    """Sessions of clickexp.simulation.simulated; `user` names the class of the clicking model."""

    def splits() -> Iterator[tuple[str, Sessions]]:
        clicking = getattr(clickexp.models, user)
        dataset = simulate(clicking, sessions=sessions, queries=queries, seed=seed, **options)
        return ((split, getattr(dataset, split)) for split in SPLITS)

    named = "".join(f"-{name}={value}" for name, value in options.items())
    return _written(folder / f"{user}-{sessions}-{queries}-{seed}{named}", splits, parquet=True)


def zipf(rows: int, rng: np.random.Generator, shuffled: bool) -> Callable[..., np.ndarray]:
    """Draws ids 1 .. rows, P(popularity rank i) proportional to 1 / i; the id is the rank, or shuffled over the table.

    The first HEAD ranks are exact. Beyond, the sum of 1 / i is replaced by the integral over i +- 1/2, which
    differs by less than one part in 10^9.
    """
    row_of_rank = (rng.permutation(rows) if shuffled else np.arange(rows)).astype(np.int32) + 1
    cumulative = np.cumsum(1.0 / np.arange(1, min(HEAD, rows) + 1))
    edge = len(cumulative) + 0.5
    total = cumulative[-1] + math.log((rows + 0.5) / edge)

    def draw(size: tuple[int, ...]) -> np.ndarray:
        mass = rng.random(size) * total
        rank = np.searchsorted(cumulative, mass, side="right") + 1
        tail = mass >= cumulative[-1]
        rank[tail] = np.minimum(0.5 + edge * np.exp(mass[tail] - cumulative[-1]), rows).astype(
            np.int64
        )
        return row_of_rank[np.minimum(rank, rows) - 1]

    return draw


def _written(
    folder: Path, splits: Callable[[], Iterator[tuple[str, Sessions]]], parquet: bool
) -> Log:
    """The log in the folder, written first where it is not there yet; log.json comes last."""
    if not (folder / "log.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        packs = packed(folder / "packed", splits())
        train = packs["train"]
        meta = dict(
            sizes={split: pack.count for split, pack in packs.items()}, positions=train.ranks
        )
        meta |= dict(
            query_doc_pairs=train.query_doc_pairs, click_rate=train.clicks_total / train.documents
        )
        (folder / "log.json").write_text(json.dumps(meta))
    if parquet and not (folder / "parquet").exists():
        log = Log.open(folder)
        _write_parquet(folder, [log.sessions(split) for split in SPLITS])
    return Log.open(folder)


def _write_parquet(folder: Path, packs: list[Sessions]) -> None:
    part = folder / ".parquet"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    number = itertools.count()
    for sessions in packs:
        for bounds in itertools.pairwise(np.linspace(0, sessions.count, PARTS + 1, dtype=int)):
            table = _as_table(sessions.rows(slice(*bounds)))
            pq.write_table(table, part / f"part-{next(number):05d}.parquet")
    part.rename(folder / "parquet")


def _as_table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    documents, clicks = columns["query_doc_ids"], columns["clicks"]
    count, ranks = documents.shape
    assert (columns["lengths"] == ranks).all(), "the benchmark logs have full lists only"
    ends = np.arange(0, count * ranks + 1, ranks, dtype=np.int32)
    query_ids = columns.get("query_ids", np.zeros(count)).astype(np.int32)
    lists = [
        pa.ListArray.from_arrays(ends, values.ravel())
        for values in (documents, clicks.view(np.int8))
    ]
    return pa.table({"query_id": query_ids, "query_doc_ids": lists[0], "clicks": lists[1]})
