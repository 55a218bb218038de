"""The file of one line per epoch."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from clickexp.loggers import JsonlLogger, RunInfo
from clickexp.utils.documents import plain


def started(folder, **kwargs):
    logger = JsonlLogger(**kwargs)
    logger.start(RunInfo(folder=folder, config={}, name="a run", project="tests"))
    return logger


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_epoch_is_on_disk_before_the_next(tmp_path):
    logger = started(tmp_path / "new" / "folder")
    for epoch in (1, 2):
        logger.epoch({"epoch": epoch, "val/ll": -0.5 / epoch, "improved": True})
        assert len(lines(logger.path)) == epoch
    assert lines(tmp_path / "new" / "folder" / "metrics.jsonl") == [
        {"epoch": 1, "val/ll": -0.5, "improved": True},
        {"epoch": 2, "val/ll": -0.25, "improved": True},
    ]


@pytest.mark.parametrize("left", ['{"epoch": 1}\n', '{"epoch": 1}', ""])
def test_lines_of_an_earlier_process_stay(tmp_path, left):
    (tmp_path / "metrics.jsonl").write_text(left)
    started(tmp_path).epoch({"epoch": 2})
    earlier = [{"epoch": 1}] if left else []
    assert lines(tmp_path / "metrics.jsonl") == [*earlier, {"epoch": 2}]


def test_what_begins_again_takes_the_place_of_an_earlier_process(tmp_path):
    """A training that continues repeats its epochs; one from scratch is another. This process keeps all of its own."""
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3, "val')
    logger = started(tmp_path)
    for epoch in (1, 2, 1):
        logger.epoch({"epoch": epoch, "val/ll": -0.5})
    assert lines(tmp_path / "metrics.jsonl") == [
        {"epoch": epoch, "val/ll": -0.5} for epoch in (1, 2, 1)
    ]


def test_half_written_line_costs_only_itself(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2, "val')
    started(tmp_path).epoch({"epoch": 3})
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == [
        '{"epoch": 1}',
        '{"epoch": 2, "val',
        '{"epoch": 3}',
    ]


def test_file_name_is_a_choice(tmp_path):
    logger = started(tmp_path, filename="log.jsonl")
    logger.epoch({"epoch": 1})
    assert logger.destination == str(tmp_path / "log.jsonl")
    assert lines(tmp_path / "log.jsonl") == [{"epoch": 1}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (jnp.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (float("nan"), None),
        (np.float32("inf"), None),
        (jnp.asarray([1.0, jnp.nan]), [1.0, None]),
        ({1: (2, -float("inf"))}, {"1": [2, None]}),
        ("text", "text"),
        (None, None),
    ],
)
def test_plain_values(value, expected):
    got = plain(value)
    assert got == expected
    assert type(got) is type(expected)
