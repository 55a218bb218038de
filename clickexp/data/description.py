"""log.json: what a prepared log holds, with the checksums of all its files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clickexp.data.arrays import UNREADABLE, array_bytes, map_array
from clickexp.data.checksums import REMEDY, DamagedError, Stored, sealed, unsealed
from clickexp.data.schema import COLUMNS, REQUIRED, Column
from clickexp.errors import reason

LOG, FEATURES, NAMES = "log.json", "features.npy", "names.parquet"
SPLIT = ("train", "val", "test")
_VERSION = 1
_PARTS = ("sessions", *SPLIT, "ranking")
_SIZES = ("count", "ranks", "query_doc_pairs", "positions")


@dataclass(frozen=True)
class PartDescription:
    """A part of a prepared log: a folder with a .npy file per column.

    Attributes:
        count: Sessions.
        ranks: Documents that a list has room for.
        query_doc_pairs: Largest id of a document.
        positions: Largest position.
        schema: Declaration of each column by name.
        crc32: Checksum of each column.
    """

    count: int
    ranks: int
    query_doc_pairs: int
    positions: int
    schema: Mapping[str, Column]
    crc32: Mapping[str, int]

    @classmethod
    def read(cls, stated: Mapping[str, Any]) -> "PartDescription":
        """Reads what `stated` returned; it raises one of UNREADABLE for anything else."""
        declared = {
            name: Column(name, **{**options, "shape": tuple(options["shape"])})
            for name, options in stated["columns"].items()
        }
        crc32 = {name: int(crc) for name, crc in stated["crc32"].items()}
        schema = {name: declared[name] if name in declared else COLUMNS[name] for name in crc32}
        if missing := {*REQUIRED} - crc32.keys():
            raise ValueError(f"it lacks the columns {sorted(missing)}")
        return cls(*(int(stated[key]) for key in _SIZES), schema=schema, crc32=crc32)

    def stated(self) -> dict[str, Any]:
        """Returns it in types of JSON."""
        declared = {name: column for name, column in self.schema.items() if name not in COLUMNS}
        sizes = {key: getattr(self, key) for key in _SIZES}
        columns = {name: _options(column) for name, column in declared.items()}
        return {**sizes, "columns": columns, "crc32": dict(self.crc32)}

    def files(self, folder: Path) -> list[Stored]:
        """Returns the files of the part in its folder."""
        return [
            Stored(
                folder / f"{name}.npy",
                array_bytes(column.dtype, column.shape_of(self.count, self.ranks)),
                self.crc32[name],
            )
            for name, column in self.schema.items()
        ]

    def map_columns(self, folder: Path) -> dict[str, np.ndarray]:
        """Maps the columns of the part in its folder.

        Raises:
            DamagedError: A file cannot be read, or has another size, shape or type.
        """
        columns = {}
        for name, column in self.schema.items():
            file = folder / f"{name}.npy"
            values, shape = map_array(file), column.shape_of(self.count, self.ranks)
            if values.shape != shape or values.dtype != column.dtype:
                what = f"it is {values.dtype}{list(values.shape)}, not {column.dtype}{list(shape)}"
                raise DamagedError(f"{file}: {what}", REMEDY)
            columns[name] = values
        return columns


@dataclass(frozen=True)
class Description:
    """A prepared log.

    Attributes:
        name: Name in results.
        format: Name of the reader.
        notes: Counts that the reader reports.
        parts: "sessions", or "train", "val" and "test"; "ranking".
        files: Size and checksum of each further file.
    """

    name: str
    format: str
    notes: Mapping[str, int | str]
    parts: Mapping[str, PartDescription]
    files: Mapping[str, tuple[int, int]]

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """Reads log.json.

        Raises:
            DamagedError: There is none, or it is damaged.
        """
        file = folder / LOG
        if not is_log(folder):
            what = f"{folder}: not a prepared log, {LOG} is missing"
            raise DamagedError(what, "Run clickexp-data prepare.")
        try:
            stated = unsealed(file.read_text())
            if stated["version"] != _VERSION:
                raise ValueError(f"version {stated['version']} instead of {_VERSION}")
            names = {*stated["parts"]}
            if not (names <= {*_PARTS} and (names >= {"sessions"} or names >= {*SPLIT})):
                raise ValueError(f"parts is {sorted(names)}")
            return cls(
                str(stated["name"]),
                str(stated["format"]),
                dict(stated["notes"]),
                {name: PartDescription.read(part) for name, part in stated["parts"].items()},
                {name: (int(size), int(crc)) for name, (size, crc) in stated["files"].items()},
            )
        except UNREADABLE as error:
            why = reason(error, context=False)
            raise DamagedError(f"{file}: cannot be read ({why})", REMEDY) from error

    def write(self, folder: Path) -> None:
        """Writes log.json."""
        content = {"version": _VERSION, "name": self.name, "format": self.format}
        parts = {name: part.stated() for name, part in self.parts.items()}
        content |= {"notes": dict(self.notes), "parts": parts, "files": dict(self.files)}
        (folder / LOG).write_text(sealed(content))

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


def is_log(folder: Path) -> bool:
    """Returns whether a completed log lies there."""
    return (folder / LOG).is_file()


def _options(column: Column) -> dict[str, Any]:
    """Returns a declaration without its name, in types of JSON."""
    options = {key: getattr(column, key) for key in ("per", "fill", "least", "rule")}
    return {**options, "dtype": np.dtype(column.dtype).name, "shape": list(column.shape)}
