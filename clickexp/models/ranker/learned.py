"""Corrections that learn examination, or another estimate of relevance, beside the ranker."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.models.ranker.debias import (
    Debias,
    WithPropensities,
    by_position,
    corrected_relevance,
)
from clickexp.models.ranker.losses import LINEAR_LOSSES, Loss, PerList, PointwiseLoss, SoftmaxLoss
from clickexp.models.ranker.pairs import PairwiseLoss
from clickexp.numerics import LOG_ZERO, log_sigmoid_pair
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.parameters.base import Parameter, Sizes, Source, build_parameter
from clickexp.types import Array, Batch, PerDocument
from clickexp.utils.bounds import Fraction, NonNegativeFloat, PositiveFloat

_SMALLEST = 1e-6


class Curve(nnx.Module):
    """Numbers by position from 0, of which gradients or separate steps change those from 1."""

    def __init__(self, positions: int, initial: float, variable: type[nnx.Variable] = nnx.Param):
        self.values = variable(jnp.full(positions + 1, initial, jnp.float32))
        self.deterministic = True

    def at(self, batch: Batch) -> PerDocument:
        """Returns the number of each document's position."""
        return jnp.broadcast_to(self.values[...][batch["positions"]], batch["mask"].shape)

    def set_view(self, deterministic: bool | None = None) -> None:
        """As Flax's layers have it; steps are taken in training only."""
        if deterministic is not None:
            self.deterministic = deterministic


class _Moved(nnx.Variable):
    """A variable that training moves by a separate rule, without a gradient."""


def _positions(sizes: Sizes) -> int:
    if sizes.positions is None:
        raise ValueError("a ranker that learns examination needs positions=...")
    return sizes.positions


def _sums(values: Array, batch: Batch, largest: int) -> Array:
    """Sums by position from 0."""
    places = jnp.broadcast_to(batch["positions"], batch["mask"].shape)
    return jnp.zeros(largest + 1).at[places].add(jnp.where(batch["mask"], values, 0.0))


@dataclasses.dataclass(frozen=True)
class DualLearning(Debias):
    """Dual learning algorithm: ranker and examination each correct the clicks of the other.

    Ranker: the loss with weights g_1 / g_k, where g is the softmax over positions of a logit each. Examination: softmax
    cross-entropy over positions of the clicks with weights r_1 / r_i, where r is the softmax of the scores in the list
    and r_1 that of its first document. Weights have no gradient and are clipped.

    Weights change the scale of these losses from epoch to epoch. What validation reports instead, and early stopping
    watches, is the softmax cross-entropy of the clicks at scores f_i + log g_k, which both have to explain together.

    Ai, Bi, Luo, Guo and Croft 2018, "Unbiased learning to rank with unbiased propensity estimation".

    Attributes:
        max_weight: The largest of both weights.
    """

    name: ClassVar[str] = "dla"
    learns_examination: ClassVar[bool] = True
    validates_clicks: ClassVar[bool] = True
    max_weight: PositiveFloat = 20.0

    def build(self, sizes: Sizes, rngs: nnx.Rngs) -> nnx.Module:
        """Builds a logit per position."""
        return Curve(_positions(sizes), 0.0)

    def loss(
        self,
        loss: Loss,
        scores: PerDocument,
        batch: Batch,
        learned: Any = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the loss of the ranking plus that of examination."""
        mask, clicks = batch["mask"], batch["clicks"]
        logits = learned.at(batch)
        if learned.deterministic:
            return SoftmaxLoss()(scores + logits, clicks, mask)
        of_rank = jnp.exp(jnp.minimum(learned.values[1] - logits, jnp.log(self.max_weight)))
        masked = jnp.where(mask, scores, LOG_ZERO)
        places = jnp.where(
            mask, jnp.broadcast_to(batch["positions"], mask.shape), np.iinfo(np.int32).max
        )
        first = jnp.take_along_axis(scores, jnp.argmin(places, axis=1)[:, None], axis=1)
        of_score = jnp.exp(jnp.minimum(first - masked, jnp.log(self.max_weight)))
        of_rank, of_score = jax.lax.stop_gradient((of_rank, of_score))
        return loss(scores, clicks, mask, of_rank, key) + SoftmaxLoss()(
            logits, clicks, mask, of_score
        )

    def examination(self, learned: Any) -> Array:
        """Returns the softmax over positions, up to its factor."""
        return jnp.exp(learned.values[1:] - learned.values[1])


@dataclasses.dataclass(frozen=True)
class RegressionEM(Debias):
    """Regression-based EM of the position-based model, whose relevance is a sigmoid of the scores.

    E-step: P(relevant | no click) = (1 - e) r / (1 - e r), and likewise for examination; with a click both are 1.
    M-step: the ranker fits the pointwise loss to the expected relevance; examination moves by `step` towards its mean
    in each batch.

    Validation reports the log-likelihood of the clicks, with P(click) = e r.

    Wang, Golbandi, Bendersky, Metzler and Najork 2018, "Position bias estimation for unbiased learning to rank in
    personal search", which samples the relevance instead.

    Attributes:
        step: Of examination, per batch.
        initial: Examination at the start.
    """

    name: ClassVar[str] = "regression_em"
    learns_examination: ClassVar[bool] = True
    validates_clicks: ClassVar[bool] = True
    step: Fraction = 0.05
    initial: Fraction = 0.5

    def check(self, loss: Loss) -> None:
        """ConfigError for any loss but the pointwise one, which the E-step takes the scores to be fitted by."""
        self.check_defined(loss, isinstance(loss, PointwiseLoss), "pointwise")

    def build(self, sizes: Sizes, rngs: nnx.Rngs) -> nnx.Module:
        """Builds a probability per position."""
        return Curve(_positions(sizes), self.initial, _Moved)

    def loss(
        self,
        loss: Loss,
        scores: PerDocument,
        batch: Batch,
        learned: Any = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the pointwise loss of the expected relevance, and moves examination."""
        clicks, examination = batch["clicks"], learned.at(batch)
        relevance = jax.nn.sigmoid(jax.lax.stop_gradient(scores))
        neither = jnp.maximum(1 - examination * relevance, _SMALLEST)
        relevant = jnp.where(clicks, 1.0, (1 - examination) * relevance / neither)
        if learned.deterministic:
            click = jnp.clip(examination * relevance, _SMALLEST, 1 - _SMALLEST)
            return -jnp.sum(
                jnp.where(clicks, jnp.log(click), jnp.log1p(-click)), axis=1, where=batch["mask"]
            )
        examined = jnp.where(clicks, 1.0, examination * (1 - relevance) / neither)
        old, largest = learned.values[...], learned.values.shape[0] - 1
        documents = _sums(jnp.ones_like(examined), batch, largest)
        new = _sums(examined, batch, largest) / jnp.maximum(documents, 1)
        learned.values[...] = jnp.where(documents > 0, (1 - self.step) * old + self.step * new, old)
        return loss(scores, relevant, batch["mask"])

    def examination(self, learned: Any) -> Array:
        """Returns P(examination)."""
        return learned.values[1:]


class Ratios(nnx.Module):
    """The bias of clicked and of other documents by position, relative to the first."""

    def __init__(self, positions: int):
        self.clicked = Curve(positions, 1.0, _Moved)
        self.others = Curve(positions, 1.0, _Moved)


@dataclasses.dataclass(frozen=True)
class PairDebias(Debias):
    """Pairwise debiasing: the loss of a pair is divided by t+ of its clicked and t- of its other document's position.

    t+_k moves by `step` towards the summed loss of pairs clicked at k over that at the first position, each divided by
    t-, to the power 1 / (1 + p); t- likewise.

    Hu, Wang, Peng and Li 2019, "Unbiased LambdaMART: an unbiased pairwise learning-to-rank algorithm".

    Attributes:
        step: Of t+ and t-, per batch.
        power: The p of the regularisation, above 0 to flatten the ratios.
        least: The smallest ratio that losses are divided by.
    """

    name: ClassVar[str] = "pair_debias"
    learns_examination: ClassVar[bool] = True
    step: Fraction = 0.05
    power: NonNegativeFloat = 0.0
    least: Fraction = 0.05

    def check(self, loss: Loss) -> None:
        """ConfigError for a loss without pairs."""
        self.check_defined(loss, isinstance(loss, PairwiseLoss), "pairwise, lambda")

    def build(self, sizes: Sizes, rngs: nnx.Rngs) -> nnx.Module:
        """Builds both ratios by position."""
        return Ratios(_positions(sizes))

    def loss(
        self,
        loss: Loss,
        scores: PerDocument,
        batch: Batch,
        learned: Any = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the divided losses, and moves the ratios."""
        assert isinstance(loss, PairwiseLoss)  # noqa: S101  # as `check` has made sure
        pairs = loss.of_pairs(scores, batch["clicks"], batch["mask"])
        plus, minus = (
            jnp.maximum(curve.at(batch), self.least) for curve in (learned.clicked, learned.others)
        )
        if not learned.clicked.deterministic:
            fixed = jax.lax.stop_gradient(pairs)
            self._move(learned.clicked, jnp.sum(fixed / minus[:, None, :], axis=2), batch)
            self._move(learned.others, jnp.sum(fixed / plus[:, :, None], axis=1), batch)
        return jnp.sum(pairs / (plus[:, :, None] * minus[:, None, :]), axis=(1, 2))

    def _move(self, curve: Curve, losses: Array, batch: Batch) -> None:
        old, largest = curve.values[...], curve.values.shape[0] - 1
        sums = _sums(losses, batch, largest)
        ratio = jnp.maximum(sums, 0.0) / jnp.maximum(sums[1], _SMALLEST)
        new = ratio ** (1 / (1 + self.power))
        has_losses = (sums[1] > 0) & (sums > 0)
        curve.values[...] = jnp.where(has_losses, (1 - self.step) * old + self.step * new, old)

    def examination(self, learned: Any) -> Array:
        """Returns t+."""
        return learned.clicked.values[1:]


@dataclasses.dataclass(frozen=True)
class DoublyRobust(WithPropensities):
    """Doubly robust estimate of relevance, R + (c - beta_k - alpha_k R) / max(alpha_k, clip), in place of the click.

    R = s(g) is the regression estimate of a second tower g, fitted beside the ranker to the clicks, of probability
    beta_k + alpha_k R. The estimate has the mean of relevance if R is right, or if no propensity is clipped. At
    positions without a propensity it is R.

    Oosterhuis 2023, "Doubly robust estimation for correcting position bias in click feedback for unbiased learning to
    rank".

    Attributes:
        regression: The second tower.
    """

    name: ClassVar[str] = "doubly_robust"
    subtracts_offsets: ClassVar[bool] = True
    regression: Source = dataclasses.field(default_factory=EmbeddingParameterConfig)

    def check(self, loss: Loss) -> None:
        """ConfigError for a loss that does not take labels of any value."""
        self.check_defined(loss, loss.linear, LINEAR_LOSSES)

    def build(self, sizes: Sizes, rngs: nnx.Rngs) -> Parameter:
        """Builds the second tower."""
        return build_parameter(
            "debias.regression", self.regression, EmbeddingParameterConfig(), sizes, rngs=rngs
        )

    def loss(
        self,
        loss: Loss,
        scores: PerDocument,
        batch: Batch,
        learned: Any = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the loss of the ranking plus that of the regression."""
        mask, clicks, propensities = batch["mask"], batch["clicks"], self.known_propensities()
        curves = (
            propensities.by_position(len(propensities.values), name)
            for name in ("values", "offsets")
        )
        alpha, beta = (by_position(np.nan_to_num(curve), batch, propensities) for curve in curves)
        pair = log_sigmoid_pair(jnp.broadcast_to(learned.logit(batch), mask.shape))
        estimate = jax.lax.stop_gradient(jnp.exp(pair.log))
        weights = self.weights(batch)
        divisor = jnp.where(weights > 0, 1 / jnp.where(weights > 0, weights, 1.0), jnp.inf)
        targets = corrected_relevance(clicks.astype(jnp.float32), estimate, alpha, beta, divisor)
        click = jnp.clip(beta + alpha * jnp.exp(pair.log), _SMALLEST, 1 - _SMALLEST)
        of_clicks = -jnp.where(clicks, jnp.log(click), jnp.log1p(-click))
        of_ranking = loss(scores, targets, mask)
        return of_ranking + jnp.sum(of_clicks, axis=1, where=mask & (alpha > 0))
