"""Large tables of a fitted model: documents, and predictions of sessions."""

import contextlib
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from clickexp.data import Dataset, Sessions
from clickexp.data.by_document import ByDocument
from clickexp.data.names import OLDEST, NamesFile
from clickexp.export.files import Reading, ShownLists, Source
from clickexp.export.predict import (
    Predict,
    click_outputs,
    columns_read,
    document_outputs,
    exported_outputs,
    marginal_outputs,
    of_documents,
    predictor,
    reads_context,
    relevance_outputs,
    session_columns,
    single_documents,
)
from clickexp.models import ClickModel, Model
from clickexp.parameters.layouts import layouts_of
from clickexp.posteriors.documents import EFFECTIVE, ROLES
from clickexp.posteriors.exported import ReadSeen, exported, open_documents
from clickexp.posteriors.shared import SharedPosterior
from clickexp.runs.run import SharedParameter
from clickexp.utils.progress import Steps

_messages = logging.getLogger(__name__)
_PROBABILITIES = (
    *(f"{role}{suffix}" for role in ROLES for suffix in ("", "_sd", "_low", "_high")),
    "relevance",
)
"""Columns of documents.parquet that the model knows, in their order."""
_BOUNDS = {"attraction_low", "attraction_high"}


def lists_to_predict(
    model: Model,
    log: Dataset,
    source: Source,
    id_names: pl.DataFrame | None,
    transform: str,
    scratch: Path,
) -> ShownLists:
    """Reads files to predict.

    Args:
        model: A fitted model.
        log: That of its run.
        source: The files.
        id_names: Names of the ids of the log from 1; None where it came with these ids.
        transform: What the reader of the log has applied to features.
        scratch: An empty folder for what is read.
    """
    outputs = click_outputs if isinstance(model, ClickModel) else relevance_outputs
    read = columns_read(model, outputs, log)
    reading = Reading(source, log, id_names, read, transform, context=reads_context(read))
    return reading.lists(scratch)


def write_predictions(model: Model, lists: ShownLists, file: Path) -> None:
    """Writes what is predicted for lists."""
    outputs = click_outputs if lists.has_clicks else marginal_outputs
    outputs = outputs if isinstance(model, ClickModel) else relevance_outputs
    predict, cells, unknown = predictor(model, outputs), layouts_of(model), 0
    has_names = lists.names is not None or not lists.has_ids

    def tables() -> Iterator[pa.Table]:
        nonlocal unknown
        with Steps("predicting") as progress:
            done = 0
            for piece in lists.pieces():
                unknown += 0 if cells is None else cells.unknown(piece.sessions)
                names = piece.names if has_names else {}
                yield _predictions(piece.sessions, names, predict, has_ids=lists.has_ids)
                done += piece.sessions.count
                progress(done, lists.sessions.count)

    _write(tables(), file)
    if unknown:
        sys.stderr.write(
            f"{unknown:,} documents are in layouts that the log of the run does not have, and have the examination "
            "that layouts share\n"
        )


def write_documents(
    model: Model,
    dataset: Dataset,
    names: NamesFile | None,
    posterior: SharedPosterior | None,
    file: Path,
    *,
    intervals: Sequence[SharedParameter] = (),
    has_intervals: bool = True,
    read_seen: ReadSeen | None = None,
    devices: int | str = 1,
) -> None:
    """Writes a row for each document that is shown, by earlier logs, too: probabilities, impressions and clicks.

    Impressions and clicks are those of the training sessions of this log. `read_seen` counts earlier logs, too. So many
    devices share the passes over it.

    Where tables have posteriors, these are those of `exported`, and there are standard deviations, intervals and
    effective impressions, too; see `posterior_outputs`. They follow from the sessions that the model was fitted to, so
    that there are none on another log, where has_intervals is false. Intervals of `open_documents` have no bounds.

    A model whose attraction depends on the rank gives that at rank 1. One that reads a column that changes from session
    to session has no probabilities of a document alone, so that these are left out.
    """
    impressions, clicks, shown = _counts(dataset)
    if read_seen is not None and dataset.features is None:  # which earlier logs had theirs of
        _add_seen(shown, read_seen)
    left_open = open_documents(dataset.train, intervals, len(shown), layouts_of(model))
    blocks = _known_of_documents(
        model,
        dataset,
        shown,
        impressions,
        clicks,
        posterior,
        has_intervals=has_intervals,
        read_seen=read_seen,
        devices=devices,
    )

    def tables() -> Iterator[pa.Table]:
        for rows, outputs in blocks:
            columns: dict[str, Any] = {"query_doc_id": rows}
            columns |= {} if names is None else names.of(rows).to_dict()
            # in this order, whatever that of a compiled program
            columns |= {name: outputs[name] for name in _PROBABILITIES if name in outputs}
            for name in _BOUNDS & columns.keys():
                columns[name] = pl.Series(columns[name]).set(pl.Series(left_open[rows]), None)
            columns |= {"impressions": impressions[rows].astype(np.int64)}
            columns |= {"clicks": clicks[rows].astype(np.int64)}
            columns |= {EFFECTIVE: outputs[EFFECTIVE]} if EFFECTIVE in outputs else {}
            yield pl.DataFrame(columns).to_arrow(compat_level=OLDEST)

    _write(tables(), file)
    if left_open.any() and {*pq.read_schema(file).names} >= _BOUNDS:
        sys.stderr.write(
            f"{left_open.sum():,} of {shown.sum():,} documents have an open interval of attraction: training shows "
            "them only at positions whose examination the log leaves open\n"
        )


def _add_seen(shown: np.ndarray, read_seen: ReadSeen) -> None:
    """Adds documents that earlier logs have shown."""
    impressions, _ = read_seen()
    if impressions is not None:
        shown[: len(impressions)] |= impressions > 0


def _known_of_documents(
    model: Model,
    dataset: Dataset,
    shown: np.ndarray,
    impressions: np.ndarray,
    clicks: np.ndarray,
    posterior: SharedPosterior | None,
    *,
    has_intervals: bool,
    read_seen: ReadSeen | None,
    devices: int | str,
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields, some documents at a time, the ids of those shown and what the model knows of them."""
    one = single_documents(dataset, np.zeros(1, np.int32))
    if others := session_columns(model, document_outputs, dataset, one):
        reads = f"the model reads {', '.join(others)}, which belongs to a session"
        _messages.warning("documents.parquet has impressions and clicks only: %s", reads)
        yield np.flatnonzero(shown).astype(np.int32), {}
        return
    models, outputs = model, document_outputs
    if has_intervals:
        models = exported(model, dataset.train, impressions, clicks, posterior, read_seen, devices)
        outputs = exported_outputs
    # here, since the posteriors take memory
    ids = np.flatnonzero(shown).astype(np.int32)
    yield from of_documents(models, dataset, ids, outputs, "documents")


def _write(tables: Iterable[pa.Table], file: Path) -> None:
    """Writes tables of the same columns as one parquet file."""
    with contextlib.ExitStack() as stack:
        writer = None
        for table in tables:
            writer = writer or stack.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)


def _predictions(
    sessions: Sessions, names: Mapping[str, pl.Series], predict: Predict, *, has_ids: bool
) -> pa.Table:
    """Returns a row for each session, in their order: lists of predictions, rank 1 first, with ids and names."""
    arrow = {name: values.to_arrow(compat_level=OLDEST) for name, values in names.items()}
    lengths = sessions.column("lengths")
    chunk = sessions.chunk()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    parts = [outputs for _, outputs in predict(sessions)]
    lists = {"query_doc_ids": chunk.of_documents("query_doc_ids")} if has_ids else {}
    lists |= {"documents": arrow["document"]} if "document" in arrow else {}
    lists |= {
        name: np.concatenate([part[name] for part in parts])[chunk.shown] for name in parts[0]
    }
    columns = {"query_id": sessions.column("query_ids")} if "query_ids" in sessions.columns else {}
    columns |= {"query": arrow["query"]} if "query" in arrow else {}
    columns |= {
        name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in lists.items()
    }
    return pa.table(columns)


def _counts(dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns training impressions and clicks of each id, and whether any part of the dataset shows it."""
    with Steps("counting") as progress:
        counts = ByDocument.of(dataset.train).dense(dataset.query_doc_pairs + 1)
        shown, done = counts.shown > 0, dataset.train.count
        others = [part for name, part in dataset.parts.items() if name != "train"]
        total = done + sum(part.count for part in others)
        for chunk in itertools.chain.from_iterable(part.chunks() for part in others):
            shown[chunk.of_documents("query_doc_ids")] = True
            done += chunk.count
            progress(done, total)
    if dataset.names is not None:
        shown[0] = False  # what the run does not know
    return counts.shown, counts.clicks, shown
