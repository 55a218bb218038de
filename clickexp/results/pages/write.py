"""Writes the page of a finished run and its figures."""

from collections.abc import Sequence
from pathlib import Path

from clickexp.results.figures.drawing import draw
from clickexp.results.figures.run import run_figures, run_groups
from clickexp.results.pages.run import Changed, run_page
from clickexp.runs.run import Run
from clickexp.runs.store import FIGURES, REPORT
from clickexp.utils.files import check_inside, whole


def write_report(run: Run, changed: Sequence[Changed], command: str) -> Path:
    """Writes report.html and figures/ into the folder of a run.

    Args:
        run: The run.
        changed: Settings that differ from their defaults.
        command: What runs it again.

    Returns:
        The page.
    """
    drawn = draw(run_figures(run).items(), formats=("svg", "pdf", "png"))
    drawings = {
        name.removesuffix(".svg"): made.decode()
        for name, made in drawn.items()
        if name.endswith(".svg")
    }
    files = {f"{FIGURES}/{name}": made for name, made in drawn.items() if not name.endswith(".svg")}
    text = run_page(run, run_groups(run), drawings, changed, command)
    check_inside(run.folder / FIGURES, run.folder)
    (run.folder / FIGURES).mkdir(exist_ok=True)
    for name, content in files.items():
        with whole(run.folder / name) as part:
            part.write_bytes(content)
    with whole(run.folder / REPORT) as part:  # last: where it is, its figures are
        part.write_text(text, encoding="utf-8")
    return run.folder / REPORT
