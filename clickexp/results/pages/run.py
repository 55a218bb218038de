"""The page of a single run: result, figures, configuration and command in one file without scripts or requests."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any

from clickexp.results import metric_names
from clickexp.results.figures.drawing import BLACK, GRID
from clickexp.results.figures.panels import COLORS
from clickexp.results.groups import Group
from clickexp.results.pages.template import filled
from clickexp.results.run_tables import titled
from clickexp.runs.run import Run
from clickexp.utils.escape import html_text

_CAPTIONS = {
    "perplexity": "Perplexity by rank of the test sessions, lower is better, and the share of the perplexity above 1 "
    "that is gained over rank-CTR, which predicts the click rate of each rank.",
    "examination": "How likely users look at each rank, mean over the test sessions, and the same relative to rank 1, "
    "as propensities are used: clicks determine examination up to a factor. Bars are 95% intervals.",
    "propensities": "Propensities by position relative to the first: what the ranker has learned of examination, or "
    "what it divides clicks by.",
    "cold_start": "Perplexity of documents by how often training has shown them, and their share of the test set.",
    "learning": "Losses by epoch. The model is that of the best epoch, which the star marks.",
    "calibration": "Click rate of the documents in each bin of P(click), ranks together; on the diagonal, predictions "
    "are click rates. Above, the number of documents in each bin; bins of fewer than 10 are left out below.",
}
_HEADLINES = ("ndcg@10", "ndcg@5", "ndcg@3", "ndcg@1")
"""Metrics of rankings that sum up a run without perplexity, the first that it has."""
_WIDE = 1.5
"""Width over height from which a figure has a row to itself."""


Changed = tuple[str, Any, Any]
"""Key, value and default of a setting that differs from its default; the default is None where there is none."""


def run_page(
    run: Run,
    groups: Sequence[Group],
    drawings: Mapping[str, str],
    changed: Sequence[Changed],
    command: str,
) -> str:
    """Writes the page, as HTML.

    Args:
        run: The run.
        groups: The run and its references.
        drawings: SVG of each figure by its name.
        changed: Settings that differ from the defaults.
        command: What was typed.
    """
    title = f"{run.model} on {run.dataset}"
    parts = {
        "generator": "clickexp",
        "title": html_text(title),
        "about": html_text(_about(run)),
        "conclusion": html_text(_conclusion(run, groups)),
        "result": _result(run, groups),
        "figures": "\n".join(_figure(name, svg) for name, svg in drawings.items()),
        "ranks": _ranks(groups),
        "shared": _shared(run),
        "changed": _changed(changed),
        "command": html_text(command),
        "environment": _table(
            ["Key", "Value"], [[key, text] for key, text in _environment_rows(run)], "Environment"
        ),
    }
    return filled("run", parts)


def _about(run: Run) -> str:
    """Sizes and cost in a line."""
    sizes = run.result.data.sessions
    sessions = ", ".join(f"{count:,} {part}" for part, count in sizes.items() if part != "ranking")
    epochs = run.result.train.epochs
    cost = f"{epochs} epochs in {run.seconds:.1f} s" if run.seconds is not None else ""
    parameters = f"{run.parameters:,} parameters" if run.parameters else ""
    facts = [f"{sessions} sessions" if sessions else "", parameters, cost, f"seed {run.seed}"]
    return " · ".join(
        [
            *filter(None, facts),
            f"clickexp {version('clickexp')}",
            f"{datetime.now():%Y-%m-%d %H:%M}",
        ]
    )


def _conclusion(run: Run, groups: Sequence[Group]) -> str:
    """The perplexity between that of rank-CTR and that of the true user, in a sentence; else nDCG, or the first metric.

    Of metrics of rankings beside that of random order.
    """
    values = [group.runs[0].value("ppl") for group in groups]
    own = values[0]
    if own is None:
        first = next(
            (name for name in _HEADLINES if run.value(name) is not None), next(iter(run.metrics))
        )
        others = [(group.name, group.runs[0].value(first)) for group in groups[1:]]
        beside = "".join(
            f", {_formatted(value)} in {name}" for name, value in others if value is not None
        )
        return f"{metric_names.name(first)} {_formatted(run.value(first))} on the test set{beside}."
    text = f"Test perplexity {_formatted(own)}"
    if len(values) > 1 and values[1] is not None:
        text += f", {groups[1].name} {_formatted(values[1])}"
        gained = (values[1] - own) / max(values[1] - 1, 1e-9)
        if len(values) > 2 and values[2] is not None and values[2] < values[1]:
            way = (values[1] - own) / (values[1] - values[2])
            return f"{text}, {groups[2].name} {_formatted(values[2])}: {way:.0%} of the way to the best possible."
        return f"{text}: a gain of {gained:.1%} of the perplexity above 1."
    return f"{text}."


def _result(run: Run, groups: Sequence[Group]) -> str:
    """A table of test metrics for each kind, of several cutoffs in columns."""
    tables = []
    for each, metrics in run.result.kinds().items():
        kind = titled(each, run.result)
        cutoffs = list(dict.fromkeys(at for metric in metrics if (at := metric.partition("@")[2])))
        single = [metric for metric in metrics if "@" not in metric]
        if single:
            tables.append(_metrics(kind, single, run, groups))
        if cutoffs:
            tables.append(_cutoffs(kind, [m for m in metrics if "@" in m], cutoffs, run, groups))
    return "".join(f"<div>{table}</div>" for table in tables)


def _metrics(kind: str, metrics: Sequence[str], run: Run, groups: Sequence[Group]) -> str:
    """A row per metric: its value, its interval, and those of references and validation, as far as there are any."""
    intervals = run.result.intervals
    columns = {run.model: [_formatted(run.value(metric)) for metric in metrics]}
    bounds = [intervals.get(metric) or () for metric in metrics]
    columns["95% interval"] = [" to ".join(map(_formatted, each)) for each in bounds]
    for group in groups[1:]:
        columns[group.name] = [_formatted(group.runs[0].value(metric), "") for metric in metrics]
    columns["validation"] = [_formatted(run.value(f"val/{metric}"), "") for metric in metrics]
    shown = {name: cells for name, cells in columns.items() if name == run.model or any(cells)}
    rows = [
        [_name(run, metric), *cells]
        for metric, *cells in zip(metrics, *shown.values(), strict=True)
    ]
    return _table([kind.capitalize(), *shown], rows, f"Test metrics: {kind}")


def _cutoffs(
    kind: str, metrics: Sequence[str], cutoffs: Sequence[str], run: Run, groups: Sequence[Group]
) -> str:
    """A row per metric, and one for each reference that has it, and a column per cutoff."""
    rows = []
    for base in dict.fromkeys(metric.partition("@")[0] for metric in metrics):
        for group in groups:
            values = [_formatted(group.runs[0].value(f"{base}@{at}"), "") for at in cutoffs]
            if group is groups[0]:
                rows.append([_name(run, base, f"{base}@{cutoffs[0]}"), *values])
            elif any(values):
                rows.append([f"{metric_names.name(base)}, {group.name}", *values])
    return _table(
        [kind.capitalize(), *(f"@{at}" for at in cutoffs)], rows, f"Test metrics: {kind} by cutoff"
    )


def _name(run: Run, metric: str, stated: str | None = None) -> str:
    """The name of a metric and the arrow of its direction, which the result may state under another name."""
    way = metric_names.direction(stated or metric, run.result.higher_is_better)
    return metric_names.name(metric) + metric_names.ARROWS[way]


def _ranks(groups: Sequence[Group]) -> str:
    """The numbers behind the figures, a row per rank."""
    columns = {
        metric_names.short(metric) + (f", {group.name}" if at else ""): vector
        for at, group in enumerate(groups)
        for metric, vector in group.runs[0].result.per_rank.items()
        if not at or metric in ("ppl", "examination")
    }
    longest = max(map(len, columns.values()), default=0)
    if not longest:
        return ""
    rows = [
        [
            str(rank + 1),
            *(
                _formatted(vector[rank] if rank < len(vector) else None)
                for vector in columns.values()
            ),
        ]
        for rank in range(longest)
    ]
    return f"<details><summary>Numbers by rank</summary>{_table(['Rank', *columns], rows, 'By rank')}</details>"


def _shared(run: Run) -> str:
    """Shared parameters with their intervals, where the result has them."""
    rows = [
        [
            each.parameter,
            "" if each.position is None else str(each.position),
            "" if each.last_click is None else str(each.last_click),
            _formatted(each.value),
            _bounds(each.low, each.high),
            _formatted(each.relative, ""),
            _bounds(each.relative_low, each.relative_high),
        ]
        for each in run.result.shared
    ]
    if not rows:
        return ""
    header = [
        "Parameter",
        "position",
        "last click",
        "value",
        "95% interval",
        "relative to first",
        "95% interval",
    ]
    table = _table(header, rows, "Shared parameters")
    return f"<details><summary>Shared parameters with intervals</summary>{table}</details>"


def _bounds(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{_formatted(low)} to {_formatted(high)}"


def _changed(changed: Sequence[Changed]) -> str:
    if not changed:
        return "<p>None: all settings have their defaults.</p>"
    rows = [[key, _setting(value), _setting(default)] for key, value, default in changed]
    return _table(["Key", "Value", "Default"], rows, "Settings that differ from their defaults")


def _environment_rows(run: Run) -> Iterable[tuple[str, str]]:
    return ((key, value) for key, value in run.result.environment.items() if value)


def _figure(name: str, svg: str) -> str:
    """A figure in the colours of the page, with links to its files."""
    caption = html_text(_CAPTIONS.get(name, ""))
    links = " · ".join(
        f'<a href="figures/{name}.{kind}">{kind.upper()}</a>' for kind in ("pdf", "png")
    )
    label = html_text(name.replace("_", " ").capitalize())
    drawn = _themed(svg, name).replace(
        "<svg", f'<svg role="img" aria-label="{label}: {caption}"', 1
    )
    box = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}, drawn">{drawn}</div>'
    )
    text = f"<h2>{label}</h2>{box}<figcaption>{caption} {links}</figcaption>"
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    wide = " wide" if size and float(size[1]) > _WIDE * float(size[2]) else ""
    return f'<figure class="card{wide}">{text}</figure>'


def _themed(svg: str, name: str) -> str:
    """The drawing alone, its colours those of the page, and ids that no other drawing has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", svg)
    for i, color in enumerate(COLORS):
        svg = svg.replace(color.lower(), f"var(--c{i})")
    return svg.replace(BLACK, "currentColor").replace(GRID, "var(--grid)")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A table whose first column has the names of its rows."""
    head = "".join(f'<th scope="col">{html_text(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{html_text(row[0])}</th>'
        + "".join(f"<td>{html_text(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html_text(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _formatted(value: Any, missing: str = "–") -> str:
    """Four decimals; counts whole."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return missing
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _setting(value: Any) -> str:
    return (
        "not set"
        if value is None
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
