"""The work of `clickexp-data download`: public logs from Hugging Face, every file against its checksum."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clickexp.data.public_logs import PUBLIC, PublicLog
from clickexp.errors import ConfigError, DataError, UserError, install
from clickexp.utils.paths import display_path
from clickexp.utils.progress import Steps
from clickexp.utils.suggest import did_you_mean

_BLOCK = 1 << 20


def download(name: str, target: str, most: int | None = None) -> None:
    """Downloads a public log into a folder; files that are there whole are kept.

    Args:
        name: One of PUBLIC.
        target: The folder, in which the log has the folder that it has on Hugging Face.
        most: Files at most, the first by name; by default all.

    Raises:
        ConfigError: There is no public log of this name.
        DataError: The server has no such files, or a file differs from its checksum.
        UserError: The library is not installed, the disk is too small, or the server does not answer.
    """
    if name not in PUBLIC:
        choices = ", ".join(PUBLIC)
        raise ConfigError(f"download {name}: choose {choices}{did_you_mean(name, PUBLIC)}")
    log, folder = PUBLIC[name], Path(target)
    files = _files(log)[:most]
    left = [file for file in files if _size(folder / file.path) != file.size]
    _check_room(folder, sum(file.size for file in left))
    size = _gigabytes(sum(file.size for file in files))
    print(f"{len(files)} files, {size}, from {log.repository}")  # noqa: T201  # output
    with Steps(f"downloading {name}") as progress:
        for done, file in enumerate(files, start=1):
            _fetch(log, file.path, folder)
            _check(folder / file.path, file)
            progress(done, len(files))
    place = display_path(folder / log.folder)
    print(f"all checksums hold\nnext: clickexp dataset={name} dataset.path={place}")  # noqa: T201  # output


def _hub() -> Any:
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise UserError(f"download needs {error.name}: {install('hf')}") from error
    disable_progress_bars()
    return huggingface_hub


def _files(log: PublicLog) -> Sequence[Any]:
    """The files of a log, by name, with sizes and checksums."""
    hub = _hub()
    try:
        found = hub.HfApi().list_repo_tree(
            log.repository, log.folder, recursive=True, repo_type="dataset"
        )
        files = sorted(
            (each for each in found if hasattr(each, "size")), key=lambda each: each.path
        )
    except Exception as error:  # of the library that the hub's client happens to use
        raise UserError(f"{log.repository} does not answer ({type(error).__name__})") from error
    if not files:
        raise DataError(f"{log.repository} has no files in {log.folder}")
    return files


def _fetch(log: PublicLog, path: str, folder: Path) -> None:
    try:
        _hub().hf_hub_download(log.repository, path, repo_type="dataset", local_dir=folder)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: {reason}. The same command again goes on.") from error


def _check(path: Path, file: Any) -> None:
    """DataError unless a file has its size and, where the server states one, its checksum."""
    if _size(path) != file.size:
        raise DataError(f"{path}: not whole. Delete it, and type the same command again.")
    if not file.lfs:
        return
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != file.lfs.sha256:
        raise DataError(
            f"{path}: another checksum than the server states. Delete it, and type the same command again."
        )


def _check_room(folder: Path, needed: int) -> None:
    """UserError where the disk has too little room."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        sizes = f"{_gigabytes(needed)} are needed, {_gigabytes(free)} are free"
        raise UserError(f"{display_path(folder)}: {sizes}. Choose another folder.")


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
