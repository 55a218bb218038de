"""Hook of MkDocs: adds the pages that are made from the code, and writes formulas as MathML."""

import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent.parent
FENCE = re.compile(r"^(?:```.*?^```|(?:    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
RANKER = "<!-- graph: ranker -->"
DISPLAY, INLINE = (
    re.compile(r"\$\$(.+?)\$\$", re.DOTALL),
    re.compile(r"(?<![\\$\w])\$([^$\n]+?)\$(?![\w$])"),
)


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Adds what is made from the code."""
    # MkDocs takes away what a hook adds when it is loaded
    if str(ROOT / "scripts") not in sys.path:
        sys.path.insert(0, str(ROOT / "scripts"))
    from pages import commands, configuration, messages, models, notebooks, reference, result

    for source in (models, configuration, commands, messages, reference, result, notebooks):
        for path, content in source.pages():
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Draws the picture of rankers, and writes $$display$$ and $inline$ formulas as MathML; code stays."""
    from pages import models

    markdown = markdown.replace(RANKER, models.ranker())
    parts, last = [], 0
    for code in FENCE.finditer(markdown):
        parts += [formulas(markdown[last : code.start()]), code.group()]
        last = code.end()
    return "".join(parts) + formulas(markdown[last:])


def on_post_page(output: str, **_: Any) -> str:
    """Makes pages readable for all: the search has a name, wide formulas scroll by keys, table headers have text."""
    output = re.sub(r"<math\b(?=[^>]*display=\"block\")", '<math tabindex="0"', output)
    output = re.sub(r"<th\b([^>]*)>\s*</th>", r"<td\1></td>", output)
    return output.replace(
        'data-md-component="search" role="dialog"',
        'data-md-component="search" role="dialog" aria-label="Search"',
    )


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Removes the page of the theme for addresses that a server does not know, and reports long sentences."""
    from pages import sentences

    Path(config.site_dir, "404.html").unlink(missing_ok=True)
    words = [sentences.sentences(page.read_text()).words for page in sentences.pages()]
    counted = [count for of_page in words for count in of_page]
    mean, most = sum(counted) / len(counted), max(counted)
    print(
        f"{len(counted)} sentences on {len(words)} pages: {mean:.1f} words on average, {most} at most"
    )
    sentences.main([])


def formulas(text: str) -> str:
    """A part of a page without code blocks, its formulas as MathML."""
    text = DISPLAY.sub(lambda found: convert(found[1].strip(), display="block"), text)
    pieces = re.split(r"(`[^`\n]*`)", text)
    return "".join(
        piece if piece.startswith("`") else INLINE.sub(lambda found: convert(found[1]), piece)
        for piece in pieces
    )
