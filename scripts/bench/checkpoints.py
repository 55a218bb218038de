"""Checkpoints of a training in one file beside those of Orbax: seconds, memory and files of saving and restoring.

    python scripts/bench/checkpoints.py --rows 10000000 --devices 1 8

A state has 16 bytes per row, and its best 12, as those of a table with posteriors. Each case is a process, whose
devices XLA makes of the CPU. Orbax saves rows in the order of ids, into which devices exchange them before, and
restores them in this order: to bring them back to the devices of their ids would come on top. Memory is what the peak
of the process grows by while it saves or restores. All devices of a CPU share it.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMATS = ("one file", "Orbax")
WIDTHS = (4, 3)


class Timed:
    """Processor and wall seconds, and MiB by which the peak of the process grows, of what is called."""

    def __init__(self, call: Callable[[], Any]):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wall, processor = time.perf_counter(), time.process_time()
        self.result = call()
        self.seconds = time.process_time() - processor, time.perf_counter() - wall
        self.grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def case(form: str, rows: int, number: int, folder: Path) -> None:
    """Prints what a checkpoint of so many rows on so many devices takes."""
    import jax

    from clickexp.parameters import Rows
    from clickexp.training.checkpoint import load_training, save_training
    from clickexp.training.spread import training_on

    devices, importing = training_on(number), 0.0
    keys = jax.random.split(jax.random.key(0), len(WIDTHS))
    tables = [
        Rows(jax.random.normal(key, (rows, width)), 1)
        for key, width in zip(keys, WIDTHS, strict=True)
    ]
    like = jax.eval_shape(lambda: tables)
    state = jax.block_until_ready(devices.lay(tables))

    @jax.jit
    def in_order(tables: list[Rows]) -> list[Rows]:
        """Tables with rows in the order of ids, and zeros behind them, spread over the devices."""

        def ordered(values: jax.Array) -> jax.Array:
            by_device = values.reshape(number, -1, values.shape[1])
            rows = by_device.swapaxes(0, 1).reshape(values.shape)
            return jax.lax.with_sharding_constraint(rows, state[0].values.sharding)

        return jax.tree.map(ordered, tables)

    if form == "Orbax":
        start = time.process_time()
        import orbax.checkpoint

        importing = time.process_time() - start
        checkpointer = orbax.checkpoint.StandardCheckpointer()
        target = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state
        )

        def save() -> None:
            checkpointer.save(folder / "checkpoint", in_order(state))
            checkpointer.wait_until_finished()

        def restore() -> Any:
            return checkpointer.restore(folder / "checkpoint", target)
    else:

        def save() -> None:
            save_training(folder / "checkpoint.npz", devices.blocks(state, like), {})

        def restore() -> Any:
            return load_training(folder / "checkpoint.npz", like, devices)[0]

    saved = Timed(save)
    restored = Timed(lambda: jax.block_until_ready(restore()))
    expected = in_order(state) if form == "Orbax" else state
    for one, other in zip(*map(jax.tree.leaves, (expected, restored.result)), strict=True):
        assert bool((one == other).all())
    files = [file for file in folder.rglob("*") if file.is_file()]
    found = {
        "importing": importing,
        "save": [*saved.seconds, saved.grown],
        "restore": [*restored.seconds, restored.grown],
        "files": len(files),
        "MB": sum(file.stat().st_size for file in files) / 1e6,
    }
    print(json.dumps(found))


def measured(form: str, rows: int, number: int) -> dict[str, Any]:
    """Returns what a process of its own prints."""
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={number}"}
    with tempfile.TemporaryDirectory() as folder:
        words = ["--case", form, "--rows", str(rows), "--devices", str(number), "--folder", folder]
        done = subprocess.run(
            [sys.executable, __file__, *words],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--case", choices=FORMATS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        case(options.case, options.rows, options.devices[0], options.folder)
        return
    print("| devices | format | import, CPU s | save: CPU s, wall s, MiB | restore | files | MB |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for number in options.devices:
        for form in FORMATS:
            found = measured(form, options.rows, number)
            each = [
                f"{found[name][0]:.2f}, {found[name][1]:.2f}, {found[name][2]:.0f}"
                for name in ("save", "restore")
            ]
            cells = [number, form, f"{found['importing']:.2f}", *each]
            cells += [found["files"], f"{found['MB']:.0f}"]
            print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
