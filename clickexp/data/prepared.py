"""Prepared logs: packed sessions, feature vectors and names of ids in a folder that opens in milliseconds."""

import filecmp
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from clickexp.data.checksums import REMEDY, DamagedError, Stored, verify
from clickexp.data.dataset import Dataset, Split, keep_queries_seen, split
from clickexp.data.description import FEATURES, NAMES, SPLIT, Description, Numbering
from clickexp.data.encoding import Encoding, FeatureSettings, Names
from clickexp.data.features import Features
from clickexp.data.pairs import named_pairs
from clickexp.data.schema import SourceLocation, bounds, checked
from clickexp.data.sessions import Sessions
from clickexp.data.view import Chunk
from clickexp.errors import DataError
from clickexp.utils.bounds import NonNegativeInt
from clickexp.utils.progress import Progress, no_report

_messages = logging.getLogger("clickexp.data.prepared")


@dataclass(frozen=True)
class Log:
    """A prepared log.

    Attributes:
        name: Name in results.
        format: Name of the reader.
        parts: "sessions", or "train", "val" and "test" where the source comes split; "ranking" for labelled lists.
        notes: Counts that the reader reports, such as what was dropped and why.
        names: Bytes of the file that names the ids, mapped, where a reader numbered them; see
            `clickexp.data.names`.
        categories: Names of the categories of columns, by column.
        settings: What feature vectors are made of, where columns make them.
    """

    name: str
    format: str
    parts: Mapping[str, Sessions]
    notes: Mapping[str, int | str] = field(default_factory=dict)
    names: np.ndarray | None = None
    categories: Mapping[str, Names] = field(default_factory=dict)
    settings: FeatureSettings | None = None

    @classmethod
    def open(cls, folder: str | Path, *, ids: Numbering | None = None) -> "Log":
        """Maps a prepared folder, in milliseconds: sizes of all files are checked, and `verify_log` reads them.

        Args:
            folder: What `clickexp-data prepare` or LogWriter wrote.
            ids: Those of another log, which documents get by their names there; 0 where it has none, or the next ones.

        Raises:
            DataError: The folder is not a prepared log, or damaged; it names the file. Or ids cannot be compared.
        """
        folder = Path(folder).expanduser()
        description = Description.read(folder)
        description.check_sizes(folder)
        parts, names = _mapped_parts(description, folder), None
        if NAMES in description.files:
            names = np.memmap(folder / NAMES, np.uint8, "r")
            if ids is not None:
                parts, names = _renumbered(parts, folder / NAMES, names, ids)
            derived = named_pairs(names, _most_pairs(parts))
            parts = {name: part.deriving(*derived) for name, part in parts.items()}
        parts = {name: part.with_context() for name, part in parts.items()}
        return cls(
            description.name,
            description.format,
            parts,
            description.notes,
            names,
            description.categories,
            description.features,
        )

    def dataset(
        self,
        name: str | None = None,
        train_sessions: Split = 0.8,
        val_sessions: Split = 0.1,
        test_sessions: Split = 0.1,
        min_train_sessions_per_query: NonNegativeInt = 0,
        learned: Numbering | None = None,
    ) -> Dataset:
        """Returns the log as a dataset.

        Args:
            name: Name in results, by default that of the log.
            train_sessions: Fraction or range of the sessions to train on, where the source did not come split.
            val_sessions: The same for validation.
            test_sessions: The same for the test.
            min_train_sessions_per_query: Least training sessions of the query of a validation or test session; others
                are left out.
            learned: What a run has learned to encode columns; by default it is learned of the training part.

        Raises:
            DataError: The splits do not fit the log, or columns cannot be encoded.
        """
        if "sessions" in self.parts:
            train, *held_out = split(
                self.parts["sessions"], train_sessions, val_sessions, test_sessions
            )
        else:
            train, *held_out = (self.parts[part] for part in SPLIT)
            _warn_of_shared_sessions(train, held_out)
        val, test = (
            keep_queries_seen(train, part, min_train_sessions_per_query) for part in held_out
        )
        if not (val.count and test.count):
            what = f"no session of validation or test has a query with {min_train_sessions_per_query} training sessions"
            raise DataError(f"{what}. Lower min_train_sessions_per_query.")
        dataset = Dataset(
            name or self.name,
            train,
            val,
            test,
            query_doc_pairs=train.query_doc_pairs,
            positions=max(part.positions for part in (train, val, test)),
            ranking=self.parts.get("ranking", test if test.has_labels else None),
            notes=self.notes,
            names=self.names,
        )
        return self._encoded(dataset, learned)

    def _encoded(self, dataset: Dataset, earlier: Numbering | None) -> Dataset:
        """Returns a dataset with encoded columns, where the log has any to encode."""
        if not self.categories and self.settings is None:
            return dataset
        if earlier is None:
            encoding = Encoding.fit(dataset.train, self.categories, self.settings)
        else:
            encoding = Encoding.read(earlier.file)
            if earlier.grows:
                encoding = encoding.grown(dataset.train, self.categories, self.settings)
        parts = {
            name: encoding.applied(part, self.categories) for name, part in dataset.parts.items()
        }
        if (stored := dataset.train.features) is not None:
            vectors = encoding.stored(stored, self.categories)
            parts = {name: part.with_features(vectors) for name, part in parts.items()}
        return replace(dataset, **parts, encoding=encoding)


def _mapped_parts(description: Description, folder: Path) -> dict[str, Sessions]:
    """Returns the parts of a prepared folder, which share ids and feature vectors."""
    parts = {}
    for name, part in description.parts.items():
        columns, records = part.map_columns(folder / name)
        parts[name] = Sessions(
            columns,
            part.query_doc_pairs,
            part.positions,
            folder=folder / name,
            schema=part.columns,
            checksums=part.crc32,
            records=records,
        )
    pairs = _most_pairs(parts)
    features = None
    if FEATURES in description.files:
        _, crc32 = description.files[FEATURES]
        features = Features.open(folder / FEATURES, crc32)
    return {name: part.with_pairs(pairs).with_features(features) for name, part in parts.items()}


def _most_pairs(parts: Mapping[str, Sessions]) -> int:
    return max(part.query_doc_pairs for part in parts.values())


def _renumbered(
    parts: Mapping[str, Sessions], file: Path, names: np.ndarray, other: Numbering
) -> tuple[dict[str, Sessions], np.ndarray]:
    """Returns parts of a log whose documents have the ids of their names in another log, and the names of these ids."""
    if filecmp.cmp(file, other.file, shallow=False):
        return dict(parts), names
    # Here, because it needs Arrow, which a run that opens a prepared log does without.
    from clickexp.data.names import as_bytes, grown, read_names, renumbering

    other_names = np.memmap(other.file, np.uint8, "r")
    names_here, named = read_names(names, _most_pairs(parts)), read_names(other_names)
    if other.grows:
        ids, named = grown(names_here, named)
        if len(named) == len(names_here) and np.array_equal(ids, np.arange(len(ids))):
            return dict(parts), names
        other_names = as_bytes(named)
    else:
        ids = renumbering(names_here, named)
    renumbered = {}
    for name, part in parts.items():
        features = None if part.features is None else part.features.renumbered(ids, len(named) + 1)
        renumbered[name] = (
            part.with_features(None).renumbered(ids, len(named)).with_features(features)
        )
    return renumbered, other_names


def _warn_of_shared_sessions(train: Sessions, held_out: Sequence[Sessions]) -> None:
    """Points out parts of a source that cut a search session: the context of its later lists lacks the earlier ones."""
    if "session_ids" not in train.columns:
        return
    trained = np.unique(train.column("session_ids"))
    for part in held_out:
        ids = (
            np.asarray(part.column("session_ids")) if "session_ids" in part.columns else trained[:0]
        )
        if shared := int(np.isin(ids, trained).sum()):
            _messages.warning(
                "%s lists of validation or test belong to search sessions of training, as the source numbers them: "
                "their context lacks what came before there",
                f"{shared:,}",
            )


def open_prepared(
    path: str | Path,
    *,
    train_sessions: Split = 0.8,
    val_sessions: Split = 0.1,
    test_sessions: Split = 0.1,
    min_train_sessions_per_query: NonNegativeInt = 0,
    name: str | None = None,
    ids: Numbering | None = None,
    learned: Numbering | None = None,
) -> Dataset:
    """The dataset in a prepared folder, whatever format it came from.

    Args:
        path: What `clickexp-data prepare` wrote.
        train_sessions: See `Log.dataset`, as for the next four.
        val_sessions: Sessions to validate on.
        test_sessions: Sessions to test on.
        min_train_sessions_per_query: Least training sessions of a held-out query.
        name: Name in results.
        ids: Those of another log; see `Log.open`.
        learned: See `Log.dataset`.

    Raises:
        DataError: The folder is not a prepared log or damaged, or the splits do not fit it.
    """
    log = Log.open(path, ids=ids)
    return log.dataset(
        name, train_sessions, val_sessions, test_sessions, min_train_sessions_per_query, learned
    )


def _check_stated(chunk: Chunk, positions: int, location: SourceLocation) -> None:
    """DataError where bytes of clicks are no truth values, or a position is beyond the largest that is stated."""
    again = "prepare the log again"
    clicks = np.ascontiguousarray(chunk["clicks"]).view(np.uint8)
    location.reject(clicks > 1, clicks, "clicks", again)
    location.reject(chunk.positions > positions, chunk.positions, "positions", again)


def _check_categories(
    chunk: Chunk, categories: Mapping[str, Names], location: SourceLocation
) -> None:
    """DataError where a number of a category has no name."""
    for name, names in categories.items():
        if name in chunk:
            values = chunk[name]
            unnamed = (values < 0) | (values > len(names))
            location.reject(unnamed, values, name, "prepare the log again")


def _check_size(location: SourceLocation, name: str, stated: int, largest: int) -> None:
    """DamagedError where models would get rows that no document has."""
    if stated > largest:
        what = (
            f"{location.source}: {name} is {stated} in log.json, and the largest there is {largest}"
        )
        raise DamagedError(what, REMEDY)


def verify_log(folder: Path, progress: Progress = no_report) -> list[Stored]:
    """Reads a prepared log against its checksums, and checks its numbers as when they were written.

    Args:
        folder: The log.
        progress: Called with the bytes read so far and in all.

    Returns:
        Its files but for the description.

    Raises:
        DataError: Files are damaged; it names all of them. Or it names the first number that no log has.
    """
    from clickexp.data.names import read_names

    files = Description.read(folder).stored(folder)
    verify(folder, files, progress)
    log = Log.open(folder)
    named = 0 if log.names is None else len(read_names(log.names))
    for part in log.parts.values():
        location = SourceLocation(str(part.folder))
        largest_id, largest_position = named, 0
        for chunk in part.chunks():
            checked(dict(chunk), location, part.query_doc_pairs, part.schema)
            of_chunk = bounds(chunk)
            largest_id = max(largest_id, of_chunk[0])
            largest_position = max(largest_position, of_chunk[1])
            _check_stated(chunk, part.positions, location)
            _check_categories(chunk, log.categories, location)
            location = replace(location, first=location.first + chunk.count)
        if log.names is not None:  # else an option may state more
            _check_size(location, "query_doc_pairs", part.query_doc_pairs, largest_id)
        _check_size(location, "positions", part.positions, largest_position)
    return files
