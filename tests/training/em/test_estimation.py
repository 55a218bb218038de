"""Counting and expectation-maximisation against hidden events enumerated in float64 loops."""

import copy
import dataclasses
import functools
import math

import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from small_logs import packed, ragged_log, shown, sigmoid
from zoo import CASES, every_click_vector, point, random_model, repeated, runner

from clickexp import models
from clickexp.data import Sessions
from clickexp.errors import ConfigError
from clickexp.loggers.base import Logger
from clickexp.metrics import LogLikelihood
from clickexp.parameters import (
    DeepParameterConfig,
    EmbeddingParameterConfig,
    GlobalParameter,
    HashEmbedding,
)
from clickexp.training import CountingTrainer, EarlyStopping, EMTrainer, Trainer
from clickexp.training.em import em, estimation
from clickexp.training.em.bernoulli import Counts
from clickexp.training.optimizers import lazy_sgd

RANKS, PAIRS = 4, 6
COLUMNS = ragged_log(24, RANKS, PAIRS)
LOG = packed(COLUMNS, PAIRS)
VAL = packed(ragged_log(8, RANKS, PAIRS, seed=1), PAIRS)


def sessions_of(columns):
    """Ids and clicks of each session, without padding."""
    return [
        (ids[:length].tolist(), clicks[:length].tolist())
        for ids, clicks, length in zip(
            *(columns[name] for name in ("query_doc_ids", "clicks", "lengths"))
        )
    ]


SESSIONS = sessions_of(COLUMNS)
LL = {"ll": LogLikelihood()}
SIZES = dict(batch_size=8, eval_batch_size=8, steps_per_execution=2, metrics=LL)
FITTED = dict(early_stopping=None, eval_batch_size=8, steps_per_execution=2, metrics=LL)
PRIOR = (1.0, 2.0)
PRIORS = dict(prior_successes=PRIOR[0], prior_failures=PRIOR[1])
PAIR, POSITION = dict(query_doc_pairs=PAIRS), dict(positions=RANKS)
BUILD = {
    "GCTR": functools.partial(models.GlobalCTRModel),
    "RCTR": functools.partial(models.RankCTRModel, **POSITION),
    "DCTR": functools.partial(models.DocumentCTRModel, **PAIR),
    "DRCTR": functools.partial(models.DocumentRankCTRModel, **PAIR, **POSITION),
    "CM": functools.partial(models.CascadeModel, **PAIR),
    "DCM": functools.partial(models.DependentClickModel, **PAIR, **POSITION),
    "SDBN": functools.partial(models.DynamicBayesianNetwork, **PAIR, fix_continuation=True),
    "PBM": functools.partial(models.PositionBasedModel, **PAIR, **POSITION),
    "UBM": functools.partial(models.UserBrowsingModel, **PAIR, **POSITION),
    "CCM": functools.partial(models.ClickChainModel, **PAIR),
    "DBN": functools.partial(models.DynamicBayesianNetwork, **PAIR),
}
SKIP, UNSATISFIED, SATISFIED = (
    f"continuation_{event}" for event in ("exam_no_click", "click_not_satisfied", "click_satisfied")
)


def new_model(name, **options):
    return point(BUILD[name](**options, rngs=nnx.Rngs(0)))


def estimated(trainer, name, data=LOG):
    """A model after all passes, without validation; its probabilities and the loss of each pass."""
    model, taken, losses = new_model(name), [], []
    learner = trainer.learner(model)
    learner.start(data)
    for epoch in range(1, learner.passes + 1):
        losses.append(learner.run_pass(data, epoch)[0])
        learner.restore(model, learner.snapshot(learner.state, None))
        taken.append(probabilities(model))
    return model, taken, losses


def probabilities(model):
    """P of every row of every tower, float64."""
    found = {}
    for role, tower in vars(model).items():
        if hasattr(tower, "table"):
            logit = tower.table.get_value().values[:, 0]
            baseline = 0.0 if tower.baseline is None else float(tower.baseline[...])
            found[role] = sigmoid(np.asarray(logit, np.float64) + baseline)
        elif hasattr(tower, "weight"):
            found[role] = sigmoid(tower.weight[...]).ravel()
    return found


class Totals(dict):
    """[successes, failures] of each (role, row), starting from the prior."""

    def __missing__(self, key):
        self[key] = np.array(PRIOR)
        return self[key]

    def compare(self, model, atol):
        """Every row, those that the log does not show included."""
        for role, values in probabilities(model).items():
            expected = [self[role, row][0] / self[role, row].sum() for row in range(len(values))]
            np.testing.assert_allclose(values, expected, rtol=0, atol=atol, err_msg=role)


# Counting, by the definitions in Chuklin, Markov and de Rijke 2015, section 4.1


def tally(name, ids, clicks, count):
    """count(role, row, event) for each Bernoulli variable that a session shows."""
    clicked = [rank for rank, click in enumerate(clicks) if click]
    first, last = (clicked[0], clicked[-1]) if clicked else (len(ids), len(ids))
    for rank, (row, click) in enumerate(zip(ids, clicks)):
        rows = {"GCTR": 0, "RCTR": rank + 1, "DCTR": row, "DRCTR": row * RANKS + rank}
        if name in rows:
            count("ctr", rows[name], click)
        elif rank <= (first if name == "CM" else last):
            count("attraction", row, click)
            if click and name == "DCM":
                count("continuation", rank + 1, rank < last)
            if click and name == "SDBN":
                count("satisfaction", row, rank == last)


def counted(name):
    totals = Totals()

    def count(role, row, event):
        totals[role, row] += [event, not event]

    for ids, clicks in SESSIONS:
        tally(name, ids, clicks, count)
    return totals


COUNTED = ("GCTR", "RCTR", "DCTR", "DRCTR", "CM", "DCM", "SDBN")


@pytest.mark.parametrize("name", COUNTED)
def test_counting_is_what_a_loop_counts(name):
    model, _, losses = estimated(CountingTrainer(**SIZES, **PRIORS), name)
    counted(name).compare(model, atol=1e-6)
    assert losses == [None]


# Expectation-maximisation: every value of every Bernoulli variable


def pbm(throw, ids):
    clicks = []
    for rank, row in enumerate(ids, start=1):
        events = throw("examination", rank), throw("attraction", row)
        clicks.append(all(events))
    return clicks


def ubm(throw, ids):
    clicks, last = [], 0
    for rank, row in enumerate(ids, start=1):
        events = throw("examination", rank * (RANKS + 1) + last), throw("attraction", row)
        clicks.append(all(events))
        last = rank if clicks[-1] else last
    return clicks


def cascade(throw, ids, goes_on):
    """goes_on(rank, row, click) is whether one who reads at a rank reads on."""
    clicks, reading = [], True
    for rank, row in enumerate(ids, start=1):
        attracted = throw("attraction", row)
        clicks.append(reading and attracted)
        reading = reading and goes_on(rank, row, attracted)
    return clicks


def dcm(throw, ids):
    return cascade(throw, ids, lambda rank, row, click: not click or throw("continuation", rank))


def sdbn(throw, ids):
    return cascade(throw, ids, lambda rank, row, click: not (click and throw("satisfaction", row)))


def dbn(throw, ids):
    def goes_on(rank, row, click):
        return not (click and throw("satisfaction", row)) and throw("continuation", 0)

    return cascade(throw, ids, goes_on)


def ccm(throw, ids):
    def goes_on(rank, row, click):
        return throw((SATISFIED if throw("attraction", row) else UNSATISFIED) if click else SKIP, 0)

    return cascade(throw, ids, goes_on)


STORIES = {"PBM": pbm, "UBM": ubm, "DCM": dcm, "SDBN": sdbn, "CCM": ccm, "DBN": dbn}


def outcomes(story, ids, p):
    """(probability, clicks, Bernoulli variables with values) of each way a session can go."""
    pending = [()]
    while pending:
        path, drawn = list(pending.pop()), []

        def throw(role, row):
            if len(drawn) == len(path):
                pending.append((*path, False))
                path.append(True)
            drawn.append((role, row, path[len(drawn)]))
            return drawn[-1][2]

        clicks = story(throw, ids)
        chances = [p(role, row) if event else 1 - p(role, row) for role, row, event in drawn]
        yield math.prod(chances), clicks, drawn


def iterated(counts_of, iterations, sessions=SESSIONS):
    """Totals after iterations of counts_of(ids, clicks, p): (role, row, successes, failures)."""
    totals = Totals()
    for _ in range(iterations):
        old, totals = totals, Totals()
        for ids, clicks in sessions:
            for role, row, *both in counts_of(
                ids, clicks, lambda *key: old[key][0] / old[key].sum()
            ):
                totals[role, row] += both
    return totals


def enumerated(story):
    def counts_of(ids, clicks, p):
        fitting = [(chance, drawn) for chance, c, drawn in outcomes(story, ids, p) if c == clicks]
        total = sum(chance for chance, _ in fitting)
        for chance, drawn in fitting:
            for role, row, event in drawn:
                yield role, row, chance / total * event, chance / total * (not event)

    return counts_of


@functools.cache
def fitted(name):
    """Ten iterations of exact EM."""
    return estimated(EMTrainer(10, **SIZES, **PRIORS), name)


BY_TIER = [
    pytest.param(name, marks=pytest.mark.nightly if name in ("PBM", "SDBN") else ())
    for name in STORIES
]


@pytest.mark.parametrize("name", BY_TIER)
def test_em_is_what_enumeration_expects(name):
    totals = iterated(enumerated(STORIES[name]), 3)
    for role, values in fitted(name)[1][2].items():
        expected = [totals[role, row][0] / totals[role, row].sum() for row in range(len(values))]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5, err_msg=role)


@pytest.mark.parametrize("name", BY_TIER)
def test_the_likelihood_with_its_prior_never_falls(name):
    """An iteration reports the loss of the estimates that it starts from.

    It is a float32 sum over the batch of some 50 terms that are off by 2^-24 each, so that a step
    down of 1e-6 of its value is rounding.
    """
    _, taken, losses = fitted(name)
    documents = shown(COLUMNS).sum()
    objective = [
        sum((PRIOR * np.log(np.stack([p, 1 - p], -1))).sum() for p in each.values())
        - documents * loss
        for each, loss in zip(taken[:-1], losses[1:], strict=True)
    ]
    assert np.diff(objective).min() > -1e-6 * abs(objective[-1])
    assert objective[-1] - objective[0] > 0.01


WITHOUT_PRIOR = dict(prior_successes=0.0, prior_failures=0.0)


def test_without_prior_counts_they_are_those_of_maximum_likelihood():
    """Of PBM: E-steps by Bayes' rule. Rows that the log does not show stay at 1/2."""
    mask = shown(COLUMNS)
    ids, clicks = COLUMNS["query_doc_ids"][mask], COLUMNS["clicks"][mask]
    ranks = np.broadcast_to(np.arange(1, RANKS + 1), mask.shape)[mask]
    attraction, examination = np.full(PAIRS + 1, 0.5), np.full(RANKS + 1, 0.5)
    for _ in range(10):
        a, e = attraction[ids], examination[ranks]
        skip = 1 - a * e
        attracted = np.where(clicks, 1.0, a * (1 - e) / skip)
        examined = np.where(clicks, 1.0, e * (1 - a) / skip)
        np.put(attraction, np.unique(ids), _means(ids, attracted))
        np.put(examination, np.unique(ranks), _means(ranks, examined))
    model, _, losses = estimated(EMTrainer(10, **SIZES, **WITHOUT_PRIOR), "PBM")
    found = probabilities(model)
    for role, expected in (("attraction", attraction), ("examination", examination)):
        inside = np.clip(expected, 1e-6, 1 - 1e-6)
        np.testing.assert_allclose(found[role], inside, rtol=0, atol=1e-5, err_msg=role)
    assert np.isfinite(losses).all()


def _means(rows, values):
    """By row, ascending."""
    counts = np.bincount(rows)
    return np.bincount(rows, weights=values)[counts > 0] / counts[counts > 0]


def test_a_model_is_added_by_its_class(monkeypatch):
    """Click rates of documents, whose expected counts are those that clicks show."""
    monkeypatch.setattr(em, "EXPECTATIONS", copy.deepcopy(em.EXPECTATIONS))
    trainer = EMTrainer(3, **SIZES, **PRIORS)
    with refuses(ConfigError, "em", "DCTR"):
        estimated(trainer, "DCTR")

    @em.EXPECTATIONS.of(models.DocumentCTRModel)
    def of_documents(probabilities, slopes, click):
        successes = probabilities["ctr"] + slopes["ctr"]
        return {"ctr": Counts(successes, 1 - successes)}

    model, *_ = estimated(trainer, "DCTR")
    ids, clicks = (COLUMNS[name][shown(COLUMNS)] for name in ("query_doc_ids", "clicks"))
    totals = np.bincount(ids, minlength=PAIRS + 1)
    clicked = np.bincount(ids[clicks], minlength=PAIRS + 1)
    expected = (clicked + PRIOR[0]) / (totals + sum(PRIOR))
    np.testing.assert_allclose(probabilities(model)["ctr"], expected, rtol=1e-5)


@pytest.mark.parametrize("click", [False, True])
def test_estimates_without_prior_counts_stay_inside_0_and_1(click):
    """One document that all or none of the sessions click, and one that no session shows."""
    log = Sessions.from_arrays(
        query_doc_ids=np.ones((8, 1), np.int32),
        clicks=np.full((8, 1), click),
        query_doc_pairs=PAIRS,
    )
    model, _, _ = estimated(CountingTrainer(**SIZES, **WITHOUT_PRIOR), "DCTR", log)
    (rates,) = probabilities(model).values()
    assert rates[1] == pytest.approx(1 - 1e-6 if click else 1e-6, rel=1e-2, abs=1e-7)
    np.testing.assert_allclose(rates[2:], 0.5)


# The E-step behind PyClick's figures, in the words of its documentation


def approximate(name):
    def counts_of(ids, clicks, p):
        a = [p("attraction", row) for row in ids]
        if name == "DBN":
            s, (skip, unsatisfied, satisfied) = [p("satisfaction", row) for row in ids], [
                p("continuation", 0), p("continuation", 0), 0.0
            ]  # fmt: skip
            roles = "satisfaction", "continuation", "continuation", None
        else:
            s, (skip, unsatisfied, satisfied) = a, [p(r, 0) for r in (SKIP, UNSATISFIED, SATISFIED)]
            roles = "attraction", SKIP, UNSATISFIED, SATISFIED
        clicked = [(1 - x) * unsatisfied + x * satisfied for x in s]
        n = len(ids)
        last = max((rank for rank in range(n) if clicks[rank]), default=n)

        def some_click(documents):
            """P(a click on one of them | the first is examined)."""
            return 1 - math.prod(none_by_step(documents))

        def none_by_step(documents):
            reading = 1.0
            for r in documents:
                yield 1 - reading * a[r]
                reading = reading * (1 - a[r]) * skip / (1 - reading * a[r])

        marginal, reading = 1.0, 1.0
        for r, row in enumerate(ids):
            here, below = some_click(range(r, n)), some_click(range(r + 1, n))
            unseen = (1 - marginal) * a[r] / (1 - marginal * here) if last < r else 0.0
            attracted = 1.0 if clicks[r] else unseen
            yield "attraction", row, attracted, 1 - attracted
            if clicks[r]:
                satisfies = s[r] / (1 - clicked[r] * below) if r == last else 0.0
                yield roles[0], row, satisfies, 1 - satisfies
            top = 1 - some_click(range(n - r - 1)) if last <= r else 1.0
            may_leave = float(last <= r)
            ways = (
                [(roles[2], 1 - s[r], unsatisfied), (roles[3], s[r], satisfied)]
                if clicks[r]
                else [(roles[1], reading, skip), (None, 1 - reading, 0.0)]
            )
            weights = [(role, w * on * top, w * (1 - on) * may_leave) for role, w, on in ways]
            total = sum(on + off for _, on, off in weights)
            for role, on, off in weights:
                if role:
                    yield role, 0, on / total, off / total
            marginal *= (1 - a[r]) * skip + a[r] * clicked[r]
            after_skip = reading * (1 - a[r]) * skip / (1 - reading * a[r])
            reading = clicked[r] if clicks[r] else after_skip

    return counts_of


@pytest.mark.parametrize("name", ["DBN", "CCM"])
def test_the_e_step_of_published_figures(name):
    model, _, _ = estimated(EMTrainer(3, e_step="pyclick", **SIZES, **PRIORS), name)
    iterated(approximate(name), 3).compare(model, atol=1e-5)


def pyclick_ubm(ids, clicks, p):
    """PyClick's update of UBM: without a click above, a list of M has its last at rank M."""
    last = len(ids)
    for rank, (row, click) in enumerate(zip(ids, clicks), start=1):
        cell = rank * (RANKS + 1) + last
        attraction, examination = p("attraction", row), p("examination", cell)
        skip = 1 - attraction * examination
        attracted = 1.0 if click else attraction * (1 - examination) / skip
        examined = 1.0 if click else examination * (1 - attraction) / skip
        yield "attraction", row, attracted, 1 - attracted
        yield "examination", cell, examined, 1 - examined
        last = rank if click else last


UNEQUAL = pytest.param(False, marks=pytest.mark.nightly, id="lists of unequal length")


@pytest.mark.parametrize("full", [pytest.param(True, id="lists of one length"), UNEQUAL])
def test_ubm_of_pyclick_has_examination_without_a_click_above_for_each_length_of_list(full):
    columns = ragged_log(24, RANKS, PAIRS, full=full)
    totals = iterated(pyclick_ubm, 3, sessions_of(columns))
    data = packed(columns, PAIRS)
    _, (*_, fitted), _ = estimated(EMTrainer(3, **SIZES, **PRIORS), "UBM", data)
    theirs = {
        role: np.array(
            [totals[role, row][0] / totals[role, row].sum() for row in range(len(values))]
        )
        for role, values in fitted.items()
    }
    differences = np.abs(fitted["attraction"] - theirs["attraction"])
    ranks = np.arange(1, RANKS + 1) * (RANKS + 1)
    longest = np.abs(fitted["examination"][ranks] - theirs["examination"][ranks + RANKS])
    if full:
        assert differences.max() < 1e-5 and longest.max() < 1e-5
    else:
        assert differences.max() > 1e-3 and longest.max() > 1e-2


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["UBM", "DBN"])
def test_a_simulated_user_is_recovered(name):
    """19,200 sessions show each list 6,400 times: click probabilities are known to 0.007."""
    case = next(case for case in CASES if case.name == name)
    user = random_model(case)
    batch = dict(repeated(every_click_vector()))
    clicks = runner(name).sample(user, batch, np.array([0, 1], np.uint32)).clicks
    model = case.build(rngs=nnx.Rngs(0))
    few = {key: values[:64] for key, values in batch.items()}
    trainer = EMTrainer(60, prior_successes=0.01, prior_failures=0.01, metrics=LL)
    trainer.train(model, [{**batch, "clicks": clicks}], [few])
    true, fitted = (runner(name).predict(each, every_click_vector()) for each in (user, model))
    np.testing.assert_allclose(np.exp(fitted["clicks"]), np.exp(true["clicks"]), atol=0.03)


def test_rows_on_the_device_and_batches_of_any_kind(monkeypatch):
    """Large tables add up on the device, and batches are counted like packed sessions."""
    trainer, mask = EMTrainer(2, **SIZES), shown(COLUMNS)
    columns = {name: COLUMNS[name] for name in ("query_doc_ids", "clicks")} | {"mask": mask}
    batches = [
        {name: values[part] for name, values in columns.items()}
        for part in np.split(np.arange(24), 4)
    ]
    _, (*_, few), _ = estimated(trainer, "DBN")
    monkeypatch.setattr(estimation, "_FEW_ROWS", 1)
    _, (*_, many), _ = estimated(trainer, "DBN", batches)
    for role, values in few.items():
        np.testing.assert_allclose(many[role], values, rtol=1e-5)


def with_holes(sessions, seed=2):
    """Batches of lists in which any document may be hidden; and the same without these."""
    rng = np.random.default_rng(seed)
    shape = sessions, RANKS
    batch = {
        "query_doc_ids": rng.integers(1, PAIRS + 1, shape).astype(np.int32),
        "clicks": rng.random(shape) < 0.4,
        "mask": rng.random(shape) < 0.7,
        "positions": np.tile(np.arange(1, RANKS + 1, dtype=np.int32), (sessions, 1)),
    }
    order = np.argsort(~batch["mask"], axis=1, kind="stable")
    moved = {name: np.take_along_axis(values, order, axis=1) for name, values in batch.items()}
    return [batch], [{name: values * moved["mask"] for name, values in moved.items()}]


ESTIMATES = [
    *((CountingTrainer(**SIZES), name) for name in COUNTED),
    *((EMTrainer(3, **SIZES), name) for name in STORIES),
    *((EMTrainer(3, e_step="pyclick", **SIZES), name) for name in ("CCM", "DBN")),
    *(
        (Trainer(lazy_sgd(0.1), epochs=2, **FITTED), name)
        for name in ("PBM", "UBM", "CCM", "DBN", "DCM")
    ),
]
NAMED = {
    f"{type(t).__name__}-{name}-{getattr(t, 'e_step', '')}": (t, name) for t, name in ESTIMATES
}
IN_DEFAULT = ("CountingTrainer-DCM-", "EMTrainer-UBM-exact", "EMTrainer-DBN-pyclick")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in IN_DEFAULT else pytest.mark.nightly) for n in NAMED],
)
def test_hiding_documents_is_leaving_them_out(name):
    """A document that was not shown is neither examined nor read past."""
    (trainer, model), (batches, compacted) = NAMED[name], with_holes(24)
    holes, (*_, found), _ = estimated(trainer, model, batches)
    short, (*_, expected), _ = estimated(trainer, model, compacted)
    for role, values in expected.items():
        np.testing.assert_allclose(found[role], values, rtol=1e-4, atol=1e-6, err_msg=role)
    both = ((holes, batches), (short, compacted))
    one, other = (trainer.evaluate(m, data, LL).compute()["ll"] for m, data in both)
    assert one == pytest.approx(other, abs=1e-5)


def test_a_pair_never_shown_keeps_the_prior():
    for baseline in (True, False):
        tower = EmbeddingParameterConfig(parameters=PAIRS + 3, add_baseline=baseline)
        for prior, unseen in ((1.0, 0.5), (0.0, 1 - 1e-6)):
            model = new_model("DCTR", ctr=tower)
            learner = CountingTrainer(**SIZES, prior_failures=prior).learner(model)
            learner.run_pass(LOG, 1)
            learner.model_state()
            left = 1 - probabilities(model)["ctr"][[0, -1]]
            np.testing.assert_allclose(left, 1 - unseen, rtol=1e-3 if prior == 0 else 0)


@dataclasses.dataclass
class Heard(Logger):
    """What is reported of progress."""

    seen: list = dataclasses.field(default_factory=list)

    def progress(self, phase, epoch, done, total, loss=None):
        self.seen.append((phase, epoch, done, total))


@pytest.fixture(scope="module")
def stopped():
    """Here the clicks have nothing to do with the documents."""
    model, heard = new_model("PBM"), Heard()
    trainer = EMTrainer(40, EarlyStopping(patience=1), logger=heard, **SIZES)
    return model, heard, trainer.train(model, LOG, VAL)


def test_early_stopping_keeps_the_best(stopped):
    model, _, report = stopped
    losses = [record["val/loss"] for record in report.history]
    assert report.best_epoch == 1 + int(np.argmin(losses)) == report.epochs - 2 < 38
    found = -EMTrainer(**SIZES).evaluate(model, VAL, LL).compute()["ll"]
    assert found == pytest.approx(min(losses), abs=1e-7)
    mean = np.average(report.per_rank["ll"], weights=report.per_rank["sessions"])
    assert mean == pytest.approx(-min(losses), abs=1e-7)


def test_what_is_reported(stopped):
    _, heard, report = stopped
    assert [record["epoch"] for record in report.history] == [*range(1, report.epochs + 1)]
    losses = {"train/loss", "val/ll", "val/loss"}
    rest = {"epoch", "seconds", "compile_seconds", "sessions", "improved"}
    assert set(report.history[0]) == losses | rest
    assert report.sessions == 24 * report.epochs
    assert 0 < report.history[0]["compile_seconds"] <= report.compile_seconds < report.seconds
    assert heard.seen[:3] == [("train", 1, 16, 24), ("train", 1, 24, 24), ("val", 1, 8, 8)]


def test_without_early_stopping_the_last_is_kept():
    """Counting takes one pass."""
    model = new_model("DCM")
    report = CountingTrainer(**SIZES, **PRIORS).train(model, LOG, VAL)
    assert (report.epochs, report.best_epoch) == (1, 1)
    assert "train/loss" not in report.history[0]
    counted("DCM").compare(model, atol=1e-6)


HASHED = EmbeddingParameterConfig(embedding_fn=HashEmbedding, compression_ratio=2)


WIDE = EmbeddingParameterConfig(embedding_features=2)
REFUSED = [
    (CountingTrainer(), "UBM", {}, ["counting estimates GCTR, ", "not UBM", "trainer=em"]),
    (CountingTrainer(), "DBN", {}, ["not DBN"]),
    (EMTrainer(), "CM", {}, ["em estimates PBM, ", "not CM", "trainer=counting"]),
    (
        EMTrainer(),
        "PBM",
        {"attraction": DeepParameterConfig(features=3)},
        ["attraction: ", "this DeepParameter", "attraction=embedding"],
    ),
    (EMTrainer(), "PBM", {"attraction": HASHED}, ["this EmbeddingParameter"]),
    (EMTrainer(), "PBM", {"attraction": WIDE}, ["one number per row"]),
]


def test_what_cannot_be_estimated_is_reported_in_one_line():
    for trainer, name, options, parts in REFUSED:
        with refuses(ConfigError, *parts) as caught:
            trainer.train(new_model(name, **options), LOG, VAL)
        assert "\n" not in str(caught.value)


def test_towers_are_not_shared():
    tower = GlobalParameter(rngs=nnx.Rngs(0))
    with refuses(ConfigError, "examination and attraction of PBM share a tower"):
        EMTrainer().train(new_model("PBM", examination=tower, attraction=tower), LOG, VAL)


SETTINGS = [
    (EMTrainer, {"iterations": 0}, ["iterations=0", "at least 1"]),
    (EMTrainer, {"prior_successes": -1.0}, ["prior_successes=-1.0"]),
    (CountingTrainer, {"prior_failures": -1.0}, ["prior_failures=-1.0"]),
    (CountingTrainer, {"batch_size": 0}, ["batch_size=0"]),
    (EMTrainer, {"early_stopping": EarlyStopping("auc")}, ["'auc'"]),
]


def test_settings_are_checked():
    for trainer, options, parts in SETTINGS:
        with refuses(ConfigError, *parts):
            trainer(**options)


def test_nothing_is_compiled_before_the_clock_of_a_training_starts():
    """Compilation is taken off its seconds."""
    learner = EMTrainer().learner(models.PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(0)))
    assert [program.seconds for program in learner.programs] == [0, 0]
