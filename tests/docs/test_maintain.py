"""Pages for who maintains clickexp follow the code."""

import json
import os
import re
import sys

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from pages import measure, rooms

DOCS = ROOT / "docs"
DECISIONS = sorted(set((DOCS / "decisions").glob("*.md")) - {DOCS / "decisions/index.md"})


def test_the_map_is_that_of_the_imports():
    assert rooms.FILE.read_text() == rooms.drawn(), "run python scripts/pages/rooms.py"


def test_an_arrow_that_follows_from_others_is_not_drawn():
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert rooms.direct(graph) == [("a", "b"), ("b", "c")]
    assert rooms.floors(graph) == {"a": 2, "b": 1, "c": 0}


def test_the_ten_files_to_read_first_exist():
    text = (DOCS / "map.md").read_text()
    files = re.findall(r"^\| `([\w/.]+)` \|", text, re.MULTILINE)
    assert len(files) == 10 and not [file for file in files if not (ROOT / file).is_file()]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_its_parts_and_names_what_exists(page):
    text = page.read_text()
    parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "Measured", "What would change our mind"]
    measured = text.partition("## Measured")[2].partition("## ")[0]
    assert "scripts/bench/" in measured or "There is no figure" in measured
    named = re.findall(r"`((?:scripts|clickexp)/[\w/.]+\.py)", text)
    assert not [file for file in named if not (ROOT / file).is_file()]
    assert f"({page.name})" in (DOCS / "decisions/index.md").read_text()


def test_words_of_the_glossary_are_in_order():
    text = (DOCS / "glossary.md").read_text()
    words = re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)[1:]
    assert words == sorted(words, key=str.lower) and len(words) > 20


def test_figures_are_of_the_last_result_of_each_job_wherever_its_sweep_has_it(
    tmp_path, monkeypatch
):
    """A sweep that was interrupted has the rest in its repetition."""
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    monkeypatch.setattr(measure, "RUNS", tmp_path)
    monkeypatch.setattr(measure, "MODELS", "cm,pbm,ubm")
    for time, (place, epochs) in enumerate(
        {"1": 4, "0": 3, "repeat-2/1": 5, "repeat-2/2": 6}.items()
    ):
        file = tmp_path / "models" / place / "result.json"
        file.parent.mkdir(parents=True)
        content = {
            "test": dict.fromkeys(("ll", "ppl", "cond_ppl", "ndcg@10"), 1.0),
            "train": {"epochs": epochs, "training_seconds": 1.0},
            "environment": {"device": "cpu"},
            "data": {"sessions": {"train": 8, "val": 1, "test": 1}},
        }
        file.write_text(json.dumps(content))
        os.utime(file, (time, time))
    runs = measure.models()["runs"]
    assert {name: run["epochs"] for name, run in runs.items()} == {"cm": 3, "pbm": 5, "ubm": 6}
    assert runs["pbm"]["folder"] == "models/repeat-2/1"
