"""The comparison of runs in files: tables, figures and the page."""

from collections.abc import Sequence
from pathlib import Path

from clickexp.compare.output import Output
from clickexp.compare.summary import Comparison, comparisons
from clickexp.compare.tables import tables
from clickexp.runs.load import find_runs
from clickexp.utils.escape import printable, slug

PAGE = "comparison.html"


def compare(
    folders: Sequence[str | Path],
    output: str | Path | None = None,
    baseline: str | None = None,
    metrics: Sequence[str] | None = None,
) -> list[Comparison]:
    """Reads the runs below the folders and writes comparison.html, tables/ and figures/ into output.

    output: by default the first folder. baseline: the group, by its name or model, that others are tested against;
    by default the best. metrics: columns of the tables; the first orders them. Returns what was compared, a test set
    each. UserError where there are no runs, or a file in the way is not one that an earlier comparison wrote.
    """
    # wait for their libraries until there is something to draw
    from clickexp.compare.figures import figures
    from clickexp.compare.page import page

    runs, skipped = find_runs(folders)
    for one in skipped:
        _say(f"skipped {one}")
    found = comparisons(runs, metrics, baseline)
    folder = Path(folders[0] if output is None else output)
    files = Output(folder, _say)
    for comparison in found:
        _say(
            f"{comparison.name}: {len(comparison.runs)} runs of {len(comparison.groups)} configurations on "
            f"{comparison.describe()}"
        )
        for warning in filter(None, [comparison.choice, *comparison.warnings]):
            _say(f"  {warning}")
        label = f"-{slug(comparison.name)}" if len(found) > 1 else ""
        for name, text in tables(comparison, label).items():
            files.add(f"tables/{name}", text)
        for name, content in figures(comparison, label).items():
            files.add(f"figures/{name}", content)
    if len(found) > 1:
        _say(f"{len(found)} test sets, a table each: numbers of different test sets cannot be ranked")
    files.add(PAGE, page(found, skipped, folder))
    files.write()
    return found


def _say(text: str) -> None:
    print(printable(text), flush=True)
