"""The per-query text layout of TianGong-ST that NCM, GraphCM and others read.

Chen et al. 2019, "TianGong-ST: A New Dataset with Large-scale Refined Real-world Web Search Sessions".
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from clickexp.data.ingest.numbering import PairIds
from clickexp.data.ingest.ragged import list_lengths, padded, scatter
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import POSITIONS, DataError, Extent, SourceLocation
from clickexp.utils.bounds import PositiveInt

FILES = {
    "train": "train_per_query_quid.txt",
    "val": "valid_per_query_quid.txt",
    "test": "test_per_query_quid.txt",
    "ranking": "human_label_for_NCM_per_query_quid.txt",
}

LAYOUT = "session id, query id, [documents], [vertical types], [clicks]"
LIST = r"\[ *-?\d+(?: *, *-?\d+)* *\]"
LINE = rf"^-?\d+\t-?\d+(?:\t{LIST}){{LISTS}}\r?$"
FIELDS = {"query_ids": 1, "query_doc_ids": 2, "clicks": 4, "labels": 5}


@log_format("tiangong_st", comes_split=True)
def open_tiangong_st(
    source: Path,
    log: LogWriter,
    *,
    files: Mapping[str, str | None] | None = None,
    pair_key: str = "query_document",
    positions: PositiveInt | None = 10,
) -> None:
    """The dataset in a folder of such files.

    A line is session id, query id, [documents], [vertical types], [clicks] and, for the labelled lists,
    [relevance], separated by tabs; relevance stays as it is, -2 (spam) to 4. Ids are numbered from 1 in
    order of first appearance in train, val, test, ranking.

    files      names of the files train, val, test, ranking; ranking may be None, or missing under its default
    pair_key   what has a row in the tables: "query_document", a document under a query, or "document"
    positions  ranks to keep, None for the longest list; longer lists are cut and counted

    DataError names file, line and what was expected.
    """
    ids = PairIds(pair_key, log.names)
    found = _found(source, {**FILES, **(files or {})})
    places = {part: SourceLocation(str(file), 1, "line") for part, file in found.items()}
    columns = {part: _parsed(file, part == "ranking", places[part]) for part, file in found.items()}
    ranks = positions
    if ranks is None:
        ranks = _longest(columns, places)
    chunks = {part: padded(lists, ranks, places[part]) for part, lists in columns.items()}
    log.notes["pair_key"] = pair_key
    for part, (chunk, cut) in chunks.items():
        _number(chunk, ids)
        with log.part(part, ranks, list(chunk)) as pack:
            pack.append(chunk, places[part])
        log.note("cut_lists", cut)


def _found(folder: Path, names: Mapping[str, str | None]) -> dict[str, Path]:
    if unknown := names.keys() - FILES.keys():
        raise DataError(f"files has keys {sorted(unknown)}. The keys are {list(FILES)}.")
    found = {part: folder / name for part, name in names.items() if name and (folder / name).is_file()}
    for part, name in names.items():
        if part not in found and (part != "ranking" or name not in (None, FILES[part])):
            raise DataError(f"{folder / str(name)}: no such file. Check the path, or set files.{part}.")
    return found


def _longest(columns: Mapping[str, Mapping[str, pa.Array]], places: Mapping[str, SourceLocation]) -> int:
    extent = Extent()
    for part, lists in columns.items():
        extent.add(list_lengths(lists["query_doc_ids"]), places[part])
    return extent.ranks(columns["train"], POSITIONS)


def _parsed(file: Path, labelled: bool, location: SourceLocation) -> dict[str, pa.Array]:
    """One entry a line: query_ids, and lists query_doc_ids (of documents), clicks and, if there, labels."""
    try:
        text = file.read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise location.error(f"cannot be read ({error})", "save it as UTF-8 text") from error
    labelled = labelled or text.partition("\n")[0].count("\t") == FIELDS["labels"]
    lines = pl.DataFrame({"line": [text]}).select(pl.col("line").str.split("\n").explode())
    _check_lines(lines["line"], labelled, location)
    fields = lines["line"].str.replace_all(r"[\[\] \r]", "").str.split("\t").list
    wanted = {name: fields.get(at) for name, at in FIELDS.items() if labelled or name != "labels"}
    queries = wanted.pop("query_ids").cast(pl.Int64, strict=False)
    numbers = pl.List(pl.Int64)
    lists = {name: field.str.split(",").cast(numbers, strict=False) for name, field in wanted.items()}
    return {name: values.to_arrow() for name, values in {"query_ids": queries, **lists}.items()}


def _check_lines(lines: pl.Series, labelled: bool, location: SourceLocation) -> None:
    good = lines.str.contains(LINE.replace("LISTS", "4" if labelled else "3"))
    if not good.all():
        row = int(good.to_numpy().argmin())
        remedy = f"expected, separated by tabs: {LAYOUT}" + ", [relevance]" * labelled
        raise location.error(f"{lines[row][:80]!r} does not parse", remedy, row)


def _number(chunk: dict[str, np.ndarray], ids: PairIds) -> None:
    """Replaces documents by the rows of their pairs."""
    documents, lengths = chunk["query_doc_ids"], chunk["lengths"]
    shown = np.arange(documents.shape[1]) < lengths[:, None]
    rows, _ = ids.number(pl.Series(documents[shown]), lengths, pl.Series(chunk["query_ids"]))
    chunk["query_doc_ids"] = scatter(rows, lengths, documents.shape[1])
