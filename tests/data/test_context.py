"""What came before a list in its search session, against loops over sets and dictionaries."""

from collections import Counter

import numpy as np
import pytest
from small_logs import session_log

from clickexp.data import Column, Dataset, Sessions, search_sessions
from clickexp.data.context import CONTEXT
from clickexp.data.inspect.context import context_summaries

NAMES = [*CONTEXT]


def by_loops(columns, documents):
    """The columns, list by list."""
    found = {name: [] for name in NAMES}
    past = {}
    for at, session in enumerate(columns["session_ids"]):
        before = past.setdefault(session, [])
        length = columns["lengths"][at]
        shown, clicked = list(documents[at][:length]), columns["clicks"][at][:length]
        found["session_index"].append(len(before))
        found["previous_clicks"].append(int(before[-1][1].sum()) if before else 0)
        found["session_clicks"].append(sum(int(clicks.sum()) for _, clicks, _ in before))
        found["query_repeated"].append(columns["query_ids"][at] in {query for *_, query in before})
        found["list_repeated"].append(bool(before) and before[-1][0] == shown)
        seen = {document for docs, *_ in before for document in docs}
        of_clicks = {docs[rank] for docs, clicks, _ in before for rank in np.flatnonzero(clicks)}
        states = [2 if document in of_clicks else int(document in seen) for document in shown]
        found["document_seen"].append(states + [0] * (documents.shape[1] - length))
        before.append((shown, clicked, columns["query_ids"][at]))
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("lists_at_a_time", [7, 1 << 16])
def test_columns_are_those_of_a_loop_over_lists(apart, lists_at_a_time, monkeypatch):
    monkeypatch.setattr(search_sessions, "_LISTS", lists_at_a_time)
    columns = session_log(apart=apart)
    log = Sessions.from_arrays(**columns)
    expected = by_loops(columns, columns["query_doc_ids"])
    assert all(values.any() for values in expected.values())
    for name in NAMES:
        np.testing.assert_array_equal(log.column(name), expected[name], err_msg=name)


def test_times_order_the_lists_of_a_session():
    columns = session_log(apart=True)
    expected = Sessions.from_arrays(**columns)
    order = np.random.default_rng(0).permutation(len(columns["lengths"]))
    shuffled = {name: values[order] for name, values in columns.items()}
    log = Sessions.from_arrays(**shuffled, times=order / 3)
    for name in (*NAMES, "clicked_query_doc_ids", "clicked_positions"):
        np.testing.assert_array_equal(log.column(name), expected.column(name)[order], err_msg=name)
    without = Sessions.from_arrays(**shuffled)
    assert (without.column("session_index") != log.column("session_index")).any()


def test_lists_in_order_are_read_as_they_are():
    columns = session_log()
    ids = np.unique(columns["session_ids"], return_inverse=True)[1]
    columns = {name: values[np.argsort(-ids, kind="stable")] for name, values in columns.items()}
    for times in ({}, {"times": np.arange(len(ids)) // 2}):
        log = Sessions.from_arrays(**columns, **times)
        assert all(isinstance(lists.rows, slice) for lists in search_sessions.SessionOrder(log))


def test_an_id_of_unknown_users_is_named_once(monkeypatch, caplog):
    monkeypatch.setattr(search_sessions, "_LARGE", 8)
    columns = session_log(apart=True)
    columns["session_ids"] = np.where(
        np.arange(len(columns["lengths"])) % 3, columns["session_ids"], 987654
    )
    log = Sessions.from_arrays(**columns)
    for name in (*NAMES, "clicked_positions"):
        log.column(name)
    (message,) = (record.getMessage() for record in caplog.records)
    assert f"session 987654 has {(columns['session_ids'] == 987654).sum()} lists" in message


def test_documents_are_told_apart_by_their_own_ids():
    columns = session_log(seed=1)
    documents = (columns["query_doc_ids"] + 2) // 3
    log = Sessions.from_arrays(**columns, extra={Column("document_ids", "int32"): documents})
    np.testing.assert_array_equal(
        log.column("document_seen"), by_loops(columns, documents)["document_seen"]
    )


def test_numbers_too_large_for_one_key_are_ordered_alike(monkeypatch):
    columns = session_log(seed=2)
    expected = Sessions.from_arrays(**columns).column("document_seen")
    columns["query_doc_ids"] = np.where(
        columns["query_doc_ids"] > 0, columns["query_doc_ids"] * 2 * 10**8, 0
    )
    rng = np.random.default_rng(0)
    session = np.repeat(rng.permutation(10**5), 1)  # many sessions before those that count
    single = {name: np.repeat(values[:1], len(session), axis=0) for name, values in columns.items()}
    single["session_ids"] = session + 10**15
    whole = {name: np.concatenate([single[name], columns[name]]) for name in columns}
    monkeypatch.setattr(search_sessions, "_LISTS", 1 << 20)
    found = Sessions.from_arrays(**whole).column("document_seen")
    assert not found[: len(session)].any()
    np.testing.assert_array_equal(found[len(session) :], expected)


def test_without_queries_there_is_no_repeated_one():
    columns = session_log()
    del columns["query_ids"]
    log = Sessions.from_arrays(**columns)
    assert "query_repeated" not in log.schema and log.column("session_index").max() > 2


def test_counts_stop_at_the_largest_that_fits():
    lists = 300
    ids = np.ones((lists, 1), np.int32)
    log = Sessions.from_arrays(query_doc_ids=ids, clicks=ids > 0, session_ids=np.zeros(lists, int))
    assert log.column("session_clicks")[-1] == lists - 1
    assert (log.column("document_seen")[1:] == 2).all()


def test_parts_of_a_log_keep_what_came_before_them():
    columns = session_log()
    log = Sessions.from_arrays(**columns)
    for view, rows in (
        (log.slice(11, 40), slice(11, 40)),
        (log.select(np.array([5, 90])), [5, 90]),
    ):
        np.testing.assert_array_equal(
            view.column("session_clicks"), log.column("session_clicks")[rows]
        )
        np.testing.assert_array_equal(
            view.column("document_seen"), log.column("document_seen")[rows]
        )


def test_a_log_without_search_sessions_has_no_context():
    columns = session_log()
    del columns["session_ids"]
    assert not Sessions.from_arrays(**columns).derived


def dataset_of(columns):
    log = Sessions.from_arrays(**columns)
    parts = log.slice(0, 180), log.slice(180, 240), log.slice(240, 300)
    return Dataset("log", *parts, log.query_doc_pairs, log.positions)


def test_inspection_counts_what_a_loop_counts():
    columns = session_log()
    train = context_summaries(dataset_of(columns))["train"]
    found = {
        name: values[:180] for name, values in by_loops(columns, columns["query_doc_ids"]).items()
    }
    shown = np.arange(4) < columns["lengths"][:180, None]
    assert (train.lists, train.documents) == (180, shown.sum())
    assert train.later == (found["session_index"] > 0).sum()
    assert train.query_repeated == found["query_repeated"].sum()
    assert train.list_repeated == found["list_repeated"].sum()
    assert train.seen == (found["document_seen"][shown] > 0).sum()
    assert train.clicked == (found["document_seen"][shown] == 2).sum()
    lists = Counter(columns["session_ids"][:180].tolist())
    assert train.sessions == len(lists)
    assert train.lengths.tolist() == [
        Counter(lists.values())[n] for n in range(max(lists.values()) + 1)
    ]


def test_inspection_without_queries_and_without_sessions():
    columns = session_log()
    del columns["query_ids"]
    assert context_summaries(dataset_of(columns))["val"].query_repeated is None
    del columns["session_ids"]
    assert context_summaries(dataset_of(columns)) == {}
