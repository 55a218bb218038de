"""docs/extend.md shows the examples as they are."""

import re
import sys

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from embed_examples import embedded

PAGE = (ROOT / "docs/extend.md").read_text()
FILES = sorted(
    str(file.relative_to(ROOT))
    for file in (ROOT / "examples/extend").rglob("*")
    if file.suffix in (".py", ".yaml")
)


def test_the_page_shows_the_files_as_they_are():
    assert embedded(PAGE) == PAGE, "run python scripts/embed_examples.py"


@pytest.mark.parametrize("file", FILES)
def test_the_page_shows_every_file(file):
    assert f"<!-- file: {file} -->" in PAGE


@pytest.mark.parametrize("folder", sorted({file.split("/")[2] for file in FILES}))
def test_the_page_counts_the_lines_of_an_example(folder):
    lines = sum(
        len((ROOT / file).read_text().splitlines())
        for file in FILES
        if file.startswith(f"examples/extend/{folder}/") and file.endswith(".py")
    )
    assert re.search(rf"\| `{folder}` \| {lines} \|", PAGE)
