"""Sessions per second of one core that the loader delivers, in file order and shuffled, from a packed folder.

python scripts/bench/loader.py --sessions 10000000 --ranks 10 --batch-size 4096 --steps 16
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from log import packed

from clickexp.data import Sessions, superbatches


def uniform(folder: Path, count: int, ranks: int, pairs: int) -> Sessions:
    """Sessions with uniform ids and clicks, packed and mapped."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, pairs + 1, (count, ranks), dtype=np.int32)
    clicks = rng.integers(0, 2, (count, ranks), dtype=np.int8).view(bool)
    sessions = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks)
    return packed(folder, [("sessions", sessions)])["sessions"]


def seconds(
    sessions: Sessions,
    batch_size: int,
    steps: int,
    seed: int | None,
    epoch: int,
) -> float:
    """Processor time of one epoch, the order included, nothing done with the batches."""
    start = time.process_time()
    read = superbatches(sessions, batch_size, steps, seed=seed, epoch=epoch)
    assert sum(part.sessions for part in read)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in dict(
        sessions=10_000_000, ranks=10, pairs=1_000_000, batch_size=4096, steps=16
    ).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument(
        "--epochs", type=int, default=5, help="the table shows the median and the slowest of them"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        sessions = uniform(Path(temporary) / "pack", args.sessions, args.ranks, args.pairs)
        print(f"{'order':<24} {'M sessions / CPU s':>20} {'slowest':>10}")
        for name, seed in {"file": None, "shuffled": 1}.items():
            times = [
                seconds(sessions, args.batch_size, args.steps, seed, epoch)
                for epoch in range(args.epochs)
            ]
            rates = args.sessions / np.array(times) / 1e6
            print(f"{name:<24} {np.median(rates):>20.1f} {rates.min():>10.1f}")


if __name__ == "__main__":
    main()
