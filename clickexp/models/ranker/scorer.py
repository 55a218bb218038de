"""Scores documents by a fitted ranker, with NumPy alone. Needs nothing else, so that this file serves by itself.

    scorer = Scorer("ranker.npz")
    scores = scorer.score(features=vectors)     # towers of features; as in the files that training read
    scores = scorer.score(scorer.vectors({"price": prices, "brand": brands}))  # of a log whose columns are features
    scores = scorer.score(ids=query_doc_ids)    # tables of ids
    order = scorer.rank(features=vectors)       # the best document first

`clickexp-export RUN --numpy` writes this file beside ranker.npz.
"""

import json
import operator

import numpy as np


def _layer_norm(x, epsilon):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)


def _row(table, ids):
    has_row = (ids > 0) & (ids < len(table))
    return table[np.where(has_row, ids, 0).astype(np.int64)].astype(np.float64)


def _log_sigmoid(x):
    return -np.logaddexp(0, -x)


OPERATIONS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "matmul": operator.matmul,
    "take": lambda x, places: x[..., places],
    "fill": lambda x, values: np.where(np.isnan(x), values, x),
    "is_missing": lambda x: np.isnan(x).astype(np.float64),
    "one_hot": lambda x, levels: (x == levels).astype(np.float64),
    "concatenate": lambda *parts: np.concatenate(parts, axis=-1),
    "squeeze": lambda x: x[..., 0],
    "row": _row,
    "layer_norm": _layer_norm,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: np.exp(_log_sigmoid(x)),
    "silu": lambda x: x * np.exp(_log_sigmoid(x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "log_sigmoid": _log_sigmoid,
}
"""Functions of a step. In a table, `row` of ids that it does not know is row 0, which training has not shown."""


class Scorer:
    """The score of a document, computed step by step from its features, its id and the arrays of the ranker.

    Attributes:
        name: Of the model.
        width: Features per document; None where no step reads features.
        reads_ids: Whether a step reads ids.
        rows: Numbers of rows of the tables that steps look ids up in.
        description: The steps, as ranker.npz describes them: name, operation, names of what it reads, settings. The
            last one is the score; the last one of "encoding" is the feature vector of the numbers of columns.
    """

    def __init__(self, file):
        with np.load(file, allow_pickle=False) as stored:
            self.description = json.loads(str(stored["description"]))
            self.arrays = {
                key: np.asarray(stored[key]) for key in stored.files if key != "description"
            }
        self.name, self.width = self.description["model"], self.description["features"]
        steps = self.description["steps"]
        self.reads_ids = any("ids" in inputs for _, _, inputs, _ in steps)
        self.rows = {
            len(self.arrays[inputs[0]]) for _, operation, inputs, _ in steps if operation == "row"
        }

    def score(self, features=None, ids=None, transformed=False):
        """Scores documents.

        Args:
            features: Feature vectors, [..., features], as in the files that training read.
            ids: Ids of query-document pairs, [...].
            transformed: Whether the features are already transformed and encoded as the dataset does it.

        Returns:
            Scores [...]; higher is better.

        Raises:
            ValueError: What a step reads is missing, features have another length, or ids are no whole numbers.
        """
        if self.width is not None:
            features = self._transformed(features, transformed)
        if self.reads_ids and ids is None:
            raise ValueError("the ranker has a table of ids: give ids")
        ids = np.asarray(ids)
        if self.reads_ids and ids.size and ids.dtype.kind not in "iu":
            raise ValueError(
                f"ids are whole numbers, query_doc_id of documents.parquet, and these {ids.dtype}"
            )
        return self._computed(self.description["steps"], features, ids)

    def vectors(self, columns):
        """Returns the features of documents, as `score` takes them, from the columns that a log has for them.

        Args:
            columns: Values per document by the name of the column: numbers, names of categories, or vectors; None or
                nan where one is missing.

        Returns:
            Features [documents, numbers].

        Raises:
            ValueError: A column is missing, or the log has vectors.
        """
        parts = []
        for name, width, categories in self.description["columns"]:
            if name not in columns:
                raise ValueError(f"the ranker reads the column {name}")
            values = columns[name]
            if categories is not None:
                numbering = {category: number for number, category in enumerate(categories, 1)}
                values = [numbering.get(value, 0) for value in values]
            numbers = np.asarray(values, np.float64)  # None is nan
            parts.append(numbers.reshape(len(numbers), width))
        if not parts:
            raise ValueError("the ranker reads no columns: give vectors of features")
        return np.concatenate(parts, axis=1)

    def encoded(self, features):
        """Returns the feature vectors, as steps read them, of the transformed numbers of documents."""
        encoding = self.description["encoding"]
        return self._computed(encoding, features) if encoding else features

    def rank(self, features=None, ids=None):
        """Returns the places of documents [n] in the order of their scores, the best first."""
        return np.argsort(-self.score(features, ids), axis=-1, kind="stable")

    def _transformed(self, features, transformed):
        if features is None:
            raise ValueError(f"the ranker reads features: give vectors of {self.width} numbers")
        features = np.asarray(features, np.float64)
        if transformed:
            return features
        if features.shape[-1:] != (self.width,):
            raise ValueError(
                f"features have shape {features.shape}, and the ranker reads {self.width} per document"
            )
        if self.description["transform"] == "log1p":
            features = np.sign(features) * np.log1p(np.abs(features))
        return self.encoded(features)

    def _computed(self, steps, features, ids=None):
        values, result = {**self.arrays, "features": features, "ids": ids}, np.zeros(())
        for name, operation, inputs, settings in steps:
            result = OPERATIONS[operation](*[values[key] for key in inputs], **settings)
            values[name] = result
        return result
