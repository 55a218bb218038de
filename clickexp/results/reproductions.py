"""Reproductions: figures of runs beside those published, which the `reproduction` node of each config.yaml holds."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clickexp.results.publication import Publication
from clickexp.runs.run import Run
from clickexp.runs.settings import NAMED
from clickexp.utils.statistics.means import Spread

SECONDS = "seconds"
_LOSS_PER_SESSION = "loss_per_session"
_DEVIATIONS = 2
"""Published standard deviations that a difference may have, where they are more than the tolerance."""
_OTHER_DATA, _NOT_COMPARABLE = "other data", "not comparable"


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
        return float(Spread.of(self.ours).sd)

    @property
    def difference(self) -> float:
        """Ours minus published; of the training time ours over published; nan where that would mean nothing."""
        published = self.published[0]
        if published is None or self.verdict == _OTHER_DATA:
            return math.nan
        if self.metric == SECONDS:
            return self.mean / published if published else math.nan
        return self.mean - published


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

    Raises:
        UserError: The published figures of a run are damaged.
    """
    latest: dict[str, Publication] = {}
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if publication := Publication.of(run):
            latest[publication.name] = publication
            by_name[publication.name].append(run)
    return [_reproduction(latest[name], of_name, metrics) for name, of_name in by_name.items()]


def _reproduction(
    publication: Publication, runs: Sequence[Run], metrics: Sequence[str] | None
) -> Reproduction:
    variants: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        variants[_variant(publication, run)].append(run)
    notes = [note.text for note in publication.notes]
    rows: list[Row] = []
    for variant, of_variant in variants.items():
        rows += _rows(publication, variant, of_variant, metrics, notes)
    sources = {name: reference.source for name, reference in publication.published.items()}
    caption = f"{publication.paper}, experiment {publication.experiment}"
    return Reproduction(publication.name, caption, sources, rows, notes)


def _variant(publication: Publication, run: Run) -> str:
    """The model, the value of `by` that its figures depend on, and overrides that make it another experiment."""
    # the caption says these
    named = {*NAMED, "experiment", "miniature", publication.by}
    others = [f"{key}={value}" for key, value in run.overrides.items() if key not in named]
    parts = [run.model, publication.value(run), *others]
    return ", ".join(part for part in parts if part is not None)


def _rows(
    publication: Publication,
    variant: str,
    runs: Sequence[Run],
    metrics: Sequence[str] | None,
    texts: list[str],
) -> Iterator[Row]:
    """Rows of a group of runs; the reason why they have no verdict is added to the texts of the notes."""
    model, value = runs[0].model, publication.value(runs[0])
    figures = [reference.of(model, value) for reference in publication.published.values()]
    reason = next(filter(None, map(publication.other_data, runs)), None)
    number = None if reason is None else _noted(reason, texts)
    for metric in metrics or publication.first.metrics:
        measured = [_measured(run, metric) for run in runs]
        ours = tuple(figure for figure in measured if figure is not None)
        published = tuple(of_reference.get(metric) for of_reference in figures)
        if ours:
            row = Row(variant, metric, published, ours, _NOT_COMPARABLE, ())
            yield _with_verdict(row, publication, runs, number)


def _noted(text: str, texts: list[str]) -> int:
    """The number of a text among those of the notes, to which it is added unless it is there."""
    if text not in texts:
        texts.append(text)
    return texts.index(text) + 1


def _with_verdict(
    row: Row, publication: Publication, runs: Sequence[Run], reason: int | None
) -> Row:
    """Adds verdict and notes to a row, and of seconds those of compilation.

    Args:
        row: The figures.
        publication: What they are compared with.
        runs: The runs behind ours.
        reason: The number of the note that these are of other data; None if they are not.
    """
    model, metric = runs[0].model, row.metric
    numbered = enumerate(publication.notes, start=1)
    notes = {number: note for number, note in numbered if note.concerns(model, metric)}
    if metric == SECONDS:
        row = replace(row, compile_seconds=_compile_seconds(runs))
    if reason is not None:
        return replace(row, verdict=_OTHER_DATA, notes=(*notes, reason))
    if all(note.comparable for note in notes.values()):
        tolerance = publication.tolerance.get(metric, 0.0)
        verdict = _verdict(row, tolerance, publication.first.sd(model, metric))
        row = replace(row, verdict=verdict)
    return replace(row, notes=tuple(notes))


def _compile_seconds(runs: Sequence[Run]) -> float | None:
    """Mean of the runs that recorded them."""
    recorded = [run.train.compile_seconds for run in runs if run.train.compile_seconds]
    return float(np.mean(recorded)) if recorded else None


def _verdict(row: Row, tolerance: float, sd: float) -> str:
    """Whether the difference is inside the tolerance; nothing where nothing was published, and for times."""
    if row.published[0] is None or row.metric == SECONDS:
        return ""
    limit = max(tolerance, _DEVIATIONS * sd)
    return f"{'inside' if abs(row.difference) <= limit else 'outside'} {limit:g}"


def _measured(run: Run, metric: str) -> float | None:
    """The figure of the test, or of the training, whose seconds are those without compilation."""
    if metric == SECONDS:
        return run.train.training_seconds
    if metric == _LOSS_PER_SESSION:
        ll, lists = run.test.get("ll"), run.data.sessions.get("test")
        documents = sum(count or 0 for count in run.per_rank.get("sessions", ()))
        return -ll * documents / lists if ll is not None and lists and documents else None
    return run.test.get(metric)
