"""A training that is interrupted and continued comes to the numbers of one that is not."""

import errno
import json
import math
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hydra import compose, initialize_config_dir
from places import ROOT
from small_logs import packed, ragged_log, shown, state_of

from clickexp.data import Features
from clickexp.errors import ConfigError
from clickexp.experiment import run as experiment
from clickexp.loggers.base import Logger
from clickexp.models import DocumentCTRModel, MixtureModel, PositionBasedModel, RankCTRModel
from clickexp.parameters import (
    DeepParameterConfig,
    EmbeddingParameterConfig,
    HashEmbedding,
    QREmbedding,
    RobeDEmbedding,
    SumParameterConfig,
)
from clickexp.runs.store import CHECKPOINT
from clickexp.training import (
    EarlyStopping,
    EMTrainer,
    LazyAdam,
    LazySGD,
    Optimizer,
    Trainer,
    checkpoint,
    lazy_adagrad,
    lazy_adam,
    natural_gradient,
)
from clickexp.training.checkpoint import load_training, save_training

RANKS, PAIRS, EPOCHS = 4, 40, 6
LOG = ragged_log(64, RANKS, PAIRS)
TRAIN, VAL = packed(LOG, PAIRS), packed(ragged_log(64, RANKS, PAIRS, seed=1), PAIRS)
FEATURES = np.random.default_rng(2).normal(size=(64, RANKS, 3)).astype(np.float32)
COLUMNS = {name: LOG[name] for name in ("query_doc_ids", "clicks")}
BATCHES = [dict(**COLUMNS, mask=shown(LOG), query_doc_features=FEATURES)]
FREE = EmbeddingParameterConfig(posterior="none", prior_precision=0.0, baseline=0.0)
DROPOUT = DeepParameterConfig(features=3, hidden_units=4, layers=1, dropout=0.5)


def documents():
    return DocumentCTRModel(PAIRS, FREE, rngs=nnx.Rngs(0))


def two_towers():
    return PositionBasedModel(RANKS, PAIRS, examination=DROPOUT, rngs=nnx.Rngs(0))


def position_based():
    return PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(0))


def compressed_posteriors():
    one, other = (
        EmbeddingParameterConfig(posterior=posterior, embedding_fn=store, compression_ratio=2)
        for posterior, store in (("normal_by_rank", HashEmbedding), ("normal", RobeDEmbedding))
    )
    return PositionBasedModel(RANKS, PAIRS, SumParameterConfig({"one": one, "other": other}), rngs=nnx.Rngs(0))


def mixture_of_posteriors():
    wide = EmbeddingParameterConfig(
        posterior="normal_by_rank", embedding_fn=QREmbedding, embedding_features=2, compression_ratio=2
    )
    components = [PositionBasedModel, DocumentCTRModel]
    return MixtureModel(
        components, shared={"attraction": wide}, positions=RANKS, query_doc_pairs=PAIRS, rngs=nnx.Rngs(0)
    )


CASES = {
    "overfits, lazy": (documents, Optimizer(optax.sgd(0.5), LazySGD(0.2)), TRAIN, VAL),
    "dense": (documents, Optimizer(optax.adamw(0.1)), TRAIN, VAL),
    "prior, dropout, lazy": (two_towers, Optimizer(optax.adam(0.1), LazyAdam(0.1)), BATCHES, BATCHES),
    "posteriors, falling rates": (position_based, natural_gradient(0.5, 0.5, 0.1), TRAIN, VAL),
    "sum of compressed posteriors, Adagrad": (compressed_posteriors, lazy_adagrad(0.2), TRAIN, VAL),
    "mixture of posteriors, Adam": (mixture_of_posteriors, lazy_adam(0.1), TRAIN, VAL),
}
SETTINGS = {"posteriors, falling rates": dict(early_stopping=EarlyStopping(patience=0, min_delta=0.01), decays=3)}


class Interrupting(Logger):
    """Keeps what is reported and stops training in an epoch."""

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
    sizes = dict(batch_size=16, eval_batch_size=32, steps_per_execution=2, epochs=EPOCHS) | changes
    settings = (
        dict(early_stopping=EarlyStopping(patience=3), checkpoint_minutes=0) | SETTINGS.get(case, {}) | sizes
    )
    trainer = Trainer(optimizer, checkpoint=file, logger=logger, **settings)
    try:
        return model, logger, trainer.train(model, train, val)
    except KeyboardInterrupt:
        return model, logger, None


def numbers(report):
    times = ("seconds", "compile_seconds")
    return [{name: v for name, v in record.items() if name not in times} for record in report.history]


@pytest.mark.parametrize("case", CASES)
def test_every_number_is_that_of_a_training_without_interruption(case, tmp_path):
    model, whole, report = fit(case)
    assert case != "overfits, lazy" or report.best_epoch < 3  # the best state outlives the interruption
    early, late = ([m for m in whole.messages if (int(m.split()[-1]) > 3) == late] for late in (False, True))
    assert case not in SETTINGS or (early and late)
    file = tmp_path / "checkpoint.npz"
    assert fit(case, file, last=4)[2] is None
    continued, logger, same = fit(case, file)
    assert logger.messages == ["training continues after epoch 3", *late]
    assert logger.epochs == [*range(1, report.epochs + 1)]
    assert numbers(same) == numbers(report) and same.best_epoch == report.best_epoch
    assert same.per_rank == report.per_rank
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.npz"]
    for a, b in zip(state_of(continued), state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("stopping", [None, EarlyStopping(patience=EPOCHS)])
def test_expectation_maximisation_continues_to_the_same_numbers(stopping, tmp_path):
    """With the last estimates and with the best."""

    def estimated(file=None, last=None):
        model, logger = PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(0)), Interrupting(last)
        sizes = dict(batch_size=16, eval_batch_size=32, steps_per_execution=2, checkpoint_minutes=0)
        trainer = EMTrainer(EPOCHS, stopping, checkpoint=file, logger=logger, **sizes)
        try:
            return model, logger, trainer.train(model, TRAIN, VAL)
        except KeyboardInterrupt:
            return model, logger, None

    model, _, report = estimated()
    assert estimated(tmp_path / "c.npz", last=4)[2] is None
    continued, logger, same = estimated(tmp_path / "c.npz")
    assert logger.messages == ["training continues after epoch 3"] and numbers(same) == numbers(report)
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
    because = f"training starts from scratch, since {file} cannot be used: it is of a training with"
    assert message == f"{because} batch_size 16, not 8"
    assert logger.epochs == [1, 2] and report.epochs == 2
    with pytest.raises(
        ConfigError, match="continue from cannot be used: it is of a training with batch_size"
    ):
        fit("dense", file, epochs=2, batch_size=4, continue_from=file)


CLICKED_ELSEWHERE = packed({**LOG, "clicks": shown(LOG) & ~LOG["clicks"].astype(bool)}, PAIRS)
OTHER_TABLE = packed(LOG, PAIRS + 1)
EARLIER = dict(train=TRAIN, val=VAL, settings={"rate": 0.5, "prior": [1, 2], "note": None})


@pytest.mark.parametrize(
    "change, named",
    [
        (dict(train=CLICKED_ELSEWHERE), "training data"),
        (dict(train=OTHER_TABLE), "training data"),
        (dict(train=TRAIN.select(np.arange(64)[::-1])), "training data"),
        (dict(val=TRAIN), "validation data"),
        (dict(settings={"rate": 0.25, "prior": [1, 2]}), "rate 0.5, not 0.25"),
        (dict(settings={"rate": 0.5, "prior": [1, 3]}), "prior [1, 2], not [1, 3]"),
        (dict(settings={"rate": 0.5}), "prior [1, 2], not None"),
        (dict(settings={"rate": 0.5, "prior": [1, 2], "more": 1}), "more None, not 1"),
        (dict(train=TRAIN.slice(0, 64), settings={"rate": 0.5, "prior": (1, 2)}), None),
    ],
)
def test_only_the_same_training_continues(change, named, tmp_path):
    """What else comes to the numbers of a training that began there; the last case is the same one."""
    file = tmp_path / "c.npz"

    def train(logger, file=None, earlier=None, *, train, val, settings):
        sizes = dict(batch_size=16, eval_batch_size=32, steps_per_execution=2, epochs=3, checkpoint_minutes=0)
        trainer = Trainer(
            optax.sgd(0.1),
            logger=logger,
            checkpoint=file,
            continue_from=earlier,
            settings=settings,
            **sizes,
        )
        return numbers(trainer.train(RankCTRModel(RANKS, rngs=nnx.Rngs(0)), train, val))

    with pytest.raises(KeyboardInterrupt):
        train(Interrupting(last=2), file, **EARLIER)
    other = {**EARLIER, **change}
    if named is not None:
        with pytest.raises(ConfigError, match=f"cannot be used: it is of a training with {re.escape(named)}"):
            train(Interrupting(), None, file, **other)
    logger = Interrupting()
    assert train(logger, file, **other) == train(Interrupting(), **other)
    expected = "training continues after epoch 1" if named is None else f"it is of a training with {named}"
    assert len(logger.messages) == 1 and expected in logger.messages[0]


def test_fingerprints_of_packed_folders(packs):
    """The pack, its copy elsewhere and its whole slice are one; other clicks, a part of them, and features are not."""
    same, copy, other = packs
    assert same.fingerprint == copy.fingerprint == same.slice(0, 99).fingerprint
    prints = {
        same.fingerprint,
        other.fingerprint,
        same.slice(0, 63).fingerprint,
        same.slice(1, 64).fingerprint,
    }
    features = [Features(np.full((PAIRS + 1, 2), value, np.float32)) for value in (0, 1)]
    prints |= {same.with_features(each).fingerprint for each in features}
    assert len(prints) == 6


@pytest.fixture
def packs(tmp_path):
    return [
        each.save(tmp_path / name) for each, name in ((TRAIN, "a"), (TRAIN, "b"), (CLICKED_ELSEWHERE, "c"))
    ]


def test_nothing_to_continue_from_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="c.npz: there is no checkpoint to continue from"):
        fit("dense", continue_from=tmp_path / "c.npz")


def test_a_checkpoint_to_continue_from_is_only_read(tmp_path):
    """Also by a training that writes none."""
    earlier, file = tmp_path / "earlier.npz", tmp_path / "c.npz"
    assert fit("dense", earlier, last=3)[2] is None
    before = earlier.read_bytes()
    expected = numbers(fit("dense")[2])
    for writes in (dict(file=file), dict(file=file, checkpoint_minutes=None)):
        file.unlink(missing_ok=True)
        _, logger, report = fit("dense", continue_from=earlier, **writes)
        assert logger.messages == ["training continues after epoch 2"] and numbers(report) == expected
        assert earlier.read_bytes() == before and file.exists() is (len(writes) == 1)


def test_a_checkpoint_of_another_learning_rate_is_named_and_left(tmp_path, monkeypatch):
    """Rates lie in the checkpoint: they would replace those that were asked for."""
    file = tmp_path / "c.npz"
    log = dict(epochs=1, batch_size=64)
    monkeypatch.setitem(CASES, "rates", (documents, lazy_adam(0.5, 0.01), TRAIN, VAL))
    fit("rates", file, **log)
    monkeypatch.setitem(CASES, "rates", (documents, lazy_adam(0.25, 0.01), TRAIN, VAL))
    _, logger, _ = fit("rates", file, **log)
    rates = [[float(np.float32(rate)), float(np.float32(0.01))] for rate in (0.5, 0.25)]
    assert logger.messages[0].endswith(f"a training with learning rates {rates[0]}, not {rates[1]}")


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
def test_a_damaged_file_is_distinguished_from_a_whole_one(spoil, reason, tmp_path):
    file = tmp_path / "c.npz"
    save_training(file, STATE, {"epoch": 3})
    state, facts = load_training(file, STATE)
    assert facts == {"epoch": 3} and jax.random.key_data(state["key"]).tolist() == [0, 1]
    np.testing.assert_array_equal(state["table"], STATE["table"])
    file.write_bytes(spoil(bytearray(file.read_bytes())))
    with pytest.raises(ValueError, match=reason):
        load_training(file, STATE)


class Touch:
    """Pickled, what creates a file when it is read."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_a_pickle_in_a_checkpoint_is_not_read(tmp_path):
    save_training(tmp_path / "c.npz", STATE, {})
    with np.load(tmp_path / "c.npz") as stored:
        objects = np.full(1, Touch(tmp_path / "marker"), object)
        arrays = {name: objects if "table" in name else stored[name] for name in stored}
    with open(tmp_path / "c.npz", "wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_training(tmp_path / "c.npz", STATE)
    assert not (tmp_path / "marker").exists()


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


CONF = ROOT / "conf"
TOY = [
    "debug=fast",
    "dataset.sessions=300",
    "dataset.queries=20",
    "metric=click",
    "model=rctr",
    "logger=jsonl",
]
TOY += ["trainer.checkpoint_minutes=0", "trainer.batch_size=64", "progress=off"]


def run_toy(folder, *overrides):
    """The result and the epochs of a run in a folder that may hold what an earlier one has left."""
    folder.mkdir(exist_ok=True)
    given = [*TOY, *overrides]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        result = experiment.run_experiment(compose("config", given), folder, overrides=given)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [{name: value for name, value in line.items() if not name.endswith("seconds")} for line in lines]
    return {part: result[part] for part in ("test", "val", "config_hash")}, epochs


@pytest.fixture
def kill(tmp_path, monkeypatch, capsys):
    """kill(overrides) -> the folder of a run that was killed after two epochs."""

    def killing(*_, **__):
        raise KeyboardInterrupt

    def call(*overrides):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(experiment, "evaluate_run", killing)
            run_toy(tmp_path / "killed", *overrides)
        assert (tmp_path / "killed" / CHECKPOINT).exists()
        capsys.readouterr()
        return tmp_path / "killed"

    return call


@pytest.fixture
def killed(kill):
    return kill()


def test_a_run_whose_earlier_epochs_lack_its_metric_does_not_continue_from_them(kill, tmp_path, capsys):
    """What it is optimised for is that of its best epoch, which may be one of them."""
    metrics = "metric=[click,calibration]"
    for folder in ("refused", "again"):
        shutil.copytree(kill(metrics), tmp_path / folder)
    lacking = [metrics, "optimized_metric=val/auc"]
    with pytest.raises(ConfigError, match=r"cannot be used: .*not validated by auc"):
        run_toy(tmp_path / "refused", *lacking, f"continue_from={tmp_path / 'killed'}")
    _, epochs = run_toy(tmp_path / "again", *lacking)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "from scratch" in line]
    assert "its epochs were not validated by auc" in line and "val/auc" in epochs[-1]
    run_toy(tmp_path / "killed", metrics, "optimized_metric=val/ppl")
    assert "training continues after epoch 2" in capsys.readouterr().out


SETTINGS = {
    "optimizer.dense_learning_rate=0.3": "optimizer.dense_learning_rate 0.01, not 0.3",
    "dataset.seed=5": "dataset.seed 0, not 5",
    "trainer.early_stopping.patience=7": "trainer.early_stopping.patience 1, not 7",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_of_other_settings_starts_from_scratch_in_the_folder(setting, killed, tmp_path, capsys):
    found = run_toy(killed, setting)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "from scratch" in line]
    assert f"it is of a training with {SETTINGS[setting]}" in line
    assert found == run_toy(tmp_path / "fresh", setting)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_of_other_settings_does_not_continue_from_it(setting, killed):
    """It is refused before anything is read or written."""
    before = {file: file.read_bytes() for file in killed.iterdir()}
    expected = (
        f"continue_from={killed}: the checkpoint cannot be used: it is of a training with {SETTINGS[setting]}"
    )
    with pytest.raises(ConfigError, match=re.escape(expected)):
        run_toy(killed, setting, f"continue_from={killed}")
    assert {file: file.read_bytes() for file in killed.iterdir()} == before


def test_continuing_takes_the_checkpoint_of_a_folder_and_nothing_else(killed, tmp_path, capsys):
    """What runs is configured by the command: the configuration in the folder, whoever wrote it, is not opened."""
    for name in ("config.yaml", ".hydra/config.yaml", "result.json", "job.json", "model.npz"):
        (killed / name).unlink(missing_ok=True)
        (killed / name).mkdir(parents=True)  # whoever opens it fails
    (killed / f"{CHECKPOINT}.part").touch()
    before = (killed / CHECKPOINT).read_bytes()
    found, _ = run_toy(tmp_path / "new", f"continue_from={killed}")
    assert "training continues after epoch 2" in capsys.readouterr().out
    assert found == run_toy(tmp_path / "fresh")[0] and (killed / CHECKPOINT).read_bytes() == before
    assert not (killed / f"{CHECKPOINT}.part").exists() and not (tmp_path / "new" / CHECKPOINT).exists()


def test_a_folder_without_a_checkpoint_cannot_be_continued(tmp_path):
    earlier = tmp_path / "earlier"
    with pytest.raises(ConfigError, match=f"continue_from={earlier}: there is no such folder"):
        run_toy(tmp_path / "new", f"continue_from={earlier}")
    earlier.mkdir()
    with pytest.raises(ConfigError, match=f"continue_from={earlier}: {CHECKPOINT} cannot be read"):
        run_toy(tmp_path / "new", f"continue_from={earlier}")
    run_toy(earlier)
    with pytest.raises(ConfigError, match=f"continue_from={earlier}: this run has finished, result.json has its"):
        run_toy(tmp_path / "new", f"continue_from={earlier}")


def test_more_epochs_and_other_places_are_the_same_training(killed, tmp_path, capsys):
    other = ["trainer.epochs=4", f"cache_dir={tmp_path / 'cache'}", "notes=again", f"continue_from={killed}"]
    found = run_toy(killed, *other)
    assert "training continues after epoch 2" in capsys.readouterr().out
    assert found == run_toy(tmp_path / "fresh", "trainer.epochs=4")


def test_a_run_whose_model_cannot_be_written_has_no_result_and_keeps_its_checkpoint(tmp_path, monkeypatch):
    write = checkpoint._write

    def full(archive, *array):
        if "model" in Path(archive.filename).name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(archive, *array)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(checkpoint, "_write", full)
        run_toy(tmp_path / "run")
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        "config.yaml",
        "metrics.jsonl",
        CHECKPOINT,
    }
    result, epochs = run_toy(tmp_path / "run")
    assert (result, epochs) == run_toy(tmp_path / "fresh") and len(epochs) == 2
    names = {"config.yaml", "metrics.jsonl", "model.npz", "shared.npz", "result.json", "report.html", "figures"}
    assert {file.name for file in (tmp_path / "run").iterdir()} == names
