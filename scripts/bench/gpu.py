"""What limits training on an accelerator: memory, rows of tables, kernels, what is around steps, the feed; and jobs.

python scripts/bench/gpu.py                        # made for ten minutes on a GPU; a row is printed once it is measured
python scripts/bench/gpu.py --sections rows steps
python scripts/bench/gpu.py --small                # some minutes on a CPU, to see that it runs

Models train as by default: posteriors by natural gradients, with the shares that a count pass leaves.
"""

import argparse
import contextlib
import dataclasses
import io
import itertools
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from loader import seconds as loader_seconds
from log import CLICK_RATE, POSITIONS, Log, zipf
from ours import build
from report import machine

import clickexp
from clickexp.data import Sessions, Superbatch, superbatches
from clickexp.data.feed import Compiled, feed, resident_on
from clickexp.export.export import export
from clickexp.posteriors.shared import shared_posterior
from clickexp.training import natural_gradient
from clickexp.training.accelerators import slow_scatter
from clickexp.training.memory import peak_memory
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.step import TrainState, TrainStep, split_model

MODELS = ("PBM", "UBM", "DBN")
STEPS = 16
REPEATS = 5
SECTIONS = ("memory", "rows", "steps", "around", "feed", "jobs")
JOBS, SMALL_JOBS = (2_000_000, ("ubm", "dbn", "ncm")), (20_000, ())
"""Sessions, and models besides PBM."""
NEURAL = 20
"""How many times fewer sessions a neural model has."""
WIDTH = 4
"""Floats of a row: mean and deviation of the posterior, the mean log rank and the prior's share."""

COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (\(.*?\)|\S+) ([\w-]+)\(")
NO_KERNEL = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "opt-barrier",
}


def median_seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Of calls after the first, each waited for."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def device() -> str:
    """The accelerator, its driver and the versions."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        answer = "no nvidia-smi"
    return f"{jax.devices()[0].device_kind} ({jax.default_backend()}), driver: {answer}"


def memory(size: int) -> list[tuple[str, float]]:
    """GB/s of a copy on the device, read and write counted, and of transfers from the host."""
    copy, values = jax.jit(lambda x: x + 1), jnp.zeros(size // 4)
    on_host = np.random.default_rng(0).random(size // 4, np.float32)
    return [
        ("copy on the device", 2 * size / median_seconds(lambda: copy(values)) / 1e9),
        ("host to device", size / median_seconds(lambda: jax.device_put(on_host)) / 1e9),
    ]


def ids_of(kind: str, rows: int, size: int | tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "uniform":
        return rng.integers(1, rows + 1, size, dtype=np.int32)
    return zipf(rows, rng, shuffled=False)(size=size)


def rows_of_a_table(rows: int, count: int) -> Iterator[tuple[str, float, float, float]]:
    """Ns per row, and GB/s of rows, of gathers and of scatter-adds into one table."""
    table, found = jnp.zeros((rows + 1, WIDTH)), {}
    gather = jax.jit(lambda table, ids: table.at[ids].get(mode="clip"))
    add = jax.jit(lambda table, ids, rows: table.at[ids].add(rows, mode="drop"), donate_argnums=0)
    given = jnp.ones((count, WIDTH))
    for kind in ("uniform", "zipf"):
        ids = jnp.asarray(ids_of(kind, rows, count))

        def added() -> jax.Array:
            nonlocal table
            table = add(table, ids, given)
            return table

        for name, run in (("gather", lambda: gather(table, ids)), ("scatter-add", added)):
            found[name, kind] = median_seconds(run)
    for name in ("gather", "scatter-add"):
        for kind in ("uniform", "zipf"):
            each = found[name, kind] / count
            yield (
                f"{name}, {kind}",
                1e9 * each,
                4 * WIDTH / each / 1e9,
                found[name, kind] / found[name, "uniform"],
            )


def sessions(rows: int, count: int) -> Sessions:
    """Sessions with Zipf ids and random clicks."""
    ids = ids_of("zipf", rows, (count, POSITIONS))
    clicks = np.random.default_rng(1).random(ids.shape, np.float32) < CLICK_RATE
    return Sessions.from_arrays(query_doc_ids=ids, clicks=clicks, query_doc_pairs=rows)


class Case:
    """A model's compiled step on a table, and its state."""

    def __init__(self, model: str, rows: int, log: Sessions):
        optimizer = natural_gradient()
        sizes = Log(Path(), {}, rows, POSITIONS, CLICK_RATE)
        graphdef, state = split_model(build(model, sizes), optimizer)
        step = TrainStep(graphdef, optimizer)
        count, found = (
            Compiled(step.count, donate_argnums=0),
            learned_priors.no_documents(state.tables),
        )
        for batch in superbatches(log, 4096, STEPS):
            found = count(found, state, batch.arrays, np.int32(batch.steps))
        tables = jax.jit(learned_priors.shares, donate_argnums=0)(state.tables, found, {})
        per_pass = jnp.float32(max(log.count // 4096, 1))
        self.state = dataclasses.replace(state, tables=tables, steps_per_pass=per_pass)
        self.rows = rows
        self.step = Compiled(step, donate_argnums=0)

    def epoch(self, batches: Iterator[Superbatch]) -> TrainState:
        for batch in batches:
            self.state, *_ = self.step(self.state, batch.arrays, np.int32(batch.steps))
        return self.state

    def row(self, log: Sessions, batch_size: int) -> tuple[float, float, int, int, int]:
        """Us per step, M sessions/s, kernels per step, loops of unknown length, table-sized copies."""
        batches = on_device(superbatches(log, batch_size, STEPS))
        steps = sum(batch.steps for batch in batches)
        each = median_seconds(lambda: self.epoch(iter(batches))) / steps
        program: Any = list(self.step.programs.values())[-1]
        text = program.as_text()
        return (
            1e6 * each,
            batch_size / each / 1e6,
            kernels(text),
            unknown_loops(text),
            copies(text, self.rows),
        )


def on_device(batches: Iterator[Superbatch]) -> list[Superbatch]:
    return [
        Superbatch(jax.device_put(batch.arrays), batch.steps, batch.sessions) for batch in batches
    ]


def kernels(text: str) -> int:
    """Instructions in the body of the loop over steps that launch something: the longest body of a loop."""
    bodies, name = {}, None
    for line in text.splitlines():
        if match := COMPUTATION.match(line):
            name = match[1]
        elif (match := INSTRUCTION.match(line)) and match[2] not in NO_KERNEL:
            bodies[name] = bodies.get(name, 0) + 1
    return max((bodies.get(body, 0) for body in re.findall(r"body=%?([\w.-]+)", text)), default=0)


def unknown_loops(text: str) -> int:
    """Loops after each of whose steps a GPU waits for the host."""
    return sum(" while(" in line and "known_trip_count" not in line for line in text.splitlines())


def copies(text: str, rows: int) -> int:
    """Copies of a whole table, of which a step that updates in place has none."""
    found = (INSTRUCTION.match(line) for line in text.splitlines())
    return sum(bool(m) and m[2].startswith("copy") and f"[{rows + 1}," in m[1] for m in found)


def epochs(rows: int, count: int, batch_size: int) -> list[tuple[str, float]]:
    """M sessions/s of the loader, and of PBM's epochs from the loader and from what lies on the device."""
    log = sessions(rows, count)
    case = Case("PBM", rows, log)
    times = [loader_seconds(log, batch_size, STEPS, 1, epoch) for epoch in range(3)]
    rates = [("loader alone, shuffled", count / statistics.median(times) / 1e6)]
    numbers = itertools.count()
    for name, tables in (("epoch, fed", None), ("epoch, resident", resident_on(log))):

        def epoch(tables: Mapping[str, jax.Array] | None = tables) -> Any:
            return case.epoch(feed(log, batch_size, STEPS, 1, next(numbers), resident=tables))

        rates.append((name, count / median_seconds(epoch, 3) / 1e6))
    return rates


def steps_of_models(tables: Sequence[int], batch_sizes: Sequence[int]) -> Iterator[tuple]:
    """What `Case.row` measures, of each model, table and size of batches."""
    for rows in tables:
        log = sessions(rows, STEPS * batch_sizes[-1])
        for model in MODELS:
            case = Case(model, rows, log)
            for size in batch_sizes:
                yield (f"{model}, {rows:.0e}, {size:,}", *case.row(log, size))


def around(case: Case) -> Iterator[tuple[str, float]]:
    """Seconds of what an epoch does besides steps, on a large table."""
    refit = jax.jit(learned_priors.refit_priors, donate_argnums=0)
    tables = case.state.tables

    def refitted() -> object:
        nonlocal tables
        tables = refit(tables)
        return tables

    yield "refit of the prior", median_seconds(refitted, 2)
    copy = jax.jit(lambda tables: jax.tree.map(jnp.copy, packing.learned(tables)))
    yield "snapshot of the best state", median_seconds(lambda: copy(tables), 2)
    start = time.perf_counter()
    np.asarray(jax.tree.leaves(tables)[0])
    yield "table to the host", time.perf_counter() - start


def jobs(sessions: int, models: Sequence[str]) -> Iterator[tuple[str, float, float, float, float]]:
    """Of whole runs: seconds, M sessions/s of later epochs, and seconds of intervals and of an export."""
    several = jax.local_device_count() > 1
    for model, devices in (("pbm", 1), *[("pbm", "all")] * several, *((m, 1) for m in models)):
        count = sessions // NEURAL if model == "ncm" else sessions
        words = [f"dataset.sessions={count}", "trainer.epochs=4", f"trainer.devices={devices}"]
        options = {"logger": "jsonl", "report": False, "shared_intervals": False, "progress": "off"}
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                run = clickexp.run(*words, model=model, folder=f"{folder}/run", **options)
            fitted = time.perf_counter()
            shared_posterior(run.model, run.dataset.train)
            sure = time.perf_counter()
            export(run.folder, report=lambda _: None)
            exported = time.perf_counter()
        epoch = statistics.median(run.result.epoch_seconds[1:])
        name = f"{model}, {count:,} sessions, devices={devices}"
        rate = run.dataset.train.count / epoch / 1e6
        yield name, fitted - start, rate, sure - fitted, exported - sure


def print_rows(title: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table whose rows are printed as they are measured, so that a cut loses none of them."""
    print(f"\n{title}\n\n| {' | '.join(headers)} |\n|{'---|' * len(headers)}", flush=True)
    for row in rows:
        cells = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="small tables and batches")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    arguments = parser.parse_args()
    small, wanted = arguments.small, arguments.sections
    tables = (10**4, 10**6) if small else (10**5, 10**8)
    batch_sizes = (1024, 4096) if small else (4096, 16_384, 65_536)
    start = time.perf_counter()
    print(device(), machine(), *filter(None, [slow_scatter()]), sep="\n", flush=True)
    if "memory" in wanted:
        print_rows("Memory", ("", "GB/s"), memory(1 << (26 if small else 30)))
    if "rows" in wanted:
        title = f"Rows of {WIDTH} floats, a table of {tables[1]:.0e} rows"
        headers = ("", "ns per row", "GB/s", "time : uniform")
        print_rows(title, headers, rows_of_a_table(tables[1], 1 << (16 if small else 22)))
    if "steps" in wanted:
        headers = (
            "model, rows, batch",
            "us per step",
            "M sessions/s",
            "kernels",
            "unknown loops",
            "table copies",
        )
        title = "Training steps on batches that lie on the device, Zipf ids"
        sizes = (tables[:1], batch_sizes[:1]) if small else (tables, batch_sizes)
        print_rows(title, headers, steps_of_models(*sizes))
    if "around" in wanted:
        case = Case("PBM", tables[1], sessions(tables[1], STEPS * batch_sizes[0]))
        print_rows(f"Around steps, PBM, {tables[1]:.0e} rows", ("", "seconds"), around(case))
    if "feed" in wanted:
        count, size = (200_000, 4096) if small else (10_000_000, 16_384)
        title = f"PBM, {count:,} sessions, {tables[1]:.0e} rows, batches of {size:,}"
        print_rows(title, ("", "M sessions/s"), epochs(tables[1], count, size))
    if "jobs" in wanted:
        headers = ("run", "seconds", "M sessions/s", "intervals, s", "export, s")
        print_rows("Runs of four epochs", headers, jobs(*SMALL_JOBS if small else JOBS))
    peaks = peak_memory()
    print(", ".join(f"{name}: {value:,.0f}" for name, value in peaks.items()))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
