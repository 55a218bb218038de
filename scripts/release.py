"""Checks that a tag, the package, the citation and the changelog name one version, and prints its changes.

python scripts/release.py v0.2.0
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATED = {
    "clickexp/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
}
"""Files that state the version, and how."""


def changes(tag: str, root: Path = ROOT) -> str:
    """The part of the changelog for a tag.

    Args:
        tag: Such as v0.2.0.
        root: Of the checkout.

    Raises:
        SystemExit: Another version is stated somewhere; the message says where.
    """
    version = tag.removeprefix("v")
    for name, pattern in STATED.items():
        found = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        stated = found[1] if found else "none"
        if stated != version or tag == version:
            raise SystemExit(f"{name} states {stated}, and the tag is {tag}: they must be X and vX")
    text = (root / "CHANGELOG.md").read_text()
    own = re.search(
        rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n(.+?)(?=^## |\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    if own is None:
        raise SystemExit(f"CHANGELOG.md has no part '## {version} - DATE' with changes")
    return own[1].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", help="such as v0.2.0")
    print(changes(parser.parse_args().tag))


if __name__ == "__main__":
    main()
