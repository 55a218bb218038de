"""What every click model shares: loss, predictions and sampling, written once."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool

from clickexp.models import derived
from clickexp.numerics import LogPair
from clickexp.parameters.base import Parameter
from clickexp.types import SHOWN_FIRST, Array, Batch, Logits, Observed, PerDocument, Scalar
from clickexp.utils.checks import Limit, check_batch, check_values, is_concrete, missing, needs

RankFirst = Bool[Array, "rank batch"]
"""An event per document with ranks first, as models compute with it."""


class Sample(NamedTuple):
    """Sampled clicks [batch, rank] and the hidden events behind them; None for events a model does not have.

    component: [batch] int32, which component of a mixture each session was drawn from.
    """

    clicks: Observed
    examination: Observed | None = None
    attraction: Observed | None = None
    satisfaction: Observed | None = None
    component: Array | None = None


def checks_batch(*required: str) -> Callable[[Callable], Callable]:
    """Makes of a method (model, batch, ...) one that raises DataError where the batch does not fit the model."""

    def decorate(method: Callable) -> Callable:
        @wraps(method)
        def checked(model: "Model", batch: Any, *args: Any, **options: Any) -> Any:
            def compute(batch: Any) -> Any:
                return method(model, batch, *args, **options)

            check_batch(batch, required)
            if is_concrete(batch):
                check_values(batch, model.limits(), needs(compute, batch))
            try:
                return compute(batch)
            except KeyError as error:
                raise missing(error, batch) from error

        return checked

    return decorate


class Model(nnx.Module):
    """A model that can be trained and ranks documents; a subclass defines `compute_loss` and `relevance`.

    Attributes:
        name: Name in results and tables.
        separates_examination: Whether the model separates a tower of positions from one of documents, which takes a
            log that shows documents at several positions.
    """

    name: str
    separates_examination = False

    @classmethod
    def name_with(cls, **settings: object) -> str:
        """The name of a model that is built with these arguments."""
        return getattr(cls, "name", cls.__name__)

    def compute_loss(self, batch: Batch, aggregate: bool = True) -> Scalar | PerDocument:
        """The loss that training minimises.

        Args:
            batch: Sessions with a mask and whatever the loss reads.
            aggregate: Whether to return the mean over documents instead of one number per document.

        Returns:
            The mean, or `[batch, rank]` with 0 where no document is shown.
        """
        raise NotImplementedError

    def relevance(self, batch: Batch) -> Logits:
        """Log of the score that documents are ranked by."""
        raise NotImplementedError

    @checks_batch("mask")
    def predict_relevance(self, batch: Batch) -> PerDocument:
        """Ranking score of each document, as a logarithm; -inf where no document is shown."""
        return _masked(self.relevance(batch), batch["mask"])

    def limits(self) -> list[Limit]:
        """The largest ids and positions that the towers have parameters for; larger ones are an error."""
        return [
            Limit(key, largest, role)
            for role, tower in vars(self).items()
            if isinstance(tower, Parameter)
            for key, largest in tower.limits().items()
        ]


class ClickModel(Model):
    """A distribution over the clicks on a list of documents.

    A model defines `conditional` and `relevance`, `marginal` and `draw` where there is a closed form, and `attractive`
    where documents are not ranked by attraction; the rest follows. The pairs of `conditional` and `marginal`
    have ranks first, [rank, batch], or are broadcastable to it; everything else is [batch, rank].
    Predictions are natural logarithms, -inf where the batch's mask is False.
    """

    def conditional(self, batch: Batch) -> LogPair:
        """log P(c_r = 1 | c_1 .. c_{r-1}) and log P(c_r = 0 | c_1 .. c_{r-1}), of the batch's own clicks."""
        raise NotImplementedError

    def marginal(self, batch: Batch) -> LogPair:
        """log P(c_r = 1) and log P(c_r = 0), whatever the clicks above; by default derived from the conditional."""
        return derived.marginal(self.conditional, batch)

    def attractive(self, batch: Batch) -> Logits:
        """log P(click | examined), of users who do not know the document."""
        return self.relevance(batch)

    def examined(self, batch: Batch, marginal: LogPair | None = None) -> Logits:
        """log P(examination), whatever the clicks above: a click is one of an examined, attractive document.

        marginal: that of the batch, if it is known.
        """
        click = (self.marginal(batch) if marginal is None else marginal).log
        return jnp.minimum(click.T - self.attractive(batch), 0.0)

    def draw(self, batch: Batch, key: Array) -> Sample:
        """Events of sessions drawn from the model, by default clicks alone; those not shown are still to be erased."""
        return Sample(derived.draw(self.conditional, batch, key))

    @checks_batch("mask", "clicks")
    def compute_loss(self, batch: Batch, aggregate: bool = True) -> Scalar | PerDocument:
        """-log P(observed click or skip | clicks above): the mean over documents, or [batch, rank], 0 where masked."""
        pair, mask = self.conditional(batch), batch["mask"].T
        loss = jnp.where(mask, -jnp.where(batch["clicks"].T, pair.log, pair.complement), 0.0)
        if aggregate:
            return jnp.sum(loss) / jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)
        return loss.T

    @checks_batch("mask", "clicks")
    def predict_conditional_clicks(self, batch: Batch) -> PerDocument:
        """log P(c_r = 1 | c_1 .. c_{r-1})."""
        return _masked(self.conditional(batch).log.T, batch["mask"])

    @checks_batch("mask")
    def predict_clicks(self, batch: Batch) -> PerDocument:
        """log P(c_r = 1)."""
        return _masked(self.marginal(batch).log.T, batch["mask"])

    @checks_batch("mask")
    def predict_attraction(self, batch: Batch) -> PerDocument:
        """log P(attraction) of each document; of a click-through-rate model, its click rate."""
        return _masked(self.attractive(batch), batch["mask"])

    @checks_batch("mask")
    def predict_examination(self, batch: Batch) -> PerDocument:
        """log P(examination) of each rank, whatever the clicks above; 0 of a click-through-rate model."""
        return _masked(self.examined(batch), batch["mask"])

    @checks_batch("mask")
    def sample(self, batch: Batch, rngs: nnx.Rngs | Array) -> Sample:
        """Clicks and hidden events of one session a list; `rngs` is an nnx.Rngs or a JAX key."""
        key = rngs() if isinstance(rngs, nnx.Rngs) else rngs
        drawn = self.draw(batch, key)
        shown = batch["mask"].astype(bool)
        events = jax.tree.map(lambda event: event & shown, drawn._replace(component=None))
        return events._replace(component=drawn.component)


class IndependentModel(ClickModel):
    """A model in which clicks do not depend on each other, so that conditional and marginal agree."""

    def conditional(self, batch: Batch) -> LogPair:
        return self.marginal(batch)


def shown_by_rank(batch: Batch) -> RankFirst | None:
    """Where a document was shown; None where the mask was made from lengths, so that no hidden one is above another.

    Padding behind a list needs no care from top to bottom, and takes up to a fifth of the time if it gets it.
    A batch's own `lengths` say nothing here: compiled programs cannot compare them with its mask.
    """
    return None if SHOWN_FIRST in batch else batch["mask"].T.astype(bool)


def clicks_by_rank(batch: Batch) -> RankFirst:
    """The clicks, on documents that were shown or behind the last of them."""
    clicks, shown = batch["clicks"].T.astype(bool), shown_by_rank(batch)
    return clicks if shown is None else clicks & shown


def past_hidden(shown: Bool[Array, "#batch"] | None, after: Any, before: Any) -> Any:
    """The state after a rank, or that before it where no document was shown."""
    return after if shown is None else jax.tree.map(partial(jnp.where, shown), after, before)


def bernoulli(key: Array, log_prob: Logits, batch: Batch) -> Bool[Array, "batch rank"]:
    """One event a document, of probability exp(log_prob)."""
    shape = batch["mask"].shape
    return jax.random.uniform(key, shape) < jnp.broadcast_to(jnp.exp(log_prob), shape)


def _masked(values: Logits, mask: Observed) -> PerDocument:
    return jnp.where(mask, values, -jnp.inf)
