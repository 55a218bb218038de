"""Training steps of neural click models beside the same networks in PyTorch, in turns, as ratios.

    python scripts/bench/neural.py --peer PEER/bin/python
    python scripts/bench/neural.py                              # ours alone
    python scripts/bench/neural.py --peer PEER/bin/python --sessions 16384 --batch-sizes 1024 --repeats 1
    python scripts/bench/neural.py --marginals --sessions 2048  # P(click) of lists of ten, ours alone

Both sides train a GRU of 64 units, with vectors of 64 numbers for documents and queries in NCM, on the same batches
in memory: Adam on all weights, of tables on the rows of a batch. PyTorch also runs with Adam on whole tables, as public
implementations do. CACM runs alone. Seconds are those of the processor, with the same threads; each measurement is a
separate process.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from report import machine, print_table

from clickexp.data import Dataset, Superbatch, superbatches
from clickexp.data.feed import Compiled
from clickexp.data.history import HISTORY
from clickexp.evaluation.scores import outputs_by_batch
from clickexp.experiment.build import build_model
from clickexp.models import (
    CACMMinusModel,
    ClickModel,
    ContextAwareClickModel,
    DynamicBayesianNetwork,
    NeuralClickModel,
)
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.simulation import simulate
from clickexp.training import lazy_adam
from clickexp.training.step import TrainStep, split_model

HERE = Path(__file__).resolve().parent
MODELS = {
    "cacm_minus": functools.partial(
        CACMMinusModel, attraction=EmbeddingParameterConfig(posterior="none")
    ),
    "ncm": functools.partial(NeuralClickModel, offset=None),  # as published
    "cacm": ContextAwareClickModel,
}
READ = {"cacm_minus": ["query_doc_ids"], "ncm": ["document_ids", "query_numbers"]}
READ["cacm"] = [*READ["ncm"], *HISTORY]
ALONE = ("cacm",)
"""Models without a peer in PyTorch."""
LISTS = 4
"""Of a search session."""
SIDES = ("ours", "sparse", "dense")
STEPS = 16
HEADERS = ("ours", "PyTorch, rows", "PyTorch, tables",
           "rows : ours", "wall", "tables : ours", "wall")  # fmt: skip
LEARNING_RATE = 1e-3
RANKS, DOCUMENTS = 10, 20


def dataset_of(args: argparse.Namespace) -> Dataset:
    """A log of dynamic Bayesian users; the training part has at least `args.sessions` lists."""
    count, sizes = (
        args.sessions * 10 // 7 + 10,
        dict(queries=args.queries, documents_per_query=DOCUMENTS),
    )
    dataset = simulate(DynamicBayesianNetwork, sessions=count, positions=RANKS, **sizes)
    train = dataset.train
    columns = {**train.columns, "session_ids": np.arange(train.count) // LISTS}
    return dataclasses.replace(
        dataset, train=dataclasses.replace(train, columns=columns).with_context()
    )


def model_of(name: str, dataset: Dataset) -> ClickModel:
    """A model of the size of the peer's."""
    model = build_model(MODELS[name], dataset, 0)
    assert isinstance(model, ClickModel)
    return model


def time_ours(args: argparse.Namespace) -> dict[str, float]:
    """Processor and wall seconds a session of the compiled training step."""
    dataset = dataset_of(args)
    model, optimizer = (
        model_of(args.one, dataset),
        lazy_adam(LEARNING_RATE, dense_learning_rate=LEARNING_RATE),
    )
    model.train()
    batches = batches_of(args.one, dataset, args.batch_sizes[0], args.sessions)
    graphdef, state = split_model(model, optimizer)
    step = Compiled(TrainStep(graphdef, optimizer), donate_argnums=0)
    seconds = []
    for _ in range(2):  # the first compiles
        start = time.process_time(), time.perf_counter()
        for batch in batches:
            state, *_ = step(state, batch.arrays, np.int32(batch.steps))
        jax.block_until_ready(state)
        seconds = [time.process_time() - start[0], time.perf_counter() - start[1]]
    sessions = sum(batch.sessions for batch in batches)
    return {"cpu": seconds[0] / sessions, "wall": seconds[1] / sessions}


def time_marginals(args: argparse.Namespace) -> None:
    """Prints processor seconds of NCM's P(click): of the first call, which compiles, and of a session later."""
    sizes = dict(queries=args.queries, documents_per_query=DOCUMENTS)
    dataset = simulate(DynamicBayesianNetwork, sessions=args.sessions * 2, positions=RANKS, **sizes)
    model, sessions = model_of("ncm", dataset), dataset.train.slice(0, args.sessions)
    model.eval()
    predict = outputs_by_batch(model, lambda model, batch: {"click": model.predict_clicks(batch)})
    seconds = []
    for _ in range(args.repeats + 1):
        start = time.process_time()
        for _ in predict(sessions):
            pass
        seconds.append(time.process_time() - start)
    later = 1e3 * statistics.median(seconds[1:]) / args.sessions
    print_table(
        "Marginals", ["", "first call, s", "later, ms a session"], [("ncm", seconds[0], later)]
    )


def batches_of(name: str, dataset: Dataset, size: int, sessions: int) -> list[Superbatch]:
    """Batches of at most `sessions` lists, with the columns that a model reads."""
    found = superbatches(dataset.train.with_batch_columns(READ[name]), size, STEPS)
    return list(itertools.islice(found, max(sessions // size // STEPS, 1)))


def write_batches(args: argparse.Namespace, name: str, size: int, folder: Path) -> Path:
    """The same batches for the peer."""
    parts = batches_of(name, dataset_of(args), size, args.sessions)
    columns = {
        key: np.concatenate([part.arrays[key] for part in parts]) for key in (*READ[name], "clicks")
    }
    columns: dict[str, Any] = {
        key: values.astype(np.float32 if key == "clicks" else np.int64)
        for key, values in columns.items()
    }
    columns["positions"] = np.broadcast_to(np.arange(1, RANKS + 1), columns["clicks"].shape)
    file = folder / f"{name}-{size}.npz"
    np.savez(file, **columns)
    return file


def compare(args: argparse.Namespace, folder: Path) -> None:
    """Prints the table of one process a measurement, the sides in turns."""
    rows = []
    for name, size in itertools.product(args.models, args.batch_sizes):
        sides = SIDES if args.peer and name not in ALONE else SIDES[:1]
        file = write_batches(args, name, size, folder) if len(sides) > 1 else None
        times: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _, side in itertools.product(range(args.repeats), sides):
            settings = {"model": name, "rows": side, "threads": len(os.sched_getaffinity(0))}
            command = [args.peer, HERE / "neural_peer.py", file, json.dumps(settings)]
            if side == "ours":
                ours = [
                    f"--sessions={args.sessions}",
                    f"--queries={args.queries}",
                    f"--batch-sizes={size}",
                ]
                command = [sys.executable, __file__, "--one", name, *ours]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr)
            times[side].append(json.loads(done.stdout.splitlines()[-1]))
        cpu = {
            side: statistics.median(each["cpu"] for each in found) for side, found in times.items()
        }
        wall = {
            side: statistics.median(each["wall"] for each in found) for side, found in times.items()
        }
        ratios = [each[side] / each["ours"] for side in sides[1:] for each in (cpu, wall)]
        cells = [*(1e6 * cpu[side] for side in sides), *ratios]
        rows.append(
            (f"{name}, {size}", *cells, *[""] * (len(HEADERS) * bool(args.peer) - len(cells)))
        )
    headers = ["model, batch", *(HEADERS if args.peer else HEADERS[:1])]
    pairs = args.queries * DOCUMENTS
    title = f"Processor microseconds a session, {args.sessions:,} sessions, {pairs:,} pairs, median of {args.repeats}"
    print_table(title, headers, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="python of an environment with torch and numpy")
    parser.add_argument("--models", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 4096])
    parser.add_argument("--sessions", type=int, default=65_536)
    parser.add_argument("--queries", type=int, default=5_000, help=f"of {DOCUMENTS} documents")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--marginals", action="store_true", help="predictions, not training")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.marginals:
        print(machine())
        time_marginals(args)
        return
    if args.sessions < (least := STEPS * max(args.batch_sizes)):
        parser.error(f"--sessions {args.sessions}: give at least {least}, {STEPS} whole batches")
    if args.one:
        print(json.dumps(time_ours(args)))
        return
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        compare(args, Path(folder))


if __name__ == "__main__":
    main()
