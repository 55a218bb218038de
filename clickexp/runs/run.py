"""A run: the typed document that it writes and whatever looks at runs reads, and the folder that it is in."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Le, Len, Lt, MinLen
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from clickexp.errors import UserError
from clickexp.runs.hashing import distinguishing, flat, fold_of, is_seed
from clickexp.runs.store import (
    CONFIG,
    OVERRIDES,
    RECORD,
    RESULT,
    read_epochs,
    read_limited,
    read_object,
    values,
    write_json,
)
from clickexp.utils.documents import describe_fault
from clickexp.utils.escape import cleaned
from clickexp.utils.sources import is_remote, source_path
from clickexp.utils.text import Layout

FORMAT = 1
"""Version of the document."""
VALIDATION = "val/"
"""How the names of metrics of the best epoch's validation begin."""
_LONGEST = 80
"""Characters of a wrong format in a message."""
_MOST_POSITIONS = 1_000_000
_MOST_RANKS = 10_000
"""Of vectors; tables and figures have a place for each."""
Number = int | float | None
"""None for what is not known: JSON has no NaN."""
Values = dict[str, Number]
"""By the name of a metric."""
Vectors = dict[str, Annotated[list[Number], Len(0, _MOST_RANKS)]]
"""By the name of a metric, rank 1 first."""
_Position = Annotated[int, Ge(1), Le(_MOST_POSITIONS)]
_Table = list[list[Number]]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Training(_Document):
    """Cost of training.

    Attributes:
        epochs: How many there were.
        best_epoch: The one whose state the model has.
        sessions: Sessions that were trained on, repeated ones included.
        training_seconds: Seconds with loading and validation, without compilation.
        compile_seconds: Those of compilation, which depend on what ran before.
        seconds: Their sum.
        sessions_per_second: Throughput without compilation.
        peak_host_mib: Most memory of the process.
        peak_device_mib: Most memory of the device, where JAX reports it.
    """

    epochs: int | None = None
    best_epoch: int | None = None
    sessions: int | None = None
    training_seconds: float | None = None
    compile_seconds: float | None = None
    seconds: float | None = None
    sessions_per_second: float | None = None
    peak_host_mib: float | None = None
    peak_device_mib: float | None = None

    def values(self) -> Values:
        """Returns what is known, by name."""
        return self.model_dump(exclude_none=True)


class DataSizes(_Document):
    """Sizes of the dataset.

    Attributes:
        sessions: Of each part.
        query_doc_pairs: The largest id.
        positions: The largest position.
        columns: The largest value of each column of whole numbers that the model has room for.
        lists_seen: Share of the labelled lists whose documents training has shown together.
    """

    sessions: dict[str, int] = {}
    query_doc_pairs: int | None = None
    positions: int | None = None
    columns: dict[str, int] = {}
    lists_seen: float | None = None


class Origin(_Document):
    """Data and place of a run.

    Attributes:
        sources: A hash of each file, folder or run that the configuration names, by its key, when the run began to read
            them; None of one that was not there.
        fingerprint: Of the dataset; see `Dataset.fingerprint`.
        directory: Where the run was started, which relative paths of its configuration start from.
        digest: A hash of all sessions, whatever their order and split, with the numbers of documents.
        until: Time of the last training session, in microseconds since 1970; None where the log has no times.
    """

    sources: dict[str, str | None]
    fingerprint: str
    directory: str
    digest: str | None = None
    until: int | None = None

    def located(self, path: str) -> str:
        """Returns a path that was given where the run was started; as it is where that directory does not have it."""
        if is_remote(place := source_path(path)):
            return path
        there = Path(self.directory) / place
        return str(there) if there.exists() else path


class Change(_Document):
    """A role whose shared parameters a log contradicts.

    Attributes:
        parameter: The role, such as examination.
        p: Probability of such a difference by chance.
        positions: Those at which it is large.
        largest: The largest difference, in the logarithm of a ratio or in logits.
        is_ratio: Whether it is in that of ratios.
    """

    parameter: str
    p: float
    positions: list[int] = []
    largest: float = 0.0
    is_ratio: bool = False


class Moved(_Document):
    """A document whose attraction an update has moved.

    Attributes:
        id: Its query-document id.
        query: Name of the query, where ids have names.
        document: Name of the document, the same.
        before: Attraction before the update.
        after: Attraction after it.
        deviations: Difference of the logits, in standard deviations of the posterior before.
    """

    id: int
    query: str | int | None = None
    document: str | int | None = None
    before: float
    after: float
    deviations: float


class Update(_Document):
    """The chain of runs before a run: each has had the posterior of the one before for a prior.

    Attributes:
        run: Folder of the run whose posterior was the prior.
        beside: The same from the folder of this run, so that a chain can be copied as a whole.
        updates: How many there were since a fit from scratch.
        sessions: Training sessions of all logs.
        logs: Hashes of their sessions and of their files, the oldest first.
        until: Time of the last session of all logs, in microseconds since 1970.
        new_documents: Ids that the earlier logs do not have.
        forgotten: Share of the information on rows that half-lives have taken off.
        warm: Whether only parameters were taken over.
        changes: Roles whose shared parameters this log contradicts.
        before: Test metrics of the earlier run's model on this log's test set.
        backward: Test metrics of this run's model on the test set of the earlier run; empty where its log is not there.
        moved: Documents that have moved most.
    """

    run: str
    beside: str = ""
    updates: int
    sessions: int
    logs: list[str]
    until: int | None = None
    new_documents: int = 0
    forgotten: float = 0.0
    warm: bool = False
    changes: list[Change] = []
    before: Values = {}
    backward: Values = {}
    moved: list[Moved] = []


class RelativeExamination(_Document):
    """Examination at a position, relative to the first.

    Attributes:
        position: From 1.
        relative: The ratio.
        relative_low: Lower bound of its 95% interval; None where the log leaves it open.
        relative_high: Upper bound.
        layout: Values of the columns of `examination_by`, as the log has them.
    """

    position: _Position
    relative: Annotated[float, Gt(0)]
    relative_low: float | None = None
    relative_high: float | None = None
    layout: Layout = {}

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        low, high = self.relative_low, self.relative_high
        if (low is not None and low > self.relative) or (high is not None and high < self.relative):
            raise ValueError(
                f"relative is {self.relative}, outside its interval from {low} to {high}"
            )
        return self

    @classmethod
    def known(
        cls,
        points: Iterable[tuple[int | None, Number, Number, Number]],
        layouts: Iterable[Layout] = (),
    ) -> list[Self]:
        """Returns those that belong to a position and have a ratio above 0.

        Args:
            points: Position, ratio, and its bounds, of which nan and infinite ones are unknown.
            layouts: Of each point, where examination differs between layouts.
        """
        ratios = []
        for (position, *numbers), layout in zip_longest(points, layouts, fillvalue={}):
            ratio, low, high = (
                None if number is None or not math.isfinite(number) else float(number)
                for number in numbers
            )
            if position and ratio is not None and ratio > 0:
                bounds = {"relative_low": low, "relative_high": high}
                ratios.append(cls(position=position, relative=ratio, layout=layout, **bounds))
        return ratios

    @classmethod
    def of(cls, parameters: "Sequence[SharedParameter]") -> list[Self]:
        """Returns those of parameters that belong to a position and have a ratio above 0."""
        points = ((p.position, p.relative, p.relative_low, p.relative_high) for p in parameters)
        return cls.known(points, [parameter.layout for parameter in parameters])


class SharedParameter(_Document):
    """A probability that all documents share, with its 95% interval.

    Attributes:
        parameter: The role, such as continuation; that of a component of a mixture is models/0/continuation.
        position: The position that it belongs to; None for all.
        last_click: Position of the last click above, 0 for none; None where it does not depend on that.
        value: The probability.
        sd: Standard deviation of its logit, or of the logarithm of the ratio.
        low: Lower bound; None where clicks determine probabilities up to a factor only.
        high: Upper bound.
        relative: The probability over that of the first position; None where it is not needed.
        relative_low: Lower bound; None where the log leaves it open.
        relative_high: Upper bound.
        layout: Values of the columns of `examination_by` that it belongs to, as the log has them.
    """

    parameter: str
    position: int | None = None
    last_click: int | None = None
    value: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    relative: float | None = None
    relative_low: float | None = None
    relative_high: float | None = None
    layout: Layout = {}

    @property
    def is_open(self) -> bool:
        """Whether the log leaves its ratio open, whose value then follows the prior."""
        return self.relative is not None and self.relative_low is None


class Drawn(_Document):
    """A test metric over models drawn from the posteriors.

    Attributes:
        mean: Its mean.
        low: Lower bound of its 95% interval.
        high: Upper bound.
    """

    mean: float | None
    low: float | None
    high: float | None


class Reliability(_Document):
    """How often predictions come true, by bin of P(click), [bin, rank].

    Attributes:
        predicted: Mean P(click).
        observed: Click rate.
        documents: How many there are.
    """

    predicted: _Table
    observed: _Table
    documents: _Table

    @model_validator(mode="after")
    def _same_shape(self) -> Self:
        tables = self.predicted, self.observed, self.documents
        if len({len(row) for table in tables for row in table}) > 1 or len({*map(len, tables)}) > 1:
            raise ValueError("the tables differ in shape")
        return self


class Curves(_Document):
    """Further curves of metrics, by name; metrics of one's own have theirs.

    Attributes:
        ece: Reliability of P(click).
        cold: Perplexity by the impressions of documents in training: `from`, the fewest of each range, `ppl`,
            `documents` and `clicks`.
    """

    model_config = ConfigDict(extra="allow")
    ece: Reliability | None = None
    cold: dict[str, list[Number]] | None = None

    @model_validator(mode="after")
    def _by_name(self) -> Self:
        for name, curve in self.by_name().items():
            if not isinstance(curve, dict):
                raise ValueError(f"{name} holds no arrays by name")
        return self

    def by_name(self) -> dict[str, Any]:
        """Returns the curves by the names of their metrics."""
        return self.model_dump(exclude_none=True)


class Reference(_Document):
    """A model, or an order, that the model is held against, on the same test set.

    Attributes:
        test: Test metrics.
        per_rank: Metrics by rank.
        curves: What else to draw.
    """

    test: Annotated[Values, MinLen(1)]
    per_rank: Vectors = {}
    curves: Curves = Curves()


class ClickWeights(_Document):
    """Propensities that a ranker divides clicks by, by position, and what their weights leave of the clicks.

    Attributes:
        values: Propensities relative to the first position.
        offsets: Click rates of irrelevant documents, where users trust high ranks.
        low: Lower bounds of 95% intervals of the propensities.
        high: Upper bounds.
        source: Where they come from, in a few words.
        first: By how much the click rate of relevant documents is above that of others at the first position.
        clip: The smallest propensity that weights divide by.
        clicks: Clicks of the training sessions.
        effective: Effective sample size of the weighted clicks.
        clipped: Positions whose propensity is below the clip.
        unknown: Positions with documents and without a propensity.
        unused: Positions with a propensity, beyond the last with a document.
        ignores_offsets: Whether there are offsets that the weights leave in.
        layouts: `position` and values of columns that each of them belongs to, where layouts have their own.
    """

    values: list[Number]
    offsets: list[Number] = []
    low: list[Number] = []
    high: list[Number] = []
    source: str = ""
    first: float | None = None
    clip: float | None = None
    clicks: int | None = None
    effective: float | None = None
    clipped: list[int] = []
    unknown: list[int] = []
    unused: list[int] = []
    ignores_offsets: bool = False
    layouts: list[Layout] = []


class Run(_Document):
    """A run: what result.json holds, and, not in the document, the folder and what other files there say.

    Attributes:
        format: Version of the document.
        model: Name of the model.
        dataset: Name of the dataset.
        test_set: Fingerprint of the test set: only runs that have the same one are compared.
        seed: Seed of the run.
        test: Metrics on the test set: `ll` (mean log-likelihood of a document's click or skip, natural logarithm),
            `ppl` and `cond_ppl` (perplexity of the marginal and of the conditional prediction, base 2 per rank, then
            the mean over ranks), `loss`, and those of the other groups.
        val: Metrics on the validation set in the best epoch.
        groups: Names of test metrics by kind, such as clicks and ranking.
        higher_is_better: By name which way metrics are better; None where neither way is.
        per_rank: Test metrics by rank, rank 1 first, among them `examination`, and the number of `sessions`.
        per_rank_val: Those of the validation.
        click_rates: Documents `shown` and `clicks` by rank of the test sessions, by what tells sessions apart (length
            of list, columns with few values) and its value.
        curves: Further curves of metrics, such as the reliability of each rank.
        validates_clicks: Whether the loss of validation is a likelihood of clicks, on another scale than that of
            training.
        marginals: How marginal click probabilities were computed: exact, or by draws.
        train: Cost of training.
        parameters: Fitted numbers, tables included.
        data: Sizes of the dataset.
        environment: Versions, device and commit.
        origin: Data and place of the run.
        config_hash: Of the configuration, the same for runs that would give the same result.
        propensity: Examination by position relative to the first, with 95% intervals where the log tells it.
        shared_propensity: With `examination_by`, the curve of layouts that training does not show, relative to what
            `propensity` is relative to.
        shared: Parameters that all documents share, with 95% intervals.
        weighting: What a ranker divides clicks by.
        false_positive: Click rates of irrelevant documents by position, of the trust-bias model.
        true_positive: Those of relevant documents.
        references: What the model is held against: rank-CTR, the true user where clicks are simulated, random order.
        test_draws: With `draws=100`, test metrics over models drawn from the posteriors.
        intervals: With `keep_values=true`, 95% bootstrap intervals of test metrics, [low, high].
        update: The chain that the run belongs to, with `prior.run`.
        warnings: What the run has warned of, before training and after it, each sentence once.
        folder: Folder of the run.
        config: The resolved configuration; empty where there is none.
        words: The overrides as they were typed.
        epochs: A record per epoch.
        optimized: The metric by which a search chose among its trials, if the run is one of them, such as val/loss,
            or ll of the test.
        chosen: Whether the search chose the run.
    """

    format: Literal[1] = FORMAT
    model: _Text
    dataset: _Text
    test_set: _Text
    seed: Annotated[int, Ge(-(2**63)), Lt(2**63)] | None = None
    test: Annotated[Values, MinLen(1)]
    val: Values = {}
    groups: dict[str, list[str]] = {}
    higher_is_better: dict[str, bool | None] = {}
    per_rank: Vectors = {}
    per_rank_val: Vectors = {}
    click_rates: dict[str, dict[str, Vectors]] = {}
    curves: Curves = Curves()
    validates_clicks: bool = False
    marginals: str = "exact"
    train: Training = Training()
    parameters: int | None = None
    data: DataSizes = DataSizes()
    environment: dict[str, str | None] = {}
    origin: Origin | None = None
    config_hash: str = ""
    propensity: list[RelativeExamination] = []
    shared_propensity: list[RelativeExamination] = []
    shared: list[SharedParameter] = []
    weighting: ClickWeights | None = None
    false_positive: list[float] = []
    true_positive: list[float] = []
    references: dict[str, Reference] = {}
    test_draws: dict[str, Drawn] = {}
    intervals: dict[str, Annotated[list[Number], Len(2, 2)]] = {}
    update: Update | None = None
    warnings: list[str] = []
    folder: Path = Field(Path(), exclude=True)
    config: Mapping[str, Any] = Field({}, exclude=True)
    words: tuple[str, ...] = Field((), exclude=True)
    epochs: tuple[Mapping[str, Any], ...] = Field((), exclude=True)
    optimized: str | None = Field(None, exclude=True)
    chosen: bool = Field(False, exclude=True)

    @field_validator("propensity")
    @classmethod
    def _relative_to_the_first(cls, ratios: list[RelativeExamination]) -> list[RelativeExamination]:
        places = [(ratio.position, *sorted(ratio.layout.items())) for ratio in ratios]
        if twice := next((place for place in places if places.count(place) > 1), None):
            raise ValueError(f"position {twice[0]} is given twice")
        if any(ratio.layout for ratio in ratios):  # of which one has the first
            return ratios
        first = next((ratio.relative for ratio in ratios if ratio.position == 1), 1.0)
        if not math.isclose(first, 1, rel_tol=1e-5):
            raise ValueError(f"position 1 is {first:g} relative to itself")
        return ratios

    @classmethod
    def of(cls, content: Any, **beside: Any) -> Self:
        """Checks plain values.

        Args:
            content: What JSON holds.
            **beside: Attributes that are not in the document, such as the folder.

        Raises:
            UserError: It is not the document of a run, or damaged: the message names the key.
        """
        if not isinstance(content, Mapping):
            raise UserError(f"{RESULT} holds no JSON object")
        version = content.get("format")
        if version != FORMAT and ("format" in content or {"model", "test"} <= content.keys()):
            raise UserError(f"{RESULT} is of format {version!r:.{_LONGEST}}, and not {FORMAT}")
        if foreign := next((key for key in content if key in _BESIDE), None):
            raise UserError(f"{RESULT} is damaged: {foreign} is no key of it")
        try:
            return cls.model_validate({**content, **beside})
        except ValidationError as error:
            raise UserError(describe_fault(error, RESULT, "not that of a run")) from error

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Reads a finished run, which may come from anyone, without characters that control a terminal.

        Args:
            folder: Of the run.

        Raises:
            UserError: It has no result, or a file is damaged or exceeds the limits of documents. The message names the
                fault, and not the folder.
        """
        folder = Path(folder)
        if not (folder / RESULT).is_file():
            raise UserError(f"there is no {RESULT}{_status(folder)}")
        files = (RESULT, OVERRIDES, CONFIG)
        content, words, config = (cleaned(read_limited(folder / name)) for name in files)
        texts = [text for text in words if isinstance(text, str)] if isinstance(words, list) else []
        config = config if isinstance(config, dict) else {}
        metric = config.get("optimized_metric") if config.get("search") else None
        return cls.of(
            content,
            folder=folder,
            config=config,
            words=tuple(texts),
            epochs=tuple(cleaned(read_epochs(folder))),
            optimized=metric.removeprefix("test/") if isinstance(metric, str) else None,
        )

    def write(self) -> None:
        """Writes the document into the folder, whole or not at all; keys that say nothing are left out."""
        content = self.model_dump()
        stated = {name: value for name, value in content.items() if value not in (None, "", [], {})}
        write_json(stated, self.folder / RESULT)

    def of_reference(self, name: str) -> Self:
        """Returns a reference as a run of a model of this name."""
        return type(self)(
            model=name,
            dataset=self.dataset,
            test_set=self.test_set,
            folder=self.folder,
            **dict(self.references[name]),
        )

    def kinds(self) -> dict[str, list[str]]:
        """Returns names of test metrics by kind; of one kind where that is not known."""
        return self.groups or {"test": list(self.test)}

    def parts(self) -> dict[str, Values]:
        """Returns the numbers of the test, of the validation and of the training."""
        return {"test": self.test, "val": self.val, "train": self.train.values()}

    def vectors(self) -> dict[str, Vectors]:
        """Returns the vectors by rank of the test and of the validation."""
        return {"test": self.per_rank, "val": self.per_rank_val}

    @property
    def metrics(self) -> list[str]:
        """Names of the numbers of the test, and of the best epoch (val/...)."""
        return [*self.test, *(f"{VALIDATION}{name}" for name in self.val)]

    def value(self, metric: str) -> float | None:
        """Returns the value of one of `metrics`; None where the run does not have it."""
        if metric.startswith(VALIDATION):
            return self.val.get(metric.removeprefix(VALIDATION))
        return self.test.get(metric)

    @property
    def epoch_seconds(self) -> list[float]:
        """Seconds of each epoch without compilation, nan where unknown."""
        return [seconds_without_compilation(epoch) for epoch in self.epochs]

    @property
    def fold(self) -> int | None:
        """The fold of the queries that is the test set; None where they are not in folds."""
        return fold_of(self.settings)

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """Overrides that distinguish experiments: neither the seed, nor the fold, nor where runs report to."""
        return distinguishing(values(self.words), self.settings)

    @property
    def description(self) -> str:
        """The overrides for a reader."""
        return ", ".join(f"{key}={value}" for key, value in self.overrides.items())

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration as dotted keys and plain values."""
        return flat(self.config) if self.config else {}

    @cached_property
    def towers(self) -> dict[str, str]:
        """The class of the tower of each role of the model, such as {"attraction": "Embedding"}."""
        roles = self.config.get("model")
        targets = (
            {role: _target(tower) for role, tower in roles.items()}
            if isinstance(roles, Mapping)
            else {}
        )
        return {
            role: re.sub(r"Parameter(Config)?$", "", target.split(".")[-1])
            for role, target in targets.items()
            if target
        }

    @cached_property
    def distinctions(self) -> dict[str, Any]:
        """Settings that distinguish experiments, but for seeds."""
        settings = distinguishing(self.settings, self.settings)
        return {name: value for name, value in settings.items() if not is_seed(name)}

    @cached_property
    def experiment(self) -> str:
        """The same for runs that differ in their seed or fold only, and in what follows it."""
        seeds = {name: value for name, value in self.overrides.items() if is_seed(name)}
        settings = self.distinctions or self.overrides
        return _short_hash([self.model, self.dataset, settings, seeds])

    @property
    def same(self) -> tuple[str, str, int | None]:
        """The same for runs of one configuration and seed on one test set."""
        return self.experiment, self.test_set, self.seed

    def rows(self) -> Iterator[tuple]:
        """Yields the rows of the tidy frame; see `clickexp.results.load`."""
        of_run = str(self.folder), self.model, self.dataset, self.seed, self.description
        for part, numbers in self.parts().items():
            for name, value in numbers.items():
                yield (*of_run, part, name, None, _float_or_none(value))
        yield (*of_run, "train", "parameters", None, _float_or_none(self.parameters))
        for part, vectors in self.vectors().items():
            for name, vector in vectors.items():
                for rank, value in enumerate(vector, start=1):
                    yield (*of_run, part, name, rank, _float_or_none(value))


_BESIDE = {name for name, field in Run.model_fields.items() if field.exclude}
"""Attributes of a run that are not in its document."""


def by_warning(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Returns the distinct warnings of runs in the order of the runs, each with those that have it."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        for warning in dict.fromkeys(run.warnings):
            found.setdefault(warning, []).append(run)
    return found


def seconds_without_compilation(epoch: Mapping[str, Any]) -> float:
    """Returns the seconds of the record of an epoch without compilation; nan where they are unknown."""
    compiling = epoch.get("compile_seconds") or 0.0
    return _float_or_nan(epoch.get("seconds")) - _float_or_nan(compiling)


def _short_hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _float_or_none(value: float | None) -> float | None:
    return None if value is None else float(value)


def _float_or_nan(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _target(tower: Any) -> str | None:
    """Returns the constructor of a tower; of a compressed table, that of its compression."""
    if not isinstance(tower, Mapping):
        return None
    target = tower.get("_target_")
    return _target(tower.get("embedding_fn")) or (target if isinstance(target, str) else None)


def _status(folder: Path) -> str:
    """Returns in brackets how far a run without a result has come; empty where nothing is known of it."""
    status = read_object(folder / RECORD).get("status")
    if status:
        return f" ({status})"
    return " (did not finish)" if (folder / CONFIG).is_file() else ""
