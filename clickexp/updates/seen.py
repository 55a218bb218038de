"""Counts of training so far, over all logs of a chain of runs: documents by row, and lists of queries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float

from clickexp.models import Model
from clickexp.parameters.table import path_name
from clickexp.posteriors.documents import ROLES, table_of_documents, tower_of
from clickexp.posteriors.policy_prior import Queries
from clickexp.training.sparse.learned_priors import Documents
from clickexp.utils.files import undamaged, whole

_LISTS, _LABELS, _HASHES = "lists", "queries", "hashes"
_NONE = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Seen:
    """Counts of training.

    Attributes:
        documents: How many documents each row of a table has served, and at which ranks, by the name of the table.
        queries: Which ids are of one query, and its lists; None where these tell nothing of documents.
        hashes: A sample of the hashes of lists, of `clickexp.data.inspect.copies`.
    """

    documents: Mapping[str, Documents] = field(default_factory=dict)
    queries: Queries | None = None
    hashes: np.ndarray = field(default_factory=lambda: _NONE)

    @classmethod
    def of(
        cls,
        documents: Mapping[tuple, Documents],
        queries: Queries | None = None,
        hashes: np.ndarray = _NONE,
    ) -> "Seen":
        """Returns what one log, or several, have shown.

        Args:
            documents: By the path of the table.
            queries: See the class.
            hashes: See the class.
        """
        named = {path_name(path): counts for path, counts in documents.items()}
        return cls(named, queries, hashes)

    def forgetting(self, kept: float) -> "Seen":
        """Returns a part of all counts."""
        part = np.float32(kept)
        documents = {
            name: Documents(counts.sums * part, counts.squares * part)
            for name, counts in self.documents.items()
        }
        queries = self.queries
        queries = queries and queries._replace(lists=queries.lists * kept)
        return Seen(documents, queries, self.hashes)

    def impressions(self, model: Model) -> Float[np.ndarray, " ids"] | None:
        """Returns how often training has shown each document; None where attraction is no table of them."""
        table = table_of_documents(tower_of(model, ROLES["attraction"]))
        names = (path_name(path) for path, node in nnx.iter_graph(model) if node is table)
        documents = None if table is None else self.documents.get(next(names))
        return None if documents is None else np.asarray(documents.sums)[:, 0]

    def save(self, file: Path) -> None:
        """Writes an archive of NumPy, whole or not at all."""
        arrays: dict[str, Any] = {_HASHES: self.hashes}
        if self.queries is not None:
            lists = np.float32(self.queries.lists)
            arrays |= {_LABELS: self.queries.labels.astype(np.int32), _LISTS: lists}
        for name, counts in self.documents.items():
            arrays |= {f"{name}/sums": counts.sums, f"{name}/squares": counts.squares}
        with whole(file) as part, part.open("wb") as stream:
            np.savez(stream, **arrays)

    @classmethod
    def load(cls, file: Path) -> "Seen":
        """Reads what `save` wrote; UserError where it is damaged."""
        with undamaged(file), file.open("rb") as stream, np.load(stream) as stored:
            arrays = {name: stored[name] for name in stored}
            labels, lists = arrays.pop(_LABELS, None), arrays.pop(_LISTS, None)
            hashes = arrays.pop(_HASHES)
            names = {name.rpartition("/")[0] for name in arrays}
            documents = {
                name: Documents(arrays[f"{name}/sums"], arrays[f"{name}/squares"]) for name in names
            }
            return cls(documents, None if lists is None else Queries(labels, lists), hashes)
