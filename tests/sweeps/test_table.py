"""The collected table, the live view, and finding results by configuration."""

import io
import json

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from small_runs import result_of

from clickexp.errors import ConfigError
from clickexp.runs.hashing import config_hash
from clickexp.runs.objective import objective
from clickexp.runs.store import (
    CHECKPOINT,
    MODEL,
    Record,
    finished,
    is_whole,
    short_keys,
    unfinished,
    values,
)
from clickexp.sweeps.backends.base import LOG, OVERDUE
from clickexp.sweeps.table import collect
from clickexp.sweeps.view import View, describe_end, last_epoch

LOSSES = {
    ("pbm", 1): 0.5,
    ("pbm", 2): 0.25,
    ("ubm", 1): 0.125,
    ("ubm", 2): 0.375,
    ("gctr", 1): None,
}


def job(folder, number, overrides, loss, status="finished", digest=None, **result):
    place = folder / str(number)
    Record(number, overrides, digest or f"hash{number}", status, str(place), seconds=1.0).write(
        place
    )
    if loss is not None:
        content = {"val": {"loss": loss}, "test": {"ll": -loss}}
        content["config_hash"] = digest or f"hash{number}"
        content["seed"] = values(overrides).get("seed")
        result_of(content | result, folder=place).write()


@pytest.fixture
def sweep(tmp_path):
    for number, ((model, seed), loss) in enumerate(LOSSES.items()):
        status = "failed" if loss is None else "finished"
        job(tmp_path, number, ["launcher=x", "a=1", f"model={model}", f"seed={seed}"], loss, status)
    return tmp_path


def printed(folder, metric="val/loss", width=100):
    stream = io.StringIO()
    collect(folder, folder, metric, Console(file=stream, width=width))
    return stream.getvalue()


def test_means_over_seeds_best_first(sweep):
    lines = [line.split() for line in printed(sweep).splitlines() if line.split()]
    assert lines[0] == ["model", "runs", "val/loss", "test/ll"]
    for line, model in zip(lines[2:4], ("ubm", "pbm"), strict=True):
        losses = [LOSSES[model, seed] for seed in (1, 2)]
        mean, (low, high) = f"{np.mean(losses):.4f}", sorted(f"{loss:.4f}" for loss in losses)
        of_losses, of_test = [mean, f"({low},", f"{high})"], [f"-{mean}", f"(-{high},", f"-{low})"]
        assert line == [model, "2", *of_losses, *of_test]
    assert printed(sweep, "test/ll").index("ubm") < printed(sweep, "test/ll").index("pbm")
    assert "job 4 failed\n" in printed(sweep) and "4 finished, 1 failed" in printed(sweep)
    (sweep / "4/job.log").touch()
    assert "job 4 failed\n" in printed(sweep)
    (sweep / "4/job.log").write_text("Killed\n")
    assert f"job 4 failed. Its log: {sweep}/4/job.log" in printed(sweep)


def test_each_warning_of_jobs_is_printed_once(tmp_path):
    """Jobs of processes of their own print where nobody looks."""
    for number, warnings in enumerate((["few lists"], ["few lists", "[b] is doubtful"], [])):
        job(tmp_path, number, [f"seed={number}"], 0.5, warnings=warnings)
    lines = [line for line in printed(tmp_path).splitlines() if line.startswith("warning of")]
    assert lines == [
        "warning of 2 of 3 runs: few lists",
        "warning of 1 of 3 runs: [b] is doubtful",
    ]


def test_the_best_run_is_that_of_the_objective(sweep):
    console = Console(file=io.StringIO())
    assert collect(sweep, sweep, "val/loss", console).folder == sweep / "2"  # ubm, seed 1
    higher = {"ll": True}
    for number, ll in ((5, -0.05), (6, -0.75)):
        job(sweep, number, [f"seed={number}"], 0.5, test={"ll": ll}, higher_is_better=higher)
    assert collect(sweep, sweep, "test/ll", console).folder == sweep / "5"
    assert collect(sweep / "4", sweep / "4", "val/loss", console) is None  # it failed


@pytest.mark.parametrize("ndcg", [True, False])
def test_losses_of_several_kinds_order_nothing(ndcg, tmp_path):
    """The best ranker by nDCG is first, and without labels the order stays."""
    kinds = {"none": (0.2, 0.6), "ips": (0.9, 0.7), "pbm": (0.1, 0.5)}
    for number, (name, (loss, value)) in enumerate(kinds.items()):
        test = {
            "loss": loss,
            **({"ll": -loss} if name == "pbm" else {}),
            **({"ndcg@10": value} if ndcg else {}),
        }
        job(tmp_path, number, [f"debias={name}"], loss, model=name, test=test)
    header, _, *lines = [line.split() for line in printed(tmp_path).splitlines() if line.split()]
    assert [line[0] for line in lines[:3]] == (
        ["ips", "none", "pbm"] if ndcg else ["none", "ips", "pbm"]
    )
    assert header[2] == ("test/ndcg@10" if ndcg else "test/loss")


def test_long_names_of_overrides_are_cut_rather_than_numbers(tmp_path):
    """Names that share their last part stay whole."""
    keys = ["optimizer.learning_rate", "optimizer.dense_learning_rate", "optimizer.weight_decay"]
    for number in range(2):
        job(tmp_path, number, [f"{key}=0.0{number + 1}" for key in keys], 0.25)
    header, _, line = [line.split() for line in printed(tmp_path, width=80).splitlines()[:3]]
    assert header[:5] == [
        "learning_rate",
        "dense_learning_rate",
        "weight_decay",
        "runs",
        "val/loss",
    ]
    assert line[:5] == ["0.01", "0.01", "0.01", "1", "0.2500"]
    assert short_keys(["a.x", "b.x", "role@c.y"]) == ["a.x", "b.x", "y"]
    assert short_keys(["a._target_", "m.b._target_", "a.lr"]) == ["a", "b", "lr"]


def test_lists_among_the_overrides_are_distinguished(tmp_path):
    """They are not markup, which rich would leave out."""
    for number, value in enumerate(("[red]", "[pbm,ubm]")):
        job(tmp_path, number, [f"model.components={value}"], 0.5)
    text = printed(tmp_path)
    assert "[red]" in text and "[pbm,ubm]" in text


@pytest.mark.parametrize(
    "stated, order",
    [
        ([False, False], "ab"),
        ([True, True], "ba"),
        ([None, None], "ab"),
        ([True, False], "ab"),
        ([], "ab"),
    ],
)
def test_the_order_follows_what_results_state(stated, order, tmp_path):
    """`brier` of a is 0.25, of b 0.5. Where nothing is stated, or both ways, rows stay as they came."""
    for number, value in enumerate((0.25, 0.5)):
        carried = {"higher_is_better": {"brier": stated[number]}} if stated else {}
        job(tmp_path, number, [f"model={'ab'[number]}"], 0.1, test={"brier": value}, **carried)
    lines = [line.split() for line in printed(tmp_path, "test/brier").splitlines() if line.split()]
    assert [line[0] for line in lines[2:4]] == list(order)


def test_times_without_compilation_have_a_column(tmp_path):
    trains = [
        {"seconds": 5.0, "compile_seconds": 1.5, "training_seconds": 3.5},
        {"seconds": 5.0, "training_seconds": 5.0},
    ]
    for number, train in enumerate(trains):
        job(tmp_path, number, [f"seed={number}"], 0.1, train=train)
    printed(tmp_path)
    table = pl.read_csv(tmp_path / "sweep.csv")
    assert table["process_seconds"].to_list() == [1.0] * 2 and "seconds" not in table.columns
    assert table["training_seconds"].to_list() == [3.5, 5.0]
    assert table["compile_seconds"].to_list() == [1.5, None]


def test_a_configuration_that_came_twice_counts_once(sweep):
    job(sweep, 5, ["a=1", "model=ubm", "seed=1"], LOSSES["ubm", 1], "kept", "hash2")
    lines = [line.split() for line in printed(sweep).splitlines()]
    assert next(line for line in lines if line[:1] == ["ubm"])[:3] == ["ubm", "2", "0.2500"]


def test_the_last_line_says_how_to_go_on(sweep, tmp_path_factory):
    assert "the same command again runs what has no result" in printed(sweep)
    whole = tmp_path_factory.mktemp("whole")
    for seed in (1, 2):
        job(whole, seed, ["model=pbm", f"seed={seed}"], 0.5)
    last = printed(whole)
    assert "clickexp-compare" in last and "the same command again" not in last


def test_files_hold_one_row_a_job(sweep):
    printed(sweep)
    table = pl.read_parquet(sweep / "sweep.parquet")
    assert table["seed"].to_list() == [1, 2, 1, 2, 1] and "launcher" not in table.columns
    assert table["val/loss"].to_list() == list(LOSSES.values())
    assert table["status"].to_list() == ["finished"] * 4 + ["failed"]
    assert pl.read_csv(sweep / "sweep.csv")["folder"].to_list() == [
        str(sweep / str(n)) for n in range(5)
    ]


def test_overrides_of_mixed_types_share_a_column(tmp_path):
    job(tmp_path, 0, ["tower.layers=8"], 1.0)
    job(tmp_path, 1, ["tower.layers=[8,8]"], 2.0)
    job(tmp_path, 2, [], 3.0)
    printed(tmp_path)
    assert pl.read_csv(tmp_path / "sweep.csv")["tower.layers"].to_list() == ["8", "[8,8]", None]


def test_cells_for_spreadsheets_are_no_formulas(tmp_path):
    """Only in CSV: parquet holds what there was. Numbers stay numbers."""
    job(tmp_path, 0, ["name==1+1", "rate=-0.5", "mixed=-3"], 1.0)
    job(tmp_path, 1, ["name=@x", "rate=-1", "mixed=-a"], 2.0)
    printed(tmp_path)
    read, exact = pl.read_csv(tmp_path / "sweep.csv"), pl.read_parquet(tmp_path / "sweep.parquet")
    assert read["name"].to_list() == ["'=1+1", "'@x"] and exact["name"].to_list() == ["=1+1", "@x"]
    assert read["rate"].to_list() == exact["rate"].to_list() == [-0.5, -1]
    assert read["mixed"].to_list() == ["-3", "'-a"] and exact["mixed"].to_list() == ["-3", "-a"]


def test_a_narrow_console_gets_the_metrics_that_fit(sweep):
    lines = printed(sweep, width=32).splitlines()
    assert "val/loss" in lines[0] and "test/ll" not in lines[0]


def test_overrides_are_read_as_values():
    given = [
        "+experiment=yandex",
        "seed=3",
        "rate=1e-3",
        "shuffle=True",
        "x=null",
        "hydra.launcher.workers=2",
    ]
    assert values(given) == {
        "experiment": "yandex",
        "seed": 3,
        "rate": 0.001,
        "shuffle": True,
        "x": None,
    }


def test_results_are_found_by_configuration(tmp_path):
    job(tmp_path / "a", 0, [], 0.1, digest="one")
    job(tmp_path / "b/c", 7, [], 0.2, digest="two")
    job(tmp_path / "b", 8, [], None, "interrupted", digest="three")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/result.json").write_text('{"config_hash": "fo')
    (tmp_path / "broken/job.json").write_text('{"of": "another version"}')
    assert Record.read(tmp_path / "broken") is None
    assert finished(tmp_path, tmp_path / "nowhere") == {
        "one": tmp_path / "a/0",
        "two": tmp_path / "b/c/7",
    }
    for folder in ("a/0", "b/8"):
        (tmp_path / folder / CHECKPOINT).touch()
    assert unfinished("three", tmp_path) == [tmp_path / "b/8"] and unfinished("one", tmp_path) == []


def test_a_result_whose_model_is_damaged_is_not_whole(tmp_path):
    """One without a model is, unless it was to be saved."""
    job(tmp_path, 0, [], 0.1, digest="0")
    folder, model = tmp_path / "0", tmp_path / "0" / MODEL
    assert is_whole(folder, False) and not is_whole(folder, True) and not is_whole(tmp_path, False)
    np.savez(model, table=np.arange(100.0))
    content = model.read_bytes()
    assert is_whole(folder, True)
    with np.load(model) as stored:
        table = stored["table"].tobytes()
    start = content.index(table)
    for at in (start, start + len(table) - 1):
        flipped = bytearray(content)
        flipped[at] ^= 1
        model.write_bytes(flipped)
        assert not is_whole(folder, False)
    for damaged in (content[: len(content) // 2], b""):
        model.write_bytes(damaged)
        assert not is_whole(folder, False)


def test_the_hash_is_that_of_what_is_computed():
    config = {"seed": 1, "dataset": {"path": "x", "cache": "here"}, "logger": {}, "resume": True}
    config["trainer"] = {"epochs": 3, "checkpoint_minutes": 5}
    same = {
        "dataset": {"cache": "there", "path": "x"},
        "seed": 1,
        "logger": {"a": 1},
        "resume": False,
    }
    same["trainer"] = {"epochs": 3, "checkpoint_minutes": None}
    assert config_hash(config) == config_hash(same)
    assert config_hash(config) != config_hash({**config, "seed": 2})
    assert config_hash(config) != config_hash({**config, "dataset": {"path": "y", "cache": "here"}})


def test_the_objective_is_a_metric_of_the_result():
    result = result_of({"val": {"loss": 0.5}, "test": {"ndcg@10": 0.7}})
    assert objective(result, "val/loss") == 0.5 and objective(result, "test/ndcg@10") == 0.7
    with pytest.raises(ConfigError, match="optimized_metric=loss: .* val/loss, test/ndcg@10"):
        objective(result, "loss")


def test_the_live_view_shows_queued_running_and_finished_jobs(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"epoch": 1, "val/loss": 0.5}\n{"epoch": 2, "val/loss": 0.25}\n'
    )
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    view = View("bar", "val/loss", ["gpu:0"], 3, ["a=1", "seed=1,2"], console)
    view.start()
    view.started(0, ["a=1", "seed=1"], "gpu:0", tmp_path)
    frame = stream.getvalue()
    for text in ("3 jobs on gpu:0", "job 0 (seed=1) on gpu:0", "2 queued, 1 running", "0.2500"):
        assert text in frame
    view.ended(0, Record(0, ["a=1", "seed=1"], "h", "finished", "x", seconds=2.0), tmp_path)
    view.stop()
    assert "job 0 (seed=1) finished in 2 s (1 of 3)" in stream.getvalue()


@pytest.mark.parametrize("mode, lines", [("plain", 3), ("off", 1)])
def test_without_a_terminal_there_are_lines(mode, lines, tmp_path):
    stream = io.StringIO()
    view = View(mode, "val/loss", ["gpu:0"], 3, [], Console(file=stream, width=40))
    view.start()
    view.started(0, ["seed=1"], "gpu:0", tmp_path)
    failed = Record(0, ["seed=1"], "h", "failed", "x", error="killed by SIGKILL")
    view.ended(0, failed, tmp_path)
    assert stream.getvalue().endswith("job 0 (seed=1) failed: killed by SIGKILL\n")
    assert len(stream.getvalue().splitlines()) == lines
    (tmp_path / LOG).write_text("Killed\n")
    view.ended(0, failed, tmp_path)
    view.stop()
    assert stream.getvalue().endswith(
        f"job 0 (seed=1) failed: killed by SIGKILL. Its log: {tmp_path / LOG}\n"
    )


def test_the_last_epoch_is_read_from_a_file_that_is_being_written(tmp_path):
    assert last_epoch(tmp_path) == {}
    lines = "".join(json.dumps({"epoch": n, "filler": "x" * 100}) + "\n" for n in range(200))
    (tmp_path / "metrics.jsonl").write_text(lines)
    assert last_epoch(tmp_path)["epoch"] == 199
    (tmp_path / "metrics.jsonl").write_text(lines + '{"epoch": 20')
    assert last_epoch(tmp_path)["epoch"] == 199


@pytest.mark.parametrize(
    "damage",
    [{"train": {"seconds": "2"}}, {"test": 3}, {"environment": [1]}, {"val": {"loss": [1]}}],
)
def test_a_damaged_result_is_named_and_the_others_are_collected(tmp_path, damage):
    job(tmp_path, 0, ["seed=1"], 0.5)
    job(tmp_path, 1, ["seed=2"], 0.25)
    file = tmp_path / "1/result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    text = printed(tmp_path)
    assert (
        "job 1 failed: result.json" in text
        and f"delete {tmp_path / '1'}" in text
        and "0.5000" in text
    )


@pytest.mark.parametrize(
    "epochs, after", [(0, "before its first epoch had ended"), (2, "after epoch 2")]
)
def test_what_is_lost_of_a_job_that_took_too_long(tmp_path, epochs, after):
    (tmp_path / "metrics.jsonl").write_text(
        "".join(f'{{"epoch": {n}}}\n' for n in range(1, epochs + 1))
    )
    text = describe_end(OVERDUE, tmp_path, 61.2)
    assert (
        after in text
        and "61 s" in text
        and "all of it is lost" in text
        and "hydra.launcher.job_minutes" in text
    )
    (tmp_path / CHECKPOINT).touch()
    assert "the same command continues from its checkpoint" in describe_end(OVERDUE, tmp_path, 61.2)
