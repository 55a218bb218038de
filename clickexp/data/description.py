"""log.json: what a prepared log holds, with the checksums of all its files."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)

from clickexp.data.arrays import UNREADABLE, array_bytes, map_array
from clickexp.data.checksums import REMEDY, DamagedError, Stored, sealed, unsealed
from clickexp.data.encoding import FeatureSettings, Names
from clickexp.data.records import RECORDS, columns_of, width_of
from clickexp.data.schema import CATEGORY, COLUMNS, REQUIRED, Column
from clickexp.errors import reason
from clickexp.utils.sources import is_remote

LOG, FEATURES, NAMES = "log.json", "features.npy", "names.parquet"
SPLIT = ("train", "val", "test")
MANY = 0.05
"""Share of rows or pages that is much to be left out."""
SHARE = "share_of_rows_with_faults"
"""The note of a log that is read without so many rows or more."""


def _stated(column: Column) -> dict[str, Any]:
    """Returns a declaration in types of JSON."""
    stated = {key: getattr(column, key) for key in ("name", "per", "fill", "least", "nan", "rule")}
    dtype = CATEGORY if column.is_category else np.dtype(column.dtype).name
    return {**stated, "dtype": dtype, "shape": list(column.shape)}


def _declared(stated: Column | Mapping[str, Any]) -> Column:
    if isinstance(stated, Column):
        return stated
    return Column(**{**stated, "shape": tuple(stated["shape"])})


_Column = Annotated[Column, PlainValidator(_declared), PlainSerializer(_stated)]


class PartDescription(BaseModel):
    """A part of a prepared log: a folder with a .npy file of the records of its sessions, and one per further column.

    Attributes:
        count: Sessions.
        ranks: Documents that a list has room for.
        query_doc_pairs: Largest id of a document.
        positions: Largest position.
        declared: Columns that the package does not know.
        crc32: Checksum of each file by its name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: NonNegativeInt
    ranks: NonNegativeInt
    query_doc_pairs: NonNegativeInt
    positions: NonNegativeInt
    declared: list[_Column]
    crc32: dict[str, int]

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The declaration of each column."""
        declarations = COLUMNS | {column.name: column for column in self.declared}
        return {name: declarations[name] for name in (*REQUIRED, *self._further)}

    @property
    def _further(self) -> list[str]:
        """Names of the columns that have files of their own."""
        return [name for name in self.crc32 if name != RECORDS]

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        names = {*COLUMNS, *(column.name for column in self.declared), RECORDS} - {*REQUIRED}
        if wrong := (self.crc32.keys() - names) | ({RECORDS} - self.crc32.keys()):
            raise ValueError(f"it lists, or lacks, the columns {sorted(wrong)}")
        return self

    def files(self, folder: Path) -> list[Stored]:
        """Returns the files of the part in its folder."""
        return [
            Stored(folder / f"{name}.npy", array_bytes(*stored), self.crc32[name])
            for name, stored in self.arrays.items()
        ]

    @property
    def arrays(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Type and shape of the array in each file."""
        arrays: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        arrays[RECORDS] = np.dtype(np.int32), (self.count, width_of(self.ranks))
        for name in self._further:
            column = self.columns[name]
            arrays[name] = np.dtype(column.dtype), column.shape_of(self.count, self.ranks)
        return arrays

    def map_columns(self, folder: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Maps the columns of the part in its folder, and the records that the first of them are views of.

        Raises:
            DamagedError: A file cannot be read, or has another size, shape or type.
        """
        mapped = {}
        for name, (dtype, shape) in self.arrays.items():
            file = folder / f"{name}.npy"
            values = map_array(file)
            if values.shape != shape or values.dtype != dtype:
                what = f"it is {values.dtype}{list(values.shape)}, not {dtype}{list(shape)}"
                raise DamagedError(f"{file}: {what}", REMEDY)
            mapped[name] = values
        records = mapped.pop(RECORDS)
        return columns_of(records) | mapped, records


class Description(BaseModel):
    """A prepared log.

    Attributes:
        version: Of the format.
        name: Name in results.
        format: Name of the reader.
        notes: Counts that the reader reports.
        parts: "sessions", or "train", "val" and "test"; "ranking" for labelled lists.
        files: Size and checksum of each further file.
        categories: Names of the categories of columns, by column.
        features: What feature vectors are made of, where columns make them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[2] = 2
    name: str
    format: str
    notes: dict[str, int | str]
    parts: dict[Literal["sessions", "train", "val", "test", "ranking"], PartDescription]
    files: dict[Literal["features.npy", "names.parquet"], tuple[NonNegativeInt, int]]
    categories: dict[str, Names] = {}
    features: FeatureSettings | None = None

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if "sessions" not in self.parts and not {*SPLIT} <= self.parts.keys():
            raise ValueError(f"parts is {sorted(self.parts)}")
        return self

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """Reads log.json.

        Raises:
            DamagedError: There is none, or it is damaged.
        """
        if not is_log(folder):
            what = f"{folder}: not a prepared log, {LOG} is missing"
            raise DamagedError(what, "Run clickexp-data prepare.")
        try:
            return cls.model_validate(unsealed((folder / LOG).read_text()))
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            why = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        except UNREADABLE as error:
            why = reason(error, context=False)
        raise DamagedError(f"{folder / LOG}: cannot be read ({why})", REMEDY)

    def write(self, folder: Path) -> None:
        """Writes log.json."""
        (folder / LOG).write_text(sealed(self.model_dump(mode="json")))

    def check_sizes(self, folder: Path) -> None:
        """Checks the sizes of the further files; those of arrays are checked where they are mapped.

        Raises:
            DamagedError: One has another size.
        """
        for name, (size, _) in self.files.items():
            file = folder / name
            if file.suffix != ".npy" and (not file.is_file() or file.stat().st_size != size):
                raise DamagedError(f"{file}: it has not the {size} bytes that were written", REMEDY)

    def stored(self, folder: Path) -> list[Stored]:
        """Returns all other files, with their checksums."""
        files = [Stored(folder / name, *sums) for name, sums in self.files.items()]
        for name, part in self.parts.items():
            files += part.files(folder / name)
        return files


class Numbering(NamedTuple):
    """How another log numbers documents, or categories, which those of a log get by their names.

    Attributes:
        file: That names them.
        grows: Whether others get the next numbers, and not 0.
    """

    file: Path
    grows: bool = False


def is_log(folder: Path) -> bool:
    """Returns whether a completed log lies there."""
    return not is_remote(folder) and (folder / LOG).is_file()
