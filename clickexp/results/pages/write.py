"""Writes the page of a finished run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from clickexp.results.figures.drawing import draw_apart
from clickexp.results.figures.run import run_figures
from clickexp.results.pages.run import Changed, numbered, run_page
from clickexp.runs.run import Run
from clickexp.runs.store import REPORT
from clickexp.utils.files import whole


def write_report(
    run: Run, changed: Sequence[Changed], command: str
) -> tuple[Path, Mapping[str, str]]:
    """Writes report.html into the folder of a run.

    Args:
        run: The run.
        changed: Settings that differ from their defaults.
        command: What runs it again.

    Returns:
        The page, and the figures in it as SVG by name, numbered where they are panels of one.
    """
    drawings = draw_apart(run_figures(run).items())
    text = run_page(run, drawings, changed, command)
    with whole(run.folder / REPORT) as part:
        part.write_text(text, encoding="utf-8")
    return run.folder / REPORT, numbered(drawings)
