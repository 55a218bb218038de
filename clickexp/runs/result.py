"""The result of a run, as result.json holds it: the run writes it, and whatever looks at runs reads it."""

import math
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Le, Len, Lt, MinLen
from pydantic import (
    BaseModel,
    ConfigDict,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from clickexp.errors import UserError
from clickexp.runs.store import RESULT, read_limited, write_json
from clickexp.utils.escape import cleaned

FORMAT = 1
"""Version of the document."""
_KINDS_OF_NUMBER = ("int", "float")
"""Which of them a value should have been ends the places in messages of pydantic."""
_LONGEST = 80
"""Characters of a wrong value in a message."""
_MOST_POSITIONS = 1_000_000
Number = int | float | None
"""None for what is not known: JSON has no NaN."""
Values = dict[str, Number]
"""By the name of a metric."""
Vectors = dict[str, list[Number]]
"""By the name of a metric, rank 1 first."""
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Position = Annotated[int, Ge(1), Le(_MOST_POSITIONS)]
_Table = list[list[Number]]
Layout = dict[str, str]
"""Values of columns that set pages apart, in the words of the log, such as {"device": "mobile"}."""


def layout_name(layout: Layout) -> str:
    """Returns a layout in words, such as "device mobile"."""
    return ", ".join(f"{name} {value}" for name, value in layout.items())


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Training(_Document):
    """What training took.

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
        lists_seen: Share of the labelled lists whose documents training has shown together.
    """

    sessions: dict[str, int] = {}
    query_doc_pairs: int | None = None
    positions: int | None = None
    lists_seen: float | None = None


class Origin(_Document):
    """What a run was of.

    Attributes:
        sources: A hash of each file, folder or run that the configuration names, by its key, when the run began to read
            them; None of one that was not there.
        fingerprint: Of the dataset; see `Dataset.fingerprint`.
        directory: Where the run was started, which relative paths of its configuration start from.
    """

    sources: dict[str, str | None]
    fingerprint: str
    directory: str


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
        found = []
        for (position, *numbers), layout in zip_longest(points, layouts, fillvalue={}):
            ratio, low, high = (
                None if each is None or not math.isfinite(each) else float(each) for each in numbers
            )
            if position and ratio is not None and ratio > 0:
                bounds = {"relative_low": low, "relative_high": high}
                found.append(cls(position=position, relative=ratio, layout=layout, **bounds))
        return found


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
    """What else a metric draws, by its name; metrics of one's own have theirs.

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
    """What the model is held against, on the same test set.

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


class RunResult(_Document):
    """The result of a run.

    Attributes:
        format: Version of this document.
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
        curves: What else metrics draw, such as the reliability of each rank.
        marginals: How marginal click probabilities were computed: exact, or by draws.
        train: What training took.
        parameters: Fitted numbers, tables included.
        data: Sizes of the dataset.
        environment: Versions, device and commit.
        origin: What the run was of.
        config_hash: Of the configuration, the same for runs that would give the same result.
        propensity: Examination by position relative to the first, with 95% intervals where the log tells it.
        shared: Parameters that all documents share, with 95% intervals.
        weighting: What a ranker divides clicks by.
        false_positive: Click rates of irrelevant documents by position, of the trust-bias model.
        true_positive: Those of relevant documents.
        references: What the model is held against: rank-CTR, the true user where clicks are simulated, random order.
        test_draws: With `draws=100`, test metrics over models drawn from the posteriors.
        intervals: With `keep_values=true`, 95% bootstrap intervals of test metrics, [low, high].
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
    marginals: str = "exact"
    train: Training = Training()
    parameters: int | None = None
    data: DataSizes = DataSizes()
    environment: dict[str, str | None] = {}
    origin: Origin | None = None
    config_hash: str = ""
    propensity: list[RelativeExamination] = []
    shared: list[SharedParameter] = []
    weighting: ClickWeights | None = None
    false_positive: list[float] = []
    true_positive: list[float] = []
    references: dict[str, Reference] = {}
    test_draws: dict[str, Drawn] = {}
    intervals: dict[str, Annotated[list[Number], Len(2, 2)]] = {}

    @field_validator("propensity")
    @classmethod
    def _relative_to_the_first(cls, ratios: list[RelativeExamination]) -> list[RelativeExamination]:
        places = [(ratio.position, *sorted(ratio.layout.items())) for ratio in ratios]
        if twice := next((each for each in places if places.count(each) > 1), None):
            raise ValueError(f"position {twice[0]} is given twice")
        if any(ratio.layout for ratio in ratios):  # of which one has the first
            return ratios
        first = next((ratio.relative for ratio in ratios if ratio.position == 1), 1.0)
        if not math.isclose(first, 1, rel_tol=1e-5):
            raise ValueError(f"position 1 is {first:g} relative to itself")
        return ratios

    @classmethod
    def of(cls, content: Any) -> Self:
        """Checks plain values.

        Args:
            content: What JSON holds.

        Raises:
            UserError: It is not the result of a run, or damaged: the message names the key.
        """
        if not isinstance(content, Mapping):
            raise UserError(f"{RESULT} holds no JSON object")
        version = content.get("format")
        if version != FORMAT and ("format" in content or {"model", "test"} <= content.keys()):
            raise UserError(f"{RESULT} is of format {version!r:.{_LONGEST}}, and not {FORMAT}")
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise UserError(_described(error)) from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads the result of a run, which may come from anyone, without characters that control a terminal.

        Args:
            folder: Of the run.

        Raises:
            UserError: There is none, it is damaged, or exceeds the limits of documents. The message names the fault,
                and not the folder.
        """
        if not (folder / RESULT).is_file():
            raise UserError(f"there is no {RESULT}")
        return cls.of(cleaned(read_limited(folder / RESULT)))

    def of_reference(self, name: str) -> Self:
        """Returns a reference as the result of a model of this name."""
        shared = {"dataset": self.dataset, "test_set": self.test_set}
        return type(self)(model=name, **shared, **dict(self.references[name]))

    def kinds(self) -> dict[str, list[str]]:
        """Returns names of test metrics by kind; of one kind where that is not known."""
        return self.groups or {"test": list(self.test)}

    def parts(self) -> dict[str, Values]:
        """Returns the numbers of the test, of the validation and of the training."""
        return {"test": self.test, "val": self.val, "train": self.train.values()}

    def vectors(self) -> dict[str, Vectors]:
        """Returns the vectors by rank of the test and of the validation."""
        return {"test": self.per_rank, "val": self.per_rank_val}

    def write(self, folder: Path) -> None:
        """Writes the result whole or not at all; keys that say nothing are left out."""
        content = self.model_dump()
        known = {name: value for name, value in content.items() if value not in (None, "", [], {})}
        write_json(known, folder / RESULT)


def _described(error: ValidationError) -> str:
    """Returns the first fault in a line."""
    first = error.errors(include_url=False)[0]
    place = "/".join(str(each) for each in first["loc"] if each not in _KINDS_OF_NUMBER)
    if first["type"] == "missing" or place in ("model", "dataset", "test"):
        return f"{RESULT} is not that of a run: it names no {place}"
    if first["type"] == "value_error":
        return f"{RESULT} is damaged: {place}: {first['msg'].removeprefix('Value error, ')}"
    text = repr(first["input"])
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"{RESULT} is damaged: {place} is {text}"
