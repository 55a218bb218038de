"""Batches of simulated clicks on documents with features, and of annotated lists, as a loader yields them."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp import PositionBasedModel

FEATURES, POSITIONS, CANDIDATES = 8, 10, 20
EXAMINATION = 2 - 1.5 * np.log(np.arange(1, POSITIONS + 1))
"""True examination logit of each position, from 1."""


class TrueAttraction(nnx.Module):
    """What the simulated users like: a linear part, and a product of two features."""

    def __call__(self, batch):
        features = batch["query_doc_features"]
        return 1.5 * features[..., 0] + features[..., 1] * features[..., 2] - 1.5


class ClickBatches:
    """Sessions of position-biased users on lists that a noisy ranker ordered; the same in every pass."""

    def __init__(self, sessions: int, seed: int, batch_size: int = 512):
        self.sizes = [min(batch_size, sessions - start) for start in range(0, sessions, batch_size)]
        self.seed = seed
        self.user = PositionBasedModel(POSITIONS, attraction=TrueAttraction(), rngs=nnx.Rngs(0))
        self.user.examination.weight[...] = jnp.asarray([0.0, *EXAMINATION], jnp.float32)
        self.batches = list(self._simulate())

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return iter(self.batches)

    def _simulate(self) -> Iterator[dict[str, np.ndarray]]:
        rng, rngs = np.random.default_rng(self.seed), nnx.Rngs(self.seed)
        for size in self.sizes:
            features = rng.normal(size=(size, CANDIDATES, FEATURES)).astype(np.float32)
            scores = features[..., 0] + rng.normal(size=features.shape[:2])
            shown = np.argsort(-scores, axis=1)[:, :POSITIONS]
            batch = {
                "query_doc_features": np.take_along_axis(features, shown[..., None], axis=1),
                "positions": np.tile(np.arange(1, POSITIONS + 1, dtype=np.int32), (size, 1)),
                "mask": np.ones((size, POSITIONS), bool),
            }
            yield {**batch, "clicks": np.asarray(self.user.sample(batch, rngs).clicks)}


def annotations(lists: int, seed: int) -> dict[str, np.ndarray]:
    """A batch of lists of unequal length with labels 0 to 4 of the true attraction, and without clicks."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(lists, CANDIDATES, FEATURES)).astype(np.float32)
    mask = np.arange(CANDIDATES) < rng.integers(5, CANDIDATES + 1, lists)[:, None]
    attraction = TrueAttraction()({"query_doc_features": features})
    labels = np.searchsorted(np.quantile(attraction, [0.5, 0.75, 0.9, 0.97]), attraction)
    return {"query_doc_features": features, "labels": labels.astype(np.float32), "mask": mask}
