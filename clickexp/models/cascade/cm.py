"""Cascade model."""

import dataclasses
import math
from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Lt

from clickexp.models.cascade.chain import CascadeFamily, CascadeProbs
from clickexp.models.roles import Role
from clickexp.numerics import ALWAYS, LogPair
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.types import ByRank
from clickexp.utils.bounds import Pairs


class CascadeModel(CascadeFamily):
    """CM: users read from the top, click the first attractive document and leave.

    P(c_r = 1 | no click above) = a_r, and 0 after a click; a second click is impossible, so that its
    log-probability is set to `min_log_prob`. P(c_r = 1) = a_r prod_{i<r} (1 - a_i).

    Attributes:
        min_log_prob: Log-probability of a second click.

    Craswell, Zoeter, Taylor and Ramsey 2008, "An experimental comparison of click position-bias models".
    """

    name = "CM"

    query_doc_pairs: Pairs | None = None
    attraction: Role = Role(EmbeddingParameterConfig())
    min_log_prob: Annotated[float, Lt(0)] = dataclasses.field(default=math.log(1e-8), kw_only=True)

    def probs(self, batch: ByRank) -> CascadeProbs:
        """Returns a, and satisfaction with the first click."""
        return CascadeProbs(self.attraction.log_pair(batch), satisfaction=ALWAYS)

    def conditional(self, batch: ByRank) -> LogPair:
        """Returns a down to the first click, and `min_log_prob` below it."""
        clicks = batch.clicks.astype(jnp.int32)
        gone = jnp.cumsum(clicks, axis=0) > clicks
        floor = LogPair(self.min_log_prob, math.log1p(-math.exp(self.min_log_prob)))
        before = self.before_click(batch)
        return jax.tree.map(lambda after, before: jnp.where(gone, after, before), floor, before)

    def before_click(self, batch: ByRank) -> LogPair:
        """Returns the probabilities down to the first click."""
        return self.attraction.log_pair(batch)


class CascadeModelMarginal(CascadeModel):
    """CM with P(c_r = 1) in place of the conditional before the first click, as some published tables have it.

    Those numbers are not conditional probabilities.
    """

    def before_click(self, batch: ByRank) -> LogPair:
        """Returns the marginal."""
        return self.marginal(batch)
