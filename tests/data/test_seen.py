"""What training has shown of held-out sessions, against sets of ids."""

import numpy as np
import pytest

from clickexp.data import Sessions, seen


def sessions_of(lists):
    ids = np.zeros((len(lists), 4), np.int32)
    for row, documents in zip(ids, lists, strict=True):
        row[: len(documents)] = documents
    lengths = np.array([len(documents) for documents in lists])
    return Sessions.from_arrays(query_doc_ids=ids, clicks=ids > 99, lengths=lengths)


@pytest.mark.parametrize("few", [1, 4096])
@pytest.mark.parametrize(
    "held_out", [[[7, 8], [9]], [[3]], [[8], [9, 1]], [[9, 8, 7, 6], [6, 2]]], ids=["none", "first", "last", "padded"]
)
def test_a_document_of_held_out_sessions_is_found_wherever_it_is(held_out, few, monkeypatch):
    monkeypatch.setattr(seen, "_FEW", few)
    train = [[1, 2, 3], [4], [5, 1]]
    shared = set(sum(train, [])) & set(sum(held_out, []))
    assert seen.shows_any(sessions_of(train), sessions_of(held_out)) == bool(shared)
