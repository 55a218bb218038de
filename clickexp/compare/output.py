"""The files of a comparison: written whole, and never over files that are someone else's."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from clickexp.errors import UserError
from clickexp.runs.store import read_json, write_json
from clickexp.utils.files import whole

RECORD = ".comparison.json"
"""What was written, with checksums: by it our files are known again."""


class Output:
    """A folder that files are written into. A file there that this class did not write, or that was edited since,
    is left alone: UserError, before anything is written. So is what lies outside, where links or a record that came
    with the folder lead."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.say = say
        self.files: dict[Path, bytes] = {}

    def add(self, name: str, content: str | bytes) -> None:
        """A file to write, by its path in the folder."""
        self.files[self.folder / name] = content.encode() if isinstance(content, str) else content

    def write(self) -> None:
        """Writes all files that were added, and removes those that an earlier comparison wrote and this one did not."""
        known = self._known()
        ours = {
            self.folder / name for name, digests in known.items() if _digest(self.folder / name) in digests
        }
        for file in self.files:
            if not self._is_inside(file):
                raise UserError(f"{file} leads out of {self.folder}: choose another --output")
            if file.exists() and file not in ours:
                raise UserError(
                    f"{file} was not written by clickexp-compare, or was edited since: move it, or choose "
                    "another --output"
                )
        digests = {
            str(file.relative_to(self.folder)): [hashlib.sha256(content).hexdigest()]
            for file, content in self.files.items()
        }
        # both, so that after an interruption old files and new ones are known as ours
        self._record({name: known.get(name, []) + digests.get(name, []) for name in {**known, **digests}})
        for file in ours - set(self.files):
            file.unlink()
        for file, content in self.files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole(file) as part:
                part.write_bytes(content)
            self.say(f"wrote {os.path.relpath(file)}")
        self._record(digests)

    def _known(self) -> dict[str, list[str]]:
        """What the record lists: checksums of the files in this folder, by their paths."""
        record = read_json(self.folder / RECORD)
        files = record.get("files") if isinstance(record, dict) else None
        return {
            name: digests
            for name, digests in (files.items() if isinstance(files, dict) else ())
            if isinstance(digests, list) and self._is_inside(self.folder / name)
        }

    def _is_inside(self, file: Path) -> bool:
        return file.parent.resolve().is_relative_to(self.folder.resolve()) and file.name not in ("", "..")

    def _record(self, files: Mapping[str, list[str]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json({"written_by": "clickexp-compare", "files": files}, self.folder / RECORD)


def _digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
