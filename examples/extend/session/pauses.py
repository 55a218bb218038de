"""How long a user waited since the list before: a column of the context of search sessions."""

import jax.numpy as jnp
import numpy as np

from clickexp.data.context import context_column
from clickexp.parameters import ContextParameterConfig

__all__ = ["ContextParameterConfig"]


@context_column(
    "pause", np.float32, needs=("times",), numbers=lambda pause: [pause > 0, jnp.log1p(pause)]
)
def pause(lists):
    """Returns the time between each list and the one before in its session, 0 for the first one."""
    times = lists["times"]
    return np.where(lists.first, 0, np.diff(times, prepend=times[:1]))
