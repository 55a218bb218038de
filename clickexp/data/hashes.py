"""Hashes of sessions: which test sets are the same, and which sessions train a model equally."""

import hashlib

import numpy as np

from clickexp.data.view import ColumnsView

_SAMPLE = 50_000
"""Sessions that are read at either end of a log."""


def digest_of(view: ColumnsView) -> str:
    """Returns a hash of what was seen and clicked; see `Sessions.digest`."""
    digest = hashlib.sha256(str(view.count).encode())
    for start in sorted({0, max(view.count - _SAMPLE, 0)}):
        columns = view.chunk(start, start + _SAMPLE)
        digest.update(columns["lengths"].astype("<i4").tobytes())
        digest.update(columns["clicks"].astype(bool)[columns.shown].tobytes())
        if "labels" in columns:
            digest.update(columns["labels"].astype("<f4")[columns.shown].tobytes())
    return digest.hexdigest()[:16]


def fingerprint_of(view: ColumnsView) -> str:
    """Returns a hash of all that training may read; see `Sessions.fingerprint`."""
    sums = None if view.checksums is None else dict(view.checksums)
    bounds = view.count, view.query_doc_pairs, view.positions
    digest = hashlib.sha256(repr((*bounds, sums)).encode())
    last = max(view.count - _SAMPLE, 0)
    starts = range(0, view.count, _SAMPLE) if sums is None else sorted({0, last})
    for start in starts:
        for name, values in sorted(view.rows(slice(start, start + _SAMPLE)).items()):
            content = np.ascontiguousarray(values).tobytes()
            digest.update(f"{name}{values.dtype}{values.shape}".encode() + content)
    if view.features is not None:
        digest.update(view.features.fingerprint)
    return digest.hexdigest()[:16]
