"""Fields that readers of tables take columns for, and the option `columns`, which names and declares them."""

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import yaml

from clickexp.data.ingest.times import TimeForm
from clickexp.data.schema import COLUMNS, MADE, Column
from clickexp.errors import DataError
from clickexp.utils.bounds import OneOf

_KEYS = ("dtype", "per", "fill", "name")


Normalize = Annotated[str, OneOf("query", "document", "all")] | None
"""Whose text is read without the differences of case and of blanks."""


Decimal = Annotated[str, OneOf(",", ".")]
"""The mark of fractions in text."""


NORMALIZED = "normalized"
"""The note of a log that says so."""


class Field(NamedTuple):
    """A column of a file as a reader takes it, where it is not packed as it is.

    Attributes:
        kinds: As those of `Column`; t of times, v of vectors.
        rule: What it holds, for errors.
        per_document: Whether there is a value per document.
        fill: Value in place of those that a file lacks.
        normalize: Whether case and blanks of text make no difference.
        form: How times are written.
    """

    kinds: str
    rule: str
    per_document: bool = True
    fill: float | None = None
    normalize: bool = False
    form: TimeForm | None = None

    is_category, is_number, shape, least, words = False, False, (), None, {}  # as `Column` has them

    @property
    def missing(self) -> float | None:
        """Value in place of those that a file lacks."""
        return self.fill


Readable = Column | Field
"""A column of a file as it is read: one that is packed so, or another."""
Fields = Mapping[str, Readable]


ANY_ID = Field("iuU", "ids are integers or text")


def id_field(what: str, normalize: Normalize, per_document: bool = False) -> Field:
    """Returns how ids of any kind are read.

    Args:
        what: What they are of, "query" or "document".
        normalize: The option of a reader: of which ids text that differs by case or blanks names one.
        per_document: Whether there is one per document.
    """
    return ANY_ID._replace(per_document=per_document, normalize=normalize in (what, "all"))


_SESSIONS = "ids of search sessions are integers or text; drop the row, or leave them out: columns.search_session=null"
SEARCH_SESSION = Field("iuU", _SESSIONS, per_document=False)
_TIMES = (
    "times are finite numbers, or all are dates and times as 2014-03-01 or 2014-03-01 12:30:05; others have a "
    "time_format: time_format='%d/%m/%Y %H:%M:%S' where days come first, '%m/%d/%Y %I:%M:%S %p' where months do"
)
TIME = Field("ift", _TIMES, per_document=False, form=TimeForm())
_CLICKS = "; null_is_no_click=true takes a missing one for no click"
_GRADES = "; words have numbers by an option, such as 'grades={bad: 0, good: 1}'"


Grades = Mapping[str, float] | str | None
"""Numbers of words, or such a mapping in YAML, since Hydra's keys have ASCII letters alone."""


class ValueForms(NamedTuple):
    """Options of readers on how values are written.

    Attributes:
        time_format: That of times of text, as strptime has it: "%m/%d/%Y %I:%M:%S %p"; None for numbers and ISO 8601.
        time_zone: The zone of times that state no offset from UTC, such as Europe/Berlin; None for UTC.
        grades: Numbers of the words that labels are written as: {bad: 0, good: 1}.
        null_is_no_click: Whether a click that is missing did not happen, nor any of a list of clicks that is.
    """

    time_format: str | None = None
    time_zone: str | None = None
    grades: Grades = None
    null_is_no_click: bool = False

    def time(self) -> Field:
        """Returns how times are read; DataError for a zone that there is not."""
        form = TimeForm(self.time_format, self.time_zone)
        form.check()
        return TIME._replace(form=form)

    def clicks(self) -> Column:
        """Returns how clicks are read."""
        column = COLUMNS["clicks"]
        if self.null_is_no_click:
            return replace(column, fill=0)
        return replace(column, rule=f"{column.rule}{_CLICKS}")

    def labels(self) -> Column:
        """Returns how labels are read; DataError for a grade that is no number of a word."""
        grades: Any = self.grades or {}
        if isinstance(grades, str):
            grades = yaml.safe_load(grades)
        words, grades = {}, grades if isinstance(grades, Mapping) else {grades: None}
        for word, number in grades.items():
            is_number = isinstance(number, int | float) and math.isfinite(number)
            if not isinstance(word, str) or not is_number:
                what = f"grades has {word!r}: {number!r}"
                raise DataError(f"{what}. Give numbers of words, as 'grades={{bad: 0, good: 1}}'.")
            words[word.strip().lower()] = float(number)
        column = COLUMNS["labels"]
        return replace(column, words=words, rule=f"{column.rule}{_GRADES}")


def named_columns(
    columns: Mapping[str, Any] | None, keys: Iterable[str]
) -> tuple[dict[str, str | None], dict[str, Column]]:
    """The file's name of each column, and the extra columns by name.

    Args:
        columns: Option of a reader: {KEY: name in the file, or None to leave it out}. A key that is not known declares
            an extra column, with these defaults: {KEY: {dtype: float32, per: document, fill: None, name: KEY}}.
        keys: Those of the reader itself; they name the columns of the file too unless the option names others.

    Raises:
        DataError: A key is unknown or no text, or no column can be declared so, or only with other values in a batch.
    """
    names: dict[str, str | None] = {key: key for key in keys}
    called, declarations = {}, {}
    for key, value in (columns or {}).items():
        if not isinstance(key, str):
            raise DataError(f"columns has the key {key!r}. Keys are text; write '{key}'.")
        (declarations if isinstance(value, Mapping) else called)[key] = value
    _check_known(called, names)
    names |= called
    extra = {key: _declared(key, options, names) for key, options in declarations.items()}
    names |= {key: options.get("name", key) for key, options in declarations.items()}
    return names, extra


def _declared(key: str, options: Mapping[str, Any], names: Container[str]) -> Column:
    """The extra column that an option declares, whose key none of the reader's columns may have."""
    if key in names or key in COLUMNS:
        raise DataError(
            f"columns.{key} is {dict(options)}. Give its name in the file, or another key."
        )
    check_keys(f"columns.{key}", options, _KEYS)
    stated = {name: value for name, value in options.items() if name != "name"}
    column = Column(key, **{"dtype": "float32", **stated})
    if column.dtype != column.batch_type:
        raise DataError(
            f"columns.{key} has dtype {column.dtype}. Batches hold 32 bits: give {column.batch_type}, "
            "for ids numbered from 0, or scaled numbers."
        )
    return column


def _check_known(columns: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """DataError for a key that names no column of the reader."""
    unknown = [key for key in columns if key not in names]
    if derived := [key for key in unknown if key in MADE]:
        key, other = derived[0], f"columns.my_{derived[0]}"
        raise DataError(
            f"columns.{key}: {key} is made of the log, and names no column. To leave out documents that users did not "
            f"see, name their column by columns.seen={columns[key]}; for models to read it, give it another key: "
            f"{other}={{dtype: bool, per: document, name: {columns[key]}}}."
        )
    if unknown:
        raise DataError(
            f"columns has keys {sorted(unknown)}. The keys are {list(names)}. Another column states its type: "
            f"columns.{unknown[0]}={{dtype: float32, per: document}}; per: session where lists have one value."
        )


def check_keys(name: str, keys: Iterable[str], allowed: Iterable[str]) -> None:
    """DataError for a key of a mapping in the options that means nothing."""
    if unknown := set(keys) - set(allowed):
        raise DataError(f"{name} has keys {sorted(unknown)}. The keys are {list(allowed)}.")
