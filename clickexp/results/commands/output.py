"""The output of a comparison: printed lines, and files that never replace those of others."""

from collections.abc import Collection, Mapping
from pathlib import Path

from clickexp.errors import UserError
from clickexp.runs.store import read_object, write_json
from clickexp.utils.escape import printable
from clickexp.utils.files import check_inside, is_inside, whole

_RECORD = ".comparison.json"
"""Paths of the files that were written, to recognise them later."""


def say(text: str) -> None:
    """Prints one line of a command's output; control characters in it are replaced."""
    print(printable(text), flush=True)  # noqa: T201  # a command's output


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Writes files into a folder and removes files of an earlier comparison that are no longer made.

    Files that this function has not written are never changed. Nor are files outside the folder to which links, or a
    record that came with the folder, point.

    Args:
        folder: The folder.
        files: Contents by path in the folder.

    Raises:
        UserError: Before anything is written, if a file in the way was not written by this function or is outside the
            folder.
    """
    earlier = _recorded(folder)
    for name in files:
        check_inside((folder / name).parent, folder)
        if (folder / name).exists() and name not in earlier:
            raise UserError(
                f"{folder / name} was not written by clickexp-compare: move it, or choose another --output"
            )
    _record(folder, earlier | files.keys())  # so that all are recognised after an interruption
    for name in earlier - files.keys():
        (folder / name).unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with whole(folder / name) as part:
            part.write_bytes(content.encode() if isinstance(content, str) else content)
    _record(folder, files.keys())


def _recorded(folder: Path) -> set[str]:
    """Reads from the record which files in this folder an earlier comparison wrote."""
    names = read_object(folder / _RECORD).get("files")
    texts = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    files = {name for name in texts if "\0" not in name and (folder / name).is_file()}
    return {name for name in files if is_inside((folder / name).parent, folder)}


def _record(folder: Path, names: Collection[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json({"written_by": "clickexp-compare", "files": sorted(names)}, folder / _RECORD)
