"""What a reader sees, in a pipe and on a terminal."""

import io
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich import get_console
from rich.console import Console
from small_runs import result_of

from clickexp.experiment.build import open_loggers
from clickexp.loggers import ConsoleLogger, RunInfo
from clickexp.loggers import live as live_module
from clickexp.loggers.epochs import EpochTable
from clickexp.metrics import ranking_metrics
from clickexp.training import EarlyStopping, Trainer
from clickexp.utils.tables.numbers import count, number
from clickexp.utils.tables.terminal import console_table, fits

RECORD = {
    "epoch": 1,
    "train/loss": 0.51234,
    "val/ll": -0.4,
    "val/ppl": 1.3,
    "val/cond_ppl": 1.25,
    "val/loss": 0.41,
    "val/ndcg@10": 0.5,
    "seconds": 2.34,
    "sessions": 1000,
    "improved": True,
}
RESULT = {
    "test": {"ll": -0.1234567, "ppl": 1.2345, "ndcg@10": None},
    "per_rank": {"ll": [-0.3, -0.2], "ppl": [1.5, 1.25], "sessions": [1_200_000, 3]},
    "train": {
        "epochs": 4,
        "best_epoch": 3,
        "sessions": 8_000_000,
        "seconds": 12.34,
        "compile_seconds": 2.1,
        "training_seconds": 10.24,
        "sessions_per_second": 781_250.0,
    },
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def text_of(stream):
    """The stream without its escape sequences, one line a frame."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n")


def run_all(logger, epochs=2):
    logger.start(RunInfo(folder=Path("outputs/x"), config={}, name="ubm [bold] 1", project="tests"))
    for epoch in range(1, epochs + 1):
        logger.progress("train", epoch, 500, 1000, 0.5)
        logger.progress("val", epoch, 100, 100)
        logger.epoch(RECORD | {"epoch": epoch, "val/ll": -0.4 * epoch, "improved": epoch == 1})
    logger.result(result_of(RESULT))
    logger.finish(True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (999_999, "1.00M"),
        (2e6, "2.00M"),
        (1.5e9, "1.50G"),
        (1e308, "1.00e+308"),
        (float("inf"), "–"),
    ],
)
def test_counts_have_three_figures(value, expected):
    assert count(value) == expected


def test_numbers_have_four_decimals():
    assert number(1e308) == "1.0000e+308"
    shown = [number(value) for value in (-0.12345, 12.3, None, float("nan"))]
    assert shown == ["-0.1235", "12.3000", "–", "–"]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_epoch_table_is_aligned_and_fits(width):
    table = EpochTable(RECORD, width)
    header, row = table.header(), table.row(RECORD)
    assert max(len(header), len(row)) <= width
    ends = [match.end() for match in re.finditer(r"\S+", header)]
    assert [match.end() for match in re.finditer(r"\S+", row)] == ends


@pytest.mark.parametrize("width", [20, 40, 60])
@pytest.mark.parametrize("watched", ["val/ndcg@10", "val/loss", "train/loss"])
def test_epoch_table_always_shows_the_watched_metric(width, watched):
    """In its usual place; the others as far as the width holds them."""
    table = EpochTable(RECORD, width, watched)
    shown = table.header().split()
    assert watched in shown and number(RECORD[watched], 5) in table.row(RECORD).split()
    assert [name for name in RECORD if name in shown and "/" in name] == shown[1:-2]
    assert width < 40 or len(table.header()) <= width


def test_the_console_watches_what_stops_the_training():
    stream = io.StringIO()
    logger = ConsoleLogger(stream=stream, metric="val/ndcg@10")
    logger.epoch(RECORD)
    assert "val/ndcg@10" in stream.getvalue() and "val/loss" not in stream.getvalue()
    assert logger.best == "best ndcg@10 0.5000"


@pytest.mark.parametrize(
    "stopping, watched",
    [
        (EarlyStopping("ndcg@10"), "val/ndcg@10"),
        (EarlyStopping(patience=2), "val/loss"),
        (None, "val/ll"),
    ],
)
def test_the_console_of_a_run_watches_the_metric_of_early_stopping(stopping, watched):
    trainer = Trainer(early_stopping=stopping, groups={"ranking": ranking_metrics()})
    settings = SimpleNamespace(progress="off")
    with open_loggers(SimpleNamespace(trainer=trainer, loggers={}, settings=settings)) as logger:
        assert logger.loggers[0].metric == watched


def test_epoch_table_keeps_its_columns_when_a_later_record_lacks_some():
    table = EpochTable(RECORD, 80)
    assert table.row({"epoch": 2, "train/loss": 0.25}).split() == [
        "2",
        "0.25000",
        "–",
        "–",
        "–",
        "–",
        "–",
    ]


def test_tables_show_text_as_it_is_and_align_numbers():
    table = console_table(["name", "[red]"], [["a[bold]", "1"], ["b", "100"]])
    stream = io.StringIO()
    console = Console(file=stream, width=40)
    console.print(table)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert [lines[0], *lines[2:4]] == ["name      [red]", "a[bold]       1", "b           100"]
    assert fits(table, console) and not fits(table, Console(file=stream, width=14))


@pytest.mark.parametrize("ranks, shown", [(30, 30), (31, 30), (1000, 30)])
def test_a_long_table_by_rank_has_the_first_ranks_and_where_all_are(ranks, shown):
    stream = io.StringIO()
    per_rank = {"ll": [-0.5] * ranks, "sessions": [ranks] * ranks}
    ConsoleLogger(stream=stream).result(result_of({"test": {"ll": -0.5}, "per_rank": per_rank}))
    shown_lines = stream.getvalue().partition("rank")[2].splitlines()[2:-2]
    lines = [line.split() for line in shown_lines]
    assert [line[0] for line in lines[:shown]] == [str(rank) for rank in range(1, shown + 1)]
    rest = " ".join(word for line in lines[shown:] for word in line)
    assert rest == (
        f"the first 30 of {ranks:,} ranks; all are in result.json" if ranks > shown else ""
    )


def test_names_in_lines_and_tables_steer_no_terminal():
    stream = io.StringIO()
    logger = ConsoleLogger(stream=stream)
    logger.start(RunInfo(Path("runs"), {}, "\x1b[31m", "tests", changes=("\x9b1m",)))
    logger.message("\u202e\nb")
    logger.console.print(console_table(["\x1b[1m"], [["\x1b[2m"]]))
    assert not {"\x1b", "\x9b", "\u202e"} & set(stream.getvalue())
    assert "�\nb\n" in stream.getvalue()


def test_pipe_gets_plain_lines():
    stream = io.StringIO()
    run_all(ConsoleLogger(stream=stream))
    shown = stream.getvalue()
    assert "\x1b" not in shown and "\r" not in shown
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines == [
        "run ubm [bold] 1 in outputs/x",
        "epoch  train/loss    val/ll   val/ppl  val/cond_ppl  val/loss  seconds  best",
        "    1     0.51234  -0.40000   1.30000       1.25000   0.41000      2.3     *",
        "    2     0.51234  -0.80000   1.30000       1.25000   0.41000      2.3",
        "",
        "test     @10    test without cutoff       UBM",
        "────────────    ─────────────────────────────",
        "ndcg ↑     –    ll ↑                  -0.1235",
        "                ppl ↓                  1.2345",
        "",
        "rank        ll      ppl    sessions",
        "───────────────────────────────────",
        "   1   -0.3000   1.5000   1,200,000",
        "   2   -0.2000   1.2500           3",
        "",
        "epochs 4 (best 3), 8.00M sessions in 10.2 s (+ 2.1 s compiling), 781k/s",
    ]


GROUPED = RESULT | {
    "model": "UBM",
    "test": {
        "ll": -0.3,
        "ppl": 1.4,
        "ece": 0.01,
        "ndcg@1": 0.5,
        "ndcg@10": 0.75,
        "none": 3,
        "loss": 0.3,
    },
    "groups": {
        "clicks": ["ll", "ppl"],
        "calibration": ["ece"],
        "ranking": ["ndcg@1", "ndcg@10", "none"],
    },
    "higher_is_better": {
        "ll": True,
        "ppl": False,
        "ece": False,
        "ndcg@1": True,
        "ndcg@10": True,
        "none": None,
    },
    "references": {
        "rank-CTR": {"test": {"ll": -0.4, "ppl": 1.5}},
        "true user": {"test": {"ppl": 1.3}},
    },
    "per_rank": {},
}


def test_results_are_grouped_with_arrows_beside_references():
    """The loss of a click model, which is in no group, would repeat the log-likelihood."""
    stream = io.StringIO()
    ConsoleLogger(stream=stream).result(result_of(GROUPED))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert lines == [
        "",
        "clicks       UBM   rank-CTR   true user    calibration      UBM",
        "───────────────────────────────────────    ────────────────────",
        "ll ↑     -0.3000    -0.4000                ece ↓         0.0100",
        "ppl ↓     1.4000     1.5000      1.3000",
        "",
        "ranking       @1      @10    ranking without cutoff   UBM",
        "─────────────────────────    ────────────────────────────",
        "ndcg ↑    0.5000   0.7500    none                       3",
        "",
        "epochs 4 (best 3), 8.00M sessions in 10.2 s (+ 2.1 s compiling), 781k/s",
        "Test perplexity 1.4000, rank-CTR 1.5000, true user 1.3000: "
        "50% of the way from rank-CTR to the true user.",
    ]


def test_intervals_are_shown_where_there_are_any():
    stream = io.StringIO()
    draws = {"ll": {"mean": -0.31, "low": -0.33, "high": -0.29}}
    ConsoleLogger(stream=stream).result(
        result_of(GROUPED | {"intervals": {"ll": [-0.32, -0.28]}, "test_draws": draws})
    )
    assert re.search(r"ll ↑ +-0.3000 +-0.320 to -0.280 +-0.4000", stream.getvalue())
    assert re.search(r"ll +-0.3100 +-0.330 to -0.290", stream.getvalue())


@pytest.mark.parametrize(
    "bounds, shown",
    [
        ([-0.3296, -0.3295], "-0.3296 to -0.3295"),
        ([1.234, 9.876], "1.2 to 9.9"),
        ([0.5, 0.5], "0.5000 to 0.5000"),
    ],
)
def test_ends_of_intervals_have_the_decimals_that_resampling_determines(bounds, shown):
    stream = io.StringIO()
    ConsoleLogger(stream=stream).result(result_of(GROUPED | {"intervals": {"ll": bounds}}))
    assert f" {shown} " in stream.getvalue()


def test_cutoffs_without_documents_have_a_dash():
    stream = io.StringIO()
    result = {"model": "PBM", "test": {"cold_ll@new": -0.1, "cold_ll@51+": None}}
    ConsoleLogger(stream=stream).result(
        result_of({**GROUPED, **result, "groups": {"click": list(result["test"])}})
    )
    assert re.search(r"cold_ll +-0.1000 +–\s*$", stream.getvalue(), re.MULTILINE)


def test_a_log_likelihood_that_is_minus_the_loss_is_not_repeated():
    record = RECORD | {"val/ll": -0.41}
    assert "val/ll" not in EpochTable(record, 80, "val/loss").header().split()
    assert "val/ll" in EpochTable(record, 80, "val/ll").header().split()
    assert "val/ll" in EpochTable(RECORD, 80, "val/loss").header().split()


def test_changes_that_early_stopping_sees_are_visible():
    table = EpochTable(RECORD, 80, "val/loss")
    first, second = (table.row(RECORD | {"val/loss": loss}) for loss in (0.41002, 0.41000))
    assert first != second


INFO = dict(
    config={},
    name="ubm",
    project="tests",
    title="UBM · clicks · adam · seed 1",
    changes=("rate=0.1",),
)


def test_in_a_notebook_lines_are_text_of_one_output(monkeypatch, capsys):
    monkeypatch.setattr("clickexp.loggers.console.get_console", lambda: Console(force_jupyter=True))
    logger = ConsoleLogger("plain")
    logger.message("first")
    logger.message("second")
    assert capsys.readouterr().out == "first\nsecond\n"


def test_a_run_starts_with_one_line():
    stream = io.StringIO()
    ConsoleLogger(stream=stream).start(RunInfo(folder=Path("outputs/x"), **INFO))
    assert stream.getvalue() == "UBM · clicks · adam · seed 1 · rate=0.1\n"


@pytest.mark.parametrize("progress", ["auto", "plain"])
def test_a_job_of_a_sweep_prints_one_line_unless_all_is_asked_for(progress):
    stream = io.StringIO()
    logger = ConsoleLogger(progress, stream=stream)
    logger.start(RunInfo(folder=Path("outputs/s/7"), job_type="sweep", **INFO))
    logger.message("a message")
    logger.warning("cannot write checkpoint.npz")
    logger.epoch(RECORD)
    logger.result(result_of(GROUPED))
    logger.finish(True)
    shown = stream.getvalue().splitlines()
    assert len(shown) == (2 if progress == "auto" else 17)
    if progress == "auto":
        assert shown == [
            "job 7: cannot write checkpoint.npz",
            "job 7: UBM · clicks · adam · seed 1 · rate=0.1: ll -0.3000, ppl 1.4000, 10.2 s",
        ]


def test_a_long_line_on_a_job_is_folded_between_words_on_a_terminal():
    stream = Terminal()
    logger = ConsoleLogger(stream=stream)
    logger.console = Console(file=stream, force_terminal=True, width=80)
    changes = tuple(f"optimizer.parameter_{number}=0.{number}" for number in range(6))
    logger.start(
        RunInfo(folder=Path("outputs/s/7"), job_type="sweep", **INFO | {"changes": changes})
    )
    logger.result(result_of(GROUPED))
    lines = stream.getvalue().splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 80
    assert lines[0].startswith("job 7: UBM") and all(line.startswith("    ") for line in lines[1:])
    assert all(change in stream.getvalue() for change in changes)


def test_compiling_is_said_once_in_a_pipe_and_while_it_lasts_on_a_terminal():
    stream, terminal = io.StringIO(), Terminal()
    for target in (stream, terminal):
        logger = ConsoleLogger(stream=target, passes=3)
        for _ in range(2):
            logger.compiling(True)
            logger.compiling(False)
        logger.progress("train", 1, 500, 1000, 0.5)
        logger.finish(True)
    assert stream.getvalue() == "compiling …\n"
    shown = [line.strip() for line in text_of(terminal).splitlines() if line.strip()]
    assert shown[:2] == ["epoch 1/3 compiling …"] * 2 and shown[2].startswith("epoch 1/3 train")


def test_the_live_line_has_the_epochs_and_the_time_left_at_most():
    """Two epochs of 90 seconds, compiling aside, and one half of the third of ten."""
    terminal = Terminal()
    logger = ConsoleLogger(stream=terminal, passes=10)
    for epoch in (1, 2):
        logger.epoch(RECORD | {"epoch": epoch, "seconds": 100.0, "compile_seconds": 10.0})
    logger.progress("train", 3, 500, 1000, 0.5)
    logger.finish(True)
    frame = next(
        line for line in text_of(terminal).splitlines() if "train" in line and "3/10" in line
    )
    assert frame.rstrip().endswith("≤ 11:15 left") and len(frame) <= 80


@pytest.mark.parametrize(
    "times, shown",
    [
        ({"seconds": 2.34, "compile_seconds": 1.5}, "0.8"),
        ({"seconds": 2.34, "compile_seconds": None}, "2.3"),
        ({}, "–"),
    ],
)
def test_seconds_of_an_epoch_are_without_compilation(times, shown):
    """Records of earlier versions lack the time of compilation."""
    table = EpochTable({"epoch": 1, "val/ll": -0.4}, 80)
    assert table.row({"epoch": 1, "val/ll": -0.4, **times}).split()[-1] == shown


def test_narrow_console_stacks_the_result_tables(monkeypatch):
    monkeypatch.setenv("COLUMNS", "45")
    stream = io.StringIO()
    ConsoleLogger(stream=stream).result(result_of(RESULT))
    assert "…" not in stream.getvalue()
    assert max(len(line) for line in stream.getvalue().splitlines()[:-1]) <= 45


def test_result_without_observed_ranks_prints_the_test_metrics():
    stream = io.StringIO()
    ConsoleLogger(stream=stream).result(result_of(RESULT | {"per_rank": {}}))
    assert "-0.1235" in stream.getvalue() and "rank" not in stream.getvalue()


def test_the_line_starts_again_for_another_pass_of_a_phase():
    """Sessions and then labelled lists are tested: neither has an epoch, and no speed is negative."""
    stream = io.StringIO()
    line = live_module.LiveLine(Console(file=stream, force_terminal=True, width=120))
    for done, total in ((500, 1000), (1000, 1000), (10, 50), (50, 50)):
        line.update("test", 0, done, total, None, "")
        time.sleep(0.01)
    line.stop()
    assert "test" in stream.getvalue() and "epoch 0" not in stream.getvalue()
    assert "/s" in stream.getvalue() and not re.search(r"-\d[^ ]*/s", stream.getvalue())


def test_off_prints_no_epochs_but_the_result():
    stream = io.StringIO()
    run_all(ConsoleLogger(progress="off", stream=stream))
    assert "epoch  " not in stream.getvalue()
    assert "781k/s" in stream.getvalue()


def test_long_message_stays_one_line():
    stream = io.StringIO()
    ConsoleLogger(stream=stream).message("wandb sync " + "x" * 200)
    assert stream.getvalue().splitlines() == ["wandb sync " + "x" * 200]


def test_terminal_gets_a_live_line_that_is_gone_at_the_end(monkeypatch):
    monkeypatch.setattr(live_module, "_SECONDS_BETWEEN_FRAMES", 0.0)
    terminal = Terminal()
    logger = ConsoleLogger(stream=terminal)
    run_all(logger, epochs=3)
    frames = [line.split() for line in text_of(terminal).splitlines() if " train " in line]
    assert [frame[:3] for frame in frames] == [["epoch", n, "train"] for n in "123"]
    assert frames[0][-2:] == ["loss", "0.5000"]
    assert frames[1][-3:] == frames[2][-3:] == ["best", "ll", "-0.4000"]
    assert max(len(line) for line in text_of(terminal).splitlines()) <= 80
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1
    after = terminal.getvalue().rpartition("\x1b[?25h")[2]
    assert after.startswith("\r\x1b[1A\x1b[2K")
    assert "test" in after and "epoch 3" not in after


def test_epoch_lines_replace_the_live_line_and_do_not_run_into_it():
    terminal = Terminal()
    logger = ConsoleLogger(stream=terminal)
    logger.progress("train", 1, 500, 1000, 0.5)
    before = len(terminal.getvalue())
    logger.epoch(RECORD)
    logger.finish(True)
    added = terminal.getvalue()[before:]
    assert added.startswith("\r\x1b[2K")
    assert "\n    1     0.51234  -0.40000" in text_of(terminal)


def test_frames_are_rare_within_a_phase(monkeypatch):
    monkeypatch.setattr(live_module, "_SECONDS_BETWEEN_FRAMES", 1e9)
    terminal = Terminal()
    logger = ConsoleLogger(stream=terminal)
    for done in range(1001):
        logger.progress("train", 1, done, 1000, 0.5)
    logger.progress("val", 1, 0, 100)
    logger.finish(True)
    frames = [line for line in text_of(terminal).splitlines() if line.startswith("epoch")]
    assert [" train " in frames[0], " train " in frames[-3], " val " in frames[-1]] == [True] * 3
    assert len(frames) <= 5


def test_bar_is_not_the_choice_in_a_pipe_with_forced_colours_or_a_dumb_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ConsoleLogger(stream=io.StringIO()).mode == "plain"
    monkeypatch.delenv("FORCE_COLOR")
    assert ConsoleLogger(stream=Terminal()).mode == "bar"
    monkeypatch.setenv("TERM", "dumb")
    assert ConsoleLogger(stream=Terminal()).mode == "plain"


def test_console_is_the_one_that_log_handlers_share():
    assert ConsoleLogger().console is get_console()


def test_finish_may_come_without_a_start():
    stream = io.StringIO()
    ConsoleLogger(progress="bar", stream=stream).finish(False)
    assert stream.getvalue() == ""


def test_unknown_progress_is_an_error_that_lists_the_choices():
    with pytest.raises(ValueError, match="progress='fancy': choose auto, bar, plain or off"):
        ConsoleLogger(progress="fancy")
