"""What a fitted model knows, as tables: examination by rank, documents, and predictions of sessions."""

import contextlib
import filecmp
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from clickexp.data import Dataset, Sessions, open_lists
from clickexp.data.folders import temporary
from clickexp.data.inspect.identifiability import ENOUGH_SESSIONS, identifiability
from clickexp.data.names import OLDEST, NamesFile
from clickexp.errors import UserError
from clickexp.evaluation.scores import Outputs
from clickexp.export.examination import examination, learned_examination
from clickexp.export.files import FORMS, OPTIONS, Reading, ShownLists, Source
from clickexp.export.fitted import Fitted, configuration, fitted
from clickexp.export.judgments import judgments
from clickexp.export.predict import (
    Predict,
    click_outputs,
    columns_read,
    document_outputs,
    marginal_outputs,
    predictor,
    reads_context,
    relevance_outputs,
    session_columns,
    single_documents,
)
from clickexp.export.ranker import described, onnx_writer, ranker_files, transform_of
from clickexp.export.ranking import ranked
from clickexp.export.thompson import thompson_order
from clickexp.models import ClickModel, Model, Ranker
from clickexp.parameters.layouts import layouts_of
from clickexp.posteriors.documents import EFFECTIVE, ROLES, effective_outputs, interval_outputs
from clickexp.posteriors.exported import exported, open_documents
from clickexp.posteriors.intervals import shared_intervals, why_no_intervals
from clickexp.posteriors.shared import SharedPosterior
from clickexp.runs.run import SharedParameter
from clickexp.runs.store import SEEN, SHARED
from clickexp.updates.seen import Seen
from clickexp.utils.files import check_inside, whole
from clickexp.utils.progress import Steps
from clickexp.utils.signatures import check_arguments, parsed_options
from clickexp.utils.sources import source_path

_messages = logging.getLogger(__name__)
_PROBABILITIES = (
    *(f"{role}{suffix}" for role in ROLES for suffix in ("", "_sd", "_low", "_high")),
    "relevance",
)
"""Columns of documents.parquet that the model knows, in their order."""
_BOUNDS = {"attraction_low", "attraction_high"}
SHARED_TABLE = "shared.csv"
_Save = Callable[[str, Callable[[Path], object]], None]
"""Writes a file of an export: its name, and what writes it to a path."""


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
    judgment_list: bool = False,
    report: Callable[[Path], object] = print,
) -> None:
    """Writes examination.csv, shared.csv, documents.parquet and, as asked for, predictions, orders and rankers.

    A model that ranks and does not predict clicks has relevance alone, and propensities where it learns them.

    Args:
        run: Its folder.
        output: Where to write, by default run/export.
        dataset: Path of the log, if not that in the configuration.
        part: Sessions that examination is averaged over.
        predict: A file of sessions, or a folder of them; "" predicts those of the part.
        options: Of the files to predict or to rank: columns.KEY=NAME, files, separator, header, encoding, decimal,
            first_rank, time_format, time_zone and null_is_no_click, as `dataset=lists` has them.
        trust: The configuration in the folder may call code outside clickexp.
        thompson: Seed of a draw from the posteriors that thompson.parquet orders documents by.
        rank: File of lists that ranking.parquet has in the order of their scores.
        numpy: Whether to write ranker.npz, and ranker.py, which scores with NumPy alone.
        onnx: File of an ONNX model of the ranker.
        judgment_list: Whether to write judgments.txt, grades of relevance as Elasticsearch Learning to Rank reads them.
        report: Called with each file once it is there.

    Raises:
        UserError: Something is missing or does not fit.
    """
    run = Path(run)
    folder = Path(output) if output is not None else run / "export"
    if output is None:
        check_inside(folder, run)  # a link may have come with the folder
    given = _file_options(options, predict or rank)
    to_onnx = None if onnx is None else onnx_writer()
    fit = fitted(run, dataset, trust)
    model, log = fit.model, fit.log
    config = configuration(run)
    names = None if log.names is None else NamesFile(log.names, log.query_doc_pairs)
    read_names = functools.cache(lambda: None if names is None else names.all())
    save = partial(_save, folder, report)
    settings = config["dataset"]
    if rank is not None:
        source = _source(rank, settings, given)
        _save_ranking(*ranked(model, log, config, read_names(), source), save)
    if numpy or to_onnx is not None:
        ranker = described(model, log, transform_of(config, log), or_by_id=to_onnx is None)
        for name, content in ranker_files(ranker).items() if numpy else ():
            save(name, partial(Path.write_bytes, data=content))
        if to_onnx is not None:
            _write_whole(Path(str(onnx)), report, partial(Path.write_bytes, data=to_onnx(ranker)))
    sessions: Sessions = getattr(log, part)
    _save_parameters(run, fit, names, sessions, save)
    if judgment_list:
        text = judgments(folder / "documents.parquet")
        save("judgments.txt", partial(Path.write_text, data=text, encoding="utf-8"))
    if thompson is not None:
        save("thompson.parquet", thompson_order(model, log, read_names(), thompson).write_parquet)
    if predict == "":
        lists = ShownLists.of_log(sessions, read_names())
        save("predictions.parquet", partial(write_predictions, model, lists))
    elif predict is not None:
        source = _source(predict, settings, given)
        with temporary() as scratch:
            lists = lists_to_predict(
                model, log, source, read_names(), transform_of(config, log), scratch
            )
            save("predictions.parquet", partial(write_predictions, model, lists))


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
    reading = Reading(log, id_names, read, transform, context=reads_context(read))
    return reading.lists(source, scratch)


def _save(
    folder: Path, report: Callable[[Path], object], name: str, write: Callable[[Path], object]
) -> None:
    """Writes a file into the folder of an export."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_whole(folder / name, report, write)


def _write_whole(
    file: Path, report: Callable[[Path], object], write: Callable[[Path], object]
) -> None:
    """Writes a file, whole or not at all, and reports it; a line on stderr says that it replaces another one."""
    with whole(file) as part:
        write(part)
        replaced = file.is_file() and not filecmp.cmp(part, file, shallow=False)
    if replaced:
        sys.stderr.write(
            f"{file}: an earlier one that differs is replaced; --output FOLDER keeps both\n"
        )
    report(file)


def _save_parameters(
    run: Path,
    fit: Fitted,
    names: NamesFile | None,
    sessions: Sessions,
    save: _Save,
) -> None:
    """Writes examination, shared parameters and documents."""
    model, log = fit.model, fit.log
    posterior = SharedPosterior.load(run / SHARED) if (run / SHARED).is_file() else None
    table = _examination(model, sessions, posterior)
    if table is not None:
        save("examination.csv", table.write_csv)
        if model.separates_examination and "propensity_sd" not in table.columns:
            sys.stderr.write(f"no intervals of examination: {why_no_intervals(model, posterior)}\n")
    intervals = [] if posterior is None else shared_intervals(model, posterior)
    if intervals:
        rows = [{**each.layout, **each.model_dump(exclude={"layout"})} for each in intervals]
        save(SHARED_TABLE, pl.DataFrame(rows, infer_schema_length=None).write_csv)
    _warn_of_examination(model, log.train, posterior is None)
    is_kept = fit.is_own and (run / SEEN).is_file()
    seen = Seen.load(run / SEEN) if is_kept else None
    settings = {"intervals": intervals, "has_intervals": fit.is_own, "seen": seen}
    write = partial(write_documents, model, log, names, posterior, **settings)
    save("documents.parquet", write)


def _warn_of_examination(model: Model, sessions: Sessions, takes_as_known: bool) -> None:
    if not model.separates_examination:
        return
    links = identifiability(sessions, ENOUGH_SESSIONS, layouts_of(model))
    if links.warns:
        more = " Intervals of attraction take examination as known." if takes_as_known else ""
        sys.stderr.write(f"{links.describe()}{more}\n")


def _examination(
    model: Model, sessions: Sessions, posterior: SharedPosterior | None
) -> pl.DataFrame | None:
    """Returns examination by position, of models that know it."""
    if isinstance(model, ClickModel):
        return examination(model, sessions, posterior)
    curve = model.examination() if isinstance(model, Ranker) else None
    return None if curve is None else learned_examination(np.asarray(curve, np.float64), sessions)


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
    seen: Seen | None = None,
) -> None:
    """Writes a row for each document that is shown, by earlier logs, too: probabilities, impressions and clicks.

    Impressions and clicks are those of the training sessions of this log.

    Where tables have posteriors, these are those of `exported`, and there are standard deviations, intervals and
    effective impressions, too; see `posterior_outputs`. They follow from the sessions that the model was fitted to, so
    that there are none on another log, where has_intervals is false. Intervals of `open_documents` have no bounds.

    A model whose attraction depends on the rank gives that at rank 1. One that reads a column that changes from session
    to session has no probabilities of a document alone, so that these are left out.
    """
    impressions, clicks, shown = _counts(dataset)
    all_impressions = None if seen is None else seen.impressions(model)
    if all_impressions is not None and dataset.features is None:  # which earlier logs had theirs of
        shown[: len(all_impressions)] |= all_impressions > 0
    ids = np.flatnonzero(shown).astype(np.int32)
    left_open = open_documents(dataset.train, intervals, len(shown), layouts_of(model))
    known = _known_of_documents(
        model,
        dataset,
        ids,
        impressions if all_impressions is None else all_impressions,
        posterior,
        has_intervals=has_intervals,
        lists=None if seen is None else seen.lists,
    )

    def tables() -> Iterator[pa.Table]:
        done = 0
        for count, outputs in known:
            rows = ids[done : done + count]
            done += count
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
            f"{left_open.sum():,} of {len(ids):,} documents have an open interval of attraction: training shows them "
            "only at positions whose examination the log leaves open\n"
        )


def _known_of_documents(
    model: Model,
    dataset: Dataset,
    ids: np.ndarray,
    impressions: np.ndarray,
    posterior: SharedPosterior | None,
    *,
    has_intervals: bool,
    lists: np.ndarray | None,
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields, some documents at a time, their number and what the model knows of them."""
    documents = single_documents(dataset, ids)
    if others := session_columns(model, document_outputs, dataset, documents):
        reads = f"the model reads {', '.join(others)}, which belongs to a session"
        _messages.warning("documents.parquet has impressions and clicks only: %s", reads)
        yield len(ids), {}
        return
    parts: list[tuple[Model, Outputs]] = [(model, document_outputs)]
    if has_intervals:
        effective, probable, sure = exported(model, dataset.train, impressions, posterior, lists)
        parts = [(probable, document_outputs), (effective, effective_outputs)]
        parts.append((sure, interval_outputs))
    done = 0
    with Steps("documents") as progress:
        streams = [predictor(*part)(documents) for part in parts]
        for batches in zip(*streams, strict=True):
            found = {}
            for _, outputs in batches:
                found |= {name: values[:, 0] for name, values in outputs.items()}
            count = len(batches[0][0])
            done += count
            progress(done, len(ids))
            yield count, found


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
    rows = dataset.query_doc_pairs + 1
    impressions, clicks = np.zeros((2, rows), np.int32)
    shown = np.zeros(rows, bool)
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


def _save_ranking(table: pl.DataFrame, scores: np.ndarray | None, save: _Save) -> None:
    save("ranking.parquet", table.write_parquet)
    if scores is not None:
        text = "".join(f"{score:.9g}\n" for score in scores)
        save("scores.txt", partial(Path.write_text, data=text))


def _file_options(options: Sequence[str], given_file: str | Path | None) -> dict[str, Any]:
    """Returns the options of the files to predict or to rank; UserError for others."""
    given = parsed_options(options)
    if (options and not given_file) or given.keys() - {*OPTIONS}:
        raise UserError(
            f"{' '.join(options)}: options are columns.KEY=NAME, {', '.join(OPTIONS[1:])}, for --predict FILE or "
            "--rank LISTS"
        )
    check_arguments(open_lists, given, "")
    return given


def _source(path: str | Path, settings: Mapping[str, Any], given: Mapping[str, Any]) -> Source:
    """Returns files to read, whose values are written as those of the log are; `given` options come first."""
    alike = {name: settings[name] for name in ("decimal", *FORMS) if name in settings}
    return Source(source_path(path), {**alike, **given}, settings.get("columns") or {})
