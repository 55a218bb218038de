"""A share of the files of a log, read into a prepared log with separate ids."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data.description import Description, PartDescription
from clickexp.data.id_table import IdTable, mixed
from clickexp.data.ingest.checks import Checks
from clickexp.data.log_files import Share
from clickexp.data.log_format import written
from clickexp.data.log_writer import LogWriter
from clickexp.utils.signatures import located
from clickexp.utils.sources import source_path

BUCKETS = 256
"""Divisions of the keys of a table, each of which one process joins."""
PART = "sessions"
"""The part of a log that shares have."""
EARLIER = "earlier.parquet"
"""Names of the ids of an earlier log, beside the shares."""


@dataclass(frozen=True)
class ReadShare:
    """A share that has been read.

    Attributes:
        folder: Its prepared log.
        description: Of this log.
        checks: What is decided of the rows of all shares; None when it has been.
        buckets: `[BUCKETS]`, keys in each bucket, by the name of their table.
    """

    folder: Path
    description: Description
    checks: Checks | None
    buckets: Mapping[str, np.ndarray]

    @property
    def part(self) -> PartDescription:
        """Its sessions."""
        return self.description.parts[PART]

    def columns(self) -> dict[str, np.ndarray]:
        """Returns its packed columns, mapped."""
        return self.part.map_columns(self.folder / PART)[0]

    def array(self, table: str, name: str) -> np.ndarray:
        """Returns an array of a table, mapped."""
        return np.load(array_file(self.folder, table, name), mmap_mode="r")

    def has_array(self, table: str, name: str) -> bool:
        """Returns whether a table has an array of this name."""
        return array_file(self.folder, table, name).exists()


def array_file(folder: Path, table: str, name: str) -> Path:
    """Returns the file of an array of a table of a share."""
    return folder / f"{table}.{name}.npy"


def read_share(
    opener: str, source: str, folder: Path, share: Share, options: Mapping[str, Any]
) -> ReadShare:
    """Reads a share.

    Args:
        opener: Dotted path of the format.
        source: The log.
        folder: New folder; what an earlier try has left there goes.
        share: Files to read.
        options: Of the reader.

    Raises:
        DataError: The files cannot be read.
    """
    shutil.rmtree(folder, ignore_errors=True)
    format: Any = located(opener)
    names = folder.parent / EARLIER
    earlier = pl.read_parquet(names, glob=False) if names.exists() else None
    log = LogWriter(folder, source, format.format, durable=False, earlier=earlier, share=share)
    written(format.read, source_path(source), log, **options)
    buckets = {name: _save_keys(folder, name, table) for name, table in log.tables.items()}
    return ReadShare(folder, Description.read(folder), log.checks, buckets)


def _save_keys(folder: Path, name: str, table: IdTable) -> np.ndarray:
    """Writes the keys of a table bucket by bucket, with their ids; returns how many there are in each."""
    keys, second = table.keys(), table.second_keys()
    bucket = (mixed(keys) % np.uint64(BUCKETS)).astype(np.uint8)
    order = np.argsort(bucket, kind="stable")
    np.save(array_file(folder, name, "keys"), keys[order])
    np.save(array_file(folder, name, "ids"), (order + 1).astype(np.int32))
    if second is not None:
        np.save(array_file(folder, name, "second"), second[order])
    return np.bincount(bucket, minlength=BUCKETS)
