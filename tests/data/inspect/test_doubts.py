"""Doubts about a log, against logs that are wrong in one way, and against plain Python."""

import dataclasses
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from flax import nnx

from clickexp.data import Column, Dataset, Sessions
from clickexp.data.dataset import split
from clickexp.data.features import Features
from clickexp.data.inspect import copies as of_copies
from clickexp.data.inspect import doubts as module
from clickexp.data.inspect.copies import COMPARED, ListHashes, list_keys, sampled, sampled_copies
from clickexp.data.inspect.doubts import doubts
from clickexp.data.inspect.summary import shows_twice
from clickexp.experiment import display
from clickexp.models import DocumentCTRModel


def random_log(lists=2000, queries=400, ranks=5, seed=0, click_rate=0.2, ordered=True):
    """Lists of queries of popularity 1 / rank, in one order per query or in any, and random clicks."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, queries + 1)
    query = rng.choice(queries, lists, p=popularity / popularity.sum())
    ranking = np.tile(np.arange(ranks), (lists, 1))
    ranking = ranking if ordered else rng.permuted(ranking, axis=1)
    return {
        "query_doc_ids": 1 + query[:, None] * ranks + ranking,
        "clicks": rng.random((lists, ranks)) < click_rate / np.arange(1, ranks + 1),
    }


def rows_of(columns, rows):
    return {name: values[rows] for name, values in columns.items()}


def dataset_of(columns):
    sessions = Sessions.from_arrays(**columns)
    parts = split(sessions, 0.8, 0.1, 0.1)
    ranking = parts[2] if sessions.has_labels else None
    return Dataset("log", *parts, sessions.query_doc_pairs, sessions.positions, ranking=ranking)


def keys_of(columns):
    sessions = Sessions.from_arrays(**columns)
    return list_keys(sessions.rows(slice(0, sessions.count)))


TWICE = {
    "one copy behind the other": lambda lists, rng: np.tile(np.arange(lists), 2),
    "in any order": lambda lists, rng: rng.permutation(np.tile(np.arange(lists), 2)),
    "a tenth at the end": lambda lists, rng: np.append(np.arange(lists), np.arange(lists // 10)),
}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("twice", TWICE)
def test_training_lists_in_the_test_set_are_doubted(twice, ordered):
    """The count is that of test lists which plain Python finds among the training lists."""
    columns = random_log(ordered=ordered)
    dataset = dataset_of(rows_of(columns, TWICE[twice](2000, np.random.default_rng(1))))
    (doubt,) = doubts(dataset)
    known, *held_out = (
        [
            (*ids, *clicks)
            for ids, clicks in zip(part.column("query_doc_ids"), part.column("clicks"))
        ]
        for part in (dataset.train, dataset.test)
    )
    found = sum(row in set(known) for row in held_out[0])
    assert f"{found} of {len(held_out[0])} test lists" in doubt and "Drop the copies" in doubt


REPEATED = {
    "popular queries": {},
    "lists without clicks": {"click_rate": 0.0},
    "one query": {"queries": 1},
    "few lists": {"lists": 40, "queries": 10},
    "hardly a list again": {"queries": 100_000, "ordered": False},
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("log", REPEATED)
def test_lists_that_users_repeat_are_not_doubted(log, seed):
    found = doubts(dataset_of(random_log(seed=seed, **REPEATED[log])))
    assert not [message for message in found if "the same documents and clicks" in message]


@pytest.mark.parametrize("lists", [5, 40, 160, 640])
def test_few_lists_are_doubted_by_what_their_clicks_leave_open(lists):
    """Examination of 4,000 logs of that size, estimated with known attraction: its spread is the stated factor."""
    rng = np.random.default_rng(lists)
    rate = np.array([0.3, 0.2, 0.1])
    columns = {
        "query_doc_ids": 1 + np.tile(np.arange(3), (lists, 1)),
        "clicks": np.arange(lists * 3).reshape(lists, 3) % 10 < 10 * rate,  # the rates themselves
    }
    train = Sessions.from_arrays(**columns)
    found = [
        message for message in doubts(Dataset("log", *[train] * 3, 3, 3)) if "too few" in message
    ]
    drawn = np.maximum(rng.binomial(lists, rate, (4000, 3)), 0.5)
    reached = np.exp(1.96 * np.log(drawn[:, 1] / drawn[:, 0]).std())
    assert bool(found) == (reached > 2)
    if found and lists > 10:
        stated = float(found[0].partition("factor of ")[2].partition(" to")[0])
        assert stated == pytest.approx(reached, rel=0.15)


def test_lists_twice_in_training_alone_are_doubted():
    """Sessions keep copies of themselves in one part; context then holds what no user saw."""
    # 80%, and new lists behind
    rows = np.append(np.tile(np.arange(1600), 2), np.arange(1600, 2400))
    (doubt,) = doubts(dataset_of(rows_of(random_log(2400, ordered=False), rows)))
    assert "training lists are among the earlier ones" in doubt and "Drop the copies" in doubt


def test_copies_of_a_list_agree_in_all_that_is_compared():
    columns = random_log(50, ordered=False)
    positions = np.tile(np.arange(1, 6), (50, 1))
    columns |= {"positions": positions, "lengths": np.full(50, 5)}
    columns |= {name: np.arange(50) * 10**12 for name in ("query_ids", "session_ids", "times")}
    assert columns.keys() == {*COMPARED}
    plain = keys_of(columns)
    for name in COMPARED:
        other = {key: values.copy() for key, values in columns.items()}
        if name == "lengths":
            other[name][3] = 4
            for padded in ("query_doc_ids", "clicks", "positions"):
                other[padded][3, 4] = 0
        elif name == "clicks":
            other[name][3, 2] ^= True
        else:
            other[name][(3,) * other[name].ndim] += 1
        assert np.flatnonzero(keys_of(other) != plain).tolist() == [3], name


def test_the_order_of_documents_makes_another_list():
    columns = {
        "query_doc_ids": np.array([[1, 2, 3], [2, 1, 3], [1, 2, 3]]),
        "clicks": np.zeros((3, 3), bool),
    }
    one, other, same = keys_of(columns)
    assert one == same != other


def test_of_large_logs_a_share_of_the_lists_is_compared(monkeypatch):
    """Equal lists are taken together, so that copies stay copies."""
    monkeypatch.setattr(module, "_ENOUGH", 500)
    columns = random_log(ordered=False)
    whole = Counter(keys_of(columns).tolist())
    chunks = [*module._sampled(Sessions.from_arrays(**columns), 4)]
    taken = Counter(np.concatenate([list_keys(chunk) for chunk in chunks]).tolist())
    assert 300 < sum(taken.values()) < 800 and taken == {key: whole[key] for key in taken}
    assert not [*doubts(dataset_of(columns))]
    (doubt,) = doubts(dataset_of(rows_of(columns, np.tile(np.arange(2000), 2))))
    numbers = [int(word) for word in doubt.split() if word.isdecimal()]
    assert (
        "one list in 8" in doubt
        and numbers[0] == numbers[1] < 400
        and numbers[2] == numbers[3] < 400
    )


def with_repeats(lists, at=(1, 3)):
    """A log with a document twice in so many lists."""
    columns = random_log(ordered=False)
    columns["query_doc_ids"][:lists, at[1]] = columns["query_doc_ids"][:lists, at[0]]
    return columns


def test_documents_twice_in_a_list_are_counted():
    (doubt,) = doubts(dataset_of(with_repeats(150)))
    assert "150 of 2,000 lists show a document twice" in doubt and "Name the column" in doubt
    assert not [*doubts(dataset_of(with_repeats(60)))]  # as a search engine may


def test_padding_repeats_no_document():
    """The document 0 may be one of the list."""
    ids = np.array([[0, 7, 0, 0], [0, 7, 0, 0], [5, 6, 5, 1], [1, 2, 3, 4]], np.int32)
    lengths = np.array([2, 3, 4, 4], np.int32)
    sessions = Sessions.from_arrays(query_doc_ids=ids, clicks=ids < 0, lengths=lengths)
    (chunk,) = sessions.chunks()
    assert shows_twice(chunk).tolist() == [False, True, True, False]


POSITIONS = {
    "at one position": (
        [1, 1, 1, 1, 1],
        "several documents at one position",
        "columns.positions=null",
    ),
    "merged at the end": (
        [1, 2, 3, 3, 3],
        "several documents at one position",
        "right where positions were merged",
    ),
    "out of order": ([3, 1, 2, 4, 5], "positions are not in order", "Sort the documents"),
    "with gaps": ([1, 3, 4, 7, 9],),
}


@pytest.mark.parametrize("case", POSITIONS)
def test_positions_that_no_page_has_are_doubted(case):
    """Only within lists: their first position may be above the last one of the list before."""
    given, *words = POSITIONS[case]
    columns = random_log(ordered=False)
    columns["positions"] = np.tile(np.arange(1, 6), (2000, 1))
    columns["positions"][:30] = given
    found = [*doubts(dataset_of(columns))]
    assert len(found) == bool(words) and all("30 of 2,000 lists" in doubt for doubt in found)
    assert all(word in doubt for word in words for doubt in found)


def test_positions_of_padding_are_none():
    columns = random_log(ordered=False)
    columns |= {"positions": np.tile(np.arange(1, 6), (2000, 1)), "lengths": np.full(2000, 3)}
    for name in ("query_doc_ids", "clicks", "positions"):
        columns[name][:, 3:] = 0
    assert not [*doubts(dataset_of(columns))]


def labelled(labels_of, click_rate=0.2, truth=None):
    columns = random_log(ordered=False, click_rate=click_rate)
    labels = labels_of(columns["clicks"], np.random.default_rng(2)).astype(float)
    return dataclasses.replace(dataset_of(columns | {"labels": labels}), truth=truth)


@pytest.mark.parametrize("grades", [(0, 1), (0, 4), (-1, 0), (1, 0)])
def test_labels_that_are_clicks_are_doubted(grades):
    dataset = labelled(lambda clicks, rng: np.array(grades)[clicks.astype(int)])
    (doubt,) = doubts(dataset)
    clicks = sum(part.clicks_total for part in (dataset.train, dataset.val, dataset.test))
    assert doubt.startswith(f"labels of train, val, test follow clicks: all {clicks:,} documents")
    assert (
        f"one ({grades[1]})" in doubt
        and f"another ({grades[0]})" in doubt
        and "columns.labels=null" in doubt
    )
    assert not [*doubts(dataclasses.replace(dataset, truth=object()))]


JUDGED = {
    "but for one document": lambda clicks, rng: (
        clicks ^ (np.arange(clicks.size).reshape(clicks.shape) % 500 == 0)
    ),
    "by chance": lambda clicks, rng: rng.integers(0, 2, clicks.shape),
    "of one grade": lambda clicks, rng: np.ones(clicks.shape),
    "as clicks in part": lambda clicks, rng: clicks * rng.integers(1, 3, clicks.shape),
}


@pytest.mark.parametrize("case", JUDGED)
def test_labels_that_differ_from_clicks_are_judgements(case):
    assert not [*doubts(labelled(JUDGED[case]))]


def test_labels_of_lists_without_clicks_are_judgements():
    """Labelled lists often come without any."""
    for grades in (2, 1):
        log = labelled(lambda clicks, rng, n=grades: rng.integers(0, n, clicks.shape), click_rate=0)
        assert not [message for message in doubts(log) if "label" in message]


def test_labels_that_are_no_grades_are_doubted():
    def labels_of(clicks, rng, absurd=40):
        labels = rng.integers(0, 5, clicks.shape)
        labels[[3, 1990], 2] = 31, absurd
        return labels

    (doubt,) = doubts(labelled(labels_of))
    assert "of the documents of test, 1 have a label above 31, up to 40." in doubt
    assert "of the documents of train, 1 have the label 31, and all others at most 4;" in doubt
    assert "form=linear" in doubt


GRADES = {
    "to 4": [0, 1, 2, 3, 4],
    "with a gap": [0, 1, 2, 3, 4, 8],
    "as yes and no": [0, 10],
    "of many": np.linspace(0, 20, 500),
}


@pytest.mark.parametrize("case", GRADES)
def test_grades_are_no_doubt(case):
    """Nor one that a document in a thousand has, if that is little above the next."""

    def labels_of(clicks, rng):
        labels = rng.choice(GRADES[case], clicks.shape)
        labels[(labels == 8) & (rng.random(clicks.shape) < 0.99)] = 0
        return labels

    assert not [*doubts(labelled(labels_of))]


@pytest.mark.parametrize("many", [1, 40, 400])
def test_a_label_far_above_all_others_is_doubted_where_few_documents_have_it(many):
    """Of 8,000 documents in training: 20 beside 4 takes the others' gain, unless it is a grade of its own."""

    def labels_of(clicks, rng):
        labels = rng.integers(0, 5, clicks.shape)
        labels[:many, 2] = 20
        return labels

    found = [*doubts(labelled(labels_of))]
    assert len(found) == (many < 80)
    assert all(
        f"train, {many} have the label 20, and all others at most 4." in one for one in found
    )


def test_one_absurd_label_is_found_in_a_log_of_which_a_share_is_looked_at(monkeypatch):
    monkeypatch.setattr(module, "_ENOUGH", 100)

    def labels_of(clicks, rng):
        labels = rng.integers(0, 5, clicks.shape).astype(np.float32)
        labels[rng.random(clicks.shape) < 0.2] = np.nan
        labels[777, 1] = 20
        return labels

    found = " ".join(doubts(labelled(labels_of)))
    assert "train, 1 have the label 20, and all others at most 4. Beside" in found
    assert not found.endswith(")")  # it is not counted in a sample


@pytest.mark.parametrize("layout", ["by id", "in lists"])
@pytest.mark.parametrize("differs", [None, 3, 9_000])
def test_features_that_are_those_of_every_document_are_doubted(layout, differs):
    """Documents without features, whose vectors are nan, do not count; one other document is enough."""
    columns = random_log(queries=2000)
    values = np.full((10_001, 2), [0.5, 3.0], np.float32)
    if differs is not None:
        values[differs, 1] = 2
        columns["query_doc_ids"][-1, 0] = differs
    if layout == "in lists":
        column = Column("query_doc_features", np.float32, shape=(2,))
        columns["extra"] = {column: values[columns["query_doc_ids"]]}
    dataset = dataset_of(columns)
    if layout == "by id":
        values[[0, 5, 6]] = np.nan
        train = dataset.train.with_features(Features(values))
        dataset = dataclasses.replace(dataset, train=train)
    found = [doubt for doubt in doubts(dataset) if "features" in doubt]
    is_in_training = layout == "by id" or (dataset.train.column("query_doc_ids") == differs).any()
    if differs is not None and is_in_training:
        assert not found
    else:
        (doubt,) = found
        assert "all documents are the same, 2 numbers each" in doubt and "Check" in doubt


def test_a_run_reports_doubts_before_training(monkeypatch):
    monkeypatch.setattr(display, "doubts", lambda dataset: [f"{dataset.name} is doubtful"])
    logger, dataset = Mock(), dataset_of(random_log())
    parts = {
        "config": SimpleNamespace(without_effect=()),
        "dataset": dataset,
        "logger": logger,
        "metrics": {},
    }
    model = DocumentCTRModel(query_doc_pairs=dataset.query_doc_pairs, rngs=nnx.Rngs(0))
    display.note(
        SimpleNamespace(**parts, model=model, weighting=None, metric_weightings={}, continued=None)
    )
    logger.warning.assert_called_once_with("warning: log is doubtful")


def lists_of(columns, *parts):
    """Hashes of the lists of a log, in parts that end there."""
    sessions = Sessions.from_arrays(**columns)
    ends = [0, *parts, sessions.count]
    return ListHashes.of(map(sessions.slice, ends, ends[1:]))


def test_a_log_has_one_hash_in_any_order_split_and_padding():
    columns = random_log(300) | {"lengths": np.full(300, 5)}
    rows = rows_of(columns, np.random.default_rng(1).permutation(300))
    padded = {**columns, **{name: np.pad(columns[name], ((0, 0), (0, 3)))
                            for name in ("query_doc_ids", "clicks")}}  # fmt: skip
    first = lists_of(columns)
    for other in (lists_of(rows, 100, 250), lists_of(padded, 30)):
        assert other.digest == first.digest and np.array_equal(other.sample, first.sample)
    assert lists_of(rows_of(columns, np.arange(299))).digest != first.digest
    moved = {**columns, "clicks": columns["clicks"][::-1]}
    assert lists_of(moved).digest != first.digest


@pytest.mark.parametrize("kinds", [100, 1 << 14])
def test_samples_show_what_two_logs_have_in_common(kinds, monkeypatch):
    """Of a part of an earlier log, and of two days; users repeat lists on another day, too."""
    monkeypatch.setattr(of_copies, "_KINDS", kinds)
    days = [random_log(seed=seed) for seed in range(3)]
    first, second, third = (lists_of(day).sample for day in days)
    half = lists_of(rows_of(days[1], np.arange(1000))).sample
    both = lists_of(
        {name: np.concatenate([day[name] for day in days[:2]]) for name in days[0]}
    ).sample
    assert np.array_equal(both, sampled(first, second)) and len(np.unique(both)) <= kinds
    for earlier, log, is_doubtful in (
        (both, half, True), (first, both, True), (both, third, False), (second, third, False)
    ):  # fmt: skip
        assert sampled_copies(log, earlier).doubtful == is_doubtful
