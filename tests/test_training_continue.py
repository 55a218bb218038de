"""A training that is interrupted and continued comes to the numbers of one that is not."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hydra.types import RunMode
from small_logs import packed, ragged_log, shown, state_of

from clickexp.errors import ConfigError
from clickexp.loggers.base import Logger
from clickexp.models import DocumentCTRModel, PositionBasedModel
from clickexp.parameters import DeepParameterConfig, EmbeddingParameterConfig
from clickexp.sweeps import job
from clickexp.sweeps.resume import CHECKPOINT
from clickexp.training import EarlyStopping, LazyAdam, LazySGD, Optimizer, Trainer, lazy_adam
from clickexp.training.checkpoint import load_training, save_training

RANKS, PAIRS, EPOCHS = 4, 40, 6
LOG = ragged_log(64, RANKS, PAIRS)
TRAIN, VAL = packed(LOG, PAIRS), packed(ragged_log(64, RANKS, PAIRS, seed=1), PAIRS)
FEATURES = np.random.default_rng(2).normal(size=(64, RANKS, 3)).astype(np.float32)
COLUMNS = {name: LOG[name] for name in ("query_doc_ids", "clicks")}
BATCHES = [dict(**COLUMNS, mask=shown(LOG), query_doc_features=FEATURES)]
FREE = EmbeddingParameterConfig(prior_precision=0.0, baseline=0.0)
DROPOUT = DeepParameterConfig(features=3, hidden_units=4, layers=1, dropout=0.5)


def documents():
    return DocumentCTRModel(PAIRS, FREE, rngs=nnx.Rngs(0))


def two_towers():
    return PositionBasedModel(RANKS, PAIRS, examination=DROPOUT, rngs=nnx.Rngs(0))


CASES = {
    "overfits, lazy": (documents, Optimizer(optax.sgd(0.5), LazySGD(0.2)), TRAIN, VAL),
    "dense": (documents, Optimizer(optax.adamw(0.1)), TRAIN, VAL),
    "prior, dropout, lazy": (two_towers, Optimizer(optax.adam(0.1), LazyAdam(0.1)), BATCHES, BATCHES),
}


class Interrupting(Logger):
    """Keeps what it hears and stops training in an epoch."""

    def __init__(self, last=None):
        self.last, self.epochs, self.messages = last, [], []

    def epoch(self, record):
        self.epochs.append(record["epoch"])
        if record["epoch"] == self.last:
            raise KeyboardInterrupt

    def message(self, text):
        self.messages.append(text)


def fit(case, file=None, last=None, **changes):
    """A model trained with a checkpoint after every epoch, its logger, and the report if it gets that far."""
    build, optimizer, train, val = CASES[case]
    model, logger = build(), Interrupting(last)
    sizes = dict(batch_size=16, eval_batch_size=32, steps=2, epochs=EPOCHS) | changes
    settings = dict(early_stopping=EarlyStopping(patience=3), checkpoint_minutes=0) | sizes
    trainer = Trainer(optimizer, checkpoint=file, logger=logger, **settings)
    try:
        return model, logger, trainer.train(model, train, val)
    except KeyboardInterrupt:
        return model, logger, None


def numbers(report):
    return [{name: v for name, v in record.items() if name != "seconds"} for record in report.history]


@pytest.mark.parametrize("case", CASES)
def test_every_number_is_that_of_a_training_without_interruption(case, tmp_path):
    model, _, report = fit(case)
    assert case != "overfits, lazy" or report.best_epoch < 3  # the best state outlives the interruption
    file = tmp_path / "checkpoint.npz"
    assert fit(case, file, last=4)[2] is None
    continued, logger, same = fit(case, file)
    assert logger.messages == ["training continues after epoch 3"]
    assert logger.epochs == [*range(1, report.epochs + 1)]
    assert numbers(same) == numbers(report) and same.best_epoch == report.best_epoch
    assert same.per_rank == report.per_rank
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.npz"]
    for a, b in zip(state_of(continued), state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_any_improvement_the_model_keeps_the_state_it_came_with(tmp_path):
    never = dict(early_stopping=EarlyStopping(min_delta=math.inf, patience=EPOCHS))
    fit("dense", tmp_path / "c.npz", last=4, **never)
    model, _, report = fit("dense", tmp_path / "c.npz", **never)
    assert (report.epochs, report.best_epoch) == (EPOCHS, 0)
    for values in state_of(model):
        np.testing.assert_array_equal(values, 0)


def test_what_is_written_is_still_updated_in_place(tmp_path):
    step = jax.jit(lambda table: table + 1, donate_argnums=0)
    table = step(jnp.zeros(1000))
    address = table.unsafe_buffer_pointer()
    save_training(tmp_path / "c.npz", table, {})
    assert step(table).unsafe_buffer_pointer() == address


def test_it_is_written_when_it_is_time(tmp_path):
    fit("dense", tmp_path / "c.npz", epochs=1, checkpoint_minutes=1000)
    assert not [*tmp_path.iterdir()]
    assert Trainer(checkpoint="c.npz", checkpoint_minutes=None).checkpoint is None


def test_a_checkpoint_that_does_not_fit_is_named_and_left(tmp_path):
    file = tmp_path / "c.npz"
    fit("dense", file, epochs=2)
    _, logger, report = fit("dense", file, epochs=2, batch_size=8)
    (message,) = logger.messages
    assert message.startswith(f"training starts anew, since {file} cannot be used: it is of a training with")
    assert message.endswith("it is of a training with batch_size 16, not 8")
    assert logger.epochs == [1, 2] and report.epochs == 2
    with pytest.raises(
        ConfigError, match="continue from cannot be used: it is of a training with batch_size"
    ):
        fit("dense", file, epochs=2, batch_size=4, must_continue=True)


def test_a_checkpoint_of_another_learning_rate_is_named_and_left(tmp_path, monkeypatch):
    """Rates lie in the checkpoint: they would replace those that were asked for."""
    file = tmp_path / "c.npz"
    log = dict(epochs=1, batch_size=64)
    monkeypatch.setitem(CASES, "rates", (documents, lazy_adam(0.5, 0.01), TRAIN, VAL))
    fit("rates", file, **log)
    monkeypatch.setitem(CASES, "rates", (documents, lazy_adam(0.25, 0.01), TRAIN, VAL))
    _, logger, _ = fit("rates", file, **log)
    rates = [[float(np.float32(rate)), float(np.float32(0.01))] for rate in (0.5, 0.25)]
    assert logger.messages[0].endswith(f"a training with learning_rates {rates[0]}, not {rates[1]}")


def test_a_full_disk_does_not_end_training(tmp_path):
    _, logger, report = fit("dense", tmp_path / "missing" / "c.npz", epochs=2)
    assert report.epochs == 2 and all("cannot write" in message for message in logger.messages)


STATE = {"table": jnp.arange(1000.0), "key": jax.random.key(1), "flag": jnp.array(True)}


def changed(content):
    content[len(content) // 2] ^= 255
    return content


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (changed, "BadZipFile"),
        (lambda content: content[:-100], "BadZipFile"),
        (lambda content: b"", "EOFError"),
        (lambda content: b"no archive", "pickle"),
    ],
)
def test_a_damaged_file_is_told_from_a_whole_one(spoil, reason, tmp_path):
    file = tmp_path / "c.npz"
    save_training(file, STATE, {"epoch": 3})
    state, facts = load_training(file, STATE)
    assert facts == {"epoch": 3} and jax.random.key_data(state["key"]).tolist() == [0, 1]
    np.testing.assert_array_equal(state["table"], STATE["table"])
    file.write_bytes(spoil(bytearray(file.read_bytes())))
    with pytest.raises(ValueError, match=reason):
        load_training(file, STATE)


@pytest.mark.parametrize(
    "like, reason",
    [
        ({"table": STATE["table"]}, "another model or optimizer"),
        (STATE | {"table": jnp.zeros(999)}, "holds float32.*1000.*for float32.*999"),
        (STATE | {"table": jnp.zeros(1000, jnp.int32)}, "for int32"),
    ],
)
def test_arrays_of_another_training_are_refused(like, reason, tmp_path):
    save_training(tmp_path / "c.npz", STATE, {})
    with pytest.raises(ValueError, match=reason):
        load_training(tmp_path / "c.npz", like)


def test_a_single_run_continues_from_a_copy_of_the_checkpoint(tmp_path, monkeypatch):
    hydra = types.SimpleNamespace(mode=RunMode.RUN, runtime=types.SimpleNamespace(output_dir=str(tmp_path)))
    earlier = tmp_path / "earlier"
    config = types.SimpleNamespace(continue_from=str(earlier))
    monkeypatch.setattr(job, "_run", lambda cfg, hydra: (tmp_path / CHECKPOINT).read_text())
    with pytest.raises(ConfigError, match=f"continue_from={earlier}: {CHECKPOINT} cannot be read"):
        job.run_job(config, hydra)
    earlier.mkdir()
    (earlier / CHECKPOINT).write_text("state")
    assert job.run_job(config, hydra) == (earlier / CHECKPOINT).read_text() == "state"
