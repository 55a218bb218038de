"""The output of a comparison: printed lines, and files that never replace those of others."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from clickexp.errors import UserError
from clickexp.runs.store import read_object, write_json
from clickexp.utils.documents import read_file
from clickexp.utils.escape import printable
from clickexp.utils.files import check_inside, is_inside, whole

_RECORD = ".comparison.json"
"""Paths and checksums of the files that were written, to recognise them later."""


def say(text: str) -> None:
    """Prints one line of a command's output; control characters in it are replaced."""
    print(printable(text), flush=True)  # noqa: T201  # a command's output


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Writes files into a folder and removes files of an earlier comparison that are no longer made.

    Files that were not written by this function, or were edited since, are never changed. Nor are files outside the
    folder to which links, or a record that came with the folder, point.

    Args:
        folder: The folder.
        files: Contents by path in the folder.

    Raises:
        UserError: Before anything is written, if a file in the way was not written by this function or is outside the
            folder.
    """
    contents = {
        name: text.encode() if isinstance(text, str) else text for name, text in files.items()
    }
    known = _recorded(folder)
    ours = {name for name, digests in known.items() if _digest(folder / name) in digests}
    for name in contents:
        check_inside((folder / name).parent, folder)
        if (folder / name).exists() and name not in ours:
            raise UserError(
                f"{folder / name} was not written by clickexp-compare, or was edited since: move it, or choose "
                "another --output"
            )
    digests = {name: [hashlib.sha256(content).hexdigest()] for name, content in contents.items()}
    # old and new checksums, so that both are recognised after an interruption
    _record(
        folder, {name: known.get(name, []) + digests.get(name, []) for name in {**known, **digests}}
    )
    for name in ours - contents.keys():
        (folder / name).unlink()
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with whole(folder / name) as part:
            part.write_bytes(content)
    _record(folder, digests)


def _recorded(folder: Path) -> dict[str, list[str]]:
    """Reads the checksums of the files in this folder from the record."""
    files = read_object(folder / _RECORD).get("files")
    return {
        name: digests
        for name, digests in (files.items() if isinstance(files, dict) else ())
        if isinstance(digests, list) and "\0" not in name and _is_inside(folder / name, folder)
    }


def _record(folder: Path, files: dict[str, list[str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json({"written_by": "clickexp-compare", "files": files}, folder / _RECORD)


def _is_inside(file: Path, folder: Path) -> bool:
    return is_inside(file.parent, folder) and file.name not in ("", "..")


def _digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(read_file(file)).hexdigest()
    except OSError:
        return None
