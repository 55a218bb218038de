"""Test sets are distinguished by what metrics see of them."""

import numpy as np

from clickexp.data import Sessions

RNG = np.random.default_rng(0)
IDS, CLICKS = RNG.integers(1, 9, (40, 3)), RNG.random((40, 3)) < 0.3
LENGTHS = np.full(40, 2)
IDS[:, 2] = CLICKS[:, 2] = CLICKS[5, 1] = 0


def digest(ids=IDS, clicks=CLICKS, lengths=LENGTHS, **columns):
    return Sessions.from_arrays(
        query_doc_ids=ids, clicks=clicks, lengths=lengths, **columns
    ).digest()


def test_a_digest_does_not_depend_on_numbering_padding_or_view():
    shown = np.arange(3) < LENGTHS[:, None]
    assert digest(np.where(shown, IDS + 100, 0)) == digest(IDS[:, :2], CLICKS[:, :2]) == digest()
    twice = Sessions.from_arrays(
        query_doc_ids=np.tile(IDS, (2, 1)),
        clicks=np.tile(CLICKS, (2, 1)),
        lengths=np.tile(LENGTHS, 2),
    )
    assert twice.slice(0, 40).digest() == twice.select(np.arange(40, 80)).digest() == digest()
    assert twice.digest() != digest()


def test_a_digest_depends_on_clicks_lengths_and_labels():
    other = CLICKS.copy()
    other[17, 1] ^= True
    ids, shorter = IDS.copy(), LENGTHS.copy()
    ids[5, 1], shorter[5] = 0, 1
    one = (np.arange(3) < LENGTHS[:, None]).astype(np.float32)
    variants = [
        digest(),
        digest(clicks=other),
        digest(ids, lengths=shorter),
        digest(labels=0 * one),
        digest(labels=one),
    ]
    assert len(set(variants)) == 5
