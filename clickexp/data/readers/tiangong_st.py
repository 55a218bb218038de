"""The per-query text layout of TianGong-ST that NCM, GraphCM and others read.

Chen et al. 2019, "TianGong-ST: A New Dataset with Large-scale Refined Real-world Web Search Sessions".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data.ingest.columns import check_keys
from clickexp.data.ingest.faults import Faults, Invalid
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.numbering import PairIds
from clickexp.data.ingest.packing import ReadLog, ReadPart
from clickexp.data.ingest.streams import opened
from clickexp.data.log_files import Piece, also_compressed
from clickexp.data.log_format import log_format
from clickexp.data.log_writer import LogWriter
from clickexp.data.schema import COLUMNS, SourceLocation
from clickexp.errors import DataError
from clickexp.utils.bounds import PositiveInt

FILES = {
    "train": "train_per_query_quid.txt",
    "val": "valid_per_query_quid.txt",
    "test": "test_per_query_quid.txt",
    "ranking": "human_label_for_NCM_per_query_quid.txt",
}

_LAYOUT = "session id, query id, [documents], [vertical types], [clicks]"
_NUMBER = r"-?\d+"
_LIST = rf"\[ *{_NUMBER}(?: *, *{_NUMBER})* *\]"
_LINE = rf"^-?\d+\t-?\d+(?:\t{_LIST}){{LISTS}}\r?$"
_FAULTY = "lines_that_do_not_parse"
_SOUND = "0\t0\t[0]\t[0]\t[0]\t[0]"
_FIELDS = {"session_ids": 0, "query_ids": 1, "query_doc_ids": 2, "clicks": 4, "labels": 5}


def _pieces(source: Path, shares: int, **options: Any) -> list[Piece]:
    return [Piece.of(file) for file in _find_files(source, options.get("files")).values()]


@log_format("tiangong_st", comes_split=True, pieces=_pieces)
def open_tiangong_st(
    source: Path,
    log: LogWriter,
    *,
    files: Mapping[str, str | None] | None = None,
    pair_key: str = "query_document",
    positions: PositiveInt | None = 10,
    invalid: Invalid = "error",
) -> ReadLog:
    """The dataset in a folder of such files.

    A line is session id, query id, [documents], [vertical types], [clicks] and, for the labelled lists,
    [relevance], separated by tabs; relevance stays as it is, -2 (spam) to 4. Ids are numbered from 1 in
    order of first appearance in train, val, test, ranking.

    files      names of the files train, val, test, ranking, without .gz or the like where they are compressed; ranking
               may be None, or missing under its default
    pair_key   what has a row in the tables: "query_document", a document under a query, or "document"
    positions  ranks to keep, None for the longest list; longer lists are cut and counted
    invalid    "error": DataError once all is read, which names each kind of fault with its count, first lines and
               what was expected. "drop": leaves the lines out, counted
    """
    ids, faults = PairIds(pair_key, log.names, own_queries=True), Faults()
    sources, parts = _find_files(source, files), {}
    for name, file in sources.items():
        if not log.share.has(file):
            continue
        location = faults.at(SourceLocation(str(file), 1, "line"))
        read = _parsed(file, name == "ranking", location)
        faults.count(location, len(read.lengths))
        sound, rows = read.sound(location, log, "dropped_lines")
        lists = ids.number(sound.head(positions, log))
        columns = ["lengths", *lists.documents, *lists.sessions]
        parts[name] = ReadPart(log, name, columns, positions)
        parts[name].append(lists, location, rows)
    log.notes["pair_key"] = pair_key
    return ReadLog(parts, faults, invalid, ids.tables)


def _find_files(folder: Path, files: Mapping[str, str | None] | None) -> dict[str, Path]:
    """Returns the files of the parts, by the names that the option has."""
    names = {**FILES, **(files or {})}
    check_keys("files", names, FILES)
    present = {}
    for part, name in names.items():
        file = _stored(folder, name)
        if file is not None:
            present[part] = file
        elif part != "ranking" or name not in (None, FILES[part]):
            raise DataError(
                f"{folder / str(name)}: no such file. Check the path, or set files.{part}."
            )
    return present


def _stored(folder: Path, name: str | None) -> Path | None:
    """The file of a name, which may be compressed; None where there is none."""
    if not name:
        return None
    files = (folder / stored_name for stored_name in also_compressed(name))
    return next((file for file in files if file.is_file()), None)


def _parsed(file: Path, labelled: bool, location: SourceLocation) -> Lists:
    """The lists of the lines, with documents for ids."""
    try:
        with opened(file) as stream:
            text = stream.content.read().decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise location.error(f"cannot be read ({error})", "save it as UTF-8 text") from error
    labelled = labelled or text.partition("\n")[0].count("\t") == _FIELDS["labels"]
    lines = pl.DataFrame({"line": [text]}).select(pl.col("line").str.split("\n").explode())
    fields = _check_lines(lines["line"], labelled, location).str.split("\t").list
    columns = {name: fields.get(at) for name, at in _FIELDS.items() if labelled or name != "labels"}
    lists = {
        name: text.str.extract_all(_NUMBER)
        for name, text in columns.items()
        if COLUMNS[name].per_document
    }
    return Lists.of({**columns, **lists}, location)


def _check_lines(lines: pl.Series, labelled: bool, location: SourceLocation) -> pl.Series:
    """The lines, with a sound one in place of those that the location refuses."""
    good = lines.str.contains(_LINE.replace("LISTS", "4" if labelled else "3"))
    bad = np.flatnonzero(~good.to_numpy())
    remedy = f"expected, separated by tabs: {_LAYOUT}" + ", [relevance]" * labelled
    location.refuse(
        bad, lambda number: f"{lines[int(bad[number])][:80]!r} does not parse", remedy, _FAULTY
    )
    return lines.set(~good, _SOUND)
