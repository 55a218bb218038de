"""Losses over pairs of a clicked and another document."""

import dataclasses
import itertools
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import rax
from jaxtyping import Float

from clickexp.errors import ConfigError
from clickexp.models.ranker.losses import Loss, PerList, ScoredLists, as_lists
from clickexp.types import Array, Observed, PerDocument
from clickexp.utils.bounds import OneOf, PositiveFloat, PositiveInt

_Pairs = Float[Array, "batch rank rank"]


@dataclasses.dataclass(frozen=True)
class PairwiseLoss(Loss):
    """sum over pairs with c_i > c_j of w_i log(1 + exp(f_j - f_i)), from Rax.

    Burges et al. 2005, "Learning to rank using gradient descent" (RankNet); with weights Joachims, Swaminathan and
    Schnabel 2017, "Unbiased learning-to-rank with biased feedback".
    """

    name: ClassVar[str] = "pairwise"

    def pairs(self, lists: ScoredLists) -> _Pairs:
        """Returns unweighted losses [batch, clicked, other document], 0 unless the first has the larger label."""
        scores, labels, where, _ = lists
        flat = rax.pairwise_logistic_loss(scores, labels, where=where, reduce_fn=None)
        return flat.reshape(*scores.shape, scores.shape[1])

    def of_pairs(self, scores: PerDocument, clicks: Observed, where: Observed) -> _Pairs:
        """Returns the unweighted losses of pairs, as `pairs` does."""
        with jax.numpy_dtype_promotion("standard"):
            return self.pairs(as_lists(scores, clicks, where))

    def value(self, lists: ScoredLists, key: Array | None) -> PerList:
        """Returns the sum over pairs, each with the weight of its clicked document."""
        return jnp.sum(lists.weights * jnp.sum(self.pairs(lists), axis=2), axis=1)


@dataclasses.dataclass(frozen=True)
class LambdaLoss(PairwiseLoss):
    """The pairwise loss, each pair weighted by what it would change in a metric to swap the two.

    The weights of the changes are Rax's, for clicks without weights: Rax would count weights a second time in the
    gains, and scales by the length of the padded list.

    Burges 2010, "From RankNet to LambdaRank to LambdaMART"; Wang et al. 2018, "The LambdaLoss framework for ranking
    metric optimization".

    Attributes:
        metric: `dcg` of LambdaRank, or `dcg2` of LambdaLoss.
        topn: Ranks that count; None for all.
    """

    name: ClassVar[str] = "lambda"
    metric: Annotated[str, OneOf("dcg", "dcg2")] = "dcg"
    topn: PositiveInt | None = None

    def pairs(self, lists: ScoredLists) -> _Pairs:
        """Returns losses of pairs, times what a swap changes."""
        scores, labels, where, _ = lists
        changed = rax.dcg_lambdaweight if self.metric == "dcg" else rax.dcg2_lambdaweight
        ranked = jax.lax.stop_gradient(scores)
        changes = changed(ranked, labels, where=where, topn=self.topn) / scores.shape[1]
        return super().pairs(lists) * changes.reshape(*scores.shape, scores.shape[1])


@dataclasses.dataclass(frozen=True)
class WarpLoss(Loss):
    """Weighted approximate-rank pairwise loss: sum over clicked i of w_i L(r_i) times the mean hinge of its violators.

    Violators are the documents with smaller labels that are scored at f_i - margin or above; r_i is their number,
    counted and not sampled; L(r) = alpha_1 + ... + alpha_r with alpha non-increasing. alpha = (1, 0, 0, ...) asks for
    the first rank only; a constant alpha for the mean rank, which makes it the pairwise hinge loss.

    Usunier, Buffoni and Gallinari 2009, "Ranking with ordered weighted pairwise classification"; Weston, Bengio and
    Usunier 2010, "Large scale image annotation: learning to rank with joint word-image embeddings".

    Attributes:
        alpha: `harmonic` (1, 1/2, 1/3, ...), `constant`, or the first numbers, such as k ones for precision at k; 0
            after them.
        margin: Of the hinge.
    """

    name: ClassVar[str] = "warp"
    alpha: str | list[int | float] | tuple[int | float, ...] = "harmonic"
    margin: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.alpha, list | tuple):
            alpha = tuple(map(float, self.alpha))
            if not alpha or alpha[-1] < 0 or any(a < b for a, b in itertools.pairwise(alpha)):
                raise ConfigError(
                    f"loss.alpha={list(alpha)}: give numbers of at least 0, none larger than those before it"
                )
            object.__setattr__(self, "alpha", alpha)
        elif self.alpha not in ("harmonic", "constant"):
            raise ConfigError(
                f"loss.alpha={self.alpha!r}: give harmonic, constant, or a list of numbers"
            )

    def costs(self, documents: int) -> Float[Array, " counts"]:
        """Returns L(0) to L(documents)."""
        ranks = jnp.arange(1, documents + 1)
        if isinstance(self.alpha, tuple):
            alpha = jnp.array([*self.alpha, *[0.0] * documents][:documents], jnp.float32)
        else:
            alpha = 1 / ranks if self.alpha == "harmonic" else jnp.ones(documents)
        return jnp.append(0.0, jnp.cumsum(alpha))

    def value(self, lists: ScoredLists, key: Array | None) -> PerList:
        """Returns the sum over clicks."""
        scores, labels, where, weights = lists
        hinges = self.margin + scores[:, None, :] - scores[:, :, None]
        violates = (hinges >= 0) & (labels[:, :, None] > labels[:, None, :]) & where[:, None, :]
        count = jnp.sum(violates, axis=2)
        mean = jnp.sum(hinges, axis=2, where=violates) / jnp.maximum(count, 1)
        return jnp.sum(weights * self.costs(scores.shape[1])[count] * mean, axis=1)
