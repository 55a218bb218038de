"""Expectation-maximisation: maximum likelihood of the clicks, the hidden events summed out."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from clickexp.models import (
    ClickChainModel,
    DependentClickModel,
    DynamicBayesianNetwork,
    PositionBasedModel,
    UserBrowsingModel,
)
from clickexp.models.base import Model
from clickexp.training.em import pyclick
from clickexp.training.em.bernoulli import BernoulliTowers, Counts, Event, Logit, PerRank
from clickexp.training.em.counting import COUNTS
from clickexp.training.em.estimation import (
    ByModel,
    EstimatingTrainer,
    Expect,
    Expected,
    unsupported,
)
from clickexp.training.stopping import Stopping
from clickexp.types import ByRank
from clickexp.utils.bounds import NonNegativeFloat, OneOf, PositiveInt

_Values = dict[str, PerRank]
"""A number at each document for each role."""
EXPECTATIONS: ByModel[Callable[[_Values, _Values, Event], dict[str, Counts]]] = ByModel()
"""Expected counts of each role, of its probabilities, of the slopes of the log-likelihood by its logits, and of clicks;
`@EXPECTATIONS.of(MyModel)` adds a model."""
_PYCLICK: ByModel[Callable[[_Values, Event, Event], dict[str, Counts]]] = ByModel()
_PYCLICK.of(ClickChainModel)(pyclick.ccm)
_PYCLICK.of(DynamicBayesianNetwork, fix_continuation=False)(pyclick.dbn)


@dataclasses.dataclass(eq=False)
class EMTrainer(EstimatingTrainer):
    """Expectation-maximisation for PBM, UBM, DCM, CCM, DBN and SDBN; an iteration is one pass over the log.

    The E-step is exact and needs no separate recursion: by Fisher's identity, a Bernoulli variable of logit z that
    occurs with probability n given the clicks of its session has on average

        E[successes | clicks] = d log P(clicks) / dz + n s(z)

    successes, and the derivative is that of the model's own likelihood. Attraction and examination occur at every
    document; satisfaction and the continuation of DCM at clicks; the continuation of CCM and DBN where the user
    is still reading, whose probability follows from the same derivatives. The log-likelihood, with prior_successes
    log p + prior_failures log (1 - p) for each row, never falls.

    Counts start from as many successes as failures, so that the first iteration starts from 1/2 and a pair that the log
    does not show stays there. Of both PyClick has 1, which suits predictions; the fewer there are, the nearer is
    examination to the truth, and the less certain pairs with few impressions predict (`scripts/bench/README.md`). With
    0 estimates are those of maximum likelihood. `train/loss` of an iteration is that of the estimates it started from.
    Other settings are those of `EstimatingTrainer` and `BaseTrainer`.

    Attributes:
        iterations: Passes over the log; 50 is PyClick's.
        prior_successes: Successes that every estimate starts from.
        prior_failures: Failures that it starts from.
        early_stopping: None runs all iterations and keeps the last, as PyClick does; otherwise the best is kept.
        e_step: "exact", or "pyclick" for the approximate steps of DBN and CCM behind PyClick's published figures, see
            clickexp.training.em.pyclick; PBM and UBM have the same step either way. PyClick's UBM agrees where all
            lists have one length: where there is no last click it takes the list's length for its rank, so that
            examination without a click above has a parameter per length, and predicts marginal clicks with that of
            lists of ten.

    Dempster, Laird and Rubin 1977, "Maximum likelihood from incomplete data via the EM algorithm"; Eisner 2016,
    "Inside-outside and forward-backward algorithms are just backprop"; Chuklin, Markov and de Rijke 2015, section 4.2.
    """

    iterations: PositiveInt = 50
    early_stopping: Stopping = None
    _: dataclasses.KW_ONLY
    prior_successes: NonNegativeFloat = 0.1
    prior_failures: NonNegativeFloat = 0.1
    e_step: Annotated[str, OneOf("exact", "pyclick")] = "exact"

    def expectation(self, model: type[Model], **settings: Any) -> Expect:
        """The expected counts of a class of models; see `EstimatingTrainer`."""
        exact = EXPECTATIONS.find(model, settings)
        approximate = _PYCLICK.find(model, settings) if self.e_step == "pyclick" else None
        if exact is None:
            is_counted = COUNTS.find(model, settings) is not None
            others = "trainer=counting or trainer=default" if is_counted else "trainer=default"
            raise unsupported("em", EXPECTATIONS.names(), model, settings, others)

        def expected(
            towers: BernoulliTowers, logits: Mapping[str, Logit], batch: ByRank
        ) -> Expected:
            likelihood, slopes = jax.value_and_grad(towers.log_likelihood)(logits, batch)
            probabilities, click = jax.tree.map(jax.nn.sigmoid, logits), batch["clicks"]
            if approximate is not None:
                return -likelihood, approximate(probabilities, click, batch["mask"])
            return -likelihood, exact(probabilities, slopes, click)

        return expected


def _expected(probability: PerRank, slope: PerRank, times: PerRank | float) -> Counts:
    """Expected counts of a variable that occurs so many times; rounding aside they are not negative."""
    successes = jnp.clip(slope + probability * times, 0.0, times)
    return Counts(successes, times - successes)


@EXPECTATIONS.of(PositionBasedModel, UserBrowsingModel)
def _independent(p: _Values, slope: _Values, click: Event) -> dict[str, Counts]:
    """PBM and UBM: every document is examined or not, and attracts or not."""
    return {role: _expected(p[role], slope[role], 1.0) for role in p}


@EXPECTATIONS.of(DependentClickModel)
def _dcm(p: _Values, slope: _Values, click: Event) -> dict[str, Counts]:
    """All variables but attraction occur at clicks."""
    times = {role: 1.0 if role == "attraction" else _as_float(click) for role in p}
    return {role: _expected(p[role], slope[role], times[role]) for role in p}


@EXPECTATIONS.of(DynamicBayesianNetwork)
def _dbn(p: _Values, slope: _Values, click: Event) -> dict[str, Counts]:
    """DBN, and SDBN, which has no continuation."""
    simplified = _dcm({role: p[role] for role in ("attraction", "satisfaction")}, slope, click)
    if "continuation" not in p:
        return simplified
    reading = jnp.where(click, simplified["satisfaction"].failures, _read(p, slope))
    return {
        **simplified,
        "continuation": _expected(p["continuation"], slope["continuation"], reading),
    }


@EXPECTATIONS.of(ClickChainModel)
def _ccm(p: _Values, slope: _Values, click: Event) -> dict[str, Counts]:
    """At a click attraction came true, and occurs again as satisfaction."""
    attraction = _expected(p["attraction"], slope["attraction"], 1.0 + _as_float(click))
    satisfied = jnp.where(click, attraction.successes - 1.0, 0.0)
    times = {
        "continuation_exam_no_click": jnp.where(click, 0.0, _read(p, slope)),
        "continuation_click_not_satisfied": jnp.where(click, 1.0 - satisfied, 0.0),
        "continuation_click_satisfied": satisfied,
    }
    continuation = {role: _expected(p[role], slope[role], count) for role, count in times.items()}
    return {"attraction": attraction, **continuation}


def _read(p: _Values, slope: _Values) -> PerRank:
    """P(examined | clicks) of a document without a click: a skip lowers attraction only as far as it was examined."""
    return jnp.clip(-slope["attraction"] / p["attraction"], 0.0, 1.0)


def _as_float(click: Event) -> PerRank:
    return click.astype(jnp.float32)
