"""The columns of tables that feature vectors are made of, and those of categories, which get numbers."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from clickexp.data.encoding import FEATURES, FeatureSettings, Missing, Names
from clickexp.data.id_table import IdTable
from clickexp.data.ingest.columns import Field
from clickexp.data.ingest.faults import FILLS_FEATURES
from clickexp.data.ingest.lists import Lists, Values
from clickexp.data.ingest.source_table import SourceTable
from clickexp.data.ingest.tables import batches_of
from clickexp.data.ingest.text_table import TextTable
from clickexp.data.ingest.vectors import VECTORS
from clickexp.data.log_writer import LogWriter
from clickexp.data.names import keys_of
from clickexp.data.schema import CATEGORY, COLUMNS, Column, Remedy, SourceLocation
from clickexp.errors import DataError

_ANY = Field("iufbU", "features are numbers, true or false, or text")
_NUMBERS = (
    "features are finite numbers, true or false; text is declared: {name}={{dtype: category}}"
)
_MOST_NAMES = 1 << 20
"""Categories of a column, at most."""


def _vector_width(tables: Sequence[SourceTable], key: str) -> int:
    """Returns the length of the first vector of a column.

    Raises:
        DataError: There is none, or it is empty.
    """
    for batch in batches_of(tables, keys=[key]):
        values = batch.columns[key]
        values = values.explode() if tables[0].fields[key].per_document else values
        if len(values := values.drop_nulls()):
            width = len(values[0])
            if width:
                return width
            raise batch.location.error(f"{key} has a vector of 0 numbers", VECTORS.rule, 0)
    raise tables[0].source.error(f"{key} has no vectors", "leave the column out with null")


def _check_names(names: Sequence[str], declared: Collection[str], taken: Collection[str]) -> None:
    """DataError for the name of a column that is none of a feature."""
    for name in names:
        if name != FEATURES and (name in taken or name in COLUMNS):
            raise DataError(
                f"features has {name}, which is no feature: documents to rank do not have it. Leave it out."
            )
        if name not in declared:
            _check_name(name)


def _check_name(name: str) -> None:
    """DataError for a name that is none of letters and digits."""
    if not name.isidentifier():
        key = re.sub(r"\W+", "_", name.rpartition(".")[2]).strip("_") or "feature"
        raise DataError(
            f"features has {name!r}, which is no name of letters and digits. Give it one: features=[{key}] "
            f"'columns.{key}={{dtype: float32, name: {name}}}', or dtype: category of text."
        )


class FeatureForm(NamedTuple):
    """Options of readers on feature vectors of documents.

    Attributes:
        features: Columns that vectors are made of: numbers, true and false, categories, and vectors; None takes
            `query_doc_features`, a list of numbers per document, where files have it.
        missing: What stands for a missing feature: "mean", "zero", or "indicator", the mean and a further feature that
            says so; None refuses it.
        standardize: Whether numbers get mean 0 and standard deviation 1 over the training documents.
    """

    features: Sequence[str] | None = None
    missing: Missing | None = None
    standardize: bool = True


class FeatureColumns:
    """Columns that a reader takes for feature vectors, besides those that are declared.

    Args:
        form: Options on vectors.
        declared: Declared columns by name.
        taken: Names that mean something else.
        by_row: Whether a row is a document.

    Raises:
        DataError: A name is no column that vectors are made of.
    """

    def __init__(
        self,
        form: FeatureForm,
        declared: Mapping[str, Column],
        taken: Collection[str],
        *,
        by_row: bool,
    ):
        features = form.features
        names = [] if features is None else list(features)
        _check_names(names, declared, taken)
        if len({*names}) < len(names) or features == []:
            raise DataError(f"features is {names}. Give names of columns, each of them once.")
        self._given, self._form = features, form
        self._by_row = by_row
        self._declared = dict(declared)
        self.free = [name for name in names if name not in declared and name != FEATURES]
        self.columns: dict[str, Column] = {}
        self._made: list[str] = []
        self._ids: dict[str, IdTable] = {}
        self._names: dict[str, Names] = {}

    @property
    def required(self) -> tuple[str, ...]:
        """Names of columns that files must have."""
        return () if self._given is None else tuple(self._given)

    def fields(self) -> dict[str, Field]:
        """Returns what columns of files are taken for until their kinds are known."""
        fields = {**dict.fromkeys(self.free, _ANY), FEATURES: VECTORS}
        return {
            name: field._replace(per_document=not self._by_row) for name, field in fields.items()
        }

    def names(self, names: Mapping[str, str | None]) -> dict[str, str | None]:
        """Returns the names of columns in files, with those of features."""
        free = {name: name for name in self.free}
        is_read = self._given is None or FEATURES in self._given
        return {**free, **names, **({} if is_read else {FEATURES: None})}

    def declare(self, tables: Sequence[SourceTable]) -> dict[str, Column]:
        """Returns the declarations of declared columns, and of those that vectors are made of, as the files have them.

        Text is a category where files distinguish it from numbers.
        """
        present, is_text = tables[0].columns, isinstance(tables[0], TextTable)
        vectors = (FEATURES,) if FEATURES in present else ()
        self._made = [*(vectors if self._given is None else self._given)]
        self.columns = dict(self._declared)
        for name in self.free:
            kind = tables[0].layout[name]
            rule = Remedy(
                _NUMBERS.format(name=f"columns.{name}"),
                {f"columns.{name}": f"{{dtype: {CATEGORY}}}"},
            )
            is_category = kind == "text" and not is_text
            self.columns[name] = (
                Column(name, CATEGORY) if is_category else Column(name, np.float32, rule=rule)
            )
        if FEATURES in self._made:
            width = _vector_width(tables, FEATURES)
            self.columns[FEATURES] = Column(FEATURES, np.float32, shape=(width,), rule=VECTORS.rule)
        for name in self._made:
            column = self.columns[name]
            if self._form.missing is None:
                options = column.rule.options if isinstance(column.rule, Remedy) else {}
                rule = Remedy(f"{column.rule}; {FILLS_FEATURES}", options)
                self.columns[name] = replace(column, rule=rule)
            else:
                with_nan = column if column.is_category else _with_nan(column)
                self.columns[name] = replace(with_nan, nan=True)
        return self.columns

    def encoded(self, lists: Lists, log: LogWriter, location: SourceLocation) -> Lists:
        """Returns lists with numbers in place of categories; the log counts missing features and categories."""
        documents, sessions = dict(lists.documents), dict(lists.sessions)
        for name, column in self.columns.items():
            values = documents if column.per_document else sessions
            if column.is_category:
                values[name] = self._numbered(name, pl.Series(values[name]), location)
            if column.nan or (column.is_category and column.missing is not None):
                log.note(f"missing_{name}", _missing(values[name], column))
        return replace(lists, documents=documents, sessions=sessions)

    def finish(self, log: LogWriter) -> None:
        """Tells the log what vectors are made of, and the names of categories."""
        log.categories = dict(self._names)
        if self._made:
            log.features_of = FeatureSettings(
                columns=self._made,
                missing=self._form.missing,
                standardize=self._form.standardize,
            )

    def _numbered(self, name: str, values: pl.Series, location: SourceLocation) -> np.ndarray:
        table, names = self._ids.setdefault(name, IdTable()), self._names.setdefault(name, [])
        is_category = values.is_not_null() & (values.cast(pl.String) != "")
        categories = values.filter(is_category)
        ids = table.ids(keys_of(categories))
        new = ids > len(names)
        if new.any():
            _, first = np.unique(ids[new], return_index=True)
            names += categories.filter(new)[first].to_list()
        if len(names) > _MOST_NAMES:
            what = f"{name} has more than {_MOST_NAMES:,} categories"
            raise location.error(what, "number them from 0, and declare the column as int32")
        numbers = np.zeros(len(values), np.int32)
        numbers[is_category.to_numpy()] = ids
        return numbers


def _with_nan(column: Column) -> Column:
    """Returns a column of numbers that can hold nan: floats; of 32 bits, which hold integers up to 16777216."""
    if np.dtype(column.dtype).kind == "f":
        return column
    return replace(column, dtype=np.float32, rule="")


def _missing(values: Values, column: Column) -> int:
    numbers = np.asarray(values)
    return int((numbers == 0).sum() if column.is_category else np.isnan(numbers).sum())
