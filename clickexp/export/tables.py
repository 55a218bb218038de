"""What a fitted model knows, as tables: examination by rank, documents, and predictions of sessions."""

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from flax import nnx

from clickexp.data import Dataset, Sessions
from clickexp.data.batches import at_step, with_mask
from clickexp.data.feed import feed
from clickexp.data.ingest.lists import packed_columns, read_chunk, table_options
from clickexp.data.ingest.names import OLDEST, read_names
from clickexp.data.ingest.numbering import PairIds
from clickexp.data.ingest.ragged import list_lengths
from clickexp.data.ingest.tables import find_files, open_tables
from clickexp.data.readers.parquet import ParquetTable
from clickexp.data.schema import COLUMNS, Extent, SourceLocation
from clickexp.errors import UserError
from clickexp.evaluation.inputs import Carrying
from clickexp.experiment.run import build_model, constructor
from clickexp.export.trust import check_targets
from clickexp.loggers.progress import Steps
from clickexp.models import ClickModel
from clickexp.parameters import PositionParameter
from clickexp.training.checkpoint import load_model
from clickexp.types import Array, Batch
from clickexp.utils.exits import OF_SYSTEM
from clickexp.utils.files import whole
from clickexp.utils.options import parsed
from clickexp.utils.signatures import accepted

CONFIG, MODEL = "config.yaml", "model.npz"
MOVED = {
    "clickexp.data.simulate.simulate": "clickexp.simulation.simulate",
    "clickexp.data.open_letor": "clickexp.simulation.open_letor",
}
"""Targets in the run folders of earlier versions, and where they are now."""
PARQUET = b"PAR1"
"""How every parquet file starts."""
TOLD = ("attraction", "satisfaction", "relevance")
SHOWN = 20
PIECE = 1 << 16
BATCH = 8192
"""Sessions, or documents, that are predicted at a time."""

Outputs = Callable[[ClickModel, Batch], Mapping[str, Array]]


class Piece(NamedTuple):
    """Some sessions and, where a reader numbered the ids of the log, these as they came: `document`, of what is shown,
    one list after another, and `query`, of each session, where it is known."""

    sessions: Sessions
    names: Mapping[str, pl.Series]


def export(
    run: str | Path,
    output: str | Path | None = None,
    dataset: str | Path | None = None,
    part: str = "test",
    predict: str | Path | None = None,
    options: Sequence[str] = (),
    trust: bool = False,
) -> None:
    """Writes examination.csv, documents.parquet and, for sessions to predict, predictions.parquet.

    run: its folder. output: by default run/export. dataset: path of the log, if not that of the configuration. part:
    sessions that examination is averaged over. predict: a parquet file of sessions, or a folder of them; "" predicts
    those of the part. options: columns.KEY=NAME, what the columns to predict are called. trust: the configuration in
    the folder may call code outside clickexp.
    UserError where something is missing or does not fit.
    """
    run = Path(run)
    folder = Path(output) if output is not None else run / "export"
    if output is None and not folder.resolve().is_relative_to(
        run.resolve()
    ):  # a link that came with the folder
        raise UserError(f"{folder} leads out of {run}: choose another --output")
    names = _column_names(options, predict)
    config = _configuration(run)
    model, log = fitted(run, config, dataset, trust)
    folder.mkdir(parents=True, exist_ok=True)
    with _whole(folder / "examination.csv") as file:
        examination(model, getattr(log, part)).write_csv(file)
    spelled = None if log.names is None else read_names(log.names)
    with _whole(folder / "documents.parquet") as file:
        write_documents(model, log, spelled, file)
    if predict is not None:
        own = True, _pieces(getattr(log, part), spelled)
        clicked, sessions = read_sessions(log, spelled, Path(predict), names) if predict else own
        with _whole(folder / "predictions.parquet") as file:
            write_predictions(model, sessions, clicked, file)


def fitted(
    run: Path, config: dict[str, Any], path: str | Path | None = None, trust: bool = False
) -> tuple[ClickModel, Dataset]:
    """The model of a run and the dataset that it was fitted to, both made as the configuration tells.

    UserError where it calls code outside clickexp, unless trusted: the folder may come from anyone. Nor is its cache
    used then: the log is read into a temporary folder.
    """
    if not (run / MODEL).is_file():
        raise UserError(f"{run}: there is no {MODEL}. Run again with save_model=true.")
    node = config["dataset"]
    if not trust:
        for part in ("dataset", "model"):  # all that is built of the configuration
            check_targets(config[part], f"{run / CONFIG}: {part}")
        if "cache" in node:
            node = {**node, "cache": None}  # where to write, too, is not for the folder to say
    if path is not None:
        if "path" not in node:
            raise UserError(f"--dataset {path}: {run} has not read its dataset from a path. Leave it out.")
        node = {**node, "path": str(path)}
    if "path" in node and not Path(node["path"]).expanduser().exists():
        raise UserError(
            f"{node['path']}: the log of {run} is not there. Say where it is with --dataset PATH."
        )
    read, new_model = constructor(node, "dataset"), constructor(config["model"], "model")
    with Steps("reading the log") as progress:
        dataset = _made(Dataset, lambda: read(**accepted(read, {"progress": progress})), config["dataset"])
    dataset = dataset.first(config["max_sessions"])
    model = _made(ClickModel, lambda: build_model(new_model, dataset, config["seed"]), config["model"])
    try:
        load_model(model, run / MODEL)
    except ValueError as error:
        raise UserError(f"{error}; is this the log that the run read?") from error
    model.eval()
    return model, dataset


def _made(kind: type, make: Callable[[], Any], node: Mapping[str, Any]) -> Any:
    """What a part of the configuration makes; UserError where it is of another kind, or code of others fails."""
    target, error = node.get("_target_"), None
    try:
        made = make()
    except (UserError, *OF_SYSTEM):
        raise
    except Exception as failure:
        made, error = f"{type(failure).__name__}: {failure}", failure
    if error is not None or not isinstance(made, kind):
        what = f"makes {type(made).__name__}" if error is None else f"fails: {made}"
        raise UserError(f"{target} {what}; a {kind.__name__} is needed. Was the folder written by clickexp?") from error
    return made


def examination(model: ClickModel, sessions: Sessions) -> pl.DataFrame:
    """P(examination) by rank: rank, examination, propensity, sessions.

    Where examination is a tower of positions alone, as in PBM and the trust-bias model, the tower at each position;
    else the mean over the sessions. propensity is examination divided by that of the first rank, since clicks tell
    examination up to a factor. sessions: those with a document there.
    """
    tower = getattr(model, "examination", getattr(model, "true_positive", None))
    if isinstance(tower, PositionParameter) and tower.config.use_feature == "positions":
        positions = np.arange(1, sessions.positions + 1, dtype=np.int32)[None]
        values = np.exp(np.asarray(tower.log_prob({"positions": positions}), np.float64))[0]
        counts = _positions(sessions)
    else:
        sums, counts = np.zeros(sessions.ranks), np.zeros(sessions.ranks, np.int64)
        for lengths, outputs in _predicted(model, sessions, _examination, "examination"):
            shown = np.arange(sessions.ranks) < lengths[:, None]
            sums += np.where(shown, outputs["examination"].astype(np.float64), 0).sum(axis=0)
            counts += shown.sum(axis=0)
        values = sums / np.where(counts, counts, 1)
    columns = dict(rank=np.arange(1, len(values) + 1), examination=values, propensity=values / values[0])
    return pl.DataFrame({**columns, "sessions": counts}).filter(pl.col("sessions") > 0)


def write_documents(model: ClickModel, dataset: Dataset, spelled: pl.DataFrame | None, file: Path) -> None:
    """A row for each document that the dataset shows: what the model tells of it, training impressions and clicks.

    spelled: names of the ids from 1, put beside them; None where the log came with these ids. A model whose attraction
    depends on the rank is asked for that at rank 1.
    """
    impressions, clicks, shown = _counts(dataset)
    ids = np.flatnonzero(shown)
    documents = Sessions.from_arrays(
        query_doc_ids=ids[:, None].astype(np.int32),
        clicks=np.zeros((len(ids), 1), bool),
        query_doc_pairs=dataset.query_doc_pairs,
    ).with_features(dataset.train.features)
    done = 0
    with contextlib.ExitStack() as stack:
        writer = None
        for lengths, outputs in _predicted(model, documents, _document, "documents"):
            rows = ids[done : done + len(lengths)]
            done += len(lengths)
            told = {name: outputs[name][:, 0] for name in TOLD if name in outputs}
            named = {} if spelled is None else spelled[rows - 1].to_dict()
            counts = {"impressions": impressions[rows], "clicks": clicks[rows]}
            columns = {"query_doc_id": rows.astype(np.int32), **named, **told, **counts}
            table = pl.DataFrame(columns).to_arrow(compat_level=OLDEST)
            writer = writer or stack.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)


def write_predictions(model: ClickModel, pieces: Iterable[Piece], clicked: bool, file: Path) -> None:
    """A row for each session, in their order: lists of P(click) and the like, rank 1 first.

    pieces: of one width. clicked: whether the sessions' clicks are known; without there is no
    conditional_click_probability.
    """
    compiled = _compiled(model, _click if clicked else _unconditional)
    with contextlib.ExitStack() as stack:
        writer = None
        for piece in pieces:
            rows = _ragged(piece, compiled)
            writer = writer or stack.enter_context(pq.ParquetWriter(file, rows.schema))
            writer.write_table(rows)


def read_sessions(
    dataset: Dataset, spelled: pl.DataFrame | None, source: Path, names: Mapping[str, str | None]
) -> tuple[bool, Iterator[Piece]]:
    """Whether there are clicks, and the sessions in parquet files, in pieces of one width.

    They have lists of query_doc_ids, as the log of the run has them, and optionally clicks, positions and query_id,
    which must be there where ids are of pairs. Where a reader numbered the log's ids, those that are not in it have
    the row 0, that of no document, and are counted on stderr. UserError where other ids, or positions, are beyond
    those that the model knows.
    """
    if not source.exists():
        raise UserError(f"{source}: no such file or folder. Check the path.")
    if source.is_file():
        with source.open("rb") as file:
            if file.read(len(PARQUET)) != PARQUET:
                raise UserError(f"{source}: --predict reads parquet files, or a folder of them, and this is none")
    ids = None if spelled is None else _numbered(spelled)
    opened = table_options(names, ids and ids.pair_key)
    opened["required"] = [name for name in opened["required"] if name != "clicks"]
    files = find_files(source, None, ParquetTable.suffixes)
    tables = open_tables(files, lambda path: ParquetTable(path, **opened))
    if spelled is not None:
        _check_kinds(source, tables[0].layout, spelled)
    ranks = _ranks(dataset, tables)
    total = sum(table.size for table in tables)

    schema = packed_columns(tables[0])

    def pieces() -> Iterator[Piece]:
        read = shown = unknown = 0
        with Steps("predicting") as progress:
            for table in tables:
                for columns, location, done in table.batches():
                    chunk, _, named = read_chunk(columns, ranks, location, ids, schema)
                    if spelled is not None:
                        chunk.pop("query_ids", None)  # numbers of this command
                        new = chunk["query_doc_ids"] > len(spelled)
                        chunk["query_doc_ids"][new] = 0
                        shown, unknown = shown + chunk["lengths"].sum(), unknown + new.sum()
                    chunk.setdefault("clicks", np.zeros(chunk["query_doc_ids"].shape, bool))
                    extra = {schema[name]: chunk.pop(name) for name in schema.keys() - COLUMNS.keys()}
                    sessions = Sessions.from_arrays(
                        **chunk, extra=extra, query_doc_pairs=dataset.query_doc_pairs, location=location
                    )
                    _check_known(sessions.positions, dataset, location)
                    yield Piece(sessions.with_features(dataset.train.features), named)
                    progress(read + done, total)
                read += table.size
        if unknown:
            what = f"{unknown:,} of the {shown:,} documents shown are not in the log of the run"
            print(f"{source}: {what}, and have query_doc_ids 0", file=sys.stderr)

    return "clicks" in tables[0].columns, pieces()


def _ranks(dataset: Dataset, tables: Sequence[ParquetTable]) -> int:
    """The width that all lists are padded to; UserError where that takes too much."""
    extent = Extent()
    for table in tables:
        for batch in table.batches(["query_doc_ids"]):
            lengths = list_lengths(batch.columns["query_doc_ids"])
            if "positions" not in table.columns:
                _check_known(int(lengths.max(initial=0)), dataset, batch.location)
            extent.add(lengths, batch.location)
    if extent.longest <= dataset.train.ranks:  # as wide as the log itself is
        return max(extent.longest, 1)
    return extent.ranks(tables[0].columns, "cut the list")


def _check_known(position: int, dataset: Dataset, location: SourceLocation) -> None:
    if position > dataset.positions:
        what = f"position {position}, of which the model knows {dataset.positions}"
        raise location.error(f"there are documents at {what}", "cut the lists")


def _numbered(spelled: pl.DataFrame) -> PairIds:
    """Gives names the ids that they have in the log."""
    queries = spelled["query"] if "query" in spelled.columns else None
    ids = PairIds("document" if queries is None else "query_document")
    ids.number(spelled["document"], np.ones(len(spelled), np.int64), queries)
    return ids


def _check_kinds(source: Path, layout: Mapping[str, str], spelled: pl.DataFrame) -> None:
    """UserError where ids are text and the log of the run has numbers, or the other way round."""
    for key, name in (("query_doc_ids", "document"), ("query_ids", "query")):
        kind = "text" if name in spelled.columns and spelled[name].dtype == pl.String else "numbers"
        if name in spelled.columns and (layout[key] == "text") != (kind == "text"):
            what = f"{key} holds {layout[key]}, and the log of the run has {kind} there"
            raise UserError(f"{source}: {what}. Write them as the log does.")


def _pieces(sessions: Sessions, spelled: pl.DataFrame | None) -> Iterator[Piece]:
    """The sessions in pieces of bounded size."""
    with Steps("predicting") as progress:
        for start in range(0, sessions.count, PIECE):
            piece = sessions.slice(start, start + PIECE)
            ids, lengths = piece.column("query_doc_ids"), piece.column("lengths")
            names = {}
            if spelled is not None:
                names["document"] = spelled["document"][ids[np.arange(piece.ranks) < lengths[:, None]] - 1]
            if spelled is not None and "query" in spelled.columns:
                names["query"] = spelled["query"][ids[:, 0] - 1]
            yield Piece(piece, names)
            progress(start + piece.count, sessions.count)


def _ragged(piece: Piece, compiled: Callable[[Any], Mapping[str, np.ndarray]]) -> pa.Table:
    """Lists of what is predicted, beside the ids and names of the sessions."""
    sessions = piece.sessions
    names = {name: values.to_arrow(compat_level=OLDEST) for name, values in piece.names.items()}
    lengths = sessions.column("lengths")
    shown = np.arange(sessions.ranks) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    parts = [outputs for _, outputs in _batches(sessions, compiled)]
    lists = {"query_doc_ids": sessions.column("query_doc_ids")[shown]}
    lists |= {"documents": names["document"]} if "document" in names else {}
    lists |= {name: np.concatenate([part[name] for part in parts])[shown] for name in parts[0]}
    queries = {"query_id": sessions.column("query_ids")} if "query_ids" in sessions.columns else {}
    queries |= {"query": names["query"]} if "query" in names else {}
    return pa.table(
        {**queries, **{name: pa.ListArray.from_arrays(offsets, pa.array(v)) for name, v in lists.items()}}
    )


def _examination(model: ClickModel, batch: Batch) -> dict[str, Array]:
    return {"examination": model.predict_examination(batch)}


def _document(model: ClickModel, batch: Batch) -> dict[str, Array]:
    outputs = {"attraction": model.predict_attraction(batch)}
    if hasattr(model, "satisfaction"):
        outputs["satisfaction"] = model.satisfaction.log_prob(batch)
    return {**outputs, "relevance": model.predict_relevance(batch)}


def _unconditional(model: ClickModel, batch: Batch) -> dict[str, Array]:
    return {"click_probability": model.predict_clicks(batch), "relevance": model.predict_relevance(batch)}


def _click(model: ClickModel, batch: Batch) -> dict[str, Array]:
    conditional = {"conditional_click_probability": model.predict_conditional_clicks(batch)}
    return {**_unconditional(model, batch), **conditional}


def _predicted(
    model: ClickModel, sessions: Sessions, outputs: Outputs, what: str
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Lengths [sessions] and probabilities [sessions, rank] of each batch, with a bar on the terminal."""
    graphdef, *state = nnx.split(model)
    done, sessions = 0, Carrying(outputs, graphdef)(sessions, state)
    with Steps(what) as progress:
        for lengths, values in _batches(sessions, _compiled(model, outputs)):
            yield lengths, values
            done += len(lengths)
            progress(done, sessions.count)


def _batches(
    sessions: Sessions, compiled: Callable[[Any], Mapping[str, np.ndarray]]
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Batches of one size, the last one cut to its sessions."""
    for batch in feed(sessions, min(BATCH, sessions.count), 1):
        count = batch.sessions
        values = {name: np.asarray(array)[:count] for name, array in compiled(batch.arrays).items()}
        yield np.asarray(batch.arrays["lengths"][0, :count]), values


def _compiled(model: ClickModel, outputs: Outputs) -> Callable[[Any], Mapping[str, jax.Array]]:
    """Probabilities of the arrays of a superbatch of one batch, each [sessions, rank]."""
    graphdef, state = nnx.split(model)

    @jax.jit
    def run(state: nnx.State, arrays: Mapping[str, Array]) -> dict[str, Array]:
        batch = at_step(with_mask(arrays), 0)
        logs = outputs(nnx.merge(graphdef, state), batch)
        return {
            name: jax.numpy.broadcast_to(jax.numpy.exp(log), batch["mask"].shape)
            for name, log in logs.items()
        }

    return lambda arrays: run(state, arrays)


def _counts(dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training impressions and clicks of each id, and whether any part of the dataset shows it."""
    rows = dataset.query_doc_pairs + 1
    impressions, clicks, shown = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, bool)
    total = sum(part.count for part in dataset.parts.values())
    done = 0
    with Steps("counting") as progress:
        for name, part in dataset.parts.items():
            for chunk in part.chunks(["query_doc_ids", "clicks", "lengths"]):
                there = np.arange(part.ranks) < chunk["lengths"][:, None]
                ids = chunk["query_doc_ids"][there]
                shown[ids] = True
                if name == "train":
                    np.add.at(impressions, ids, 1)
                    np.add.at(clicks, chunk["query_doc_ids"][chunk["clicks"]], 1)
                done += len(there)
                progress(done, total)
    return impressions, clicks, shown


def _positions(sessions: Sessions) -> np.ndarray:
    """Documents shown at each position, from 1."""
    counts = np.zeros(sessions.positions + 1, np.int64)
    given = ["positions"] if "positions" in sessions.columns else []
    for chunk in sessions.chunks(["lengths", *given]):
        there = np.arange(sessions.ranks) < chunk["lengths"][:, None]
        ranks = np.broadcast_to(np.arange(1, sessions.ranks + 1), there.shape)
        counts += np.bincount(chunk.get("positions", ranks)[there], minlength=len(counts))
    return counts[1:]


def _configuration(run: Path) -> dict[str, Any]:
    """The configuration that a run resolved to."""
    if not run.is_dir():
        raise UserError(f"{run}: there is no such folder. Give the folder of a run.")
    inside = [] if (run / CONFIG).exists() else _runs_below(run)
    if inside:
        raise UserError(
            f"{run}: this is a folder of runs, not of one. Name one of them: {', '.join(inside[:SHOWN])}"
            + (f", ... ({len(inside)} in all)" if len(inside) > SHOWN else "")
        )
    try:
        config = yaml.safe_load((run / CONFIG).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(
            f"{run}: not the folder of a run, {CONFIG} cannot be read ({type(error).__name__})."
        ) from error
    if (
        not isinstance(config, dict)
        or not {"dataset", "model", "seed", "max_sessions"} <= config.keys()
        or not all(isinstance(config[part], dict) for part in ("dataset", "model"))
    ):
        raise UserError(f"{run}: not the folder of a run, {CONFIG} tells of no dataset and model.")
    target = config["dataset"].get("_target_")
    if isinstance(target, str):
        config["dataset"]["_target_"] = MOVED.get(target, target)
    return config


def _runs_below(folder: Path) -> list[str]:
    """Runs in the folder that kept their model, such as the jobs of a sweep, in the order of their numbers."""
    runs = [str(file.parent) for pattern in ("*/", "*/*/") for file in folder.glob(f"{pattern}{MODEL}")]
    return sorted(
        runs, key=lambda run: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", run)]
    )


def _column_names(options: Sequence[str], predict: str | Path | None) -> dict[str, str]:
    given = parsed(options)
    if options and not predict or given.keys() - {"columns"}:
        raise UserError(f"{' '.join(options)}: options are columns.KEY=NAME, for --predict FILE")
    return given.get("columns", {})


@contextlib.contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """Where to write, under another name until it is whole; tells what was written."""
    with whole(file) as part:
        yield part
    print(file)
