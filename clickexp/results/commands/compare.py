"""The report on a comparison: the conclusion and leaderboard on the terminal; tables and the page in files."""

import shlex
import textwrap
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from clickexp.results.chains import chain_layouts, chain_table, chains
from clickexp.results.commands.output import say, write_files
from clickexp.results.comparison import Comparison, comparisons
from clickexp.results.conclusion import conclusion
from clickexp.results.leaderboard import leaderboard, significance, tables
from clickexp.results.loading import find_runs
from clickexp.runs.run import Run
from clickexp.runs.store import run_folders
from clickexp.utils.escape import csv_text, slug
from clickexp.utils.paths import display_path
from clickexp.utils.tables.latex import latex
from clickexp.utils.tables.markdown import markdown
from clickexp.utils.tables.table import Table
from clickexp.utils.tables.terminal import fitting
from clickexp.utils.text import counted

_PAGE, _FOLDER = "comparison.html", "comparison"


def compare(
    folders: Sequence[str | Path],
    output: str | Path | None = None,
    baseline: str | None = None,
    metrics: Sequence[str] | None = None,
    title: str | None = None,
    with_figures: bool = False,
    open_page: bool = False,
    full: bool = False,
) -> list[Comparison]:
    """Reads the runs below the folders, prints how they compare, and writes comparison.html and tables/.

    Args:
        folders: Folders of runs.
        output: Where to write; by default the first folder, or comparison/ in it where it is that of a run.
        baseline: The group, by its name or model, that others are tested against; by default the best.
        metrics: Columns of the tables; the first orders them.
        title: Title of the page; by default the names of folder and datasets.
        with_figures: Whether to write figures/, too: PDF and PNG.
        open_page: Whether to open the page in a browser.
        full: Whether leaderboard.csv has all metrics, and what intervals and tests are over.

    Returns:
        One comparison for each test set.

    Raises:
        UserError: Where there are no runs, or a file in the way is not one that an earlier comparison wrote.
    """
    # here, so that errors in the folders come before the libraries load
    from clickexp.results.pages.comparison import page

    runs, skipped = find_runs(folders)
    for one in skipped:
        say(f"skipped {one}")
    compared = comparisons(runs, metrics, baseline)
    folder = _folder_beside(Path(folders[0])) if output is None else Path(output)
    console = Console()
    written = _tables(compared, full, console)
    for number, chain in enumerate(chains(runs), 1):
        written |= _chain(chain, f"chain-{number}", console)
    command = [
        "clickexp-compare",
        *map(str, folders),
        *(["--baseline", baseline] if baseline else []),
    ]
    content = page(compared, skipped, folder, title, shlex.join(command))
    images = _figures(compared, runs) if with_figures else {}
    write_files(folder, written | images | {_PAGE: content})
    figures = f" and {len(images)} figures" if with_figures else ""
    say(f"{len(written)} tables{figures} in {display_path(folder)}")
    say(display_path(folder / _PAGE))
    if open_page:
        webbrowser.open((folder / _PAGE).resolve().as_uri())
    return compared


def _tables(compared: Sequence[Comparison], full: bool, console: Console) -> dict[str, str]:
    """Prints comparisons, and returns the content of their tables by path."""
    contents = {}
    for comparison in compared:
        _print(comparison, console)
        contents |= tables(comparison, _label(comparison, compared), full)
    if len(compared) > 1:
        say(
            f"{len(compared)} test sets, one table each: numbers of different test sets cannot be ranked"
        )
    return {f"tables/{name}": content for name, content in contents.items()}


def _chain(chain: Sequence[Run], name: str, console: Console) -> dict[str, str]:
    """Prints a chain of updates, and returns the content of its tables by path."""
    say(f"{len(chain)} runs are a chain of updates, the oldest first")
    console.print(fitting(chain_table(chain, short=True), console))
    files = _files(chain_table(chain), name)
    if (layouts := chain_layouts(chain)) is not None:
        say(layouts.caption)
        console.print(fitting(layouts, console))
        files |= _files(layouts, f"{name}-layouts")
    return files


def _files(table: Table, name: str) -> dict[str, str]:
    """Returns the content of the files of a table by path."""
    rows = (map(str, row) for row in table.rows)
    files = {
        "csv": csv_text(table.header, rows),
        "md": markdown(table),
        "tex": latex(table, f"tab:{name}"),
    }
    return {f"tables/{name}.{suffix}": text for suffix, text in files.items()}


def _folder_beside(first: Path) -> Path:
    """Returns where a comparison is written, within a run in a separate folder."""
    return first / _FOLDER if next(run_folders(first), None) == first else first


def _label(comparison: Comparison, compared: Sequence[Comparison]) -> str:
    """Returns what names of files of a comparison end with, where there are several."""
    return f"-{slug(comparison.name)}" if len(compared) > 1 else ""


def _figures(compared: Sequence[Comparison], runs: Sequence[Run]) -> dict[str, bytes]:
    """Returns the content of each figure by its path: of a single run those of its report."""
    # here, since Matplotlib takes a second to load
    from clickexp.results.figures.chain import chain_panels
    from clickexp.results.figures.comparison import figures
    from clickexp.results.figures.drawing import draw
    from clickexp.results.figures.run import run_figures

    images: dict[str, bytes] = {}
    if len(runs) == 1:
        images = draw(run_figures(runs[0]).items())
    else:
        for comparison in compared:
            images |= figures(comparison, _label(comparison, compared))
        of_chains = (
            (f"chain-{number}", chain_panels(chain)) for number, chain in enumerate(chains(runs), 1)
        )
        images |= draw(of_chains)
    return {f"figures/{name}": content for name, content in images.items()}


def _print(comparison: Comparison, console: Console) -> None:
    """Prints the conclusion and the leaderboard, with as many columns as fit."""
    runs, groups = len(comparison.runs), len(comparison.groups)
    of_runs = f"{counted(runs, 'run')} of {counted(groups, 'configuration')}"
    say(f"{comparison.name}: {of_runs} on {comparison.describe()}")
    sentences = [
        conclusion(comparison),
        comparison.choice,
        *comparison.warnings,
        *(f"warning of runs: {warning}" for warning in comparison.run_warnings),
        significance(comparison),
    ]
    for sentence in filter(None, sentences):
        text = sentence if sentence.endswith(".") else f"{sentence}."
        filled = textwrap.fill(text, console.width, break_long_words=False, break_on_hyphens=False)
        console.print(Text(filled), soft_wrap=True)  # paths stay whole
    console.print()
    console.print(fitting(leaderboard(comparison), console))
    console.print()
