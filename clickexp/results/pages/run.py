"""The page of a single run: result, figures, configuration and command in one file without scripts or requests."""

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any

from clickexp.results import metric_names
from clickexp.results.chains import chain_layouts, chain_of, chain_table, moved_table
from clickexp.results.colors import BLACK, COLORS, GRID
from clickexp.results.figures.run import CLICK_RATES, propensities
from clickexp.results.pages.template import filled
from clickexp.results.run_tables import rank_table, result_tables, run_conclusion, shared_table
from clickexp.runs.run import Run
from clickexp.utils.escape import html_text
from clickexp.utils.paths import display_path
from clickexp.utils.tables.html import html
from clickexp.utils.tables.table import Table

_CAPTIONS = {
    "perplexity": "Perplexity by rank of the test sessions, lower is better, and the share of the perplexity above 1 "
    "that is gained over rank-CTR, which predicts the click rate of each rank.",
    "examination": "How likely users look at each rank, mean over the test sessions, and the same relative to rank 1, "
    "as propensities are used, with 95% intervals. Clicks determine examination up to a factor alone: its level may be "
    "off where ratios are not.",
    "propensities": "Propensities by position relative to the first: what the ranker has learned of examination, or "
    "what it divides clicks by.",
    CLICK_RATES: "Click rates by rank of the test sessions, by length of list or a column with few values. One curve "
    "of examination fits them where they differ by a factor at most, or show other documents.",
    "cold_start": "Share of the perplexity above 1 that is gained over rank-CTR, of documents by how often training "
    "has shown them, and their share of the test set. Ranges with fewer than 100 test documents have no gain.",
    "updates": "Over the updates from a fit from scratch: test log-likelihood on the log of each, before and after the "
    "update and after the next one, click rate of the test sessions, and of models with examination by position, that "
    "relative to position 1 with 95% intervals; of layouts, that of the first three.",
    "learning": "Losses by epoch, on the scale of all but the first. The model is that of the epoch that the star "
    "marks.",
    "calibration": "Click rate of the documents in each bin of P(click), ranks together; on the diagonal, predictions "
    "are click rates. Above, the number of documents in each bin; bins of fewer than 10 are left out below.",
}
_WITHOUT_RATIOS = "How likely users look at each rank, mean over the test sessions."
_OF_LAYOUTS = (
    "How likely users look at each rank of each layout, relative to rank 1 of one of them, as propensities are used: "
    "clicks determine examination up to a factor. Bars are 95% intervals."
)
_NOTES = {
    "rank-CTR": " Rank-CTR predicts the click rate of each rank.",
    "true user": " The true user, known where clicks are simulated, is the best possible.",
}
"""Descriptions of references by name."""


Changed = tuple[str, Any, Any]
"""Key, value and default of a setting that differs from its default; the default is None where there is none."""


def run_page(
    run: Run,
    drawings: Mapping[str, Sequence[str]],
    changed: Sequence[Changed],
    command: str,
) -> str:
    """Writes the page, as HTML.

    Args:
        run: The run.
        drawings: SVG of the panels of each figure by its name.
        changed: Settings that differ from the defaults.
        command: What was typed.
    """
    title = f"{run.model} on {run.dataset}"
    tables = result_tables(run, _with_key, validation=True)
    ranks = rank_table(run, metric_names.short, references=("ppl", "examination"))
    parts = {
        "generator": "clickexp",
        "title": html_text(title),
        "about": html_text(_about(run)),
        "conclusion": html_text(run_conclusion(run)),
        "warnings": _warnings(run),
        "result": "".join(f"<div>{html(table)}</div>" for table in tables),
        "notes": "".join(note for name, note in _NOTES.items() if name in run.references),
        "figures": _figures(drawings, _captions(run)),
        "ranks": _details("Numbers by rank", ranks),
        "shared": _details("Shared parameters with intervals", shared_table(run.shared)),
        "updates": _updates(run),
        "changed": _changed(changed),
        "command": html_text(command),
        "draw": html_text(shlex.join(["clickexp-compare", display_path(run.folder), "--figures"])),
        "environment": html(Table(["Key", "Value"], _environment_rows(run), "Environment")),
    }
    return filled("run", parts)


def _with_key(metric: str) -> str:
    """Name of a metric, and the one that options and files have, where it is another."""
    name = metric_names.name(metric)
    return (
        name if metric in name.lower().replace("-", "_").replace(" ", "_") else f"{name} ({metric})"
    )


def _about(run: Run) -> str:
    """Sizes and cost in a line."""
    sizes = run.data.sessions
    sessions = ", ".join(f"{count:,} {part}" for part, count in sizes.items() if part != "ranking")
    train = run.train
    cost = (
        f"{train.epochs} epochs in {train.training_seconds:.1f} s (+ {train.compile_seconds or 0:.1f} s compiling)"
        if train.training_seconds is not None
        else ""
    )
    parameters = f"{run.parameters:,} parameters" if run.parameters else ""
    facts = [f"{sessions} sessions" if sessions else "", parameters, cost, f"seed {run.seed}"]
    return " · ".join(
        [
            *filter(None, facts),
            display_path(run.folder),
            f"clickexp {version('clickexp')}",
            f"{datetime.now():%Y-%m-%d %H:%M}",
        ]
    )


def _warnings(run: Run) -> str:
    """What the run has warned of; nothing where it has not."""
    if not run.warnings:
        return ""
    items = "".join(f"<li>{html_text(warning)}</li>" for warning in run.warnings)
    return f'<section class="card warning"><h2>Warnings</h2><ul>{items}</ul></section>'


def _updates(run: Run) -> str:
    """The chain of updates that a run belongs to, and what the last has moved."""
    if run.update is None:
        return ""
    chain = chain_of(run)
    tables = {"Updates since the fit from scratch": chain_table(chain)}
    if (layouts := chain_layouts(chain)) is not None:
        tables["Examination of layouts since the fit from scratch"] = layouts
    tables["Documents that this update has moved most"] = moved_table(run.update)
    return "".join(_details(summary, table) for summary, table in tables.items())


def _changed(changed: Sequence[Changed]) -> str:
    if not changed:
        return "<p>None: all settings have their defaults.</p>"
    rows = [[key, _setting(value), _setting(default)] for key, value, default in changed]
    return html(
        Table(["Key", "Value", "Default"], rows, "Settings that differ from their defaults")
    )


def _environment_rows(run: Run) -> list[tuple[str, str]]:
    return [(key, value) for key, value in run.environment.items() if value]


def _details(summary: str, table: Table) -> str:
    """A table that is shown when asked for; nothing where it has no rows."""
    if not table.rows:
        return ""
    return f"<details><summary>{summary}</summary>{html(table)}</details>"


def _captions(run: Run) -> dict[str, str]:
    """Text below each figure."""
    points = propensities(run)
    if not points:
        return {**_CAPTIONS, "examination": _WITHOUT_RATIOS}
    of_layouts = any(point.layout for point in points)
    return _CAPTIONS | ({"examination": _OF_LAYOUTS} if of_layouts else {})


def numbered(drawings: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns each panel by the name of its figure, with a number where there are several."""
    panels = {}
    for name, of_figure in drawings.items():
        for number, svg in enumerate(of_figure, 1):
            panels[name if len(of_figure) == 1 else f"{name}_{number}"] = svg
    return panels


def _figures(drawings: Mapping[str, Sequence[str]], captions: Mapping[str, str]) -> str:
    """The figures: two share a row, but for those of many panels and, of an odd number, the last."""
    alone = {name for name, panels in drawings.items() if len(panels) > 2}
    paired = [name for name in drawings if name not in alone]
    if len(paired) % 2:
        alone.add(paired[-1])
    figures = []
    for name, panels in drawings.items():
        caption = captions.get(CLICK_RATES if name.startswith(CLICK_RATES) else name, "")
        classes = "card alone" if name in alone else "card"
        figures.append(f'<figure class="{classes}">{_figure(name, panels, caption)}</figure>')
    return "\n".join(figures)


def _figure(name: str, panels: Sequence[str], caption: str) -> str:
    """A figure in the colours of the page, with its title and caption."""
    caption = html_text(caption)
    label = html_text(name.replace("_", " ").capitalize())
    images = "".join(_themed(svg, part) for part, svg in numbered({name: panels}).items())
    box = f'<div class="panels" role="img" aria-label="{label}: {caption}">{images}</div>'
    return f"<h2>{label}</h2>{box}<figcaption>{caption}</figcaption>"


def _themed(svg: str, name: str) -> str:
    """The drawing alone, its width in points a variable, its colours those of the page, and ids that no other has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt"', r'\1 style="--width: \2"', svg, count=1)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", svg)
    for i, color in enumerate(COLORS):
        svg = svg.replace(color.lower(), f"var(--c{i})")
    return svg.replace(BLACK, "currentColor").replace(GRID, "var(--grid)")


def _setting(value: Any) -> str:
    """A value as options are written: names in lists without quotes."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_setting, value))}]"
    return str(value)
