"""The notebooks as pages: text, code and the output of their last execution."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "examples/notebooks"


def pages() -> Iterator[tuple[str, str | bytes]]:
    """Pages and pictures, by their paths in docs/."""
    for file in sorted(FOLDER.glob("*.ipynb")):
        text, resources = MarkdownExporter().from_notebook_node(nbformat.read(file, as_version=4))
        for name, picture in resources["outputs"].items():
            yield f"notebooks/{file.stem}-{name}", picture
            text = text.replace(f"]({name})", f"]({file.stem}-{name})")
        text = re.sub(r"!\[(?:png|svg)\]", f"![picture of {file.stem.replace('_', ' ')}]", text)
        where = f"\n\n*This page is `examples/notebooks/{file.name}`, with the output of its last execution.*\n"
        title, _, rest = text.lstrip().partition("\n")
        yield f"notebooks/{file.stem}.md", title + where + rest
