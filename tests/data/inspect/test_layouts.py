"""Whether inspect says that one examination by rank does not fit all pages of a log, and only then."""

import dataclasses
import shlex

import numpy as np
import pytest
from layout_logs import DEVICE, SAME, layout_log
from scipy import stats

from clickexp.data import Sessions
from clickexp.data.cells import Cells
from clickexp.data.inspect.doubts import examination_doubts
from clickexp.data.inspect.layouts import LENGTH, click_rates, difference, groupings


def by_hand(sessions, group, factor):
    """Chi-square of two groups in float64: clicks of the second on each document at each rank, of factor f there."""
    ids, clicks, there = (sessions.column("query_doc_ids"), sessions.column("clicks"), None)
    there = np.arange(ids.shape[1]) < sessions.column("lengths")[:, None]
    residual, variance = np.zeros((2, ids.shape[1]))
    for rank in range(ids.shape[1]):
        for document in np.unique(ids[there[:, rank], rank]):
            rows = there[:, rank] & (ids[:, rank] == document)
            number, second = rows.sum(), (rows & (group == 1)).sum()
            if second in (0, number):
                continue
            clicked = clicks[rows, rank].sum()
            share = second * factor / (second * factor + number - second)
            residual[rank] += clicks[rows & (group == 1), rank].sum() - clicked * share
            rest = (number - clicked) / max(number - 1, 1)
            variance[rank] += clicked * rest * share * (1 - share)
    known = variance > 0
    return residual, (residual[known] ** 2 / variance[known]).sum(), known.sum()


def test_the_statistic_is_that_of_documents_at_each_rank():
    """The factor of the second group makes its clicks as many as expected; it takes a degree of freedom."""
    sessions = layout_log(3000, seed=1).train
    chosen = next(each for each in groupings(sessions) if each.name == "device")
    found = difference(sessions.chunks(), chosen)
    group = sessions.column("device")
    low, high = 0.1, 10.0
    for _ in range(60):
        middle = np.sqrt(low * high)
        low, high = (
            (middle, high) if by_hand(sessions, group, middle)[0].sum() > 0 else (low, middle)
        )
    _, expected, ranks = by_hand(sessions, group, low)
    assert found.chi_square == pytest.approx(expected, rel=1e-4)
    assert found.degrees == ranks - 1
    assert found.p_value == pytest.approx(stats.chi2.sf(expected, ranks - 1), rel=1e-2)


def test_logs_of_one_layout_do_not_warn():
    """20 logs whose devices have lists of different lengths and one curve; p-values are those of chance."""
    tested = []
    for seed in range(20):
        dataset = layout_log(3000, seed, SAME)
        assert not examination_doubts(dataset)
        tested += [
            difference(dataset.train.chunks(), each).p_value for each in groupings(dataset.train)
        ]
    assert stats.kstest(tested[::2], "uniform").pvalue > 0.01


def test_logs_of_several_layouts_warn_and_name_the_column():
    dataset = layout_log(6000)
    (doubt,) = examination_doubts(dataset).values()
    assert "differ by device" in doubt and "examination_by=[device]" in doubt
    without = dataclasses.replace(
        dataset,
        **{
            name: dataclasses.replace(
                part,
                columns={key: part.columns[key] for key in part.columns if key != "device"},
                schema={key: part.schema[key] for key in part.schema if key != "device"},
            )
            for name, part in dataset.parts.items()
        },
    )
    (doubt,) = examination_doubts(without).values()
    assert f"differ by {LENGTH}" in doubt and "examination_by=[NAME]" in doubt
    (doubt,) = examination_doubts(without, setting="debias=ips propensity.examination_by").values()
    assert shlex.split(doubt)[-2:] == ["debias=ips", "propensity.examination_by=[NAME]"]
    cells = Cells((("device", 2),), 4)
    assert not examination_doubts(dataset, cells)  # within devices, lists have one length


def test_levels_of_clicks_alone_are_no_layouts():
    """A factor of all ranks of a device leaves relative examination as it is."""
    rarely = {0: SAME[0], 1: 0.5 * SAME[1]}
    assert not examination_doubts(layout_log(6000, curves=rarely))


def test_lengths_that_a_column_tells_are_not_drawn_twice():
    train = layout_log(3000).train
    assert [*click_rates(train, groupings(train))] == ["device"]
    moved = layout_log(3000, curves={0: SAME[0], 1: SAME[0]}).train  # of one length
    assert [*click_rates(moved, groupings(moved))] == ["device"]
    rng = np.random.default_rng(0)
    other = Sessions.from_arrays(
        query_doc_ids=train.column("query_doc_ids"),
        clicks=train.column("clicks"),
        lengths=train.column("lengths"),
        extra={DEVICE: rng.integers(0, 2, train.count).astype(np.int8)},
    )
    assert [*click_rates(other, groupings(other))] == [LENGTH, "device"]


def test_groups_are_those_of_few_values_and_of_lengths():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 21, 500)
    there = np.arange(20) < lengths[:, None]
    extra = {
        DEVICE: rng.choice([0, 3, 9], 500).astype(np.int8),
        dataclasses.replace(DEVICE, name="user", dtype="int32"): np.arange(500, dtype=np.int32),
    }
    clicks = there & (rng.random((500, 20)) < 0.3)
    sessions = Sessions.from_arrays(
        query_doc_ids=there.astype(int), clicks=clicks, lengths=lengths, extra=extra
    )
    by_length, by_device = groupings(sessions)
    assert (by_length.name, by_device.name) == (LENGTH, "device")
    assert by_device.values == ("0", "3", "9") and len(by_length.values) == 6
    by_frequency = click_rates(sessions, [by_device])["device"]
    impressions = [sum(counts["shown"]) for counts in by_frequency.values()]
    assert impressions == sorted(impressions, reverse=True)
    counts = by_frequency["3"]
    chosen = sessions.column("device") == 3
    assert counts["shown"] == there[chosen].sum(axis=0).tolist()
    assert counts["clicks"] == clicks[chosen].sum(axis=0).tolist()
    ranges = [list(map(int, value.split("-"))) for value in by_length.values]
    assert ranges[0][0] == 1 and ranges[-1][-1] == 20
    groups = by_length.of(sessions.chunk())
    assert all(ranges[g][0] <= n <= ranges[g][-1] for g, n in zip(groups, lengths, strict=True))
