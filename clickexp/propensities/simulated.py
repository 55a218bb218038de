"""True propensities, of users whose clicks are simulated."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data import Dataset
from clickexp.errors import ConfigError
from clickexp.propensities.base import Propensities, PropensitySource

_SESSIONS = 4096
"""Sessions over which examination is a mean, where it depends on documents."""


@dataclasses.dataclass(frozen=True)
class SimulatedPropensities(PropensitySource):
    """True examination by position, which no method can know outside a simulation.

    For users who trust the ranking, with click rates t_k of relevant and f_k of irrelevant documents at position k,
    the propensities are t_k - f_k and the offsets f_k; for mixtures with such users t_k, without offsets.
    """

    def __call__(self, dataset: Dataset) -> Propensities:
        """Averages the true examination over training sessions; ConfigError where clicks are not simulated."""
        user, sessions = dataset.truth, dataset.train
        if user is None:
            raise ConfigError(
                f"propensity=simulated: the clicks of {dataset.name} are not simulated, so that the truth is not "
                "known; estimate it, such as by propensity=harvest"
            )
        rows = sessions.rows(slice(0, min(_SESSIONS, sessions.count)), ["query_doc_ids", "lengths"])
        ids = jnp.asarray(rows["query_doc_ids"])
        shown = jnp.arange(sessions.ranks) < rows["lengths"][:, None]
        places = jnp.broadcast_to(jnp.arange(1, sessions.ranks + 1, dtype=jnp.int32), ids.shape)
        batch = {
            "query_doc_ids": ids,
            "positions": places,
            "mask": shown,
            "clicks": jnp.zeros(ids.shape, bool),
        }
        log_examination = nnx.jit(lambda user, batch: user.predict_examination(batch))(user, batch)
        there = np.asarray(shown)
        times, summed = (
            there.sum(axis=0),
            np.where(there, np.exp(log_examination), 0).sum(axis=0, dtype=np.float64),
        )
        examination = np.divide(summed, times, out=np.full(len(times), np.nan), where=times > 0)
        if any(hasattr(each, "false_positive") for each in getattr(user, "models", ())):
            return Propensities.relative(examination, source="true")
        rates = np.zeros(sessions.ranks)
        if (tower := getattr(user, "false_positive", None)) is not None:
            rates = np.asarray(np.exp(tower.log_prob(batch)), np.float64)[0]
        return Propensities.relative(
            examination - rates, offsets=tuple(rates.tolist()), source="true"
        )
