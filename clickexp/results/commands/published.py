"""The report on reproductions: printed, and written as Markdown, LaTeX and CSV."""

import math
from collections.abc import Sequence
from pathlib import Path

from clickexp.errors import UserError
from clickexp.results.commands.output import say, write_files
from clickexp.results.loading import Skipped, find_runs
from clickexp.results.metric_names import short
from clickexp.results.publication import Publication
from clickexp.results.reproductions import SECONDS, Reproduction, Row, reproductions
from clickexp.runs.run import Run
from clickexp.utils import escape
from clickexp.utils.paths import display_path
from clickexp.utils.tables.latex import latex
from clickexp.utils.tables.markdown import markdown
from clickexp.utils.tables.table import Table

_FOLDER = "published"


def compare_published(
    folders: Sequence[str | Path],
    output: str | Path | None = None,
    metrics: Sequence[str] | None = None,
    **others: object,
) -> list[Reproduction]:
    """Prints the reproductions below the folders and writes each as Markdown, LaTeX and CSV.

    Args:
        folders: Folders of runs.
        output: A folder for `published/`, by default the first folder.
        metrics: Metrics to show; by default all published.
        others: Options of a comparison, none of which may be set.

    Raises:
        UserError: For an option of a comparison, and where no run is of an experiment with published figures.
    """
    if chosen := next((name for name, value in others.items() if value), None):
        raise UserError(
            f"--published compares with published figures: leave --{chosen.partition('_')[0]} out"
        )
    reproduced = reproductions(_sound(folders), metrics)
    if not reproduced:
        raise UserError(
            "no run is of an experiment with published figures: run one, such as "
            "clickexp -m +experiment=clax2025_yandex_baseline"
        )
    files: dict[str, str] = {}
    for reproduction in reproduced:
        files |= _printed(reproduction)
    folder = Path(folders[0] if output is None else output) / _FOLDER
    write_files(folder, files)
    say(f"{len(files)} files in {display_path(folder)}")
    return reproduced


def _sound(folders: Sequence[str | Path]) -> list[Run]:
    """The runs of which reproductions can be made; reports those that are left out."""
    runs, skipped = find_runs(folders)
    damages = {run.folder: _damage(run) for run in runs}
    damaged = [Skipped(folder, reason) for folder, reason in damages.items() if reason]
    for one in (*skipped, *damaged):
        say(f"skipped {one}")
    return [run for run in runs if not damages[run.folder]]


def _printed(reproduction: Reproduction) -> dict[str, str]:
    """Prints the table of a reproduction, and returns it as the content of each file."""
    of_experiment, name = table(reproduction), escape.slug(reproduction.name)
    text = markdown(of_experiment)
    print(text)  # noqa: T201  # the command's result
    return {
        f"{name}.md": text,
        f"{name}.tex": latex(of_experiment, f"tab:{name}"),
        f"{name}.csv": as_csv(reproduction),
    }


def table(reproduction: Reproduction) -> Table:
    """The figures of an experiment for a reader."""
    first, *_ = names = list(reproduction.sources)
    sources = "; ".join(f"{name}: {source}" for name, source in reproduction.sources.items())
    caption = (
        f"{reproduction.caption}. Published figures: {sources}. Ours: mean ± standard deviation over splits; the "
        f"difference is to {first}, of seconds, ours without compilation, it is the ratio."
    )
    header = ["Model", "Metric", *names, "Ours", "Splits", "Difference", "Tolerance", "Notes"]
    align = f"ll{'r' * (len(header) - 4)}ll"
    rows = list(map(_cells, reproduction.rows))
    return Table(header, rows, caption, align, reproduction.name, reproduction.notes, long=True)


def as_csv(reproduction: Reproduction) -> str:
    """All numbers, unrounded."""
    references = [reference.lower() for reference in reproduction.sources]
    rows = []
    for row in reproduction.rows:
        published = zip(references, row.published, strict=True)
        values = {
            "model": row.model,
            "metric": row.metric,
            **dict(published),
            "ours": row.mean,
            "ours_sd": row.sd,
        }
        values |= {"splits": len(row.ours), "difference": row.difference, "verdict": row.verdict}
        values |= {"notes": " ".join(map(str, row.notes)), "compile_seconds": row.compile_seconds}
        rows.append(values)
    return escape.csv_text(rows[0], map(dict.values, rows))


def _damage(run: Run) -> str | None:
    """Why no reproduction can be made of a run that has published figures; None where it can."""
    try:
        Publication.of(run)
    except UserError as error:
        return str(error)
    return None


def _cells(row: Row) -> list[str]:
    seconds = row.metric == SECONDS
    digits = 0 if seconds else 4
    ours = f"{row.mean:,.{digits}f}" + (f" ± {row.sd:.{digits}f}" if math.isfinite(row.sd) else "")
    if row.compile_seconds is not None:
        ours += f" (+ {row.compile_seconds:,.0f} compiling)"
    difference = f"{row.difference:.3g}x" if seconds else f"{row.difference:+.{digits}f}"
    difference = difference if math.isfinite(row.difference) else ""
    published = ["" if value is None else f"{value:,.{digits}f}" for value in row.published]
    name, notes = "Seconds" if seconds else short(row.metric), ", ".join(map(str, row.notes))
    return [row.model, name, *published, ours, str(len(row.ours)), difference, row.verdict, notes]
