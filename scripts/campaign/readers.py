"""Logs that are damaged, or are none: refused in one line, or read as another reader reads them."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from scripts.campaign.damage import TEXTS, VALUES, damage_bytes
from scripts.campaign.logs import FORMATS, Count, Format, lists
from scripts.campaign.trials import Trial, area

_SOUND = "sound"


@area
def readers(trial: Trial) -> None:
    """A log in some format, sound or spoiled, is inspected."""
    rng = trial.rng
    name = rng.choice([*FORMATS])
    format = FORMATS[name]
    path = format.write(lists(rng), trial.folder)
    kind = rng.choice((_SOUND, "bytes", "bytes", "bytes", "cell", "cell", "cell", "place"))
    spoil(kind, path, rng)
    trial.story.append(f"{name}: {kind}")
    command = "prepare" if rng.random() < 0.2 else "inspect"
    if command == "prepare":
        _prepare(trial, path, format)
    else:
        _inspect(trial, path, format, is_sound=kind == _SOUND)


def _prepare(trial: Trial, path: Path, format: Format) -> None:
    name, *options = (option.removeprefix("format=") for option in format.options)
    target = trial.folder / "prepared"
    outcome = trial.run("clickexp-data", "prepare", name, path, target, *options)
    trial.check((outcome.code == 0) == target.exists(), "folder and exit code disagree")
    if outcome.code == 0:
        verified = trial.run("clickexp-data", "verify", target)
        trial.check(verified.code == 0, "what prepare wrote does not verify")


def _inspect(trial: Trial, path: Path, format: Format, *, is_sound: bool) -> None:
    output = trial.folder / "drawn"
    outcome = trial.run(
        "clickexp-data", "inspect", path, "--json", "--output", output, *format.options
    )
    if outcome.code != 0:
        trial.check(not is_sound, f"a sound log is refused: {outcome.errors}")
        return
    known = expected(format, path)
    read = counted(json.loads(outcome.output))
    trial.check(agree(read, known), f"read as {read}, by an independent reader as {known}")
    trial.check([*output.rglob("*.png")], "no figures")


def counted(report: dict) -> Count:
    """Returns lists, documents and clicks of what inspect reports."""
    parts = [report["parts"][name] for name in ("train", "val", "test")]
    names = "sessions", "documents_shown", "clicks"
    sessions, documents, clicks = (sum(part[name] for part in parts) for name in names)
    return sessions, documents, clicks


def expected(format: Format, path: Path) -> Count | None:
    """Returns what an independent reader counts; None where it cannot read the log."""
    try:
        return format.count(path)
    except Exception:  # it is made for sound logs
        return None


def agree(read: Sequence[int], known: Sequence[int] | None) -> bool:
    """Returns whether counts are the same, as far as they are known."""
    return known is None or all(b in (-1, a) for a, b in zip(read, known, strict=True))


def spoil(kind: str, path: Path, rng: random.Random) -> None:
    """Spoils one file of a log, in one of three ways."""
    if kind == _SOUND:
        return
    files = [path] if path.is_file() else sorted(path.iterdir())
    file = rng.choice(files)
    if kind == "bytes":
        damage_bytes(file, rng)
    elif kind == "cell" and file.suffix == ".parquet":
        _spoil_cell(file, rng)
    elif kind == "cell" and file.suffix != ".gz":
        _spoil_text(file, rng)
    else:
        _spoil_place(file, rng)


def _spoil_text(file: Path, rng: random.Random) -> None:
    """One cell, or word, of one line becomes another."""
    lines = file.read_text().splitlines()
    at = rng.randrange(len(lines))
    separator = rng.choice("\t, :")
    cells = lines[at].split(separator)
    cells[rng.randrange(len(cells))] = rng.choice(TEXTS)
    lines[at] = separator.join(cells)
    file.write_text("\n".join(lines) + "\n")


def _spoil_cell(file: Path, rng: random.Random) -> None:
    """One value, or column, of a table becomes another."""
    table = pq.read_table(file)
    name = rng.choice(table.column_names)
    values = table.column(name).to_pylist()
    at = rng.randrange(len(values))
    change = rng.choice(("value", "inner", "type", "constant", "drop", "twice"))
    if change == "value":
        values[at] = rng.choice(VALUES)
    elif change == "inner" and isinstance(values[at], list) and values[at]:
        values[at][rng.randrange(len(values[at]))] = rng.choice(VALUES)
    elif change == "type":
        values = [str(value) for value in values]
    else:
        values = [rng.choice(VALUES)] * len(values)
    try:
        column = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):  # parquet holds one type
        column = pa.array([str(value) for value in values])
    number = table.column_names.index(name)
    table = table.remove_column(number)
    if change != "drop":
        table = table.add_column(number, name, column)
    if change == "twice":
        table = table.append_column(name, column)
    content = pa.BufferOutputStream()
    try:
        pq.write_table(table, content)
    except pa.ArrowException:  # as of structs without fields
        damage_bytes(file, rng)
    else:
        file.write_bytes(content.getvalue())


def _spoil_place(file: Path, rng: random.Random) -> None:
    """The file is gone, or something else has its name."""
    content = file.read_bytes()
    file.unlink()
    kind = rng.choice(("gone", "folder", "pipe", "link", "loop", "unreadable", "other"))
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to("/nowhere")
    elif kind == "loop":
        file.symlink_to(file.name)
    elif kind == "unreadable":
        file.write_bytes(content)
        file.chmod(0)
    elif kind == "other":
        file.with_name(f"{file.stem}.bin").write_bytes(content)
