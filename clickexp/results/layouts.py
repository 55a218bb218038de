"""Examination of layouts, such as devices, of runs and of groups of runs: each a curve over positions."""

import math
from collections.abc import Iterable, Mapping, Sequence

from clickexp.results.groups import Group, bounded_by, over_runs, with_bounds
from clickexp.runs.run import RelativeExamination, Run
from clickexp.utils.statistics.means import Spread
from clickexp.utils.tables.numbers import number
from clickexp.utils.tables.table import Table
from clickexp.utils.text import layout_name

Points = Mapping[int, RelativeExamination]
"""Examination by position."""
References = Mapping[tuple[str, ...], RelativeExamination]
"""By the columns that layouts have values of, what examination is relative to."""


def points_by_layout(
    points: Iterable[RelativeExamination],
) -> dict[str, dict[int, RelativeExamination]]:
    """Returns examination by position of each layout, by its name; the name is empty without layouts."""
    by_layout: dict[str, dict[int, RelativeExamination]] = {}
    for point in points:
        by_layout.setdefault(layout_name(point.layout), {})[point.position] = point
    return by_layout


def references_of(runs: Iterable[Run]) -> References:
    """Returns what examination is relative to in the first of the runs whose layouts have values of some columns."""
    references: dict[tuple[str, ...], RelativeExamination] = {}
    for run in runs:
        for point in run.propensity:
            if point.layout and point.relative == 1:
                references.setdefault((*point.layout,), point)
    return references


def frequent_first(run: Run, points: Iterable[RelativeExamination]) -> list[RelativeExamination]:
    """Returns points of a run, those of the layouts that most documents of its test sessions are in first.

    Runs count these by the value of each column: of several columns the product of the counts orders.
    """

    def shown(point: RelativeExamination) -> float:
        by_column = ((run.click_rates.get(name, {}), value) for name, value in point.layout.items())
        by_rank = (counts.get(value, {}).get("shown", []) for counts, value in by_column)
        return math.prod(sum(count or 0 for count in counts) for counts in by_rank)

    return sorted(points, key=shown, reverse=True)


def layouts_of(run: Run, references: References) -> dict[str, dict[int, RelativeExamination]]:
    """Returns examination by position of each layout of a run, all relative to the references.

    Runs choose what theirs is relative to. Where that is another position or layout, intervals are unknown.
    """
    points = frequent_first(run, (point for point in run.propensity if point.layout))
    by_layout = points_by_layout(points)
    scaled: dict[str, dict[int, RelativeExamination]] = {}
    for name, of_layout in by_layout.items():
        columns = (*next(iter(of_layout.values())).layout,)
        reference = references.get(columns)
        base = reference and by_layout.get(layout_name(reference.layout), {}).get(
            reference.position
        )
        if base:
            scaled[name] = {position: _over(point, base) for position, point in of_layout.items()}
    return scaled


def _over(point: RelativeExamination, base: RelativeExamination) -> RelativeExamination:
    """The ratio of two points, with the interval of the first one where its own ratio is to the other."""
    if base.relative == 1:
        return point
    ratio = point.relative / base.relative
    return RelativeExamination(position=point.position, relative=ratio, layout=point.layout)


def layout_curves(groups: Sequence[Group]) -> dict[Group, dict[str, Spread]]:
    """Returns examination over positions, from the first, of each layout of the groups that have layouts.

    Bounds of up to three runs are means of their intervals over their ratios, as those of examination without layouts,
    of the runs that have such; of more runs they are over these.
    """
    references = references_of(run for group in groups for run in group.runs)
    curves = {}
    for group in groups:
        of_runs = [layouts_of(run, references) for run in group.runs]
        names = dict.fromkeys(name for of_run in of_runs for name in of_run)
        of_group = {
            name: _spread([of_run[name] for of_run in of_runs if name in of_run]) for name in names
        }
        if of_group:
            curves[group] = of_group
    return curves


def _spread(runs: Sequence[Points]) -> Spread:
    """Mean over runs of a layout by position, with its bounds."""
    positions = range(1, max(position for points in runs for position in points) + 1)
    of_runs = [[points.get(position) for position in positions] for points in runs]
    return bounded_by(over_runs([with_bounds(points)[0] for points in of_runs]), of_runs)


def in_order(points: Points) -> list[RelativeExamination | None]:
    """Returns points from position 1 to the last; None where there is none."""
    return [points.get(position) for position in range(1, max(points) + 1)]


def named_references(references: References) -> str:
    """Returns what examination is relative to, such as "position 1 of device phone"."""
    return " or ".join(
        f"position {point.position} of {layout_name(point.layout)}" for point in references.values()
    )


def layout_table(
    first: str,
    curves: Sequence[tuple[str, Mapping[str, Sequence[float | None]]]],
    caption: str,
) -> Table:
    """Returns a row per name and layout, with a column per position.

    Args:
        first: Header of the names.
        curves: Names, with the values from position 1 by layout, None or nan where there is none.
        caption: Of the table.
    """
    positions = max(len(values) for _, by_layout in curves for values in by_layout.values())
    rows = [
        [name, layout, *(number(value, missing="") for value in values)]
        + [""] * (positions - len(values))
        for name, by_layout in curves
        for layout, values in by_layout.items()
    ]
    header = [first, "Layout", *map(str, range(1, positions + 1))]
    return Table(header, rows, caption, align="ll" + "r" * positions)
