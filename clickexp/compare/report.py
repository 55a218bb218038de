"""The report on a comparison: tables, figures and the page, in files."""

from collections.abc import Sequence
from pathlib import Path

from clickexp.compare.leaderboard import tables
from clickexp.compare.output import say, write_files
from clickexp.compare.summary import Comparison, comparisons
from clickexp.runs.load import find_runs
from clickexp.utils.escape import slug

PAGE = "comparison.html"


def compare(
    folders: Sequence[str | Path],
    output: str | Path | None = None,
    baseline: str | None = None,
    metrics: Sequence[str] | None = None,
) -> list[Comparison]:
    """Reads the runs below the folders and writes comparison.html, tables/ and figures/ into output.

    Args:
        folders: Folders of runs.
        output: By default the first folder.
        baseline: The group, by its name or model, that others are tested against; by default the best.
        metrics: Columns of the tables; the first orders them.

    Returns:
        One comparison for each test set.

    Raises:
        UserError: Where there are no runs, or a file in the way is not one that an earlier comparison wrote.
    """
    # here, so that errors in the folders come before the libraries load
    from clickexp.compare.page import page
    from clickexp.compare.paper import figures

    runs, skipped = find_runs(folders)
    for one in skipped:
        say(f"skipped {one}")
    found = comparisons(runs, metrics, baseline)
    folder = Path(folders[0] if output is None else output)
    files: dict[str, str | bytes] = {}
    for comparison in found:
        say(
            f"{comparison.name}: {len(comparison.runs)} runs of {len(comparison.groups)} configurations on "
            f"{comparison.describe()}"
        )
        for warning in filter(None, [comparison.choice, *comparison.warnings]):
            say(f"  {warning}")
        label = f"-{slug(comparison.name)}" if len(found) > 1 else ""
        files |= {f"tables/{name}": text for name, text in tables(comparison, label).items()}
        files |= {f"figures/{name}": content for name, content in figures(comparison, label).items()}
    if len(found) > 1:
        say(f"{len(found)} test sets, one table each: numbers of different test sets cannot be ranked")
    write_files(folder, files | {PAGE: page(found, skipped, folder)})
    return found
