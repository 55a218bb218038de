"""Writes files into README.md and the pages of docs/ that show them.

    python scripts/embed_examples.py

A comment <!-- file: examples/extend/gru/gru_click_model.py --> is followed by the content of that file in a code block.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- file: (?P<file>\S+) -->\n(?:```\w*\n.*?\n```\n)?", re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".txt": "text"}


def embedded(page: str) -> str:
    """The text of a page with the present content of the files that it shows."""

    def block(found: re.Match[str]) -> str:
        file = ROOT / found["file"]
        return (
            f"<!-- file: {found['file']} -->\n```{LANGUAGES[file.suffix]}\n{file.read_text()}```\n"
        )

    return BLOCK.sub(block, page)


def main() -> None:
    """Rewrites every page that shows a file."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        page.write_text(embedded(page.read_text()))


if __name__ == "__main__":
    main()
