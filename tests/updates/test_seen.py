"""Counts of training on disk."""

import numpy as np
from refusals import refuses

from clickexp.errors import UserError
from clickexp.updates.seen import Seen


def test_counts_without_the_hashes_of_lists_are_damaged(tmp_path):
    file = tmp_path / "seen.npz"
    Seen(hashes=np.arange(3, dtype=np.uint64)).save(file)
    assert Seen.load(file).hashes.tolist() == [0, 1, 2]
    np.savez(file)
    with refuses(UserError, "seen.npz is damaged", "Run the experiment again"):
        Seen.load(file)
