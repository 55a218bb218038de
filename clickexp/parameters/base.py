"""What a tower is: anything that turns a batch into one logit a document."""

import abc
import dataclasses
from collections.abc import Callable, Mapping

import jax
from flax import nnx

from clickexp.errors import ConfigError
from clickexp.numerics import LogPair, log_odds, log_sigmoid_pair
from clickexp.types import Batch, Logits
from clickexp.utils.bounds import Pairs, PositiveInt, Probability, check_values

Features = Mapping[str, int] | None


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a tower may need to know of the data before it can be built.

    query_doc_pairs: largest query-document id; positions: ranks shown; click_rate: clicks a document;
    features: length of each kind of feature vector, by its key in the batch.
    """

    query_doc_pairs: Pairs | None = None
    positions: PositiveInt | None = None
    click_rate: Probability | None = None
    features: Features = None

    def __post_init__(self) -> None:
        check_values(type(self).__init__, vars(self))

    def require(self, name: str, role: str) -> int:
        """The size called `name`; ValueError if it was not given."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"the default {role} needs {name}=...; give it, or give {role}=... itself")
        return value

    def width(self, feature: str, given: int | None) -> int:
        """The length of a feature vector, as given or else as the data has it; ConfigError if neither is known."""
        known = (self.features or {}).get(feature)
        if given is None and known is None:
            raise ConfigError(
                f"the data has no {feature}, which a tower reads; choose a dataset that has them, or another tower"
            )
        return known if given is None else given

    def starting_logit(self, logit: float | None) -> float:
        """The logit itself; for None the log-odds of the click rate, or 0 where that is unknown."""
        if logit is not None:
            return logit
        return 0.0 if self.click_rate is None else log_odds(self.click_rate)


class Parameter(nnx.Module):
    """The probability s(z) of one hidden event, for logits z of shape [batch, rank] or broadcastable."""

    def logit(self, batch: Batch) -> Logits:
        raise NotImplementedError

    def limits(self) -> dict[str, int]:
        """Keys of the batch that are looked up in a table, and the largest value that it has a row for."""
        return {}

    def log_pair(self, batch: Batch) -> LogPair:
        """(log s(z), log s(-z))."""
        return LogPair(*(log_prob.T for log_prob in self.ranked(batch)))

    def ranked(self, batch: Batch) -> LogPair:
        """The pair as models compute with it, [rank, batch]: XLA vectorises over sessions better than over ranks."""
        return log_sigmoid_pair(self.logit(batch).T)

    def log_prob(self, batch: Batch) -> Logits:
        return self.log_pair(batch).log

    def prob(self, batch: Batch) -> Logits:
        return jax.nn.sigmoid(self.logit(batch))


class ParameterConfig(abc.ABC):
    """Builds a Parameter once the sizes of the data are known."""

    def __post_init__(self) -> None:
        """ConfigError for numbers of a dataclass's fields that are out of bounds."""
        check_values(type(self).__init__, vars(self))

    @abc.abstractmethod
    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> Parameter: ...


class ModuleParameter(Parameter):
    """Any Flax NNX module that maps a batch to logits [batch, rank]."""

    def __init__(self, module: nnx.Module):
        self.module = module

    def logit(self, batch: Batch) -> Logits:
        logit = self.module(batch)
        if logit.ndim != 2:
            raise ValueError(
                f"{type(self.module).__name__} returned logits of shape {logit.shape}; "
                "a tower returns one logit a document, [batch, rank] (drop the last axis with x[..., 0])"
            )
        return logit


Source = Parameter | ParameterConfig | nnx.Module | Callable[..., nnx.Module] | None


def build_parameter(
    role: str, source: object, default: ParameterConfig | None, sizes: Sizes, *, rngs: nnx.Rngs
) -> Parameter:
    """The parameter of a role, from a config, a built parameter, a module, a constructor or None.

    A constructor is called with `rngs=rngs`. ConfigError for a module without __call__, TypeError for anything else.
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
