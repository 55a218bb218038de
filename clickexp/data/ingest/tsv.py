"""Text of separated integers as arrays, without any Python per line.

30 MB of result pages in blocks of 1 MB take 0.27 s and 4 MB; read by polars as one wide table, 0.34 s and 15 MB, and
its integers may have signs, which need a further check.
"""

import re
from typing import NamedTuple

import numpy as np

TAB, NEWLINE = 9, 10
MAX_DIGITS = 18
EIGHT_ZEROS = b"00000000"


class Fields(NamedTuple):
    """The fields of all lines one after the other; line i has fields first[i] .. last[i].

    Attributes:
        values: `[fields]` int64, meaningless where not good.
        good: `[fields]`, whether the field is 1 to 18 decimal digits.
        starts: `[fields]`, first byte in the text.
        lengths: `[fields]`, in bytes.
        first: `[lines]`, number of the first field.
        last: `[lines]`, number of the last field.
    """

    values: np.ndarray
    good: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """[lines] fields of each line; an empty line has one, of length 0."""
        return self.last - self.first + 1

    @property
    def ends(self) -> np.ndarray:
        """[lines] where the newline of each line is."""
        return self.starts[self.last] + self.lengths[self.last]

    def lines_of(self, fields: np.ndarray) -> np.ndarray:
        """The lines that these fields are in."""
        return np.searchsorted(self.last, fields)

    def words(self, text: bytes, line: int) -> list[str]:
        """The fields of a line as text, bytes that are not UTF-8 as backslash escapes."""
        whole = text[self.starts[self.first[line]] : self.ends[line]]
        return whole.decode("utf-8", "backslashreplace").split("\t")


def tab_separated(text: bytes) -> Fields:
    """The fields of a text that ends in a newline, or is empty."""
    characters = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((characters == TAB) | (characters == NEWLINE))
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts
    last = np.flatnonzero(characters[ends] == NEWLINE)
    first = np.empty_like(last)
    first[:1] = 0
    first[1:] = last[:-1] + 1
    values, good = _integers(text, ends, lengths)
    return Fields(values, good, starts, lengths, first, last)


def not_integer(words: list[str]) -> str:
    """The message about the first of these fields that is not good."""
    word = next(word for word in words if not re.fullmatch(rf"[0-9]{{1,{MAX_DIGITS}}}", word))
    return f"{word[:40]!r} is not an integer of 1 to {MAX_DIGITS} digits"


def _integers(text: bytes, ends: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers that end before these bytes, and which fields are numbers."""
    words = np.ndarray(
        len(text) + 1, "<u8", EIGHT_ZEROS + text, strides=1
    )  # the eight bytes before each byte
    values, good = _eight_digits(words[ends], lengths)
    good &= (lengths > 0) & (lengths <= MAX_DIGITS)
    for done in (8, 16):
        long = np.flatnonzero(lengths > done)
        if long.size:
            more, digits = _eight_digits(words[ends[long] - done], lengths[long] - done)
            values[long] += more * np.uint64(10**done)
            good[long] &= digits
    return values.view(np.int64), good


def _eight_digits(words: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers in the last `lengths` bytes of these words, at most all eight; and which are digits only.

    The first of eight characters is the lowest byte. Neighbours are joined in three steps, each over half as many
    numbers of twice as many digits: ab, cd, ef, gh; abcd, efgh; abcdefgh.
    """
    unused = (8 * (8 - np.clip(lengths, 1, 8))).astype(np.uint64)
    digits = ((words ^ np.uint64(0x3030303030303030)) >> unused) << unused
    # A byte of 10 or more reaches its highest bit by 0x76, or has it already.
    high = (digits + np.uint64(0x7676767676767676)) | digits
    good = high & np.uint64(0x8080808080808080) == 0
    for bits, lower in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        mask, power = np.uint64(lower), np.uint64(10 ** (bits // 8))
        digits = (digits & mask) * power + ((digits >> np.uint64(bits)) & mask)
    return digits, good
