"""Every click model once: how to build it, its story, and its numbers as the oracle wants them.

The towers are read here from their raw arrays in float64, so that tests compare the whole way from
parameters to predictions.
"""

import collections
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import nnx

from clickexp import models
from clickexp.models import ClickModel
from clickexp.parameters import EmbeddingParameterConfig, Table
from clickexp.training.sparse import packing
from clickexp.types import Batch, ByRank

PAIRS = 12
POSITIONS = 8
RANKS = 5
LISTS = 3
VECTORS = np.array(list(itertools.product([False, True], repeat=RANKS)))


class Case(NamedTuple):
    """probabilities(model, ids [K], positions [K]) are the arguments of the story."""

    name: str
    build: Callable[..., ClickModel]
    story: oracle.Story
    probabilities: Callable[[ClickModel, np.ndarray, np.ndarray], dict]
    hidden: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.name


def sigmoid(logit) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(logit, np.float64)))


def embedding(tower, ids) -> np.ndarray:
    rows = np.asarray(tower.table.get_value().values, np.float64)
    return sigmoid(np.float64(tower.baseline[...]) + rows[ids, 0])


def weight(tower, index=(0, 0)) -> np.ndarray:
    return sigmoid(np.asarray(tower.weight[...], np.float64)[index])


def _attraction(model, ids, positions) -> dict:
    return {"attraction": embedding(model.attraction, ids)}


def _pbm(model, ids, positions) -> dict:
    return {
        **_attraction(model, ids, positions),
        "examination": weight(model.examination, positions),
    }


def _trust_bias(model, ids, positions) -> dict:
    rates = {
        name: weight(getattr(model, name), positions)
        for name in ("true_positive", "false_positive")
    }
    return {**_attraction(model, ids, positions), **rates}


def _ubm(model, ids, positions) -> dict:
    last = np.array([0, *positions])
    examination = weight(model.examination, positions[:, None] * (POSITIONS + 1) + last)
    return {**_attraction(model, ids, positions), "examination": examination}


def _dcm(model, ids, positions) -> dict:
    return {
        **_attraction(model, ids, positions),
        "continuation": weight(model.continuation, positions),
    }


def _ccm(model, ids, positions) -> dict:
    return {
        **_attraction(model, ids, positions),
        "tau1": weight(model.continuation_exam_no_click),
        "tau2": weight(model.continuation_click_not_satisfied),
        "tau3": weight(model.continuation_click_satisfied),
    }


def _sdbn(model, ids, positions) -> dict:
    return {
        **_attraction(model, ids, positions),
        "satisfaction": embedding(model.satisfaction, ids),
    }


def _dbn(model, ids, positions) -> dict:
    return {**_sdbn(model, ids, positions), "continuation": weight(model.continuation)}


def _gctr(model, ids, positions) -> dict:
    return {"click_rate": np.full(len(ids), weight(model.ctr))}


def _rctr(model, ids, positions) -> dict:
    return {"click_rate": weight(model.ctr, positions)}


def _dctr(model, ids, positions) -> dict:
    return {"click_rate": embedding(model.ctr, ids)}


def _drctr(model, ids, positions) -> dict:
    return {"click_rate": embedding(model.ctr, ids * POSITIONS + positions - 1)}


def _mixture(*kinds: Case) -> Callable:
    def probabilities(model, ids, positions) -> dict:
        shares = np.exp(np.asarray(model.prior[...], np.float64) / model.temperature)
        pairs = zip(kinds, model.models, strict=True)
        parameters = [kind.probabilities(component, ids, positions) for kind, component in pairs]
        return {
            "prior": shares / shares.sum(),
            "stories": [kind.story for kind in kinds],
            "parameters": parameters,
        }

    return probabilities


PAIR_SIZE = {"query_doc_pairs": PAIRS}
POSITION_SIZE = {"positions": POSITIONS}
SIZES = {**PAIR_SIZE, **POSITION_SIZE}
SEEN = ("examination", "attraction")
CHAIN = (*SEEN, "satisfaction")


def _case(name, model, story, probabilities, hidden=(), /, **settings) -> Case:
    return Case(name, functools.partial(model, **settings), story, probabilities, hidden)


CM = _case("CM", models.CascadeModel, oracle.cascade_model, _attraction, CHAIN, **PAIR_SIZE)
CM_MARGINAL = CM._replace(
    name="CM marginal", build=functools.partial(models.CascadeModelMarginal, **PAIR_SIZE)
)
PBM = _case("PBM", models.PositionBasedModel, oracle.position_based_model, _pbm, SEEN, **SIZES)
UBM = _case("UBM", models.UserBrowsingModel, oracle.user_browsing_model, _ubm, SEEN, **SIZES)
DCM = _case("DCM", models.DependentClickModel, oracle.dependent_click_model, _dcm, CHAIN, **SIZES)
CCM = _case("CCM", models.ClickChainModel, oracle.click_chain_model, _ccm, CHAIN, **PAIR_SIZE)
DBN = _case(
    "DBN", models.DynamicBayesianNetwork, oracle.dynamic_bayesian_network, _dbn, CHAIN, **PAIR_SIZE
)
SDBN = _case(
    "SDBN", models.DynamicBayesianNetwork, oracle.dynamic_bayesian_network, _sdbn, CHAIN,
    **PAIR_SIZE, fix_continuation=True,
)  # fmt: skip
GCTR = _case("GCTR", models.GlobalCTRModel, oracle.independent_clicks, _gctr)
RCTR = _case("RCTR", models.RankCTRModel, oracle.independent_clicks, _rctr, **POSITION_SIZE)
DCTR = _case("DCTR", models.DocumentCTRModel, oracle.independent_clicks, _dctr, **PAIR_SIZE)
DRCTR = _case("DRCTR", models.DocumentRankCTRModel, oracle.independent_clicks, _drctr, **SIZES)
TRUST_BIAS = _case(
    "TrustBias",
    models.TrustBiasModel,
    oracle.trust_bias_model,
    _trust_bias,
    ("attraction",),
    **SIZES,
)


def _mixture_case(name, *kinds, **settings) -> Case:
    constructors = [kind.build.func for kind in kinds]
    settings = {"models": constructors, **SIZES, **settings}
    return _case(name, models.MixtureModel, oracle.mixture, _mixture(*kinds), **settings)


MIXTURE = _mixture_case("Mixture", DCTR, PBM, DBN, temperature=2.0)
SHARED = _mixture_case(
    "Mixture, shared attraction", UBM, DBN, RCTR, shared={"attraction": EmbeddingParameterConfig()}
)

CASES = [
    CM,
    CM_MARGINAL,
    PBM,
    UBM,
    DCM,
    CCM,
    DBN,
    SDBN,
    GCTR,
    RCTR,
    DCTR,
    DRCTR,
    TRUST_BIAS,
    MIXTURE,
    SHARED,
]
EXACT = [case for case in CASES if case is not CM_MARGINAL]
"""Models whose conditional predictions are those of their story."""
REPRESENTATIVE = [DCTR, DBN, UBM, MIXTURE, TRUST_BIAS]
"""Independent, chain, browsing, mixture and affine; test_sequential.py has a sequential one."""


def by_tier(
    daily: Sequence[Case], nightly: Sequence[Case] = (), as_users: Sequence[Case] = ()
) -> pytest.MarkDecorator:
    """Cases of both tiers, of the nightly one, and of that with programs as users have them."""
    marks = pytest.mark.nightly, pytest.mark.as_users
    return pytest.mark.parametrize(
        "case",
        [
            *(pytest.param(case, id=case.name) for case in daily),
            *(pytest.param(case, id=case.name, marks=marks[0]) for case in nightly),
            *(pytest.param(case, id=f"{case.name} as users", marks=marks) for case in as_users),
        ],
    )


def without(cases: Sequence[Case], others: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case not in others]


every_model, every_exact_model = (
    by_tier(without(cases, [SHARED]), [SHARED]) for cases in (CASES, EXACT)
)
"""In both tiers but for SHARED, which MIXTURE and the tests of mixtures stand for."""
nightly_every_model, nightly_every_exact_model = (
    by_tier(REPRESENTATIVE, without(cases, REPRESENTATIVE)) for cases in (CASES, EXACT)
)
"""In both tiers the representative ones alone."""


def point(model: ClickModel) -> ClickModel:
    """Leaves one number in place of each posterior, so that rows are logits; returns the model."""
    nnx.update(model, packing.points(nnx.state(model, Table)))
    return model


def fill(model: ClickModel, draw: Callable[[tuple[int, ...]], np.ndarray]) -> ClickModel:
    """Gives every number that the model learns, and rows in place of posteriors, draw(shape); returns the model."""
    learned = nnx.state(point(model), nnx.Any(nnx.Param, Table))
    nnx.update(
        model, jax.tree.map(lambda leaf: jnp.asarray(draw(leaf.shape), jnp.float32), learned)
    )
    return model


def random_model(case: Case, scale: float = 1.0, seed: int = 0) -> ClickModel:
    """The case's model with normal logits."""
    rng = np.random.default_rng(seed)
    return fill(case.build(rngs=nnx.Rngs(0)), lambda shape: rng.normal(0, scale, shape))


def lists(count: int = LISTS, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Ids and positions with gaps, [count, RANKS] each; positions increase down the list, but for the last list."""
    rng = np.random.default_rng(seed)
    positions = [np.sort(rng.choice(POSITIONS, RANKS, replace=False)) + 1 for _ in range(count)]
    positions[-1] = positions[-1][::-1]
    return rng.integers(0, PAIRS + 1, (count, RANKS)).astype(np.int32), np.array(
        positions, np.int32
    )


def every_click_vector(lengths=None) -> dict[str, np.ndarray]:
    """Every list with every click vector, [LISTS * 2^RANKS, RANKS]; lengths [LISTS * 2^RANKS] cut them."""
    ids, positions = (np.repeat(x, len(VECTORS), axis=0) for x in lists())
    lengths = np.full(len(ids), RANKS) if lengths is None else lengths
    mask = np.arange(RANKS) < lengths[:, None]
    clicks = np.tile(VECTORS, (LISTS, 1)) & mask
    return {"query_doc_ids": ids, "positions": positions, "clicks": clicks, "mask": mask}


def repeated(batch: dict[str, np.ndarray], sessions: int = 19_200) -> dict[str, np.ndarray]:
    """The batch over and over, in the one shape in which tests sample."""
    return {name: np.resize(values, (sessions, RANKS)) for name, values in batch.items()}


def joints(case: Case, model: ClickModel) -> list[np.ndarray]:
    """P(click vector) [2^RANKS] of each list, from the oracle."""
    shown = zip(*lists(), strict=True)
    return [
        oracle.enumerate_clicks(case.story, **case.probabilities(model, *each))[0] for each in shown
    ]


class Runner:
    """One model structure with its functions under jit; `traces` counts (function, shapes)."""

    def __init__(self, case: Case):
        self.graphdef = nnx.graphdef(point(case.build(rngs=nnx.Rngs(0))))
        self.traces = collections.Counter()
        self.predict = self._jit(
            "predict", lambda state, batch: predictions(self._model(state), batch)
        )
        self.loss = self._jit("loss", jax.value_and_grad(self._loss))
        self.sample = self._jit(
            "sample", lambda state, batch, key: self._model(state).sample(batch, key)
        )

    def _loss(self, state: nnx.State, batch: Batch) -> jax.Array:
        return self._model(state).compute_loss(batch)

    def _model(self, state: nnx.State) -> ClickModel:
        return nnx.merge(self.graphdef, state)

    def _jit(self, name: str, function: Callable) -> Callable:
        @jax.jit
        def run(state, batch, *rest):
            self.traces[name, batch["clicks"].shape, batch["positions"].shape] += 1
            return function(state, batch, *rest)

        return lambda model, *args: jax.tree.map(np.asarray, run(nnx.state(model), *args))


@functools.cache
def runner(name: str) -> Runner:
    """The shared runner of a case, so that each shape compiles once for all tests."""
    return Runner(next(case for case in CASES if case.name == name))


def predictions(model: ClickModel, batch: Batch) -> dict:
    """What a model predicts for each document of a batch."""
    return {
        "conditional_clicks": model.predict_conditional_clicks(batch),
        "clicks": model.predict_clicks(batch),
        "no_clicks": jnp.where(batch["mask"], model.marginal(ByRank(batch)).complement.T, 0.0),
        "relevance": model.predict_relevance(batch),
        "attraction": model.predict_attraction(batch),
        "examination": model.predict_examination(batch),
        "loss": model.compute_loss(batch, aggregate=False),
    }


def within_5_sigma(events, probability):
    """Events [n, ...] of independent sessions and their probabilities [...]."""
    variance = np.maximum(probability * (1 - probability), 0)
    allowed = 5 * np.sqrt(variance / len(events))
    assert np.all(np.abs(events.mean(axis=0) - probability) <= allowed + 1e-7)
