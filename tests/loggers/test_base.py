"""The interface, what importing it costs, and the fan-out that outlives its backends."""

import inspect
import logging
import subprocess
import sys

import pytest
from places import ROOT

from clickexp import loggers
from clickexp.loggers import FanOut, Logger, RunInfo

CALLS = {
    "compiling": (True,),
    "progress": ("train", 1, 10, 20, 0.5),
    "epoch": ({"epoch": 1},),
    "per_rank": ("test", {"ppl": [1.5]}),
    "message": ("hello",),
    "warning": ("careful",),
    "result": ({"test": {}},),
    "report": ("report.html", {}),
    "failed": ("it broke",),
    "best_run": (None, {}),
}


class Recorder(Logger):
    """Keeps every call; raises in those named."""

    def __init__(self, name="recorder", fails=(), line=None):
        self.name, self.fails, self.line, self.calls = name, fails, line, []

    @property
    def destination(self):
        return self.name

    def _record(self, method, *args):
        self.calls.append((method, *args))
        if method in self.fails:
            raise OSError(f"{method}\nbroke")

    def start(self, info):
        self._record("start", info)
        return self.line

    def finish(self, ok):
        self._record("finish", ok)


for _method in CALLS:
    setattr(Recorder, _method, lambda self, *args, _method=_method: self._record(_method, *args))


@pytest.fixture
def info(tmp_path):
    return RunInfo(folder=tmp_path, config={}, name="a run", project="tests")


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_fan_out_takes_every_call_of_the_interface():
    methods = {
        name
        for name, _ in inspect.getmembers(Logger, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods == {"start", "finish", *CALLS}
    for name in methods:
        assert list(inspect.signature(getattr(FanOut, name)).parameters) == list(
            inspect.signature(getattr(Logger, name)).parameters
        )


def test_logger_does_nothing_by_default(info):
    logger = Logger()
    assert logger.start(info) is None
    for method, args in CALLS.items():
        assert getattr(logger, method)(*args) is None
    assert logger.finish(True) is None


def test_every_call_reaches_every_logger_in_order(info):
    both = [Recorder(), Recorder()]
    fan = FanOut(both)
    fan.start(info)
    for method, args in CALLS.items():
        getattr(fan, method)(*args)
    fan.finish(True)
    expected = [
        ("start", info),
        *((method, *args) for method, args in CALLS.items()),
        ("finish", True),
    ]
    assert both[0].calls == both[1].calls == expected


def test_warnings_are_kept_once_for_the_result_whatever_backends_do():
    fan = FanOut([Recorder(fails=("warning",))])
    for text in ("warning: few lists", "draws has no effect", "warning: few lists"):
        fan.warning(text)
    fan.message("no warning")
    assert fan.warned == ("few lists", "draws has no effect")


def test_line_returned_by_start_becomes_a_message_for_all(info):
    first, second = Recorder(), Recorder(line="synced later")
    FanOut([first, second]).start(info)
    assert ("message", "synced later") in first.calls


@pytest.mark.parametrize("method", CALLS)
def test_failing_logger_is_dropped_with_one_line_and_finished(method, info, caplog):
    bad, good = Recorder("bad", fails=(method, "finish")), Recorder("good")
    fan = FanOut([bad, good])
    fan.start(info)
    for _ in range(2):
        getattr(fan, method)(*CALLS[method])
    fan.finish(False)
    assert [name for name, *_ in bad.calls] == ["start", method, "finish"]
    assert [name for name, *_ in good.calls] == ["start", method, method, "finish"]
    assert good.calls[-1] == ("finish", False)
    assert warnings_of(caplog) == [
        f"Recorder failed in {method} and is left out from here (OSError: {method} broke). "
        f"Results still go to: good, {info.folder / 'result.json'}."
    ]


def test_logger_that_fails_in_start_is_left_out(info, caplog):
    bad, good = Recorder(fails=("start",)), Recorder("good")
    fan = FanOut([bad, good])
    fan.start(info)
    fan.epoch({"epoch": 1})
    assert [name for name, *_ in bad.calls] == ["start"]
    assert good.calls[-1] == ("epoch", {"epoch": 1})
    assert len(warnings_of(caplog)) == 1


def test_finish_reaches_all_even_if_the_first_raises(info, caplog):
    bad, good = Recorder("bad", fails=("finish",)), Recorder("good")
    FanOut([bad, good]).finish(True)
    assert good.calls == [("finish", True)]
    assert "bad" not in warnings_of(caplog)[0]


def test_interrupt_is_not_swallowed():
    class Interrupted(Logger):
        def message(self, text):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FanOut([Interrupted()]).message("hello")


def test_backends_are_imported_only_when_used():
    code = (
        "import sys; from clickexp.loggers import FanOut, JsonlLogger;"
        "print([name for name in ('wandb', 'rich', 'jax') if name in sys.modules])"
    )
    root = ROOT
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_every_exported_name_is_a_logger_or_the_run_info():
    for name in loggers.__all__:
        assert name == "RunInfo" or issubclass(getattr(loggers, name), Logger)
    with pytest.raises(AttributeError, match="AimLogger"):
        loggers.AimLogger  # noqa: B018
