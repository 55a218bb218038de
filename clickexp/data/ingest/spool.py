"""Pieces of a log that are written to disk while it is read, and read back."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

_Piece = TypeVar("_Piece")


class Spool(Generic[_Piece]):
    """Pieces in a file, in the order in which they came.

    Args:
        file: The file, which only one process writes.
    """

    def __init__(self, file: Path):
        self.file = file

    def append(self, piece: _Piece) -> None:
        """Adds a piece. The file is open meanwhile only, since there may be many."""
        with self.file.open("ab") as out:
            pickle.dump(piece, out, pickle.HIGHEST_PROTOCOL)

    def __iter__(self) -> Iterator[_Piece]:
        if not self.file.exists():
            return
        with self.file.open("rb") as pieces:
            size = pieces.seek(0, 2)
            pieces.seek(0)
            while pieces.tell() < size:
                yield pickle.load(pieces)  # noqa: S301  # written by our process
