"""Predictions of a model for sessions, in compiled batches."""

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import jax.numpy as jnp
import numpy as np

from clickexp.data import Dataset, Sessions
from clickexp.data.batches import batch_like, keys_read
from clickexp.data.context import CONTEXT
from clickexp.data.derived import LookedUp
from clickexp.data.history import HISTORY
from clickexp.data.schema import Column
from clickexp.evaluation.scores import Batches, Outputs, outputs_by_batch
from clickexp.models import ClickModel, Model
from clickexp.parameters.context import new_session
from clickexp.posteriors.documents import EFFECTIVE, posterior_outputs
from clickexp.posteriors.exported import Exported
from clickexp.types import Array, Batch
from clickexp.utils.progress import Report, Steps, no_report
from clickexp.utils.rounding import ceil_div

Predict = Callable[[Sessions], Batches]
_DOCUMENTS = 1 << 18
"""Single documents that are made into sessions at a time."""


def examination_outputs(model: ClickModel, batch: Batch) -> dict[str, Array]:
    """Returns P(examination)."""
    return {"examination": model.predict_examination(batch)}


def document_outputs(model: Model, batch: Batch) -> dict[str, Array]:
    """Returns what the model knows of a document: attraction and satisfaction, as far as it has them, and relevance.

    All are those in a new search session.
    """
    batch = new_session(batch)
    outputs = (
        {"attraction": model.predict_attraction(batch)} if isinstance(model, ClickModel) else {}
    )
    if (satisfaction := getattr(model, "satisfaction", None)) is not None:
        outputs["satisfaction"] = satisfaction.log_prob(batch)
    return outputs | relevance_outputs(model, batch)


def exported_outputs(models: Exported, batch: Batch) -> dict[str, Array]:
    """Returns `document_outputs` and what posteriors say of a document, each of the model that an export has it of."""
    outputs = posterior_outputs(models.intervals, batch, models.ends, models.effective)
    if EFFECTIVE in outputs and models.effective is None:
        outputs[EFFECTIVE] = posterior_outputs(models.probabilities, batch)[EFFECTIVE]
    return {**document_outputs(models.probabilities, batch), **outputs}


def relevance_outputs(model: Model, batch: Batch) -> dict[str, Array]:
    """Returns relevance alone."""
    return {"relevance": model.predict_relevance(batch)}


def marginal_outputs(model: ClickModel, batch: Batch) -> dict[str, Array]:
    """Returns P(click) and relevance."""
    return {"click_probability": model.predict_clicks(batch), **relevance_outputs(model, batch)}


def click_outputs(model: ClickModel, batch: Batch) -> dict[str, Array]:
    """Returns P(click), relevance, and P(click) given the clicks above."""
    conditional = model.predict_conditional_clicks(batch)
    return {**marginal_outputs(model, batch), "conditional_click_probability": conditional}


def single_documents(
    dataset: Dataset, ids: np.ndarray, columns: Mapping[Column, np.ndarray] | None = None
) -> Sessions:
    """Returns sessions of one document each, without clicks, with the features that the dataset has, and columns."""
    alone = Sessions.from_arrays(
        query_doc_ids=ids[:, None].astype(np.int32),
        clicks=np.zeros((len(ids), 1), bool),
        query_doc_pairs=dataset.query_doc_pairs,
        extra=columns,
    )
    return alone.with_features(dataset.features).deriving(*of_pairs(dataset))


def of_pairs(dataset: Dataset) -> list[LookedUp]:
    """Returns the columns that follow from the ids of pairs, such as their documents."""
    return [column for column in dataset.train.derived.values() if isinstance(column, LookedUp)]


def columns_read(model: Model, outputs: Outputs, dataset: Dataset) -> set[str]:
    """Returns the keys of a batch that outputs read."""
    return keys_read(lambda batch: outputs(model, batch), batch_like(dataset.train))


def reads_context(read: Set[str]) -> bool:
    """Returns whether what came before a list in its search session is among some keys of a batch."""
    return not read.isdisjoint({*CONTEXT, *HISTORY})


def session_columns(
    model: Model, outputs: Outputs, dataset: Dataset, documents: Sessions
) -> list[str]:
    """Returns columns that outputs read and single documents do not have, since they belong to a session."""
    read = columns_read(model, outputs, dataset)
    return sorted(read - batch_like(documents).keys())


def of_documents(
    model: Model | Exported, dataset: Dataset, ids: np.ndarray, outputs: Outputs, what: str
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields single documents, some at a time, and what is predicted for them, by name; shows the progress.

    Args:
        model: The model, or those that an export is of.
        dataset: The dataset that the model was fitted to.
        ids: The documents.
        outputs: Logarithms of what is predicted for a batch.
        what: Name of the progress.
    """
    predict, done = predictor(model, outputs), 0
    with Steps(what) as report:
        # even parts, since a small last one would be compiled for
        for part in np.array_split(ids, ceil_div(len(ids), _DOCUMENTS) or 1):
            for lengths, values in predict(single_documents(dataset, part)):
                yield (
                    ids[done : done + len(lengths)],
                    {name: column[:, 0] for name, column in values.items()},
                )
                done += len(lengths)
                report(done, len(ids))


def predictor(model: Model | Exported, outputs: Outputs, report: Report = no_report) -> Predict:
    """Compiles what a model predicts.

    Args:
        model: The model, or those that an export is of.
        outputs: Logarithms of what is predicted for a batch.
        report: Receives the sessions that are done, and all.

    Returns:
        A function of sessions that yields what is predicted; see `outputs_by_batch`.
    """

    def predictions(model: Any, batch: Batch) -> dict[str, Array]:
        return {name: jnp.exp(log) for name, log in outputs(model, batch).items()}

    return outputs_by_batch(model, predictions, report)
