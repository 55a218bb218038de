"""Metrics of rankings that the log has not shown, estimated from its clicks."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np

from clickexp.errors import ConfigError
from clickexp.metrics.base import WEIGHTS, PerList, mask_of, pick
from clickexp.metrics.ranking.base import Cutoffs
from clickexp.metrics.ranking.graded import DCG
from clickexp.utils.bounds import OneOf, Probability


@dataclass(eq=False, repr=False)
class SelfNormalizedDCG(DCG):
    """Self-normalised inverse propensity estimate of DCG from clicks alone: sum w c d(rank) / sum w c.

    The sums run over all documents of all lists, c being clicks, w = 1 / max(propensity of the position, clip), and
    d(rank) = 1 / log2(1 + rank) up to the cutoff of the rank that the model gives the document in its list, or 0.
    Where clicks have the probability propensity times relevance, it estimates the mean of d over documents, each as
    often as it is relevant: 1 where whatever is relevant is ranked first. Tied documents have the mean d of their
    places. (Swaminathan & Joachims 2015, "The self-normalized estimator for counterfactual learning"; Joachims,
    Swaminathan & Schnabel 2017.)

    Reads scores and where as `RankingMetric`, and of the same shape clicks and positions, from 1.

    Args:
        propensity: By position, from the first, numbers of which only the ratios matter, 0 for what is unknown; clicks
            there and at further positions do not count. In configurations, where they come from.
        clip: Smallest propensity, relative to the first, that weights divide by.
        places: Function of the outputs that numbers the propensity of each document from 1, such as by device and
            position; propensities are then relative as they are. None for the position.
        cutoffs: See `RankingMetric`.

    Raises:
        ConfigError: Propensities that are not numbers of at least 0, the first above 0; with `places`, one of them.
    """

    divisor = "weight"
    form: Annotated[str, OneOf("linear")] = "linear"
    cutoffs: Cutoffs = None
    _: KW_ONLY
    propensity: Any = None
    clip: Probability = 0.05
    places: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.propensity, Sequence):
            self.propensity = tuple(map(float, self.propensity))
            needed, which = self.propensity[:1], "the first"
            if self.places is not None:  # the first of a layout may be any
                needed, which = self.propensity, "one of them"
            if not (any(needed) and all(value >= 0 for value in self.propensity)):
                raise ConfigError(
                    f"propensity={list(self.propensity)}: give numbers of at least 0, {which} above 0"
                )

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """The sums over the lists of one batch, and `weight`, that of their clicks; if kept, that of each list.

        Raises:
            TypeError: Where scores, clicks or positions are missing.
        """
        clicks, positions = (
            jnp.asarray(pick(self, outputs, name)) for name in ("clicks", "positions")
        )
        relative = np.array(self.propensity, np.float32)
        if self.places is None:
            relative /= relative[0]
        else:
            positions = jnp.broadcast_to(self.places(outputs), positions.shape)
        inverse = np.where(relative > 0, 1 / np.maximum(relative, self.clip), 0)
        by_position = jnp.asarray(np.concatenate([[0], inverse, [0]]), jnp.float32)
        weights = by_position[jnp.clip(positions, 0, len(by_position) - 1)]
        where = mask_of(outputs, clicks.shape)
        labels = jnp.where(
            where & clicks.astype(bool), jnp.broadcast_to(weights, clicks.shape), 0.0
        )
        sums = super().statistics(scores=pick(self, outputs, "scores"), labels=labels, where=where)
        by_list = jnp.sum(labels, axis=0)
        kept = {WEIGHTS: PerList(by_list)} if self.keep_values else {}
        return {**sums, "weight": jnp.sum(by_list), **kept}
