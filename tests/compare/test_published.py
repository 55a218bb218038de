"""Runs beside published figures, as a `reproduction` node in their configurations has these."""

import copy

import pytest
import yaml
from small_runs import write_run

from clickexp.cli.compare import main
from clickexp.compare.published import compare_published

NODE = {
    "name": "first",
    "paper": "A. Uthor (2026)",
    "experiment": "one",
    "data": {"dataset": "clicks", "query_doc_pairs": 70, "filtered": True},
    "full": {"splits": {f"seed_{seed}": {"train": [0, 100], "test": [100, 150]} for seed in (1, 2)}},
    "published": {
        "OURS": {"source": "table 1", "figures": {"UBM": {"ppl": 1.5, "ll": -0.5, "seconds": 4.0, "sd": {"ll": 0.04}}}},
        "THEIRS": {"source": "table 2", "figures": {"UBM": {"ppl": 1.6}}},
    },
    "tolerance": {"ppl": 0.01, "ll": 0.002},
    "notes": [{"text": "of clicks only", "metrics": ["ppl"]}],
}
SESSIONS = {"train": 100, "test": 50}


def write(folder, seed=1, node=NODE, pairs=71, sessions=SESSIONS, **content):
    data = {"sessions": sessions, "query_doc_pairs": pairs}
    run = write_run(folder, "UBM", seed, {"ppl": 1.5 + 0.02 * seed, "ll": -0.5 - 0.02 * seed}, data=data, **content)
    with (run / "config.yaml").open("a") as file:
        file.write(yaml.safe_dump({"reproduction": node}))
    return run


def test_figures_have_their_difference_and_whether_the_tolerance_holds(tmp_path, capsys):
    for seed in (1, 2):
        write(tmp_path / str(seed), seed)
    main(["--published", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "| UBM | PPL | 1.5000 | 1.6000 | 1.5300 ± 0.0141 | 2 | +0.0300 | outside 0.01 | 1 |" in printed
    assert "| UBM | LL | -0.5000 |  | -0.5300 ± 0.0141 | 2 | -0.0300 | inside 0.08 |  |" in printed
    assert "| UBM | Seconds | 4 |  | 3 ± 1 | 2 | 0.75x |  |  |" in printed
    assert "A. Uthor (2026), experiment one. Published figures: OURS: table 1; THEIRS: table 2." in printed
    written = {file.name for file in (tmp_path / "published").iterdir()}
    assert {"first.md", "first.tex", "first.csv"} <= written and "3 files in" in printed
    line = (tmp_path / "published/first.csv").read_text().splitlines()[1].split(",")
    assert line[:4] == ["UBM", "ppl", "1.5", "1.6"] and line[-3:-1] == ["outside 0.01", "1"]


OTHER = {
    "train": (dict(sessions=SESSIONS | {"train": 99}), "99 sessions in train, not 100"),
    "test": (dict(sessions=SESSIONS | {"test": 51}), "51 sessions in test, not 50"),
    "no test": (dict(sessions={"train": 100}), "0 sessions in test, not 50"),
    "pairs": (dict(pairs=72), "72 pairs, not 70"),
    "dataset": (dict(dataset="others"), "the dataset is others, not clicks"),
    "seed": (dict(seed=3), "no published split of seed 3"),
}


@pytest.mark.parametrize("case", OTHER)
def test_runs_on_other_data_have_no_verdict(case, tmp_path):
    changes, reason = OTHER[case]
    write(tmp_path / "0", **changes)
    (found,) = compare_published([tmp_path])
    assert {row.verdict for row in found.rows} == {"other data"} and reason in found.notes[-1]


def test_sessions_that_a_filter_leaves_are_the_published_data(tmp_path):
    write(tmp_path / "0", sessions=SESSIONS | {"test": 40})
    (found,) = compare_published([tmp_path])
    assert {row.metric: row.verdict for row in found.rows}["ll"] == "inside 0.08"


def test_damaged_reproductions_and_folders_without_a_run_are_skipped_in_one_line(tmp_path, capsys):
    damaged = copy.deepcopy(NODE)
    del damaged["tolerance"]
    write(tmp_path / "0")
    write(tmp_path / "1", 2, damaged)
    (write_run(tmp_path / "2") / "result.json").write_text("{")
    (found,) = compare_published([tmp_path])
    lines = capsys.readouterr().out.splitlines()
    skipped = [line for line in lines if line.startswith("skipped ")]
    assert len(skipped) == 2 and "1: the reproduction in its config.yaml is damaged" in " ".join(skipped)
    assert [len(row.ours) for row in found.rows] == [1] * 3
