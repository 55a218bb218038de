"""Simulated users: any click model, clicking on the lists that rankers make."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.errors import DataError
from clickexp.models import ClickModel, Model
from clickexp.types import Array
from clickexp.utils.checks import check_values

CHUNK = 1 << 16
"""Sessions that are drawn at a time."""


class User:
    """A click model as a user.

    Args:
        model: The click model.
        features: Feature vectors of documents `[ids, features]`, where there are any.
        name: Of the user, for messages.

    Raises:
        DataError: The model has no distribution over clicks.
    """

    def __init__(self, model: Model, features: Array | None = None, name: str = "the user"):
        if not isinstance(model, ClickModel):
            kind = getattr(model, "name", "") or type(model).__name__
            raise DataError(f"{name} is a {kind}, which does not click. Choose a click model, such as PBM or DBN.")
        self.model, self.name = model, name
        self._features = features
        self._structure, self._state = nnx.split(model)
        self._draw = jax.jit(self._drawn)

    def check(self, shown: np.ndarray) -> None:
        """Checks that the user can click on lists.

        Args:
            shown: Documents by rank, `[lists, ranks]`, 0 where there is none.

        Raises:
            DataError: Documents or ranks are beyond those that the user knows, or it reads what lists do not have.
        """
        batch = {"query_doc_ids": shown, "mask": shown > 0, "clicks": np.zeros(shown.shape, bool)}
        batch["positions"] = np.broadcast_to(np.arange(1, shown.shape[1] + 1, dtype=np.int32), shown.shape)
        try:
            check_values(batch, self.model.limits(), lambda key: True)
            jax.eval_shape(self._drawn, self._state, shown[:1], self._features, jax.random.key(0))
        except DataError as error:
            raise DataError(f"{self.name} cannot click on these lists: {error}") from error

    def clicks(
        self, shown: np.ndarray, seed: int, progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """Draws the clicks of one session per list.

        Args:
            shown: Documents by rank, `[sessions, ranks]`, 0 where there is none.
            seed: The same seed gives the same clicks.
            progress: Called with the sessions that are done, and all.

        Returns:
            `[sessions, ranks]`.
        """
        clicks, key = np.zeros(shown.shape, bool), jax.random.key(seed)
        size = min(CHUNK, len(shown))
        for number, start in enumerate(range(0, len(shown), size)):
            chunk = shown[start : start + size]
            padded = np.zeros((size, shown.shape[1]), np.int32)
            padded[: len(chunk)] = chunk
            drawn = self._draw(self._state, padded, self._features, jax.random.fold_in(key, number))
            clicks[start : start + len(chunk)] = np.asarray(drawn)[: len(chunk)]
            if progress is not None:
                progress(start + len(chunk), len(shown))
        return clicks

    def _drawn(self, state: nnx.State, ids: Array, features: Array | None, key: Array) -> Array:
        ranks = ids.shape[1]
        batch: Mapping[str, Array] = {
            "query_doc_ids": ids,
            "positions": jnp.broadcast_to(jnp.arange(1, ranks + 1, dtype=jnp.int32), ids.shape),
            "mask": ids > 0,
            "clicks": jnp.zeros(ids.shape, bool),
        }
        if features is not None:
            batch = {**batch, "query_doc_features": features[ids].astype(jnp.float32)}
        return nnx.merge(self._structure, state).sample(batch, key).clicks
