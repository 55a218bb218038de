"""Trains models on several devices that XLA makes of the CPU, and prints how far they are from those of one device.

    python tests/training/on_devices.py CASE DEVICES...   # each of these, from the start
    python tests/training/on_devices.py whole CASE DEVICES... # until training ends, on each of these
    python tests/training/on_devices.py twelve CASE DEVICES... # for twelve steps, on each of these
    python tests/training/on_devices.py resumed DEVICES... # the first for an epoch, each other from its checkpoint on
    python tests/training/on_devices.py intervals CASE DEVICES... # those of a model before training
    python tests/training/on_devices.py program CASE DEVICES # what a step does on each
    python tests/training/on_devices.py lowered CASE DEVICES # the same for NVIDIA GPUs, before XLA
    python tests/training/on_devices.py held DEVICES # of a model on the host, the rows of a table that a device has
    python tests/training/on_devices.py together CASE FILE # one training by the processes that the environment names

One line of JSON per number of devices: differences of validation likelihood and of numbers of the model, or how often
the program of a step names each instruction whose result is as large as a device's rows.
"""

import collections
import json
import os
import re
import sys
import tempfile
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={os.environ.get('CPU_DEVICES', 8)}"
)

import jax
import numpy as np
import optax
from flax import nnx
from small_logs import Last, packed, ragged_log

from clickexp import models
from clickexp.data import Column, Features, Sessions
from clickexp.loggers import Logger
from clickexp.models.ranker.learned import DualLearning
from clickexp.parameters import (
    DeepCrossParameterConfig,
    DeepParameterConfig,
    EmbeddingParameterConfig,
    HashEmbedding,
    QREmbedding,
    TableVectorsConfig,
)
from clickexp.posteriors import information
from clickexp.posteriors.exported import row_tables
from clickexp.posteriors.rows import newton_refined, with_shared_uncertainty
from clickexp.posteriors.shared import shared_posterior
from clickexp.training import (
    CountingTrainer,
    EarlyStopping,
    EMTrainer,
    Optimizer,
    Trainer,
    lazy_adagrad,
    natural_gradient,
)
from clickexp.training.checkpoint import read_parameters, save_model
from clickexp.training.earlier import EarlierLogs, SharedPrior
from clickexp.training.em import estimation
from clickexp.training.sparse import placement
from clickexp.training.spread import computing_on
from clickexp.updates.growth import Sizes, take_over
from clickexp.utils import hosts

PAIRS, RANKS, QUERIES = 1001, 6, 50
EPOCHS, STOPPING = 3, Last()
POINTS = EmbeddingParameterConfig(posterior="none")
HASHED = EmbeddingParameterConfig(embedding_fn=HashEmbedding, compression_ratio=2)
QUOTIENTS = EmbeddingParameterConfig(embedding_fn=QREmbedding, compression_ratio=10)
VECTORS = TableVectorsConfig("query_doc_ids", PAIRS, dim=4)
OF_QUERIES = TableVectorsConfig("query_numbers", QUERIES, dim=4)
COLUMNS = {
    "clicked_query_doc_ids": PAIRS,
    "query_numbers": QUERIES,
    "earlier_query_numbers": QUERIES,
}
SIZES = {"query_doc_pairs": PAIRS, "click_rate": 0.3}
PLACES = {**SIZES, "positions": RANKS}

CASES = {
    "pbm": lambda rngs: models.PositionBasedModel(**PLACES, rngs=rngs),
    "ubm": lambda rngs: models.UserBrowsingModel(**PLACES, rngs=rngs),
    "dbn": lambda rngs: models.DynamicBayesianNetwork(**SIZES, rngs=rngs),
    "ccm": lambda rngs: models.ClickChainModel(**SIZES, rngs=rngs),
    "points": lambda rngs: models.PositionBasedModel(**PLACES, attraction=POINTS, rngs=rngs),
    "adagrad": lambda rngs: models.PositionBasedModel(**PLACES, rngs=rngs),
    "positions": lambda rngs: models.PositionBasedModel(
        **PLACES, examination=EmbeddingParameterConfig(use_feature="positions"), rngs=rngs
    ),
    "hash": lambda rngs: models.PositionBasedModel(**PLACES, attraction=HASHED, rngs=rngs),
    "quotients": lambda rngs: models.PositionBasedModel(**PLACES, attraction=QUOTIENTS, rngs=rngs),
    "deep": lambda rngs: models.PositionBasedModel(
        **PLACES, attraction=DeepParameterConfig(features=4), rngs=rngs
    ),
    "deep_cross": lambda rngs: models.PositionBasedModel(
        **PLACES, attraction=DeepCrossParameterConfig(features=4), rngs=rngs
    ),
    "ncm": lambda rngs: models.NeuralClickModel(
        **PLACES, documents=VECTORS, queries=OF_QUERIES, hidden=8, columns=COLUMNS, rngs=rngs
    ),
    "cacm": lambda rngs: models.ContextAwareClickModel(
        **PLACES, documents=VECTORS, queries=OF_QUERIES, hidden=8, columns=COLUMNS, rngs=rngs
    ),
    "cacm_minus": lambda rngs: models.CACMMinusModel(**PLACES, hidden=8, rngs=rngs),
    "mixture": lambda rngs: models.MixtureModel(
        [models.PositionBasedModel, models.DynamicBayesianNetwork], **PLACES, rngs=rngs
    ),
    "ranker": lambda rngs: models.Ranker(debias=DualLearning(), **PLACES, rngs=rngs),
}
CASES["update"] = CASES["resident"] = CASES["pbm"]
CASES["em"], CASES["em_dbn"] = CASES["ubm"], CASES["dbn"]
CASES["counting"] = lambda rngs: models.DependentClickModel(**PLACES, rngs=rngs)
ESTIMATING = {"em": EMTrainer, "em_dbn": EMTrainer, "counting": CountingTrainer}
"""Trainers of cases; those of rows lay all roles of more rows than there are positions over devices."""
estimation._FEW_ROWS = 100
placement._EXCHANGED = (
    300  # so that a table is gathered in several blocks, of which the last two overlap
)
PLAIN = Optimizer(optax.sgd(0.1), natural_gradient().rows)
"""Adam divides by the size of a gradient: its last digits show where it is near 0, or 0 as of a ranker's baseline."""
OPTIMIZERS = {
    "points": lazy_adagrad(),
    "adagrad": lazy_adagrad(),
    "deep_cross": PLAIN,
    "ranker": PLAIN,
}
NEURAL = ("ncm", "cacm", "cacm_minus")
LOG = packed(ragged_log(2_000, RANKS, PAIRS), PAIRS)


def trained(case, devices, **settings):
    """The model after some epochs, its validation likelihoods, and what it predicts."""
    model = CASES[case](nnx.Rngs(0))
    log = log_of_sessions() if case in NEURAL else LOG
    if case in ("deep", "deep_cross"):
        rng = np.random.default_rng(1)
        log = log.with_features(Features(rng.normal(size=(PAIRS + 1, 4)).astype(np.float32)))
    if case == "update":
        settings = settings | {"earlier": of_earlier_log(model)}
    if case == "resident":
        settings = settings | {"resident": True}
    trainer = trainer_of(case, devices, settings)
    report = trainer.train(model, log, log)
    tested = trainer.test_clicks(model, log) if isinstance(model, models.ClickModel) else {}
    return model, [*(record["val/loss"] for record in report.history), *tested.values()]


def log_of_sessions():
    """Four lists per search session, each with a query."""
    columns = ragged_log(2_000, RANKS, PAIRS)
    ids = columns["query_doc_ids"]
    queries = np.where(ids > 0, 1 + ids[:, :1] % QUERIES, 0)
    columns["session_ids"] = np.arange(len(ids)) // 4
    extra = {Column("query_numbers", "int32"): queries}
    return Sessions.from_arrays(**columns, extra=extra).with_pairs(PAIRS)


def trainer_of(case, devices, settings):
    options = dict(devices=devices, batch_size=96, eval_batch_size=512) | settings
    if case in ESTIMATING:
        trainer = ESTIMATING[case](**options)
        trainer.iterations = min(EPOCHS, trainer.iterations)
        return trainer
    optimizer = OPTIMIZERS.get(case, natural_gradient())
    return Trainer(optimizer, **(dict(epochs=EPOCHS, early_stopping=STOPPING, seed=0) | options))


def of_earlier_log(model):
    """Gives a model what one device has learned of another log."""
    first = CASES["pbm"](nnx.Rngs(0))
    log = packed(ragged_log(1_000, RANKS, PAIRS - 300, seed=3), PAIRS)
    report = Trainer(epochs=2, batch_size=96, seed=0).train(first, log, log)
    with tempfile.TemporaryDirectory() as folder:
        save_model(first, Path(folder, "model.npz"))
        learned = read_parameters(Path(folder, "model.npz"))
        # processes with other numbers of devices learn other last digits
        rounded = {name: np.round(values, 3) for name, values in learned.items()}
        take_over(model, rounded, Sizes(RANKS), 1.0)
    names = tuple(f"examination/weight[{position}]" for position in range(1, RANKS + 1))
    prior = SharedPrior(
        names, np.ones(RANKS, bool), np.linspace(-0.1, -2, RANKS), 50 * np.eye(RANKS)
    )
    return EarlierLogs(report.documents, prior)


def numbers(model):
    leaves = jax.tree.leaves(nnx.state(model))
    return [np.asarray(leaf) for leaf in leaves if jax.numpy.issubdtype(leaf.dtype, np.floating)]


def distance(some, others):
    """Largest difference of finite numbers; infinite where others are finite elsewhere."""
    largest = 0.0
    for one, other in zip(some, others, strict=True):
        if one.shape != other.shape or not (np.isfinite(one) == np.isfinite(other)).all():
            return float("inf")
        finite = np.isfinite(one)
        largest = max(largest, float(np.abs(one[finite] - other[finite]).max(initial=0.0)))
    return largest


def apart(alone, other, number):
    (model, losses), (another, others) = alone, other
    return {
        "devices": number,
        "loss": float(np.abs(np.subtract(losses, others)).max()),
        "numbers": distance(numbers(model), numbers(another)),
        "relative": far_of(numbers(model), numbers(another), 1.0),
    }


def compared(case, *devices):
    """Trainings on some devices, and on one."""
    alone = trained(case, 1)
    for number in devices:
        yield apart(alone, trained(case, number), number)


def resumed(first, *devices):
    """An epoch on some devices, and the rest on others."""
    alone = trained("ubm", 1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "checkpoint.npz")
        trained("ubm", first, epochs=1, checkpoint=file, checkpoint_minutes=0)
        kept = file.read_bytes()
        for number in devices:
            file.write_bytes(kept)
            logger = Messages()
            other = trained("ubm", number, checkpoint=file, logger=logger)
            yield apart(alone, other, number) | {"messages": logger.messages}


def intervals(case, *devices):
    """Information on shared parameters, and posteriors of rows refined and with errors of shared parameters."""
    log = packed(ragged_log(5_000, RANKS, PAIRS), PAIRS)
    model = CASES[case](nnx.Rngs(0))
    information.ROOM = 20_000  # rows are sampled by their documents, which a pass counts
    posterior = shared_posterior(model, log)
    alone = judged(model, log, posterior, 1)
    for number in devices:
        found = judged(model, log, posterior, number)
        apart = {name: far_of(alone[name], values) for name, values in found.items()}
        print(json.dumps({"devices": number, **apart}), flush=True)


def far_of(some, others, least=1e-30):
    """Largest difference of arrays, of the largest number in each, or of `least`."""
    sizes = [np.abs(values[np.isfinite(values)]).max(initial=least) for values in some]
    pairs = zip(some, others, sizes, strict=True)
    return max(float(distance([one], [other]) / size) for one, other, size in pairs)


def judged(model, log, posterior, devices):
    known, tables = information.information(model, log, devices=devices), row_tables(model)
    refined = newton_refined(model, tables, log, devices=devices)
    surer = with_shared_uncertainty(model, tables, posterior, log, devices=devices)
    return {
        "complete": [known.complete],
        "explained": [known.complete - known.matrix],
        "score": [known.score],
        "refined": numbers(refined),
        "surer": numbers(surer),
    }


class Messages(Logger):
    """Keeps messages."""

    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)


def program(case, devices):
    """Instructions of a step whose result has as many rows as a device."""
    learner = trainer_of(case, devices, {}).learner(CASES[case](nnx.Rngs(0)), LOG)
    learner.start(LOG)
    learner.run_pass(LOG, 1)
    (compiled,) = learner.programs[0].programs.values()
    found = re.findall(rf"= f32\[{rows_of(learner)},\d+\]\S* ([a-z][\w-]*)\(", compiled.as_text())
    return {**collections.Counter(found), "loops": compiled.as_text().count("known_trip_count")}


def lowered(case, devices):
    """Operations of a step as it is lowered for NVIDIA GPUs, and types of those that make as many rows as a device."""
    learner = trainer_of(case, devices, {}).learner(CASES[case](nnx.Rngs(0)), LOG)
    batch = next(learner._feed(LOG))
    step = learner._train.jitted.trace(learner.state, batch.arrays, np.int32(batch.steps))
    text = step.lower(lowering_platforms=("cuda",)).as_text()
    by_rows = rf" : (.*tensor<{rows_of(learner)}x\d+xf32>)$"
    return {
        "operations": collections.Counter(re.findall(r"stablehlo\.(\w+)", text)),
        "by_rows": re.findall(by_rows, text, re.MULTILINE),
    }


def rows_of(learner):
    """How many rows a device has."""
    return learner.devices.placement.rows_per_device(PAIRS + 1)


def held(devices):
    """Most rows of a table that a device has while a model of the host trains, and those of its share."""
    from held_rows import most_rows  # here, since it gives the part of the host to another device

    with computing_on(devices):
        model = CASES["ubm"](nnx.Rngs(0))
    trainer = trainer_of("ubm", devices, {"epochs": 1})
    rows = most_rows(lambda: trainer.train(model, LOG, LOG), PAIRS + 1)
    return {"rows": rows, "share": rows_of(trainer.learner(model, LOG))}


def together(case, file):
    """Writes the numbers of a model, trained on all devices of all processes, and its losses."""
    hosts.join("")
    model, losses = trained(case, "all")
    hosts.leave()
    if hosts.index() == 0:
        np.savez(file, losses, *numbers(model))
        hosts.release()


def main(case, *devices):
    global EPOCHS, STOPPING, LOG
    if case == "together":
        together(*devices)
        return
    if case == "intervals":
        intervals(devices[0], *map(int, devices[1:]))
        return
    if case == "held":
        print(json.dumps(held(int(devices[0]))))
        return
    if case in (of_step := {"program": program, "lowered": lowered}):
        print(json.dumps(of_step[case](devices[0], int(devices[1]))))
        return
    if case == "resumed":
        lines = resumed(*map(int, devices))
    elif case == "whole":
        EPOCHS, STOPPING = 50, EarlyStopping()
        lines = compared(devices[0], *map(int, devices[1:]))
    elif case == "twelve":
        EPOCHS, LOG = 1, LOG.slice(0, 12 * 96)
        lines = compared(devices[0], *map(int, devices[1:]))
    else:
        lines = compared(case, *map(int, devices))
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
