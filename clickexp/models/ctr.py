"""Click-through-rate baselines (Chuklin, Markov and de Rijke 2015, chapter 3)."""

import jax.numpy as jnp
from flax import nnx

from clickexp.models.base import IndependentModel, Sample, bernoulli
from clickexp.numerics import LogPair
from clickexp.parameters import (
    EmbeddingParameterConfig,
    GlobalParameterConfig,
    PositionParameterConfig,
    Sizes,
    build_parameter,
)
from clickexp.parameters.base import Features, ParameterConfig, Source
from clickexp.types import Array, Batch, Logits
from clickexp.utils.bounds import Pairs, PositiveInt, Probability
from clickexp.utils.checks import Limit

MAX_ROWS = 2**31 - 1


class _ClickThroughRate(IndependentModel):
    """P(c_r = 1) = s(z) for the logit z of a single tower."""

    def __init__(self, ctr: Source, default: ParameterConfig, sizes: Sizes, rngs: nnx.Rngs):
        self.ctr = build_parameter("ctr", ctr, default, sizes, rngs=rngs)

    def marginal(self, batch: Batch) -> LogPair:
        return self.ctr.ranked(batch)

    def relevance(self, batch: Batch) -> Logits:
        return self.marginal(batch).log.T

    def draw(self, batch: Batch, key: Array) -> Sample:
        return Sample(bernoulli(key, self.relevance(batch), batch))


class GlobalCTRModel(_ClickThroughRate):
    """GCTR: one click rate for everything."""

    name = "GCTR"

    def __init__(
        self,
        ctr: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            ctr, GlobalParameterConfig(None), Sizes(click_rate=click_rate, features=features), rngs
        )


class RankCTRModel(_ClickThroughRate):
    """RCTR: one click rate a position."""

    name = "RCTR"

    def __init__(
        self,
        positions: PositiveInt | None = None,
        ctr: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        sizes = Sizes(positions=positions, click_rate=click_rate, features=features)
        super().__init__(ctr, PositionParameterConfig(initial=None), sizes, rngs)


class DocumentCTRModel(_ClickThroughRate):
    """DCTR: one click rate a query-document pair."""

    name = "DCTR"

    def __init__(
        self,
        query_doc_pairs: Pairs | None = None,
        ctr: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        super().__init__(
            ctr,
            EmbeddingParameterConfig(),
            Sizes(query_doc_pairs, click_rate=click_rate, features=features),
            rngs,
        )


class DocumentRankCTRModel(_ClickThroughRate):
    """DRCTR: one click rate a query-document pair and position; a tower finds it in the batch as `ctr_idx`.

    Deffayet et al. 2023, "Evaluating the robustness of click models to policy distributional shift".
    """

    name = "DRCTR"

    def __init__(
        self,
        positions: PositiveInt,
        query_doc_pairs: Pairs,
        ctr: Source = None,
        *,
        click_rate: Probability | None = None,
        features: Features = None,
        rngs: nnx.Rngs,
    ):
        sizes = Sizes(query_doc_pairs, positions, click_rate, features=features)
        rows = (query_doc_pairs + 1) * positions
        if rows > MAX_ROWS:
            raise ValueError(f"{query_doc_pairs:,} pairs x {positions} positions need {rows:,} rows; "
                             f"a table holds at most {MAX_ROWS:,}")  # fmt: skip
        self.positions = positions
        default = EmbeddingParameterConfig(use_feature="ctr_idx", parameters=rows - 1)
        super().__init__(ctr, default, sizes, rngs)

    def limits(self) -> list[Limit]:
        """Every id needs a row for each of the positions."""
        limits = [Limit("positions", self.positions, "ctr")]
        for key, largest, role in super().limits():
            if key == "ctr_idx":
                limits.append(Limit("query_doc_ids", (largest + 1) // self.positions - 1, role))
            else:
                limits.append(Limit(key, largest, role))
        return limits

    def marginal(self, batch: Batch) -> LogPair:
        index = (
            batch["query_doc_ids"].astype(jnp.int32) * self.positions
            + batch["positions"].astype(jnp.int32)
            - 1
        )
        return self.ctr.ranked({**batch, "ctr_idx": index})
