"""Reproductions: figures of runs beside those published, which the `reproduction` node of each config.yaml holds."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from clickexp.runs.run import DataSizes, Run

SECONDS = "seconds"
_LOSS_PER_SESSION = "loss_per_session"
_DEVIATIONS = 2
"""Published standard deviations that a difference may have, where they are more than the tolerance."""
_ID_SLACK = 1
"""Ids may be counted from 0 or from 1."""
_OTHER_DATA, _NOT_COMPARABLE = "other data", "not comparable"
_KNOWN_KEYS = (
    "experiment",
    "model",
    "dataset",
    "dataset.path",
    "dataset.name",
    "miniature",
    "loss",
    "debias",
)
"""Overrides that a table shows elsewhere, those of rankers in their names."""


@dataclass(frozen=True)
class Row:
    """A metric of a model: published, and ours over splits.

    Attributes:
        model: The model, and what distinguishes its runs from others.
        metric: Name of the metric.
        published: The figure of each reference; the first is compared.
        ours: One figure for each split.
        verdict: Whether the difference is inside the tolerance, or why there is no verdict.
        notes: Numbers of the notes that concern it.
        compile_seconds: For seconds, the mean of those of compilation, which are not in `ours`; None where unknown.
    """

    model: str
    metric: str
    published: tuple[float | None, ...]
    ours: tuple[float, ...]
    verdict: str
    notes: tuple[int, ...]
    compile_seconds: float | None = None

    @property
    def mean(self) -> float:
        """Mean over splits."""
        return float(np.mean(self.ours))

    @property
    def sd(self) -> float:
        """Standard deviation over splits; nan for one."""
        return float(np.std(self.ours, ddof=1)) if len(self.ours) > 1 else math.nan

    @property
    def difference(self) -> float:
        """Ours minus published; of the training time ours over published; nan where that would mean nothing."""
        if self.published[0] is None or self.verdict == _OTHER_DATA:
            return math.nan
        return (
            self.mean / self.published[0]
            if self.metric == SECONDS
            else self.mean - self.published[0]
        )


@dataclass(frozen=True)
class Reproduction:
    """An experiment and its result.

    Attributes:
        name: Name of the experiment's file.
        caption: The paper and its experiment.
        sources: By reference, who published figures, where; the first is compared.
        rows: The figures.
        notes: Texts that rows refer to by number, from 1.
    """

    name: str
    caption: str
    sources: Mapping[str, str]
    rows: Sequence[Row]
    notes: Sequence[str]


def reproductions(runs: Sequence[Run], metrics: Sequence[str] | None = None) -> list[Reproduction]:
    """Compares runs with published figures.

    Args:
        runs: The runs; those without published figures are ignored.
        metrics: Metrics to show; by default all published.

    Returns:
        One for each experiment that any of the runs is of.
    """
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        node = run.config.get("reproduction")
        if isinstance(node, Mapping) and node.get("published"):
            by_name[str(node["name"])].append(run)
    return [_reproduction(name, of_name, metrics) for name, of_name in by_name.items()]


def _reproduction(name: str, runs: Sequence[Run], metrics: Sequence[str] | None) -> Reproduction:
    node = runs[-1].config["reproduction"]
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_variant(run)].append(run)
    notes = [note["text"] for note in node.get("notes", ())]
    rows = [
        row for variant, group in groups.items() for row in _rows(variant, group, metrics, notes)
    ]
    sources = {str(name): reference["source"] for name, reference in node["published"].items()}
    return Reproduction(
        name, f"{node['paper']}, experiment {node['experiment']}", sources, rows, notes
    )


def _variant(run: Run) -> str:
    """The model, the value of `by` that its figures depend on, and overrides that make it another experiment."""
    by = run.config["reproduction"].get("by")
    others = [
        f"{key}={value}" for key, value in run.overrides.items() if key not in (*_KNOWN_KEYS, by)
    ]
    return ", ".join([run.model, *([str(run.config[by])] if by else []), *others])


def _rows(
    variant: str, runs: Sequence[Run], metrics: Sequence[str] | None, texts: list[str]
) -> Iterator[Row]:
    """Rows of a group of runs; the reason why they have no verdict is added to the texts of the notes."""
    node = runs[0].config["reproduction"]
    figures = [_figures(reference, runs[0]) for reference in node["published"].values()]
    reason = next(filter(None, map(other_data, runs)), None)
    number = None if reason is None else _noted(reason, texts)
    for metric in metrics or _published_metrics(node):
        ours = tuple(value for run in runs if (value := _measured(run, metric)) is not None)
        published = tuple(reference.get(metric) for reference in figures)
        if ours:
            row = Row(variant, metric, published, ours, _NOT_COMPARABLE, ())
            sd = figures[0].get("sd", {}).get(metric, 0.0)
            yield _with_verdict(row, node, runs, number, sd)


def _noted(text: str, texts: list[str]) -> int:
    """The number of a text among those of the notes, to which it is added unless it is there."""
    if text not in texts:
        texts.append(text)
    return texts.index(text) + 1


def _with_verdict(
    row: Row, node: Mapping[str, Any], runs: Sequence[Run], reason: int | None, sd: float
) -> Row:
    """Adds verdict and notes to a row, and of seconds those of compilation.

    Args:
        row: The figures.
        node: The reproduction that they are of.
        runs: The runs behind ours.
        reason: The number of the note that these are of other data; None if they are not.
        sd: The published standard deviation.
    """
    notes = _notes(node, runs[0].model, row.metric)
    if row.metric == SECONDS:
        row = replace(row, compile_seconds=_compile_seconds(runs))
    if reason is not None:
        return replace(row, verdict=_OTHER_DATA, notes=(*notes, reason))
    if all(note.get("comparable", True) for note in notes.values()):
        row = replace(row, verdict=_verdict(row, node["tolerance"].get(row.metric, 0.0), sd))
    return replace(row, notes=tuple(notes))


def _notes(node: Mapping[str, Any], model: str, metric: str) -> dict[int, Mapping[str, Any]]:
    """The notes that concern a metric of a model, by their numbers."""
    return {
        number: note
        for number, note in enumerate(node.get("notes", ()), start=1)
        if model in note.get("models", [model]) and metric in note.get("metrics", [metric])
    }


def _compile_seconds(runs: Sequence[Run]) -> float | None:
    """Mean of the runs that recorded them."""
    recorded = [run.train.compile_seconds for run in runs if run.train.compile_seconds]
    return float(np.mean(recorded)) if recorded else None


def _published_metrics(node: Mapping[str, Any]) -> list[str]:
    """Metrics of the first reference, of whatever model."""
    first = next(iter(node["published"].values()))
    return list(dict.fromkeys(key for of in first["figures"].values() for key in of if key != "sd"))


def _verdict(row: Row, tolerance: float, sd: float) -> str:
    """Whether the difference is inside the tolerance; nothing where nothing was published, and for times."""
    if row.published[0] is None or row.metric == SECONDS:
        return ""
    limit = max(tolerance, _DEVIATIONS * sd)
    return f"{'inside' if abs(row.difference) <= limit else 'outside'} {limit:g}"


def other_data(run: Run) -> str | None:
    """Why a run has not read the data of the published figures; None where it has.

    It must have the name of the dataset, the sessions of each part of its split, and, where they are known, the
    query-document pairs and labelled lists. Sessions that a filter leaves are fewer than those of the range.
    """
    node = run.config["reproduction"]
    expected, read = node["data"], run.data
    if not read.sessions:
        return "other data, as far as is known: the run records no sizes"
    if run.dataset != expected["dataset"]:
        return f"other data: the dataset is {run.dataset}, not {expected['dataset']}"
    split = node["full"]["splits"].get(f"seed_{run.seed}")
    if split is None:
        return f"other data: no published split of seed {run.seed}"
    for size in _sizes(expected, split, read):
        if not size.fewest <= size.ours <= size.most:
            return f"other data: {size.ours:,} {size.name}, not {size.published:,}"
    return None


class _Size(NamedTuple):
    """A count of the data of a run, that which was published, and how few and many may be the same data."""

    name: str
    ours: int
    published: int
    fewest: int
    most: int


def _sizes(
    expected: Mapping[str, Any], split: Mapping[str, tuple[int, int]], read: DataSizes
) -> Iterator[_Size]:
    """Yields sessions by part, and pairs and lists where they were published."""
    for part, (start, stop) in split.items():
        published = stop - start
        may_be_fewer = expected.get("filtered", False) and part != "train"
        fewest = 1 if may_be_fewer else published
        count = read.sessions.get(part, 0)
        yield _Size(f"sessions in {part}", count, published, fewest, published)
    if (pairs := expected.get("query_doc_pairs")) is not None:
        count = read.query_doc_pairs or 0
        yield _Size("pairs", count, pairs, pairs - _ID_SLACK, pairs + _ID_SLACK)
    if (lists := expected.get("ranking")) is not None:
        yield _Size("labelled lists", read.sessions.get("ranking", 0), lists, lists, lists)


def _figures(reference: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Published figures by metric, those for the run's value of `by` where figures depend on it."""
    by = run.config["reproduction"].get("by")
    figures = reference["figures"].get(run.model, {})
    if by is None:
        return dict(figures)
    return {metric: of[run.config[by]] for metric, of in figures.items() if run.config[by] in of}


def _measured(run: Run, metric: str) -> float | None:
    """The figure of the test, or of the training, whose seconds are those without compilation."""
    if metric == SECONDS:
        return run.train.training_seconds
    if metric == _LOSS_PER_SESSION:
        ll, lists = run.test["ll"], run.data.sessions.get("test")
        documents = sum(count or 0 for count in run.per_rank["sessions"])
        return -ll * documents / lists if ll is not None and lists else None
    return run.test.get(metric)
