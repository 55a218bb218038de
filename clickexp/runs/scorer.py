"""Scores documents by a fitted ranker, with NumPy alone. Needs nothing else, so that this file serves by itself.

    scorer = Scorer("ranker.npz")
    scores = scorer.score(features=vectors)     # towers of features; as in the files that training read
    scores = scorer.score(ids=query_doc_ids)    # tables of ids
    order = scorer.rank(features=vectors)       # the best document first

`clickexp-export RUN --numpy` writes this file beside ranker.npz.
"""

import json

import numpy as np

_ACTIVATIONS = {
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
    "silu": lambda x: x * np.exp(-np.logaddexp(0, -x)),
    "softplus": lambda x: np.logaddexp(0, x),
}


class Scorer:
    """The score of a document: the sum over towers of the logit z, or of log s(z) for a probability.

    A tower is a network of features, or a table with a logit per id. Its row 0 is that of ids it does not know: what
    the model takes a document for that training has not shown.

    Attributes:
        name: Of the model.
        width: Features per document; None where no tower reads features.
        reads_ids: Whether a tower reads ids.
        description: The towers, as ranker.npz describes them.
    """

    def __init__(self, file):
        with np.load(file, allow_pickle=False) as stored:
            self.description = json.loads(str(stored["description"]))
            self.arrays = {
                key: np.asarray(stored[key]) for key in stored.files if key != "description"
            }
        self.name, self.width = self.description["model"], self.description["features"]
        self.reads_ids = any(tower["kind"] == "table" for tower in self.description["towers"])

    def score(self, features=None, ids=None, transformed=False):
        """Scores documents.

        Args:
            features: Feature vectors, [..., features], as in the files that training read.
            ids: Ids of query-document pairs, [...].
            transformed: Whether the features are already transformed as the dataset transforms them.

        Returns:
            Scores [...]; higher is better.

        Raises:
            ValueError: What a tower reads is missing, or features have another length.
        """
        if self.width is not None:
            features = self._transformed(features, transformed)
        if self.reads_ids and ids is None:
            raise ValueError("the ranker has a table of ids: give ids")
        total = 0.0
        for tower in self.description["towers"]:
            z = (
                self._table(tower, ids)
                if tower["kind"] == "table"
                else self._network(tower, features)
            )
            total = total + (-np.logaddexp(0, -z) if tower["log_probability"] else z)
        return total

    def rank(self, features=None, ids=None):
        """Returns the places of documents [n] in the order of their scores, the best first."""
        return np.argsort(-self.score(features, ids), axis=-1, kind="stable")

    def _transformed(self, features, transformed):
        if features is None:
            raise ValueError(f"the ranker reads features: give vectors of {self.width} numbers")
        features = np.asarray(features, np.float64)
        if features.shape[-1:] != (self.width,):
            raise ValueError(
                f"features have shape {features.shape}, and the ranker reads {self.width} per document"
            )
        if not transformed and self.description["transform"] == "log1p":
            features = np.sign(features) * np.log1p(np.abs(features))
        return features

    def _table(self, tower, ids):
        values = self.arrays[tower["values"]]
        ids = np.asarray(ids)
        return values[np.where((ids > 0) & (ids < len(values)), ids, 0)].astype(np.float64)

    def _network(self, tower, x):
        x = self._layers(tower["input"], x)
        crossed = x
        for layer in tower["cross"]:
            crossed = x * self._dense(layer, crossed) + crossed
        if tower["combination"] == "stacked":
            last = self._layers(tower["deep"], crossed)
        else:
            last = np.concatenate([self._layers(tower["deep"], x), crossed], axis=-1)
        return self._dense(tower["output"], last)[..., 0]

    def _layers(self, layers, x):
        for layer in layers:
            if layer["kind"] == "dense":
                x = self._dense(layer, x)
            elif layer["kind"] == "layer_norm":
                centred = x - x.mean(axis=-1, keepdims=True)
                spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + layer["epsilon"])
                x = centred / spread * self.arrays[layer["scale"]] + self.arrays[layer["bias"]]
            else:
                x = _ACTIVATIONS[layer["name"]](x)
        return x

    def _dense(self, layer, x):
        return x @ self.arrays[layer["kernel"]].astype(np.float64) + self.arrays[layer["bias"]]
