"""Latest clicks and queries of search sessions, against loops over lists."""

import numpy as np
import pytest
from small_logs import session_log

from clickexp.data import Column, Sessions, search_sessions
from clickexp.data.history import HISTORY

EARLIER = 10
"""As the guide to session context says."""


def by_loops(columns):
    """The columns, list by list."""
    found = {name: [] for name in HISTORY}
    past = {}
    for at, session in enumerate(columns["session_ids"]):
        before = past.setdefault(session, {name: [] for name in HISTORY})
        for name, values in before.items():
            found[name].append([0] * (EARLIER - len(values[-EARLIER:])) + values[-EARLIER:])
        for rank in np.flatnonzero(columns["clicks"][at]):
            before["clicked_query_doc_ids"].append(columns["query_doc_ids"][at][rank])
            before["clicked_document_ids"].append(columns["document_ids"][at][rank])
            before["clicked_positions"].append(
                columns.get("positions", np.tile(range(1, 5), (at + 1, 1)))[at][rank]
            )
        # 0 where the log lacks a document
        shown = (number for number in columns["query_numbers"][at] if number)
        before["earlier_query_numbers"].append(next(shown, 0))
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("lists_at_a_time", [7, 1 << 16])
def test_columns_are_those_of_a_loop_over_lists(apart, positions, lists_at_a_time, monkeypatch):
    monkeypatch.setattr(search_sessions, "_LISTS", lists_at_a_time)
    columns = session_log(apart=apart, sessions=20)
    ids = columns["query_doc_ids"]
    more = {
        "document_ids": np.where(ids > 0, 1 + ids // 2, 0),
        "query_numbers": np.where(ids % 5, 1 + ids % 3, 0),
    }
    if positions:
        columns["positions"] = np.where(ids > 0, np.array([2, 4, 5, 9]), 0)
    log = Sessions.from_arrays(
        **columns, extra={Column(name, "int32"): values for name, values in more.items()}
    )
    expected = by_loops({**columns, **more})
    assert {name for name in log.derived if name in HISTORY} == {*HISTORY}
    for name, values in expected.items():
        np.testing.assert_array_equal(log.column(name), values)
        assert log.bounds(name) == (0, values.max())
    assert any(
        (values > 0).all(axis=1).any() and (values == 0).all(axis=1).any()
        for values in expected.values()
    )
    some = np.random.default_rng(1).permutation(log.count)[:50]
    last = log.slice(200, 300)
    for name, values in expected.items():
        np.testing.assert_array_equal(log.rows(some, [name])[name], values[some])
        np.testing.assert_array_equal(last.column(name), values[200:])


def test_logs_without_clicks_or_lists_have_no_history():
    columns = session_log()
    columns["clicks"][:] = False
    log = Sessions.from_arrays(**columns)
    assert not log.column("clicked_positions").any() and log.bounds("clicked_positions") == (0, 0)
    none = Sessions.from_arrays(**{name: values[:0] for name, values in columns.items()})
    assert none.column("clicked_positions").shape == (0, EARLIER)
