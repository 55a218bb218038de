"""Towers whose logit is a sum of terms, such as tables of pairs, documents and queries."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from flax import nnx

from clickexp.errors import ConfigError
from clickexp.parameters.base import Parameter, ParameterConfig, PosteriorParameter, Sizes
from clickexp.types import Batch, Logits


@dataclasses.dataclass(frozen=True)
class SumParameterConfig(ParameterConfig):
    """Settings of a SumParameter.

    Attributes:
        terms: Settings of the terms by name; None leaves one out.
    """

    terms: Mapping[str, ParameterConfig | None]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(term is not None for term in self.terms.values()):
            raise ConfigError("a sum needs at least one term: give terms={NAME: TOWER}")

    def build(self, sizes: Sizes, *, rngs: nnx.Rngs) -> "SumParameter":
        """Builds the terms."""
        terms = {
            name: term.build(sizes, rngs=rngs)
            for name, term in self.terms.items()
            if term is not None
        }
        return SumParameter(terms)


class SumParameter(PosteriorParameter):
    """z = sum over terms of z_t.

    Tables of a pair, its document and its query make a hierarchy: each has a separate prior, whose learned precision
    says how much documents, queries and pairs differ, and a pair that training has hardly shown borrows from its
    document and its query (Gelman and Hill 2007, "Data analysis using regression and multilevel/hierarchical models").
    Terms with posteriors are independent: means and variances add up.

    Attributes:
        terms: Towers by name.
    """

    def __init__(self, terms: Mapping[str, Parameter]):
        self.terms = nnx.Dict(terms)

    def posterior(self, batch: Batch) -> tuple[Logits, Logits | None]:
        """Returns the sums of means and of variances; None for the variance where no term has one."""
        mean: Logits = jnp.zeros((1, 1))
        total: Logits | None = None
        for term in self.terms.values():
            mean_of_term, variance = term.posterior(batch)
            mean = mean + mean_of_term
            if variance is not None:
                total = variance if total is None else total + variance
        return mean, total

    def limits(self) -> dict[str, int]:
        """Returns the largest value of each key for which all terms have a row."""
        limits: dict[str, int] = {}
        for term in self.terms.values():
            for key, largest in term.limits().items():
                limits[key] = min(largest, limits.get(key, largest))
        return limits
