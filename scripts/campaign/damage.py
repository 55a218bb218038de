"""Damage to files and values, drawn from random numbers."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXTS = (
    "", " ", "0", "-1", "1.5", "nan", "inf", "-inf", "1e400", "1e38", "2147483647", "2147483648",
    "9223372036854775808", "99999999999999999999999", "true", "null", "None", "[]", "[1", "[[1]]", "{}", "\"", "'",
    "\0", "\ufeff", "\x1b[2J", "\u202e", "é", "📈", "../../etc", "/dev/null", "=1+1", "${seed}",
    "!!python/name:os.system",
    "x" * 10_000, "1 2 3", "1,2,3", "0x10", "1_000", "٣", "²",
)  # fmt: skip
"""What a cell, a key or an argument may hold by mistake or by intent."""
VALUES = (
    None, True, False, 0, -1, 1, 2, 10**40, 2**31, 1.5, -0.5, float("nan"), float("inf"), 1e38, "", "x", "1", [], {},
    [1], [[1]], {"a": 1}, "x" * 5_000, {"_target_": "os.system"}, [None], ["x", 1], -(2**63),
)  # fmt: skip
"""The same, of documents in JSON or YAML."""


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Returns bytes with one fault of a disk, a network or an editor."""
    start = rng.randrange(len(data) + 1)
    stop = min(start + rng.choice((1, 4, 100, 5000)), len(data))
    block = data[start:stop]
    noise = rng.randbytes(max(len(block), 1))
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: data[:start] + noise + data[stop:],
        lambda: data[:start] + bytes(len(block)) + data[stop:],
        lambda: data[:start] + data[stop:],
        lambda: data[:start] + block + block + data[stop:],
        lambda: data[:start] + noise + data[start:],
        lambda: data[:start] + rng.choice(TEXTS).encode() + data[stop:],
        lambda: data[:start],
        lambda: data[start:],
        lambda: noise,
        lambda: b"",
        lambda: data.replace(b"\n", b"\r\n"),
        lambda: data.replace(b"\n", b""),
        lambda: b"\xef\xbb\xbf" + data,
        lambda: data + data,
        lambda: data.decode("latin-1").encode("utf-16"),
    )
    return rng.choice(kinds)()


def damage_bytes(file: Path, rng: random.Random) -> None:
    """Damages the content of a file."""
    file.write_bytes(damaged(file.read_bytes(), rng))


def damage_document(content: Any, rng: random.Random) -> Any:
    """Returns a document, as of JSON, of which one value is another, gone, or there twice."""
    if not isinstance(content, dict | list) or not content or rng.random() < 0.1:
        return rng.choice(VALUES)
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = rng.choice(keys)
    copy = content.copy()
    if rng.random() < 0.15:
        del copy[key]
    else:
        copy[key] = damage_document(content[key], rng)
    return copy
