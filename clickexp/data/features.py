"""Feature vectors of documents: stored once per document, looked up where a batch needs them."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clickexp.data.arrays import map_array
from clickexp.data.schema import SourceLocation
from clickexp.utils.blocks import blocks

if TYPE_CHECKING:
    import jax

_LOCATION = SourceLocation("features")
_BLOCK = 1 << 14
"""Rows that are hashed at a time."""


class Features:
    """One feature vector [features] for each id; row 0 belongs to padding.

    Args:
        values: `[rows, features]` float16 or float32, in memory or mapped from a file.
        location: Source of the values, for errors.
        is_standardized: Whether they are standardised.
        crc32: Checksum of the values, if it is known.

    Raises:
        DataError: The values have another shape or type.
    """

    def __init__(
        self,
        values: np.ndarray,
        location: SourceLocation = _LOCATION,
        is_standardized: bool = False,
        crc32: int | None = None,
    ):
        if values.ndim != 2 or values.dtype not in (np.float16, np.float32):
            what = f"the array is {values.dtype}{list(values.shape)}"
            raise location.error(what, "features are float16 or float32, one row per document")
        self.values, self.location, self.is_standardized = values, location, is_standardized
        self.crc32 = crc32

    @classmethod
    def open(cls, file: str | Path, crc32: int | None = None) -> "Features":
        """Maps a .npy file, without reading it."""
        return cls(map_array(Path(file)), SourceLocation(str(file)), crc32=crc32)

    @cached_property
    def fingerprint(self) -> bytes:
        """A hash of all values, or of their checksum where it is known."""
        digest = hashlib.sha256(f"{self.values.dtype}{self.values.shape}{self.crc32}".encode())
        for part in blocks(0 if self.crc32 is not None else len(self.values), _BLOCK):
            digest.update(np.ascontiguousarray(self.values[part]).data)
        return digest.digest()

    def check_rows(self, rows: int) -> None:
        """DataError unless there are that many rows."""
        if len(self.values) < rows:
            remedy = "give one row for each id from 0 to the largest"
            raise self.location.error(f"{len(self.values)} feature vectors for {rows} ids", remedy)

    def renumbered(self, ids: np.ndarray, rows: int) -> "Features":
        """Returns the vectors by other ids; documents without a vector have nan, which no model takes for one.

        Args:
            ids: The new id of each row; 0 leaves it out.
            rows: Rows of the result.
        """
        values = np.full((rows, self.values.shape[1]), np.nan, self.values.dtype)
        values[0] = self.values[0]
        kept = np.flatnonzero(ids)
        values[ids[kept]] = self.values[kept]
        return Features(values, self.location)

    @cached_property
    def on_device(self) -> "jax.Array":
        """The vectors on the accelerator; on a CPU the same memory, also where it is a mapped file."""
        import jax  # here: logs are prepared and verified without it

        return jax.device_put(self.values, may_alias=True)
