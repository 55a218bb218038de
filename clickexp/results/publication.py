"""Published figures of an experiment and the data that they are of: the node `reproduction` of a configuration."""

from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple, Self

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, StrictFloat, StrictInt, ValidationError

from clickexp.errors import UserError
from clickexp.runs.run import DataSizes, Run
from clickexp.runs.store import CONFIG
from clickexp.utils.documents import describe_fault

_NODE = "reproduction"
_PLACE = f"the {_NODE} in its {CONFIG}"
_SD = "sd"
_ID_SLACK = 1
"""Ids may be counted from 0 or from 1."""

Figure = StrictInt | StrictFloat | None
"""None where a source has none."""


class _Node(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)


class Reference(_Node):
    """Figures of one source.

    Attributes:
        source: Who published them, and where.
        figures: By model and metric; with `by`, by its value, too. `sd` has standard deviations by metric.
    """

    source: str
    figures: dict[str, dict[str, Figure | dict[str, Figure]]]

    def of(self, model: str, value: str | None) -> dict[str, Figure]:
        """Returns the figures of a model by metric; those of a value of `by` where figures depend on it."""
        by_metric = {}
        for metric, figure in self.figures.get(model, {}).items():
            if metric == _SD:
                continue
            if not isinstance(figure, dict):
                by_metric[metric] = figure
            elif value in figure:
                by_metric[metric] = figure[value]
        return by_metric

    def sd(self, model: str, metric: str) -> float:
        """Returns the standard deviation of a figure; 0 where it is not known."""
        deviations = self.figures.get(model, {}).get(_SD)
        return (deviations.get(metric) if isinstance(deviations, dict) else None) or 0.0

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics of whatever model."""
        names = (name for of_model in self.figures.values() for name in of_model)
        return [name for name in dict.fromkeys(names) if name != _SD]


class Note(_Node):
    """A note on figures.

    Attributes:
        text: The note.
        models: Models that it concerns; None for all.
        metrics: Metrics that it concerns; None for all.
        comparable: Whether their figures have a verdict.
    """

    text: str
    models: list[str] | None = None
    metrics: list[str] | None = None
    comparable: bool = True

    def concerns(self, model: str, metric: str) -> bool:
        """Returns whether it concerns a metric of a model."""
        of_model = self.models is None or model in self.models
        return of_model and (self.metrics is None or metric in self.metrics)


class _PublishedData(_Node):
    dataset: str
    query_doc_pairs: int | None = None
    ranking: int | None = None
    filtered: bool = False


class _FullSize(_Node):
    splits: dict[str, dict[str, tuple[int, int]]]


class Publication(_Node):
    """An experiment of a paper; other keys of the node are settings of its runs.

    Attributes:
        name: Name of the experiment's file.
        paper: The paper.
        experiment: Number and title of the experiment.
        by: The key of the configuration whose values have a figure each.
        published: Figures by source; the first is compared.
        data: The dataset, and where they are known its query-document pairs and labelled lists. Of a `filtered` one,
            validation and test have fewer sessions than their ranges.
        full: Sessions of each part, as ranges, by split.
        tolerance: By metric how much a mean may differ.
        notes: Notes, numbered from 1.
    """

    name: str
    paper: str
    experiment: str
    by: str | None = None
    published: Annotated[dict[str, Reference], MinLen(1)]
    data: _PublishedData
    full: _FullSize
    tolerance: dict[str, float]
    notes: list[Note] = []

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """Returns that of a run; None where its configuration has no published figures.

        Raises:
            UserError: The node is damaged; the message names the key.
        """
        node = run.config.get(_NODE)
        if not isinstance(node, Mapping) or not node.get("published"):
            return None
        try:
            publication = cls.model_validate(node)
        except ValidationError as error:
            raise UserError(describe_fault(error, _PLACE, "damaged")) from error
        if publication.by is not None and publication.by not in run.config:
            raise UserError(f"{_PLACE} is damaged: by={publication.by} is no key of it")
        return publication

    def value(self, run: Run) -> str | None:
        """Returns the value of `by` of a run; None where figures depend on none."""
        return None if self.by is None else str(run.config.get(self.by))

    @property
    def first(self) -> Reference:
        """The reference that is compared."""
        return next(iter(self.published.values()))

    def other_data(self, run: Run) -> str | None:
        """Returns why a run has not read the data of the published figures; None where it has.

        It must have the name of the dataset, the sessions of each part of its split, and, where they are known, the
        query-document pairs and labelled lists. Sessions that a filter leaves are fewer than those of the range.
        """
        if not run.data.sessions:
            return "other data, as far as is known: the run records no sizes"
        if run.dataset != self.data.dataset:
            return f"other data: the dataset is {run.dataset}, not {self.data.dataset}"
        split = self.full.splits.get(f"seed_{run.seed}")
        if split is None:
            return f"other data: no published split of seed {run.seed}"
        for size in self._sizes(split, run.data):
            if not size.fewest <= size.ours <= size.most:
                return f"other data: {size.ours:,} {size.name}, not {size.published:,}"
        return None

    def _sizes(self, split: Mapping[str, tuple[int, int]], read: DataSizes) -> Iterator["_Size"]:
        """Yields sessions by part, and pairs and lists where they were published."""
        for part, (start, stop) in split.items():
            published = stop - start
            may_be_fewer = self.data.filtered and part != "train"
            fewest = 1 if may_be_fewer else published
            count = read.sessions.get(part, 0)
            yield _Size(f"sessions in {part}", count, published, fewest, published)
        if (pairs := self.data.query_doc_pairs) is not None:
            count = read.query_doc_pairs or 0
            yield _Size("pairs", count, pairs, pairs - _ID_SLACK, pairs + _ID_SLACK)
        if (lists := self.data.ranking) is not None:
            yield _Size("labelled lists", read.sessions.get("ranking", 0), lists, lists, lists)


class _Size(NamedTuple):
    """A count of the data of a run, that which was published, and how few and many may be the same data."""

    name: str
    ours: int
    published: int
    fewest: int
    most: int
