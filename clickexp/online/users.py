"""Simulated users: any click model, clicking on the lists that rankers make."""

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data.batches import keys_read
from clickexp.data.derived import LookedUp
from clickexp.errors import DataError
from clickexp.models import ClickModel, Model
from clickexp.types import Array
from clickexp.utils.batches import check_values
from clickexp.utils.progress import Report, no_report

_CHUNK = 1 << 16
"""Sessions that are drawn at a time."""
_FEATURES = "query_doc_features"


class User:
    """A click model as a user.

    Args:
        model: The click model.
        features: Feature vectors of documents `[ids, features]`, where there are any.
        name: Of the user, for messages.
        lookups: Columns that follow from the ids of documents, such as those of their query.
        columns: Columns per session of the lists that users may see, such as the device, `[lists, 1]`.

    Raises:
        DataError: The model has no distribution over clicks.
    """

    def __init__(
        self,
        model: Model,
        features: Array | None = None,
        name: str = "the user",
        lookups: Iterable[LookedUp] = (),
        columns: Mapping[str, np.ndarray] | None = None,
    ):
        if not isinstance(model, ClickModel):
            kind = getattr(model, "name", "") or type(model).__name__
            raise DataError(
                f"{name} is a {kind}, which does not click. Choose a click model, such as PBM or DBN."
            )
        self.model, self.name = model, name
        self._structure, self._state = nnx.split(model)
        self._draw = jax.jit(self._drawn)
        by_name = {lookup.column.name: lookup for lookup in lookups}
        batch = _batch(
            jnp.zeros((1, 2), jnp.int32), {} if features is None else {_FEATURES: features}
        )
        batch |= {name: jnp.zeros((1, 2), jnp.int32) for name in by_name}
        columns = columns or {}
        batch |= {name: jnp.asarray(values[:1]) for name, values in columns.items()}
        read = _keys_read(model, batch)
        tables = {
            name: jnp.asarray(lookup.table) for name, lookup in by_name.items() if name in read
        }
        self._tables: Mapping[str, Array] = (
            tables if features is None else {**tables, _FEATURES: features}
        )
        self._columns = {name: columns[name] for name in columns if name in read}

    def check(self, shown: np.ndarray) -> None:
        """Checks that the user can click on lists.

        Args:
            shown: Documents by rank of all lists, `[lists, ranks]`, 0 where there is none.

        Raises:
            DataError: Documents or ranks are beyond those that the user knows, or it reads what lists do not have.
        """
        batch = _batch(
            shown, {name: table for name, table in self._tables.items() if name != _FEATURES}
        )
        try:
            check_values(batch, self.model.limits(), lambda key: True)
            columns = self._of_sessions(np.zeros(1, int))
            jax.eval_shape(
                self._drawn, self._state, shown[:1], self._tables, columns, jax.random.key(0)
            )
        except DataError as error:
            raise DataError(f"{self.name} cannot click on these lists: {error}") from error

    def clicks(
        self,
        shown: np.ndarray,
        seed: int,
        progress: Report = no_report,
        lists: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draws the clicks of one session per list.

        Args:
            shown: Documents by rank, `[sessions, ranks]`, 0 where there is none.
            seed: The same seed gives the same clicks.
            progress: Called with the sessions that are done, and all.
            lists: Number of the list of each session, where users differ by its columns.

        Returns:
            `[sessions, ranks]`.
        """
        clicks, key = np.zeros(shown.shape, bool), jax.random.key(seed)
        lists = np.zeros(len(shown), int) if lists is None else lists
        size = min(_CHUNK, len(shown))
        for number, start in enumerate(range(0, len(shown), size)):
            chunk = shown[start : start + size]
            padded = np.zeros((size, shown.shape[1]), np.int32)
            padded[: len(chunk)] = chunk
            columns = self._of_sessions(np.resize(lists[start : start + size], size))
            key_of_chunk = jax.random.fold_in(key, number)
            drawn = self._draw(self._state, padded, self._tables, columns, key_of_chunk)
            clicks[start : start + len(chunk)] = np.asarray(drawn)[: len(chunk)]
            progress(start + len(chunk), len(shown))
        return clicks

    def _of_sessions(self, lists: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the columns of sessions on these lists that the user reads."""
        return {name: values[lists] for name, values in self._columns.items()}

    def _drawn(
        self,
        state: nnx.State,
        ids: Array,
        tables: Mapping[str, Array],
        columns: Mapping[str, Array],
        key: Array,
    ) -> Array:
        batch = {**_batch(ids, tables), **columns}
        return nnx.merge(self._structure, state).sample(batch, key, in_log_order=False).clicks


def _keys_read(model: ClickModel, batch: Mapping[str, Array]) -> set[str]:
    """The keys of a batch by which a model clicks; none where it reads something else, which `check` reports."""
    try:
        return keys_read(
            lambda batch: model.sample(batch, jax.random.key(0), in_log_order=False).clicks, batch
        )
    except DataError:
        return set()


def _batch(ids: Array, tables: Mapping[str, Array]) -> dict[str, Array]:
    """Returns lists of these documents without clicks, with what each table has for their ids."""
    batch = {"query_doc_ids": ids, "mask": ids > 0, "clicks": jnp.zeros(ids.shape, bool)}
    batch["positions"] = jnp.broadcast_to(
        jnp.arange(1, ids.shape[1] + 1, dtype=jnp.int32), ids.shape
    )
    values = {name: table[ids] for name, table in tables.items()}
    return batch | {
        name: value.astype(jnp.float32) if name == _FEATURES else value
        for name, value in values.items()
    }
