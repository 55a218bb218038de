"""Simulated logs: Zipf queries, a noisy logging policy, and clicks of any click model as the true user."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data.dataset import Dataset, Split, check_split, split
from clickexp.data.pairs import consecutive_pairs
from clickexp.data.schema import Column
from clickexp.data.sessions import Sessions
from clickexp.errors import ConfigError
from clickexp.models.base import ClickModel
from clickexp.simulation.towers import Behavior, FixedParameter
from clickexp.utils.bounds import NonNegativeFloat, PositiveInt, Seed, bounded
from clickexp.utils.signatures import accepted, located, missing_arguments

_CELLS = 1 << 20
RANDOMIZED = Column("randomized", np.bool_, "session")
"""Whether a session sees its candidates in uniformly random order."""
_LABEL_QUANTILES = (0.5, 0.75, 0.9, 0.97)


@dataclass(frozen=True)
class GroundTruth:
    """The truth behind simulated clicks.

    Query q has the candidates starts[q] <= id < starts[q + 1], with the policy's scores, labels, and the logits of
    attraction and satisfaction; all but starts are [pairs + 1], id 0 is padding.
    """

    starts: np.ndarray
    policy: np.ndarray
    labels: np.ndarray
    attraction: np.ndarray
    satisfaction: np.ndarray

    @property
    def query_doc_pairs(self) -> int:
        """The largest id."""
        return len(self.labels) - 1

    @classmethod
    def draw(
        cls,
        queries: int,
        documents_per_query: int,
        mean: float,
        spread: float,
        rng: np.random.Generator,
    ) -> "GroundTruth":
        """Normal attraction logits; labels 0 to 4 cut them at fixed quantiles, so that most are irrelevant."""
        rows = queries * documents_per_query + 1
        attraction = rng.normal(mean, spread, rows).astype(np.float32)
        satisfaction = (0.5 * (attraction - mean) + rng.normal(0, spread / 2, rows)).astype(
            np.float32
        )
        labels = np.searchsorted(np.quantile(attraction, _LABEL_QUANTILES), attraction).astype(
            np.float32
        )
        starts = 1 + documents_per_query * np.arange(queries + 1)
        return cls(starts, attraction, labels, attraction, satisfaction)

    def user(
        self, model: Callable[..., ClickModel] | str, positions: int, behavior: Behavior
    ) -> ClickModel:
        """The click model as a user with the true towers of the roles that it names.

        Args:
            model: Its constructor, or the dotted path of that.
            positions: Documents shown.
            behavior: What does not depend on documents.

        Raises:
            ConfigError: Numbers are given that the model has no use for, or for too few ranks; or it takes no tower.
        """
        model = located(model) if isinstance(model, str) else model
        kind = getattr(model, "func", model)
        if isinstance(kind, type) and not issubclass(kind, ClickModel):
            raise ConfigError(
                f"dataset.user={kind.__name__}: it does not click. Choose a click model, such as "
                "clickexp.models.PositionBasedModel."
            )
        attraction = FixedParameter(self.attraction)
        towers = {
            "attraction": attraction,
            "ctr": attraction,
            "satisfaction": FixedParameter(self.satisfaction),
            **behavior.towers(positions),
        }
        sizes = {"positions": positions, "query_doc_pairs": self.query_doc_pairs}
        # components of a mixture take the towers as `shared`
        arguments = accepted(model, {**towers, **sizes, "shared": towers})
        name = getattr(kind, "__name__", str(model))
        if arguments.keys() <= sizes.keys():
            raise ConfigError(
                f"dataset.user={name}: it takes none of the true towers ({', '.join(towers)}), so that its clicks "
                "would say nothing about documents. Choose another click model."
            )
        behavior.check_read(arguments, name)
        if lacking := missing_arguments(model, {*arguments, "rngs"}):
            raise ConfigError(
                f"dataset.user={name}: it needs {', '.join(lacking)}. Give it below dataset.user."
            )
        return model(**arguments, rngs=nnx.Rngs(0))

    def browse(
        self,
        user: ClickModel,
        queries: np.ndarray,
        popularity: np.ndarray,
        noise: float,
        positions: int,
        sessions: int,
        seed: int,
        rng: np.random.Generator,
        randomized: float = 0.0,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Columns of sessions in chunks: queries by popularity, top candidates by noisy scores, and clicks.

        A share of sessions that is `randomized` sees candidates in uniformly random order; a column flags them.
        """
        counts = np.diff(self.starts)
        size, key = max(_CELLS // max(counts[queries].max(), positions), 1), jax.random.key(seed)
        cumulative, clicks_of = np.cumsum(popularity / popularity.sum()), _clicks_of(user)
        for number, start in enumerate(range(0, sessions, size)):
            count = min(size, sessions - start)
            query = queries[
                np.minimum(np.searchsorted(cumulative, rng.random(count)), len(queries) - 1)
            ]
            candidates, mask = self.candidates(query)
            scores = self.policy[candidates] + noise * rng.standard_normal(
                candidates.shape, np.float32
            )
            flags = {}
            if randomized:
                flags[RANDOMIZED.name] = rng.random(count) < randomized
                scores = np.where(
                    flags[RANDOMIZED.name][:, None],
                    rng.random(candidates.shape, np.float32),
                    scores,
                )
            order = np.argsort(np.where(mask, -scores, np.inf), axis=1, kind="stable")[
                :, :positions
            ]
            shown = np.zeros((size, positions), np.int32)
            shown[:count, : order.shape[1]] = np.take_along_axis(
                np.where(mask, candidates, 0), order, axis=1
            )
            clicks = np.asarray(clicks_of(shown, jax.random.fold_in(key, number)))[:count]
            yield {
                "query_doc_ids": shown[:count],
                "clicks": clicks,
                "lengths": np.minimum(counts[query], positions).astype(np.int32),
                "query_ids": query.astype(np.int64),
                "labels": self.labels[shown[:count]],
                **flags,
            }

    def candidates(self, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids [n, longest list] of each query's candidates, and where a list has one."""
        first, end = self.starts[query][:, None], self.starts[query + 1][:, None]
        ids = first + np.arange((end - first).max())
        return np.minimum(ids, self.query_doc_pairs).astype(np.int32), ids < end

    def labelled(self, ids: np.ndarray, query: np.ndarray) -> dict[str, np.ndarray]:
        """Columns of the lists of some queries, ids [n, ranks] with 0 beyond their ends, without clicks."""
        return {
            "query_doc_ids": ids,
            "clicks": np.zeros(ids.shape, bool),
            "lengths": np.count_nonzero(ids, axis=1),
            "query_ids": query,
            "labels": self.labels[ids],
        }


def zipf(queries: int, exponent: float) -> np.ndarray:
    """Popularity of the i-th query, proportional to i ** -exponent."""
    return np.arange(1, queries + 1, dtype=np.float64) ** -exponent


@bounded
def simulate(
    user: Callable[..., ClickModel],
    *,
    sessions: PositiveInt = 300_000,
    queries: PositiveInt = 5_000,
    documents_per_query: PositiveInt = 20,
    positions: PositiveInt = 10,
    zipf_exponent: float = 1.0,
    policy_noise: NonNegativeFloat = 1.0,
    attraction_mean: float = -2.5,
    attraction_spread: NonNegativeFloat = 1.5,
    examination_top: float = 2.0,
    examination_decay: float = 1.5,
    continuation: float = 2.0,
    train_sessions: Split = 0.7,
    val_sessions: Split = 0.15,
    test_sessions: Split = 0.15,
    seed: Seed = 0,
    name: str = "simulated",
) -> Dataset:
    """A dataset of sampled sessions, the same for the same arguments.

    The ranking test set has one list per query: random candidates in random order, with labels.

    Args:
        user: Constructor of the click model that clicks; it is given the true towers of the roles that it names.
        sessions: Sessions of all parts.
        queries: Queries.
        documents_per_query: Documents of each.
        positions: Documents that a list shows.
        zipf_exponent: The query of popularity rank i is asked with probability proportional to i ** -exponent.
        policy_noise: Standard deviation of the noise that the logging policy adds to attraction logits, per session.
        attraction_mean: Mean of the true attraction logits.
        attraction_spread: Their standard deviation.
        examination_top: True examination logit of the top, or right below the last click.
        examination_decay: What it loses per logarithm of the distance to these.
        continuation: True logit of going on, for models with such a parameter.
        train_sessions: Share, number or range of the sessions for training.
        val_sessions: Those for validation.
        test_sessions: Those for the test.
        seed: Seed of the sample.
        name: Name of the dataset.

    Raises:
        ConfigError: A query has fewer documents than there are positions.
    """
    if documents_per_query < positions:
        raise ConfigError(
            f"simulated lists show {positions} positions but a query has only {documents_per_query} documents. "
            "Raise documents_per_query or lower positions."
        )
    check_split(train_sessions, val_sessions, test_sessions)
    rng = np.random.default_rng(seed)
    truth = GroundTruth.draw(queries, documents_per_query, attraction_mean, attraction_spread, rng)
    true_user = truth.user(
        user, positions, Behavior(examination_top, examination_decay, continuation)
    )
    popularity = zipf(queries, zipf_exponent)
    everyone = np.arange(queries)
    chunks = truth.browse(
        true_user, everyone, popularity, policy_noise, positions, sessions, seed, rng
    )
    parts, pairs = list(chunks), truth.query_doc_pairs
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts]) for name in parts[0]
    }
    derived = consecutive_pairs(truth.starts)
    log = Sessions.from_arrays(**columns, query_doc_pairs=pairs).deriving(*derived)
    train, val, test = split(log, train_sessions, val_sessions, test_sessions)
    shuffled = rng.permuted(truth.candidates(everyone)[0], axis=1)[:, :positions]
    labelled: dict[str, Any] = truth.labelled(shuffled, everyone)
    ranking = Sessions.from_arrays(**labelled, query_doc_pairs=pairs).deriving(*derived)
    return Dataset(name, train, val, test, pairs, positions, ranking, true_user)


simulate.has_features = False  # pyright: ignore[reportFunctionMemberAccess]  # as LogFormat has it


def _clicks_of(user: ClickModel) -> Callable[[np.ndarray, jax.Array], jax.Array]:
    structure, state = nnx.split(user)

    @jax.jit
    def clicks_of(state: nnx.State, ids: jax.Array, key: jax.Array) -> jax.Array:
        positions = jnp.arange(1, ids.shape[1] + 1, dtype=jnp.int32)[None]
        batch = {"query_doc_ids": ids, "positions": positions, "mask": ids > 0}
        user = nnx.merge(structure, state)
        return user.sample(
            {**batch, "clicks": jnp.zeros(ids.shape, bool)}, key, in_log_order=False
        ).clicks

    # else the true parameters would be constants of the compiled program
    return partial(clicks_of, state)
