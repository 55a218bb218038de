"""A training or a run that is interrupted and continued comes to the same numbers."""

import errno
import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import optax
import pytest
from flax import nnx
from hydra import compose, initialize_config_dir
from places import ROOT
from refusals import refuses
from small_logs import packed, ragged_log, shown, state_of

from clickexp.errors import ConfigError
from clickexp.experiment import run as experiment
from clickexp.loggers.base import Logger
from clickexp.models import (
    DocumentCTRModel,
    DynamicBayesianNetwork,
    MixtureModel,
    PositionBasedModel,
)
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


def two_tables():
    return DynamicBayesianNetwork(PAIRS, rngs=nnx.Rngs(0))


def compressed_posteriors():
    one, other = (
        EmbeddingParameterConfig(posterior=posterior, embedding_fn=store, compression_ratio=2)
        for posterior, store in (("normal_by_rank", HashEmbedding), ("normal", RobeDEmbedding))
    )
    return PositionBasedModel(
        RANKS, PAIRS, SumParameterConfig({"one": one, "other": other}), rngs=nnx.Rngs(0)
    )


def mixture_of_posteriors():
    wide = EmbeddingParameterConfig(
        posterior="normal_by_rank",
        embedding_fn=QREmbedding,
        embedding_features=2,
        compression_ratio=2,
    )
    components = [PositionBasedModel, DocumentCTRModel]
    return MixtureModel(
        components,
        shared={"attraction": wide},
        positions=RANKS,
        query_doc_pairs=PAIRS,
        rngs=nnx.Rngs(0),
    )


CASES = {
    "overfits, lazy": (documents, Optimizer(optax.sgd(0.5), LazySGD(0.2)), TRAIN, VAL),
    "dense": (documents, Optimizer(optax.adamw(0.1)), TRAIN, VAL),
    "prior, dropout, lazy": (
        two_towers,
        Optimizer(optax.adam(0.1), LazyAdam(0.1)),
        BATCHES,
        BATCHES,
    ),
    "posteriors, falling rates": (position_based, natural_gradient(0.5, 0.5, 0.1), TRAIN, VAL),
    "sum of compressed posteriors, Adagrad": (compressed_posteriors, lazy_adagrad(0.2), TRAIN, VAL),
    "mixture of posteriors, Adam": (mixture_of_posteriors, lazy_adam(0.1), TRAIN, VAL),
    "two tables in one array": (two_tables, natural_gradient(), TRAIN, VAL),
}
NATURAL = "posteriors, falling rates"
SETTINGS = {
    NATURAL: dict(early_stopping=EarlyStopping(patience=0, min_delta=0.01), decays=3, epochs=9)
}
LAST = {NATURAL: 7}
"""The epoch of the interruption, elsewhere 4; here rates fall before and after it."""


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
    """A model trained with checkpoints after epochs, its logger, and the report if it ends."""
    build, optimizer, train, val = CASES[case]
    model, logger = build(), Interrupting(last)
    settings = dict(batch_size=16, eval_batch_size=32, steps_per_execution=2, epochs=EPOCHS)
    settings |= dict(early_stopping=EarlyStopping(patience=3), checkpoint_minutes=0)
    settings |= SETTINGS.get(case, {}) | changes
    trainer = Trainer(optimizer, checkpoint=file, logger=logger, **settings)
    try:
        return model, logger, trainer.train(model, train, val)
    except KeyboardInterrupt:
        return model, logger, None


def numbers(report):
    times = ("seconds", "compile_seconds")
    return [
        {name: v for name, v in record.items() if name not in times} for record in report.history
    ]


CASES_BY_TIER = [
    pytest.param(case, marks=() if case == NATURAL else pytest.mark.nightly) for case in CASES
]


@pytest.mark.parametrize("case", CASES_BY_TIER)
def test_every_number_is_that_of_a_training_without_interruption(case, tmp_path):
    model, whole, report = fit(case)
    last = LAST.get(case, 4)
    # the best state outlives the interruption
    assert case != "overfits, lazy" or report.best_epoch < 3
    late = [message for message in whole.messages if int(message.split()[-1]) >= last]
    assert case not in LAST or 0 < len(late) < len(whole.messages)
    file = tmp_path / "checkpoint.npz"
    assert fit(case, file, last)[2] is None
    continued, logger, same = fit(case, file)
    assert logger.messages == [f"training continues after epoch {last - 1}", *late]
    assert logger.epochs == [*range(1, report.epochs + 1)]
    assert numbers(same) == numbers(report) and same.best_epoch == report.best_epoch
    assert same.per_rank == report.per_rank
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    for a, b in zip(state_of(continued), state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "stopping",
    [pytest.param(None, marks=pytest.mark.nightly), EarlyStopping(patience=EPOCHS)],
)
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
    assert logger.messages[0] == "training continues after epoch 3"
    assert numbers(same) == numbers(report)
    for a, b in zip(state_of(continued), state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.nightly
def test_without_any_improvement_the_model_keeps_the_state_it_came_with(tmp_path):
    never = dict(early_stopping=EarlyStopping(min_delta=math.inf, patience=EPOCHS))
    fit("dense", tmp_path / "c.npz", last=4, **never)
    model, _, report = fit("dense", tmp_path / "c.npz", **never)
    assert (report.epochs, report.best_epoch) == (EPOCHS, 0)
    for values in state_of(model):
        np.testing.assert_array_equal(values, 0)


def test_what_has_to_be_the_same_where_a_training_continues():
    """Rates lie in the checkpoint, too: they would replace those that were asked for."""
    trainer = Trainer(lazy_adam(0.5, 0.25), batch_size=64, seed=3)
    settings = {"seed": 3, "batch_size": 64, "learning rates": [0.5, 0.25]}
    assert trainer.learner(documents()).settings == settings
    in_order = Trainer(lazy_adam(0.5, 0.25), shuffle=False).learner(documents())
    assert in_order.settings == settings | {"seed": None, "batch_size": None}
    counting = EMTrainer(batch_size=7, prior_successes=1.0, prior_failures=2.0).learner(
        position_based()
    )
    assert counting.settings == {"batch_size": 7, "prior": [1.0, 2.0]}


@pytest.mark.nightly
def test_a_checkpoint_of_another_learning_rate_is_named_and_left(tmp_path, monkeypatch):
    file = tmp_path / "c.npz"
    log = dict(epochs=1, batch_size=64)
    monkeypatch.setitem(CASES, "rates", (documents, lazy_adam(0.5, 0.01), TRAIN, VAL))
    fit("rates", file, **log)
    monkeypatch.setitem(CASES, "rates", (documents, lazy_adam(0.25, 0.01), TRAIN, VAL))
    _, logger, _ = fit("rates", file, **log)
    one, other = ([float(np.float32(rate)), float(np.float32(0.01))] for rate in (0.5, 0.25))
    assert logger.messages[0].endswith(f"a training with learning rates {one}, not {other}")


# Runs

TOY = [
    "debug=fast",
    "dataset.sessions=300",
    "dataset.queries=20",
    "metric=click",
    "model=rctr",
    "logger=jsonl",
    "trainer.checkpoint_minutes=0",
    "trainer.batch_size=64",
    "progress=off",
    "report=false",
    "shared_intervals=false",
]


@pytest.fixture(scope="module", autouse=True)
def configuration():
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield


def run_toy(folder, *overrides):
    """The result and the epochs of a run in a folder that may hold what an earlier one has left."""
    folder.mkdir(exist_ok=True)
    given = [*TOY, *overrides]
    result = experiment.run_experiment(compose("config", given), folder, overrides=given)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [
        {name: value for name, value in line.items() if not name.endswith("seconds")}
        for line in lines
    ]
    return {part: getattr(result, part) for part in ("test", "val", "config_hash")}, epochs


def kill_toy(folder, *overrides):
    """A run that is killed after two epochs."""

    def killing(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(experiment, "evaluate_run", killing)
        run_toy(folder, *overrides)
    assert (folder / CHECKPOINT).exists()


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory):
    """A folder with a run that was killed, one that was not, and what the latter came to."""
    folder = tmp_path_factory.mktemp("runs")
    kill_toy(folder / "killed")
    return folder, run_toy(folder / "fresh")


@pytest.fixture
def killed(kept_runs, tmp_path):
    return shutil.copytree(kept_runs[0] / "killed", tmp_path / "killed")


@pytest.fixture
def fresh(kept_runs):
    return kept_runs[1]


def from_scratch(capsys):
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "from scratch" in line]
    return line


@pytest.mark.nightly
def test_a_run_whose_earlier_epochs_lack_its_metric_does_not_continue_from_them(tmp_path, capsys):
    """What it is optimised for is that of its best epoch, which may be one of them."""
    metrics = "metric=[click,calibration]"
    kill_toy(tmp_path / "killed", metrics)
    for folder in ("refused", "again"):
        shutil.copytree(tmp_path / "killed", tmp_path / folder)
    capsys.readouterr()
    lacking = [metrics, "optimized_metric=val/auc"]
    with refuses(ConfigError, "cannot be used", "not validated by auc"):
        run_toy(tmp_path / "refused", *lacking, f"continue_from={tmp_path / 'killed'}")
    _, epochs = run_toy(tmp_path / "again", *lacking)
    assert "its epochs were not validated by auc" in from_scratch(capsys)
    assert "val/auc" in epochs[-1]
    run_toy(tmp_path / "killed", metrics, "optimized_metric=val/ppl")
    assert "training continues after epoch 2" in capsys.readouterr().out


CHANGES = {
    "optimizer.dense_learning_rate=0.3": "optimizer.dense_learning_rate 0.01, not 0.3",
    "dataset.seed=5": "dataset.seed 0, not 5",
    "trainer.early_stopping.patience=7": "trainer.early_stopping.patience 1, not 7",
}


@pytest.mark.nightly
@pytest.mark.parametrize("setting", CHANGES)
def test_a_run_of_other_settings_starts_from_scratch_in_the_folder(
    setting, killed, tmp_path, capsys
):
    found = run_toy(killed, setting)
    assert f"it is of a training with {CHANGES[setting]}" in from_scratch(capsys)
    assert found == run_toy(tmp_path / "fresh", setting)


def test_a_run_starts_from_scratch_in_the_folder_of_one_of_other_settings(tmp_path, fresh, capsys):
    kill_toy(tmp_path / "other", "dataset.seed=5")
    capsys.readouterr()
    found = run_toy(tmp_path / "other")
    assert "it is of a training with dataset.seed 5, not 0" in from_scratch(capsys)
    assert found == fresh


def test_a_run_of_other_settings_does_not_continue_from_it(killed):
    """It is refused before anything is read or written."""
    before = {file: file.read_bytes() for file in killed.iterdir()}
    for setting, named in CHANGES.items():
        place = f"continue_from={killed}"
        with refuses(ConfigError, place, f"cannot be used: it is of a training with {named}"):
            run_toy(killed, setting, place)
        assert {file: file.read_bytes() for file in killed.iterdir()} == before, setting
    (killed / ".hydra").mkdir()
    (killed / ".hydra/overrides.yaml").write_text("- model=pbm\n")
    with refuses(ConfigError, "This continues it: clickexp model=pbm ", place):
        run_toy(killed, "dataset.seed=5", place)


def test_continuing_takes_the_checkpoint_of_a_folder_and_nothing_else(
    killed, tmp_path, fresh, capsys
):
    """The configuration in the folder, whoever wrote it, is not opened."""
    for name in ("config.yaml", ".hydra/config.yaml", "result.json", "job.json", "model.npz"):
        (killed / name).unlink(missing_ok=True)
        (killed / name).mkdir(parents=True)  # whoever opens it fails
    before = (killed / CHECKPOINT).read_bytes()
    found, _ = run_toy(tmp_path / "new", f"continue_from={killed}")
    assert "training continues after epoch 2" in capsys.readouterr().out
    assert found == fresh[0] and (killed / CHECKPOINT).read_bytes() == before
    assert not (tmp_path / "new" / CHECKPOINT).exists()


def test_a_folder_without_a_checkpoint_cannot_be_continued(kept_runs, tmp_path):
    earlier, finished = tmp_path / "earlier", kept_runs[0] / "fresh"
    with refuses(ConfigError, f"continue_from={earlier}", "no such folder"):
        run_toy(tmp_path / "new", f"continue_from={earlier}")
    earlier.mkdir()
    with refuses(ConfigError, f"continue_from={earlier}", CHECKPOINT, "cannot be read"):
        run_toy(tmp_path / "new", f"continue_from={earlier}")
    os.mkfifo(earlier / CHECKPOINT)
    with refuses(ConfigError, f"continue_from={earlier}", CHECKPOINT, "no file"):
        run_toy(tmp_path / "new", f"continue_from={earlier}")
    with refuses(ConfigError, f"continue_from={finished}", "has finished", "result.json"):
        run_toy(tmp_path / "new", f"continue_from={finished}")


@pytest.mark.nightly
def test_more_epochs_and_other_places_are_the_same_training(killed, tmp_path, capsys):
    places = [f"cache_dir={tmp_path / 'cache'}", "notes=again", f"continue_from={killed}"]
    found = run_toy(killed, "trainer.epochs=4", *places)
    assert "training continues after epoch 2" in capsys.readouterr().out
    assert found == run_toy(tmp_path / "fresh", "trainer.epochs=4")


@pytest.mark.parametrize("reports", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_run_whose_model_cannot_be_written_has_no_result_and_keeps_its_checkpoint(
    reports, tmp_path, monkeypatch, fresh
):
    settings = [f"report={reports}", f"shared_intervals={reports}"]
    write = checkpoint._write

    def full(archive, *array):
        if "model" in Path(archive.filename).name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(archive, *array)

    def files():
        return {file.name for file in (tmp_path / "run").iterdir()}

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(checkpoint, "_write", full)
        run_toy(tmp_path / "run", *settings)
    written_beside = {"shared.npz"} if reports else set()  # intervals do not wait for the model
    assert files() - written_beside == {"config.yaml", "metrics.jsonl", CHECKPOINT}
    assert run_toy(tmp_path / "run", *settings) == fresh and len(fresh[1]) == 2
    names = {"config.yaml", "metrics.jsonl", "model.npz", "seen.npz", "result.json"}
    assert files() == names | ({"shared.npz", "report.html"} if reports else set())
