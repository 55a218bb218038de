"""Base of all models: loss, predictions and sampling, written once."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from clickexp.data import Dataset
from clickexp.models import derived
from clickexp.models.roles import HasRoles
from clickexp.numerics import LogPair
from clickexp.parameters.base import Parameter
from clickexp.parameters.context import new_session
from clickexp.parameters.table import Table, with_tables
from clickexp.types import (
    Array,
    Batch,
    ByRank,
    Logits,
    LogitsByRank,
    Observed,
    PerDocument,
    Scalar,
    as_shown,
    swap_list_and_rank,
)
from clickexp.utils.batches import check_batch, check_values, is_concrete, missing_key, needs

_Kind = TypeVar("_Kind", bound="Model")


class Sample(NamedTuple):
    """Sampled clicks `[batch, rank]` and the hidden events behind them; None for events that a model does not have.

    Attributes:
        clicks: Whether each document was clicked.
        examination: Whether it was examined.
        attraction: Whether it attracts.
        satisfaction: Whether it was clicked and satisfied.
        component: `[batch]` int32, the component of a mixture that each session was drawn from.
    """

    clicks: Observed
    examination: Observed | None = None
    attraction: Observed | None = None
    satisfaction: Observed | None = None
    component: Array | None = None


def checks_batch(*required: str) -> Callable[[Callable], Callable]:
    """Returns a decorator of methods (model, batch, ...) that raise DataError where the batch does not fit the model.

    Args:
        required: Keys that the batch must have.
    """

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
                raise missing_key(error, batch) from error

        return checked

    return decorate


class Model(HasRoles):
    """A model that can be trained and ranks documents; a subclass defines `compute_loss` and `relevance`.

    Attributes:
        name: Name in results and tables.
        separates_examination: Whether the model separates a tower of positions from one of documents, which takes a
            log that shows documents at several positions.
        follows_click_vectors: Whether marginals take a thousand times as long as conditionals, so that validations
            leave them out.
    """

    name = ""
    separates_examination = False
    follows_click_vectors = False

    @classmethod
    def name_with(cls, **settings: Any) -> str:
        """Returns the name of a model that is built with these arguments."""
        return cls.name or cls.__name__

    @classmethod
    def check_settings(cls, **settings: Any) -> None:
        """ConfigError where these arguments of the constructor do not go together."""

    def prepare(self, dataset: Dataset) -> Dataset:
        """Returns the dataset with columns that the model makes of it; called once, before training."""
        return dataset

    def compute_loss(
        self, batch: Batch, aggregate: bool = True
    ) -> Scalar | PerDocument | Float[Array, " batch"]:
        """Returns the loss that training minimises.

        Args:
            batch: Sessions with a mask and whatever the loss reads.
            aggregate: Whether to return one mean instead of one number per document, or per list for a listwise loss.

        Returns:
            The mean, or `[batch, rank]` with 0 where no document is shown, or `[batch]` with 0 where none is. Training
            minimises the sum of the numbers, and reports divide it by the number of documents.
        """
        raise NotImplementedError

    def _reported(self, losses: Array, mask: Array, aggregate: bool) -> Array:
        """Returns losses, or their mean over documents; a loop that differentiates it without the tables is an error.

        In training, tables hold no arrays but what reads the rows of the batch.
        """
        if aggregate:
            losses = jnp.sum(losses) / jnp.maximum(jnp.sum(mask, dtype=jnp.float32), 1.0)
        leaves = jax.tree.leaves(nnx.state(self, Table))
        return with_tables(losses, [leaf for leaf in leaves if isinstance(leaf, Array)])

    def relevance(self, batch: Batch) -> Logits:
        """Returns the log of the score that documents are ranked by."""
        raise NotImplementedError

    def score_towers(self) -> list[Parameter]:
        """Returns towers whose logits add up to the relevance of documents; none where it is something else.

        Of a click model their log-probabilities do. Exported rankers are made of them, unless a class that follows this
        one has another relevance.
        """
        return []

    @checks_batch("mask")
    def predict_relevance(self, batch: Batch) -> PerDocument:
        """Returns the ranking score of each document, as a logarithm; -inf where no document is shown.

        With posteriors in tables, the score of the mean probabilities: the mean score where it is their product, as in
        DBN. Of a document in a new search session, whatever context the batch has.
        """
        return self._predicted(self.relevance, new_session(batch))

    @property
    def has_posteriors(self) -> bool:
        """Whether a table of the model keeps posteriors."""
        return any(
            isinstance(node, Table) and node.get_value().has_posteriors
            for _, node in nnx.iter_graph(self)
        )

    def sample_parameters(self: _Kind, rngs: nnx.Rngs | Array) -> _Kind:
        """Draws a model from the posteriors of its tables.

        Rows of the copy are numbers, each drawn from its posterior; a tower that several roles or components share is
        drawn once. What has no posterior is as it is. Averages over such draws integrate any function of the parameters
        over the posterior, ranking metrics included, which no mean probability determines.

        Args:
            rngs: An `nnx.Rngs` or a JAX key.

        Returns:
            A copy, which shares no variable with this model.
        """
        key = rngs() if isinstance(rngs, nnx.Rngs) else rngs
        graphdef, tables, rest = nnx.split(self, Table, ...)
        drawn = [
            (path, table.copy(table.get_value().sample(jax.random.fold_in(key, index))))
            for index, (path, table) in enumerate(nnx.to_flat_state(tables))
        ]
        return nnx.merge(graphdef, nnx.from_flat_state(drawn), rest, copy=True)

    def _predicted(self, method: Callable[[Batch], Logits], batch: Batch) -> PerDocument:
        return _masked(method(batch), batch["mask"])


class ClickModel(Model):
    """A distribution over the clicks on a list of documents.

    A subclass defines `conditional`; `marginal` and `draw` where there is a closed form; `relevance` where documents
    are not ranked by a role `attraction`, and `log_attraction` where that is not what they are ranked by. The rest
    follows. These methods work with ranks first: they take a batch of type `ByRank` and return `[rank, batch]`, or what
    broadcasts to it. The public methods `compute_loss`, `predict_...` and `sample` take and return `[batch, rank]`, and
    turn both.

    Predictions are natural logarithms, -inf where the batch's mask is False.

    Where tables have posteriors, predictions integrate over them: towers return the mean probability of each row,
    E[s(z)], by quadrature (see `clickexp.numerics.mean_log_sigmoid_pair`). Up to the error of that, they
    are exact for sessions whose documents have different rows in models that use each row's probability once, as all
    but CCM do: P(clicks) is then linear in each of these independent probabilities, and so are marginals;
    P(c_r | c_1 .. c_{r-1}) is E[P(c_1 .. c_r)] / E[P(c_1 .. c_{r-1})], given training data and the clicks above. In
    other cases, such as CCM and rows that documents share, they are those of a model with the mean probabilities.
    `sample_parameters` gives averages of anything.

    The loss and predictions of clicks take lists to be in the order of the training log: for a row that training has
    not shown, the rank of its document carries what the policy knew (see `clickexp.parameters.table.Prior`). Relevance,
    attraction, examination and samples do not depend on it.

    Attributes:
        independent_given_clicks: Whether the loss of a document depends on the logits of that document alone, given the
            clicks of its list.
    """

    independent_given_clicks = False

    def conditional(self, batch: ByRank) -> LogPair:
        """Returns log P(c_r = 1 | c_1 .. c_{r-1}) and log P(c_r = 0 | c_1 .. c_{r-1}) for the clicks of the batch."""
        raise NotImplementedError

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns log P(c_r = 1) and log P(c_r = 0), by default derived from the conditional."""
        return derived.marginal(self.conditional, batch)

    def marginal_method(self, ranks: int) -> str:
        """Returns "exact", or what marginals of lists of so many documents are a mean over."""
        return (
            derived.marginal_method(ranks)
            if type(self).marginal is ClickModel.marginal
            else "exact"
        )

    def relevance(  # pyright: ignore[reportIncompatibleMethodOverride]  # with ranks first
        self, batch: ByRank
    ) -> LogitsByRank:
        """Returns the log of the score that documents are ranked by, by default log P(attraction)."""
        return self.attraction.log_prob(batch)  # pyright: ignore[reportAttributeAccessIssue]  # a role

    def score_towers(self) -> list[Parameter]:
        """Returns attraction, which `relevance` is of by default."""
        return [self.attraction]  # pyright: ignore[reportAttributeAccessIssue]  # a role

    def log_attraction(self, batch: ByRank) -> LogitsByRank:
        """Returns log P(click | examined), of users who do not know the document."""
        return self.relevance(batch)

    def log_examination(self, batch: ByRank, marginal: LogPair | None = None) -> LogitsByRank:
        """Returns log P(examination) by the rule that a click is one of an examined, attractive document.

        Args:
            batch: Sessions; their clicks are not read.
            marginal: That of the batch, if it is known.
        """
        click = (self.marginal(batch) if marginal is None else marginal).log
        return jnp.minimum(click - self.log_attraction(batch), 0.0)

    def draw(self, batch: ByRank, key: Array) -> Sample:
        """Returns events of sessions drawn from the model, by default clicks alone; `sample` erases those not shown."""
        return Sample(derived.draw(self.conditional, batch, key))

    @checks_batch("mask", "clicks")
    def compute_loss(self, batch: Batch, aggregate: bool = True) -> Scalar | PerDocument:
        """Returns -log P(observed click or skip | clicks above).

        Args:
            batch: Sessions with clicks.
            aggregate: Whether to return the mean over documents instead of one number per document.

        Returns:
            The mean, or `[batch, rank]` with 0 where no document is shown.
        """
        by_rank = ByRank(as_shown(batch))
        pair, mask = self.conditional(by_rank), by_rank["mask"]
        loss = jnp.where(mask, -jnp.where(by_rank["clicks"], pair.log, pair.complement), 0.0)
        return self._reported(swap_list_and_rank(loss), swap_list_and_rank(mask), aggregate)

    @checks_batch("mask", "clicks")
    def predict_conditional_clicks(self, batch: Batch) -> PerDocument:
        """Returns log P(c_r = 1 | c_1 .. c_{r-1}); posteriors in tables are integrated over, as the class states."""
        return self._predicted(lambda by_rank: self.conditional(by_rank).log, as_shown(batch))

    @checks_batch("mask")
    def predict_clicks(self, batch: Batch) -> PerDocument:
        """Returns log P(c_r = 1); posteriors in tables are integrated over, as the class states."""
        return self._predicted(lambda by_rank: self.marginal(by_rank).log, as_shown(batch))

    @checks_batch("mask")
    def predict_attraction(self, batch: Batch) -> PerDocument:
        """Returns log P(attraction) of each document; for a click-through-rate model, its click rate.

        With posteriors, the logarithm of the mean probability. Of a document in a new search session.
        """
        return self._predicted(self.log_attraction, new_session(batch))

    @checks_batch("mask")
    def predict_examination(self, batch: Batch) -> PerDocument:
        """Returns log P(examination) of each rank, whatever the clicks above; 0 for a click-through-rate model.

        Posteriors in tables are integrated over, as the class states.
        """
        return self._predicted(self.log_examination, batch)

    @checks_batch("mask")
    def sample(self, batch: Batch, rngs: nnx.Rngs | Array, in_log_order: bool = True) -> Sample:
        """Draws clicks and hidden events of one session per list.

        Args:
            batch: Lists of documents.
            rngs: An `nnx.Rngs` or a JAX key.
            in_log_order: Whether the policy of the log has ordered the lists, as predictions of clicks take it, so that
                the ranks of documents that training has not shown say something about them. False for
                rankings to compare.
        """
        ordered = as_shown(batch) if in_log_order else batch
        drawn = self.draw(ByRank(ordered), rngs() if isinstance(rngs, nnx.Rngs) else rngs)
        mask = batch["mask"].astype(bool)
        events = jax.tree.map(
            lambda event: swap_list_and_rank(event) & mask, drawn._replace(component=None)
        )
        return events._replace(component=drawn.component)

    def _predicted(self, method: Callable[[ByRank], LogitsByRank], batch: Batch) -> PerDocument:
        return _masked(swap_list_and_rank(method(ByRank(batch))), batch["mask"])


class IndependentModel(ClickModel):
    """A model in which clicks do not depend on each other, so that conditional and marginal agree."""

    independent_given_clicks = True

    def conditional(self, batch: ByRank) -> LogPair:
        """Returns the marginal."""
        return self.marginal(batch)


def _masked(values: Logits, mask: Observed) -> PerDocument:
    return jnp.where(mask, values, -jnp.inf)
