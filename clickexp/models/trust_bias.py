"""Position-based model with trust bias."""

import jax
import jax.numpy as jnp

from clickexp.models.base import IndependentModel, Sample
from clickexp.models.events import bernoulli
from clickexp.models.roles import Role
from clickexp.numerics import LogPair, log_mix
from clickexp.parameters import EmbeddingParameterConfig, Parameter, PositionParameterConfig
from clickexp.types import Array, ByRank, LogitsByRank
from clickexp.utils.bounds import Pairs, PositiveInt


class TrustBiasModel(IndependentModel):
    """Affine PBM: users who trust the ranking also click on documents of the top ranks that do not attract them.

    P(c_r = 1) = a_d t_r + (1 - a_d) f_r, with attraction a_d of the document and the true- and false-positive
    click rates t_r and f_r of the rank. In terms of an examination e_r and the click rates of examined documents,
    t_r = e_r P(click | examined, attractive) and f_r = e_r P(click | examined, not attractive). PBM is t = e, f = 0.

    Clicks leave open an affine change of all attraction, which t and f take up; that t starts above f decides
    which of the two is which. A start of t at .73, nearer to f than that of examination, keeps slopes of low ranks
    from those of high ones.

    Agarwal, Wang, Li, Bendersky and Najork 2019, "Addressing trust bias for unbiased learning-to-rank";
    Vardasbi, Oosterhuis and de Rijke 2020, "When inverse propensity scoring does not work: affine corrections
    for unbiased learning to rank".
    """

    name = "TrustBias"
    separates_examination = True

    positions: PositiveInt | None = None
    query_doc_pairs: Pairs | None = None
    attraction: Role = Role(EmbeddingParameterConfig())
    true_positive: Role = Role(PositionParameterConfig(initial=1.0))
    false_positive: Role = Role(PositionParameterConfig(initial=-4.0))

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns a t + (1 - a) f."""
        return log_mix(*(tower.log_pair(batch) for tower in self._towers()))

    def log_examination(self, batch: ByRank, marginal: LogPair | None = None) -> LogitsByRank:
        """Returns log t_r, which is examination as far as clicks show: they do not separate it from trust."""
        return self.true_positive.log_prob(batch)

    def draw(self, batch: ByRank, key: Array) -> Sample:
        """Draws attraction, and a click of its rate."""
        attraction, true_positive, false_positive = (
            bernoulli(key, tower.log_prob(batch), batch)
            for key, tower in zip(jax.random.split(key, 3), self._towers(), strict=True)
        )
        return Sample(jnp.where(attraction, true_positive, false_positive), attraction=attraction)

    def _towers(self) -> tuple[Parameter, ...]:
        return self.attraction, self.true_positive, self.false_positive
