"""Baidu-ULTR-UvA: clicks and expert annotations, with a vector of a language model for each document.

Hager et al. 2024, "Unbiased Learning to Rank Meets Reality: Lessons from Baidu's Large-Scale Search Dataset"; the log
is that of Zou et al. 2022, "A Large Scale Search Dataset for Unbiased Learning to Rank".
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data.encoding import FEATURES, Missing
from clickexp.data.id_table import IdTable
from clickexp.data.ingest.columns import (
    Fields,
    named_columns,
)
from clickexp.data.ingest.extent import POSITIONS
from clickexp.data.ingest.faults import Faults, Invalid
from clickexp.data.ingest.features import FeatureColumns, FeatureForm
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.packing import ReadLog, ReadPart
from clickexp.data.ingest.parquet_table import ParquetTable
from clickexp.data.ingest.source_table import Batch, SourceTable
from clickexp.data.ingest.tables import batches_of, open_tables, pieces_of_tables
from clickexp.data.log_files import Piece
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.names import keys_of
from clickexp.data.schema import COLUMNS, Column
from clickexp.errors import DataError
from clickexp.utils.bounds import PositiveInt

_FILES, _ANNOTATIONS = "part-*_split-*.parquet", "annotations.parquet"
_RULE = "features are finite numbers within half precision, as many for every document"
_PACKED = {"sessions": ("positions", "clicks"), "ranking": ("labels",)}
"""Columns of each part, besides those that make vectors."""

_REMEDIES = {
    "sessions": POSITIONS,
    "ranking": "shorten the list in the file, or set annotations to null",
}


class _Documents:
    """Numbers distinct vectors from 1 and stores each of them once."""

    def __init__(self, log: LogWriter):
        self._log, self.table = log, IdTable()

    def ids(self, vectors: np.ndarray) -> np.ndarray:
        """The ids of vectors [documents, numbers]."""
        if not len(vectors):
            return np.zeros(0, np.int64)
        stored = len(self.table)
        rows = np.ascontiguousarray(vectors)
        rows[np.isnan(rows)] = np.nan  # of which there are several
        whole = pl.Series(rows.view(f"V{rows[:1].nbytes}").ravel().tolist(), dtype=pl.Binary)
        ids = self.table.ids(keys_of(whole))
        distinct, first = np.unique(ids, return_index=True)
        self._log.add_features(vectors[first[distinct > stored]], vectors.dtype)
        return ids


def _pieces(
    source: Path,
    shares: int,
    *,
    files: str = _FILES,
    annotations: str | None = _ANNOTATIONS,
    features: Sequence[str] | None = None,
    **_: Any,
) -> list[Piece]:
    """The files of both parts; none where vectors hold the numbers of categories, which each process would number."""
    if features is not None:
        return []
    pieces = pieces_of_tables(source, shares, files=files)
    for pattern in _annotations(source, annotations).values():
        pieces += pieces_of_tables(source, shares, files=pattern)
    return pieces


@log_format("baidu_ultr_uva", has_features=True, pieces=_pieces)
def open_baidu_ultr_uva(
    source: Path,
    log: LogWriter,
    *,
    files: str = _FILES,
    annotations: str | None = _ANNOTATIONS,
    columns: Mapping[str, Any] | None = None,
    features: Sequence[str] | None = None,
    missing: Missing | None = None,
    standardize: bool = False,
    positions: PositiveInt | None = 10,
    invalid: Invalid = "error",
) -> ReadLog:
    """The dataset in a folder of such parquet files: clicks one row per session, annotations one row per query.

    Documents whose vectors are equal, as half-precision numbers, are one: its vector is stored once. They are
    distinguished by 64-bit hashes; two of n share one with probability n^2 / 2^65, 3e-6 for ten million.

    files        pattern of the files of sessions
    annotations  file of the labelled lists; None leaves them out, and so does no such file under the default name
    columns      file's name for query_doc_features, positions, clicks and labels. Any other key declares a column of
                 `features`: {dtype: category, name: KEY}
    features     columns that vectors are made of: lists of numbers, true and false, or categories, and
                 query_doc_features; numbers then have single precision. None takes query_doc_features
    missing      what stands for a missing feature: "mean", "zero", or "indicator", the mean and a further feature that
                 says so; None refuses it
    standardize  numbers get mean 0 and standard deviation 1 over the training documents
    positions    lowest position to keep, None for all; what was shown below is dropped and counted
    invalid      "error": DataError once all is read, which names each kind of fault with its count, first rows and
                 remedy. "drop": leaves the rows out, counted
    """
    names, extra = named_columns(columns, (FEATURES, "positions", "clicks", "labels"))
    form = FeatureForm(features or [FEATURES], missing, standardize)
    feature_columns = FeatureColumns(form, extra, (), by_row=False)
    names = feature_columns.names(names)
    _check_features(feature_columns, extra)
    fields = {**COLUMNS, **feature_columns.fields(), **extra}
    patterns = {"sessions": files, **_annotations(source, annotations)}
    tables: dict[str, list[SourceTable]] = {}
    for part, pattern in patterns.items():
        keys = (*feature_columns.required, *_PACKED[part])
        described = fields, {key: names[key] for key in keys}, keys
        opened = open_tables(
            source, *described, files=pattern, kinds=[ParquetTable], share=log.share
        )
        tables |= {part: opened} if opened else {}
    fields |= _declarations(feature_columns, next(iter(tables.values())), features)
    documents, faults = _Documents(log), Faults()
    lowest, parts = {"sessions": positions, "ranking": None}, {}
    for name in tables:
        columns = dict.fromkeys(("lengths", "query_doc_ids", "clicks", *_PACKED[name]))
        parts[name] = ReadPart(log, name, columns, lowest[name], _REMEDIES[name])
    part_of = {str(table.file): name for name, opened in tables.items() for table in opened}
    for batch in batches_of([*chain(*tables.values())], log.progress, faults=faults):
        name = part_of[batch.location.source]
        lists = _sound(batch, fields, lowest[name], log).down_to(lowest[name], log)
        if len(lists.lengths):
            lists = feature_columns.encoded(lists, log, batch.location)
            ids = documents.ids(_joined(lists, feature_columns.required))
            parts[name].append(_packed(lists, ids, ("clicks", *_PACKED[name])), batch.location)
    if (features, missing, standardize) != (None, None, False):
        feature_columns.finish(log)
    return ReadLog(parts, faults, invalid, {"query_doc_ids": documents.table})


def _packed(lists: Lists, ids: np.ndarray, columns: Container[str]) -> Lists:
    """Lists with these columns of documents and with their ids."""
    shown = {name: values for name, values in lists.documents.items() if name in columns}
    return Lists(lists.lengths, {**shown, "query_doc_ids": ids}, {})


def _check_features(feature_columns: FeatureColumns, extra: Mapping[str, Column]) -> None:
    """DataError for a declared column that makes no vectors, or has no value per document."""
    for name, column in extra.items():
        if name not in feature_columns.required or not column.per_document:
            raise DataError(
                f"columns.{name} is declared, and is no feature per document. Name it in features, or read the log "
                "with dataset=lists, which has further columns."
            )


def _declarations(
    feature_columns: FeatureColumns, tables: Sequence[SourceTable], features: Sequence[str] | None
) -> dict[str, Column]:
    """The declarations of the columns that vectors are made of; vectors alone have half precision."""
    columns = feature_columns.declare(tables)
    if features is None:
        halves = replace(columns[FEATURES], dtype=np.dtype(np.float16), rule=_RULE)
        feature_columns.columns[FEATURES] = columns[FEATURES] = halves
    return columns


def _joined(lists: Lists, names: Sequence[str]) -> np.ndarray:
    """Numbers and vectors per document as one vector each."""
    parts = [np.asarray(lists.documents[name]) for name in names]
    single = parts[0].dtype if len(parts) == 1 and parts[0].ndim == 2 else np.float32
    return np.concatenate([part.reshape(len(part), -1).astype(single) for part in parts], axis=1)


def _annotations(folder: Path, name: str | None) -> dict[str, str]:
    """The file of the part of labelled lists, if there is one."""
    if not folder.is_dir():
        raise DataError(f"{folder}: not a folder. Give the folder that holds the files.")
    if name is not None and (folder / name).is_file():
        return {"ranking": name}
    if name in (None, _ANNOTATIONS):
        return {}
    raise DataError(f"{folder / name}: no such file. Check annotations, or set it to null.")


def _sound(batch: Batch, fields: Fields, lowest: int | None, log: LogWriter) -> Lists:
    """The lists of a batch that its location does not refuse."""
    location = batch.location
    lists = Lists.of(batch.columns, location, fields)
    if "clicks" not in lists.documents:
        lists = lists.with_documents(clicks=np.zeros(len(lists.rows), bool))
    if lowest is not None:
        kept = lists.where(np.asarray(lists.documents["positions"]) <= lowest).lengths
        remedy = f"positions from 1 to {lowest} show one document each: mend or drop the row"
        location.reject(kept > lowest, kept, "the number of documents", remedy)
    return lists.sound(location, log)[0]
