"""Feature vectors made of the columns of a log: missing values filled, categories as indicators, numbers standardised.

What it takes for that is learned of the training sessions, and kept with a run, so that exports do the same.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PositiveInt,
    StrictInt,
    StrictStr,
    model_validator,
)

from clickexp.data.checksums import REMEDY, DamagedError
from clickexp.data.derived import DerivedColumn, LookedUp, Rows
from clickexp.data.features import Features
from clickexp.data.schema import Column, Columns
from clickexp.data.sessions import Sessions
from clickexp.errors import DataError
from clickexp.utils.blocks import blocks

_messages = logging.getLogger(__name__)

FEATURES = "query_doc_features"
Missing = Literal["mean", "zero", "indicator"]
Names = list[StrictInt | StrictStr]
"""Names of the categories 1, 2, ... of a column."""
_NONE = "(none)"
"""Name of the number 0 of a column: no category, or one that training does not show."""
_MOST_INDICATORS = 1000
"""Categories of a column that feature vectors have an indicator for, at most."""
_BLOCK = 1 << 16
"""Rows of a table that are encoded at a time."""
_SESSIONS = 1 << 14
"""Sessions whose numbers are in memory at a time."""
_SAMPLE = 4096
"""Documents whose features show where most are."""
_ALIKE = 1e-4
"""Of standard deviations, in which a feature does not tell documents apart."""


def numbered_names(categories: Names) -> tuple[str, ...]:
    """Returns what the numbers 0, 1, 2, ... of a column are called."""
    return (_NONE, *map(str, categories))


class _Stated(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FeatureSettings(_Stated):
    """The columns that feature vectors are made of, as a reader states them.

    Attributes:
        columns: Names of the columns.
        missing: What stands for values that the log lacks: their mean over the training documents, zero, or that mean
            with an indicator; None where there are none.
        standardize: Whether numbers get mean 0 and standard deviation 1 over the training documents.
    """

    columns: list[str]
    missing: Missing | None = None
    standardize: bool = True


class EncodedColumn(_Stated):
    """A column that feature vectors are made of.

    Attributes:
        name: Its name.
        width: Numbers per document.
        categories: Names of its categories; None of numbers.
    """

    name: str
    width: PositiveInt = 1
    categories: Names | None = None


class Encoder(_Stated):
    """Turns the numbers of columns into feature vectors.

        x = (parts - center) * scale

    The parts are numbers as they are, with missing ones filled, and an indicator for each category; the indicators of
    missing numbers come last. A category is given by its number, 0 where training does not show it.

    Attributes:
        columns: Columns in the order of their numbers.
        missing: What stands for missing values; None where there are none.
        fill: What replaces each number where it is missing.
        indicated: Places of the numbers whose absence has an indicator.
        center: Taken off each feature.
        scale: Multiplies each feature.
    """

    columns: list[EncodedColumn]
    missing: Missing | None = None
    fill: list[float]
    indicated: list[NonNegativeInt] = []
    center: list[float] = []
    scale: list[float] = []

    @property
    def is_standardized(self) -> bool:
        """Whether features are standardised."""
        return bool(self.scale)

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        numbers, features = len(self.numbers), (0, len(self.names))
        if len(self.fill) != numbers or len(self.center) != len(self.scale):
            raise ValueError("fill, center or scale has another length")
        if len(self.scale) not in features or max(self.indicated, default=0) >= numbers:
            raise ValueError("scale has another length, or indicated a place of no number")
        return self

    def width(self, name: str) -> int:
        """Returns the numbers of a column."""
        return next(column.width for column in self.columns if column.name == name)

    def places(self) -> Iterator[tuple[EncodedColumn, int]]:
        """Yields each column with the place of its first number."""
        place = 0
        for column in self.columns:
            yield column, place
            place += column.width

    @property
    def numbers(self) -> list[EncodedColumn]:
        """The column of each number."""
        return [column for column in self.columns for _ in range(column.width)]

    @property
    def names(self) -> list[str]:
        """Names of the features."""
        names = []
        for column in self.columns:
            if column.categories is not None:
                names += [f"{column.name}={category}" for category in column.categories]
            elif column.width == 1:
                names.append(column.name)
            else:
                names += [f"{column.name}[{place}]" for place in range(column.width)]
        numbers = self.numbers
        return names + [f"{numbers[place].name} is missing" for place in self.indicated]

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """Returns feature vectors.

        Args:
            numbers: `[..., numbers]`, nan where one is missing.
        """
        missing = np.isnan(numbers)
        filled = np.where(missing, self.fill, numbers).astype(np.float32)
        parts = []
        for column, place in self.places():
            if column.categories is None:
                parts.append(filled[..., place : place + column.width])
            else:
                levels = np.arange(1, len(column.categories) + 1)
                parts.append((filled[..., place, None] == levels).astype(np.float32))
        parts.append(missing[..., self.indicated].astype(np.float32))
        vectors = np.concatenate(parts, axis=-1)
        if not self.is_standardized:
            return vectors
        return (vectors - np.array(self.center, np.float32)) * np.array(self.scale, np.float32)


class FeatureVectors(DerivedColumn):
    """The feature vectors of documents, encoded where they are read.

    Args:
        encoder: Makes them of the numbers of columns.
        schema: Declarations of the columns.
        recoded: Numbers in training of the packed numbers of categories, by column.
    """

    def __init__(
        self,
        encoder: Encoder,
        schema: Mapping[str, Column],
        recoded: Mapping[str, np.ndarray] | None = None,
    ):
        self.encoder, self.is_standardized = encoder, encoder.is_standardized
        self.column = Column(FEATURES, np.float32, shape=(len(encoder.names),))
        self._recoded = recoded or {}
        self._per_document = {
            column.name: schema[column.name].per_document for column in encoder.columns
        }
        self.reads = ("query_doc_ids", *self._per_document)

    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        """Returns the vectors of the documents, `[sessions, ranks, features]`."""
        return self.encoder.encode(self.numbers(packed))

    def numbers(self, packed: Columns) -> np.ndarray:
        """Returns the numbers that vectors are made of, `[sessions, ranks, numbers]`, nan where one is missing."""
        shape = packed["query_doc_ids"].shape
        parts = []
        for column in self.encoder.columns:
            values = packed[column.name]
            if column.name in self._recoded:
                values = self._recoded[column.name][values.astype(np.int64, copy=False)]
            values = values if self._per_document[column.name] else values[:, None]
            values = values.astype(np.float32).reshape(*values.shape[:2], column.width)
            parts.append(np.broadcast_to(values, (*shape, column.width)))
        return np.concatenate(parts, axis=-1)

    def bounds(self) -> tuple[int, int]:
        """Vectors have none."""
        return 0, 0


class Recoded(DerivedColumn):
    """A column of categories by their numbers in training, in place of those in the log.

    Args:
        column: Its declaration.
        table: The number in training of each one in the log; 0 where training does not show it.
        categories: Names of the categories that training shows.
    """

    def __init__(self, column: Column, table: np.ndarray, categories: Names):
        self.column, self.reads, self._table = column, (column.name,), table
        self.categories = categories

    def compute(self, packed: Columns, rows: Rows) -> np.ndarray:
        """Returns the numbers in training; DamagedError for one that no category has."""
        numbers = packed[self.column.name]
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self._table):
            raise DamagedError(f"{self.column.name} holds numbers that are no categories", REMEDY)
        return self._table[numbers]

    def bounds(self) -> tuple[int, int]:
        """Returns 0 and the largest number in training, which another log need not show."""
        return 0, len(self.categories)


class Encoding(_Stated):
    """Numbers learned of the training sessions to encode columns.

    Attributes:
        categories: Names of the categories that training shows, by column.
        features: Makes feature vectors, where there are any.
    """

    categories: dict[str, Names] = {}
    features: Encoder | None = None

    @classmethod
    def fit(
        cls, train: Sessions, categories: Mapping[str, Names], settings: FeatureSettings | None
    ) -> "Encoding":
        """Learns an encoding.

        Args:
            train: The training sessions.
            categories: Names of the categories of the log, by column.
            settings: What feature vectors are made of.

        Raises:
            DataError: A column is missing in all training documents, or has too many categories.
        """
        train = _with_stored(train, settings)
        shown = _shown(train, categories)
        encoding = cls(categories=shown)
        if settings is None:
            return encoding
        return cls(categories=shown, features=_fitted(train, encoding, categories, settings))

    @classmethod
    def read(cls, file: Path) -> "Encoding":
        """Reads what a run has kept.

        Raises:
            DataError: The file is damaged.
        """
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{file} is damaged. Run the experiment again.") from error

    def grown(
        self, train: Sessions, categories: Mapping[str, Names], settings: FeatureSettings | None
    ) -> "Encoding":
        """Returns the encoding with the categories that it does not have yet behind its own; features stay as they are.

        Args:
            train: The training sessions of a log that goes on.
            categories: Names of the categories of the log, by column.
            settings: What feature vectors are made of.
        """
        both = {
            name: list(dict.fromkeys([*self.categories.get(name, ()), *names]))
            for name, names in _shown(_with_stored(train, settings), categories).items()
        }
        return self.model_copy(update={"categories": both})

    @property
    def unknown_to_features(self) -> dict[str, Names]:
        """Names of the categories of logs that go on, of which feature vectors know nothing, by column."""
        columns = [] if self.features is None else self.features.columns
        more = {
            column.name: self.categories[column.name][len(column.categories) :]
            for column in columns
            if column.categories is not None
        }
        return {name: names for name, names in more.items() if names}

    def applied(self, sessions: Sessions, categories: Mapping[str, Names]) -> Sessions:
        """Returns sessions with encoded columns.

        Args:
            sessions: Some sessions of a log.
            categories: Names of the categories of the log, by column.
        """
        tables = {name: self._table(name, names) for name, names in categories.items()}
        derived: list[DerivedColumn] = [
            Recoded(sessions.schema[name], table, self.categories.get(name, []))
            for name, table in tables.items()
            if name in sessions.columns
        ]
        if self.features is not None and sessions.features is None:
            derived.append(FeatureVectors(self.features, sessions.schema, tables))
        return sessions.replacing(*derived)

    def stored(self, features: Features, categories: Mapping[str, Names]) -> Features:
        """Returns the feature vectors of ids, where a log stores the numbers that they are made of.

        Args:
            features: What it stores.
            categories: Names of the categories of the log, by column.
        """
        if self.features is None:
            return features
        encoder = self.features
        stored = _stored_columns(
            {column.name: column.width for column in encoder.columns}, features
        )
        schema = {name: lookup.column for name, lookup in stored.items()}
        tables = {name: self._table(name, names) for name, names in categories.items()}
        reader = FeatureVectors(encoder, schema, tables)
        values = features.values
        vectors = np.zeros((len(values), len(encoder.names)), values.dtype)
        for rows in blocks(len(values), _BLOCK):
            packed = {name: lookup.table[rows][None] for name, lookup in stored.items()}
            ids = np.arange(*rows.indices(len(values)))
            numbers = reader.numbers({"query_doc_ids": ids[None], **packed})[0]
            block = encoder.encode(numbers)
            if encoder.missing is None:  # documents of another log, which have no vector
                block[np.isnan(numbers).all(axis=1)] = np.nan
            vectors[rows] = block
        vectors[0] = 0
        return Features(vectors, features.location, encoder.is_standardized)

    def _table(self, column: str, names: Sequence[int | str]) -> np.ndarray:
        """Returns the number here of each category of a log, from that of none."""
        numbers = {name: number for number, name in enumerate(self.categories.get(column, ()), 1)}
        return np.array([0, *(numbers.get(name, 0) for name in names)], np.int32)


def _stored_columns(widths: Mapping[str, int], stored: Features) -> dict[str, LookedUp]:
    """Returns columns by name of which a log stores the numbers of each id beside each other, so many of each."""
    lookups, place = {}, 0
    for name, width in widths.items():
        numbers = stored.values[:, place : place + width]
        column = Column(name, numbers.dtype, shape=(width,))
        lookups[name] = LookedUp(column, partial(np.asarray, numbers))
        place += width
    return lookups


def _with_stored(sessions: Sessions, settings: FeatureSettings | None) -> Sessions:
    """Returns the sessions with the columns that a log stores by id, of which one may be a vector."""
    if settings is None or sessions.features is None:
        return sessions
    rest = sessions.features.values.shape[1] - len(settings.columns)
    widths = {name: 1 + rest * (name == FEATURES) for name in settings.columns}
    return sessions.replacing(*_stored_columns(widths, sessions.features).values())


def _shown(train: Sessions, categories: Mapping[str, Names]) -> dict[str, Names]:
    """Returns names of the categories that training sessions show, by column."""
    shown = {}
    for name, names in categories.items():
        if name not in train.schema:
            what = (
                f"{train.folder or 'sessions'}: there are categories of {name}, and no such column"
            )
            raise DamagedError(what, REMEDY)
        by_chunk = [np.unique(chunk.of_documents(name)) for chunk in train.chunks()]
        numbers = np.unique(np.concatenate(by_chunk)).astype(np.int64)
        if len(numbers) and not 0 <= numbers[0] <= numbers[-1] <= len(names):
            what = f"{train.folder or 'sessions'}: {name} holds numbers that are no categories"
            raise DamagedError(what, REMEDY)
        shown[name] = [names[number - 1] for number in numbers if number]
    return shown


def _fitted(
    train: Sessions,
    encoding: Encoding,
    categories: Mapping[str, Names],
    settings: FeatureSettings,
) -> Encoder:
    columns = [_encoded(train.schema[name], encoding) for name in settings.columns]
    width = sum(column.width for column in columns)
    plain = Encoder(columns=columns, fill=[0.0] * width)
    tables = {name: encoding._table(name, names) for name, names in categories.items()}
    reader = FeatureVectors(plain, train.schema, tables)
    counts, total = np.zeros((2, width))
    for values in _documents(train, reader):
        counts += np.isfinite(values).sum(axis=0)
        total += np.nansum(values, axis=0, dtype=np.float64)
    for column, count in zip(plain.numbers, counts, strict=True):
        if not count:
            raise DataError(
                f"{column.name} is missing in all training documents. Leave it out of features."
            )
    is_category = np.array([column.categories is not None for column in plain.numbers])
    with_mean = settings.missing in ("mean", "indicator")
    fill = np.where(is_category, 0.0, total / counts if with_mean else 0.0)
    indicated = np.flatnonzero((counts < train.documents) & ~is_category)
    encoder = Encoder(
        columns=columns,
        missing=settings.missing,
        fill=fill.tolist(),
        indicated=indicated.tolist() if settings.missing == "indicator" else [],
    )
    return _standardized(train, reader, encoder) if settings.standardize else encoder


def _encoded(column: Column, encoding: Encoding) -> EncodedColumn:
    name = column.name
    categories = encoding.categories.get(name)
    if categories is not None and len(categories) > _MOST_INDICATORS:
        raise DataError(
            f"{name} has {len(categories):,} categories in training, too many for features. Leave it out of features, "
            f"and read it by another tower, such as attraction=embedding attraction.use_feature={name}."
        )
    return EncodedColumn(name=name, width=column.numbers, categories=categories)


def _documents(sessions: Sessions, vectors: FeatureVectors) -> Iterator[np.ndarray]:
    """Yields the numbers of the documents shown, `[documents, numbers]`."""
    for rows in blocks(sessions.count, _SESSIONS):
        numbers = vectors.numbers(sessions.rows(rows, vectors.reads))
        yield numbers[sessions.chunk(rows.start, rows.stop).shown]


def _standardized(train: Sessions, reader: FeatureVectors, encoder: Encoder) -> Encoder:
    """Returns the encoder with means and standard deviations of its numbers; those that are all 0 or 1 stay so."""
    width = len(encoder.names)
    total, square = np.zeros((2, width))
    binary, count = np.ones(width, bool), 0
    for numbers in _documents(train, reader):
        vectors = encoder.encode(numbers).astype(np.float64)
        total += vectors.sum(axis=0)
        binary &= ((vectors == 0) | (vectors == 1)).all(axis=0)
        count += len(vectors)
    center = np.where(binary, 0.0, total / count)
    for numbers in _documents(train, reader):
        square += ((encoder.encode(numbers) - center) ** 2).sum(axis=0)
    deviation = np.sqrt(square / count)
    first = next(_documents(train, reader))[:_SAMPLE]
    _warn_of_outliers(encoder.names, encoder.encode(first), deviation)
    # the inverse would be beyond single precision
    is_constant = deviation < np.finfo(np.float32).tiny
    scale = np.where(binary | is_constant, 1.0, 1 / np.where(is_constant, 1.0, deviation))
    return encoder.model_copy(update={"center": center.tolist(), "scale": scale.tolist()})


def _warn_of_outliers(names: Sequence[str], vectors: np.ndarray, deviation: np.ndarray) -> None:
    """Warns of features that a few values far out leave alike for all other documents.

    Args:
        names: Of the features.
        vectors: Features of some documents, before they are standardised.
        deviation: Standard deviations, over all documents.
    """
    low, high = np.quantile(vectors, (0.25, 0.75), axis=0)
    middle = high - low
    is_flat = (middle > 0) & (middle < _ALIKE * deviation)
    for place in np.flatnonzero(is_flat).tolist():
        _messages.warning(
            "%s: the middle half of the documents is within %.3g, and the standard deviation is %.3g. A few values far "
            "out make all other documents alike, once it is standardised. Correct or clip these, or take the logarithm",
            names[place],
            middle[place],
            deviation[place],
        )
