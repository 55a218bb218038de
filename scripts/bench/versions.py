"""Training of this checkout beside that of another: processor time of steps and of epochs per session, in turns.

    git worktree add ../before c2c7319
    python scripts/bench/versions.py --other ../before                      # steps
    python scripts/bench/versions.py --other ../before --epochs --turns 3   # epochs, too

Each checkout has a process, in which every case of `ours.py` stays with its table and batches: point estimates and
posteriors of the position-based model, batches of 4,096 sessions of ten documents, Zipf ids in order of popularity. The
two take turns of 128 steps on batches in memory, and of two epochs after a first one, which read and shuffle sessions
and validate. Ratios are medians over turns.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ours import Case

HERE = Path(__file__).resolve().parents[2]
KINDS = ("point estimates", "posteriors")
SESSIONS, VALIDATION, BATCH = 1 << 19, 1 << 13, 4096


class Side:
    """The process of a checkout.

    Args:
        tree: The checkout.
        rows: Rows of each table.
        logs: Folder for its logs.
        epochs: Whether a turn has epochs, too.
    """

    def __init__(self, tree: Path, rows: list[int], logs: Path, epochs: bool):
        path = os.pathsep.join([str(tree), str(tree / "scripts" / "bench")])
        words = ["--worker", str(logs), "--rows", *map(str, rows), *["--epochs"] * epochs]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *words],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def turn(self, case: int) -> list[float]:
        """Returns processor us per session of steps and of epochs of a case."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{case}\n")
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def work(rows: list[int], logs: Path, epochs: bool) -> None:
    """Does turns of the cases that standard input names by number."""
    sys.path.pop(0)  # modules beside this file are those of one checkout
    from log import drawn
    from ours import Case

    found = [drawn(logs, "zipf", size, SESSIONS, VALIDATION, parquet=False) for size in rows]
    cases = [Case("PBM", log, BATCH, numbers=kind == KINDS[0]) for log in found for kind in KINDS]
    for line in sys.stdin:
        case = cases[int(line)]
        print(json.dumps([of_steps(case), *([of_epochs(case)] if epochs else [])]), flush=True)


def of_steps(case: "Case") -> float:
    """Returns processor us per session of steps, whose wall time a case returns."""
    wall, processor = time.perf_counter(), time.process_time()
    step = case.step_seconds()
    share = (time.process_time() - processor) / (time.perf_counter() - wall)
    return 1e6 * step * share / BATCH


def of_epochs(case: "Case") -> float:
    """Returns processor us per session of epochs after the first."""
    from ours import Stamps

    class Clock(Stamps):
        def epoch(self, record: object) -> None:
            self.times.append(time.process_time())

    clock = Clock()
    trainer = dataclasses.replace(case.trainer, epochs=3, early_stopping=None, logger=clock)
    trainer.train(case.build(), case.train, case.val)
    return 1e6 * (clock.times[-1] - clock.times[0]) / (2 * case.train.count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path, help="the other checkout")
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--epochs", action="store_true", help="measure epochs, too")
    parser.add_argument(
        "--logs", type=Path, default=Path("outputs/bench"), help="keeps the logs of each checkout"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.rows, options.worker, options.epochs)
        return
    trees = {"other": options.other.resolve(), "this": HERE}
    sides = [
        Side(tree, options.rows, options.logs / tree.name, options.epochs)
        for tree in trees.values()
    ]
    names = [(size, kind) for size in options.rows for kind in KINDS]
    for case in range(len(names)):
        for side in sides:
            side.turn(case)  # compiles
    turns = [
        [[side.turn(case) for side in sides] for case in range(len(names))]
        for _ in range(options.turns)
    ]
    parts = ["steps", "epochs"][: 1 + options.epochs]
    head = ["rows", "", *(f"{part}: {name}" for part in parts for name in (*trees, "ratio"))]
    print("|", " | ".join(head), "|\n|---:|---|" + 3 * len(parts) * "---:|")
    for case, (size, kind) in enumerate(names):
        cells = [f"{size:.0e}", kind]
        for part in range(len(parts)):
            pairs = [[side[part] for side in each[case]] for each in turns]
            medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
            ratio = statistics.median(this / other for other, this in pairs)
            cells += [f"{median:.3f}" for median in medians] + [f"{ratio:.2f}"]
        print("|", " | ".join(cells), "|", flush=True)
    for side in sides:
        side.close()


if __name__ == "__main__":
    main()
