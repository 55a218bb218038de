"""Checks that data fits a model, once per training or evaluation, before a program that would clamp it runs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from clickexp.data import Sessions
from clickexp.data.batches import at_step, with_mask
from clickexp.data.feed import Data, feed
from clickexp.errors import DataError
from clickexp.models.base import Model
from clickexp.types import Array, Batch
from clickexp.utils.checks import Limit, check_batch, check_values, from_lengths, needs

Compute = Callable[[Batch], Any]


def checked(data: Data, model: Model, compute: Compute, *required: str) -> Data:
    """The data, of which batches are checked in the first pass; DataError where they do not fit the model.

    Packed sessions know their largest id and position, so that only those beyond the model are looked through.

    Args:
        compute: what is computed of a batch; only what it depends on has to fit.
        required: keys that each batch needs besides a mask or lengths.
    """
    limits = model.limits()
    if not isinstance(data, Sessions):
        return _CheckedBatches(data, limits, compute, required)
    for key in required:
        if key not in data.columns:
            raise DataError(f"the sessions have no {key}. Add them to the source.")
    known = {"query_doc_ids": data.query_doc_pairs, "positions": data.positions}
    if data.count and any(known.get(key, 0) > largest for key, largest, _ in limits):
        first = at_step(with_mask(next(feed(data.slice(0, 1), 1, 1)).arrays), 0)
        for chunk in data.chunks():
            check_values(_with_mask(chunk), limits, needs(compute, first))
    return data


def check_ahead(data: Data) -> None:
    """DataError for a fault of checked batches, where they can be iterated once more than what follows needs."""
    if isinstance(data, _CheckedBatches) and iter(data.batches) is not data.batches:
        for _ in data:
            pass


class _CheckedBatches:
    """Batches as host arrays, checked as they are fed until a whole pass was found to fit."""

    def __init__(self, batches: Data, limits: list[Limit], compute: Compute, required: tuple[str, ...]):
        self.batches, self.limits, self.compute, self.required = batches, limits, compute, required
        self.fit = False

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        if self.fit:  # later epochs are not to pay for looking through each array
            yield from self.batches
            return
        for given in self.batches:
            batch = {name: np.asarray(values) for name, values in given.items()}
            mask = () if "lengths" in batch else ("mask",)
            check_batch(batch, (*self.required, *mask))
            whole = _with_mask(batch)
            check_values(whole, self.limits, needs(self.compute, whole))
            yield batch
        self.fit = True


def _with_mask(batch: Mapping[str, Array]) -> dict[str, Array]:
    """The batch with what the training step would add to it."""
    documents = next(batch[key] for key in ("mask", "clicks", "labels", "query_doc_ids") if key in batch)
    ranks = documents.shape[1]
    added: dict[str, Array] = {"positions": np.arange(1, ranks + 1, dtype=np.int32)[None]}
    if "mask" not in batch:
        added["mask"] = from_lengths(batch["lengths"], ranks)
    return {**added, **batch}
