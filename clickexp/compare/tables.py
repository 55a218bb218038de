"""Tables of a comparison: CSV for programs, Markdown for pages, LaTeX (booktabs) for papers."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clickexp.compare.names import name, short
from clickexp.compare.summary import SIGNIFICANT, Comparison
from clickexp.utils import escape

ARROWS = {1: " ↑", 0: "", -1: " ↓"}
DIGITS = 4
PER_RANK = ("ll", "ppl", "cond_ppl")
STARS = ((0.01, "**"), (SIGNIFICANT, "*"))


@dataclass(frozen=True)
class Cell:
    """A number for a reader. place: 1 best of its column, 2 second, else 0. stars: significance."""

    text: str
    deviation: str = ""
    place: int = 0
    stars: str = ""


@dataclass(frozen=True)
class Table:
    """header and rows: one name, then numbers."""

    caption: str
    header: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


def tables(comparison: Comparison, label: str = "") -> dict[str, str]:
    """Content of each file by its name. label: a slug for the names, where there is more than one test set."""
    files = {f"leaderboard{label}.csv": leaderboard_csv(comparison)}
    made = {f"leaderboard{label}": leaderboard(comparison)}
    for metric in PER_RANK:
        if ranks := per_rank(comparison, metric):
            made[f"{metric}_per_rank{label}"] = ranks
            files[f"{metric}_per_rank{label}.csv"] = per_rank_csv(comparison, metric)
    for file, table in made.items():
        files[f"{file}.md"] = markdown(table)
        files[f"{file}.tex"] = latex(table, f"tab:{file}")
    return files


def leaderboard(comparison: Comparison) -> Table:
    """The leading metrics, mean and standard deviation over seeds."""
    groups, metrics, baseline = comparison.groups, comparison.leading, comparison.baseline
    p = _against(comparison)
    counts = sorted({len(group.runs) for group in groups})
    columns = []
    for metric in metrics:
        spreads = [group.spread(metric) for group in groups]
        texts = [fixed(spread.mean) for spread in spreads]
        places = standing(texts, comparison.direction(metric))
        stars = [_stars(value) for value in p[metric][1]]
        deviations = [fixed(spread.sd) if spread.count > 1 else "" for spread in spreads]
        columns.append(list(map(Cell, texts, deviations, places, stars)))
    header = ["Model", *(short(metric) + ARROWS[comparison.direction(metric)] for metric in metrics)]
    if len(counts) > 1:
        header.append("Seeds")
        columns.append([Cell(str(len(group.runs))) for group in groups])
    caption = [f"Test metrics on {comparison.name} ({comparison.describe()})"]
    if counts[-1] > 1:
        over = f"over {counts[0]} seeds" if len(counts) == 1 else "over seeds"
        caption[0] += f": mean ± standard deviation {over}"
    if comparison.choice:
        caption.append(comparison.choice)
    caption.append("Best in bold, second underlined")
    units = {p[metric][0] for metric in metrics if np.isfinite(p[metric][1]).any()}
    if units:
        caption.append(
            f"* p < 0.05, ** p < 0.01 against {baseline.name}: paired t-test over {' or '.join(sorted(units))}, "
            "corrected by Holm's method"
        )
    caption += comparison.warnings
    rows = [(group.title, [column[i] for column in columns]) for i, group in enumerate(groups)]
    return Table(". ".join(caption) + ".", header, rows)


def per_rank(comparison: Comparison, metric: str) -> Table | None:
    """Means over seeds of each rank; None where no run has the metric per rank."""
    means = [(group.title, spread.mean) for group in comparison.groups if (spread := group.per_rank(metric))]
    if not means:
        return None
    ranks = max(len(mean) for _, mean in means)
    texts = [[fixed(value) for value in mean] + ["–"] * (ranks - len(mean)) for _, mean in means]
    places = [standing(column, comparison.direction(metric)) for column in zip(*texts, strict=True)]
    rows = [
        (group, [Cell(text, place=places[rank][i]) for rank, text in enumerate(texts[i])])
        for i, (group, _) in enumerate(means)
    ]
    parts = [
        f"{name(metric)} per rank on {comparison.name}",
        comparison.choice,
        "Best in bold, second underlined.",
    ]
    caption = ". ".join(filter(None, parts))
    return Table(caption, ["Model", *map(str, range(1, ranks + 1))], rows)


def leaderboard_csv(comparison: Comparison) -> str:
    """All metrics with all there is of them, unrounded."""
    p = _against(comparison)
    facts = ("", "_sd", "_low", "_high", "_interval_over", "_p", "_p_over")
    rows = [
        ["name", "model", "dataset", "tower", "overrides", "seeds", "chosen", "parameters"]
        + ["training_seconds", "compile_seconds", "baseline"]
        + [f"{metric}{fact}" for metric in comparison.metrics for fact in facts]
    ]
    for i, group in enumerate(comparison.groups):
        run = group.runs[0]
        row = [group.name, group.model, run.dataset, group.tower, run.told(), len(group.runs)]
        row += [str(group.chosen).lower(), run.parameters, _cell(group.seconds), _cell(group.compile_seconds)]
        row.append(comparison.baseline.name)
        for metric in comparison.metrics:
            spread, (low, high, over) = group.spread(metric), group.interval(metric)
            unit, values = p[metric]
            row += [*map(_cell, (spread.mean, spread.sd, low, high)), over, _cell(values[i])]
            row.append(unit if np.isfinite(values[i]) else "")
        rows.append(row)
    return escape.csv_text(rows)


def per_rank_csv(comparison: Comparison, metric: str) -> str:
    rows = [["name", "rank", metric, "sd", "low", "high", "seeds"]]
    for group in comparison.groups:
        if spread := group.per_rank(metric):
            numbers = zip(spread.mean, spread.sd, spread.low, spread.high, strict=True)
            for rank, (values, count) in enumerate(zip(numbers, spread.count, strict=True), start=1):
                rows.append([group.name, rank, *map(_cell, values), count])
    return escape.csv_text(rows)


def markdown(table: Table) -> str:
    """A table of GitHub-flavoured Markdown; best in bold, second underlined."""
    marks = ("{}", "**{}**", "<u>{}</u>")

    def shown(cell: Cell) -> str:
        deviation = f" ± {cell.deviation}" if cell.deviation else ""
        return marks[cell.place].format(cell.text) + cell.stars.replace("*", r"\*") + deviation

    lines = [[*map(escape.markdown, table.header)], ["---", *["---:"] * (len(table.header) - 1)]]
    lines += [[escape.markdown(row), *map(shown, cells)] for row, cells in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{escape.markdown(table.caption)}\n"


def latex(table: Table, label: str) -> str:
    """A table environment with booktabs rules; best in bold, second underlined."""
    marks = ("{}", r"\mathbf{{{}}}", r"\underline{{{}}}")

    def shown(cell: Cell) -> str:
        if cell.text == "–":
            return "--"
        stars = f"^{{{cell.stars}}}" if cell.stars else ""
        deviation = rf" \pm {cell.deviation}" if cell.deviation else ""
        return f"${marks[cell.place].format(cell.text)}{stars}{deviation}$"

    def line(cells: Sequence[str]) -> str:
        return "    " + " & ".join(cells) + r" \\"

    caption = re.sub(r"\*+", lambda stars: f"$^{{{stars[0]}}}$", escape.latex(table.caption))
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{caption}}}",
            rf"  \label{{{label}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"    \toprule",
            line([*map(escape.latex, table.header)]),
            r"    \midrule",
            *(line([escape.latex(row), *map(shown, cells)]) for row, cells in table.rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def fixed(value: float) -> str:
    """Four decimals; a dash for nan."""
    return f"{value:.{DIGITS}f}" if math.isfinite(value) else "–"


def standing(texts: Sequence[str], direction: int) -> list[int]:
    """1 for the best of the numbers as shown, 2 for the second, else 0; all 0 where there is nothing to choose."""
    shown = sorted({float(text) for text in texts if text != "–"}, reverse=direction > 0)
    if not direction or len(shown) < 2:
        return [0] * len(texts)
    places = {shown[0]: 1, shown[1]: 2}
    return [0 if text == "–" else places.get(float(text), 0) for text in texts]


def _against(comparison: Comparison) -> dict[str, tuple[str, np.ndarray]]:
    """Of each metric what is paired, and the p-value of each group against the baseline."""
    row = comparison.baselines.index(comparison.groups.index(comparison.baseline))
    return {metric: (tests.unit, tests.p[row]) for metric, tests in comparison.tests.items()}


def _stars(p: float) -> str:
    return next((stars for limit, stars in STARS if p < limit), "")


def _cell(value: float) -> str | float:
    return float(value) if np.isfinite(value) else ""

