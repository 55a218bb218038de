"""The epochs of a training, on a learner and a validation whose losses are written down."""

import dataclasses
import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax.training import early_stopping as flax_stopping
from refusals import refuses
from small_logs import packed, ragged_log, shown
from stored_logs import stored

from clickexp.data import Features
from clickexp.errors import ConfigError, DivergedError
from clickexp.evaluation.evaluator import CompiledEvaluation
from clickexp.loggers.base import Logger
from clickexp.training import EarlyStopping, loop
from clickexp.training.loop import Checkpoint, Learner, Loop
from clickexp.training.spread import training_on
from clickexp.training.stopping import KeepLast, early_stopping_of

RANKS, PAIRS, SESSIONS = 3, 7, 10
LOG = ragged_log(SESSIONS, RANKS, PAIRS)
TRAIN, VAL = packed(LOG, PAIRS), packed(ragged_log(SESSIONS, RANKS, PAIRS, seed=1), PAIRS)
FALLS_AND_RISES = (3.0, 2.0, 1.0, 1.5, 2.5, 3.0, 3.5, 4.0)


class Counting(Learner):
    """A learner whose state is how many passes it has done, and how often its rates fell."""

    def __init__(self, passes, train, *, decays=0, warmup_passes=0, settings=(), programs=()):
        super().__init__({"passes": jnp.asarray(0), "decays": jnp.asarray(0)}, training_on(1))
        self.passes, self.warmup_passes = passes, warmup_passes
        self.settings, self.programs = dict(settings), programs
        self.train, self.most_decays, self.starts = train, decays, 0

    def start(self, data):
        self.starts += 1

    def run_pass(self, data, epoch):
        done = int(self.state["passes"]) + 1
        self.state = {**self.state, "passes": jnp.asarray(done)}
        return self.train(done), SESSIONS

    def decay(self):
        if int(self.state["decays"]) == self.most_decays:
            return False
        self.state = {**self.state, "decays": jnp.asarray(int(self.state["decays"]) + 1)}
        return True

    def model_state(self):
        return (self.state,)


class Validation(CompiledEvaluation):
    """A validation whose loss follows from the number of passes."""

    names, programs = ("loss", "ll"), ()

    def __init__(self, losses):
        self.losses = losses

    def __call__(self, state, phase, epoch):
        loss = self.losses[int(state[0]["passes"]) - 1]
        values = {"ll": -loss, "loss": loss}
        return SimpleNamespace(
            values=lambda: values, per_rank=lambda: {"ll": [-loss], "sessions": [SESSIONS]}
        )


class OfNothing(Validation):
    def __call__(self, state, phase, epoch):
        return SimpleNamespace(
            values=lambda: {"loss": math.nan}, per_rank=lambda: {"sessions": [0, 0]}
        )


class Heard(Logger):
    """Keeps what is reported, and interrupts the training in an epoch."""

    def __init__(self, last=None):
        self.last, self.epochs, self.messages = last, [], []

    def epoch(self, record):
        self.epochs.append(record)
        if record["epoch"] == self.last:
            raise KeyboardInterrupt

    def message(self, text):
        self.messages.append(text)


NEVER = Checkpoint()


def new_loop(losses, stopping=None, checkpoint=NEVER, *, last=None, train=float, **options):
    """A loop of as many passes as there are losses; train(pass) is the loss in training."""
    learner = Counting(len(losses), train, **options)
    return Loop(learner, Validation(losses), stopping or KeepLast(), Heard(last), checkpoint)


def ran(*args, data=(TRAIN, VAL), **options):
    """The loop after its run, be it interrupted."""
    made = new_loop(*args, **options)
    try:
        made.run(*data)
    except KeyboardInterrupt:
        assert made.logger.last is not None
    return made


def numbers(made):
    """What a training comes to, times aside: its epochs, its best state and what is known of it."""
    times = ("seconds", "compile_seconds")
    history = [
        {name: v for name, v in record.items() if name not in times} for record in made.history
    ]
    best = None if made.best is None else {name: int(value) for name, value in made.best.items()}
    return history, made.best_epoch, best, made.per_rank


@pytest.mark.parametrize("patience, epochs", [(2, 6), (0, 4), (8, 8)])
def test_the_best_state_is_kept_until_stopping_or_the_last_pass(patience, epochs):
    made = ran(FALLS_AND_RISES, EarlyStopping(patience=patience))
    assert len(made.history) == epochs
    assert (made.best_epoch, int(made.best["passes"])) == (3, 3)
    assert made.per_rank == {"ll": [-1.0], "sessions": [SESSIONS]}
    improved = [record["improved"] for record in made.history]
    assert improved == [True, True, True] + [False] * (epochs - 3)


def test_a_last_epoch_that_fits_chance_is_warned_about():
    """Without early stopping the last is kept, and only what improves counts as better than those before."""
    made = ran([0.5, 0.4, 0.45])
    assert [record["improved"] for record in made.history] == [True, True, False]
    (warning,) = made.logger.messages
    assert "0.4000 after epoch 2 to 0.4500" in warning
    assert not ran([0.5, 0.4, 0.401]).logger.messages
    assert not ran([0.5, 0.4, 0.45], EarlyStopping()).logger.messages


def test_without_a_rule_the_last_state_is_kept():
    made = ran(FALLS_AND_RISES)
    assert (made.best_epoch, int(made.best["passes"]), len(made.history)) == (8, 8, 8)
    assert made.per_rank["ll"] == [-4.0]


def test_the_rule_that_is_given_stays_as_it_is():
    rule = EarlyStopping(patience=0)
    ran(FALLS_AND_RISES, rule)
    assert (rule.best, rule.failures) == (math.inf, 0)


@pytest.mark.parametrize("patience", [0, 2])
def test_training_stops_in_the_epoch_in_which_flax_would(patience):
    theirs = flax_stopping.EarlyStopping(min_delta=1e-5, patience=patience)
    losses = np.random.default_rng(0).normal(size=40).cumsum().tolist()
    made = ran(losses, early_stopping_of(theirs).directed({"loss": False}))
    for record in made.history:
        assert not theirs.should_stop
        theirs = theirs.update(record["val/loss"])
        assert record["improved"] == theirs.has_improved
    assert theirs.should_stop and len(made.history) < 40


def test_the_metric_of_choice_decides():
    rules = [EarlyStopping("ll", mode=mode).directed({"ll": True}) for mode in ("auto", "min")]
    watching = [ran(FALLS_AND_RISES, rule) for rule in rules]
    assert [(len(made.history), made.best_epoch) for made in watching] == [(5, 3), (3, 1)]


def test_without_improvement_nothing_is_kept():
    made = ran([math.nan] * 9, EarlyStopping(patience=2))
    assert len(made.history) == 3 and made.best is None
    assert (made.best_epoch, made.per_rank) == (0, {})


def test_rates_fall_where_training_would_stop_until_they_may_no_longer():
    """The last of the epochs that are as good as the best at lower rates is kept."""
    losses = [3.0, 2.0, 2.5, 1.0, 1.0, 1.5, 1.2, 1.3, 1.1, 0.5]
    made = ran(losses, EarlyStopping(patience=0), decays=2)
    lowered = "learning rates are lowered after epoch"
    assert made.logger.messages == [f"{lowered} 3", f"{lowered} 5"]
    assert len(made.history) == 6
    assert numbers(made)[1:3] == (5, {"passes": 5, "decays": 1})
    assert [record["improved"] for record in made.history] == [True, True, False, True, True, False]


def test_epochs_before_everything_is_learned_are_forgotten():
    """Three of them: the best is the fifth, and none before the fourth makes training stop."""
    losses = [1.0, 1.0, 2.0, 5.0, 4.0, 4.5, 3.0]
    made = ran(losses, EarlyStopping(patience=0), warmup_passes=3)
    assert [record["improved"] for record in made.history] == [True] * 5 + [False]
    assert (made.best_epoch, int(made.best["passes"])) == (5, 5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("good_epochs", [0, 2])
def test_divergence_leaves_the_best_state(good_epochs, value, tmp_path):
    made = new_loop(
        [2.0, 1.0, 0.5, 0.2],
        checkpoint=Checkpoint(tmp_path / "c.npz"),
        train=lambda done: 1.0 if done <= good_epochs else value,
    )
    with refuses(DivergedError, f"epoch {good_epochs + 1}", str(value), "learning rate"):
        made.run(TRAIN, VAL)
    assert len(made.logger.epochs) == good_epochs + 1
    assert made.best_epoch == good_epochs
    assert made.best is None if good_epochs == 0 else int(made.best["passes"]) == good_epochs
    assert (tmp_path / "c.npz").exists() is (good_epochs > 0)


def test_an_interrupted_training_has_its_best_state():
    made = ran(FALLS_AND_RISES, EarlyStopping(), last=2)
    assert (made.best_epoch, int(made.best["passes"])) == (1, 1)


@pytest.mark.parametrize("part", ["training", "validation"])
def test_without_sessions_nothing_is_trained(part):
    """Packed sessions are counted before; batches show that there are none when they are passed."""
    parts = {"training": TRAIN, "validation": VAL} | {part: TRAIN.slice(0, 0)}
    made = new_loop([1.0])
    with refuses(ConfigError, f"no {part} sessions"):
        made.run(*parts.values())
    assert made.learner.starts == 0
    empty = new_loop([1.0])
    if part == "training":
        empty.learner.run_pass = lambda data, epoch: (math.nan, 0)
    else:
        empty.validation = OfNothing([])
    with refuses(ConfigError, f"no {part} sessions", "come again"):
        empty.run([], [])
    assert not empty.history


def test_records_have_what_is_known():
    made = ran([2.0], train=lambda done: 0.25)
    (record,) = made.logger.epochs
    assert record == made.history[0]
    assert (record["train/loss"], record["val/loss"], record["val/ll"]) == (0.25, 2.0, -2.0)
    times = {"seconds", "compile_seconds"}
    rest = {"epoch": 1, "train/loss": 0.25, "val/ll": -2.0, "val/loss": 2.0, "sessions": SESSIONS}
    assert {name: value for name, value in record.items() if name not in times} == rest | {
        "improved": True
    }
    (unknown,) = ran([2.0], train=lambda done: None).history
    assert set(unknown) == set(record) - {"train/loss"}


@dataclasses.dataclass
class Clock:
    """Ten seconds a pass."""

    now: float = 100.0

    def perf_counter(self):
        return self.now

    def train(self, done):
        self.now += 10.0
        return 1.0


@dataclasses.dataclass
class StandIn:
    """A compiled function that took a second to compile."""

    function: object
    seconds: float = 1.0

    def __call__(self, *args):
        return self.function(*args)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(loop, "time", made)
    return made


def test_a_report_adds_up_the_epochs(clock):
    program, other = SimpleNamespace(seconds=0.0), SimpleNamespace(seconds=2.0)

    def train(done):
        program.seconds = 4.0
        return clock.train(done)

    made = new_loop(FALLS_AND_RISES, EarlyStopping(), train=train, programs=[program])
    made.validation.programs = [other]
    made.snapshot = StandIn(made.snapshot.jitted)
    made.run(TRAIN, VAL)
    report = made.report(TRAIN)
    assert (report.epochs, report.best_epoch, report.sessions) == (5, 3, 5 * SESSIONS)
    assert report.history == made.history and report.per_rank == made.per_rank
    assert [record["seconds"] for record in report.history] == [10.0] * 5
    assert [record["compile_seconds"] for record in report.history] == [4.0] + [0.0] * 4
    assert report.summary() == {
        "epochs": 5,
        "best_epoch": 3,
        "sessions": 50,
        "seconds": 50.0,
        "compile_seconds": 7.0,
        "training_seconds": 43.0,
        "sessions_per_second": 50 / 43,
    }


# Checkpoints

PLATEAU = (3.0, 2.0, 2.5, 1.0, 1.0, 1.5, 1.2, 1.3, 1.1, 0.5)
COURSES = {
    "the best epoch comes later": ((4.0, 3.0, 3.5, 2.0, 1.0, 1.5, 2.0), EarlyStopping(), {}),
    "the best epoch comes earlier": ((2.0, 1.0, 1.5, 2.0, 2.5, 3.0), EarlyStopping(patience=3), {}),
    "no epoch is an improvement": ((math.nan,) * 6, EarlyStopping(patience=4), {}),
    "rates fall": (PLATEAU, EarlyStopping(patience=0), {"decays": 2}),
    "without a rule": ((1.0, 2.0, 3.0, 1.0), None, {}),
}


@pytest.mark.parametrize("name", COURSES)
def test_every_number_is_that_of_a_training_without_interruption(name, tmp_path):
    """Wherever it is interrupted, before the checkpoint of that epoch is written."""
    losses, stopping, options = COURSES[name]
    whole = ran(losses, stopping, **options)
    epochs = len(whole.history)
    for last in range(2, epochs + 1):
        file = tmp_path / f"{last}.npz"
        ran(losses, stopping, Checkpoint(file), last=last, **options)
        assert [each.name for each in tmp_path.iterdir()] == [file.name]
        continued = ran(losses, stopping, Checkpoint(file), **options)
        message, *lowered = continued.logger.messages
        assert message == f"training continues after epoch {last - 1}", last
        assert lowered == [each for each in whole.logger.messages if int(each.split()[-1]) >= last]
        assert repr(numbers(continued)) == repr(numbers(whole)), last  # of nan, too
        assert [record["epoch"] for record in continued.logger.epochs] == [*range(1, epochs + 1)]
        assert continued.learner.starts == 0
        assert vars(continued.stopping or whole) == vars(whole.stopping or whole)
        file.unlink()


def test_a_training_that_continues_has_spent_the_time_before(clock, tmp_path):
    program, file = SimpleNamespace(seconds=2.0), tmp_path / "c.npz"
    options = {"train": clock.train, "programs": [program]}
    before = ran([3.0, 2.0, 1.0, 0.5], None, Checkpoint(file), last=3, **options)
    compiled = before.history[0]["compile_seconds"]
    clock.now += 1000.0
    report = ran([3.0, 2.0, 1.0, 0.5], None, Checkpoint(file), **options).report(TRAIN)
    assert report.seconds == 40.0
    assert [record["seconds"] for record in report.history] == [10.0] * 4
    assert (
        2 * 2.0 <= report.compile_seconds < 6.0 and report.history[0]["compile_seconds"] == compiled
    )


def test_checkpoints_are_written_when_it_is_time(clock, tmp_path, monkeypatch):
    """After the first epoch that ends so many seconds after the one before, or the start."""
    written = []
    monkeypatch.setattr(loop, "save_training", lambda file, *_: written.append((file, clock.now)))
    for seconds in (0.0, 20.0, 25.0, 1000.0):
        start = clock.now
        ran([1.0] * 8, None, Checkpoint(tmp_path, seconds, settings={}), train=clock.train)
        step = {0.0: 1, 20.0: 2, 25.0: 3}.get(seconds, 9)
        assert written == [(tmp_path, start + 10.0 * n) for n in range(step, 9, step)], seconds
        written.clear()
    ran([1.0] * 3, None, Checkpoint(), train=clock.train)
    assert not written


def test_a_full_disk_does_not_end_training(tmp_path):
    made = ran([2.0, 1.0], None, Checkpoint(tmp_path / "missing" / "c.npz"))
    assert len(made.history) == 2 and len(made.logger.messages) == 2
    assert all("cannot write" in text and "missing" in text for text in made.logger.messages)


SETTINGS = {"rate": 0.5, "prior": [1, 2], "note": None}
CLICKED_ELSEWHERE = packed({**LOG, "clicks": shown(LOG) & ~LOG["clicks"].astype(bool)}, PAIRS)
REVERSED = TRAIN.select(np.arange(SESSIONS)[::-1])
CHANGES = [
    ({"data": (CLICKED_ELSEWHERE, VAL)}, "training data"),
    ({"data": (packed(LOG, PAIRS + 1), VAL)}, "training data"),
    ({"data": (REVERSED, VAL)}, "training data"),
    ({"data": (TRAIN, TRAIN)}, "validation data"),
    ({"settings": {"rate": 0.25, "prior": [1, 2]}}, "rate 0.5, not 0.25"),
    ({"settings": {"rate": 0.5, "prior": [1, 3]}}, "prior [1, 2], not [1, 3]"),
    ({"settings": {"rate": 0.5}}, "prior [1, 2], not None"),
    ({"settings": {"rate": 0.5, "prior": [1, 2], "more": 1}}, "more None, not 1"),
    ({"of": {"batch_size": 8}}, "batch_size 16, not 8"),
    ({"settings": {"rate": 0.5, "prior": (1, 2)}}, None),
    ({"data": (TRAIN.slice(0, SESSIONS), VAL)}, None),
]


def test_only_the_same_training_continues(tmp_path):
    """What is another training starts from scratch in the file, and must not continue from it."""
    file, losses = tmp_path / "c.npz", [3.0, 2.0, 1.0, 0.5]

    def train(place, *, data=(TRAIN, VAL), settings=SETTINGS, of=(("batch_size", 16),), last=None):
        checkpoint = Checkpoint(*place, settings=settings)
        return ran(losses, None, checkpoint, last=last, settings=of, data=data)

    for change, named in CHANGES:
        file.unlink(missing_ok=True)
        train([file], last=3)
        before = file.read_bytes()
        if named is not None:
            with refuses(ConfigError, "of a training with", named):
                train([None, 0.0, file], **change)
            assert file.read_bytes() == before
        made = train([file], **change)
        (message,) = made.logger.messages
        if named is None:
            assert message == "training continues after epoch 2", change
        else:
            assert "from scratch" in message and f"of a training with {named}" in message, change
            assert str(file) in message
        assert made.learner.starts == (named is not None), change
        assert [record["epoch"] for record in made.history] == [1, 2, 3, 4], change


def test_what_cannot_be_read_is_named_and_left(tmp_path):
    """Half of a file, another learner's, and one whose epochs lack a metric that is watched now."""
    file, losses = tmp_path / "c.npz", [3.0, 2.0, 1.0]

    def interrupted():
        file.unlink(missing_ok=True)
        ran(losses, None, Checkpoint(file), last=3)

    def half(made):
        file.write_bytes(file.read_bytes()[:-100])

    def other_learner(made):
        state = {**made.learner.state, "more": jnp.asarray(0)}
        Learner.__init__(made.learner, state, made.learner.devices)

    def other_metric(made):
        made.validation.names = ("loss", "ll", "auc")

    cases = [
        (half, "BadZipFile"),
        (other_learner, "another model or optimizer"),
        (other_metric, "auc"),
    ]
    for change, reason in cases:
        interrupted()
        made = new_loop(losses, None, Checkpoint(None, 0.0, file))
        change(made)
        with refuses(ConfigError, "cannot be used", reason):
            made.run(TRAIN, VAL)
        interrupted()
        made = new_loop(losses, None, Checkpoint(file))
        change(made)
        made.run(TRAIN, VAL)
        (message,) = made.logger.messages
        assert "from scratch" in message and str(file) in message and reason in message
        assert len(made.history) == 3 and made.learner.starts == 1


def test_nothing_to_continue_from_is_an_error(tmp_path):
    earlier = tmp_path / "c.npz"
    with refuses(ConfigError, str(earlier), "no checkpoint to continue from"):
        ran([1.0], None, Checkpoint(tmp_path / "other.npz", 0.0, earlier))


def test_a_checkpoint_to_continue_from_is_only_read(tmp_path):
    """Also by a training that writes none, and whatever its own file holds."""
    earlier, file, losses = tmp_path / "earlier.npz", tmp_path / "c.npz", [3.0, 2.0, 1.0, 0.5]
    ran(losses, None, Checkpoint(earlier), last=3)
    before, expected = earlier.read_bytes(), numbers(ran(losses))
    for own in (file, None):
        file.unlink(missing_ok=True)
        made = ran(losses, None, Checkpoint(own, 0.0, earlier))
        assert made.logger.messages == ["training continues after epoch 2"]
        assert numbers(made) == expected
        assert earlier.read_bytes() == before and file.exists() is (own is not None)


def test_fingerprints_of_stored_logs(tmp_path):
    """The log, its copy and its whole slice are one; other clicks, a part and features are not."""
    logs = ((TRAIN, "a"), (TRAIN, "b"), (CLICKED_ELSEWHERE, "c"))
    same, copy, other = (stored(each, tmp_path / name) for each, name in logs)
    assert same.fingerprint == copy.fingerprint == same.slice(0, 99).fingerprint
    parts = [other, same.slice(0, SESSIONS - 1), same.slice(1, SESSIONS)]
    features = [Features(np.full((PAIRS + 1, 2), value, np.float32)) for value in (0, 1)]
    parts += [same.with_features(each) for each in features]
    assert len({same.fingerprint, *(part.fingerprint for part in parts)}) == 6
