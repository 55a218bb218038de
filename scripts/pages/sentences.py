"""Counts the words of the sentences of pages: at most 25 on average, none above 40.

python scripts/pages/sentences.py                     every page that breaks the rule, with its longest sentences
python scripts/pages/sentences.py docs/howto/my-log.md
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parent.parent.parent
MEAN, LONGEST = 25, 40
"""Words that the sentences of a page have at most, on average and each."""
_FENCED = re.compile(r"^ *```.*?^ *```[^\n]*$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:\n\n|\A)(?:(?:    |\t)[^\n]*\n|\n)+")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FORMULA = re.compile(r"\$\$.*?\$\$|(?<![\\$\w])\$[^$\n]+?\$", re.DOTALL)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)(\{[^}]*\})?")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_SNIPPET = re.compile(r"^--8<--.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_ENDS = re.compile(r"(?<=[.!?])[)*\"]*\s+(?=[\"(*]*[A-Z0-9`])")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|et al|vs|Sec|Eq|Fig|No)\.")


@dataclass(frozen=True)
class Sentences:
    """Sentences of a page.

    Attributes:
        words: Words of each.
        texts: Each.
    """

    words: list[int]
    texts: list[str]

    @property
    def mean(self) -> float:
        """Words per sentence; 0 of a page without any."""
        return fmean(self.words) if self.words else 0.0

    @property
    def long(self) -> list[str]:
        """Sentences with more words than the rule allows, the longest first."""
        pairs = sorted(zip(self.words, self.texts, strict=True), reverse=True)
        return [f"{count} words: {text}" for count, text in pairs if count > LONGEST]

    @property
    def is_readable(self) -> bool:
        """Whether the page keeps the rule."""
        return self.mean <= MEAN and not self.long


def sentences(markdown: str) -> Sentences:
    """Returns the sentences of a page, without code, formulas, tables and headings; a code span is a word."""
    text = _COMMENT.sub("", _FENCED.sub("", markdown))
    text = _INDENTED.sub("\n\n", text)
    text = _SNIPPET.sub("", _IMAGE.sub("", text))
    text = _LINK.sub(r"\1", _FORMULA.sub("formula", text))
    found = [
        sentence
        for block in _blocks(text)
        for sentence in _ENDS.split(_ABBREVIATION.sub("and", _CODE.sub("`code`", block)))
        if re.search(r"[a-z]{2}", sentence)
    ]
    return Sentences([len(sentence.split()) for sentence in found], found)


def _blocks(text: str) -> list[str]:
    """Paragraphs and items of lists, each on one line."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith(("#", "|", "---")) or not line.strip():
            blocks.append([])
            continue
        if _ITEM.match(line):
            blocks.append([])
        blocks[-1].append(_ITEM.sub("", line).strip())
    return [" ".join(block) for block in blocks if block]


def pages() -> list[Path]:
    """Returns the pages that people wrote; the changelog is a list."""
    written = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in written if page.name != "changelog.md" and "data" not in page.parts]


def main(names: list[str]) -> int:
    """Prints the pages that break the rule, and their longest sentences; returns how many."""
    broken = 0
    for page in [Path(name) for name in names] or pages():
        found = sentences(page.read_text())
        if names or not found.is_readable:
            print(f"{page}: {found.mean:.1f} words per sentence, {len(found.long)} above {LONGEST}")
            print("".join(f"    {line}\n" for line in found.long), end="")
        broken += not found.is_readable
    return broken


if __name__ == "__main__":
    print(f"{main(sys.argv[1:])} pages break the rule")
