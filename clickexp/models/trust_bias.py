"""Position-based model with trust bias."""

import jax
import jax.numpy as jnp
from flax import nnx

from clickexp.models.base import IndependentModel, Sample, bernoulli
from clickexp.numerics import LogPair, log_mix
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig, Sizes, build_parameter
from clickexp.parameters.base import Features, Source
from clickexp.types import Array, Batch
from clickexp.utils.bounds import Pairs, PositiveInt, Probability


class TrustBiasModel(IndependentModel):
    """Affine PBM: users who trust the ranking also click on documents of the top ranks that do not attract them.

    P(c_r = 1) = a_d t_r + (1 - a_d) f_r, with attraction a_d of the document and the true- and false-positive
    click rates t_r and f_r of the rank. In terms of an examination e_r and the click rates of examined documents,
    t_r = e_r P(click | examined, attractive) and f_r = e_r P(click | examined, not attractive). PBM is t = e, f = 0.

    Clicks leave open an affine change of all attraction, which t and f take up; that t starts above f decides
    which of the two is which.

    Agarwal, Wang, Li, Bendersky and Najork 2019, "Addressing trust bias for unbiased learning-to-rank";
    Vardasbi, Oosterhuis and de Rijke 2020, "When inverse propensity scoring does not work: affine corrections
    for unbiased learning to rank".
    """

    name = "TrustBias"
    separates_examination = True

    def __init__(
        self,
        positions: PositiveInt | None = None,
        query_doc_pairs: Pairs | None = None,
        attraction: Source = None,
        true_positive: Source = None,
        false_positive: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        sizes = Sizes(query_doc_pairs, positions, click_rate, features)
        self.attraction = build_parameter(
            "attraction", attraction, EmbeddingParameterConfig(), sizes, rngs=rngs
        )
        self.true_positive = build_parameter(
            "true_positive", true_positive, PositionParameterConfig(), sizes, rngs=rngs
        )
        low = PositionParameterConfig(initial=-4.0)
        self.false_positive = build_parameter("false_positive", false_positive, low, sizes, rngs=rngs)

    def marginal(self, batch: Batch) -> LogPair:
        towers = self.attraction, self.true_positive, self.false_positive
        return log_mix(*(tower.ranked(batch) for tower in towers))

    def relevance(self, batch: Batch) -> Array:
        return self.attraction.log_prob(batch)

    def examined(self, batch: Batch, marginal: LogPair | None = None) -> Array:
        """log t_r, which is examination as far as the clicks tell: they do not tell it from trust."""
        return self.true_positive.log_prob(batch)

    def draw(self, batch: Batch, key: Array) -> Sample:
        towers = self.attraction, self.true_positive, self.false_positive
        attraction, true_positive, false_positive = (
            bernoulli(key, tower.log_prob(batch), batch)
            for key, tower in zip(jax.random.split(key, 3), towers, strict=True)
        )
        return Sample(jnp.where(attraction, true_positive, false_positive), attraction=attraction)
