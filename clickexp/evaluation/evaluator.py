"""Evaluates a model on sessions: metrics of click prediction and of ranking."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.data import Sessions
from clickexp.data.batches import at_step, with_mask
from clickexp.data.feed import Compiled, Data, feed, session_count
from clickexp.loggers.base import Logger, Phase
from clickexp.metrics import ConditionalPerplexity, LogLikelihood, Metric, MultiMetric, Perplexity
from clickexp.models.base import ClickModel, IndependentModel
from clickexp.numerics import LogPair
from clickexp.types import Array, Batch, Count
from clickexp.utils.checks import missing

MOST_NUMBERS = 1 << 25
"""Features, or documents, that a step of the evaluation looks up at most; documents of a dispatch."""

ModelState = tuple[nnx.State, ...]
Outputs = Callable[[ClickModel, Batch], dict[str, Array | LogPair]]


def click_metrics() -> dict[str, Metric]:
    """Log-likelihood, perplexity and conditional perplexity under their usual names."""
    return {"ll": LogLikelihood(), "ppl": Perplexity(), "cond_ppl": ConditionalPerplexity()}


def click_outputs(model: ClickModel, batch: Batch) -> dict[str, Array | LogPair]:
    """What click metrics read, as pairs of complements; the compiler drops what none of them does."""

    def per_document(log_prob: Array) -> Array:
        return jnp.broadcast_to(log_prob, batch["mask"].shape)

    def made(pair: LogPair) -> LogPair:
        return LogPair(*(per_document(log_prob.T) for log_prob in pair))

    pair = model.marginal(batch)
    marginal = made(pair)
    return dict(
        conditional_log_probs=marginal
        if isinstance(model, IndependentModel)
        else made(model.conditional(batch)),
        log_probs=marginal,
        # told the marginal: the compiler would run the loop of a recursion once more
        examination_log_probs=per_document(model.examined(batch, pair)),
        clicks=batch["clicks"],
        where=batch["mask"],
    )


def ranking_outputs(model: ClickModel, batch: Batch) -> dict[str, Array]:
    """What ranking metrics read."""
    return dict(scores=model.predict_relevance(batch), labels=batch["labels"], where=batch["mask"])


class WithTruth(nnx.Module):
    """A fitted model and the true user, so that both see a batch."""

    def __init__(self, model: ClickModel, truth: ClickModel):
        self.model = model
        self.truth = truth


def truth_outputs(both: WithTruth, batch: Batch) -> dict[str, Array]:
    """What metrics of hidden events read."""
    return dict(
        examination_log_probs=both.model.predict_examination(batch),
        attraction_log_probs=both.model.predict_attraction(batch),
        true_examination_log_probs=both.truth.predict_examination(batch),
        true_attraction_log_probs=both.truth.predict_attraction(batch),
        where=batch["mask"],
    )


class Evaluator:
    """Adds up the metrics of a model over data; several batches a dispatch, sums in float64 on the host."""

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        metrics: Mapping[str, Metric],
        outputs: Outputs = click_outputs,
        *,
        batch_size: int = 8192,
        steps: int = 16,
        logger: Logger | None = None,
    ):
        self.graphdef = graphdef
        self.metrics = MultiMetric(metrics)
        self.outputs = outputs
        self.batch_size = batch_size
        self.steps = steps
        self.logger = logger or Logger()
        self.run = Compiled(self._statistics)

    def __call__(self, state: ModelState, data: Data, phase: Phase, epoch: int = 0) -> MultiMetric:
        metrics = self.metrics.empty()
        done, total = 0, session_count(data)
        for batch in feed(data, *self._sizes(data)):
            metrics.add(self.run(state, batch.arrays), stacked=True)
            done += batch.sessions
            self.logger.progress(phase, epoch, done, total)
        return metrics

    def _sizes(self, data: Data) -> tuple[int, int]:
        """Lists a step, steps a dispatch: fewer where lists are long or documents have many features, for memory."""
        if not isinstance(data, Sessions):
            return self.batch_size, self.steps
        numbers = data.ranks * (1 + sum(data.feature_lengths.values()))
        lists = min(self.batch_size, max(MOST_NUMBERS // numbers, 1))
        return lists, min(self.steps, max(MOST_NUMBERS // (lists * data.ranks), 1))

    def _statistics(self, state: ModelState, arrays: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
        """The sums of each batch of a superbatch, stacked.

        Predictions are made in a loop of their own, and so lie in memory: beside the sums, the compiler would make
        them anew for each. They lie there with ranks first, as models make them and sums are taken, and an array
        once that the outputs name twice, as both predictions of a model of independent clicks.
        """
        arrays = with_mask(arrays)
        structure, places = None, []

        def predict(index: Count) -> list[Array]:
            nonlocal structure, places
            model = nnx.merge(self.graphdef, *state, copy=True)
            batch = at_step(arrays, index)
            try:
                leaves, structure = jax.tree.flatten(self.outputs(model, batch))
            except KeyError as error:
                raise missing(error, batch) from error
            distinct = {id(leaf): leaf for leaf in leaves}
            places = [list(distinct).index(id(leaf)) for leaf in leaves]
            return [leaf.T for leaf in distinct.values()]

        def statistics(predicted: list[Array]) -> dict[str, dict[str, Array]]:
            return self.metrics.statistics(**structure.unflatten([predicted[place].T for place in places]))

        predicted = jax.lax.map(predict, jnp.arange(len(arrays["mask"])))
        return jax.lax.map(statistics, predicted)
