"""Cascade model."""

import enum
import math
from typing import Annotated

import jax.numpy as jnp
from flax import nnx

from clickexp.models.base import clicks_by_rank
from clickexp.models.cascade.chain import Browsing, CascadeFamily
from clickexp.numerics import ALWAYS, LogPair
from clickexp.parameters import EmbeddingParameterConfig, Sizes, build_parameter
from clickexp.parameters.base import Features, Source
from clickexp.types import Batch
from clickexp.utils.bounds import Bounds, Pairs, Probability, bounded


class Conditional(enum.StrEnum):
    """Which probability stands in for P(click | clicks above) down to the first click."""

    CASCADE = "cascade"
    MARGINAL = "marginal"


class CascadeModel(CascadeFamily):
    """CM: users read from the top, click the first attractive document and leave.

    P(c_r = 1 | no click above) = a_r, and 0 after a click; a second click is impossible, so that its
    log-probability is set to `min_log_prob`. P(c_r = 1) = a_r prod_{i<r} (1 - a_i).

    conditional: "cascade", or "marginal" to use P(c_r = 1) before the first click, as some published
    tables do. Those numbers are not conditional probabilities.

    Craswell, Zoeter, Taylor and Ramsey 2008, "An experimental comparison of click position-bias models".
    """

    name = "CM"

    @bounded
    def __init__(
        self,
        query_doc_pairs: Pairs | None = None,
        attraction: Source = None,
        *,
        min_log_prob: Annotated[float, Bounds(below=0)] = math.log(1e-8),
        conditional: Conditional | str = Conditional.CASCADE,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        sizes = Sizes(query_doc_pairs, click_rate=click_rate, features=features)
        self.attraction = build_parameter(
            "attraction", attraction, EmbeddingParameterConfig(), sizes, rngs=rngs
        )
        self.min_log_prob = min_log_prob
        self.before_click = Conditional(conditional)

    def browsing(self, batch: Batch) -> Browsing:
        return Browsing(self.attraction.ranked(batch), satisfaction=ALWAYS)

    def conditional(self, batch: Batch) -> LogPair:
        if self.before_click is Conditional.MARGINAL:
            pair = self.marginal(batch)
        else:
            pair = self.attraction.ranked(batch)
        clicks = clicks_by_rank(batch).astype(jnp.int32)
        gone = jnp.cumsum(clicks, axis=0) > clicks
        floor = LogPair(self.min_log_prob, math.log1p(-math.exp(self.min_log_prob)))
        return LogPair(
            jnp.where(gone, floor.log, pair.log), jnp.where(gone, floor.complement, pair.complement)
        )
