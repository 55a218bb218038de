"""Mixture of click models."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from clickexp.errors import ConfigError
from clickexp.models.base import ClickModel, Sample
from clickexp.models.roles import no_context_role
from clickexp.numerics import LogPair
from clickexp.parameters import Parameter, Sizes, build_parameter
from clickexp.parameters.base import Columns, Features, Source
from clickexp.parameters.context import ContextParameterConfig, add_context
from clickexp.types import Array, ByRank, LogitsByRank
from clickexp.utils.batches import Limit
from clickexp.utils.bounds import Pairs, PositiveFloat, PositiveInt, Probability, bounded
from clickexp.utils.signatures import accepted

_Tree = TypeVar("_Tree")
"""One array, or a pair."""

_APART = 0.1
"""Standard deviation, in logits, of the noise that sets components of one kind apart."""


class MixtureModel(ClickModel):
    """A population of users: each session is one of a user who follows component k, with probability pi_k.

    P(clicks) = sum_k pi_k P_k(clicks), so that the clicks above a rank show which component is at work:
    P(c_r | c_<r) = sum_k w_k P_k(c_r | c_<r) with w_k proportional to pi_k P_k(c_<r); masked documents do not count.
    P(c_r) = sum_k pi_k P_k(c_r), and relevance is the mean of the components' relevance under pi.

    Components of one kind that start equal would stay equal: the second and further ones built here start from
    logits with a little noise.

    Args:
        models: Click models, or their constructors, which are then called with the sizes that they take and `rngs`.
        temperature: pi = softmax(prior / temperature) for learned logits `prior`, which start even. What can be
            learned does not depend on it; a step on the logits moves pi by 1 / temperature as much.
        shared: Towers by role that all components built here have in common, or roles alone, of which the components
            that have them state the same tower; models that are given built share what was built into several of
            them. Otherwise each component has separate towers.
        positions: Largest position.
        query_doc_pairs: Largest query-document id.
        click_rate: Clicks per document of the training sessions.
        features: Length of each kind of feature vector, by its key in the batch.
        columns: Largest value of each column of integers, by its key in the batch.
        standardized: Keys of feature vectors that the data has standardised.
        rngs: Streams of random numbers for initial values; None where all components are built.

    Raises:
        ConfigError: There are no components, the temperature is not positive, or towers to share differ.

    McLachlan and Peel 2000, "Finite mixture models".
    """

    @bounded
    def __init__(
        self,
        models: Sequence[ClickModel | Callable[..., ClickModel]],
        temperature: PositiveFloat = 1.0,
        shared: Mapping[str, Source] | Sequence[str] = (),
        *,
        positions: PositiveInt | None = None,
        query_doc_pairs: Pairs | None = None,
        click_rate: Probability | None = None,
        features: Features = None,
        columns: Columns = None,
        standardized: Collection[str] = (),
        rngs: nnx.Rngs | None = None,
    ):
        if not models:
            raise ConfigError("a mixture needs at least one click model")
        self.models = nnx.List([])
        sizes = Sizes(
            query_doc_pairs,
            positions,
            click_rate,
            features,
            columns,
            standardized=standardized,
        )
        if rngs is not None:
            towers = {
                role: build_parameter(role, source, None, sizes, rngs=rngs)
                for role, source in shared_towers(models, shared).items()
            }
            for model in models:
                self.models.append(self._component(model, towers, sizes, rngs))
        elif shared or not all(isinstance(model, ClickModel) for model in models):
            raise ValueError("a mixture that builds its components needs rngs=nnx.Rngs(...)")
        else:
            self.models.extend(models)
        self.prior = nnx.Param(jnp.zeros(len(models)))
        self.temperature = temperature
        self.name = f"Mixture({', '.join(model.name for model in self.models)})"

    @classmethod
    def check_settings(
        cls,
        models: Sequence[Any] = (),
        shared: Mapping[str, Source] | Sequence[str] = (),
        **settings: object,
    ) -> None:
        """ConfigError where components have different towers for a role that they share."""
        shared_towers(models, shared)

    @classmethod
    def with_context(
        cls, settings: Mapping[str, Any], context: ContextParameterConfig
    ) -> dict[str, Any]:
        """Returns arguments with context in each component; of a given role, in those that have it."""
        shared = shared_towers(settings["models"], settings.get("shared", ()))
        models, summed, roles = [], {}, set()
        for model in settings["models"]:
            kind, arguments = _constructor(model)
            roles.update(kind.plays.values())
            role = kind.context_role(context)
            if role in shared:
                summed[role] = add_context(shared[role], context)
            elif role is not None or context.role is None:
                model = partial(kind, **kind.with_context(arguments, context))
            models.append(model)
        if context.role is not None and context.role not in roles:
            raise no_context_role(cls.__name__, context, roles)
        return {**settings, "models": models, "shared": {**shared, **summed}}

    def _component(
        self,
        source: ClickModel | Callable[..., ClickModel],
        towers: Mapping[str, Parameter],
        sizes: Sizes,
        rngs: nnx.Rngs,
    ) -> ClickModel:
        if isinstance(source, ClickModel):
            return source
        constructor, _ = _constructor(source)  # a shared tower replaces that of a partial
        common = accepted(constructor, towers)
        for name, role in getattr(constructor, "plays", {}).items():
            if role in towers:
                common.setdefault(name, towers[role])
        model = source(**accepted(source, vars(sizes)), **common, rngs=rngs)
        if any(type(other) is type(model) for other in self.models):
            _disturb(model, towers, rngs)
        return model

    def log_prior(self) -> Float[Array, " component"]:
        """Returns log pi_k."""
        return jax.nn.log_softmax(self.prior[...] / self.temperature)

    def conditional(self, batch: ByRank) -> LogPair:
        """Returns the mean of the components' conditionals, weighted by the clicks above."""
        pairs = _stacked([model.conditional(batch) for model in self.models], batch)
        observed = jnp.where(batch["clicks"].astype(bool), pairs.log, pairs.complement)
        observed = jnp.where(batch["mask"].astype(bool), observed, 0.0)
        # shifted, not subtracted: the clicks at and below a rank must not leave even rounding errors
        above = jnp.pad(jnp.cumsum(observed[:, :-1], axis=1), ((0, 0), (1, 0), (0, 0)))
        return _mean(jax.nn.log_softmax(self.log_prior()[:, None, None] + above, axis=0), pairs)

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns the mean of the components' marginals under pi."""
        return self._expected([model.marginal(batch) for model in self.models], batch)

    def marginal_method(self, ranks: int) -> str:
        """Returns "exact" where it is for all components."""
        methods = (model.marginal_method(ranks) for model in self.models)
        return next((method for method in methods if method != "exact"), "exact")

    def relevance(self, batch: ByRank) -> LogitsByRank:
        """Returns the log of the mean relevance under pi."""
        return self._expected([model.relevance(batch) for model in self.models], batch)

    def log_attraction(self, batch: ByRank) -> LogitsByRank:
        """Returns the log of the mean attraction under pi."""
        return self._expected([model.log_attraction(batch) for model in self.models], batch)

    def log_examination(self, batch: ByRank, marginal: LogPair | None = None) -> LogitsByRank:
        """Returns the log of the mean examination under pi."""
        return self._expected([model.log_examination(batch) for model in self.models], batch)

    def limits(self) -> list[Limit]:
        """Returns the limits of all components."""
        return [limit for model in self.models for limit in model.limits()]

    def draw(self, batch: ByRank, key: Array) -> Sample:
        """Draws a component per session, then its events; hidden ones where every component has them."""
        key, *keys = jax.random.split(key, 1 + len(self.models))
        component = jax.random.categorical(key, self.log_prior(), shape=batch.shape[1:])
        samples = [model.draw(batch, key) for model, key in zip(self.models, keys, strict=True)]

        def drawn(*events: Any) -> Any:
            if any(event is None for event in events):
                return None
            return jnp.take_along_axis(jnp.stack(events), component[None, None], axis=0)[0]

        return Sample(*map(drawn, *samples))._replace(component=component)

    def _expected(self, trees: list[_Tree], batch: ByRank) -> _Tree:
        return _mean(self.log_prior()[:, None, None], _stacked(trees, batch))


def shared_towers(
    models: Sequence[Any], shared: Mapping[str, Source] | Sequence[str]
) -> dict[str, Source]:
    """Returns the towers that components share.

    Args:
        models: The components.
        shared: Towers by role; or roles, of which each component that has them states the tower.

    Raises:
        ConfigError: Components state different towers for a role.
    """
    if isinstance(shared, Mapping):
        return dict(shared)
    by_role = {}
    for role in shared:
        towers = [tower for model in models for tower in _towers(model, role)]
        if any(_settings(tower) != _settings(towers[0]) for tower in towers):
            raise ConfigError(
                f"model.shared: components have different towers for {role}; "
                f"choose one for all by parameter@{role}=..., or do not share it"
            )
        if towers:
            by_role[role] = towers[0]
    return by_role


def _towers(model: Any, role: str) -> list[Source]:
    """The tower that a component states for a role, or its default; none of a component that has been built."""
    if isinstance(model, ClickModel):
        return []
    kind, settings = _constructor(model)
    arguments = [name for name, played in getattr(kind, "plays", {}).items() if played == role]
    return [settings.get(name) or kind.roles[name] for name in arguments]


def _constructor(model: Any) -> tuple[Any, Mapping[str, Any]]:
    """The function or class behind a constructor, and the arguments that it holds."""
    return getattr(model, "func", model), getattr(model, "keywords", {})


def _settings(tower: Source) -> Any:
    """A value that is equal of equal towers; partials that hold the same are not equal themselves."""
    return (tower.func, tower.args, tower.keywords) if isinstance(tower, partial) else tower


def _stacked(trees: list[_Tree], batch: ByRank) -> _Tree:
    """Log-probabilities of each component, [component, rank, batch]."""
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *map(batch.broadcast, trees))


def _mean(log_weights: Array, stacked: _Tree) -> _Tree:
    """Log of the mean over components, with weights that sum to 1."""
    return jax.tree.map(lambda x: jax.nn.logsumexp(log_weights + x, axis=0), stacked)


def _disturb(model: ClickModel, towers: Mapping[str, Parameter], rngs: nnx.Rngs) -> None:
    """Adds noise to the dense parameters of a model, those of shared towers aside."""
    common = {id(node) for tower in towers.values() for _, node in nnx.iter_graph(tower)}
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Param) and id(node) not in common:
            node[...] += _APART * jax.random.normal(rngs.params(), node.shape)
