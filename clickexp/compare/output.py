"""The output of a comparison: lines, and files that are written whole and never over those of others."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from clickexp.errors import UserError
from clickexp.runs.store import read_json, write_json
from clickexp.utils.escape import printable
from clickexp.utils.files import whole

_RECORD = ".comparison.json"
"""Paths and checksums of the files that were written, by which they are recognised."""


class Output:
    """A folder that files are written into.

    A file there that this class did not write, or that was edited since, is left alone: UserError, before anything is
    written. So are files outside, where links or a record that came with the folder lead.

    Args:
        folder: The folder.
        say: Receives a line for each file that is written.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.say = say
        self.files: dict[str, bytes] = {}

    def add(self, name: str, content: str | bytes) -> None:
        """Adds a file to write, by its path in the folder."""
        self.files[name] = content.encode() if isinstance(content, str) else content

    def write(self) -> None:
        """Writes all files that were added, and removes those of an earlier comparison that this one lacks.

        Raises:
            UserError: For a file of someone else, or one that leads out of the folder.
        """
        known = self._known()
        ours = {name for name, digests in known.items() if _digest(self.folder / name) in digests}
        for name in self.files:
            file = self.folder / name
            if not self._is_inside(file):
                raise UserError(f"{file} leads out of {self.folder}: choose another --output")
            if file.exists() and name not in ours:
                raise UserError(
                    f"{file} was not written by clickexp-compare, or was edited since: move it, or choose "
                    "another --output"
                )
        digests = {name: [hashlib.sha256(content).hexdigest()] for name, content in self.files.items()}
        # both, so that after an interruption old files and new ones are recognised
        self._record({name: known.get(name, []) + digests.get(name, []) for name in {**known, **digests}})
        for name in ours - self.files.keys():
            (self.folder / name).unlink()
        for name, content in self.files.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole(file) as part:
                part.write_bytes(content)
            self.say(f"wrote {os.path.relpath(file)}")
        self._record(digests)

    def _known(self) -> dict[str, list[str]]:
        """The checksums in the record of the files in this folder."""
        record = read_json(self.folder / _RECORD)
        files = record.get("files") if isinstance(record, dict) else None
        known = files.items() if isinstance(files, dict) else ()
        return {
            name: digests
            for name, digests in known
            if isinstance(digests, list) and self._is_inside(self.folder / name)
        }

    def _is_inside(self, file: Path) -> bool:
        return file.parent.resolve().is_relative_to(self.folder.resolve()) and file.name not in ("", "..")

    def _record(self, files: dict[str, list[str]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json({"written_by": "clickexp-compare", "files": files}, self.folder / _RECORD)


def say(text: str) -> None:
    """Prints a line of a command's output, whatever names it holds."""
    print(printable(text), flush=True)  # noqa: T201  a command's output


def _digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
