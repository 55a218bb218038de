"""The result of a run as tables, which the terminal and the page of the run draw."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from clickexp.results import metric_names
from clickexp.runs.run import Run, SharedParameter
from clickexp.utils.tables.numbers import interval, number
from clickexp.utils.tables.table import Table
from clickexp.utils.text import layout_name

Naming = Callable[[str], str]
"""Names metrics for a reader."""
_AT = "@"
OPEN = "open"
"""In the place of an interval that the log does not determine."""


def run_conclusion(result: Run) -> str:
    """Returns a sentence on a run: its test perplexity beside those of its references, or else nDCG, or a metric."""
    perplexity = result.value("ppl")
    if perplexity is None:
        return _by_first_metric(result)
    others = {
        name: value
        for name, reference in result.references.items()
        if (value := reference.test.get("ppl")) is not None
    }
    values = [f"{name} {number(value)}" for name, value in others.items()]
    sentence = ", ".join([f"Test perplexity {number(perplexity)}", *values])
    if not others:
        return f"{sentence}."
    (simple, rank_rate), *better = others.items()
    if better and better[0][1] < rank_rate:
        truth, best = better[0]
        way = (rank_rate - perplexity) / (rank_rate - best)
        return f"{sentence}: {way:.0%} of the way from {simple} to the {truth}."
    gained = (rank_rate - perplexity) / max(rank_rate - 1, 1e-9)
    return f"{sentence}: a gain of {gained:.1%} of the perplexity above 1."


def _by_first_metric(result: Run) -> str:
    """Returns a sentence on the first metric of rankings, or else on any, beside those of references."""
    reported = [name for name in result.metrics if result.value(name) is not None]
    first = (metric_names.leading(reported, clicks=False) or result.metrics)[0]
    sentence = f"{metric_names.name(first)} {number(result.value(first))} on the test set"
    for name, reference in result.references.items():
        if (value := reference.test.get(first)) is not None:
            sentence += f", {number(value)} in {name}"
    return f"{sentence}."


def result_tables(result: Run, naming: Naming = str, validation: bool = False) -> list[Table]:
    """Returns test metrics by kind, beside the references, cutoffs in columns; and those over posterior draws.

    Args:
        result: The result.
        naming: Names metrics.
        validation: Whether metrics of the validation have a column, and those of which there is nothing but the value
            a table.
    """
    tables = [
        table
        for kind, metrics in result.kinds().items()
        for table in _of_kind(kind, metrics, result, naming, validation)
    ]
    if result.test_draws:
        tables.append(_draws(result, naming))
    return tables


def _of_kind(
    kind: str, metrics: Sequence[str], result: Run, naming: Naming, validation: bool
) -> Iterator[Table]:
    """Yields the tables of a kind: by cutoff, of other metrics, and of those that are a value alone."""
    title = _title(kind, result)
    cutoffs, others = _parted(metrics, lambda name: _AT in name)
    single = [name for name in others if not _counts_none(result, name)]
    beside, alone = _parted(single, lambda name: not validation or _has_others(name, result))
    if cutoffs:
        yield _cutoffs(title, cutoffs, result, naming)
        title = f"{kind} without cutoff"
    if beside:
        yield _metrics(title, beside, result, naming, validation)
        title = f"{kind} alone"
    if alone:
        yield _metrics(title, alone, result, naming, validation)


def _parted(names: Sequence[str], test: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Names that pass a test, and the others."""
    passed = list(filter(test, names))
    return passed, [name for name in names if name not in passed]


def _counts_none(result: Run, metric: str) -> bool:
    """Whether it is a count of 0, such as of lists without a relevant document, which says nothing."""
    value = result.test[metric]
    return isinstance(value, int) and value == 0


def _has_others(metric: str, result: Run) -> bool:
    """Whether there is more of a metric than its value: an interval, or a value of a reference or the validation."""
    others = (
        result.intervals,
        result.val,
        *(reference.test for reference in result.references.values()),
    )
    return any(metric in values for values in others)


def _title(kind: str, result: Run) -> str:
    """Names a kind of metrics, with a word where marginals are sampled, and the share of ranking lists in training."""
    if kind == "click" and result.marginals != "exact":
        return f"{kind}, ppl by draws"
    seen = result.data.lists_seen
    return f"{kind}, {seen:.0%} of lists in training" if kind == "ranking" and seen else kind


def _name(naming: Naming, metric: str, stated: str, result: Run) -> str:
    """Returns a metric's name with the arrow of its direction, which the result may state under another name."""
    direction = metric_names.direction(stated, result.higher_is_better)
    return naming(metric) + metric_names.ARROWS[direction]


def _metrics(
    title: str, metrics: Sequence[str], result: Run, naming: Naming, validation: bool
) -> Table:
    """A row per metric: its value, its interval, and those of references and validation, as far as there are any."""
    names = [_name(naming, metric, metric, result) for metric in metrics]
    bounds = [result.intervals.get(metric, (None, None)) for metric in metrics]
    columns = {
        result.model: _cells(result.test, metrics),
        "95% interval": [interval(*pair) for pair in bounds],
    }
    for name, reference in result.references.items():
        columns[name] = _cells(reference.test, metrics)
    if validation:
        columns["validation"] = _cells(result.val, metrics)
    rows = list(zip(names, *columns.values(), strict=True))
    return Table([title, *columns], rows, f"Test metrics: {title}").without_empty_columns()


def _cells(values: Mapping[str, float | None], metrics: Sequence[str]) -> list[str]:
    """Values of metrics; empty where there is none of the name."""
    return [number(values[metric]) if metric in values else "" for metric in metrics]


def _cutoffs(title: str, metrics: Sequence[str], result: Run, naming: Naming) -> Table:
    """A row per metric, and below it those of references that have it, and a column per cutoff."""
    parts = [name.partition(_AT) for name in metrics]
    cutoffs = list(dict.fromkeys(at for _, _, at in parts))
    rows = []
    for base in dict.fromkeys(base for base, _, _ in parts):
        names = [f"{base}{_AT}{at}" for at in cutoffs]
        rows.append([_name(naming, base, names[0], result), *_row(result.test, names)])
        for title_of, reference in result.references.items():
            if not reference.test.keys().isdisjoint(names):
                rows.append([f"{naming(base)}, {title_of}", *_row(reference.test, names)])
    header = [title, *(f"{_AT}{at}" if at.isdecimal() else at for at in cutoffs)]
    return Table(header, rows, f"Test metrics: {title} by cutoff")


def _row(values: Mapping[str, float | None], metrics: Sequence[str]) -> list[str]:
    """Values of metrics; a dash where there is none of the name."""
    return [number(values.get(metric)) for metric in metrics]


def _draws(result: Run, naming: Naming) -> Table:
    """Metrics over posterior draws."""
    rows = [
        [naming(name), number(drawn.mean), interval(drawn.low, drawn.high)]
        for name, drawn in result.test_draws.items()
    ]
    return Table(["posterior draws", "", "95% interval"], rows, "Metrics over posterior draws")


def rank_table(result: Run, naming: Naming = str, references: Sequence[str] = ()) -> Table:
    """Returns metrics by rank, a row per rank with documents, and numbers of sessions behind them.

    Args:
        result: The result.
        naming: Names metrics.
        references: Metrics that columns of references show, too.
    """
    vectors = dict(result.per_rank)
    sessions = vectors.pop("sessions", [])
    vectors["sessions"] = [value and round(value) for value in sessions]
    columns = {naming(name): vector for name, vector in vectors.items()}
    for title, reference in result.references.items():
        for name in references:
            columns[f"{naming(name)}, {title}"] = reference.per_rank.get(name, [])
    return _by_rank({name: vector for name, vector in columns.items() if vector}, sessions)


def _by_rank(
    columns: Mapping[str, Sequence[float | None]], sessions: Sequence[float | None]
) -> Table:
    """A row per rank that has sessions, if these are known."""
    rows = []
    for rank, (count, *values) in enumerate(zip_longest(sessions, *columns.values()), start=1):
        if count or not sessions:
            rows.append([str(rank), *map(number, values)])
    return Table(["rank", *columns], rows, "By rank", "r" * (len(columns) + 1))


def shared_table(parameters: Sequence[SharedParameter]) -> Table:
    """Returns parameters that all documents share, with their intervals; of each layout, where these differ.

    A ratio that the log leaves open has no interval.
    """
    rows = [
        [
            parameter.parameter,
            layout_name(parameter.layout),
            number(parameter.position, missing=""),
            number(parameter.last_click, missing=""),
            number(parameter.value),
            interval(parameter.low, parameter.high),
            number(parameter.relative, missing=""),
            OPEN
            if parameter.is_open
            else interval(parameter.relative_low, parameter.relative_high),
        ]
        for parameter in parameters
    ]
    numbers = ["position", "last click", "value", "95% interval", "relative"]
    header = ["parameter", "layout", *numbers, "95% interval"]
    # of models that leave the scale of examination open, only ratios have intervals
    return Table(header, rows, "Shared parameters").without_empty_columns()
