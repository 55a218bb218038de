"""The batch that every model, tower and metric reads, and names for the shapes in signatures.

Shapes are written for jaxtyping: "#batch" is the batch's size or 1, "*ids" and "..." are any axes, "" is none.
The tests execute annotations, as pyproject.toml configures pytest; elsewhere they are only read.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped

_Tree = TypeVar("_Tree")
"""An array, or several."""

Array = jax.Array | np.ndarray
"""NumPy arrays are welcome wherever those of JAX are."""

Leaf = Any
"""An array in a field of a pytree, where JAX now and then puts something else in its place."""

Scalar = Float[Array, ""]
Count = Integer[Array, ""]
Flag = Bool[Array, ""]

Logits = Float[Array, "#batch #rank"]
"""One number per document, with 1 for an axis along which all are equal; likewise log-probabilities and scores."""

PerDocument = Float[Array, "batch rank"]
"""One number per document, none left out."""

LogitsByRank = Float[Array, "#rank #batch"]
"""The same with ranks first, as click models compute with them."""

Observed = Shaped[Array, "batch rank"]
"""One observation per document, such as a click or whether there is a document: bool, or 0 and 1 of any type."""

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

LOG_RANKS = "_log_ranks"
"""Private key of a batch of lists that the policy of the training log has ordered; see `as_shown`."""


def as_shown(batch: Batch) -> Batch:
    """The batch with the logarithms of ranks, for predictions of clicks on lists in the order of the log.

    Of documents that training has not seen they carry what the policy knew; see `clickexp.parameters.table.Prior`.
    Scores that rank documents must not read them.
    """
    return {**batch, LOG_RANKS: log_ranks(batch["mask"])}


def log_ranks(mask: Observed) -> PerDocument:
    """The logarithm of each document's rank among those shown in its list; 0 before the first."""
    ranks = jnp.cumsum(mask.astype(bool), axis=1, dtype=jnp.float32)
    return jnp.log(jnp.maximum(ranks, 1.0))


class ByRank(Mapping[str, Array]):
    """A batch with ranks first, `[rank, batch, ...]`, as click models compute with it.

    XLA vectorises over sessions better than over ranks, by a fifth of PBM's step on a CPU, and recurrences run over
    ranks. `clickexp.models.base.ClickModel` turns a batch by this class where it comes in, and turns the results where
    they go out. An array is turned where it is read; those of sessions, `[batch]`, stay as they are.

    Attributes:
        lists: The batch as its user knows it, `[batch, rank, ...]`.
    """

    def __init__(self, lists: Batch):
        self.lists = lists

    def __getitem__(self, key: str) -> Array:
        return swap_list_and_rank(self.lists[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self.lists)

    def __len__(self) -> int:
        return len(self.lists)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of ranks and of sessions."""
        sessions, ranks = self.lists["mask"].shape
        return ranks, sessions

    def broadcast(self, tree: _Tree) -> _Tree:
        """Returns an array, or a tree of them, as `[rank, batch]`, of which each may have one rank or one session."""
        return jax.tree.map(lambda array: jnp.broadcast_to(array, self.shape), tree)

    @property
    def positions(self) -> Integer[Array, "rank batch"]:
        """The position of each document."""
        return self.broadcast(self["positions"])

    @property
    def mask(self) -> Bool[Array, "rank batch"] | None:
        """Where a document was shown; None if the mask was made from lengths, so that no hidden one is above another.

        Padding behind a list needs no care from top to bottom; with it a training step takes slightly longer.
        A batch's own `lengths` do not count: compiled programs cannot compare them with its mask.
        """
        return None if SHOWN_FIRST in self else self["mask"].astype(bool)

    @property
    def clicks(self) -> Bool[Array, "rank batch"]:
        """The clicks on documents that were shown or behind the last of them."""
        clicks, mask = self["clicks"].astype(bool), self.mask
        return clicks if mask is None else clicks & mask

    def replace(self, **arrays: Array) -> "ByRank":
        """The batch with other or further arrays, `[rank, batch, ...]`."""
        return ByRank(
            {**self.lists, **{key: swap_list_and_rank(array) for key, array in arrays.items()}}
        )


def swap_list_and_rank(array: Array) -> Array:
    """Returns an array with its first two axes exchanged: the one place where lists first and ranks first meet.

    Users, towers and readers have lists first, `[batch, rank, ...]`; definitions of click models and sums of metrics
    have ranks first. In a compiled program this moves nothing.
    """
    return array.swapaxes(0, 1) if array.ndim > 1 else array


def ranks_first(values: Shaped[Array, "*lists rank"]) -> Shaped[Array, "rank list"]:
    """Returns numbers of lists along any leading axes with ranks first, as sums of metrics are taken."""
    return swap_list_and_rank(values.reshape(-1, values.shape[-1]))
