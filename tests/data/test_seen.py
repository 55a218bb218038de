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
    "held_out",
    [[[7, 8], [9]], [[3]], [[8], [9, 1]], [[9, 8, 7, 6], [6, 2]]],
    ids=["none", "first", "last", "padded"],
)
def test_a_document_of_held_out_sessions_is_found_wherever_it_is(held_out, few, monkeypatch):
    monkeypatch.setattr(seen, "_FEW", few)
    train = [[1, 2, 3], [4], [5, 1]]
    shared = set(sum(train, [])) & set(sum(held_out, []))
    assert seen.has_common_documents(sessions_of(train), sessions_of(held_out)) == bool(shared)


@pytest.mark.parametrize("largest", [9, 10_000], ids=["counted by id", "counted by the ids shown"])
def test_documents_that_training_never_showed_have_no_impressions(largest):
    """Ids beyond those of training included, of logs made by hand."""
    train, held_out = (
        sessions_of([[1, 2, 3], [4], [5, largest, 1]]),
        sessions_of([[7, 1], [largest, 5], [20_000]]),
    )
    found = held_out.deriving(seen.Impressions(train)).column("train_impressions")
    np.testing.assert_array_equal(found[:, :2], [[0, 2], [1, 1], [0, found[2, 1]]])
