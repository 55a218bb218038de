"""Towers: what turns a batch into one logit per document."""

import abc
import dataclasses
from collections.abc import Callable, Collection, Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from clickexp.errors import ConfigError, DataError, UserError
from clickexp.numerics import LogPair, log_odds, log_sigmoid_pair, mean_log_sigmoid_pair
from clickexp.parameters.formula import Formula
from clickexp.types import Array, Batch, ByRank, Logits, swap_list_and_rank
from clickexp.utils.bounds import Pairs, PositiveInt, Probability, check_numbers

Features = Mapping[str, int] | None
"""Length of each kind of feature vector, by its key in the batch."""

Columns = Mapping[str, int] | None
"""Largest value of each column of integers, by its key in the batch."""

_Oriented = Float[Array, "#list_or_rank #rank_or_list"]
"""One number per document, oriented as the batch is."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the data, which towers are built for.

    Attributes:
        query_doc_pairs: Largest query-document id.
        positions: Largest position.
        click_rate: Clicks per document.
        features: Length of each kind of feature vector, by its key in the batch.
        columns: Largest value of each column of integers, by its key in the batch.
        indices: Largest value of each key that the model itself adds to the batch.
        standardized: Keys of feature vectors that the data has standardised.
    """

    query_doc_pairs: Pairs | None = None
    positions: PositiveInt | None = None
    click_rate: Probability | None = None
    features: Features = None
    columns: Columns = None
    indices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    standardized: Collection[str] = ()

    def __post_init__(self) -> None:
        check_numbers(type(self).__init__, vars(self))

    def largest(self, feature: str, size: str, role: str) -> int:
        """Returns the largest value of a key of the batch.

        Args:
            feature: The key.
            size: The size that it is unless the model or the data state another.
            role: The tower that needs it, for the message.

        Raises:
            ValueError: The size is unknown.
        """
        stated = self.indices if feature in self.indices else self.columns or {}
        value = stated[feature] if feature in stated else getattr(self, size)
        if value is None:
            raise ValueError(
                f"the default {role} needs {size}=...; give it, or give {role}=... itself"
            )
        return value

    def width(self, feature: str, stated: int | None) -> int:
        """Returns the length of a feature vector, as given or as the data has it; 1 of a column of numbers.

        Raises:
            ConfigError: Neither is known, or they differ.
        """
        length = (self.features or {}).get(feature)
        if length is None and stated is None:
            have = ", ".join(self.features or {}) or "none"
            raise ConfigError(
                f"the data has no feature {feature}, which a tower reads (it has {have}): name its columns, as "
                "dataset.features=[price,age] does, choose a dataset that has it, or another tower"
            )
        if length is not None and stated not in (None, length):
            raise ConfigError(
                f"features={stated}, and {feature} has {length} per document: set features to null"
            )
        return length or stated or 0

    def is_scaled(self, feature: str, width: int) -> bool:
        """Returns whether the data has standardised feature vectors, or a norm of each would leave nothing of them."""
        return width == 1 or feature in self.standardized

    def starting_logit(self, logit: float | None) -> float:
        """Returns the logit itself; for None the log-odds of the click rate, or 0 where that is unknown.

        Raises:
            DataError: The sessions have no click, or nothing but clicks.
        """
        if logit is not None:
            return logit
        check_click_rate(self.click_rate)
        return 0.0 if self.click_rate is None else log_odds(self.click_rate)


def check_click_rate(rate: float | None) -> None:
    """Checks that there is something to fit.

    Args:
        rate: Clicks per document of the training sessions; None where it is unknown.

    Raises:
        DataError: The sessions have no click, or nothing but clicks.
    """
    if rate in (0, 1):
        clicked = "every document" if rate else "no document"
        raise DataError(
            f"{clicked} of the training sessions was clicked, so that there is nothing to fit. "
            "Check the column of clicks, and which sessions are for training."
        )


class Parameter(nnx.Module):
    """The probability s(z) of one hidden event, for a logit z per document.

    A subclass defines `logit`. The other methods take a batch of lists or, inside a click model, one by rank, and
    return arrays oriented as the batch is.
    """

    def logit(self, batch: Batch) -> Logits:
        """Returns logits `[batch, rank]`, or of a shape that broadcasts to it, for a batch of lists."""
        raise NotImplementedError

    def posterior(self, batch: Batch) -> tuple[Logits, Logits | None]:
        """Returns mean and variance of the logits for a batch of lists; no variance where they are numbers."""
        return self.logit(batch), None

    def limits(self) -> dict[str, int]:
        """Returns the largest value that the tower has a row for, by the key of the batch that it looks up."""
        return {}

    def describe(self, formula: Formula) -> str:
        """Writes the logit down for scorers without JAX; needless for a tower of ids alone, which becomes a table.

        Args:
            formula: Receives the steps from features and ids to the logit.

        Returns:
            The name of the logit.

        Raises:
            UserError: The tower has no description.
        """
        raise UserError(f"{type(self).__name__} has no method describe")

    def __call__(self, batch: Batch | ByRank) -> _Oriented:
        """Returns the logits."""
        return (
            swap_list_and_rank(self.logit(batch.lists))
            if isinstance(batch, ByRank)
            else self.logit(batch)
        )

    def log_pair(self, batch: Batch | ByRank) -> LogPair:
        """Returns (log s(z), log s(-z)); with posteriors (log E[s(z)], log E[s(-z)])."""
        mean, variance = self.posterior(batch.lists if isinstance(batch, ByRank) else batch)
        if isinstance(batch, ByRank):
            mean, variance = (
                swap_list_and_rank(mean),
                None if variance is None else swap_list_and_rank(variance),
            )
        return log_sigmoid_pair(mean) if variance is None else mean_log_sigmoid_pair(mean, variance)

    def log_prob(self, batch: Batch | ByRank) -> _Oriented:
        """Returns log s(z)."""
        return self.log_pair(batch).log

    def prob(self, batch: Batch | ByRank) -> _Oriented:
        """Returns s(z)."""
        return jax.nn.sigmoid(self(batch))


class PosteriorParameter(Parameter):
    """A tower that may know its logits with a normal posterior each; a subclass defines `posterior`."""

    def logit(self, batch: Batch) -> Logits:
        """Returns the logits; with posteriors those of the mean probabilities."""
        mean, variance = self.posterior(batch)
        if variance is None:
            return mean
        pair = mean_log_sigmoid_pair(mean, variance)
        return pair.log - pair.complement

    def posterior(self, batch: Batch) -> tuple[Logits, Logits | None]:
        """Returns mean and variance of the logits for a batch of lists; no variance where they are numbers."""
        raise NotImplementedError


def row_ids(batch: Batch | ByRank, key: str) -> Array:
    """Returns what a tower looks rows up by; DataError unless these are integers."""
    ids = batch[key]
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise DataError(
            f"{key} is {ids.dtype}, and a tower looks rows up by it: give it integers, or another tower."
        )
    return ids


def feature_vectors(batch: Batch, key: str, width: int) -> Array:
    """Returns feature vectors `[batch, rank, width]`; a column of numbers `[batch, rank]` is one of vectors of width 1.

    Raises:
        DataError: They have another width.
    """
    values = jnp.asarray(batch[key])
    vectors = values[..., None] if values.ndim == 2 else values
    if vectors.ndim != 3 or vectors.shape[-1] != width:
        raise DataError(
            f"{key} has shape {values.shape}, and a tower reads [batch, rank, {width}] of it: "
            "give such an array, or build the tower for the features that there are."
        )
    return vectors.astype(jnp.float32)


class ParameterConfig(abc.ABC):
    """Settings of a tower, which is built once the sizes of the data are known."""

    def __post_init__(self) -> None:
        check_numbers(type(self).__init__, vars(self))

    @abc.abstractmethod
    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> Parameter:
        """Builds the tower.

        Args:
            sizes: Sizes of the data.
            rngs: Streams of random numbers for initial values.
        """


class ModuleParameter(Parameter):
    """Any Flax NNX module that maps a batch of lists to logits `[batch, rank]`."""

    def __init__(self, module: Callable[[Batch], Logits]):
        self.module = module

    def logit(self, batch: Batch) -> Logits:
        """Returns what the module returns; ValueError where it is not one logit per document."""
        logit = self.module(batch)
        if logit.ndim != 2:
            raise ValueError(
                f"{type(self.module).__name__} returned logits of shape {logit.shape}; "
                "a tower returns one logit per document, [batch, rank] (drop the last axis with x[..., 0])"
            )
        return logit


Source = Parameter | ParameterConfig | nnx.Module | Callable[..., nnx.Module] | None


def build_parameter(
    role: str, source: object, default: ParameterConfig | None, sizes: Sizes, *, rngs: nnx.Rngs
) -> Parameter:
    """Builds the tower of a role.

    Args:
        role: Its name, for messages.
        source: A config, a built parameter, a module, a constructor, which is called with `rngs=rngs`, or None.
        default: Config that is used for None.
        sizes: Sizes of the data.
        rngs: Streams of random numbers for initial values.

    Raises:
        ConfigError: The source is a module without `__call__`.
        TypeError: The source is something else.
    """
    match source:
        case None if default is not None:
            return default.build(sizes, rngs=rngs)
        case ParameterConfig():
            return source.build(sizes, rngs=rngs)
        case Parameter():
            return source
        case nnx.Module() if callable(source):
            return ModuleParameter(source)
        case nnx.Module():
            raise ConfigError(
                f"{role}: {type(source).__name__} has no __call__. Define __call__(self, batch) to return logits "
                "[batch, rank], or derive the class from clickexp.parameters.Parameter, which needs logit(self, batch)"
            )
        case _ if callable(source):
            return build_parameter(role, source(rngs=rngs), default, sizes, rngs=rngs)
    raise TypeError(
        f"{role} must be a Parameter, a ParameterConfig, a Flax NNX module or its constructor, "
        f"got {type(source).__name__}"
    )
