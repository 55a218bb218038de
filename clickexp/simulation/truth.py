"""The true user of learning-to-rank lists, from the dataset and the settings that its clicks were simulated with."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clickexp.data.dataset import Dataset
from clickexp.data.schema import LARGEST_GRADE, SourceLocation
from clickexp.models.base import ClickModel
from clickexp.simulation.simulated import GroundTruth
from clickexp.simulation.towers import Behavior, logits_of

LARGEST = "largest label"
"""Note of the log."""


def letor_user(dataset: Dataset, settings: Mapping[str, Any]) -> ClickModel | None:
    """Returns the click model that clicked on such lists, as a user of all documents that the dataset shows.

    None where the clicks are those of a log.

    Other documents have no label there, and the attraction of an irrelevant one.

    Args:
        dataset: What `open_letor` opened.
        settings: The options that it was opened with.

    Returns:
        The click model.
    """
    if LARGEST not in dataset.notes:
        return None
    largest = dataset.notes[LARGEST]
    labels = np.zeros(dataset.query_doc_pairs + 1)
    for part in dataset.parts.values():
        for chunk in part.chunks():
            labels[chunk["query_doc_ids"]] = chunk["labels"]
    labels[0] = 0
    logits = attraction_logits(
        labels,
        float(largest),
        settings["click_noise"],
        settings["attraction_by_label"],
        SourceLocation(dataset.name),
    )
    truth = GroundTruth(np.zeros(1, np.int64), logits, labels.astype(np.float32), logits, logits)
    behavior = Behavior(**{name: settings[name] for name in Behavior._fields})
    return truth.user(settings["user"], dataset.positions, behavior)


def attraction_logits(
    labels: np.ndarray,
    largest: float,
    noise: float,
    by_label: Sequence[float] | None,
    location: SourceLocation,
) -> np.ndarray:
    """Logits of attraction [ids] of documents, whose labels go up to `largest`; DataError where these say nothing."""
    if largest <= 0:
        raise location.error(
            "no document has a label above 0", "clicks are simulated from graded labels"
        )
    if by_label is None and largest > LARGEST_GRADE:
        what = f"a document has label {largest:g}, and labels above {LARGEST_GRADE} leave all others unattractive"
        raise location.error(
            what, "correct the labels, or give attraction_by_label one number per label, from 0"
        )
    if by_label is None:
        gain = (2 ** np.maximum(labels, 0) - 1) / (2**largest - 1)
        return logits_of((noise + (1 - noise) * gain).astype(np.float32))
    grades = np.minimum(np.maximum(labels, 0), len(by_label)).astype(np.int64)
    if (grades != np.maximum(labels, 0)).any() or grades.max() >= len(by_label):
        what = f"the labels, of up to {labels.max():g}, are not among 0 to {len(by_label) - 1}"
        raise location.error(what, "give attraction_by_label one number per label, from 0")
    return logits_of(np.array(by_label, np.float32)[grades])
