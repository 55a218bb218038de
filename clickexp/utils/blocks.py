"""Parts of a long axis, one after the other, for what takes too much room at once."""

from collections.abc import Iterator


def blocks(size: int, length: int) -> Iterator[slice]:
    """Yields slices of at most `length` places, from 0 up to `size`, which the last may go beyond."""
    yield from (slice(start, start + length) for start in range(0, size, length))
