"""A learned offset for what came before in the search session."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from clickexp.data.context import CONTEXT
from clickexp.data.history import HISTORY
from clickexp.errors import ConfigError
from clickexp.parameters.base import Parameter, ParameterConfig, Sizes, Source
from clickexp.parameters.sum import SumParameter, SumParameterConfig
from clickexp.types import Batch, Logits
from clickexp.utils.bounds import PositiveInt


@dataclasses.dataclass(frozen=True)
class ContextParameterConfig(ParameterConfig):
    """Settings of a ContextParameter.

    Attributes:
        columns: Names of the columns of `clickexp.data.context` that it reads.
        hidden_units: Units of each hidden layer; none for a linear offset.
        role: The role of a model whose logit it is added to; None: examination where the model has it, else attraction.
    """

    columns: Sequence[str] = tuple(CONTEXT)
    hidden_units: Sequence[PositiveInt] = ()
    role: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("columns", "hidden_units"):  # settings are part of a compiled program's key
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.columns or not {*self.columns} <= CONTEXT.keys():
            raise ConfigError(f"columns={[*self.columns]}: give some of {', '.join(CONTEXT)}")

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "ContextParameter":
        """Builds the tower.

        Raises:
            ConfigError: The data has no search sessions, or not this column.
        """
        columns = CONTEXT if sizes.columns is None else sizes.columns
        for name in self.columns:
            if name not in columns:
                raise ConfigError(
                    f"the data has no {name}, which follows from search sessions: name their column by "
                    "dataset.columns.search_session=NAME, choose a dataset that has them, or leave the context out"
                )
        return ContextParameter(self, rngs=rngs)


class ContextParameter(Parameter):
    """z = w . x, or f(x) - f(0) for a network f, with x made of the context of a search session.

    A new document in a user's first list has x = 0, and so z = 0. So have batches without context: whoever asks for
    the relevance of a document asks for that in a new session.

    Attributes:
        config: Its settings.
    """

    def __init__(self, config: ContextParameterConfig, *, rngs: nnx.Rngs):
        self.config = config
        width = sum(len(CONTEXT[name].numbers(jnp.zeros(()))) for name in config.columns)
        layers: list[Any] = []
        for units in config.hidden_units:
            layers += [nnx.Linear(width, units, rngs=rngs), nnx.elu]
            width = units
        self.hidden = nnx.Sequential(*layers) if layers else None
        self.weight = nnx.Param(jnp.zeros(width))

    def logit(self, batch: Batch) -> Logits:
        """Returns the offsets, `[batch, 1]` where no column is per document."""
        if not any(name in batch for name in self.config.columns):
            return jnp.zeros((1, 1))
        read = [
            values
            for name in self.config.columns
            for values in CONTEXT[name].numbers(jnp.asarray(batch[name], jnp.float32))
        ]
        x = jnp.stack(
            jnp.broadcast_arrays(*(values.astype(jnp.float32) for values in read)), axis=-1
        )
        if self.hidden is not None:
            x = self.hidden(x) - self.hidden(jnp.zeros(x.shape[-1]))
        return x @ self.weight[...]


def add_context(tower: Source, context: ContextParameterConfig) -> SumParameterConfig:
    """Returns settings of the sum of a tower and of an offset for context.

    Raises:
        ConfigError: The tower has no settings, such as one that has been built.
    """
    if not isinstance(tower, ParameterConfig):
        raise ConfigError(
            f"context cannot be added to {tower!r}: give the settings of a tower, such as attraction=embedding"
        )
    return SumParameterConfig({"tower": tower, "context": context})


def new_session(batch: Any) -> Any:
    """Returns the batch without the context of search sessions, as where each list is the first of its user."""
    return {
        name: values
        for name, values in batch.items()
        if name not in CONTEXT and name not in HISTORY
    }


def in_new_session(tower: Any) -> tuple[str, Any]:
    """Returns the path and the tower that is left in a new search session, where offsets of context are 0.

    Args:
        tower: The sum of another tower and of context, or anything else, which is all that is left, with the path "".
    """
    if isinstance(tower, SumParameter):
        left = [
            name for name, term in tower.terms.items() if not isinstance(term, ContextParameter)
        ]
        if len(left) == 1:
            return f"terms/{left[0]}/", tower.terms[left[0]]
    return "", tower
