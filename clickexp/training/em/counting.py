"""Counting: maximum-likelihood estimates of models whose hidden events the clicks are taken to show."""

from collections.abc import Callable

import jax.numpy as jnp

from clickexp.errors import ConfigError
from clickexp.evaluation.model_evaluator import Metrics
from clickexp.loggers.base import Logger
from clickexp.training.em.estimation import (
    Coins,
    Counts,
    EstimatingTrainer,
    Event,
    Expect,
    Expected,
    Logit,
    counts,
)
from clickexp.types import Batch
from clickexp.utils.bounds import NonNegativeFloat, PositiveFloat, PositiveInt


class CountingTrainer(EstimatingTrainer):
    """Estimates from one pass over the log, of GCTR, RCTR, DCTR, DRCTR, CM, DCM and SDBN.

    CTR models    a click, of every document
    CM            attraction: a click, of the documents down to the first click
    DCM, SDBN     attraction: a click, of the documents down to the last click, or of all where there is none;
                  continuation of DCM: a click that is not the last; satisfaction of SDBN: the last click

    The examination of DCM and SDBN is thereby assumed to end with the last click; it is not maximum likelihood of
    the clicks, which `trainer=em` gives. Every coin starts from 1 success and 1 failure, so that a pair that the log
    does not show has probability 1/2, as in PyClick.

    Guo, Liu and Wang 2009, "Efficient multiple-click models in web search"; Chapelle and Zhang 2009, "A dynamic
    Bayesian network click model for web search ranking"; Chuklin, Markov and de Rijke 2015, section 4.1.
    """

    def __init__(
        self,
        *,
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
            eval_batch_size=eval_batch_size,
            steps=steps,
            metrics=metrics,
            logger=logger,
        )

    def expectation(self, name: str) -> Expect:
        if name not in COUNTED:
            raise ConfigError(
                f"counting estimates {', '.join(COUNTED)}, not {name}; use trainer=em or trainer=default"
            )

        def observed(coins: Coins, logits: dict[str, Logit], batch: Batch) -> Expected:
            return None, COUNTED[name](batch["clicks"].T)

        return observed


def _ctr(click: Event) -> dict[str, Counts]:
    return {"ctr": counts(click, jnp.ones_like(click))}


def _cm(click: Event) -> dict[str, Counts]:
    return {"attraction": counts(click, ~_above(click))}


def _dcm(click: Event) -> dict[str, Counts]:
    return {"attraction": _down_to_last(click), "continuation": counts(_below(click), click)}


def _sdbn(click: Event) -> dict[str, Counts]:
    return {"attraction": _down_to_last(click), "satisfaction": counts(~_below(click), click)}


COUNTED: dict[str, Callable[[Event], dict[str, Counts]]] = {
    **dict.fromkeys(("GCTR", "RCTR", "DCTR", "DRCTR"), _ctr),
    "CM": _cm,
    "DCM": _dcm,
    "SDBN": _sdbn,
}


def _down_to_last(click: Event) -> Counts:
    return counts(click, click | _below(click) | ~jnp.any(click, axis=0))


def _above(click: Event) -> Event:
    """Whether any rank above was clicked."""
    number = click.astype(jnp.int32)
    return jnp.cumsum(number, axis=0) > number


def _below(click: Event) -> Event:
    """Whether any rank below was clicked."""
    return _above(click[::-1])[::-1]
