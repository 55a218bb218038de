"""Losses of rankings over clicks, each a number per list, with weights per document.

For a click c_i of weight w_i, a loss is a sum of w_i c_i times what it costs that document i is ranked as it is. Labels
are never normalised after weighting: a list with one click at rank k has w_k times the loss that it has unweighted, and
a list without clicks has loss 0. (The pointwise loss also counts documents without click.)
"""

import dataclasses
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rax
from annotated_types import Ge
from jaxtyping import Float

from clickexp.numerics import LOG_ZERO, log_sigmoid_pair
from clickexp.types import Array, Observed, PerDocument
from clickexp.utils.bounds import PositiveFloat, Samples, check_numbers

PerList = Float[Array, " batch"]


class ScoredLists(NamedTuple):
    """Lists that a loss is computed of.

    Attributes:
        scores: What documents are ranked by, 0 where none was shown.
        labels: Clicks, or estimates of relevance; 0 where no document was shown.
        where: Which documents were shown.
        weights: Of the labels, 0 where no document was shown.
    """

    scores: jax.Array
    labels: jax.Array
    where: jax.Array
    weights: jax.Array


def as_lists(
    scores: PerDocument, labels: Observed, where: Observed, weights: PerDocument | None = None
) -> ScoredLists:
    """Returns lists with 0 where no document was shown."""
    where = jnp.asarray(where, bool)
    labels = jnp.where(where, jnp.asarray(labels, jnp.float32), 0.0)
    weights = jnp.ones_like(labels) if weights is None else jnp.where(where, weights, 0.0)
    return ScoredLists(jnp.where(where, scores, 0.0), labels, where, weights)


_BOUND = 10.0
"""Scores from which losses without a lower bound cost more."""


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss of a ranking. A subclass defines `value`.

    Attributes:
        name: In results.
        linear: Whether it is a linear function of the weighted labels, so that estimates of them may take any value.
        largest: The largest weighted label of which a linear loss has a lower bound; the smallest is 0.
        random: Whether it draws noise.
    """

    name: ClassVar[str] = ""
    linear: ClassVar[bool] = False
    random: ClassVar[bool] = False
    largest: ClassVar[float] = np.inf

    def __post_init__(self) -> None:
        check_numbers(type(self).__init__, vars(self))

    def __call__(
        self,
        scores: PerDocument,
        labels: Observed,
        where: Observed,
        weights: PerDocument | None = None,
        key: Array | None = None,
    ) -> PerList:
        """Returns the loss of each list.

        Args:
            scores: What documents are ranked by.
            labels: Clicks; for a linear loss any estimates of relevance.
            where: Which documents were shown.
            weights: Of the labels; None for 1.
            key: JAX key of a loss that draws noise.
        """
        with jax.numpy_dtype_promotion("standard"):  # Rax relies on it, whatever the caller chose
            lists = as_lists(scores, labels, where, weights)
            value = self.value(lists, key)
            return value + self._beyond_bounds(lists) if self.linear else value

    def _beyond_bounds(self, lists: ScoredLists) -> PerList:
        """The cost of scores beyond +-_BOUND, the sum of the squares of the excess, in lists with targets out of range.

        There, a loss that is linear in its targets falls without end with some score. Between the bounds this changes
        nothing.
        """
        scores, labels, where, weights = lists
        targets = labels * weights
        out_of_range = jnp.any((targets < 0) | (targets > self.largest), axis=1, where=where)
        excess = jnp.sum(jnp.maximum(jnp.abs(scores) - _BOUND, 0.0) ** 2, axis=1, where=where)
        return jnp.where(out_of_range, excess, 0.0)

    def value(self, lists: ScoredLists, key: Array | None) -> PerList:
        """Returns the loss of each list; nothing that stands where no document was shown is to be read."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class PointwiseLoss(Loss):
    """-sum_i y_i log s(f_i) + (1 - y_i) log(1 - s(f_i)) with y = w c, which weights may raise above 1.

    Saito et al. 2020, "Unbiased recommender learning from missing-not-at-random implicit feedback".
    """

    name: ClassVar[str] = "pointwise"
    linear: ClassVar[bool] = True
    largest: ClassVar[float] = 1.0

    def value(self, lists: ScoredLists, key: Array | None) -> PerList:
        """Returns the sum over all documents shown."""
        scores, labels, where, weights = lists
        pair, targets = log_sigmoid_pair(scores), weights * labels
        return -jnp.sum(targets * pair.log + (1 - targets) * pair.complement, axis=1, where=where)


@dataclasses.dataclass(frozen=True)
class SoftmaxLoss(Loss):
    """-sum_i w_i c_i log softmax(f)_i, from Rax, which multiplies labels by weights and normalises neither.

    Cao et al. 2007, "Learning to rank: from pairwise approach to listwise approach".
    """

    name: ClassVar[str] = "softmax"
    linear: ClassVar[bool] = True

    def value(self, lists: ScoredLists, key: Array | None) -> PerList:
        """Returns the cross-entropy."""
        scores, labels, where, weights = lists
        return rax.softmax_loss(scores, labels, where=where, weights=weights, reduce_fn=None)


@dataclasses.dataclass(frozen=True)
class Poly1Loss(Loss):
    """sum_i w_i c_i (-log p_i + epsilon (1 - p_i)) with p = softmax(f).

    Rax normalises the weighted labels of the second term, which cancels weights; this one does not.

    Leng et al. 2022, "PolyLoss: a polynomial expansion perspective of classification loss functions".

    Attributes:
        epsilon: Weight of the linear term, at least -1: below, the loss would fall with p near 1.
    """

    name: ClassVar[str] = "poly1"
    linear: ClassVar[bool] = True
    epsilon: Annotated[float, Ge(-1)] = 1.0

    def value(self, lists: ScoredLists, key: Array | None) -> PerList:
        """Returns the sum over clicks."""
        scores, labels, where, weights = lists
        log_probs = jax.nn.log_softmax(jnp.where(where, scores, LOG_ZERO), axis=1)
        costs = -log_probs + self.epsilon * (1 - jnp.exp(log_probs))
        return jnp.sum(weights * labels * jnp.where(where, costs, 0.0), axis=1)


@dataclasses.dataclass(frozen=True)
class ListMLELoss(Loss):
    """sum over clicked documents of w_i (log sum_j exp f_j - f_i), j the documents not above i in the order of labels.

    The Plackett-Luce likelihood of the clicked documents before all others; the order of the others is unknown and left
    out (Xia, Liu and Li 2009, "Statistical consistency of top-k ranking"). Documents with equal labels are in the order
    of their scores. Of lists with distinct labels it is Rax's ListMLE, which has no weights.

    Xia et al. 2008, "Listwise approach to learning to rank: theory and algorithm".
    """

    name: ClassVar[str] = "listmle"

    def value(self, lists: ScoredLists, key: Array | None) -> PerList:
        """Returns the sum over clicks."""
        scores, labels, where, weights = lists
        order = jnp.lexsort((-jax.lax.stop_gradient(scores), -labels, ~where), axis=1)
        masked = jnp.where(where, scores, LOG_ZERO)
        sorted_, weighted = (
            jnp.take_along_axis(values, order, axis=1)
            for values in (masked, weights * (labels > 0))
        )
        below = jax.lax.cumlogsumexp(sorted_, axis=1, reverse=True)
        return jnp.sum(weighted * jnp.where(weighted != 0, below - sorted_, 0.0), axis=1)


@dataclasses.dataclass(frozen=True)
class ApproxNDCGLoss(Loss):
    """-sum_i w_i c_i / log2(1 + r_i) / DCG of the ideal order of the unweighted clicks, with smooth ranks r from Rax.

    Rax's nDCG divides by the weighted ideal, in which the weight of a single click cancels.

    Qin, Liu and Li 2010, "A general approximation framework for direct optimization of information retrieval measures".

    Attributes:
        temperature: Of the sigmoids that smooth ranks consist of.
    """

    name: ClassVar[str] = "approx_ndcg"
    temperature: PositiveFloat = 1.0

    def value(self, lists: ScoredLists, key: Array | None) -> PerList:
        """Returns minus the smooth nDCG."""
        return -self._smooth_dcg(lists) / _ideal_dcg(lists)

    def _smooth_dcg(self, lists: ScoredLists) -> PerList:
        """Returns the DCG of the weighted clicks with smooth ranks."""

        def ranks(scores: jax.Array, where: Any, key: Any, segments: Any = None) -> jax.Array:
            del key, segments
            return rax.utils.approx_ranks(
                scores, where=where, step_fn=lambda x: jax.nn.sigmoid(x / self.temperature)
            )

        scores, labels, where, weights = lists
        return rax.dcg_metric(
            scores, labels, where=where, weights=weights, rank_fn=ranks, reduce_fn=None
        )


@dataclasses.dataclass(frozen=True)
class GumbelNDCGLoss(ApproxNDCGLoss):
    """The mean of ApproxNDCG over scores with Gumbel noise.

    Bruch et al. 2020, "A stochastic treatment of learning to rank scoring functions".

    Attributes:
        samples: Draws per list and step.
        beta: Scale of the noise.
    """

    name: ClassVar[str] = "gumbel_ndcg"
    random: ClassVar[bool] = True
    samples: Samples = 8
    beta: PositiveFloat = 1.0

    def value(self, lists: ScoredLists, key: Array | None) -> PerList:
        """Returns the mean over draws; ValueError without a key."""
        if key is None:
            raise ValueError("gumbel_ndcg draws noise: give key=...")
        noise = self.beta * jax.random.gumbel(key, (self.samples, *lists.scores.shape))
        drawn = jax.vmap(
            lambda sample: self._smooth_dcg(lists._replace(scores=lists.scores + sample))
        )(noise)
        return -jnp.mean(drawn, axis=0) / _ideal_dcg(lists)


def _ideal_dcg(lists: ScoredLists) -> PerList:
    labels = lists.labels
    ideal = rax.dcg_metric(labels, labels, where=lists.where, reduce_fn=None)
    return jnp.where(ideal > 0, ideal, 1.0)


LINEAR_LOSSES = "pointwise, softmax, poly1, or a Loss with linear = True"
"""Losses that are linear in the labels, for messages."""
