"""Values of single sessions and lists, kept beside a result: what intervals and paired tests are made from."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data import Sessions
from clickexp.errors import UserError
from clickexp.metrics import MultiMetric
from clickexp.metrics.click import perplexity, pyclick_ranks
from clickexp.metrics.multi import weight_of
from clickexp.runs.store import LISTS, SESSIONS
from clickexp.utils.files import undamaged, whole
from clickexp.utils.statistics.bootstrap import Interval, PairedTest, Samples, bootstrap_interval
from clickexp.utils.statistics.bootstrap import paired_test as paired_test_of

OBSERVED = {
    "ll": "observed_conditional_log_prob",
    "cond_ppl": "observed_conditional_log_prob",
    "ppl": "observed_log_prob",
}
_DAMAGE = (Exception, pl.exceptions.PanicException)
"""Errors of a damaged file, of which Polars panics at some."""
_CONVENTION = "rank_normalization"
_SEARCH_SESSION, _POSITIONS = "search_session", "positions"
_UNITS = {"query_id": "queries", _SEARCH_SESSION: "search sessions"}
"""What values are summed over, by the column of its ids."""


def write_values(
    folder: Path,
    test: Sessions,
    clicks: MultiMetric,
    by_clicks: MultiMetric,
    ranking: Sessions | None,
    lists: MultiMetric,
) -> None:
    """Writes what the metrics kept, one row per session or list in the order of the data.

    test_sessions.parquet holds query_id and, for each document, the log-probability of what was observed, marginal
    (`observed_log_prob`) and given the clicks above (`observed_conditional_log_prob`), NaN behind the last document,
    `search_session` where the log has it, and `positions` where they are not the places in the list; of each metric of
    rankings by clicks its sum over the clicks of the session, and their `.weights`, which its mean divides by.
    test_lists.parquet query_id and each ranking metric, null where a list does not count. Without query ids every
    session is a separate query.

    Args:
        folder: That of the run.
        test: The test sessions.
        clicks: Their metrics, which kept values.
        by_clicks: Metrics of rankings by their clicks.
        ranking: The labelled lists, if there are any.
        lists: Their metrics.
    """
    if clicks.metrics or by_clicks.metrics:
        convention = getattr(clicks.metrics.get("ppl"), _CONVENTION, "own")
        values = {**clicks.values(), **by_clicks.values()}
        _write(folder / SESSIONS, test, values, {_CONVENTION: convention})
    if ranking is not None and lists.metrics:
        _write(folder / LISTS, ranking, lists.values(), {})


def _write(
    file: Path,
    sessions: Sessions,
    kept: Mapping[str, np.ndarray],
    metadata: dict[str, str],
) -> None:
    queries = (
        sessions.column("query_ids")
        if "query_ids" in sessions.columns
        else np.arange(sessions.count)
    )
    columns = {"query_id": np.asarray(queries, np.int64)}
    if "session_ids" in sessions.columns:
        columns[_SEARCH_SESSION] = sessions.column("session_ids")
    if not sessions.positions_are_ranks:
        columns[_POSITIONS] = sessions.column(_POSITIONS)
    columns |= {name: values[: sessions.count] for name, values in kept.items()}
    frame = pl.DataFrame(columns).with_columns(pl.col(pl.Float32, pl.Float64).fill_nan(None))
    with whole(file) as part:
        frame.write_parquet(part, metadata=metadata)


def interval(run: str | Path, metric: str, **options: Any) -> Interval:
    """Bootstrap interval of a run's test metric, over queries or search sessions; see `samples`.

    Args:
        run: Folder of a run with keep_values=true.
        metric: Its name, such as ll, ppl, cond_ppl or ndcg@10.
        **options: Those of `bootstrap_interval`.

    Raises:
        UserError: Values were not kept.
    """
    return bootstrap_interval(samples(run, metric), **options)


def paired_test(run: str | Path, other: str | Path, metric: str, **options: Any) -> PairedTest:
    """Whether the first run is better or worse than the other in a metric, on the same test set.

    Args:
        run: Folder of the first run.
        other: Folder of the other.
        metric: Its name, such as ll, ppl, cond_ppl or ndcg@10.
        **options: Those of `clickexp.utils.statistics.bootstrap.paired_test`.

    Raises:
        UserError: Values were not kept, or the test sets differ.
    """
    return paired_test_of(samples(run, metric), samples(other, metric), **options)


def samples(run: str | Path, metric: str) -> Samples:
    """Samples of a metric of the run in this folder, one per query of the test set.

    Of a metric of clicks, what each search session adds where the log has them: the lists of one user are not
    independent of each other.

    Raises:
        UserError: No such values were kept, or their file is damaged.
    """
    of_sessions, of_lists = Path(run) / SESSIONS, Path(run) / LISTS
    is_of_sessions = metric in OBSERVED or metric in _columns(of_sessions)
    file = of_sessions if is_of_sessions else of_lists
    if not file.is_file():
        raise UserError(
            f"{run}: no values of single {file.stem[5:]} were kept. Run again with keep_values=true."
        )
    if metric in OBSERVED:
        with undamaged(file, _DAMAGE):
            frame = pl.read_parquet(file, glob=False)
            return _of_sessions(frame, metric, pl.read_parquet_metadata(file)[_CONVENTION])
    names = [name for name in _columns(file) if name not in _UNITS]
    if metric not in names:
        raise UserError(
            f"{file}: there are no values of {metric}; choose from {', '.join([*OBSERVED, *names])}"
        )
    by = _SEARCH_SESSION if is_of_sessions and _SEARCH_SESSION in _columns(file) else "query_id"
    with undamaged(file, _DAMAGE):
        return _of_values(file, metric, by)


def _columns(file: Path) -> list[str]:
    """Names of the columns of a file of values; none where there is no file."""
    if not file.is_file():
        return []
    with undamaged(file, _DAMAGE):
        return pl.read_parquet(file, n_rows=0, glob=False).columns


def _of_values(file: Path, metric: str, by: str) -> Samples:
    """Sums [unit, 2] of the values of a metric, and of what their mean divides by."""
    columns, weight = _columns(file), weight_of(metric)
    names = [by, metric, *([weight] if weight in columns else [])]
    frame = pl.read_parquet(file, columns=names, glob=False).drop_nulls()
    weights = frame[weight] if weight in columns else np.ones(len(frame))
    sums = np.stack([frame[metric], weights], axis=1)
    return Samples.of_lists(frame[by].to_numpy(), sums, _mean, _UNITS[by])


def _of_sessions(frame: pl.DataFrame, metric: str, convention: str) -> Samples:
    """Sums [query, 2 ranks + 2]: log P of what was observed and documents, by rank; lists, and means over lists."""
    observed = frame[OBSERVED[metric]].to_numpy()
    where = ~np.isnan(observed)
    log_prob = np.where(where, observed, 0)
    if _POSITIONS in frame:
        places = np.arange(len(frame))[:, None], frame[_POSITIONS].to_numpy() - 1
        log_prob, where = (_placed(values, places) for values in (log_prob, where))
    lengths = where.sum(axis=1, keepdims=True)
    means = log_prob.sum(axis=1, keepdims=True) / np.maximum(lengths, 1)
    sums = np.concatenate([log_prob, where, lengths > 0, means], axis=1)
    value = partial(_log_likelihood if metric == "ll" else _perplexity, convention == "pyclick")
    by = _SEARCH_SESSION if _SEARCH_SESSION in frame else "query_id"
    return Samples.of_lists(frame[by].to_numpy(), sums, value, _UNITS[by])


def _placed(values: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Sums by list and position of numbers at places in the list."""
    by_position = np.zeros((len(values), places[1].max() + 1))
    np.add.at(by_position, places, values)
    return by_position


def _log_likelihood(pyclick: bool, sums: np.ndarray) -> np.ndarray:
    log_prob, documents, lists, means = _parts(sums)
    return means / lists if pyclick else log_prob.sum(axis=-1) / documents.sum(axis=-1)


def _perplexity(pyclick: bool, sums: np.ndarray) -> np.ndarray:
    log_prob, documents, lists, _ = _parts(sums)
    if pyclick:
        return perplexity(pyclick_ranks(log_prob) / lists[..., None]).mean(axis=-1)
    seen = documents > 0
    return np.where(seen, perplexity(log_prob / np.where(seen, documents, 1)), 0).sum(
        axis=-1
    ) / seen.sum(axis=-1)


def _parts(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    ranks = sums.shape[-1] // 2 - 1
    return sums[..., :ranks], sums[..., ranks : 2 * ranks], sums[..., -2], sums[..., -1]


def _mean(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]
