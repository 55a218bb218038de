"""What XLA makes of a training run: tables updated in place, and one compilation a shape."""

import math
import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from omegaconf import OmegaConf
from places import ROOT
from small_logs import leaves, packed, ragged_log, superbatch

from clickexp.data import feed as dispatch
from clickexp.data.batches import batch_like
from clickexp.data.records import width_of
from clickexp.evaluation import evaluator as evaluation
from clickexp.evaluation.evaluator import Evaluator, Program
from clickexp.evaluation.groups import ClickMetrics
from clickexp.experiment import instantiate
from clickexp.metrics import LogLikelihood
from clickexp.models import (
    CACMMinusModel,
    ClickChainModel,
    DocumentCTRModel,
    DynamicBayesianNetwork,
    MixtureModel,
    NeuralClickModel,
    PositionBasedModel,
    UserBrowsingModel,
)
from clickexp.parameters import (
    EmbeddingParameterConfig,
    HashEmbedding,
    SumParameterConfig,
    TableVectorsConfig,
)
from clickexp.training import (
    Optimizer,
    RowOptimizer,
    Trainer,
    lazy_adagrad,
    lazy_adam,
    loop,
    natural_gradient,
    optimizers,
    trainer,
)
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.step import TrainStep, split_model
from clickexp.utils.signatures import accepted

pytestmark = pytest.mark.as_users

CONF = ROOT / "conf/optimizer"
RANKS, PAIRS, BATCH, STEPS = 4, 50_000, 16, 3
IN_PLACE = {"parameter", "get-tuple-element", "tuple", "while", "scatter", "bitcast"}
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = \w+\[([\d,]*)\][^ ]* ([\w-]+)\(")


def table_sized(compiled):
    """Instructions outside IN_PLACE with an element a row; fusions count by what is fused."""
    found = []
    for line in compiled.as_text().splitlines():
        if (match := INSTRUCTION.match(line)) and match[2] not in IN_PLACE | {"fusion"}:
            elements = math.prod(int(size) for size in match[1].split(",") if size)
            found += [line.strip()] if elements >= PAIRS else []
    return found


def trip_counts(compiled):
    """Of each loop of the program: how often it runs, None where the compiler does not know."""
    loops = [line for line in compiled.as_text().splitlines() if re.search(r" while\(", line)]
    counts = [re.search(r'"known_trip_count":\{"n":"(\d+)"', loop) for loop in loops]
    return [int(count[1]) if count else None for count in counts]


def check_in_place(compiled, table_bytes):
    memory = compiled.memory_analysis()
    assert not table_sized(compiled)
    assert memory.temp_size_in_bytes < table_bytes / 4
    assert memory.alias_size_in_bytes >= table_bytes
    assert "input_output_alias" in compiled.as_text()


class Recorded(dispatch.Compiled):
    """Counts the traces of its function, and keeps every instance that a run makes."""

    made = []

    def __init__(self, function, **options):
        self.name, self.traces = getattr(function, "__name__", "train"), 0

        def traced(*args):
            self.traces += 1
            return function(*args)

        super().__init__(traced, **options)
        self.made.append(self)


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(Recorded, "made", [])
    monkeypatch.setattr(trainer, "Compiled", Recorded)
    monkeypatch.setattr(loop, "Compiled", Recorded)
    monkeypatch.setattr(evaluation, "Compiled", Recorded)
    return Recorded.made


def log(sessions, seed=0):
    return packed(ragged_log(sessions, RANKS, PAIRS, seed), PAIRS)


POINTS, POSTERIORS = (
    EmbeddingParameterConfig(posterior=kind) for kind in ("none", "normal_by_rank")
)
DOCUMENTS = TableVectorsConfig("query_doc_ids", PAIRS, dim=8)
QUERIES = TableVectorsConfig("positions", RANKS, dim=8)
SUM = SumParameterConfig({"one": POSTERIORS, "other": POSTERIORS})
WIDE = EmbeddingParameterConfig(posterior="normal_by_rank", embedding_features=4)
HASHED = EmbeddingParameterConfig(
    posterior="normal_by_rank", embedding_fn=HashEmbedding, compression_ratio=1
)
RUNS = {
    "one table, Adagrad": (
        lambda: PositionBasedModel(RANKS, PAIRS, attraction=POINTS, rngs=nnx.Rngs(0)),
        lazy_adagrad(),
        4,
    ),
    "two tables, Adam": (
        lambda: DynamicBayesianNetwork(PAIRS, POINTS, POINTS, rngs=nnx.Rngs(0)),
        lazy_adam(),
        5 * 2,
    ),
    "posteriors": (
        lambda: PositionBasedModel(RANKS, PAIRS, attraction=POSTERIORS, rngs=nnx.Rngs(0)),
        natural_gradient(),
        4,
    ),
    "vectors of a recurrent network": (
        lambda: NeuralClickModel(
            RANKS, PAIRS, DOCUMENTS, QUERIES, hidden=4, offset=None, rngs=nnx.Rngs(0)
        ),
        lazy_adagrad(),
        3 * 8 + 1,
    ),
    "a tower beside vectors": (
        lambda: NeuralClickModel(
            RANKS, PAIRS, DOCUMENTS, QUERIES, hidden=4, offset=POINTS, rngs=nnx.Rngs(0)
        ),
        lazy_adagrad(),
        3 * 8 + 1 + 4,
    ),
    "recurrent examination of a sum of tables": (
        lambda: CACMMinusModel(RANKS, PAIRS, attraction=SUM, hidden=4, rngs=nnx.Rngs(0)),
        natural_gradient(),
        2 * 4,
    ),
    "posteriors of four numbers, Adam": (
        lambda: PositionBasedModel(RANKS, PAIRS, attraction=WIDE, rngs=nnx.Rngs(0)),
        lazy_adam(),
        4 * 8 + 2,
    ),
    "hashed and full posteriors in a mixture, Adagrad": (
        lambda: MixtureModel(
            [PositionBasedModel, partial(DynamicBayesianNetwork, satisfaction=POSTERIORS)],
            shared={"attraction": HASHED},
            positions=RANKS,
            query_doc_pairs=PAIRS,
            rngs=nnx.Rngs(0),
        ),
        lazy_adagrad(),
        2 * 8,
    ),
}


OTHER_ROWS = {
    "vectors of a recurrent network",
    "a tower beside vectors",
    "hashed and full posteriors in a mixture, Adagrad",
}
"""Runs with a table without a row for each document, which a program counts; others are counted on the host."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "posteriors" else pytest.mark.nightly) for n in RUNS]
)
def test_a_run_compiles_once_and_updates_tables_in_place(made, name):
    """Several epochs of several superbatches, the last one short, in training and in validation."""
    build, optimizer, columns = RUNS[name]
    metrics = {"ll": LogLikelihood()}
    options = dict(
        batch_size=BATCH, eval_batch_size=BATCH, steps_per_execution=STEPS, metrics=metrics
    )
    train, val = log(3 * BATCH * STEPS + 5), log(BATCH * STEPS + 1, 1)
    model = build()
    tables = split_model(model, optimizer)[1].tables
    learned = bool(packing.priors(tables))
    of_documents = sum(sums.nbytes for sums in jax.tree.leaves(learned_priors.no_documents(tables)))
    Trainer(optimizer, 3, None, **options).train(model, train, val)
    counted_on_device = int(name in OTHER_ROWS)
    assert {(run.name, run.traces, len(run.programs)) for run in made} == {
        ("train", 1, 1),
        ("count", counted_on_device, counted_on_device),
        ("shares", 1, 1),
        ("_statistics", 1, 1),
        ("snapshot", 2, 2),  # with and without an older one to write into
        *([("refit_priors", 1, 1)] if learned else []),
    }
    for run in made:
        if not run.programs:
            continue
        program = next(iter(run.programs.values()))
        if run.name == "_statistics":
            assert not table_sized(program)
            assert program.memory_analysis().temp_size_in_bytes < PAIRS
        if run.name == "refit_priors":  # which reads and writes blocks of the table
            memory = program.memory_analysis()
            assert (
                memory.temp_size_in_bytes < columns * (PAIRS + 1) <= memory.alias_size_in_bytes / 4
            )
        if run.name in ("train", "count"):
            check_in_place(
                program, 4 * columns * (PAIRS + 1) if run.name == "train" else of_documents
            )
            counts = trip_counts(program)
            # else XLA on GPUs waits for the host after each step
            assert STEPS in counts and None not in counts


def test_evaluation_traces_once_a_shape(made):
    model = DocumentCTRModel(PAIRS, rngs=nnx.Rngs(0))
    group = ClickMetrics(ll=LogLikelihood())
    program = Program(Evaluator(BATCH, STEPS), model, group, log(BATCH))
    for sessions in (BATCH * STEPS, 2 * BATCH * STEPS + 1, 2 * BATCH * STEPS - 1):
        program.data = log(sessions)
        program((nnx.state(model),), "test")
    assert program.run.traces == 1
    program.data = log(BATCH)
    program((nnx.state(model),), "test")
    assert program.run.traces == 2


def compiled_step(optimizer, wrap=lambda step: step, donate=0, tower=POINTS):
    graphdef, state = split_model(DocumentCTRModel(PAIRS, tower, rngs=nnx.Rngs(0)), optimizer)
    arrays = superbatch(ragged_log(BATCH * STEPS, RANKS, PAIRS), BATCH)
    step = jax.jit(wrap(TrainStep(graphdef, optimizer)), donate_argnums=donate)
    compiled = step.lower(state, arrays, np.int32(STEPS)).compile()
    return compiled, sum(leaf.nbytes for leaf in leaves(state.tables))


def reading_the_old_table(step):
    """Needs rows of the table as it was before the step, picked by what the step computed."""

    def run(state, arrays, steps):
        (old,) = jax.tree.leaves(state.tables)
        after, _, documents = step(state, arrays, steps)
        return after, old[documents % PAIRS]

    return run


BAD_STEPS = {
    "dense optimizer": lambda: compiled_step(Optimizer(optax.adam(0.1))),
    "old table still needed": lambda: compiled_step(lazy_adam(), reading_the_old_table),
    "state not donated": lambda: compiled_step(lazy_adam(), donate=()),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", BAD_STEPS)
def test_the_check_notices_bad_steps(name):
    with pytest.raises(AssertionError):
        check_in_place(*BAD_STEPS[name]())


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["dense optimizer", "old table still needed"])
def test_bad_steps_show_in_the_instructions_and_in_memory(name):
    compiled, _ = BAD_STEPS[name]()
    assert table_sized(compiled)
    assert compiled.memory_analysis().temp_size_in_bytes > 4 * PAIRS


@pytest.mark.nightly
@pytest.mark.parametrize(
    "tower, optimizer", [(POINTS, lazy_adam()), (POSTERIORS, natural_gradient())]
)
def test_a_good_step_passes_the_check(tower, optimizer):
    check_in_place(*compiled_step(optimizer, tower=tower))


def lowered(name, learning_rate, tower=POSTERIORS):
    """The steps of `optimizer=NAME optimizer.learning_rate=...`, state and superbatch."""
    config = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    optimizer = instantiate.build_optimizer({**config, "learning_rate": learning_rate})
    optimizer = optimizer if isinstance(optimizer, Optimizer) else Optimizer(optimizer)
    graphdef, state = split_model(DocumentCTRModel(PAIRS, tower, rngs=nnx.Rngs(0)), optimizer)
    given = state, superbatch(ragged_log(BATCH * STEPS, RANKS, PAIRS), BATCH), np.int32(STEPS)
    return jax.jit(TrainStep(graphdef, optimizer)).lower(*given), given


FILES = sorted(file.stem for file in CONF.glob("*.yaml"))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "natural_gradient" else pytest.mark.nightly) for n in FILES],
)
def test_all_learning_rates_run_one_program(name):
    one, other = (lowered(name, rate)[0].as_text() for rate in (0.5, 0.02))
    assert one == other


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["lazy_adamw", "adam"])
def test_a_rate_that_is_data_trains_as_a_constant_does(name, monkeypatch):
    step, given = lowered(name, 0.02, POINTS)
    found, *_ = step.compile()(*given)
    monkeypatch.setattr(RowOptimizer, "at_rates", lambda rule, rates: rule)
    monkeypatch.setattr(optimizers, "with_rate", lambda rule, rate: rule(learning_rate=rate))
    monkeypatch.setattr(instantiate, "with_rate", optimizers.with_rate)
    constant, given = lowered(name, 0.02, POINTS)
    assert constant.as_text() != step.as_text()
    expected, *_ = constant.compile()(*given)
    for part in ("tables", "params"):
        for a, b in zip(leaves(getattr(found, part)), leaves(getattr(expected, part)), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-7, atol=1e-9)


TRAINED = """
import sys
from flax import nnx
from omegaconf import OmegaConf
from small_logs import packed, ragged_log
from clickexp.models import PositionBasedModel
from clickexp.training import Trainer, lazy_adam

log = packed(ragged_log(64, 4, 40), 40)
Trainer(lazy_adam(*map(float, sys.argv[1:])), 1, None, batch_size=16, steps_per_execution=2).train(
    PositionBasedModel(4, 40, rngs=nnx.Rngs(0)), log, log
)
"""


@pytest.mark.nightly
def test_another_process_with_other_rates_compiles_nothing(tmp_path):
    env = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT / "tests"),
    }
    entries = []
    for rates in (("0.03", "0.01"), ("0.1", "0.002")):
        subprocess.run([sys.executable, "-c", TRAINED, *rates], env=env, check=True)
        entries.append({file.name for file in tmp_path.glob("*-cache")})
    assert len(entries[0]) > 5 and entries[0] == entries[1]


def results(text):
    """Operation and type of each value of a program as StableHLO."""
    for line in text.splitlines():
        if match := re.search(r"= \"?stablehlo\.(\w+)", line):
            yield match[1], re.split(r"-> |: ", line)[-1]


@pytest.mark.parametrize(
    "model", [PositionBasedModel, UserBrowsingModel, DynamicBayesianNetwork, ClickChainModel]
)
def test_a_step_for_nvidia_gpus_neither_waits_for_the_host_nor_copies_tables(model):
    """As it is lowered: a loop of unknown length waits after every step, and so does each call of the host."""
    sizes = {"query_doc_pairs": PAIRS, "positions": RANKS, "click_rate": 0.1}
    built = model(**accepted(model, sizes), rngs=nnx.Rngs(0))
    built.train()
    graphdef, state = split_model(built, natural_gradient(), batch=batch_like(log(BATCH)))
    arrays = {"records": jax.ShapeDtypeStruct((STEPS, BATCH, width_of(RANKS)), np.int32)}
    step = jax.jit(TrainStep(graphdef, natural_gradient()), donate_argnums=0)
    traced = step.trace(state, arrays, np.int32(STEPS))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()

    operations = Counter(operation for operation, _ in results(text))
    assert not operations.keys() & {"custom_call", "case", "if", "sort", "infeed", "outfeed"}
    assert "f64" not in text
    conditions = re.findall(r"stablehlo\.while.*?\n\s+cond \{(.*?)\} do \{", text, re.DOTALL)
    bounds = [re.findall(r"stablehlo\.constant dense<(\d+)>", each) for each in conditions]
    assert bounds[0] == [str(STEPS)] and all(each == [str(RANKS)] for each in bounds[1:])
    donated = text.count("tf.aliasing_output") + text.count("jax.buffer_donor")
    assert donated == len(jax.tree.leaves(state))
    # what has a number for each row of a table is the table itself
    large = {operation for operation, kind in results(text) if f"<{PAIRS + 1}x" in kind}
    assert large <= {"while"}
    # tables that are read at the same ids are gathered together, and changed together
    tables = len(nnx.to_flat_state(state.tables))
    row, documents = f"{PAIRS + 1}x{4 * tables}xf32", BATCH * RANKS
    scattered = re.findall(rf"\(tensor<{row}>, tensor<\d+x1xi32>, tensor<(\w+)>\) ->", text)
    assert scattered == [f"{documents}x{2 * tables}xf32"]
    gathered = re.findall(rf"\(tensor<{row}>, tensor<\d+x1xi32>\) -> tensor<(\w+)>", text)
    assert gathered == [f"{documents}x{4 * tables}xf32"]
