"""Expectation-maximisation: maximum likelihood of the clicks, the hidden events summed out."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from clickexp.errors import ConfigError
from clickexp.evaluation.model_evaluator import Metrics
from clickexp.loggers.base import Logger
from clickexp.training.base import check
from clickexp.training.em import pyclick
from clickexp.training.em.estimation import (
    Coins,
    Counts,
    EstimatingTrainer,
    Event,
    Expect,
    Expected,
    Logit,
    PerRank,
)
from clickexp.training.stopping import Stopping
from clickexp.types import Batch
from clickexp.utils.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, bounded

Values = dict[str, PerRank]
"""A number at each document for each role."""


class EMTrainer(EstimatingTrainer):
    """Expectation-maximisation for PBM, UBM, DCM, CCM, DBN and SDBN; an iteration is one pass over the log.

    The E-step is exact and needs no recursion of its own: by Fisher's identity, a coin of logit z that is thrown with
    probability n given the clicks of its session shows on average

        E[successes | clicks] = d log P(clicks) / dz + n s(z)

    successes, and the derivative is that of the model's own likelihood. Attraction and examination are thrown for
    every document; satisfaction and the continuation of DCM at clicks; the continuation of CCM and DBN where the user
    is still reading, whose probability follows from the same derivatives. The log-likelihood, with prior_successes
    log p + prior_failures log (1 - p) for each row, never falls.

    e_step: "pyclick" takes the approximate steps of DBN and CCM behind PyClick's published figures, see
    clickexp.training.em.pyclick; PBM and UBM have the same step either way. PyClick's UBM agrees where all lists have
    one length: where there is no last click it takes the list's length for its rank, so that examination without a
    click above has a parameter per length, and predicts marginal clicks with that of lists of ten.
    iterations: passes over the log; 50 is PyClick's. early_stopping: None runs all and keeps the last, as PyClick does;
    otherwise the best is kept. prior_successes, prior_failures: 1 and 1, so that the first iteration starts from 1/2
    and a pair that the log does not show stays there, as in PyClick. `train/loss` of an iteration is that of the
    estimates it started from.

    Dempster, Laird and Rubin 1977, "Maximum likelihood from incomplete data via the EM algorithm"; Eisner 2016,
    "Inside-outside and forward-backward algorithms are just backprop"; Chuklin, Markov and de Rijke 2015, section 4.2.
    """

    @bounded
    def __init__(
        self,
        iterations: PositiveInt = 50,
        early_stopping: Stopping = None,
        *,
        e_step: Literal["exact", "pyclick"] = "exact",
        prior_successes: PositiveFloat = 1.0,
        prior_failures: NonNegativeFloat = 1.0,
        batch_size: PositiveInt = 8192,
        eval_batch_size: PositiveInt = 8192,
        steps: PositiveInt = 16,
        metrics: Metrics | None = None,
        logger: Logger | None = None,
    ):
        super().__init__(
            prior_successes=prior_successes,
            prior_failures=prior_failures,
            batch_size=batch_size,
            early_stopping=early_stopping,
            eval_batch_size=eval_batch_size,
            steps=steps,
            metrics=metrics,
            logger=logger,
        )
        check(e_step in ("exact", "pyclick"), f"e_step={e_step!r}: choose exact or pyclick")
        self.passes = iterations
        self.e_step = e_step

    def expectation(self, name: str) -> Expect:
        if name not in HIDDEN:
            raise ConfigError(
                f"em estimates {', '.join(HIDDEN)}, not {name}; use trainer=counting or default"
            )

        def expected(coins: Coins, logits: dict[str, Logit], batch: Batch) -> Expected:
            likelihood, slopes = jax.value_and_grad(coins.log_likelihood)(logits, batch)
            probabilities, click = jax.tree.map(jax.nn.sigmoid, logits), batch["clicks"].T
            if self.e_step == "pyclick" and name in PYCLICK:
                return -likelihood, PYCLICK[name](probabilities, click, batch["mask"].T)
            return -likelihood, HIDDEN[name](probabilities, slopes, click)

        return expected


def _thrown(probability: PerRank, slope: PerRank, times: PerRank | float) -> Counts:
    """Expected counts of a coin that is thrown so many times; rounding aside they are not negative."""
    successes = jnp.clip(slope + probability * times, 0.0, times)
    return Counts(successes, times - successes)


def _independent(p: Values, slope: Values, click: Event) -> dict[str, Counts]:
    """PBM and UBM: every document is examined or not, and attracts or not."""
    return {role: _thrown(p[role], slope[role], 1.0) for role in p}


def _at_clicks(p: Values, slope: Values, click: Event) -> dict[str, Counts]:
    """DCM and SDBN: what is not attraction is thrown at clicks."""
    thrown = {role: _thrown(p[role], slope[role], _number(click)) for role in p if role != "attraction"}
    return {"attraction": _thrown(p["attraction"], slope["attraction"], 1.0), **thrown}


def _dbn(p: Values, slope: Values, click: Event) -> dict[str, Counts]:
    satisfaction = _thrown(p["satisfaction"], slope["satisfaction"], _number(click))
    reading = jnp.where(click, satisfaction.failures, _read(p, slope))
    return {
        "attraction": _thrown(p["attraction"], slope["attraction"], 1.0),
        "satisfaction": satisfaction,
        "continuation": _thrown(p["continuation"], slope["continuation"], reading),
    }


def _ccm(p: Values, slope: Values, click: Event) -> dict[str, Counts]:
    """At a click the coin of attraction came up, and is thrown again for satisfaction."""
    attraction = _thrown(p["attraction"], slope["attraction"], 1.0 + _number(click))
    satisfied = jnp.where(click, attraction.successes - 1.0, 0.0)
    times = {
        "continuation_exam_no_click": jnp.where(click, 0.0, _read(p, slope)),
        "continuation_click_not_satisfied": jnp.where(click, 1.0 - satisfied, 0.0),
        "continuation_click_satisfied": satisfied,
    }
    return {
        "attraction": attraction,
        **{role: _thrown(p[role], slope[role], each) for role, each in times.items()},
    }


def _read(p: Values, slope: Values) -> PerRank:
    """P(examined | clicks) of a document without a click: a skip lowers attraction only as far as it was examined."""
    return jnp.clip(-slope["attraction"] / p["attraction"], 0.0, 1.0)


def _number(click: Event) -> PerRank:
    return click.astype(jnp.float32)


HIDDEN: dict[str, Callable[[Values, Values, Event], dict[str, Counts]]] = {
    **dict.fromkeys(("PBM", "UBM"), _independent),
    **dict.fromkeys(("DCM", "SDBN"), _at_clicks),
    "CCM": _ccm,
    "DBN": _dbn,
}

PYCLICK = {"CCM": pyclick.ccm, "DBN": pyclick.dbn}
