"""Folders that one process claims for its run or sweep."""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from clickexp.errors import ConfigError
from clickexp.runs.hashing import identity
from clickexp.runs.store import CHECKPOINT, CONFIG, HYDRA, MULTIRUN, RESULT, is_whole, read_object
from clickexp.utils.files import LOCK, claimed, is_inside, locked
from clickexp.utils.text import listed

RUN_DIR = "hydra.run.dir"
_UNUSED = (".hydra", MULTIRUN, "main.log", LOCK)
"""Files of a folder before its run or sweep starts; the lines of the log were on the terminal, too."""
_MOST_NAMED = 3


class Claim(NamedTuple):
    """A folder that belongs to this process.

    Attributes:
        folder: The folder.
        lock: Its lock, until it is closed or the process ends.
        made: The folders that did not exist before, the innermost first.
    """

    folder: Path
    lock: TextIO
    made: Sequence[Path]

    def release(self) -> None:
        """Removes the new folders if nothing has been written to them, then gives up the lock."""
        with contextlib.suppress(OSError):  # there is something in it
            if self.made and {file.name for file in self.made[0].iterdir()} <= {*_UNUSED}:
                shutil.rmtree(self.made[0] / _UNUSED[0], ignore_errors=True)
                for name in _UNUSED[1:]:
                    (self.made[0] / name).unlink(missing_ok=True)
                for folder in self.made:
                    folder.rmdir()
        self.lock.close()  # last: who has it next finds the folder as it stays


def claim_sweep(wanted: Path) -> Claim:
    """Claims the folder of a sweep, or the next of FOLDER-2, FOLDER-3, ... that no other process has."""
    return next(claim for folder in _numbered_folders(wanted) if (claim := _claim(folder)))


def claim_new(wanted: Path) -> Claim:
    """Claims a new folder for a run: the first of FOLDER, FOLDER-2, ... that does not exist."""
    for folder in _numbered_folders(wanted):
        with contextlib.suppress(FileExistsError):
            if claim := _claim(folder, exist_ok=False):
                return claim
    raise AssertionError  # there is always another number


def claim_named(folder: Path, config: Callable[[], dict[str, Any] | None]) -> Claim:
    """Claims the folder that a user has named for a run, which may have been interrupted there.

    Args:
        folder: The folder.
        config: Returns the resolved configuration of the run; None where it cannot be resolved.

    Raises:
        ConfigError: A run is active or finished there, one of another configuration was interrupted, or a link
            leads out of the folder, or a pipe is there.
    """
    claim = _claim(folder)
    if claim is None:
        raise ConfigError(
            f"{RUN_DIR}={folder}: another run is writing there. Wait for it or choose another folder."
        )
    try:
        earlier = read_object(folder / CONFIG)
        if is_finished(folder):
            raise ConfigError(
                f"{RUN_DIR}={folder}: a finished run is there. Delete it or choose another folder."
            )
        if earlier and (folder / CHECKPOINT).exists() and not (folder / RESULT).exists():
            _check_continues(folder, earlier, config())
    except BaseException:
        claim.release()
        raise
    return claim


def is_finished(folder: Path) -> bool:
    """Returns whether a run has finished in a folder, with the model that its configuration asks for."""
    return is_whole(folder, bool(read_object(folder / CONFIG).get("save_model")))


def is_abandoned(folder: Path, own: Path | None = None) -> bool:
    """Returns whether no process has locked a folder or one above it.

    Args:
        folder: That of a run.
        own: A folder that the caller has locked itself.
    """
    folder, own = folder.resolve(), own and own.resolve()
    for place in (folder, *folder.parents):
        if place != own and (place / LOCK).exists():
            try:
                lock = locked(place / LOCK)
            except OSError:
                return False
            if lock is None:
                return False
            lock.close()
    return True


def _check_continues(folder: Path, earlier: dict[str, Any], config: dict[str, Any] | None) -> None:
    """Raises a ConfigError where the interrupted run in a folder had another configuration."""
    before, now = identity(earlier), identity(config or earlier)
    differ = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    if differ:
        changes = [f"{name} was {before.get(name)}, not {now.get(name)}" for name in differ]
        named = listed(changes, _MOST_NAMED)
        raise ConfigError(
            f"{RUN_DIR}={folder}: an interrupted run of another configuration is there ({named}). "
            "Choose another folder, or repeat its configuration to continue it."
        )


def _claim(folder: Path, exist_ok: bool = True) -> Claim | None:
    """Creates and locks a folder; None if another process has it."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=exist_ok)
    _check_places(folder)
    lock = claimed(folder / LOCK)
    return lock and Claim(folder, lock, made)


def _check_places(folder: Path) -> None:
    """Raises a ConfigError for a link or a pipe in a folder, through which a run would write elsewhere, or wait.

    What loggers keep in folders of theirs is left alone: W&B links its runs to a log in its own cache.
    """
    places = ("*", f"{HYDRA}/*", "[0-9]*/*", f"[0-9]*/{HYDRA}/*")
    for path in (path for place in places for path in folder.glob(place)):
        leads_out = path.is_symlink() and not is_inside(path, folder)
        if leads_out or path.is_fifo():
            what = "leads out of the folder" if leads_out else "is a pipe"
            raise ConfigError(f"{path} {what}. Remove it, or choose another folder.")


def _numbered_folders(wanted: Path) -> Iterator[Path]:
    """Yields FOLDER, FOLDER-2, FOLDER-3, ..."""
    yield wanted
    for number in itertools.count(2):
        yield wanted.with_name(f"{wanted.name}-{number}")
