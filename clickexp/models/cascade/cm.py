"""Cascade model."""

import enum
import math
from collections.abc import Collection
from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Lt
from flax import nnx

from clickexp.models.cascade.chain import CascadeFamily, CascadeProbs
from clickexp.models.roles import Role
from clickexp.numerics import ALWAYS, LogPair
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.parameters.base import Columns, Features, Source
from clickexp.types import ByRank
from clickexp.utils.bounds import Pairs, PositiveInt, Probability


class Conditional(enum.StrEnum):
    """Which probability replaces P(click | clicks above) down to the first click."""

    CASCADE = "cascade"
    MARGINAL = "marginal"


class CascadeModel(CascadeFamily):
    """CM: users read from the top, click the first attractive document and leave.

    P(c_r = 1 | no click above) = a_r, and 0 after a click; a second click is impossible, so that its
    log-probability is set to `min_log_prob`. P(c_r = 1) = a_r prod_{i<r} (1 - a_i).

    Args:
        min_log_prob: Log-probability of a second click.
        conditional: "cascade", or "marginal" to use P(c_r = 1) before the first click, as some published
            tables do. Those numbers are not conditional probabilities.

    Craswell, Zoeter, Taylor and Ramsey 2008, "An experimental comparison of click position-bias models".
    """

    name = "CM"

    attraction: Role = Role(EmbeddingParameterConfig())

    def __init__(
        self,
        query_doc_pairs: Pairs | None = None,
        attraction: Source = None,
        *,
        min_log_prob: Annotated[float, Lt(0)] = math.log(1e-8),
        conditional: Conditional | str = Conditional.CASCADE,
        positions: PositiveInt | None = None,
        click_rate: Probability | None = None,
        features: Features = None,
        columns: Columns = None,
        standardized: Collection[str] = (),
        rngs: nnx.Rngs | None = None,
    ):
        # not generated, since the argument `conditional` has the name of a method
        self.query_doc_pairs, self.attraction, self.positions = (
            query_doc_pairs,
            attraction,
            positions,
        )
        self.min_log_prob, self.before_click = min_log_prob, Conditional(conditional)
        self.__post_init__(click_rate, features, columns, standardized, rngs)

    def probs(self, batch: ByRank) -> CascadeProbs:
        """Returns a, and satisfaction with the first click."""
        return CascadeProbs(self.attraction.log_pair(batch), satisfaction=ALWAYS)

    def conditional(self, batch: ByRank) -> LogPair:
        """Returns a down to the first click, and `min_log_prob` below it."""
        marginal = self.before_click is Conditional.MARGINAL
        pair = self.marginal(batch) if marginal else self.attraction.log_pair(batch)
        clicks = batch.clicks.astype(jnp.int32)
        gone = jnp.cumsum(clicks, axis=0) > clicks
        floor = LogPair(self.min_log_prob, math.log1p(-math.exp(self.min_log_prob)))
        return jax.tree.map(lambda after, before: jnp.where(gone, after, before), floor, pair)
