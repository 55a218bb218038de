"""A cache never serves another log, nor what another reader made of it."""

import importlib
import os
import sys

import numpy as np
from refusals import refuses

from clickexp.data import log_format, open_lists
from clickexp.errors import DataError
from clickexp.utils.content import content_of

SPLIT = dict(train_sessions=0.5, val_sessions=0.25, test_sessions=0.25)


def write_log(file, click):
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = "".join(f'"[{1 + row % 3},{4 + row % 3}]","[{click},{click}]"\n' for row in range(40))
    file.write_text("query_doc_ids,clicks\n" + rows)
    os.utime(file, (1_700_000_000, 1_700_000_000))


def test_logs_of_the_same_name_size_and_time_have_caches_of_their_own(tmp_path):
    for day, click in (("day1", 0), ("day2", 1)):
        write_log(tmp_path / day / "log.csv", click)
    rates = [
        open_lists(tmp_path / day / "log.csv", cache=tmp_path / "cache", **SPLIT).click_rate
        for day in ("day1", "day2")
    ]
    assert rates == [0, 1]


def test_large_logs_that_differ_between_head_middle_and_tail_have_caches_of_their_own(tmp_path):
    """Both are of one name, size and time."""
    rows = 100_000
    for day in ("day1", "day2"):
        clicks = np.zeros(rows, int)
        clicks[rows // 4 : rows // 4 + 100] = day == "day2"
        lines = [f'"[{1 + row % 3},{4 + row % 3}]","[{c},0]"\n' for row, c in enumerate(clicks)]
        (tmp_path / day).mkdir()
        file = tmp_path / day / "log.csv"
        file.write_text("query_doc_ids,clicks\n" + "".join(lines))
        os.utime(file, (1_700_000_000, 1_700_000_000))
    files = [tmp_path / day / "log.csv" for day in ("day1", "day2")]
    assert content_of(files[0]) == content_of(files[1])
    clicks = [
        open_lists(file, cache=tmp_path / "cache", **SPLIT).train.column("clicks").sum()
        for file in files
    ]
    assert clicks == [0, 100]


def test_a_log_that_was_moved_is_not_read_again(tmp_path):
    write_log(tmp_path / "here/log.csv", 1)
    open_lists(tmp_path / "here/log.csv", cache=tmp_path / "cache", **SPLIT)
    (tmp_path / "here").rename(tmp_path / "there")
    (tmp_path / "there/log.csv").rename(tmp_path / "there/day2.csv")
    moved = open_lists(tmp_path / "there/day2.csv", cache=tmp_path / "cache", **SPLIT)
    assert moved.name == "day2"
    assert len([*(tmp_path / "cache").iterdir()]) == 1


READER = """
import numpy as np
from clickexp.data import log_format
from clickexp.data.schema import SourceLocation

@log_format("own")
def read(source, log):
    with log.part("sessions", 2, ["query_doc_ids", "clicks", "lengths"]) as pack:
        ids = np.tile([1, 2], (40, 1)).astype(np.int32)
        clicks = np.full((40, 2), {click})
        columns = {{"query_doc_ids": ids, "clicks": clicks, "lengths": np.full(40, 2, np.int32)}}
        pack.append(columns, SourceLocation(str(source)))
"""


def test_an_edited_reader_reads_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "log.txt").write_text("anything")
    rates = []
    for click in (False, True):
        (tmp_path / "own_reader.py").write_text(READER.format(click=click))
        importlib.invalidate_caches()
        module = importlib.reload(importlib.import_module("own_reader"))
        rates.append(
            module.read(tmp_path / "log.txt", cache=tmp_path / "cache", **SPLIT).click_rate
        )
    assert rates == [0, 1]


def test_a_reader_reads_again_where_a_module_that_it_imports_is_edited(tmp_path, monkeypatch):
    """Also one that is imported by another, by a relative import, or in a function."""
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").touch()
    text = READER.format(click="Rate().value")
    (package / "reader.py").write_text(f"from .rates import Rate\n{text.lstrip()}")
    (package / "rates.py").write_text(
        "class Rate:\n    def __init__(self):\n        from own_package.inner import numbers as n\n"
        "        self.value = n.CLICK\n"
    )
    (package / "inner").mkdir()
    numbers = package / "inner/numbers.py"
    (tmp_path / "log.txt").write_text("anything")
    monkeypatch.syspath_prepend(tmp_path)
    # else Python may take the bytecode of before: both files are as long, and as old in seconds
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    rates = []
    for click in (False, True):
        numbers.write_text(f"CLICK = {click}{' ' * click}\n")
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name.startswith("own_package")]:
            del sys.modules[name]
        read = importlib.import_module("own_package.reader").read
        rates.append(read(tmp_path / "log.txt", cache=tmp_path / "cache", **SPLIT).click_rate)
    assert rates == [0, 1]


def test_a_log_that_changes_while_it_is_read_is_refused(tmp_path):
    """What was read of it is neither the log before nor the one after."""
    write_log(tmp_path / "log.csv", 0)

    @log_format("growing")
    def read(source, log):
        lists = open_lists.read(source, log)
        with source.open("a") as file:
            file.write('"[1,2]","[1,1]"\n')
        return lists

    with refuses(DataError, "log.csv", "changed while it was read", "copy"):
        read(tmp_path / "log.csv", cache=tmp_path / "cache", **SPLIT)
    assert not [*(tmp_path / "cache").iterdir()]


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with refuses(DataError, "pipe.csv", "neither a file nor a folder"):
        open_lists(tmp_path / "pipe.csv", **SPLIT)
