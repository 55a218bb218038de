"""Methods that estimate parameters: functions (simulated log, seed) -> Fitted, or None where they do not apply."""

import dataclasses
import functools
import itertools
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import users
from flax import nnx
from scipy.special import expit, log_expit, softmax
from users import POSITIONS, Parameters, Part, SimulatedLog

from clickexp import models
from clickexp.data import Sessions
from clickexp.models import ClickModel
from clickexp.parameters import EmbeddingParameter, EmbeddingParameterConfig
from clickexp.parameters.base import Parameter
from clickexp.posteriors import marginal
from clickexp.posteriors.continuation import improve_continuation
from clickexp.posteriors.exported import exported
from clickexp.posteriors.intervals import shared_intervals
from clickexp.posteriors.marginal import improve_examination
from clickexp.posteriors.policy_prior import Queries, lists_shown
from clickexp.posteriors.shared import SharedPosterior, shared_posterior
from clickexp.training import CountingTrainer, EMTrainer, Trainer, lazy_adagrad
from clickexp.training.base import BaseTrainer
from clickexp.utils.blocks import blocks

MODELS: dict[str, type[ClickModel]] = {
    "PBM": models.PositionBasedModel,
    "UBM": models.UserBrowsingModel,
    "TrustBias": models.TrustBiasModel,
    "DBN": models.DynamicBayesianNetwork,
    "DCM": models.DependentClickModel,
    "CCM": models.ClickChainModel,
    "DCTR": models.DocumentCTRModel,
    "DRCTR": models.DocumentRankCTRModel,
}
CHAIN = (
    "continuation_exam_no_click",
    "continuation_click_not_satisfied",
    "continuation_click_satisfied",
)
BATCH = 8192
INTERVAL = 1.959963984540054
"""Standard deviations from the middle to the ends of a 95 % interval of a normal distribution."""
LOGITS = np.linspace(-24.0, 12.0, 1801)
"""Where exact posteriors are summed."""
EXACT_ROWS = 1 << 12
"""Rows whose exact posteriors are computed at a time, in 60 MB."""
HERE = Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What a method makes of a log.

    Attributes:
        seconds: Wall time of the estimation, without compilation where that can be told apart.
        parameters: Estimates; with a posterior its means.
        spread: Standard deviations of the logits of rows by role, `attraction` and `satisfaction`, if there are any.
        middle: Logits that intervals of rows are around, by role; those of `parameters` unless they are here.
        bounds: Logits of the ends of 95 % intervals of rows [2, rows], by role, which need not be symmetric.
        attraction: Logits of rows as an export has them, if they are others than those of `parameters`.
        prior_means: Learned mean of the logits of all rows, by role.
        predictions: P(click | clicks above) of the test sessions [sessions, positions].
        shared: Bounds of 95 % intervals [numbers, 2] of `users.shared`; nan where the log says nothing.
    """

    seconds: float
    parameters: Parameters | None = None
    spread: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    middle: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    bounds: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    attraction: np.ndarray | None = None
    prior_means: Mapping[str, float] = dataclasses.field(default_factory=dict)
    predictions: np.ndarray | None = None
    shared: np.ndarray | None = None

    def interval(self, role: str) -> np.ndarray | None:
        """Logits of the ends of intervals of rows, [2, rows]; None where there are none."""
        if role in self.bounds or role not in self.spread:
            return self.bounds.get(role)
        middle = self.middle.get(role, getattr(self.parameters, role))
        return middle + np.array([[-INTERVAL], [INTERVAL]]) * self.spread[role]


Method = Callable[[SimulatedLog, int], Fitted | None]


def gradient(
    log: SimulatedLog, seed: int, trainer: BaseTrainer | None = None, **rows: object
) -> Fitted:
    """The default trainer, or another; `rows` are settings of the tables of pairs."""
    towers = {
        role: dataclasses.replace(config, **rows)
        for role, config in MODELS[log.design.user].roles.items()
        if rows and isinstance(config, EmbeddingParameterConfig)
    }
    return fitted(log, seed, trainer or Trainer(seed=seed), **towers)


def maximum_a_posteriori(log: SimulatedLog, seed: int) -> Fitted:
    """A number and a given Gaussian prior per row, by Adagrad."""
    return gradient(log, seed, Trainer(lazy_adagrad(), decays=0, seed=seed), posterior="none")


def posterior(log: SimulatedLog, seed: int) -> Fitted:
    """The default: mean and spread per row, and a learned prior per table."""
    return gradient(log, seed)


def apart(log: SimulatedLog, seed: int) -> Fitted:
    """The default, but for examination that is as clicks tell of each position by itself."""
    with mock.patch.object(marginal, "smoothed", lambda points, of_clicks: of_clicks):
        return posterior(log, seed)


def expectation_maximisation(
    log: SimulatedLog, seed: int, counts: float | None = None
) -> Fitted | None:
    """trainer=em, with its default of prior successes and failures or with these."""
    if log.design.user not in ("PBM", "UBM", "DBN", "DCM", "CCM"):
        return None
    trainer = EMTrainer()
    if counts is not None:
        trainer = EMTrainer(prior_successes=counts, prior_failures=counts)
    return fitted(log, seed, trainer)


def counting(log: SimulatedLog, seed: int) -> Fitted | None:
    """trainer=counting."""
    return (
        fitted(log, seed, CountingTrainer())
        if log.design.user in ("DCM", "DCTR", "DRCTR")
        else None
    )


def click_rate(log: SimulatedLog, seed: int) -> Fitted | None:
    """Click rates by rank, relative to rank 1: right for PBM where the order is random."""
    if (log.design.user, log.design.policy) != ("PBM", "random"):
        return None
    rates = log.train.clicks.mean(axis=0)
    return Fitted(0.0, Parameters({"examination": rates}, np.full(log.design.pairs + 1, np.nan)))


def exact(log: SimulatedLog, seed: int) -> Fitted | None:
    """Posteriors of attraction by Bayes' rule from all that draws a log: examination and the density of attraction.

    No method knows these. Where a policy orders lists, these tell of attraction, too, and there is no such posterior.
    """
    if log.design.user not in ("PBM", "UBM") or log.design.policy != "random":
        return None
    counts = click_counts(log)
    examination = log.truth.shared["examination"].ravel()
    log_density = users.log_density(log.design.family, LOGITS)
    means, bounds = np.zeros(counts.shape[2]), np.zeros((2, counts.shape[2]))
    for part in blocks(len(means), EXACT_ROWS):
        probabilities = posterior_of_rows(counts[..., part], examination, log_density)
        means[part] = probabilities @ LOGITS
        cumulative = probabilities.cumsum(axis=1)
        for end, tail in zip(bounds, (0.025, 0.975), strict=True):
            end[part] = LOGITS[np.argmax(cumulative >= tail, axis=1)]
    return Fitted(0.0, Parameters(log.truth.shared, means), bounds={"attraction": bounds})


def click_counts(log: SimulatedLog) -> np.ndarray:
    """Skips and clicks of pairs by cell of examination in training, [2, cells, pairs + 1]."""
    ids, clicks = log.train.ids, log.train.clicks
    cells, count = np.broadcast_to(np.arange(ids.shape[1]), ids.shape), POSITIONS
    if log.design.user == "UBM":
        clicked = np.where(clicks, cells + 1, 0)
        last = np.maximum.accumulate(np.pad(clicked, ((0, 0), (1, 0)))[:, :-1], axis=1)
        cells, count = cells * POSITIONS + last, POSITIONS**2
    counts = np.zeros((2, count, log.design.pairs + 1))
    np.add.at(counts, (clicks.astype(int), cells, ids), 1.0)
    return counts


def posterior_of_rows(
    counts: np.ndarray, examination: np.ndarray, log_density: np.ndarray
) -> np.ndarray:
    """Probabilities of LOGITS, [rows, logits], from skips and clicks [2, cells, rows]."""
    skips, clicks = counts
    skipped = np.log1p(-np.outer(examination, expit(LOGITS)))
    logs = skips.T @ skipped + clicks.sum(axis=0)[:, None] * log_expit(LOGITS) + log_density
    return softmax(logs, axis=1)


def clax(log: SimulatedLog, seed: int, *, python: Path, batch_size: int) -> Fitted | None:
    """CLAX with adamw(0.003), at most 50 epochs and its early stopping, in its own environment."""
    user = log.design.user
    if user == "TrustBias":
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "log.npz", Path(folder) / "result.npz"
        parts = {"train": log.train, "val": log.val, "test": log.test}
        columns = itertools.product(("ids", "clicks"), parts.items())
        np.savez(
            source, **{f"{name}_{part}": getattr(each, name) for name, (part, each) in columns}
        )
        settings = dict(model=user, pairs=log.design.pairs, seed=seed, batch_size=batch_size)
        command = [
            str(python),
            str(HERE / "parameters_peer.py"),
            str(source),
            str(result),
            json.dumps(settings),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        with np.load(result) as given:
            found = {name: np.asarray(values, np.float64) for name, values in given.items()}
    seconds, predictions = float(found.pop("seconds")), found.pop("predictions")
    parameters = estimated(user, found, log.design.pairs, radix=POSITIONS)
    return Fitted(seconds, parameters, predictions=predictions)


METHODS: dict[str, Method] = {
    "click-rate": click_rate,
    "map": maximum_a_posteriori,
    "posterior": posterior,
    "apart": apart,
    "em": expectation_maximisation,
    **{
        f"em {counts:g}+{counts:g}": functools.partial(expectation_maximisation, counts=counts)
        for counts in (1.0, 0.5, 0.1, 0.01, 0.0)
    },
    "counting": counting,
    "exact": exact,
}


def fitted(log: SimulatedLog, seed: int, trainer: BaseTrainer, **towers: Any) -> Fitted:
    """A model of clickexp, trained on the log."""
    user, pairs = log.design.user, log.design.pairs
    parts = {part: sessions(getattr(log, part), pairs) for part in ("train", "val", "test")}
    sizes = dict(
        positions=POSITIONS, query_doc_pairs=pairs, click_rate=float(log.train.clicks.mean())
    )
    model = MODELS[user](**sizes, **towers, rngs=nnx.Rngs(seed))
    report = trainer.train(model, parts["train"], parts["val"])
    learned = isinstance(trainer, Trainer)  # the others store a constant
    known = None
    if (queries := lists_shown(model, parts["train"])) is not None:
        known = improve_examination(model, parts["train"], queries)
        known = known or improve_continuation(model, parts["train"], queries)
    if known is None and model.has_posteriors:
        known = shared_posterior(model, parts["train"])
    return estimates(
        user, model, parts["train"], log, report.training_seconds, known, learned=learned
    )


def estimates(
    user: str,
    model: ClickModel,
    train: Sessions,
    log: SimulatedLog,
    seconds: float,
    known: SharedPosterior | None,
    *,
    learned: bool = True,
    queries: Queries | None = None,
) -> Fitted:
    """What a fitted model says.

    Args:
        user: Whose parameters it has.
        model: The model.
        train: The sessions that it was fitted to; `log.train` may have earlier ones, too.
        log: What is known of pairs, and the test sessions.
        seconds: Of training.
        known: Posterior of its shared parameters.
        learned: Whether priors were learned.
        queries: Of pairs, in all sessions; None finds them.
    """
    pairs = log.design.pairs
    towers = {role: tower for role, tower in vars(model).items() if isinstance(tower, Parameter)}
    found = {role: moments(tower) for role, tower in towers.items()}
    parameters = estimated(user, {role: mean for role, (mean, _) in found.items()}, pairs)
    spread = {role: deviation for role, (_, deviation) in found.items() if deviation is not None}
    middle, bounds_of_rows = {}, {}
    impressions = np.bincount(log.train.ids.ravel(), minlength=pairs + 1)
    clicks = np.bincount(log.train.ids.ravel(), log.train.clicks.ravel(), pairs + 1)
    better = exported(model, train, impressions, clicks, known, lambda: (None, queries))
    for role in ("attraction", "satisfaction"):
        if role in spread:
            middle[role], deviation = moments(getattr(better.intervals, role))
            assert deviation is not None  # as above
            spread[role] = deviation
    if better.ends is not None:
        # intervals of a prior with a shape are not symmetric
        ends = np.asarray(better.ends.get_value().values, np.float64).T
        bounds_of_rows["attraction"] = middle["attraction"] + ends * spread["attraction"]
    tables = [
        role for role, tower in towers.items() if isinstance(tower, EmbeddingParameter) and learned
    ]
    # row 0 is padding, which nothing moves
    prior_means = {role: float(found[role][0][0]) for role in tables}
    bounds = None if known is None else shared_bounds(user, model, known)
    predicted = predictions(model, log.test)
    return Fitted(
        seconds,
        parameters,
        spread=spread,
        middle=middle,
        bounds=bounds_of_rows,
        attraction=middle.get("attraction"),
        prior_means=prior_means,
        predictions=predicted,
        shared=bounds,
    )


def shared_bounds(user: str, model: ClickModel, known: SharedPosterior) -> np.ndarray | None:
    """Bounds of the 95 % intervals of `users.shared`, [numbers, 2]; None for users without shared parameters."""
    ranks = range(1, POSITIONS + 1)
    keys: dict[str, list[tuple]] = {
        "PBM": [("examination", rank, None) for rank in ranks[1:]],
        "UBM": [("examination", rank, last) for rank in ranks for last in range(rank)][1:],
        "TrustBias": [("slope", rank, None) for rank in ranks[1:]],
        "DBN": [("continuation", None, None)],
        "DCM": [("continuation", rank, None) for rank in ranks[:-1]],
        "CCM": [(role, None, None) for role in CHAIN],
    }
    if user not in keys:
        return None
    found = {
        (each.parameter, each.position, each.last_click): each
        for each in shared_intervals(model, known)
    }
    bounds = np.full((len(keys[user]), 2), np.nan)
    for row, key in enumerate(keys[user]):
        if (each := found.get(key)) is not None:
            ends = (
                (each.low, each.high)
                if each.relative is None
                else (each.relative_low, each.relative_high)
            )
            bounds[row] = ends if None not in ends else (0.0, np.inf)
    return bounds


def sessions(part: Part, pairs: int) -> Sessions:
    """Sessions as clickexp reads them."""
    return Sessions.from_arrays(query_doc_ids=part.ids, clicks=part.clicks, query_doc_pairs=pairs)


def moments(tower: Parameter) -> tuple[np.ndarray, np.ndarray | None]:
    """Mean and standard deviation of the logit of every row of a tower; None for the latter of point estimates."""
    limits = tower.limits()
    batch = {key: np.arange(largest + 1, dtype=np.int32)[None] for key, largest in limits.items()}
    mean, variance = (
        tower.posterior(batch)
        if isinstance(tower, EmbeddingParameter)
        else (tower.logit(batch), None)
    )
    deviation = None if variance is None else np.sqrt(np.asarray(variance, np.float64)).ravel()
    return np.asarray(mean, np.float64).ravel(), deviation


def predictions(model: ClickModel, part: Part) -> np.ndarray:
    """P(click | clicks above) of sessions."""
    model.eval()
    predict = nnx.jit(lambda model, batch: model.predict_conditional_clicks(batch))
    positions = np.arange(1, POSITIONS + 1, dtype=np.int32)
    columns = dict(query_doc_ids=part.ids, clicks=part.clicks, mask=np.ones(part.ids.shape, bool))
    columns["positions"] = np.broadcast_to(positions, part.ids.shape)
    ends = range(0, len(part.ids), BATCH)
    chunks = ({name: values[at : at + BATCH] for name, values in columns.items()} for at in ends)
    return np.exp(
        np.concatenate([np.asarray(predict(model, chunk), np.float64) for chunk in chunks])
    )


def estimated(
    user: str, found: Mapping[str, np.ndarray], pairs: int, radix: int = POSITIONS + 1
) -> Parameters | None:
    """Parameters from the logits of all rows of each tower, by role.

    Row 0 of every tower of positions is unused. UBM's examination at rank r after a last click at rank r' has row
    r radix + r'.
    """
    if user in ("DCTR", "DRCTR"):
        return None
    shared = {}
    match user:
        case "PBM":
            shared["examination"] = expit(found["examination"][1 : POSITIONS + 1])
        case "UBM":
            table = found["examination"][radix : radix * (POSITIONS + 1)].reshape(POSITIONS, radix)
            shared["examination"] = expit(table[:, :POSITIONS])
        case "TrustBias":
            shared = {role: expit(found[role][1:]) for role in ("true_positive", "false_positive")}
        case "DBN":
            shared["continuation"] = expit(found["continuation"].ravel())
        case "DCM":
            shared["continuation"] = expit(found["continuation"][1 : POSITIONS + 1])
        case "CCM":
            shared["continuation"] = np.array([expit(found[role].item()) for role in CHAIN])
    satisfaction = found["satisfaction"][: pairs + 1] if user == "DBN" else None
    return Parameters(shared, found["attraction"][: pairs + 1], satisfaction)
