"""Run folders that are damaged, or written by someone hostile: compared and exported."""

import json
import math
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml

from scripts.campaign.base import RUNS, run_of
from scripts.campaign.damage import damage_bytes, damage_document
from scripts.campaign.trials import Trial, area

_DEEP = "[" * 200_000 + "]" * 200_000
_BOMB = "\n".join(
    ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
)
_ELSEWHERE = "elsewhere"
_SAVED = b"of someone else"


@area
def folders(trial: Trial) -> None:
    """A copy of a run is spoiled once or twice, then given to a command beside a sound one."""
    rng = trial.rng
    sound = run_of(trial.base, rng.choice(RUNS))
    run = trial.folder / "runs/bad"
    shutil.copytree(sound, run)
    for _ in range(rng.choice((1, 1, 2))):
        _spoil(run, trial)
    elsewhere = _elsewhere(trial.folder)
    rng.choice((_compare, _export, _export))(trial, run, sound)
    now = {file.name: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
    trial.check(now == {"a.png": _SAVED}, "a link was written through")


def _elsewhere(folder: Path) -> Path:
    elsewhere = folder / _ELSEWHERE
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "a.png").write_bytes(_SAVED)
    return elsewhere


def _compare(trial: Trial, run: Path, sound: Path) -> None:
    good = run.with_name("good")
    shutil.copytree(sound, good)
    more = trial.rng.choice(((), ("--published",), ("--metrics", "ll"), ("--baseline", "PBM")))
    output = trial.folder / "compared"
    outcome = trial.run("clickexp-compare", run.parent, "--output", output, *more)
    if "--published" in more:
        return
    trial.check(outcome.code == 0, f"one folder stops all: {outcome.errors}")
    trial.check((output / "comparison.html").exists(), "no page")


def _export(trial: Trial, run: Path, sound: Path) -> None:
    rng = trial.rng
    lists = _ranked_file(sound)
    extras = (
        ("--rank", lists),
        ("--numpy",),
        ("--onnx", "model.onnx"),
        ("--thompson", "1"),
        ("--predict",),
        ("--json",),
    )
    chosen = [word for extra in rng.sample(extras, rng.randrange(3)) for word in extra]
    outcome = trial.run("clickexp-export", run, *chosen)
    if outcome.code == 0:
        check_tables(trial, run / "export")


def _ranked_file(run: Path) -> Path:
    log = run.parent / "log"
    return log / "test.txt" if log.is_dir() else log.with_suffix(".csv")


def check_tables(trial: Trial, folder: Path) -> None:
    """Notes probabilities that are none, and tables that are missing."""
    file = folder / "documents.parquet"
    trial.check(file.exists(), "no documents.parquet")
    if not file.exists():
        return
    table = pq.read_table(file)
    for name in {"attraction", "satisfaction"} & {*table.column_names}:
        values = table.column(name).to_pylist()
        bad = [x for x in values if x is None or not math.isfinite(x) or not 0 <= x <= 1]
        trial.check(values and not bad, f"{name}: {bad[:3] or 'no rows'}")


def _spoil(run: Path, trial: Trial) -> None:
    files = sorted(file for file in run.rglob("*") if file.is_file() and not file.is_symlink())
    if not files:
        return
    file = trial.rng.choice(files)
    kind = trial.rng.choice(list(_KINDS))
    trial.story.append(f"{file.relative_to(run)}: {kind}")
    _KINDS[kind](file, trial.rng)


def _document(file: Path, rng: random.Random) -> None:
    if file.suffix == ".json":
        file.write_text(json.dumps(damage_document(json.loads(file.read_text()), rng)))
    elif file.suffix == ".yaml":
        content = yaml.safe_load(file.read_text())
        file.write_text(yaml.safe_dump(damage_document(content, rng)))
    elif file.suffix == ".npz":
        _arrays(file, rng)
    else:
        damage_bytes(file, rng)


def _arrays(file: Path, rng: random.Random) -> None:
    """One array has other numbers, another type or shape, or is gone."""
    with np.load(file) as stored:
        arrays = dict(stored)
    if not arrays:  # the only one is gone
        damage_bytes(file, rng)
        return
    name = rng.choice(list(arrays))
    values = arrays.pop(name)
    changes: tuple[Callable[[], object], ...] = (
        lambda: np.full_like(values, np.nan),
        lambda: np.full_like(values, 1e38),
        lambda: np.full_like(values, -1e29),
        lambda: values.astype(np.float64),
        lambda: values.astype(np.complex64),
        lambda: values.astype(str),
        lambda: values.astype(np.int32),
        lambda: values[..., None],
        lambda: values.ravel()[:-1],
        lambda: np.zeros(0, values.dtype),
        lambda: None,
    )
    changed = rng.choice(changes)()
    if changed is not None:
        arrays[name] = changed
    np.savez(file, **arrays)


def _replaced(make: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    def replace(file: Path, rng: random.Random) -> None:  # as the other kinds take them
        file.unlink()
        make(file)

    return replace


def _top(file: Path) -> Path:
    """The folder that the run lies in."""
    return next(parent for parent in file.parents if parent.name == "runs").parent


def _link_away(file: Path) -> None:
    file.symlink_to(_top(file) / _ELSEWHERE / "a.png")


def _folder_link(file: Path, rng: random.Random) -> None:
    """A folder that commands write to leads elsewhere."""
    run = _top(file) / "runs/bad"
    folder = run / rng.choice(
        ("export", "export/figures", "online", "tables", "figures", "export/ranker.npz")
    )
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    folder.parent.mkdir(exist_ok=True)
    if not folder.parent.is_symlink() and not os.path.lexists(folder):
        folder.symlink_to(_top(file) / _ELSEWHERE)


def _zip_bomb(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(1 << 26))


_KINDS: dict[str, Callable[[Path, random.Random], object]] = {
    "bytes": damage_bytes,
    "document": _document,
    "value": _document,
    "item": _document,
    "gone": _replaced(lambda file: None),
    "folder": _replaced(Path.mkdir),
    "pipe": _replaced(os.mkfifo),
    "link to itself": _replaced(lambda file: file.symlink_to(file.name)),
    "link elsewhere": _replaced(_link_away),
    "link to a device": _replaced(lambda file: file.symlink_to("/dev/zero")),
    "deep": lambda file, rng: file.write_text(_DEEP),
    "bomb": lambda file, rng: file.write_text(_BOMB),
    "zip bomb": _replaced(_zip_bomb),
    "folder elsewhere": _folder_link,
}
