"""Towers with known values, for users whose behaviour is simulated."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.parameters.base import Parameter
from clickexp.types import Batch, Logits


class FixedParameter(Parameter):
    """z = values[id]: known logits that no optimizer changes. A single value serves every document."""

    def __init__(self, values: np.ndarray | float, use_feature: str = "query_doc_ids"):
        self.values = nnx.Variable(jnp.asarray(values, jnp.float32))
        self.use_feature = use_feature

    def logit(self, batch: Batch) -> Logits:
        """The known logits of the documents."""
        values = self.values[...]
        return values.reshape(1, 1) if values.ndim == 0 else values[batch[self.use_feature]]

    def limits(self) -> dict[str, int]:
        """The largest id; none for a single value."""
        return {self.use_feature: self.values.shape[0] - 1} if self.values.ndim else {}


class DecayingExamination(Parameter):
    """z = top - decay log(d), d the distance in ranks to the last click, or to the top of the list.

    Models whose examination does not depend on clicks get the distance to the top, the rank itself.
    """

    def __init__(self, top: float, decay: float):
        self.top = top
        self.decay = decay

    def logit(self, batch: Batch) -> Logits:
        """The logits by position and, where the batch has one, last click."""
        distance = batch["positions"] - batch.get("last_click_positions", 0)
        return self.top - self.decay * jnp.log(distance.astype(jnp.float32))
