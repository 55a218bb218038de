"""Calls of functions in the jobs of a pool: what they return, what they raise, and those that die."""

import os
import signal
import time

import pytest
from prepared import check_preparing
from refusals import refuses

from clickexp.cli.data import main
from clickexp.errors import DataError, UserError
from clickexp.sweeps.backends.pool import Pool
from clickexp.sweeps.backends.slots import Slot
from clickexp.sweeps.calls import PoolCalls


def square(number):
    return number**2


def square_the_second_time(number, folder):
    """Kills its process where it has not been called with this number before."""
    seen = folder / str(number)
    if not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def refuse(number):
    raise DataError(f"row {number} is faulty", {"invalid": "drop"})


def fail(number):
    raise ZeroDivisionError(f"no {number}")


@pytest.fixture
def call(tmp_path):
    pool = Pool([Slot("a"), Slot("b")])
    with PoolCalls(pool, tmp_path / "calls") as calls:
        yield calls
    assert not pool.running and not (tmp_path / "calls").exists()


def test_results_come_in_the_order_of_the_calls(call):
    ended = []
    for _ in range(2):
        results = call(square, [(number,) for number in range(5)], lambda: ended.append(1))
        assert results == [0, 1, 4, 9, 16]
    assert len(ended) == 10


def test_a_folder_of_calls_does_not_seem_to_be_left_by_a_killed_process(call, tmp_path):
    before = time.time() - 1
    call(square, [(1,), (2,)], lambda: os.utime(tmp_path, (0, 0)))
    assert tmp_path.stat().st_mtime > before


def test_a_call_whose_process_is_killed_is_made_again(call, tmp_path):
    calls = [(number, tmp_path) for number in range(3)]
    assert call(square_the_second_time, calls, list) == [0, 1, 4]


def test_an_error_of_the_user_ends_all(call):
    with refuses(DataError, "row 7 is faulty") as caught:
        call(refuse, [(7,)], list)
    assert caught.value.options == {"invalid": "drop"}


def test_a_call_that_dies_again_and_again_is_an_error(call):
    with refuses(UserError, "fail has died 3 times", "exit code 1", "ZeroDivisionError: no 4"):
        call(fail, [(4,)], list)


def test_a_log_is_prepared_by_processes(tmp_path):
    check_preparing(tmp_path, os.environ)


WORKERS = [
    (["workers=0"], ["workers=0", "at least 1"]),
    (["launcher=mars"], ["launcher='mars'", "processes"]),
    (["launcher=ray"], ["workers=16"]),
    (["workers=2", "hydra.launcher.partition=x"], ["hydra.launcher.partition", "launcher=slurm"]),
]


@pytest.mark.parametrize("words, parts", WORKERS, ids=lambda each: " ".join(each))
def test_workers_that_cannot_be_are_refused(words, parts, tmp_path, capsys):
    (tmp_path / "log.csv").write_text("query_doc_ids,clicks\n1 2,0 1\n")
    with pytest.raises(SystemExit):
        main(["prepare", "lists", str(tmp_path / "log.csv"), str(tmp_path / "out"), *words])
    error = capsys.readouterr().err
    assert all(part in error for part in parts), error
    assert not (tmp_path / "out").exists()


def test_formats_without_pieces_are_read_by_one_process(tmp_path):
    """Counts, whose order is drawn over all rows."""
    (tmp_path / "log.csv").write_text(
        "query,document,rank,impressions,clicks\nq,a,1,20,7\nq,b,2,9,1\n"
    )
    for target, words in (("one", []), ("several", ["workers=2"])):
        main(["prepare", "counts", str(tmp_path / "log.csv"), str(tmp_path / target), *words])
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    for file in files:
        assert (
            file.read_bytes()
            == (tmp_path / "several" / file.relative_to(tmp_path / "one")).read_bytes()
        )
