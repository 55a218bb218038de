"""What runs left, read back; what is broken, partial or foreign is named."""

import json
import os
import shutil

from refusals import refuses
from small_runs import write_json, write_run

from clickexp.errors import UserError
from clickexp.results import find_runs, load
from clickexp.runs.hashing import config_hash
from clickexp.runs.store import read_object


def test_the_tidy_frame_holds_every_number_of_a_result(tmp_path):
    test = {"ll": -0.25, "auc": None}
    run = write_run(tmp_path / "a/0", "PBM", seed=3, test=test, settings=[("learning_rate", 0.1)])
    result = json.loads((run / "result.json").read_text())
    write_json(run / "result.json", {**result, "per_rank_val": {"ll": [-0.5, None]}})
    frame = load(tmp_path / "a")
    assert frame.columns == [
        "run",
        "model",
        "dataset",
        "seed",
        "overrides",
        "part",
        "metric",
        "rank",
        "value",
    ]
    assert set(frame.select("run", "model", "dataset", "seed", "overrides").rows()) == {
        (str(run), "PBM", "clicks", 3, "model=pbm, optimizer.learning_rate=0.1")
    }
    assert set(frame.select("part", "metric", "rank", "value").rows()) == {
        ("test", "ll", None, -0.25), ("test", "auc", None, None),
        ("val", "ll", None, -0.25),
        ("train", "epochs", None, 3), ("train", "seconds", None, 6),
        ("train", "training_seconds", None, 6), ("train", "parameters", None, 1000),
        ("val", "ll", 1, -0.5), ("val", "ll", 2, None),
        ("test", "ll", 1, -0.25 * 1.2), ("test", "ll", 2, -0.25 * 0.8),
        ("test", "examination", 1, 1), ("test", "examination", 2, 0.5),
        ("test", "sessions", 1, 50), ("test", "sessions", 2, 40),
    }  # fmt: skip


def test_broken_partial_and_foreign_folders_are_named(tmp_path):
    good = write_run(tmp_path / "good")
    kept = tmp_path / "kept"
    write_json(kept / "job.json", {"status": "kept", "result": str(good)})
    write_json(tmp_path / "foreign/result.json", {"format": 1, "accuracy": 0.9})
    write_json(tmp_path / "other/result.json", {"model": "CM", "format": 2})
    write_json(tmp_path / "list/result.json", [1, 2])
    cut = write_run(tmp_path / "cut")
    (cut / "result.json").write_text((cut / "result.json").read_text()[:50])
    write_json(tmp_path / "failed/job.json", {"status": "failed"})
    write_run(tmp_path / "started")
    (tmp_path / "started/result.json").unlink()
    write_run(tmp_path / "text", val={"ll": "high"})
    write_run(tmp_path / "way", higher_is_better={"brier": "lower"})
    write_run(tmp_path / "beside", config={"seed": 1})
    (tmp_path / "notes").mkdir()
    runs, skipped = find_runs([tmp_path])
    assert [run.folder for run in runs] == [good]
    reasons = {one.folder.name: one.reason for one in skipped}
    assert reasons == {
        "foreign": "result.json is not that of a run: it names no model",
        "other": "result.json is of format 2, and not 1",
        "list": "result.json holds no JSON object",
        "cut": "result.json holds no JSON object",
        "failed": "there is no result.json (failed)",
        "started": "there is no result.json (did not finish)",
        "text": "result.json is damaged: val/ll is 'high'",
        "way": "result.json is damaged: higher_is_better/brier is 'lower'",
        "beside": "result.json is damaged: config is no key of it",
    }


def test_a_repeated_run_counts_once(tmp_path):
    for number, folder in enumerate(("early", "late")):
        os.utime(write_run(tmp_path / folder) / "result.json", (number, number))
    runs, skipped = find_runs([tmp_path / "late", tmp_path / "early", tmp_path])
    assert [run.folder.name for run in runs] == ["late"]
    assert [one.folder.name for one in skipped] == ["early"] and "late" in skipped[0].reason


def of_log(content):
    """Where a run had its data from: a file with this content."""
    return {"sources": {"dataset.path": content}, "fingerprint": content, "directory": "/"}


def test_a_job_that_was_repeated_since_its_log_has_changed_counts_once(tmp_path):
    """Not one of another sweep, nor of another configuration."""
    places = ("s/0", "old"), ("t/0", "old"), ("s/repeat-2/0", "new"), ("s/repeat-3/0", "newer")
    for time, (place, log) in enumerate(places):
        run = write_run(tmp_path / place, test_set=log, origin=of_log(log))
        os.utime(run / "result.json", (time, time))
    write_run(tmp_path / "s/1", seed=2, test_set="old", origin=of_log("old"))
    runs, skipped = find_runs([tmp_path / "s"])
    assert [run.folder for run in runs] == [tmp_path / "s/1", tmp_path / "s/repeat-3/0"]
    reason = f"repeated later, on data that have changed, in {tmp_path / 's/repeat-3/0'}"
    folders = [tmp_path / "s/0", tmp_path / "s/repeat-2/0"]
    assert [(one.folder, one.reason) for one in skipped] == [(folder, reason) for folder in folders]
    assert [run.folder for run in find_runs([tmp_path / "t"])[0]] == [tmp_path / "t/0"]


def test_a_job_that_has_finished_in_a_repetition_of_its_sweep_is_not_skipped(tmp_path):
    done = write_run(tmp_path / "repeat-2/0")
    digest = read_object(done / "result.json")["config_hash"]
    os.utime(done / "result.json", (2, 2))
    jobs = (1, "interrupted", digest), (1, "interrupted", "another"), (3, "failed", digest)
    jobs += ((1, "interrupted", [digest]),)
    for number, (time, status, configuration) in enumerate(jobs):
        job = tmp_path / f"{number}/job.json"
        write_json(job, {"status": status, "config_hash": configuration})
        os.utime(job, (time, time))
    runs, skipped = find_runs([tmp_path])
    assert [run.folder for run in runs] == [done]
    assert [one.folder.name for one in skipped] == ["1", "2", "3"]


def interrupted(folder, run, time):
    """A run of the same configuration that did not finish."""
    (folder / ".hydra").mkdir(parents=True)
    shutil.copy(run / "config.yaml", folder)
    os.utime(folder / "config.yaml", (time, time))


def test_a_run_that_has_finished_in_another_folder_is_not_skipped(tmp_path):
    """One of another configuration is, and one that started after the result, or whose configuration is none."""
    done = write_run(tmp_path / "continued")
    content = read_object(done / "result.json")
    digest = config_hash(read_object(done / "config.yaml"))
    write_json(done / "result.json", content | {"config_hash": digest})
    os.utime(done / "result.json", (2, 2))
    interrupted(tmp_path / "before", done, 1)
    interrupted(tmp_path / "after", done, 3)
    interrupted(tmp_path / "other", write_run(tmp_path / "seed", seed=2), 1)
    interrupted(tmp_path / "dates", done, 1)
    (tmp_path / "dates/config.yaml").write_text("seed: 2026-01-01")
    _, skipped = find_runs([tmp_path])
    assert [one.folder.name for one in skipped] == ["after", "dates", "other"]


def test_a_run_that_was_continued_with_other_settings_names_what_continued_it(tmp_path):
    """Its own settings have no result, so that it stays in the list."""
    origin = {"sources": {}, "fingerprint": "f", "directory": str(tmp_path)}
    done = write_run(tmp_path / "longer", origin=origin)
    interrupted(tmp_path / "short", write_run(tmp_path / "seed", seed=2), 1)
    settings = read_object(done / "config.yaml") | {"continue_from": "short"}
    (done / "config.yaml").write_text(json.dumps(settings))
    _, skipped = find_runs([tmp_path])
    assert [(one.folder, one.reason) for one in skipped] == [
        (tmp_path / "short", f"interrupted, and continued with other settings in {done}")
    ]


def test_without_runs_the_error_names_folder_and_reason(tmp_path):
    write_json(tmp_path / "foreign/result.json", {"format": 1, "accuracy": 0.9})
    with refuses(UserError, str(tmp_path), "no finished runs", "names no model"):
        load(tmp_path)
    with refuses(UserError, str(tmp_path / "nowhere"), "no such folder"):
        load(tmp_path / "nowhere")


def test_a_result_may_have_what_it_must_alone(tmp_path):
    folder = tmp_path / "short"
    needed = {
        "format": 1,
        "model": "CM",
        "dataset": "clicks",
        "test_set": "a",
        "test": {"ll": -0.4},
    }
    write_json(folder / "result.json", needed)
    (folder / "metrics.jsonl").write_text(
        '{"epoch": 1, "val/ll": -2}\n{"epoch": 1, "val/ll": -1}\n{"epoch": 2, "va'
    )
    run = find_runs([folder])[0][0]
    assert run.parameters is None and run.test_set == "a" and run.towers == {}
    assert run.epochs == ({"epoch": 1, "val/ll": -1},)
    for key in needed:
        write_json(folder / "result.json", {name: needed[name] for name in needed if name != key})
        with refuses(UserError, "result.json", key):
            find_runs([folder])


def test_experiments_are_distinguished_by_all_but_seeds(tmp_path):
    first = write_run(tmp_path / "0", seed=1)
    write_run(tmp_path / "1", seed=2)
    write_run(tmp_path / "2", seed=1, settings=[("learning_rate", 0.1)])
    given = write_run(tmp_path / "3", seed=1)
    text = (given / ".hydra/overrides.yaml").read_text()
    (given / ".hydra/overrides.yaml").write_text(text + "- dataset.seed=5\n")
    result = json.loads((given / "result.json").read_text())
    write_json(given / "result.json", result | {"test_set": "set-b"})
    one, two, rate, fixed = find_runs([tmp_path])[0]
    assert one.folder == first and one.experiment == two.experiment
    assert len({one.experiment, rate.experiment, fixed.experiment}) == 3
