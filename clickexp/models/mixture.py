"""Mixture of click models."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.errors import ConfigError
from clickexp.models.base import ClickModel, Sample
from clickexp.numerics import LogPair
from clickexp.parameters import Parameter, Sizes, build_parameter
from clickexp.parameters.base import Features, Source
from clickexp.types import Array, Batch
from clickexp.utils.bounds import Pairs, PositiveFloat, PositiveInt, Probability, bounded
from clickexp.utils.checks import Limit
from clickexp.utils.signatures import accepted

APART = 0.1
"""Standard deviation, in logits, of the noise that tells components of one kind apart."""


class MixtureModel(ClickModel):
    """A population of users: each session is one of a user who follows component k, with probability pi_k.

    P(clicks) = sum_k pi_k P_k(clicks), so that the clicks above a rank tell which component is at work:
    P(c_r | c_<r) = sum_k w_k P_k(c_r | c_<r) with w_k proportional to pi_k P_k(c_<r); masked documents tell nothing.
    P(c_r) = sum_k pi_k P_k(c_r), and relevance is the mean of the components' relevance under pi.

    models: click models, or their constructors, which are then called with the sizes that they ask for and `rngs`.
    shared: towers by role (name of a constructor's argument) that all components built here have in common; models
        that are given built share what was built into several of them. Else each component has its own towers.
        A partial may name a role for an argument of another name: partial(DocumentCTRModel, ctr="attraction").
    temperature: pi = softmax(prior / temperature) for learned logits `prior`, which start even. What can be
        learned does not depend on it; a step on the logits moves pi by 1 / temperature as much.

    Components of one kind that start equal would stay equal: the second and further ones built here start from
    logits with a little noise. ValueError without components or for a temperature that is not positive.

    McLachlan and Peel 2000, "Finite mixture models".
    """

    @bounded
    def __init__(
        self,
        models: Sequence[ClickModel | Callable[..., ClickModel]],
        temperature: PositiveFloat = 1.0,
        shared: Mapping[str, Source] | None = None,
        *,
        positions: PositiveInt | None = None,
        query_doc_pairs: Pairs | None = None,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs | None = None,
    ):
        if not models:
            raise ConfigError("a mixture needs at least one click model")
        sizes = Sizes(query_doc_pairs, positions, click_rate, features)
        towers = {
            role: build_parameter(role, source, None, sizes, rngs=rngs)
            for role, source in (shared or {}).items()
        }
        self.models = nnx.List([])
        for model in models:
            self.models.append(self._component(model, towers, sizes, rngs))
        self.prior = nnx.Param(jnp.zeros(len(models)))
        self.temperature = temperature
        self.name = f"Mixture({', '.join(model.name for model in self.models)})"

    def _component(
        self,
        source: ClickModel | Callable[..., ClickModel],
        towers: Mapping[str, Parameter],
        sizes: Sizes,
        rngs: nnx.Rngs | None,
    ) -> ClickModel:
        if isinstance(source, ClickModel):
            return source
        if rngs is None:
            raise ValueError("a mixture that builds its components needs rngs=nnx.Rngs(...)")
        constructor = getattr(source, "func", source)  # a shared tower replaces that of a partial
        given = getattr(source, "keywords", {}).items()
        named = {name: towers[role] for name, role in given if isinstance(role, str) and role in towers}
        common = accepted(constructor, towers) | named
        model = source(**accepted(source, vars(sizes)), **common, rngs=rngs)
        if any(type(other) is type(model) for other in self.models):
            _disturb(model, towers, rngs)
        return model

    def log_prior(self) -> Array:
        """log pi_k, [component]."""
        return jax.nn.log_softmax(self.prior[...] / self.temperature)

    def conditional(self, batch: Batch) -> LogPair:
        clicks, shown = batch["clicks"].T.astype(bool), batch["mask"].T.astype(bool)
        pairs = self._stacked([model.conditional(batch) for model in self.models], batch)
        observed = jnp.where(shown, jnp.where(clicks, pairs.log, pairs.complement), 0.0)
        # shifted, not subtracted: the clicks at and below a rank must not leave even rounding errors
        above = jnp.pad(jnp.cumsum(observed[:, :-1], axis=1), ((0, 0), (1, 0), (0, 0)))
        weights = jax.nn.log_softmax(self.log_prior()[:, None, None] + above, axis=0)
        return _mean(weights, pairs)

    def marginal(self, batch: Batch) -> LogPair:
        pairs = self._stacked([model.marginal(batch) for model in self.models], batch)
        return _mean(self.log_prior()[:, None, None], pairs)

    def limits(self) -> list[Limit]:
        return [limit for model in self.models for limit in model.limits()]

    def relevance(self, batch: Batch) -> Array:
        return self._expected([model.relevance(batch) for model in self.models], batch)

    def attractive(self, batch: Batch) -> Array:
        return self._expected([model.attractive(batch) for model in self.models], batch)

    def examined(self, batch: Batch, marginal: LogPair | None = None) -> Array:
        return self._expected([model.examined(batch) for model in self.models], batch)

    def draw(self, batch: Batch, key: Array) -> Sample:
        """`component` says whose session it is; hidden events are known where every component has them."""
        key, *keys = jax.random.split(key, 1 + len(self.models))
        component = jax.random.categorical(key, self.log_prior(), shape=batch["mask"].shape[:1])
        samples = [model.draw(batch, key) for model, key in zip(self.models, keys, strict=True)]

        def drawn(*events: Array | None) -> Array | None:
            if any(event is None for event in events):
                return None
            return jnp.take_along_axis(jnp.stack(events), component[None, :, None], axis=0)[0]

        return Sample(*map(drawn, *samples))._replace(component=component)

    def _expected(self, log_values: list[Array], batch: Batch) -> Array:
        """Log of the mean over components under pi, [batch, rank]."""
        stacked = jnp.stack([jnp.broadcast_to(x, batch["mask"].shape) for x in log_values])
        return jax.nn.logsumexp(self.log_prior()[:, None, None] + stacked, axis=0)

    def _stacked(self, pairs: list[LogPair], batch: Batch) -> LogPair:
        """[component, rank, batch]."""
        shape = batch["mask"].T.shape
        return jax.tree.map(lambda *each: jnp.stack([jnp.broadcast_to(x, shape) for x in each]), *pairs)


def _mean(log_weights: Array, pairs: LogPair) -> LogPair:
    """Over components, with weights that sum to 1."""
    return jax.tree.map(lambda x: jax.nn.logsumexp(log_weights + x, axis=0), pairs)


def _disturb(model: ClickModel, towers: Mapping[str, Parameter], rngs: nnx.Rngs) -> None:
    """Adds noise to the dense parameters of a model, those of shared towers aside."""
    common = {id(node) for tower in towers.values() for _, node in nnx.iter_graph(tower)}
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Param) and id(node) not in common:
            node[...] += APART * jax.random.normal(rngs.params(), node.shape)
