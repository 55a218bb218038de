"""Logs on disk for the tests, and descriptions of them that are changed by hand."""

import json
from pathlib import Path

from clickexp.data import Log, LogWriter, Sessions, SourceLocation
from clickexp.data.checksums import sealed


def stored(sessions: Sessions, folder: Path) -> Sessions:
    """The sessions in a prepared log."""
    columns = [sessions.schema[name] for name in sessions.columns]
    with LogWriter(folder, "log", "none") as log:
        with log.part("sessions", sessions.ranks, columns) as pack:
            for chunk in sessions.chunks():
                pack.append(dict(chunk), SourceLocation(str(folder), pack.written))
            pack.query_doc_pairs = sessions.query_doc_pairs
    return Log.open(folder).parts["sessions"]


def reseal(folder: Path, changes: dict, part: str | None = None) -> None:
    """Changes keys of log.json, or of one of its parts, as whoever writes a log can; None leaves one out."""
    description = json.loads((folder / "log.json").read_text())
    description.pop("seal")
    changed = description if part is None else description["parts"][part]
    changed |= changes
    for key in [key for key, value in changed.items() if value is None]:
        changed.pop(key)
    (folder / "log.json").write_text(sealed(description))


def write_table(table, path: Path) -> Path:
    """Writes a data frame as the suffix of the path says: parquet, JSON lines or CSV."""
    if path.suffix == ".parquet":
        table.write_parquet(path)
    elif path.suffix == ".jsonl":
        table.write_ndjson(path)
    else:
        table.write_csv(path)
    return path
