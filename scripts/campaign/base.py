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
    "csv_keyed": ("dataset=lists", "dataset.pair_key=document", "model=pbm", "keep_values=true"),
    "letor": ("dataset=letor", "dataset.sessions=300", "dataset.val_sessions=50",
              "dataset.test_sessions=50", "model=pbm", "attraction=linear"),
}  # fmt: skip
RUNS = tuple(_SETTINGS)


def run_of(base: Path, name: str) -> Path:
    """Returns a run on a log in some format, which lies beside it as log.* or log/."""
    folder = base / name
    if (folder / "run/result.json").exists():
        return folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = FORMATS[name].write(lists(random.Random(0), 300), folder)
    settings = [*_SETTINGS[name], f"dataset.path={path}", *SMALL[2:], "hydra.run.dir=run"]
    outcome = call(["clickexp", *settings], folder, 300)
    if outcome.code != 0:
        raise RuntimeError(f"no run to use: {outcome.errors}")
    return folder / "run"
