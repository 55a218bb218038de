"""Pieces of a log that are written to disk while it is read, and read back once."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

_Piece = TypeVar("_Piece")


class Spool(Generic[_Piece]):
    """Pieces in a file, in the order in which they came; the file is gone when they have been read back.

    Args:
        file: The file, which only this process writes and reads.
    """

    def __init__(self, file: Path):
        self._file = file

    def append(self, piece: _Piece) -> None:
        """Adds a piece. The file is open meanwhile only, since there may be many."""
        with self._file.open("ab") as out:
            pickle.dump(piece, out, pickle.HIGHEST_PROTOCOL)

    def __iter__(self) -> Iterator[_Piece]:
        if not self._file.exists():
            return
        with self._file.open("rb") as pieces:
            self._file.unlink()
            size = pieces.seek(0, 2)
            pieces.seek(0)
            while pieces.tell() < size:
                yield pickle.load(pieces)  # noqa: S301  # written by this process
