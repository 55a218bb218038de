"""The true user of learning-to-rank lists, from the dataset and the settings that its clicks were simulated with."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from clickexp.data.dataset import Dataset
from clickexp.data.schema import SourceLocation
from clickexp.errors import DataError
from clickexp.models.base import ClickModel
from clickexp.simulation.letor import LARGEST, attraction_of
from clickexp.simulation.simulated import GroundTruth
from clickexp.simulation.towers import Behavior, logits_of


def letor_user(
    dataset: Dataset, user: Callable[..., ClickModel], settings: Mapping[str, Any], positions: int | None = None
) -> ClickModel:
    """Returns the click model that clicked on such lists, as a user of its test lists.

    Documents that no list of the dataset shows have no label there, and the attraction of an irrelevant one.

    Args:
        dataset: What `open_letor` opened.
        user: Constructor of the click model.
        settings: The options that it was opened with.
        positions: Documents shown; by default as many as in the dataset.

    Raises:
        DataError: The dataset has no largest label, as an earlier version packed it.
    """
    largest = dataset.notes.get(LARGEST)
    if largest is None:
        what = "the packed lists are of an earlier version, which did not keep the largest label"
        raise DataError(f"{dataset.name}: {what}. Delete them from the cache, cache_dir.")
    labels = np.zeros(dataset.query_doc_pairs + 1)
    for part in dataset.parts.values():
        for chunk in part.chunks(["query_doc_ids", "labels"]):
            labels[chunk["query_doc_ids"]] = chunk["labels"]
    labels[0] = 0
    noise, by_label = settings.get("click_noise", 0.1), settings.get("attraction_by_label")
    location = SourceLocation(dataset.name)
    logits = logits_of(attraction_of(labels, float(largest), noise, by_label, location))
    truth = GroundTruth(np.zeros(1, np.int64), logits, labels.astype(np.float32), logits, logits)
    behavior = Behavior(
        settings.get("examination_top", 2.0),
        settings.get("examination_decay", 1.5),
        settings.get("continuation", 2.0),
        settings.get("examination_by_rank"),
        settings.get("trust_positive"),
        settings.get("trust_negative"),
    )
    return truth.user(user, positions or dataset.positions, behavior)
