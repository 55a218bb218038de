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
        chunk = sessions.chunk(0, _SESSIONS)
        batch = {
            "query_doc_ids": jnp.asarray(chunk["query_doc_ids"]),
            "positions": jnp.asarray(chunk.positions, jnp.int32),
            "mask": jnp.asarray(chunk.shown),
            "clicks": jnp.zeros(chunk.shown.shape, bool),
        }
        log_examination = nnx.jit(lambda user, batch: user.predict_examination(batch))(user, batch)
        positions = chunk.of_documents("positions")
        examined = np.exp(log_examination)[chunk.shown].astype(np.float64)
        summed, shown = np.bincount(positions, examined)[1:], np.bincount(positions)[1:]
        examination = np.divide(summed, shown, out=np.full(len(shown), np.nan), where=shown > 0)
        if any(hasattr(component, "false_positive") for component in getattr(user, "models", ())):
            return Propensities.relative(examination, source="true")
        rates = np.zeros(len(shown))
        if (tower := getattr(user, "false_positive", None)) is not None:
            all_positions = {"positions": jnp.arange(1, len(shown) + 1)[None]}
            rates = np.asarray(np.exp(tower.log_prob(all_positions)), np.float64)[0]
        return Propensities.relative(
            examination - rates, offsets=tuple(rates.tolist()), source="true"
        )
