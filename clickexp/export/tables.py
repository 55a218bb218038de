"""What a fitted model knows, as tables: examination by rank, documents, and predictions of sessions."""

import contextlib
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
from clickexp.data.inspect.identifiability import ENOUGH_SESSIONS, identifiability
from clickexp.data.names import OLDEST, read_names
from clickexp.errors import UserError
from clickexp.export.examination import examination, learned_examination
from clickexp.export.fitted import configuration, fitted
from clickexp.export.predict import (
    Predict,
    click_outputs,
    document_outputs,
    marginal_outputs,
    predicted,
    predictor,
    reads_context,
    relevance_outputs,
    session_columns,
    single_documents,
)
from clickexp.export.ranker import described, onnx_writer, transform_of, write_ranker
from clickexp.export.ranking import ranked
from clickexp.export.sessions import Piece, own_sessions, read_sessions
from clickexp.export.thompson import thompson_order
from clickexp.models import ClickModel, Model, Ranker
from clickexp.posteriors.documents import EFFECTIVE, ROLES, effective_outputs, interval_outputs
from clickexp.posteriors.exported import exported, open_documents
from clickexp.posteriors.intervals import shared_intervals
from clickexp.posteriors.shared import SharedPosterior
from clickexp.runs.result import SharedParameter
from clickexp.runs.store import SHARED
from clickexp.types import Array, Batch
from clickexp.utils.files import check_inside, whole
from clickexp.utils.progress import Steps
from clickexp.utils.signatures import parsed_options

_messages = logging.getLogger(__name__)
_PROBABILITIES = (
    *(f"{role}{suffix}" for role in ROLES for suffix in ("", "_sd", "_low", "_high")),
    "relevance",
)
"""Columns of documents.parquet that the model knows, in their order."""
_BOUNDS = {"attraction_low", "attraction_high"}
SHARED_TABLE = "shared.csv"
_SEARCH_SESSION = "search_session"


def export(
    run: str | Path,
    output: str | Path | None = None,
    dataset: str | Path | None = None,
    part: str = "test",
    predict: str | Path | None = None,
    options: Sequence[str] = (),
    trust: bool = False,
    thompson: int | None = None,
    rank: str | Path | None = None,
    numpy: bool = False,
    onnx: str | Path | None = None,
) -> None:
    """Writes examination.csv, shared.csv, documents.parquet and, as asked for, predictions, orders and rankers.

    A model that ranks and does not predict clicks has relevance alone, and propensities where it learns them.

    Args:
        run: Its folder.
        output: Where to write, by default run/export.
        dataset: Path of the log, if not that in the configuration.
        part: Sessions that examination is averaged over.
        predict: A parquet file of sessions, or a folder of them; "" predicts those of the part.
        options: columns.KEY=NAME, what the columns to predict are called.
        trust: The configuration in the folder may call code outside clickexp.
        thompson: Seed of a draw from the posteriors that thompson.parquet orders documents by.
        rank: File of lists that ranking.parquet has in the order of their scores.
        numpy: Whether to write ranker.npz, and ranker.py, which scores with NumPy alone.
        onnx: File of an ONNX model of the ranker.

    Raises:
        UserError: Something is missing or does not fit.
    """
    run = Path(run)
    folder = Path(output) if output is not None else run / "export"
    if output is None:
        check_inside(folder, run)  # a link may have come with the folder
    columns = _column_names(options, predict or rank)
    write_onnx = None if onnx is None else onnx_writer()
    model, log, is_own = fitted(run, dataset, trust)
    id_names = None if log.names is None else read_names(log.names, log.query_doc_pairs)
    ordered = (
        None
        if rank is None
        else ranked(model, log, configuration(run), id_names, Path(rank), columns)
    )
    served = None
    if numpy or onnx is not None:
        served = described(model, log, transform_of(configuration(run), log), or_by_id=onnx is None)
    folder.mkdir(parents=True, exist_ok=True)
    if served is not None and numpy:
        for file in write_ranker(served, folder):
            print(file)  # noqa: T201  # the output of the command
    if served is not None and write_onnx is not None and onnx is not None:
        write_onnx(served, Path(onnx))
        print(onnx)  # noqa: T201  # the output of the command
    if ordered is not None:
        _write_ranking(*ordered, folder)
    sessions: Sessions = getattr(log, part)
    posterior = SharedPosterior.load(run / SHARED) if (run / SHARED).is_file() else None
    _write_examination(model, sessions, posterior, folder)
    intervals = [] if posterior is None else shared_intervals(model, posterior)
    if intervals:
        with _whole(folder / SHARED_TABLE) as file:
            rows = [each.model_dump() for each in intervals]
            pl.DataFrame(rows, infer_schema_length=None).write_csv(file)
    _warn_of_examination(model, log.train, posterior is None)
    with _whole(folder / "documents.parquet") as file:
        _write_documents(
            model, log, id_names, posterior, file, intervals=intervals, has_intervals=is_own
        )
    if thompson is not None:
        order = thompson_order(model, log, id_names, thompson)
        with _whole(folder / "thompson.parquet") as file:
            order.write_parquet(file)
    if predict is not None:
        source = sessions if predict == "" else Path(predict)
        named = configuration(run)["dataset"].get("columns") or {}
        _write_predictions(model, log, source, id_names, columns, folder, named)


def _warn_of_examination(model: Model, sessions: Sessions, takes_as_known: bool) -> None:
    if not model.separates_examination:
        return
    links = identifiability(sessions, ENOUGH_SESSIONS)
    if links.warns:
        more = " Intervals of attraction take examination as known." if takes_as_known else ""
        sys.stderr.write(f"{links.describe()}{more}\n")


def _write_examination(
    model: Model, sessions: Sessions, posterior: SharedPosterior | None, folder: Path
) -> None:
    """Writes examination by position, of models that know it."""
    if isinstance(model, ClickModel):
        table = examination(model, sessions, posterior)
    elif isinstance(model, Ranker) and (curve := model.examination()) is not None:
        table = learned_examination(np.asarray(curve, np.float64), sessions)
    else:
        return
    with _whole(folder / "examination.csv") as file:
        table.write_csv(file)


def _write_predictions(
    model: Model,
    log: Dataset,
    source: Sessions | Path,
    id_names: pl.DataFrame | None,
    columns: dict[str, str],
    folder: Path,
    named: Mapping[str, Any],
) -> None:
    """Writes what is predicted for a part of the log, or for files whose columns are called as `columns` says.

    Those of search sessions and times are called as the log of the run has them, `named`, if `columns` does not say.
    """
    of_clicks = isinstance(model, ClickModel)
    context = not isinstance(source, Sessions) and reads_context(
        model, click_outputs if of_clicks else relevance_outputs, log
    )
    if isinstance(source, Sessions):
        known, pieces = {*source.columns}, own_sessions(source, id_names)
    else:
        if context and (name := named.get(_SEARCH_SESSION)) not in (None, _SEARCH_SESSION):
            columns = {_SEARCH_SESSION: name, **columns}
        time = named.get("time")
        known, pieces = read_sessions(log, id_names, source, columns, context=context, time=time)
    outputs = click_outputs if "clicks" in known else marginal_outputs
    outputs = outputs if of_clicks else relevance_outputs
    if context and "session_ids" not in known and columns.get(_SEARCH_SESSION, "") is not None:
        sys.stderr.write(
            f"{source}: the model reads what came before in a search session, which the file does not have, so that "
            "each list is predicted as the first of its user; name their column by columns.search_session=NAME, or say "
            "columns.search_session=null\n"
        )
    with _whole(folder / "predictions.parquet") as file:
        predict_piece = predictor(model, outputs)
        _write((_predictions(piece, predict_piece) for piece in pieces), file)


def _write_documents(
    model: Model,
    dataset: Dataset,
    id_names: pl.DataFrame | None,
    posterior: SharedPosterior | None,
    file: Path,
    *,
    intervals: Sequence[SharedParameter] = (),
    has_intervals: bool = True,
) -> None:
    """Writes a row for each document that the dataset shows: probabilities, training impressions and clicks.

    Where tables have posteriors, these are those of `exported`, and there are standard deviations, intervals and
    effective impressions, too; see `posterior_outputs`. They follow from the sessions that the model was fitted to, so
    that there are none on another log, where has_intervals is false. Intervals of `open_documents` have no bounds.

    A model whose attraction depends on the rank gives that at rank 1. One that reads a column that changes from session
    to session has no probabilities of a document alone, so that these are left out.
    """
    impressions, clicks, shown = _counts(dataset)
    ids = np.flatnonzero(shown)
    documents = single_documents(dataset, ids)
    left_open = open_documents(dataset.train, intervals, len(shown))
    if others := session_columns(model, document_outputs, dataset, documents):
        reads = f"the model reads {', '.join(others)}, which belongs to a session"
        _messages.warning("documents.parquet has impressions and clicks only: %s", reads)

    def outputs_of(model: Model, batch: Batch) -> dict[str, Array]:
        return {} if others else document_outputs(model, batch)

    probable, better = model, []
    if has_intervals and not others:
        effective, probable, sure = exported(model, dataset.train, impressions, posterior)
        better = [
            predictor(effective, effective_outputs)(documents),
            predictor(sure, interval_outputs)(documents),
        ]

    def tables() -> Iterator[pa.Table]:
        done = 0
        probabilities = predicted(probable, documents, outputs_of, "documents")
        for (lengths, outputs), *posteriors in zip(probabilities, *better, strict=True):
            for _, each in posteriors:
                outputs |= each
            rows = ids[done : done + len(lengths)]
            done += len(lengths)
            # in this order, whatever that of a compiled program
            order = (name for name in _PROBABILITIES if name in outputs)
            columns: dict[str, Any] = {"query_doc_id": rows.astype(np.int32)}
            columns |= {} if id_names is None else id_names[rows - 1].to_dict()
            columns |= {name: outputs[name][:, 0] for name in order}
            for name in _BOUNDS & columns.keys():
                columns[name] = pl.Series(columns[name]).set(pl.Series(left_open[rows]), None)
            columns |= {"impressions": impressions[rows], "clicks": clicks[rows]}
            columns |= {name: outputs[name][:, 0] for name in (EFFECTIVE,) if name in outputs}
            yield pl.DataFrame(columns).to_arrow(compat_level=OLDEST)

    _write(tables(), file)
    if left_open.any() and {*pq.read_schema(file).names} >= _BOUNDS:
        sys.stderr.write(
            f"{left_open.sum():,} of {len(ids):,} documents have an open interval of attraction: training shows them "
            "only at positions whose examination the log leaves open\n"
        )


def _write(tables: Iterable[pa.Table], file: Path) -> None:
    """Writes tables of the same columns as one parquet file."""
    with contextlib.ExitStack() as stack:
        writer = None
        for table in tables:
            writer = writer or stack.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)


def _predictions(piece: Piece, predict: Predict) -> pa.Table:
    """Returns a row for each session, in their order: lists of predictions, rank 1 first, with ids and names."""
    sessions = piece.sessions
    names = {name: values.to_arrow(compat_level=OLDEST) for name, values in piece.names.items()}
    lengths = sessions.column("lengths")
    shown = sessions.chunk().shown
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    parts = [outputs for _, outputs in predict(sessions)]
    lists = {"query_doc_ids": sessions.column("query_doc_ids")[shown]}
    lists |= {"documents": names["document"]} if "document" in names else {}
    lists |= {name: np.concatenate([part[name] for part in parts])[shown] for name in parts[0]}
    columns = {"query_id": sessions.column("query_ids")} if "query_ids" in sessions.columns else {}
    columns |= {"query": names["query"]} if "query" in names else {}
    columns |= {
        name: pa.ListArray.from_arrays(offsets, pa.array(each)) for name, each in lists.items()
    }
    return pa.table(columns)


def _counts(dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns training impressions and clicks of each id, and whether any part of the dataset shows it."""
    rows = dataset.query_doc_pairs + 1
    impressions, clicks, shown = (
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
        np.zeros(rows, bool),
    )
    total, done = sum(part.count for part in dataset.parts.values()), 0
    with Steps("counting") as progress:
        for name, part in dataset.parts.items():
            for chunk in part.chunks():
                ids = chunk.of_documents("query_doc_ids")
                shown[ids] = True
                if name == "train":
                    np.add.at(impressions, ids, 1)
                    np.add.at(clicks, chunk["query_doc_ids"][chunk["clicks"]], 1)
                done += chunk.count
                progress(done, total)
    if dataset.names is not None:
        shown[0] = False  # what the run does not know
    return impressions, clicks, shown


def _write_ranking(table: pl.DataFrame, scores: np.ndarray | None, folder: Path) -> None:
    with _whole(folder / "ranking.parquet") as file:
        table.write_parquet(file)
    if scores is not None:
        with _whole(folder / "scores.txt") as file:
            file.write_text("".join(f"{score:.9g}\n" for score in scores))


def _column_names(options: Sequence[str], given_file: str | Path | None) -> dict[str, str]:
    given = parsed_options(options)
    if (options and not given_file) or given.keys() - {"columns"}:
        raise UserError(
            f"{' '.join(options)}: options are columns.KEY=NAME, for --predict FILE or --rank LISTS"
        )
    return given.get("columns", {})


@contextlib.contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """Yields where to write a file, under another name until it is whole, and prints its name in the end."""
    with whole(file) as part:
        yield part
    print(file)  # noqa: T201  # the output of the command
