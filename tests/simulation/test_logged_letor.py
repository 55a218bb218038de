"""Learning-to-rank files whose labels are logged clicks, in the layout of LightGBM: FILE and FILE.position."""

import numpy as np
import pytest
from refusals import refuses

from clickexp.errors import DataError
from clickexp.simulation import open_letor

LOGGED = dict(clicks="logged", transform="none")


def write(folder, name, queries, positions=None, start=0):
    """Queries as lists of labels; the one feature of each document is its place in the file, from `start`."""
    folder.mkdir(exist_ok=True)
    labels = [(label, query) for query, labels in queries.items() for label in labels]
    lines = [f"{label} qid:{query} 0:{start + n}" for n, (label, query) in enumerate(labels)]
    (folder / name).write_text("\n".join(lines) + "\n")
    if positions is not None:
        words = [str(place) for places in positions for place in places]
        (folder / f"{name}.position").write_text("\n".join(words) + "\n")


def clicks_of(queries, first=0):
    """Queries with these many lists, one document of each clicked."""
    return {first + i: [int(j == i % 3) for j in range(3)] for i in range(queries)}


@pytest.fixture
def folder(tmp_path):
    """Twenty lists to train on, shown from the third document to the first; eight of others, one judged in grades."""
    shown = [[2, 1, 0]] * 20
    write(tmp_path / "log", "train.txt", clicks_of(20), shown, 1)
    write(tmp_path / "log", "vali.txt", clicks_of(8, 100), shown[:8], 61)
    write(tmp_path / "log", "test.txt", {200: [0, 3, 1], 201: [2, 0]}, start=85)
    return tmp_path / "log"


def test_labels_are_the_clicks_and_lists_are_in_the_order_of_positions(folder):
    dataset = open_letor(folder, **LOGGED)
    assert (dataset.train.count, dataset.val.count, dataset.test.count) == (16, 8, 4)
    assert dataset.truth is None and not dataset.train.has_labels
    queries = {*dataset.train.column("query_ids"), *dataset.test.column("query_ids")}
    assert queries == {*range(20)}
    for part in (dataset.train, dataset.val, dataset.test):
        features = part.features.values[part.column("query_doc_ids"), 0]
        np.testing.assert_array_equal(part.column("positions"), np.tile([1, 2, 3], (part.count, 1)))
        np.testing.assert_array_equal(np.diff(features, axis=1), -1)  # read from the end
        clicked = np.argmax(part.column("clicks")[:, ::-1], axis=1)
        np.testing.assert_array_equal(clicked, part.column("query_ids") % 100 % 3)
        assert (part.column("clicks").sum(axis=1) == 1).all()
    assert {*dataset.val.column("query_ids")} == {*range(100, 108)}


def test_a_test_file_with_grades_is_ranked(folder):
    ranking = open_letor(folder, **LOGGED).ranking
    assert ranking.column("query_ids").tolist() == [200, 201]
    assert ranking.column("labels").tolist() == [[0, 3, 1], [2, 0, 0]]
    features = ranking.features.values[ranking.column("query_doc_ids"), 0]
    assert features.tolist() == [[85, 86, 87], [88, 89, 0]]


def test_without_positions_lines_are_in_order_and_positions_may_begin_at_1(folder, tmp_path):
    (folder / "test.txt").write_text((folder / "vali.txt").read_text())
    one_based = "\n".join(["3", "2", "1"] * 20)
    (folder / "train.txt.position").write_text(one_based)
    (folder / "vali.txt.position").unlink()
    dataset = open_letor(folder, **LOGGED)
    assert dataset.ranking is None and (dataset.train.count, dataset.test.count) == (20, 8)
    first = dataset.train.column("query_doc_ids")[0], dataset.test.column("query_doc_ids")[0]
    values = [dataset.train.features.values[ids, 0].tolist() for ids in first]
    assert values == [[3, 2, 1], [61, 62, 63]]
    assert dataset.train.column("positions").max() == 3


def test_long_lists_are_cut_at_a_position(folder):
    dataset = open_letor(folder, **LOGGED, positions=2)
    assert dataset.train.ranks == 2 and dataset.notes["cut_lists"] == 28


def test_positions_are_never_taken_for_data_nor_left_out_silently(folder):
    with refuses(DataError, "train.txt.position", "clicks=logged"):
        open_letor(folder)
    for file in folder.glob("*.position"):
        file.unlink()
    few = dict(sessions=20, val_sessions=10, test_sessions=10)
    assert open_letor(folder, **few).ranking.count == 2


BROKEN = {
    "a label that is no click": ("train.txt", "2 qid:0 0:1", ("train.txt, line 1", "label 2")),
    "a word": ("train.txt.position", "first", ("train.txt.position, line 1", "'first'")),
    "a negative position": ("train.txt.position", "-1", ("train.txt.position, line 1", "'-1'")),
    "too few positions": ("train.txt.position", "", ("train.txt.position", "59 positions for 60")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_named(case, folder):
    name, line, parts = BROKEN[case]
    lines = (folder / name).read_text().splitlines()
    (folder / name).write_text("\n".join([line, *lines[1:]]))
    with refuses(DataError, *parts):
        open_letor(folder, **LOGGED)


def test_settings_that_mean_nothing_are_refused(folder):
    with refuses(DataError, "clicks is 'mine'", "simulated"):
        open_letor(folder, clicks="mine")
    with refuses(DataError, "val_queries=0.01 of 20", "part empty"):
        open_letor(folder, **LOGGED, val_queries=0.01)
