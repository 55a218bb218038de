"""A share of the files of a log, read into lists with separate ids."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from clickexp.data.description import FEATURES
from clickexp.data.encoding import FeatureSettings, Names
from clickexp.data.ingest.packing import ReadLog
from clickexp.data.log_files import Share
from clickexp.data.log_format import written
from clickexp.data.log_writer import LogWriter
from clickexp.data.shares.numbering import Keys
from clickexp.utils.signatures import located
from clickexp.utils.sources import source_path

EARLIER = "earlier.parquet"
"""Names of the ids of an earlier log, beside the shares."""


@dataclass(frozen=True)
class ReadShare:
    """A share that has been read.

    Attributes:
        read: What the reader returns.
        keys: Those of the tables that number its ids.
        names: The file that names its ids, where there are any.
        vectors: The file of the feature vectors of its ids, where there are any.
        notes: What the reader counts.
        categories: Names of the categories of columns, by column.
        features: What feature vectors are made of.
    """

    read: ReadLog
    keys: Keys
    names: Path
    vectors: Path
    notes: Mapping[str, int | str]
    categories: Mapping[str, Names]
    features: FeatureSettings | None


def read_share(
    opener: str, source: str, folder: Path, share: Share, options: Mapping[str, Any]
) -> ReadShare:
    """Reads a share.

    Args:
        opener: Dotted path of the format.
        source: The log.
        folder: New folder; what an earlier try has left there goes.
        share: What to read.
        options: Of the reader.

    Raises:
        DataError: The files cannot be read.
    """
    shutil.rmtree(folder, ignore_errors=True)
    format: Any = located(opener)
    names = folder.parent / EARLIER
    earlier = pl.read_parquet(names, glob=False) if names.exists() else None
    log = LogWriter(
        folder / "log", source, format.format, durable=False, earlier=earlier, share=share
    )
    read: Any = written(format.read, source_path(source), log, **options)
    return ReadShare(
        read=replace(read, tables={}),
        keys=Keys.write(folder, read.tables),
        names=log.names.file,
        vectors=log.names.file.with_name(FEATURES),
        notes=log.notes,
        categories=log.categories,
        features=log.features_of,
    )
