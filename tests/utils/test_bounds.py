"""Which numbers arguments take, from configurations and from Python."""

import dataclasses
import inspect
import math
import re
import types
import typing
from typing import Annotated

import numpy as np
import optax
import pytest
from annotated_types import Ge
from compositions import CONF, composed, resolved, run_in
from flax import nnx
from omegaconf import OmegaConf
from pydantic import AllowInfNan
from refusals import refuses

from clickexp.errors import ConfigError, UserError
from clickexp.experiment.resolve import resolve
from clickexp.metrics import ExpectedCalibrationError
from clickexp.models import (
    CascadeModel,
    DocumentRankCTRModel,
    MixtureModel,
    PositionBasedModel,
    RankCTRModel,
    UserBrowsingModel,
)
from clickexp.models.ranker.losses import GumbelNDCGLoss
from clickexp.parameters import (
    DeepParameterConfig,
    EmbeddingParameterConfig,
    FullEmbedding,
    PositionParameterConfig,
)
from clickexp.runs.hashing import identity
from clickexp.simulation import simulate
from clickexp.training import (
    CountingTrainer,
    EarlyStopping,
    EMTrainer,
    LazyAdam,
    Trainer,
    lazy_adagrad,
    lazy_adamw,
)
from clickexp.utils.bounds import (
    OF_OPTAX,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Seed,
    bounded,
)
from clickexp.utils.signatures import check_arguments, function_of, located


@bounded
def settings(
    count: PositiveInt = 1,
    patience: NonNegativeInt = 0,
    rate: PositiveFloat | None = 1.0,
    noise: NonNegativeFloat = 0.0,
    share: Probability = 0.5,
    part: Fraction = 0.5,
    seed: Seed = 0,
    delta: Annotated[float, Ge(0), AllowInfNan()] = 0.0,
    any: float = 0.0,
    names: object = (),
):
    return "called"


FIT = [
    dict(count=1), dict(count=np.int64(7)), dict(patience=0), dict(rate=1e-9), dict(rate=None), dict(noise=0),
    dict(share=0), dict(share=1.0), dict(part=0.999), dict(seed=2**32 - 1), dict(delta=math.inf), dict(any=-1e300),
    dict(names=[1.0, [2.0]]), dict(names="nan"),
]  # fmt: skip
GIVE = ": give "
"""Between the key with its value and what it may be."""
DIFFER = [
    (dict(count=0), "count=0: give at least 1"),
    (dict(count=np.int64(-3)), "count=-3: give at least 1"),
    (dict(patience=-1), "patience=-1: give at least 0"),
    (dict(rate=0), "rate=0: give a number above 0, or null"),
    (dict(rate=math.inf), "rate=inf: give a finite number, or null"),
    (dict(noise=math.nan), "noise=nan: give a finite number"),
    (dict(share=1.1), "share=1.1: give at least 0 and at most 1"),
    (dict(part=0), "part=0: give a number above 0 and below 1"),
    (dict(part=1), "part=1: give a number above 0 and below 1"),
    (dict(seed=-1), "seed=-1: give at least 0 and at most 4294967295"),
    (dict(seed=2**32), "seed=4294967296: give at least 0 and at most 4294967295"),
    (dict(delta=math.nan), "delta=nan: give at least 0"),
    (dict(delta=-1), "delta=-1: give at least 0"),
    (dict(any=math.nan), "any=nan: give a finite number"),
    (dict(any=-math.inf), "any=-inf: give a finite number"),
]
INSIDE = [dict(names=[1.0, [2.0, math.nan]]), dict(names={"a": {"b": math.inf}})]


def test_numbers_within_the_bounds_pass():
    for given in FIT:
        assert settings(**given) == "called"
        for value in given.values():
            if not isinstance(value, np.generic):  # no configuration holds one
                check_arguments(settings, given, "part")


@pytest.mark.parametrize("given, message", DIFFER, ids=lambda each: str(each))
def test_numbers_beyond_are_errors_from_python_and_from_a_configuration(given, message):
    with refuses(ConfigError, *message.split(GIVE)) as error:
        settings(**given)
    assert str(error.value).startswith(next(iter(given)))
    if not isinstance(next(iter(given.values())), np.generic):
        with refuses(ConfigError, "part.", *message.split(GIVE)):
            check_arguments(settings, given, "part")


def test_lists_and_groups_are_looked_into_where_they_are_of_a_configuration():
    """From Python they may be anything, such as the settings of a whole experiment."""
    for given in INSIDE:
        with refuses(ConfigError, "part.names=", "finite number"):
            check_arguments(settings, given, "part")
        assert settings(**given) == "called"


def test_keys_of_groups_may_be_numbers():
    check_arguments(settings, {"names": {1: 0.5, 2: [3]}}, "part")
    with refuses(ConfigError, "part.names", "finite number"):
        check_arguments(settings, {"names": {1: math.nan}}, "part")


def test_a_trainer_takes_an_infinite_min_delta_with_the_whole_configuration_as_its_settings():
    config = resolved("model=gctr", "trainer.early_stopping.min_delta=inf")
    trainer = dataclasses.replace(config.trainer, settings=identity(config.values))
    assert trainer.settings["trainer.early_stopping.min_delta"] == math.inf


@pytest.mark.nightly
def test_an_experiment_takes_an_infinite_min_delta(tmp_path):
    few = [
        "dataset.sessions=50",
        "dataset.queries=5",
        "trainer.epochs=1",
        "trainer.early_stopping.min_delta=inf",
    ]
    assert run_in(tmp_path / "run", "model=gctr", *few, f"cache_dir={tmp_path}/cache")


def test_a_call_that_does_not_fit_the_signature_fails_as_it_would():
    with refuses(TypeError, "cuont"):
        settings(cuont=0)
    assert list(inspect.signature(settings).parameters)[:2] == ["count", "patience"]


def test_what_takes_any_argument_still_takes_no_nan():
    with refuses(ConfigError, "part.a=nan", "finite number"):
        check_arguments(lambda **anything: None, {"a": math.nan}, "part")


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(learning_rate=-1), "learning_rate=-1: give a number above 0"),
        (dict(learning_rate=math.nan), "learning_rate=nan: give a finite number"),
        (
            dict(learning_rate="fast"),
            "learning_rate='fast': give a number or a group of keys with _target_",
        ),
        (dict(learning_rate=0.1, b1=1.0), "b1=1.0: give at least 0 and below 1"),
        (dict(learning_rate=0.1, weight_decay="x"), "weight_decay='x': give a number"),
        (dict(learning_rate=0.1, weight_decay=-1e-4), "weight_decay=-0.0001: give at least 0"),
    ],
)
def test_optax_has_the_bounds_of_our_optimizers(given, message):
    with refuses(ConfigError, *message.split(GIVE)):
        check_arguments(optax.adamw, given, "optimizer")
    check_arguments(
        optax.adamw, {"learning_rate": optax.linear_schedule(0.1, 0.0, 10)}, "optimizer"
    )


def as_users(kind, **settings):
    """An instance of a dataclass made without the check of annotations, which only tests have."""
    made = object.__new__(kind)
    inspect.unwrap(kind.__init__)(made, **settings)
    return made


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: simulate(RankCTRModel, sessions=0), "sessions=0: give at least 1"),
        (lambda: simulate(RankCTRModel, queries=-1), "queries=-1: give at least 1"),
        (
            lambda: simulate(RankCTRModel, attraction_spread=-1.0),
            "attraction_spread=-1.0: give at least 0",
        ),
        (lambda: simulate(RankCTRModel, train_sessions=0.9), "the fractions sum to 1.2"),
        (lambda: Trainer(epochs=0), "epochs=0: give at least 1"),
        (lambda: as_users(Trainer, epochs="5"), "epochs='5': give an integer"),
        (lambda: as_users(Trainer, epochs=2.5), "epochs=2.5: give an integer"),
        (lambda: as_users(Trainer, epochs=None), "epochs=None: give an integer"),
        (lambda: as_users(Trainer, batch_size=True), "batch_size=True: give an integer, or null"),
        (lambda: as_users(Trainer, batch_size=[8]), "batch_size=[8]: give an integer, or null"),
        (
            lambda: as_users(Trainer, checkpoint_minutes="5"),
            "checkpoint_minutes='5': give a number, or null",
        ),
        (
            lambda: Trainer(batch_size=-4),
            "batch_size=-4: give at least 1 and at most 16777216, or null",
        ),
        (
            lambda: Trainer(batch_size=10**11),
            "batch_size=100000000000: give at least 1 and at most 16777216, or null",
        ),
        (
            lambda: Trainer(eval_batch_size=10**11),
            "eval_batch_size=100000000000: give at least 1 and at most 16777216",
        ),
        (
            lambda: CountingTrainer(batch_size=10**11),
            "batch_size=100000000000: give at least 1 and at most 16777216",
        ),
        (
            lambda: ExpectedCalibrationError(bins=10**12),
            "bins=1000000000000: give at least 1 and at most 10000",
        ),
        (
            lambda: GumbelNDCGLoss(samples=10**9),
            "samples=1000000000: give at least 1 and at most 10000",
        ),
        (
            lambda: Trainer(checkpoint_minutes=math.nan),
            "checkpoint_minutes=nan: give a finite number, or null",
        ),
        (lambda: EMTrainer(iterations=0), "iterations=0: give at least 1"),
        (
            lambda: CountingTrainer(prior_successes=-1.0),
            "prior_successes=-1.0: give at least 0",
        ),
        (lambda: CountingTrainer(prior_failures=-1.0), "prior_failures=-1.0: give at least 0"),
        (lambda: EarlyStopping(patience=-1), "patience=-1: give at least 0"),
        (lambda: EarlyStopping(min_delta=math.nan), "min_delta=nan: give at least 0"),
        (lambda: LazyAdam(-1.0), "learning_rate=-1.0: give a number above 0"),
        (lambda: LazyAdam(0.1, b2=1.0), "b2=1.0: give at least 0 and below 1"),
        (
            lambda: lazy_adagrad(dense_learning_rate=-1.0),
            "dense_learning_rate=-1.0: give a number above 0",
        ),
        (
            lambda: PositionBasedModel(click_rate=-0.5, rngs=nnx.Rngs(0)),
            "click_rate=-0.5: give at least 0 and at most",
        ),
        (lambda: DocumentRankCTRModel(0, 5, rngs=nnx.Rngs(0)), "positions=0: give at least 1"),
        (lambda: UserBrowsingModel(2, -1, rngs=nnx.Rngs(0)), "query_doc_pairs=-1: give at least 0"),
        (lambda: ExpectedCalibrationError(bins=0), "bins=0: give at least 1"),
        (lambda: FullEmbedding(0, 1), "rows=0: give at least 1"),
        (
            lambda: lazy_adamw(dense_learning_rate=0.0),
            "dense_learning_rate=0.0: give a number above 0",
        ),
        (
            lambda: EmbeddingParameterConfig(embedding_features=0),
            "embedding_features=0: give at least 1",
        ),
        (
            lambda: EmbeddingParameterConfig(prior_precision=-1.0),
            "prior_precision=-1.0: give at least 0",
        ),
        (lambda: PositionParameterConfig(parameters=0), "parameters=0: give at least 1, or null"),
        (
            lambda: PositionParameterConfig(initial=math.nan),
            "initial=nan: give a finite number, or null",
        ),
        (lambda: DeepParameterConfig(dropout=1.0), "dropout=1.0: give at least 0 and below 1"),
        (lambda: CascadeModel(min_log_prob=0.0, rngs=None), "min_log_prob=0.0: give below 0"),
        (
            lambda: MixtureModel([RankCTRModel], temperature=math.inf),
            "temperature=inf: give a finite number",
        ),
    ],
)
def test_constructors_state_their_bounds(call, message):
    with refuses(UserError, *message.split(GIVE)) as error:
        call()
    assert "\n" not in str(error.value)


def test_an_optimizer_is_one():
    build = inspect.unwrap(Trainer.__init__)  # what the tests check of annotations would come first
    with refuses(ConfigError, "optimizer='adam'", "an Optimizer or a transformation of Optax"):
        build(object.__new__(Trainer), "adam")
    for optimizer in None, optax.adam(0.1), lazy_adagrad():
        build(object.__new__(Trainer), optimizer)


SIMULATED, CSV, LETOR = (), ("dataset=lists", "dataset.path=x"), ("dataset=letor", "dataset.path=x")
NOT = [
    (SIMULATED, "seed", -1, "seed=-1: give at least 0"),
    (
        SIMULATED,
        "seed",
        10**23,
        "seed=100000000000000000000000: give at least 0 and at most 4294967295",
    ),
    (SIMULATED, "draws", 10**8, "draws=100000000: give at least 0 and at most 10000"),
    (SIMULATED, "max_sessions", -5, "max_sessions=-5: give at least 1, or null"),
    (SIMULATED, "dataset.queries", 0, "dataset.queries=0: give at least 1"),
    (SIMULATED, "dataset.positions", -3, "dataset.positions=-3: give at least 1"),
    (
        SIMULATED,
        "dataset.attraction_spread",
        math.inf,
        "dataset.attraction_spread=inf: give a finite number",
    ),
    (SIMULATED, "dataset.policy_noise", -1, "dataset.policy_noise=-1: give at least 0"),
    (
        SIMULATED,
        "dataset.zipf_exponent",
        math.nan,
        "dataset.zipf_exponent=nan: give a finite number",
    ),
    (SIMULATED, "dataset.train_sessions", math.nan, "dataset.train_sessions=nan: give a fraction"),
    (
        SIMULATED,
        "dataset.train_sessions",
        [0.1, 0.2],
        "dataset.train_sessions=[0.1, 0.2]: give a fraction",
    ),
    (
        SIMULATED,
        "dataset.train_sessions",
        [1, 2, 3],
        "dataset.train_sessions=[1, 2, 3]: give a fraction",
    ),
    (SIMULATED, "dataset.train_sessions", None, "dataset.train_sessions=None: give a fraction"),
    (SIMULATED, "dataset.train_sessions", [0, 9], "mix fractions and ranges"),
    (
        SIMULATED,
        "attraction.embedding_features",
        -1,
        "attraction.embedding_features=-1: give at least 1",
    ),
    (
        SIMULATED,
        "attraction.prior_precision",
        math.nan,
        "attraction.prior_precision=nan: give a finite number",
    ),
    (SIMULATED, "attraction.prior_precision", -1, "attraction.prior_precision=-1: give at least 0"),
    (
        SIMULATED,
        "examination.initial",
        math.inf,
        "examination.initial=inf: give a finite number, or null",
    ),
    (
        SIMULATED,
        "optimizer.learning_rate",
        math.nan,
        "optimizer.learning_rate=nan: give a finite number",
    ),
    (
        SIMULATED,
        "trainer.early_stopping.patience",
        -1,
        "trainer.early_stopping.patience=-1: give at least 0",
    ),
    (SIMULATED, "trainer.early_stopping.min_delta", math.nan, "min_delta=nan: give at least 0"),
    (
        SIMULATED,
        "trainer.checkpoint_minutes",
        math.nan,
        "trainer.checkpoint_minutes=nan: give a finite number",
    ),
    (SIMULATED, "metric.ranking.dcg.cutoffs", [0], "give numbers of documents from 1"),
    (
        ("optimizer=adamw",),
        "optimizer.weight_decay",
        "x",
        "optimizer.weight_decay='x': give a number",
    ),
    (
        SIMULATED,
        "optimizer.dense_learning_rate",
        -1,
        "optimizer.dense_learning_rate=-1: give a number above 0",
    ),
    (
        ("optimizer=adam",),
        "optimizer.learning_rate",
        -1,
        "optimizer.learning_rate=-1: give a number above 0",
    ),
    (("trainer=em",), "trainer.prior_failures", -1, "trainer.prior_failures=-1: give at least 0"),
    (
        CSV,
        "dataset.query_doc_pairs",
        10**11,
        "dataset.query_doc_pairs=100000000000: give at least 1 and at most",
    ),
    (CSV, "dataset.positions", 0, "dataset.positions=0: give at least 1, or null"),
    (CSV, "dataset.test_sessions", "abc", "dataset.test_sessions='abc': give a fraction"),
    (
        CSV,
        "dataset.val_sessions",
        0.9,
        "val_sessions=0.9, test_sessions=0.1: the fractions sum to 1.8",
    ),
    (
        LETOR,
        "dataset.val_queries",
        1.0,
        "dataset.val_queries=1.0: give a number above 0 and below 1",
    ),
    (LETOR, "dataset.click_noise", 2, "dataset.click_noise=2: give at least 0 and at most 1"),
    (LETOR, "dataset.val_sessions", 0, "dataset.val_sessions=0: give at least 1"),
]


@pytest.mark.parametrize("overrides, key, value, message", NOT)
def test_a_configuration_beyond_the_bounds_is_refused_before_data_is_read(
    overrides, key, value, message
):
    from jax._src import xla_bridge

    started = xla_bridge.backends_are_initialized()
    config = composed(*overrides).copy()
    OmegaConf.update(config, key, value, merge=False)
    with refuses(UserError, *message.split(GIVE)) as error:
        resolve(config)
    assert "\n" not in str(error.value)
    assert xla_bridge.backends_are_initialized() == started


def test_configurations_within_the_bounds_pass():
    for overrides in {overrides for overrides, *_ in NOT}:
        assert resolved(*overrides)


LOGIT = "a logit, of which any finite number is one"
SLOPE = "a coefficient of either sign"
FREE = {
    "cutoffs": "the metric checks it, as a number and as a list",
    "chunk_size": "its most is another argument, and the store states both bounds",
    "initial": LOGIT,
    "baseline": LOGIT,
    "attraction_mean": LOGIT,
    "examination_top": LOGIT,
    "continuation": LOGIT,
    "examination_decay": SLOPE,
    "zipf_exponent": SLOPE,
}
"""Arguments of numbers that have no bounds but to be finite, and why."""

UNRESOLVED = {
    "optax.adamw": "names a type that exists for type checkers only; its arguments have bounds by name",
    "optuna.samplers.TPESampler": "names types that exist for type checkers only; Optuna checks its arguments",
}


def targets():
    text = "\n".join(file.read_text() for file in CONF.rglob("*.yaml"))
    return sorted(set(re.findall(r"_target_: *([\w.]+)", text)) - {"my_package.MyTower"})


def plain(hint):
    """The types of an annotation, of a union of them each, without constraints; and the constraints."""
    if typing.get_origin(hint) is Annotated:
        kinds, constraints = plain(hint.__origin__)
        return kinds, [*constraints, *hint.__metadata__]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        each = [plain(option) for option in typing.get_args(hint)]
        return set().union(*(kinds for kinds, _ in each)), sum((found for _, found in each), [])
    return {hint}, []


def free_numbers(target):
    """Arguments of this function that take any number."""
    hints = typing.get_type_hints(function_of(located(target)), include_extras=True)
    numbers = {name: plain(hint) for name, hint in hints.items() if name != "return"}
    return {name for name, (kinds, found) in numbers.items() if kinds & {int, float} and not found}


def test_every_number_of_a_configuration_has_bounds_or_a_reason():
    """A hint that cannot be resolved would silently take all bounds of its function away."""
    unresolved, without = set(), {}
    for target in targets():
        library = target.split(".")[0]
        try:
            free = free_numbers(target)
        except (NameError, TypeError):
            unresolved.add(target)
            continue
        if library != "optuna":  # it checks its own
            without[target] = free - (OF_OPTAX if library == "optax" else FREE).keys()
    assert unresolved == UNRESOLVED.keys()
    assert len(without) > 60 and not {target: free for target, free in without.items() if free}
