"""Counting: maximum-likelihood estimates of models whose hidden events the clicks are taken to show."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from clickexp.models import (
    CascadeModel,
    DependentClickModel,
    DocumentCTRModel,
    DocumentRankCTRModel,
    DynamicBayesianNetwork,
    GlobalCTRModel,
    RankCTRModel,
)
from clickexp.models.base import Model
from clickexp.training.em.bernoulli import BernoulliTowers, Counts, Event, Logit, counts
from clickexp.training.em.estimation import (
    ByModel,
    EstimatingTrainer,
    Expect,
    Expected,
    unsupported,
)
from clickexp.types import ByRank

COUNTS: ByModel[Callable[[Event], dict[str, Counts]]] = ByModel()
"""Counts of the variables of each role that clicks show; `@COUNTS.of(MyModel)` adds a model."""


@dataclasses.dataclass(eq=False, kw_only=True)
class CountingTrainer(EstimatingTrainer):
    """Estimates from one pass over the log, of GCTR, RCTR, DCTR, DRCTR, CM, DCM and SDBN.

    CTR models    a click, of every document
    CM            attraction: a click, of the documents down to the first click
    DCM, SDBN     attraction: a click, of the documents down to the last click, or of all where there is none;
                  continuation of DCM: a click that is not the last; satisfaction of SDBN: the last click

    The examination of DCM and SDBN is thereby assumed to end with the last click; it is not maximum likelihood of
    the clicks, which `trainer=em` gives. Every estimate starts from 1 success and 1 failure, so that a pair that the
    log does not show has probability 1/2, as in PyClick. Settings are those of `EstimatingTrainer` and `BaseTrainer`.

    Guo, Liu and Wang 2009, "Efficient multiple-click models in web search"; Chapelle and Zhang 2009, "A dynamic
    Bayesian network click model for web search ranking"; Chuklin, Markov and de Rijke 2015, section 4.1.
    """

    def expectation(self, model: type[Model], **settings: Any) -> Expect:
        """The counts for a class of models; see `EstimatingTrainer`."""
        count = COUNTS.find(model, settings)
        if count is None:
            others = "trainer=default, or trainer=em where that estimates it"
            raise unsupported("counting", COUNTS.names(), model, settings, others)

        def observed(
            towers: BernoulliTowers, logits: Mapping[str, Logit], batch: ByRank
        ) -> Expected:
            return None, count(batch["clicks"])

        return observed


@COUNTS.of(GlobalCTRModel, RankCTRModel, DocumentCTRModel, DocumentRankCTRModel)
def _ctr(click: Event) -> dict[str, Counts]:
    return {"ctr": counts(click, jnp.ones_like(click))}


@COUNTS.of(CascadeModel)
def _cm(click: Event) -> dict[str, Counts]:
    return {"attraction": counts(click, ~_above(click))}


@COUNTS.of(DependentClickModel)
def _dcm(click: Event) -> dict[str, Counts]:
    return {"attraction": _down_to_last(click), "continuation": counts(_below(click), click)}


@COUNTS.of(DynamicBayesianNetwork, fix_continuation=True)
def _sdbn(click: Event) -> dict[str, Counts]:
    return {"attraction": _down_to_last(click), "satisfaction": counts(~_below(click), click)}


def _down_to_last(click: Event) -> Counts:
    return counts(click, click | _below(click) | ~jnp.any(click, axis=0))


def _above(click: Event) -> Event:
    """Whether any rank above was clicked."""
    number = click.astype(jnp.int32)
    return jnp.cumsum(number, axis=0) > number


def _below(click: Event) -> Event:
    """Whether any rank below was clicked."""
    return _above(click[::-1])[::-1]
