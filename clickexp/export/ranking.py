"""Files of lists in the order of a fitted model's scores."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data import Dataset, Features, Sessions
from clickexp.data.batches import batch_like, keys_read
from clickexp.data.encoding import FEATURES
from clickexp.data.folders import temporary
from clickexp.data.log_files import ENDINGS
from clickexp.errors import UserError
from clickexp.evaluation.scores import relevance_scores
from clickexp.export.files import Piece, Reading, Source
from clickexp.export.predict import columns_read, relevance_outputs
from clickexp.export.ranker import LETOR, transform_of
from clickexp.models import Model
from clickexp.simulation.svmlight import MISSING, absent_feature, read_lists
from clickexp.utils.files import check_source
from clickexp.utils.progress import Steps
from clickexp.utils.sources import files_below

_TABLES = tuple(ending for ending in ENDINGS if not ending.startswith(".txt"))
"""Endings of the files that are no learning-to-rank files."""


def ranked(
    model: Model,
    dataset: Dataset,
    config: Mapping[str, Any],
    id_names: pl.DataFrame | None,
    source: Source,
) -> tuple[pl.DataFrame, np.ndarray | None]:
    """Scores and orders a file of lists.

    Documents that the log of the run does not have get the score of row 0 of a table, the prior of a row that training
    has not shown. Equal scores keep their order.

    Args:
        model: A fitted model.
        dataset: That of the run.
        config: That of the run.
        id_names: Names of the ids from 1; None where the log came with these ids.
        source: Files of lists or, for a run on learning-to-rank files, such a file.

    Returns:
        A row per document: list, from 1 in the order of the file, query_id or query where it is known, rank from 1,
        document as the file has it (of a learning-to-rank file its number, from 1), score. And, of a learning-to-rank
        file, the scores in its order.

    Raises:
        UserError: The file cannot be read, or the model reads what it does not have.
    """
    check_source(source.path)
    transform = transform_of(config, dataset)
    if config["dataset"].get("_target_") == LETOR and not _has_tables(source.path):
        return _ranked_vectors(model, dataset, transform, config["dataset"], source.path)
    read = columns_read(model, relevance_outputs, dataset)
    score, first, parts = relevance_scores(model), 1, []
    with temporary() as scratch, Steps("ranking") as progress:
        lists = Reading(source, dataset, id_names, read, transform, to_rank=True).lists(scratch)
        for piece in lists.pieces():
            scores = np.concatenate([*score(piece.sessions)])
            parts.append(_rows(piece, scores, first))
            first += piece.sessions.count
            progress(first - 1, lists.sessions.count)
    return pl.concat(parts), None


def _has_tables(source: Path) -> bool:
    """Returns whether a path is one of tables; UserError for a folder that has none."""
    if not source.is_dir():
        return source.name.endswith(_TABLES)
    if not any(file.name.endswith(_TABLES) for file in files_below(source)):
        raise UserError(
            f"{source}: give one learning-to-rank file, or lists as {', '.join(_TABLES)}, or a folder of such files."
        )
    return True


def _rows(piece: Piece, scores: np.ndarray, first: int) -> pl.DataFrame:
    sessions = piece.sessions
    lengths = sessions.column("lengths")
    columns = {"list": np.repeat(np.arange(first, first + sessions.count), lengths)}
    if "query" in piece.names:
        columns["query"] = piece.names["query"].to_numpy()[columns["list"] - first]
    elif "query_ids" in sessions.columns:
        columns["query_id"] = np.repeat(sessions.column("query_ids"), lengths)
    return _ordered(columns, piece.names["document"], scores[sessions.chunk().shown])


def _ordered(columns: Mapping[str, np.ndarray], documents: Any, scores: np.ndarray) -> pl.DataFrame:
    """One row per document, the best of each list first."""
    if np.isnan(scores).any():
        raise UserError(
            "the model scores documents as nan. Train it again with a lower learning rate."
        )
    table = pl.DataFrame({**columns, "document": documents, "score": scores})
    table = table.sort("list", "score", descending=[False, True], maintain_order=True)
    table = table.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("list"))
    return table.select(*columns, "rank", "document", "score")


class _Vectors:
    """Receives feature vectors and counts as a log does."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.notes: dict[str, int] = {}

    def add_features(self, values: np.ndarray, dtype: Any = np.float32) -> None:
        self.parts.append(np.asarray(values, dtype))

    def note(self, name: str, count: int = 1) -> None:
        self.notes[name] = self.notes.get(name, 0) + count


def _ranked_vectors(
    model: Model,
    dataset: Dataset,
    transform: str,
    settings: Mapping[str, Any],
    source: Path,
) -> tuple[pl.DataFrame, np.ndarray]:
    encoder = dataset.encoding.features
    features = dataset.train.features
    width = 0 if features is None else features.values.shape[1]
    width = width if encoder is None else encoder.width(FEATURES)
    vectors, taken = _Vectors(), settings.get("features")
    lists = read_lists(
        source,
        taken if isinstance(taken, Sequence) else width,
        transform,
        vectors,  # pyright: ignore[reportArgumentType]  # it adds features and counts only
        settings.get("missing_above", MISSING),
        absent_feature(settings.get("missing", "zero")),
    )
    for name, count in vectors.notes.items():
        sys.stderr.write(f"{source}: {name.replace('_', ' ')}: {count:,}\n")
    parts = vectors.parts
    if encoder is not None:
        parts = [encoder.encode(numbers) for numbers in parts]
    values = np.concatenate([np.zeros_like(parts[0][:1]), *parts])
    ids = np.arange(1, len(values), dtype=np.int32)[:, None]
    documents = Sessions.from_arrays(
        query_doc_ids=ids, clicks=np.zeros(ids.shape, bool), query_doc_pairs=len(ids)
    ).with_features(Features(values))
    if "query_doc_ids" in keys_read(model.predict_relevance, batch_like(documents)):
        what = "the model scores documents by their ids, and the lines of such a file have none"
        raise UserError(f"{source}: {what}. Give parquet files with the ids of the log.")
    with Steps("ranking") as progress:
        scores = np.concatenate([*relevance_scores(model, progress)(documents)])[:, 0]
    lengths = np.diff(lists.starts)
    columns = {"list": np.repeat(np.arange(1, len(lengths) + 1), lengths)}
    if lists.queries is not None:
        columns["query_id"] = np.repeat(lists.queries, lengths)
    return _ordered(columns, np.arange(1, len(scores) + 1), scores), scores
