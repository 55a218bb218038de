"""Hashes of the lists of a log, and their sample."""

import numpy as np
from small_logs import packed

from clickexp.data.id_table import mixed
from clickexp.data.inspect.copies import ListHashes, list_keys

LISTS, KINDS, COPIES = 150_000, 1 << 14, 3
"""Lists of several pieces that are read, the kinds that a sample has, and the most copies of one."""


def test_a_sample_has_the_lists_with_the_smallest_hashes():
    """Oracle: all hashes, sorted."""
    rng = np.random.default_rng(0)
    ids = np.minimum(1000 ** rng.random((LISTS, 2)), 999).astype(np.int32)
    log = packed({"query_doc_ids": ids, "clicks": rng.random(ids.shape) < 0.2}, 1000)
    keys = mixed(list_keys(log.chunk()))
    kinds, counts = np.unique(keys, return_counts=True)
    assert len(kinds) > 2 * KINDS and (counts[:KINDS] > COPIES).any()
    sample = np.repeat(kinds[:KINDS], np.minimum(counts[:KINDS], COPIES))
    whole, parts = ListHashes.of([log]), ListHashes.of([log.slice(0, 5000), log.slice(5000, LISTS)])
    assert whole.digest == f"{LISTS}-{int(keys.sum(dtype=np.uint64)):016x}" == parts.digest
    np.testing.assert_array_equal(whole.sample, sample)
    np.testing.assert_array_equal(parts.sample, sample)
