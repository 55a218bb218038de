"""Hashes of sessions: which test sets are the same, and which sessions train a model equally."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from clickexp.data.pack import read_pack

if TYPE_CHECKING:
    from clickexp.data.sessions import Sessions

SAMPLE = 50_000
"""Sessions that are read at either end of a log."""


def digest_of(sessions: "Sessions") -> str:
    """Returns a hash of what was seen and clicked; see `Sessions.digest`."""
    digest = hashlib.sha256(str(sessions.count).encode())
    for start in sorted({0, max(sessions.count - SAMPLE, 0)}):
        columns = sessions.slice(start, start + SAMPLE).rows(slice(None))
        shown = np.arange(sessions.ranks) < columns["lengths"][:, None]
        digest.update(columns["lengths"].astype("<i4").tobytes())
        digest.update(columns["clicks"].astype(bool)[shown].tobytes())
        if sessions.has_labels:
            digest.update(columns["labels"].astype("<f4")[shown].tobytes())
    return digest.hexdigest()[:16]


def fingerprint_of(sessions: "Sessions") -> str:
    """Returns a hash of all that training may read; see `Sessions.fingerprint`."""
    folder = sessions.folder
    known = read_pack(folder)[0]["crc32"] if folder and (folder / "meta.json").exists() else None
    identity = sessions.count, sessions.query_doc_pairs, sessions.positions, known
    digest = hashlib.sha256(repr(identity).encode())
    last = max(sessions.count - SAMPLE, 0)
    starts = range(0, sessions.count, SAMPLE) if known is None else sorted({0, last})
    for start in starts:
        for name, values in sorted(sessions.rows(slice(start, start + SAMPLE)).items()):
            content = np.ascontiguousarray(values).tobytes()
            digest.update(f"{name}{values.dtype}{values.shape}".encode() + content)
    if sessions.features is not None:
        values = sessions.features.values
        digest.update(f"{values.dtype}{values.shape}".encode())
        digest.update(values[:SAMPLE].tobytes() + values[-SAMPLE:].tobytes())
    return digest.hexdigest()[:16]
