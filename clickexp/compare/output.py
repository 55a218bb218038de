"""The output of a comparison: lines, and files that are written whole and never over those of others."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from clickexp.errors import UserError
from clickexp.runs.store import read_json, write_json
from clickexp.utils.escape import printable
from clickexp.utils.files import whole

_RECORD = ".comparison.json"
"""Paths and checksums of the files that were written, by which they are recognised."""


def say(text: str) -> None:
    """Prints a line of a command's output, whatever names it holds."""
    print(printable(text), flush=True)  # noqa: T201  a command's output


def write_files(folder: Path, files: Mapping[str, str | bytes], report: Callable[[str], None] = say) -> None:
    """Writes files into a folder, and removes those of an earlier comparison that this one lacks.

    A file there that this function did not write, or that was edited since, is left alone. So are files outside, where
    links or a record that came with the folder lead.

    Args:
        folder: The folder.
        files: Contents by path in the folder.
        report: Receives a line for each file that is written.

    Raises:
        UserError: For a file of someone else, or one that leads out of the folder; before anything is written.
    """
    contents = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
    known = _known(folder)
    ours = {name for name, digests in known.items() if _digest(folder / name) in digests}
    for name in contents:
        if not _is_inside(folder / name, folder):
            raise UserError(f"{folder / name} leads out of {folder}: choose another --output")
        if (folder / name).exists() and name not in ours:
            raise UserError(
                f"{folder / name} was not written by clickexp-compare, or was edited since: move it, or choose "
                "another --output"
            )
    digests = {name: [hashlib.sha256(content).hexdigest()] for name, content in contents.items()}
    # both, so that after an interruption old files and new ones are recognised
    _record(folder, {name: known.get(name, []) + digests.get(name, []) for name in {**known, **digests}})
    for name in ours - contents.keys():
        (folder / name).unlink()
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with whole(folder / name) as part:
            part.write_bytes(content)
        report(f"wrote {os.path.relpath(folder / name)}")
    _record(folder, digests)


def _known(folder: Path) -> dict[str, list[str]]:
    """The checksums in the record of the files in this folder."""
    record = read_json(folder / _RECORD)
    files = record.get("files") if isinstance(record, dict) else None
    return {
        name: digests
        for name, digests in (files.items() if isinstance(files, dict) else ())
        if isinstance(digests, list) and _is_inside(folder / name, folder)
    }


def _record(folder: Path, files: dict[str, list[str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json({"written_by": "clickexp-compare", "files": files}, folder / _RECORD)


def _is_inside(file: Path, folder: Path) -> bool:
    return file.parent.resolve().is_relative_to(folder.resolve()) and file.name not in ("", "..")


def _digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
