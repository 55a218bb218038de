"""Additive two-tower model."""

from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.data import Dataset
from clickexp.models.base import ClickModel, IndependentModel, checks_batch
from clickexp.models.roles import Role
from clickexp.numerics import LogPair, log_sigmoid_pair
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig
from clickexp.propensities.policy import with_policy_share
from clickexp.types import Array, Batch, ByRank, LogitsByRank, PerDocument, Scalar
from clickexp.utils.bounds import (
    Decay,
    NonNegativeFloat,
    Pairs,
    PositiveInt,
    PositiveProbability,
)

POLICY_SHARE = "policy_share"
"""Column of the share of the times that the policy showed a document at this position."""


class TwoTowersModel(IndependentModel):
    """Additive two towers: P(c_r = 1) = s(b_r + f_d), with a logit of bias for the position and one of the document.

    The product form, s(b_r) s(f_d), is the position-based model. The additive one is identifiable up to a constant if
    documents shown at several positions connect them. Where the logging policy knows more of relevance than the
    features do, the position stands in for it; three settings are proposed against that.

    Guo et al. 2019, "PAL: a position-bias aware learning framework for CTR prediction in live recommender systems";
    Zhao et al. 2019, "Recommending what video to watch next" (dropout of the bias); Zhang et al. 2023, "Towards
    disentangling relevance and bias in unbiased learning to rank" (dropout, gradient reversal); Hager et al. 2025,
    "Unidentified and confounded? Understanding two-tower models for unbiased learning to rank" (identifiability,
    weights of the policy).

    Attributes:
        dropout: Share of the documents of a training step whose bias is 0; that of others is divided by 1 - dropout.
        reversal: Strength of a reversed gradient: a logistic regression of clicks on the bias alone is fitted, and the
            bias moves against it.
        policy_weighting: Whether documents weigh 1 / P(position | document) under the logging policy, as counted in the
            log, so that all positions of a document count alike.
        clip: The smallest share that weights divide by.
    """

    name = "TwoTowers"
    separates_examination = True

    positions: PositiveInt | None = None
    query_doc_pairs: Pairs | None = None
    attraction: Role = Role(EmbeddingParameterConfig())
    bias: Role = Role(PositionParameterConfig(), plays="examination")
    dropout: Decay = 0.0
    reversal: NonNegativeFloat = 0.0
    policy_weighting: bool = False
    clip: PositiveProbability = 0.05

    def setup(self, rngs: nnx.Rngs) -> None:
        """Builds dropout and the regression on the bias, where they are asked for."""
        self.drop = nnx.Dropout(self.dropout, rngs=rngs) if self.dropout else None
        self.adversary = nnx.Param(jnp.array([1.0, 0.0])) if self.reversal else None

    def prepare(self, dataset: Dataset) -> Dataset:
        """Returns the dataset with the column of policy shares, if it is read."""
        return with_policy_share(dataset, POLICY_SHARE) if self.policy_weighting else dataset

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns s(b + f)."""
        bias = self.bias(batch)
        if self.drop is not None:
            bias = self.drop(batch.broadcast(bias))
        return log_sigmoid_pair(bias + self.attraction(batch))

    def log_examination(self, batch: ByRank, marginal: LogPair | None = None) -> LogitsByRank:
        """Returns 0: the model has no examination apart from the document."""
        return jnp.zeros((1, 1))

    @checks_batch("mask", "clicks")
    def compute_loss(self, batch: Batch, aggregate: bool = True) -> Scalar | PerDocument:
        """Returns -log P(observed click or skip), weighted, and the loss of the regression on the bias."""
        loss = ClickModel.compute_loss(self, batch, aggregate=False)
        if self.policy_weighting:
            loss = loss / jnp.maximum(batch[POLICY_SHARE], self.clip)
        if self.adversary is not None:
            loss = loss + jnp.where(batch["mask"], self._reversed_loss(batch), 0.0)
        return self._reported(loss, batch["mask"], aggregate)

    def _reversed_loss(self, batch: Batch) -> Array:
        bias, (slope, intercept) = self.bias.logit(batch), cast(nnx.Param, self.adversary)[...]
        against = jax.lax.stop_gradient((1 + self.reversal) * bias) - self.reversal * bias
        pair = log_sigmoid_pair(slope * against + intercept)
        return -jnp.where(batch["clicks"].astype(bool), pair.log, pair.complement)
