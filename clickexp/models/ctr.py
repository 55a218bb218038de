"""Click-through-rate baselines (Chuklin, Markov and de Rijke 2015, chapter 3)."""

from dataclasses import field

import jax.numpy as jnp

from clickexp.models.base import IndependentModel, Sample
from clickexp.models.events import bernoulli
from clickexp.models.roles import Index, Role
from clickexp.numerics import LogPair
from clickexp.parameters import (
    EmbeddingParameterConfig,
    GlobalParameterConfig,
    PositionParameterConfig,
)
from clickexp.parameters.base import Parameter
from clickexp.types import Array, ByRank, LogitsByRank
from clickexp.utils.bounds import Pairs, PositiveInt


class _ClickThroughRate(IndependentModel):
    """P(c_r = 1) = s(z) for the logit z of a single tower."""

    ctr = Role(GlobalParameterConfig(None))

    def marginal(self, batch: ByRank) -> LogPair:
        return self.ctr.log_pair(batch)

    def relevance(self, batch: ByRank) -> LogitsByRank:
        return self.marginal(batch).log

    def score_towers(self) -> list[Parameter]:
        return [self.ctr]

    def draw(self, batch: ByRank, key: Array) -> Sample:
        return Sample(bernoulli(key, self.relevance(batch), batch))


class GlobalCTRModel(_ClickThroughRate):
    """GCTR: one click rate for everything."""

    name = "GCTR"

    ctr: Role = Role(GlobalParameterConfig(None))


class RankCTRModel(_ClickThroughRate):
    """RCTR: one click rate per position."""

    name = "RCTR"

    positions: PositiveInt | None = None
    ctr: Role = Role(PositionParameterConfig(initial=None))


class DocumentCTRModel(_ClickThroughRate):
    """DCTR: one click rate per query-document pair."""

    name = "DCTR"

    query_doc_pairs: Pairs | None = None
    ctr: Role = Role(EmbeddingParameterConfig(), plays="attraction")


class DocumentRankCTRModel(_ClickThroughRate):
    """DRCTR: one click rate per query-document pair and position; a tower finds it in the batch as `ctr_idx`.

    ctr_idx = query_doc_id * positions + position - 1.

    Deffayet et al. 2023, "Evaluating the robustness of click models to policy distributional shift".
    """

    name = "DRCTR"

    positions: PositiveInt = field()  # pyright: ignore[reportIncompatibleVariableOverride]  # required here
    query_doc_pairs: Pairs = field()  # pyright: ignore[reportIncompatibleVariableOverride]  # required here
    ctr: Role = Role(EmbeddingParameterConfig(use_feature="ctr_idx"))

    def indices(self) -> dict[str, Index]:
        """Returns `ctr_idx`."""
        return {"ctr_idx": Index("query_doc_ids", self.query_doc_pairs, self.positions)}

    def marginal(self, batch: ByRank) -> LogPair:
        """Returns s(z) for the row of each pair at each position."""
        ids, positions = (batch[key].astype(jnp.int32) for key in ("query_doc_ids", "positions"))
        return self.ctr.log_pair(batch.replace(ctr_idx=ids * self.positions + positions - 1))
