"""Corrections of clicks with known propensities: none, inverse weights, the affine correction of trust bias."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data import Dataset, Sessions
from clickexp.errors import ConfigError
from clickexp.models.ranker.losses import LINEAR_LOSSES, Loss, PerList
from clickexp.parameters.base import Sizes
from clickexp.propensities import Propensities, PropensitySource, Weighting
from clickexp.propensities.policy import with_policy_propensity
from clickexp.types import Array, Batch, PerDocument
from clickexp.utils.bounds import PositiveProbability, check_numbers

POLICY_PROPENSITY = "policy_propensity"
"""Column of the mean propensity of each document under the logging policy."""


@dataclasses.dataclass(frozen=True)
class Debias(abc.ABC):
    """A correction of clicks for their bias. A subclass defines `loss`, and `build` where it learns something itself.

    Attributes:
        name: In results.
        learns_examination: Whether it learns examination by position, beside the relevance of documents.
        validates_clicks: Whether validation reports a likelihood of clicks in place of the loss of training.
    """

    name: ClassVar[str] = ""
    learns_examination: ClassVar[bool] = False
    validates_clicks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_numbers(type(self).__init__, vars(self))

    def check(self, loss: Loss) -> None:  # noqa: B027  # most are defined for all
        """ConfigError where the method is not defined for a loss."""

    def build(self, sizes: Sizes, rngs: nnx.Rngs) -> nnx.Module | None:
        """Builds what the method learns besides the ranker; None for nothing."""
        return None

    def resolved(self, dataset: Dataset) -> "Debias":
        """Returns the method with what it takes from the dataset once, such as propensities.

        Raises:
            UserError: The dataset does not have it.
        """
        return self

    def prepare(self, dataset: Dataset) -> Dataset:
        """Returns the dataset with the columns that the method reads besides clicks."""
        return dataset

    def weighting(self, sessions: Sessions) -> Weighting | None:
        """Returns what weights leave of the clicks of sessions, which `prepare` has seen; None without weights."""
        return None

    @abc.abstractmethod
    def loss(
        self,
        loss: Loss,
        scores: PerDocument,
        batch: Batch,
        learned: Any = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the loss of each list.

        Args:
            loss: The loss of the ranking.
            scores: What documents are ranked by.
            batch: Sessions with clicks.
            learned: What `build` returned.
            key: JAX key of a loss that draws noise.
        """

    def examination(self, learned: Any) -> Array | None:
        """Returns the learned examination by position from 1, up to a factor; None where none is learned."""
        return None

    def check_defined(self, loss: Loss, is_defined: bool, choices: str) -> None:
        """ConfigError unless the method is defined for the loss.

        Args:
            loss: The loss.
            is_defined: Whether it is.
            choices: Losses that it is defined for.
        """
        if not is_defined:
            raise ConfigError(
                f"debias={self.name} is not defined for loss={loss.name or type(loss).__name__}; choose {choices}"
            )


@dataclasses.dataclass(frozen=True)
class NoDebias(Debias):
    """Takes clicks for relevance."""

    name: ClassVar[str] = "none"

    def loss(
        self,
        loss: Loss,
        scores: PerDocument,
        batch: Batch,
        learned: Any = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the loss of the clicks."""
        return loss(scores, batch["clicks"], batch["mask"], key=key)


@dataclasses.dataclass(frozen=True)
class WithPropensities(Debias):
    """Settings of corrections with known propensities.

    Attributes:
        propensity: Where they come from; `resolved` replaces a source by its `Propensities`.
        clip: The smallest relative propensity that weights divide by.
        subtracts_offsets: Whether clicks count less the click rates of irrelevant documents.
    """

    subtracts_offsets: ClassVar[bool] = False
    propensity: Propensities | PropensitySource | None = None
    clip: PositiveProbability = 0.05

    def known_propensities(self) -> Propensities:
        """Returns the propensities; ConfigError where they have not been estimated.

        Weights that subtract no offsets take the click rates of relevant documents.
        """
        if isinstance(self.propensity, Propensities):
            return self.propensity if self.subtracts_offsets else self.propensity.of_relevant()
        raise ConfigError(
            f"debias={self.name} needs propensities: give debias.propensity, such as propensity=given"
        )

    def resolved(self, dataset: Dataset) -> "WithPropensities":
        """Returns the method with the propensities that its source has for the dataset."""
        if not isinstance(self.propensity, PropensitySource):
            return self
        return dataclasses.replace(self, propensity=self.propensity(dataset))

    def weighting(self, sessions: Sessions) -> Weighting:
        """Returns the share of the clicks of sessions that the weights leave; `prepare` has seen these."""
        propensities, ignores_offsets = self.known_propensities(), self._ignores_offsets()
        weights = None
        if propensities.cells is None:
            positions = np.arange(1, sessions.positions + 1)[None]
            batch = {"positions": positions, "mask": np.ones(positions.shape, bool)}
            weights = np.append(0.0, np.asarray(self.weights(batch), float)[0])
        return Weighting.of(
            propensities, self.clip, sessions, ignores_offsets=ignores_offsets, weights=weights
        )

    def _ignores_offsets(self) -> bool:
        propensity = self.propensity
        return (
            not self.subtracts_offsets
            and isinstance(propensity, Propensities)
            and any(propensity.offsets or ())
        )

    def weights(self, batch: Batch) -> PerDocument:
        """Returns 1 / propensity of each document, 0 where it is unknown.

        A correction that weighs clicks in another way overrides this: what a run prints of weights is then true of it.
        """
        propensities = self.known_propensities()
        weights = propensities.weights(len(propensities.values), self.clip)
        return by_position(weights, batch, propensities)


def by_position(curve: np.ndarray, batch: Batch, propensities: Propensities) -> PerDocument:
    """Looks a curve up by the position of each document.

    Args:
        curve: Numbers by position from 0, or by cell of layouts; further ones have 0.
        batch: Sessions.
        propensities: Those that the curve is of.
    """
    values = jnp.asarray(np.append(curve, 0), jnp.float32)
    places = jnp.minimum(propensities.places(batch), len(curve))
    return jnp.broadcast_to(values[places], batch["mask"].shape)


@dataclasses.dataclass(frozen=True)
class InversePropensity(WithPropensities):
    """Inverse propensity scoring: a click at position k has weight 1 / max(p_k, clip).

    Wang et al. 2016, "Learning to rank with selection bias in personal search"; Joachims, Swaminathan and Schnabel
    2017, "Unbiased learning-to-rank with biased feedback".
    """

    name: ClassVar[str] = "ips"

    def loss(
        self,
        loss: Loss,
        scores: PerDocument,
        batch: Batch,
        learned: Any = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the loss of the weighted clicks."""
        return loss(scores, batch["clicks"], batch["mask"], self.weights(batch), key)


@dataclasses.dataclass(frozen=True)
class AffineCorrection(WithPropensities):
    """(c - beta_k) / max(alpha_k, clip) in place of the click, where users trust high ranks.

    alpha are the propensities, beta their offsets: the click rates of irrelevant documents.

    Vardasbi, Oosterhuis and de Rijke 2020, "When inverse propensity scoring does not work: affine corrections for
    unbiased learning to rank".
    """

    name: ClassVar[str] = "affine"
    subtracts_offsets: ClassVar[bool] = True

    def check(self, loss: Loss) -> None:
        """ConfigError for a loss that does not take labels of any value, or propensities without offsets."""
        self.check_defined(loss, loss.linear, LINEAR_LOSSES)
        if isinstance(self.propensity, PropensitySource) and not self.propensity.may_have_offsets:
            raise self._without_offsets(type(self.propensity).__name__)

    def known_propensities(self) -> Propensities:
        """Returns the propensities; ConfigError without offsets, with which the correction would be that of ips."""
        propensities = super().known_propensities()
        if propensities.offsets is None:
            raise self._without_offsets(propensities.source)
        return propensities

    def _without_offsets(self, source: str) -> ConfigError:
        return ConfigError(
            f"debias=affine needs click rates of irrelevant documents, and propensities ({source}) have none: give "
            "propensity.offsets, or propensity.run of a run of model=trust_bias, or take debias=ips"
        )

    def prepare(self, dataset: Dataset) -> Dataset:
        """Returns the dataset as it is; ConfigError without offsets."""
        self.known_propensities()
        return dataset

    def loss(
        self,
        loss: Loss,
        scores: PerDocument,
        batch: Batch,
        learned: Any = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the loss of the corrected clicks."""
        propensities = self.known_propensities()
        offsets = by_position(
            np.nan_to_num(propensities.by_position(len(propensities.values), "offsets")),
            batch,
            propensities,
        )
        corrected = (jnp.asarray(batch["clicks"], jnp.float32) - offsets) * self.weights(batch)
        return loss(scores, corrected, batch["mask"])


@dataclasses.dataclass(frozen=True)
class PolicyAware(WithPropensities):
    """Weights by the propensity of a document under the logging policy: p_d = sum_k P(rank k | query, document) p_k.

    P is how often the training log showed the document at each rank, over all sessions of its query; p is 0 where it
    was not shown. Documents that a page of k results leaves out now and then get their share from the other times.
    Clicks at positions without a propensity have weight 0, as P(rank k) p_k has there.

    Oosterhuis and de Rijke 2020, "Policy-aware unbiased learning to rank for top-k rankings".
    """

    name: ClassVar[str] = "policy_aware"

    def prepare(self, dataset: Dataset) -> Dataset:
        """Returns the dataset with the propensity of each document as a column."""
        return with_policy_propensity(dataset, self.known_propensities(), POLICY_PROPENSITY)

    def weighting(self, sessions: Sessions) -> Weighting:
        """Returns the share of the clicks of sessions that weights by document leave; `prepare` has seen these."""
        return Weighting.of(
            self.known_propensities(),
            self.clip,
            sessions,
            POLICY_PROPENSITY,
            self._ignores_offsets(),
        )

    def loss(
        self,
        loss: Loss,
        scores: PerDocument,
        batch: Batch,
        learned: Any = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the loss of the weighted clicks."""
        weights_known = self.weights(batch) > 0
        weights = jnp.where(
            weights_known, 1 / jnp.maximum(batch[POLICY_PROPENSITY], self.clip), 0.0
        )
        return loss(scores, batch["clicks"], batch["mask"], weights, key)


def corrected_relevance(
    clicks: Array, estimate: Array, alpha: Array, beta: Array, divisor: Array
) -> Array:
    """Returns the doubly robust estimate of relevance, R + (c - beta - alpha R) / divisor.

    Its mean is the relevance if the estimate R is, whatever the divisor; or if the divisor is alpha, whatever R.
    """
    return estimate + (clicks - beta - alpha * estimate) / divisor
