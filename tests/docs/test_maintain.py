"""Pages for who maintains clickexp follow the code."""

import re
import sys

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from pages import rooms

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
