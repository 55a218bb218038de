"""Simulated logs: Zipf queries, a noisy logging policy, and clicks of any click model as the true user."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.construct import accepted
from clickexp.data.dataset import Dataset, Split, split
from clickexp.data.sessions import Sessions
from clickexp.errors import ConfigError
from clickexp.parameters import Parameter
from clickexp.parameters.fixed import DecayingExamination, FixedParameter

CHUNK = 1 << 16
LABEL_QUANTILES = (0.5, 0.75, 0.9, 0.97)


@dataclass(frozen=True)
class World:
    """The truth behind a simulated log.

    Query q has documents_per_query candidates; pair id 1 + q * documents_per_query + d, 0 is padding.
    Attraction logits are normal; labels 0 to 4 cut them at fixed quantiles, so that most documents are irrelevant.
    """

    queries: int
    documents_per_query: int
    attraction: np.ndarray
    satisfaction: np.ndarray
    labels: np.ndarray

    @property
    def query_doc_pairs(self) -> int:
        return self.queries * self.documents_per_query

    @classmethod
    def draw(
        cls, queries: int, documents_per_query: int, mean: float, spread: float, rng: np.random.Generator
    ) -> "World":
        rows = queries * documents_per_query + 1
        attraction = rng.normal(mean, spread, rows).astype(np.float32)
        satisfaction = (0.5 * (attraction - mean) + rng.normal(0, spread / 2, rows)).astype(np.float32)
        labels = np.searchsorted(np.quantile(attraction, LABEL_QUANTILES), attraction).astype(np.float32)
        return cls(queries, documents_per_query, attraction, satisfaction, labels)

    def towers(self, examination: tuple[float, float], continuation: float) -> dict[str, Parameter]:
        """A known tower for every role a model may have."""
        attraction = FixedParameter(self.attraction)
        return dict(
            attraction=attraction,
            ctr=attraction,
            satisfaction=FixedParameter(self.satisfaction),
            examination=DecayingExamination(*examination),
            continuation=FixedParameter(continuation),
        )


def simulate(
    user: Callable[..., nnx.Module],
    *,
    sessions: int = 300_000,
    queries: int = 5_000,
    documents_per_query: int = 20,
    positions: int = 10,
    zipf_exponent: float = 1.0,
    policy_noise: float = 1.0,
    attraction_mean: float = -2.5,
    attraction_spread: float = 1.5,
    examination_top: float = 2.0,
    examination_decay: float = 1.5,
    continuation: float = 2.0,
    train_sessions: Split = 0.7,
    val_sessions: Split = 0.15,
    test_sessions: Split = 0.15,
    seed: int = 0,
    name: str = "simulated",
) -> Dataset:
    """A dataset of sampled sessions, the same for the same arguments.

    user: constructor of the click model that clicks; it is given the true towers of the roles it names.
    zipf_exponent: query of popularity rank i is asked with probability proportional to i ** -exponent.
    policy_noise: standard deviation of the noise that the logging policy adds to attraction logits, per session.
    attraction_mean, attraction_spread: mean and standard deviation of the true attraction logits.
    examination_top, examination_decay: true examination logit top - decay log(distance to the last click or the top).
    continuation: true logit of going on, for models with such a parameter.

    The ranking test set has one list a query: random candidates in random order, with labels.
    ConfigError where a query has fewer documents than there are positions.
    """
    if documents_per_query < positions:
        raise ConfigError(
            f"simulated lists show {positions} positions but a query has only {documents_per_query} documents. "
            "Raise documents_per_query or lower positions."
        )
    rng = np.random.default_rng(seed)
    world = World.draw(queries, documents_per_query, attraction_mean, attraction_spread, rng)
    truth = world.towers((examination_top, examination_decay), continuation)
    sizes = dict(positions=positions, query_doc_pairs=world.query_doc_pairs)
    model = user(**accepted(user, {**truth, **sizes}), rngs=nnx.Rngs(0))
    popularity = np.arange(1, queries + 1, dtype=np.float64) ** -zipf_exponent
    shown = list(_shown(world, popularity, policy_noise, positions, sessions, rng))
    query_ids, documents = (np.concatenate(column) for column in zip(*shown, strict=True))
    pairs = world.query_doc_pairs
    log = Sessions.from_arrays(
        query_doc_ids=documents,
        clicks=_click(model, documents, seed),
        query_ids=query_ids,
        labels=world.labels[documents],
        query_doc_pairs=pairs,
    )
    parts = split(log, train_sessions, val_sessions, test_sessions)
    return Dataset(name, *parts, pairs, positions, _labelled_lists(world, positions, rng))


def _shown(
    world: World,
    popularity: np.ndarray,
    noise: float,
    positions: int,
    sessions: int,
    rng: np.random.Generator,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Query ids [n] and the pair ids [n, positions] that the logging policy shows, in chunks."""
    cumulative = np.cumsum(popularity / popularity.sum())
    for start in range(0, sessions, CHUNK):
        count = min(CHUNK, sessions - start)
        query = np.minimum(np.searchsorted(cumulative, rng.random(count)), world.queries - 1)
        candidates = _candidates(world, query)
        scores = world.attraction[candidates] + noise * rng.standard_normal(candidates.shape, np.float32)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :positions]
        yield query.astype(np.int64), np.take_along_axis(candidates, order, axis=1)


def _candidates(world: World, query: np.ndarray) -> np.ndarray:
    first = 1 + query[:, None] * world.documents_per_query
    return (first + np.arange(world.documents_per_query)).astype(np.int32)


def _click(model: nnx.Module, documents: np.ndarray, seed: int) -> np.ndarray:
    """Clicks [n, positions] that the user model draws, in chunks of one shape."""

    @jax.jit
    def clicks_of(ids: jax.Array, key: jax.Array) -> jax.Array:
        positions = jnp.arange(1, ids.shape[1] + 1, dtype=jnp.int32)[None]
        batch = dict(query_doc_ids=ids, positions=positions, mask=jnp.ones(ids.shape, bool))
        return model.sample({**batch, "clicks": jnp.zeros(ids.shape, bool)}, key).clicks

    clicks, key = np.empty(documents.shape, bool), jax.random.key(seed)
    for number, start in enumerate(range(0, len(documents), CHUNK)):
        chunk = documents[start : start + CHUNK]
        padded = np.pad(chunk, ((0, CHUNK - len(chunk)), (0, 0)))
        drawn = clicks_of(padded, jax.random.fold_in(key, number))
        clicks[start : start + CHUNK] = np.asarray(drawn)[: len(chunk)]
    return clicks


def _labelled_lists(world: World, positions: int, rng: np.random.Generator) -> Sessions:
    query_ids = np.arange(world.queries)
    documents = rng.permuted(_candidates(world, query_ids), axis=1)[:, :positions]
    return Sessions.from_arrays(
        query_doc_ids=documents,
        clicks=np.zeros(documents.shape, bool),
        query_ids=query_ids,
        labels=world.labels[documents],
        query_doc_pairs=world.query_doc_pairs,
    )
