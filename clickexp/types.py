"""The batch that every model, tower and metric reads."""

from collections.abc import Mapping

import jax

Array = jax.Array

Batch = Mapping[str, Array]
"""One minibatch of search sessions, padded to a fixed number of ranks.

    query_doc_ids       [batch, rank] int32    row of the query-document pair; any id where padded
    positions           [batch, rank] int32    rank shown to the user, from 1; [1, rank] broadcasts
    clicks              [batch, rank] bool     observed clicks
    mask                [batch, rank] bool     True where a document was shown
    labels              [batch, rank] float32  graded relevance, where known
    query_doc_features  [batch, rank, feature] float32
"""
