"""Continuation of cascade models at the mean of its posterior, under the prior by what lists show.

Training takes the documents of a list for independent given its clicks, and its prior leaves out what those of a query
share. Users of documents that attract less look like users who leave, so that training takes continuation for too small
where a policy orders lists. After training, `clickexp.posteriors.chains` samples continuation under the prior of
`clickexp.posteriors.policy_prior`.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, Integer
from scipy.special import expit, logit, stdtrit

from clickexp.data import Sessions
from clickexp.data.by_document import ByDocument
from clickexp.models import ClickChainModel, DependentClickModel, DynamicBayesianNetwork, Model
from clickexp.parameters import EmbeddingParameter, GlobalParameter, PositionParameter, Rows, Table
from clickexp.parameters.base import Parameter
from clickexp.posteriors.chains import Events, Lists, Logits, NormalPrior, Priors, Readers, sample
from clickexp.posteriors.documents import ROLES, table_of_documents, tower_of
from clickexp.posteriors.exported import row_tables
from clickexp.posteriors.information import ROOM, prepared
from clickexp.posteriors.policy_prior import (
    LEAST_FOR_POLICY_PRIOR,
    Queries,
    learned_rows,
    regressors,
    scale_of,
    shown_in,
)
from clickexp.posteriors.rows import by_path
from clickexp.posteriors.shared import SharedPosterior, add_to_shared, shared_estimate
from clickexp.utils import hosts
from clickexp.utils.progress import Report, no_report
from clickexp.utils.rounding import ceil_div
from clickexp.utils.statistics.means import QUANTILE

EVENTS: dict[type[Model], Events] = {
    DynamicBayesianNetwork: Events(
        "attraction", "satisfaction", 0.0, "continuation", "continuation"
    ),
    ClickChainModel: Events(
        "attraction",
        "attraction",
        "continuation_click_satisfied",
        "continuation_click_not_satisfied",
        "continuation_exam_no_click",
    ),
    DependentClickModel: Events("attraction", 0.0, 0.0, "continuation", 1.0),
}
_MOST_DOCUMENTS = 3_000_000
"""In lists. Of larger logs, the sessions of some queries represent all."""
_WORK = 100_000_000
"""Documents in lists, times sweeps that count: about ten seconds."""
_SWEEPS = 60, 400
"""That count, at least and at most: more than the work is for while draws are alike."""
_INDEPENDENT = 15.0
"""Draws that would tell as much, of those that are enough. With 10, intervals of chains that end by chance hold .90."""
_GROUPS = 6
"""Of documents by rank, each with a separate variance around the mean of the prior."""
_OF_WAY = 0.5
"""What the prior may err by, of what it has moved continuation by: a deviation."""
_MOST_ALIKE = 0.99
"""Correlation of draws that follow each other."""

_Documents = Integer[np.ndarray, " documents"]


def improve_continuation(
    model: Model,
    train: Sessions,
    queries: Queries,
    devices: int | str = 1,
    report: Report = no_report,
) -> SharedPosterior | None:
    """Moves continuation of a fitted model to the mean of its posterior; means of rows follow to first order.

    Args:
        model: DBN, CCM or DCM, with one number for all documents or one by position for continuation, and tables of
            posteriors of pairs, one per role. That of attraction has a learned prior by rank. Others stay as they are.
        train: Its training sessions.
        queries: From `lists_shown`.
        devices: How many share the pass after which rows follow, or `all`.
        report: Receives how many draws are done, and how many there are.

    Returns:
        The posterior of shared numbers; None where they stay as they are.
    """
    towers, rows = _towers(model), learned_rows(tower_of(model, ROLES["attraction"]))
    if towers is None or rows is None:
        return None
    part, queries = _of_some_queries(train, queries)
    counts = ByDocument.of(part).dense(len(rows.values))
    if np.count_nonzero(counts.shown) < LEAST_FOR_POLICY_PRIOR:
        return None
    priors = {"attraction": _prior_by_lists(towers["attraction"], counts, queries)}
    if "satisfaction" in towers:
        priors["satisfaction"] = _prior_of_clicked(towers["satisfaction"], counts.clicks)
    estimate = shared_estimate(model, train, {}, devices)
    if estimate is None:
        return None
    trained = SharedPosterior(
        estimate.posterior.names, estimate.share * estimate.posterior.covariance
    )
    numbers = sum(name.split("/")[0] in towers.keys() - priors for name in trained.names)
    if len(rows.values) * numbers > ROOM:
        return None
    draws = _draws(EVENTS[type(model)], part, towers, priors, report)
    is_sampled = np.isin(trained.names, [*draws])
    if not is_sampled.any():
        return None
    logits = np.column_stack([draws[name] for name in np.array(trained.names)[is_sampled]])
    sampled = around_probabilities(logits)
    # processors of several hosts round differently
    means = np.array(hosts.broadcast(sampled.mean(axis=0).tolist()))
    places = trained.places(model)[is_sampled]
    step = means - np.asarray(ravel_pytree(nnx.state(model, nnx.Param))[0], np.float64)[places]
    _follow(model, train, places, step, devices)
    add_to_shared(model, places, step)
    covariance = covariance_of(sampled) + np.outer(_OF_WAY * step, _OF_WAY * step)
    return _with_covariance(trained, is_sampled, covariance)


def _with_covariance(
    posterior: SharedPosterior,
    chosen: Bool[np.ndarray, " all"],
    covariance: Float[np.ndarray, "numbers numbers"],
) -> SharedPosterior:
    """Returns a posterior with another covariance of the chosen numbers, which the others follow as before."""
    before = posterior.covariance
    follow = np.linalg.solve(before[np.ix_(chosen, chosen)], before[chosen])
    change = covariance - before[np.ix_(chosen, chosen)]
    return SharedPosterior(posterior.names, before + follow.T @ change @ follow)


def _towers(model: Model) -> dict[str, Parameter] | None:
    """Returns the towers of events by role; None of a model that is not sampled."""
    roles = [event for event in EVENTS.get(type(model), ()) if isinstance(event, str)]
    towers = {role: getattr(model, role) for role in roles}
    are_apart = len({*map(id, towers.values())}) == len(towers)
    return towers if towers and are_apart and all(map(_is_sampled, towers.values())) else None


def around_probabilities(
    draws: Float[np.ndarray, "sweeps numbers"],
) -> Float[np.ndarray, "sweeps numbers"]:
    """Returns draws of logits on the tangent at the mean of their probabilities.

    Logits of probabilities that may be 0 have a long tail. A normal distribution with their mean and variance would
    have most probabilities on its other side.
    """
    probabilities = expit(draws)
    means = probabilities.mean(axis=0)
    return logit(means) + (probabilities - means) / (means * (1 - means))


def covariance_of(
    draws: Float[np.ndarray, "sweeps numbers"],
) -> Float[np.ndarray, "numbers numbers"]:
    """Returns the covariance of numbers, wider where few of their draws are independent.

    Draws that follow each other are alike. The mean of n independent ones has 1 / n of the variance, and their mean
    square around it is (n - 1) / n of it. The variance is known as well as n tell it: ends of 95% intervals are those
    of a t-distribution.
    """
    independent = independent_draws(draws)
    wider = stdtrit(independent - 1, 0.975) / QUANTILE
    factors = wider * np.sqrt((independent + 1) / (independent - 1) / len(draws))
    away = draws - draws.mean(axis=0)
    return away.T @ away * np.outer(factors, factors)


def independent_draws(draws: Float[np.ndarray, "sweeps numbers"]) -> Float[np.ndarray, " numbers"]:
    """Returns how many independent draws would tell as much of the mean of each number, at least 2."""
    away = draws - draws.mean(axis=0)
    squares = (away**2).sum(axis=0)
    alike = np.clip((away[1:] * away[:-1]).sum(axis=0) / squares, 0.0, _MOST_ALIKE)
    return np.maximum(len(draws) * (1 - alike) / (1 + alike), 2.0)


def _is_sampled(tower: object) -> bool:
    """Whether a tower has one number for all documents, one by position, or posteriors of pairs of one number."""
    if isinstance(tower, PositionParameter):
        return tower.config.use_feature == "positions"
    if isinstance(tower, GlobalParameter):
        return True
    table = table_of_documents(tower)
    return table is not None and table.get_value().has_posteriors and table.get_value().dim == 1


def _lists(sessions: Sessions, towers: Mapping[str, Parameter]) -> Lists:
    """Returns lists and clicks, and the rows of towers at documents."""
    chunks = [*sessions.chunks()]
    clicks = np.concatenate([chunk["clicks"].astype(bool) & chunk.shown for chunk in chunks])
    ids = np.concatenate([chunk["query_doc_ids"] for chunk in chunks])
    positions = np.concatenate([chunk.positions for chunk in chunks])
    rows = {role: np.zeros((1, 1), np.int32) for role in towers}
    for role, tower in towers.items():
        if isinstance(tower, EmbeddingParameter):
            rows[role] = ids
        elif isinstance(tower, PositionParameter):
            rows[role] = positions
    return Lists(
        rows,
        clicks,
        np.concatenate([chunk["lengths"] for chunk in chunks]).astype(np.int64),
    )


def _draws(
    events: Events,
    sessions: Sessions,
    towers: Mapping[str, Parameter],
    priors: Priors,
    report: Report,
) -> dict[str, Float[np.ndarray, " sweeps"]]:
    """Returns draws of the numbers that documents share and the log says something about, by name."""
    rng, logits = np.random.default_rng(0), {}
    for role, tower in towers.items():
        logits[role] = _logits(tower)
        if role in priors:
            rows = _rows(tower)
            deviations = np.asarray(rows.deviations(rows.values)[:, 0], np.float64)
            logits[role] += deviations * rng.standard_normal(len(deviations))
    sizes = {role: len(values) for role, values in logits.items()}
    chain = sample(Readers(events, _lists(sessions, towers), sizes), logits, priors, rng)
    shared = [role for role in towers if role not in priors]
    names = [f"{role}/weight[{row}]" for role in shared for row in range(sizes[role])]
    sweeps = int(np.clip(_WORK // (sessions.count * sessions.ranks), *_SWEEPS))
    vectors = (np.concatenate([of_sweep[role] for role in shared]) for of_sweep in chain)
    draws = enough_draws(vectors, sweeps, report)
    return {name: of_name for name, of_name in zip(names, draws.T, strict=True) if np.ptp(of_name)}


def enough_draws(
    chain: Iterator[Logits], sweeps: int, report: Report = no_report
) -> Float[np.ndarray, "sweeps numbers"]:
    """Returns draws from a chain, after half as many that are left out, until enough are independent or there are many.

    Args:
        chain: Draws of numbers without an end.
        sweeps: How many count, if enough of them are independent; else a multiple.
        report: Receives how many draws are done, and how many there are.
    """
    _, most = _SWEEPS
    draws, counted = [], np.empty((0, 0))
    for factor in range(1, ceil_div(most, sweeps) + 1):
        number = min(factor * sweeps, most)
        total = number + number // 2
        while len(draws) < total:
            draws.append(next(chain))
            report(len(draws), total)
        counted = np.array(draws[-number:])
        moves = np.ptp(counted, axis=0) > 0
        if (independent_draws(counted[:, moves]) >= _INDEPENDENT).all():
            break
    return counted


def _rows(tower: Parameter) -> Rows:
    return cast(Table, table_of_documents(tower)).get_value()


def _logits(tower: Parameter) -> Logits:
    """Returns the number of each row, or the mean of its posterior."""
    if isinstance(tower, GlobalParameter | PositionParameter):
        return np.asarray(tower.weight[...], np.float64).ravel()
    rows = _rows(tower)
    means = np.asarray(rows.means(rows.values)[:, 0], np.float64)
    return means + cast(EmbeddingParameter, tower).level


def _means_of_prior(tower: Parameter) -> Logits:
    """Returns the means that rows have before any click, as training has learned them."""
    return _logits(tower) - np.asarray(_rows(tower).values[:, 0], np.float64)


def _prior_by_lists(
    tower: Parameter, counts: ByDocument, queries: Queries
) -> tuple[_Documents, NormalPrior]:
    """Returns the documents that are shown, and their prior by what lists show."""
    rows, documents = _rows(tower), np.flatnonzero(counts.shown)
    shown = shown_in(rows, counts.shown, queries).some(documents)
    lines = np.column_stack([np.ones(len(documents)), *regressors(shown)])
    query = np.unique(shown.query, return_inverse=True)[1]
    base = _means_of_prior(tower)[documents]
    # a policy tells more of documents that it shows on top
    log_ranks = counts.log_ranks[documents] / counts.shown[documents]
    group = np.argsort(np.argsort(log_ranks, kind="stable")) * _GROUPS // len(documents)
    return documents, NormalPrior(base, lines, scale_of(rows) ** -2, query, group)


def _prior_of_clicked(
    tower: Parameter, clicks: Integer[np.ndarray, " rows"]
) -> tuple[_Documents, NormalPrior]:
    """Returns the documents that are clicked, and their prior, of one mean."""
    documents = np.flatnonzero(clicks)
    base = _means_of_prior(tower)[documents]
    lines = np.ones((len(documents), 1))
    return documents, NormalPrior(base, lines, scale_of(_rows(tower)) ** -2)


def _follow(
    model: Model,
    train: Sessions,
    places: Integer[np.ndarray, " numbers"],
    step: Float[np.ndarray, " numbers"],
    devices: int | str,
) -> None:
    """Moves the means of rows as their posteriors do with a step of shared numbers, to first order."""
    passes, state, data = prepared(model, train, devices)
    tables = by_path(model, row_tables(model))
    kept = {
        path: np.arange(len(table.get_value().values) if path in tables else 0)
        for path, table in nnx.to_flat_state(state[1])
    }
    sums = passes.sums(state, places, kept, data, cross_only=True)
    for path, table in tables.items():
        rows = table.get_value()
        crossed = np.asarray(sums.rows[path], np.float64)[:, 0] @ step
        moved = np.asarray(rows.deviations(rows.values)[:, 0], np.float64) ** 2 * crossed
        values = rows.values.at[:, 0].add(-jnp.float32(moved))
        table.set_value(dataclasses.replace(rows, values=values))


def _of_some_queries(train: Sessions, queries: Queries) -> tuple[Sessions, Queries]:
    """Returns the sessions of some queries by chance, as many as are read at most, and how many lists these have."""
    most = _MOST_DOCUMENTS // train.ranks
    if train.count <= most:
        return train, queries
    labels = queries.labels
    query = np.concatenate([labels[chunk["query_doc_ids"][:, 0]] for chunk in train.chunks()])
    turns = np.random.default_rng(0).permutation(np.arange(len(labels), dtype=np.int32))[query]
    last = np.partition(turns, most)[most]
    is_read = turns < last
    # a part of the last query: where queries share documents, all may be one
    is_read[np.flatnonzero(turns == last)[: most - np.count_nonzero(is_read)]] = True
    lists = np.bincount(query[is_read], minlength=len(labels)).astype(np.float32)
    return train.select(np.flatnonzero(is_read)), Queries(labels, lists[labels])
