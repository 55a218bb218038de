"""Sound runs that the cases of a campaign share: made once, copied, never changed."""

import random
import shutil
from pathlib import Path

from scripts.campaign.logs import FORMATS, lists
from scripts.campaign.processes import call

SMALL = (
    "dataset.sessions=400", "dataset.queries=6", "trainer.epochs=2", "metric=click", "report=false",
    "logger=jsonl", "progress=off",
)  # fmt: skip
"""A run of a second or two."""
_SETTINGS = {
    "csv_keyed": ("dataset=csv", "dataset.pair_key=document", "model=pbm", "keep_values=true"),
    "letor": ("dataset=letor", "dataset.sessions=300", "dataset.val_sessions=50",
              "dataset.test_sessions=50", "model=pbm", "attraction=linear"),
}  # fmt: skip
RUNS = tuple(_SETTINGS)


def run_of(base: Path, name: str) -> Path:
    """Returns a run on a log in some format, which lies beside it as log.* or log/."""
    folder = base / name
    if folder.exists():
        return folder / "run"
    making = base / f"{name}.making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    path = FORMATS[name].write(lists(random.Random(0), 300), making)
    command = ["clickexp", *_SETTINGS[name], f"dataset.path={folder / path.name}"]
    making.rename(folder)
    settings = [*SMALL[2:], "hydra.run.dir=run"]
    outcome = call([*command, *settings], folder, 300)
    if outcome.code != 0:
        shutil.rmtree(folder)
        raise RuntimeError(f"no run to use: {outcome.errors}")
    return folder / "run"
