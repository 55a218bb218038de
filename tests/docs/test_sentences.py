"""Sentences of pages are counted as a reader would, and keep the rule of the house."""

import sys

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from pages.sentences import LONGEST, MEAN, pages, sentences

PAGE = """# A heading with words

One sentence of six words here. `code with blanks` is one
word, e.g. here! See [a link](https://example.org/a.b) (Chen et al. 2024).

- An item. Of two sentences:
  the second goes on.
- Another item

| a table | with words that nobody counts |
|---|---|

    indented code. Not counted.

```python
print("Not counted. Either.")
```

<!-- a comment. --> $x = 1. Y$ ends it.
"""


def test_code_tables_and_headings_are_no_sentences():
    found = sentences(PAGE)
    assert found.words == [6, 6, 6, 2, 7, 2, 3]
    assert found.mean == pytest.approx(32 / 7) and found.is_readable


@pytest.mark.parametrize("words, readable", [(25, True), (26, False)])
def test_the_rule_is_of_the_mean(words, readable):
    assert sentences("word " * (words - 1) + "end.\n").is_readable is readable


def test_a_long_sentence_breaks_the_rule_whatever_the_mean():
    short = "A short one. " * 20
    found = sentences(short + "Word " + "word " * 39 + "end.\n")
    assert found.mean < MEAN and not found.is_readable
    (line,) = found.long
    assert line.startswith(f"{LONGEST + 1} words: Word")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_keep_the_rule(page):
    found = sentences(page.read_text())
    assert found.mean <= MEAN and not found.long
