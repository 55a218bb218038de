"""The batch that every model, tower and metric reads, and names for the shapes in signatures.

Shapes are written for jaxtyping: "#batch" is the batch's size or 1, "*ids" and "..." are any axes, "" is none.
The tests execute annotations, as pyproject.toml tells pytest; elsewhere they are only to be read.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped

Array = jax.Array | np.ndarray
"""NumPy arrays are welcome wherever those of JAX are."""

Leaf = Any
"""An array in a field of a pytree, where JAX now and then puts something else in its place."""

Scalar = Float[Array, ""]
Count = Integer[Array, ""]
Flag = Bool[Array, ""]

Logits = Float[Array, "#batch #rank"]
"""One number a document, with 1 for an axis along which all are equal; likewise log-probabilities and scores."""

PerDocument = Float[Array, "batch rank"]
"""One number a document, none left out."""

Observed = Shaped[Array, "batch rank"]
"""One observation a document, such as a click or whether there is a document: bool, or 0 and 1 of any type."""

Batch = Mapping[str, Array]
"""One minibatch of search sessions, padded to a fixed number of ranks.

    query_doc_ids       [batch, rank] int32    row of the query-document pair; any id where padded
    positions           [batch, rank] int32    rank shown to the user, from 1; [1, rank] broadcasts
    clicks              [batch, rank] bool     observed clicks
    mask                [batch, rank] bool     True where a document was shown
    lengths             [batch] int32          documents shown, given only where these come first in every list
    labels              [batch, rank] float32  graded relevance, where known
    query_doc_features  [batch, rank, feature] float32

A document that was not shown is not examined, not clicked, and not read past: the user goes from the shown document
before it directly to the next one. It may stand anywhere in a list. Without it, and with the `positions` of the others
as they were, all predictions, losses and samples are the same. Nothing that the batch holds there is read as evidence.
"""

SHOWN_FIRST = "_shown_first"
"""Private key of a batch whose mask was made from `lengths`, and so has no holes; no user's batch has it."""
