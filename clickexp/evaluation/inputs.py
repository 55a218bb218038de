"""Checks that data fits a model, once per training or evaluation, before a program that would clamp it runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from flax import nnx

from clickexp.data import Sessions
from clickexp.data.batches import at_step, batch_like, keys_read, with_mask
from clickexp.data.feed import Data, feed
from clickexp.errors import DataError
from clickexp.models.base import Model
from clickexp.types import Array, Batch
from clickexp.utils.batches import (
    Limit,
    check_batch,
    check_values,
    missing_key,
    needs,
)
from clickexp.utils.lengths import from_lengths

_Compute = Callable[[Batch], Any]


def checked(data: Data, model: Model, compute: _Compute, *required: str) -> Data:
    """The data, of which batches are checked in the first pass.

    Packed sessions know their largest id and position, so that only those beyond the model are searched.

    Args:
        data: Packed sessions or batches.
        model: What they have to fit.
        compute: What is computed of a batch; only what it depends on has to fit.
        *required: Keys that each batch needs besides a mask or lengths.

    Raises:
        DataError: Ids, positions or clicks do not fit the model, or a key is missing.
    """
    limits = model.limits()
    if not isinstance(data, Sessions):
        return _CheckedBatches(data, limits, compute, required)
    for key in required:
        if key not in data.columns:
            clicks = (
                ", or judge rankings by clicks: metric=[all,counterfactual]"
                if key == "labels"
                else ""
            )
            raise DataError(f"the sessions have no {key}. Add them to the source{clicks}.")
    if data.count and not all(_fits(data.bounds(key), largest) for key, largest, _ in limits):
        _check_values(data, limits, compute)
    return data


def _check_values(data: Sessions, limits: list[Limit], compute: _Compute) -> None:
    """Searches packed sessions for values that do not fit."""
    carried = data.with_batch_columns({*data.batch_columns, *(key for key, *_ in limits)})
    first = at_step(with_mask(next(feed(carried.slice(0, 1), 1, 1)).arrays), 0)
    for chunk in data.chunks():
        batch = {name: data.schema[name].in_batch(chunk[name]) for name in carried.batch_columns}
        check_values(_as_fed(batch), limits, needs(compute, first))


def _fits(bounds: tuple[int, int], largest: int) -> bool:
    return bounds[0] >= 0 and bounds[1] <= largest


class ColumnSelection:
    """Packed sessions of which batches carry the columns that a computation reads, found by tracing it once per data.

    Args:
        compute: Computation from models and a batch.
        graphdefs: Structures of the models.
    """

    def __init__(self, compute: Callable[..., Any], *graphdefs: nnx.GraphDef):
        self._compute, self._graphdefs = compute, graphdefs
        self._latest: tuple[Data, Data] | None = None

    def __call__(self, data: Data, *states: Iterable[nnx.State]) -> Data:
        """The sessions, for models in these states; batches that come ready-made are as they are."""
        if not isinstance(data, Sessions):
            return data
        if self._latest is None or self._latest[0] is not data:
            batch = batch_like(data)
            try:
                read = keys_read(self._computed, batch, *states)
            except KeyError as error:
                raise missing_key(error, batch) from error
            self._latest = data, data.with_batch_columns(read)
        return self._latest[1]

    def _computed(self, batch: Batch, *states: Iterable[nnx.State]) -> Any:
        pairs = zip(self._graphdefs, states, strict=True)
        return self._compute(
            *(nnx.merge(graphdef, *state, copy=True) for graphdef, state in pairs), batch
        )


def check_ahead(data: Data) -> None:
    """Iterates checked batches where they can be iterated once more than what follows needs.

    Raises:
        DataError: One does not fit the model.
    """
    if isinstance(data, _CheckedBatches) and iter(data.batches) is not data.batches:
        for _ in data:
            pass


class _CheckedBatches:
    """Batches as host arrays, checked as they are fed until a whole pass was found to fit."""

    def __init__(
        self,
        batches: Iterable[Mapping[str, Array]],
        limits: list[Limit],
        compute: _Compute,
        required: tuple[str, ...],
    ):
        self.batches, self.limits, self.compute, self.required = batches, limits, compute, required
        self.fit = False

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        if self.fit:  # later epochs do not pay for the search
            yield from self.batches
            return
        for arrays in self.batches:
            batch = {name: np.asarray(values) for name, values in arrays.items()}
            mask = () if "lengths" in batch else ("mask",)
            check_batch(batch, (*self.required, *mask))
            whole = _as_fed(batch)
            check_values(whole, self.limits, needs(self.compute, whole))
            yield batch
        self.fit = True


def _as_fed(batch: Mapping[str, Array]) -> dict[str, Array]:
    """The batch with the positions and the mask that compiled programs add to it."""
    keys = ("mask", "clicks", "labels", "query_doc_ids")
    ranks = next(batch[key] for key in keys if key in batch).shape[1]
    fed: dict[str, Array] = {"positions": np.arange(1, ranks + 1, dtype=np.int32)[None], **batch}
    if "mask" not in fed:
        fed["mask"] = from_lengths(np.asarray(batch["lengths"]), ranks)
    return fed
