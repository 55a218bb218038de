"""Links between positions, against sets and union-find in plain Python."""

import math
import statistics
from itertools import combinations
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

from clickexp.data import Dataset, Sessions, view
from clickexp.data.inspect.identifiability import Link, identifiability
from clickexp.experiment import display
from clickexp.experiment.build import build_model
from clickexp.experiment.run import run_experiment
from clickexp.models import CascadeModel, PositionBasedModel

CONF = str(ROOT / "conf")


def packed(lists, positions=None, pairs=None):
    """Sessions of lists of documents; without positions, the rank is the position."""
    ranks = max(map(len, lists))
    columns = {"query_doc_ids": lists} | ({} if positions is None else {"positions": positions})
    arrays = {
        name: np.array([row + [0] * (ranks - len(row)) for row in rows])
        for name, rows in columns.items()
    }
    lengths = np.array(list(map(len, lists)))
    clicks = np.zeros((len(lists), ranks), bool)
    return Sessions.from_arrays(**arrays, clicks=clicks, lengths=lengths, query_doc_pairs=pairs)


def by_hand(lists, positions=None):
    """Documents at each position, documents shared by two, and the groups, largest links first (Kruskal)."""
    positions = positions or [range(1, len(row) + 1) for row in lists]
    documents, shown = {}, {}
    for row, places in zip(lists, positions):
        for document, position in zip(row, places):
            documents.setdefault(position, set()).add(document)
            shown[position] = shown.get(position, 0) + 1
    links = {
        (p, q): len(documents[p] & documents[q]) for p, q in combinations(sorted(documents), 2)
    }
    parent = {position: position for position in documents}

    def root(position):
        return position if parent[position] == position else root(parent[position])

    weakest = None
    for (p, q), strength in sorted(links.items(), key=lambda item: -item[1]):
        if strength and root(p) != root(q):
            parent[root(p)], weakest = root(q), strength
    groups = {}
    for position in sorted(documents):
        groups.setdefault(root(position), []).append(position)
    return documents, shown, links, sorted(map(tuple, groups.values())), weakest


def assert_as_by_hand(report, lists, positions=None):
    documents, shown, links, groups, weakest = by_hand(lists, positions)
    nodes = sorted(documents)
    assert report.positions.tolist() == nodes
    assert report.shown.tolist() == [shown[p] for p in nodes]
    for (i, p), (j, q) in combinations(enumerate(nodes), 2):
        assert report.links[i, j] == report.links[j, i] == links[p, q]
    assert report.links.diagonal().tolist() == [len(documents[p]) for p in nodes]
    assert list(report.groups) == groups
    assert report.identified == (len(groups) == 1)
    if weakest is None:
        assert report.weakest is None
    else:
        assert links[report.weakest[:2]] == report.weakest.documents == weakest


@st.composite
def logs(draw):
    """Lists of documents, and positions of them or None."""
    lists = draw(
        st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=5), min_size=1, max_size=12)
    )
    if draw(st.booleans()):
        return lists, None
    place = st.integers(1, draw(st.sampled_from([4, 80])))
    return lists, [draw(st.lists(place, min_size=len(row), max_size=len(row))) for row in lists]


@pytest.mark.parametrize("examples", [30, pytest.param(150, marks=pytest.mark.nightly)])
def test_any_log_is_as_by_hand(examples):
    """Also where ids are sparse, and across chunks."""

    @settings(max_examples=examples, deadline=None)
    @given(logs(), st.sampled_from([None, 5000]), st.sampled_from([1, 3, 1 << 18]))
    def check(log, pairs, chunk):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(view, "_CHUNK", chunk)
            assert_as_by_hand(identifiability(packed(*log, pairs=pairs)), *log)

    check()


def test_positions_that_documents_link_are_identified():
    report = identifiability(packed([[1, 2, 3], [2, 1, 3], [4, 3, 2], [5, 3, 1], [1, 2]]))
    assert report.links.tolist() == [[4, 2, 2], [2, 3, 3], [2, 3, 3]]
    assert report.groups == ((1, 2, 3),) and report.weakest == Link(1, 2, 2)
    assert report.describe() == (
        "examination: documents link all 3 positions; weakest link: 2 documents at both 1 and 2, "
        "which may leave their ratio open: see the intervals of clickexp-export"
    )


def test_many_documents_link_positions_without_a_hint():
    swapped = [
        [2 * pair + 1 + (side ^ order) for order in (0, 1)] for pair in range(10) for side in (0, 1)
    ]
    assert (
        identifiability(packed(swapped))
        .describe()
        .endswith("weakest link: 20 documents at both 1 and 2")
    )


def test_positions_that_no_document_links_are_reported():
    report = identifiability(packed([[1, 2, 7, 8], [2, 1, 8, 9]], [[1, 2, 5, 7]] * 2))
    assert report.groups == ((1, 2), (5, 7)) and not report.identified
    assert report.merged({2}).groups == report.groups
    assert report.merged({2, 7}).groups == ((1, 2, 5, 7),)
    assert not report.merged({2, 7}).warns
    assert "no document links the groups of positions 1-2 | 5, 7. " in report.describe()
    alone = identifiability(packed([[1], [2]]))
    assert alone.identified and alone.describe().startswith("examination: one position only")


def test_seventy_positions():
    """A chain of documents at r and r + 1, cut between 64 and 65 or not."""
    for cut in (None, 64):
        lists = [[100 + r, r] for r in range(1, 70) if r != cut] + [
            [100 + r, 300 + r] for r in range(1, 70)
        ]
        places = [[r, r + 1] for r in range(1, 70) if r != cut] + [[r, r + 1] for r in range(1, 70)]
        chain = [[r, r] for r in range(1, 70) if r != cut]
        report = identifiability(packed(lists + chain, places + [[r, r + 1] for r, _ in chain]))
        assert_as_by_hand(report, lists + chain, places + [[r, r + 1] for r, _ in chain])
        assert len(report.positions) == 70 and len(report.groups) == (1 if cut is None else 2)
    many = identifiability(packed([list(range(1, 71))]))
    assert "1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 62 more" in many.describe()


def test_enough_sessions_are_enough_only_if_they_link_everything():
    linked, apart = [[1, 2], [2, 1]], [[3, 4], [5, 6]]
    assert identifiability(packed(linked + apart), enough=2).links.tolist() == [[2, 2], [2, 2]]
    assert identifiability(packed(apart + linked), enough=2).links.tolist() == [[4, 2], [2, 4]]
    assert not identifiability(packed(apart + [[1, 2, 9]] + linked), enough=2).identified


def movement_by_hand(lists, positions):
    """Variance of log positions within documents, each with its own mean, over that of all."""
    of_document, places = {}, []
    for row, shown_at in zip(lists, positions):
        for document, position in zip(row, shown_at):
            of_document.setdefault(document, []).append(math.log(position))
            places.append(math.log(position))
    squares = [sum((each - statistics.mean(group)) ** 2 for each in group)
               for group in of_document.values()]  # fmt: skip
    return sum(squares) / (len(places) - len(of_document)) / statistics.variance(places)


@pytest.mark.parametrize("chunk", [7, 1 << 18])
def test_movement_is_the_variance_of_log_positions_within_documents(chunk, monkeypatch):
    monkeypatch.setattr(view, "_CHUNK", chunk)
    rng = np.random.default_rng(0)
    lists = [rng.choice(30, rng.integers(1, 6), replace=False).tolist() for _ in range(80)]
    positions = [sorted(rng.choice(9, len(row), replace=False) + 1) for row in lists]
    ranks = [range(1, len(row) + 1) for row in lists]
    for places, columns in ((positions, positions), (ranks, None)):
        found = identifiability(packed(lists, columns, pairs=30)).movement
        assert found == pytest.approx(movement_by_hand(lists, places), rel=1e-9)
    assert math.isnan(identifiability(packed(lists[:8], pairs=30)).movement)


@pytest.mark.parametrize("shuffled, nearly_fixed", [(0.05, True), (0.5, False), (1.0, False)])
def test_documents_that_hardly_move_are_reported(shuffled, nearly_fixed):
    report = identifiability(packed(three_ranks(shuffled)[0].tolist()))
    assert report.identified and report.nearly_fixed == report.warns == nearly_fixed
    # means of documents are as far apart as the share of lists that are not shuffled
    assert report.movement == pytest.approx(1 - (1 - shuffled) ** 2, abs=0.05)
    assert report.describe().startswith("warning: documents hardly move") == nearly_fixed


def three_ranks(shuffled):
    """Ids and clicks of documents of one rank each, but in a share of the lists, which are in random order."""
    rng = np.random.default_rng(0)
    ids = 1 + 3 * rng.integers(0, 5, (300, 1)) + np.arange(3)
    at_random = rng.random((300, 1)) < shuffled
    ids = np.where(at_random, rng.permuted(ids, axis=1), ids)
    return ids, rng.random((300, 3)) < 0.3


CASES = [
    (PositionBasedModel, "pbm", 0.0),
    (PositionBasedModel, "pbm", 0.05),
    (PositionBasedModel, "pbm", 1.0),
    (CascadeModel, "cm", 0.0),
]
APART = "no document links the groups of positions 1 | 2 | 3."
EXPECTED = {
    ("pbm", 0.0): ([True], [False]),
    ("pbm", 0.05): ([False], [True]),
    ("pbm", 1.0): ([], []),
    ("cm", 0.0): ([], []),
}
"""Whether each warning is that of positions apart, and of documents that hardly move."""


@pytest.mark.parametrize("model, name, shuffled", CASES)
def test_what_precedes_a_run_warns_where_the_model_cannot_tell_examination(model, name, shuffled):
    ids, clicks = three_ranks(shuffled)
    sessions = Sessions.from_arrays(query_doc_ids=ids, clicks=clicks)
    parts = (sessions.slice(*ends) for ends in ((0, 200), (200, 250), (250, 300)))
    dataset = Dataset("log", *parts, sessions.query_doc_pairs, sessions.positions)
    logger, config = Mock(), SimpleNamespace(without_effect=())
    parts = {
        "config": config,
        "dataset": dataset,
        "logger": logger,
        "metrics": {},
        "metric_weightings": {},
    }
    parts |= {"links": identifiability(dataset.train), "weighting": None, "continued": None}
    display.note(SimpleNamespace(**parts, model=build_model(model, dataset, 0)))
    warnings = [call.args[0] for call in logger.warning.mock_calls]
    apart, fixed = (
        [text in line for line in warnings] for text in (APART, "documents hardly move")
    )
    assert (apart, fixed) == EXPECTED[name, shuffled]


@pytest.mark.nightly
@pytest.mark.parametrize("model, name, shuffled", CASES)
def test_a_run_warns_where_the_model_cannot_tell_examination(
    model, name, shuffled, tmp_path, capsys
):
    ids, clicks = three_ranks(shuffled)
    table = pa.table({"query_doc_ids": ids.tolist(), "clicks": clicks.tolist()})
    pq.write_table(table, tmp_path / "log.parquet")
    overrides = [
        f"model={name}",
        "dataset=lists",
        f"dataset.path={tmp_path}/log.parquet",
        "trainer.epochs=1",
    ]
    overrides += [
        "logger=console",
        "progress=off",
        "save_model=false",
        f"cache_dir={tmp_path}/cache",
    ]
    with initialize_config_dir(CONF, version_base="1.3"):
        run_experiment(compose("config", overrides), tmp_path)
    assert (APART in capsys.readouterr().out) == (name == "pbm" and not shuffled)
