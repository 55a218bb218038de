"""The work of `clickexp-data download`: public logs from Hugging Face."""

import errno
from pathlib import Path

from clickexp.data.public_logs import PUBLIC
from clickexp.errors import ConfigError, DataError, UserError, install, with_class
from clickexp.utils.paths import display_path
from clickexp.utils.suggest import did_you_mean


def download(name: str, target: str, files: str = "*") -> None:
    """Downloads a public log into a folder; files that are there whole are kept.

    Args:
        name: One of PUBLIC.
        target: The folder, in which the log has the folder that it has on Hugging Face.
        files: Pattern of the names of its files.

    Raises:
        ConfigError: There is no public log of this name.
        DataError: The server has no such files.
        UserError: The library is not installed, the server does not answer, or the disk is full.
    """
    if name not in PUBLIC:
        choices = ", ".join(PUBLIC)
        raise ConfigError(f"download {name}: choose {choices}{did_you_mean(name, PUBLIC)}")
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise UserError(f"download needs {error.name}: {install('hf')}") from error
    log = PUBLIC[name]
    pattern, folder = f"{log.folder}/{files}", Path(target)
    try:
        # of a commit, since of a branch without a server the client takes what is there for whole
        commit = hub.HfApi().dataset_info(log.repository).sha
        hub.snapshot_download(
            log.repository,
            repo_type="dataset",
            revision=commit,
            allow_patterns=pattern,
            local_dir=folder,
        )
    except Exception as error:  # of the library that the hub's client happens to use
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            remedy = "Free some, or take fewer files by --files. The same command again goes on."
            raise UserError(f"{folder}: no space is left on the disk. {remedy}") from error
        raise UserError(
            f"{log.repository}: {with_class(error)}. The same command again goes on."
        ) from error
    if not any(folder.glob(pattern)):
        raise DataError(f"{log.repository} has no files {pattern}. Change --files.")
    place = display_path(folder / log.folder)
    print(f"next: clickexp dataset={name} dataset.path={place}")  # noqa: T201  # output
