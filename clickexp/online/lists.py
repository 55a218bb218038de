"""The lists that two rankers order: the same documents, the same queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clickexp.data import Dataset, Sessions
from clickexp.data.derived import LookedUp
from clickexp.data.schema import COLUMNS
from clickexp.errors import DataError
from clickexp.evaluation.scores import relevance_scores
from clickexp.models import Model
from clickexp.types import Array
from clickexp.utils.progress import Steps


@dataclass(frozen=True)
class Rankings:
    """Two rankings of the same lists.

    Attributes:
        a: Documents of A by rank, `[lists, ranks]`, 0 beyond the end of a list.
        b: Those of B.
        features: Feature vectors of documents on the device, `[ids, features]`, where there are any.
        lookups: What else follows from the ids of documents.
        columns: Columns per session, such as the device, `[lists, 1]`.
    """

    a: np.ndarray
    b: np.ndarray
    features: Array | None = None
    lookups: Sequence[LookedUp] = ()
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def lengths(self) -> np.ndarray:
        """Documents shown of each list."""
        return (self.a > 0).sum(axis=1)


def candidate_lists(dataset: Dataset) -> Sessions:
    """Returns the lists that rankers order: labelled ones where there are any, else those of the test sessions.

    Raises:
        DataError: The lists have documents that the runs do not know.
    """
    lists = dataset.test if dataset.ranking is None else dataset.ranking
    if dataset.names is not None and lists.documents_zero:
        raise DataError(
            f"{lists.documents_zero:,} documents of the lists to rank were not in the log that the runs were fitted "
            "to. Give that log with --dataset, or fit the runs to this one."
        )
    return lists


def check_same_lists(first: Dataset, second: Dataset, names: tuple[str, str]) -> None:
    """Checks that documents have the same ids in two datasets, which have the same lists.

    Args:
        first: A dataset.
        second: Another one.
        names: What they are called in the message.

    Raises:
        DataError: They differ.
    """
    one, other = candidate_lists(first), candidate_lists(second)
    is_same = (
        first.query_doc_pairs == second.query_doc_pairs
        and one.digest() == other.digest()
        and np.array_equal(one.column("query_doc_ids"), other.column("query_doc_ids"))
        and (
            first.names is None or second.names is None or np.array_equal(first.names, second.names)
        )
        and one.feature_lengths == other.feature_lengths
    )
    if not is_same:
        raise DataError(
            f"{names[0]} has other lists to rank than {names[1]}, or other documents under its ids. Compare runs on "
            "the same dataset, with the same test set."
        )


def rank(
    a: Model,
    b: Model,
    lists: Sessions,
    positions: int,
    rng: np.random.Generator,
    wanted: np.ndarray | None = None,
) -> Rankings:
    """Ranks lists by two models; ties are in random order, the same for both.

    Args:
        a: A ranker.
        b: Another one.
        lists: Lists of candidates.
        positions: Documents shown, at most.
        rng: Source of the order of ties.
        wanted: Numbers of the lists that are needed; by default all.
    """
    chosen = lists if wanted is None else lists.select(wanted)
    ids, tie = chosen.column("query_doc_ids"), rng.random((chosen.count, chosen.ranks))
    mask = chosen.chunk().shown
    ids = np.where(mask, ids, 0)
    orders: list[np.ndarray] = []
    for name, model in (("A", a), ("B", b)):
        with Steps(f"ranking by {name}") as progress:
            scores = np.concatenate([*relevance_scores(model, progress)(chosen)])
        if np.isnan(scores).any():
            raise DataError(
                f"{name} scores documents as nan. Train it again with a lower learning rate."
            )
        order = np.lexsort((tie, np.where(mask, -scores.astype(np.float64), np.inf), ~mask), axis=1)
        orders.append(np.take_along_axis(ids, order[:, :positions], axis=1).astype(np.int32))
    features = None if lists.features is None else lists.features.on_device
    lookups = [column for column in lists.derived.values() if isinstance(column, LookedUp)]
    columns = {
        name: column.in_batch(chosen.column(name))
        for name, column in chosen.schema.items()
        if not column.per_document and name not in COLUMNS
    }
    return Rankings(orders[0], orders[1], features, lookups, columns)
