"""Folders of runs may come from anyone: a hostile one is skipped, in bounded time, and the others are read."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refuses
from small_runs import write_json, write_run

from clickexp.errors import ConfigError
from clickexp.results import find_runs, load
from clickexp.results.comparison import comparisons
from clickexp.results.hyperparameters import commands
from clickexp.results.online_results import online_results
from clickexp.runs.claims import claim_named, claim_sweep
from clickexp.runs.store import Record, finished, natural, read_epochs, records, unfinished

_LINES = (f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))
BOMB = "\n".join(["a0: &a0 [x,x,x,x,x,x,x,x,x]", *_LINES])
"""3e11 values in 12 lines."""
DEEP = "[" * 200_000 + "]" * 200_000


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(text)


def piped(name: str) -> Callable[[Path], object]:
    def make(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return make


def kept(result: object) -> Callable[[Path], object]:
    def make(run: Path) -> None:
        (run / "result.json").unlink()
        write_json(run / "job.json", {"status": "kept", "result": result})

    return make


@pytest.mark.parametrize(
    "spoil",
    [
        *(pytest.param(written(name, BOMB), id=f"{name}: a bomb") for name in ("config.yaml", ".hydra/overrides.yaml")),
        *(pytest.param(written(name, DEEP), id=f"{name}: deep")
          for name in ("config.yaml", ".hydra/overrides.yaml", "result.json")),
        pytest.param(written("config.yaml", "x: 1" + ":1" * 300 + ".5"), id="a float in base 60"),
        pytest.param(written("config.yaml", f"x: {'y' * (1 << 20)}"), id="a configuration of a MiB"),
        pytest.param(lambda run: os.truncate(run / "result.json", 1 << 32), id="a result of 4 GiB"),
        pytest.param(piped("result.json"), id="a result that is a pipe"),
        pytest.param(kept("a\0b"), id="an earlier result at no path"),
        pytest.param(kept("a" * 5_000), id="an earlier result at a path too long"),
        pytest.param(lambda run: write_json(run / "result.json", json.loads((run / "result.json").read_text())
                     | {"seed": 10**40}), id="a seed beyond 64 bits"),
        pytest.param(lambda run: write_json(run / "result.json", json.loads((run / "result.json").read_text())
                     | {"per_rank": {"ppl": [1.5] * 10_001}}), id="more ranks than a table has lines for"),
        *(pytest.param(lambda run, part=part: write_json(run / "result.json",
                       json.loads((run / "result.json").read_text()) | part), id=str(part))
          for part in ({"curves": {"ece": {"predicted": [[1], [1, 2]], "observed": [], "documents": []}}},
                       {"curves": {"ece": 3.0}}, {"environment": {"jax": {"a": 1}}}, {"train": {"seconds": "2"}},
                       {"val": {"ll": float("inf")}}, {"intervals": {"ll": 3}})),
    ],
)  # fmt: skip
def test_a_hostile_folder_is_skipped_and_the_others_are_read(tmp_path, spoil):
    write_run(tmp_path / "good")
    spoil(write_run(tmp_path / "bad"))
    runs, skipped = find_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["good"]
    assert [one.folder.name for one in skipped] == ["bad"]
    assert len(load(tmp_path)["run"].unique()) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(written("job.json", DEEP), id="a record"),
        pytest.param(written("metrics.jsonl", f"{DEEP}\n"), id="epochs"),
        *(pytest.param(piped(name), id=f"{name}: a pipe") for name in ("metrics.jsonl", "config.yaml", "job.json")),
        *(pytest.param(written(".hydra/overrides.yaml", text), id=f"overrides: {text}")
          for text in ("3", "true", "text", "{a: b}", "[1, [2], {a: b}]", "!!set {a=b}")),
        pytest.param(written("../best.yaml", BOMB), id="the best trial of a search"),
        pytest.param(written("metrics.jsonl", json.dumps({"epoch": 1, "seconds": 10**400})), id="seconds"),
    ],
)  # fmt: skip
def test_what_a_result_can_do_without_is_left_out(tmp_path, spoil):
    spoil(write_run(tmp_path / "sweep/0"))
    runs, skipped = find_runs([tmp_path])
    assert not skipped and len(runs) == 1 and runs[0].epoch_seconds is not None
    (one,) = comparisons(runs)
    assert len(commands(one.groups)) == 1


def test_damaged_values_per_query_leave_the_other_tests(tmp_path):
    """Polars has errors of its own, which ended the comparison of all."""
    for seed in range(3):
        for model in ("PBM", "UBM"):
            folder = write_run(tmp_path / f"{model}{seed}", model, seed, {"ll": -0.1 * seed})
            (folder / "test_sessions.parquet").write_bytes(b"PAR1" * 9)
    (one,) = comparisons(find_runs([tmp_path])[0])
    assert one.tests["ll"].unit == "seeds"


def test_a_folder_whose_name_has_other_digits_is_in_order():
    """`1²`.isdigit() is true, and int("1²") fails."""
    assert sorted(["10", "2", "1²", "a"], key=natural)[:2] in (["1²", "2"], ["2", "10"])


@pytest.mark.parametrize(
    "content", [DEEP, "3", "[1]", '["config_hash"]', '{"config_hash": [1]}', "null", "{}"]
)
def test_sweeps_pass_over_files_that_are_none_of_theirs(tmp_path, content):
    own = Record(3, ["seed=1"], "digest", "finished", str(tmp_path / "a"))
    own.write(tmp_path / "a")
    write_json(tmp_path / "a/result.json", {"config_hash": "digest"})
    (tmp_path / "b").mkdir()
    for name in ("result.json", "job.json"):
        (tmp_path / "b" / name).write_text(content)
    assert finished(tmp_path) == {"digest": (tmp_path / "a").resolve()}
    assert [record for _, record in records(tmp_path)] == [own]
    assert unfinished("digest", tmp_path) == []
    assert read_epochs(tmp_path / "b") == []


@pytest.mark.parametrize(
    "wrong",
    [{"number": "3"}, {"overrides": "seed=1"}, {"overrides": [1]}, {"config_hash": [1]}, {"seconds": "3"},
     {"device": {}}, {"error": [1]}],
)  # fmt: skip
def test_a_record_of_other_types_is_none(tmp_path, wrong):
    Record(3, ["seed=1"], "digest", "finished", "a").write(tmp_path)
    file = tmp_path / "job.json"
    write_json(file, json.loads(file.read_text()) | wrong)
    assert Record.read(tmp_path) is None


def test_a_hostile_comparison_by_users_is_skipped(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "online/a").mkdir(parents=True)
    (run / "online/a/online.json").write_text(DEEP)
    found, skipped = online_results(find_runs([tmp_path])[0])
    assert not found and len(skipped) == 1


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", ".hydra", "0/job.log", "0/.hydra/config.yaml", "wandb"]
)
@pytest.mark.parametrize(
    "claim", [claim_sweep, lambda folder: claim_named(folder, dict)], ids=["sweep", "run"]
)
def test_a_run_does_not_write_through_links_that_lead_out_of_its_folder(tmp_path, claim, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("of someone else")
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(elsewhere)
    with refuses(ConfigError, str(path), "leads out of the folder", "choose another folder"):
        claim(tmp_path / "run")
    path.unlink()
    os.mkfifo(path)
    with refuses(ConfigError, str(path), "is a pipe", "choose another folder"):
        claim(tmp_path / "run")
    path.unlink()
    (tmp_path / "run/inside").symlink_to(path.parent)
    with claim(tmp_path / "run").lock:
        assert elsewhere.read_text() == "of someone else"


def test_a_sweep_is_repeated_beside_the_links_that_wandb_leaves_in_its_jobs(tmp_path):
    """They lead to its cache, and would end each repetition of a sweep with the default logger."""
    logs = tmp_path / "sweep/0/wandb/offline-run-1/logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(tmp_path / "cache/wandb/core-debug.log")
    claim_sweep(tmp_path / "sweep").lock.close()
