"""Gibbs samples of cascade models: of where users leave, of documents and their priors, and of continuation.

Documents of one list are not independent given its clicks: users without clicks have left early, or have met documents
that do not attract. Where a policy shows the same documents together again and again, posteriors that take them for
independent bias continuation. Given how far each user has read, what is left are counts of Bernoulli variables (Tanner
and Wong 1987, "The calculation of posterior distributions by data augmentation"). A sweep draws, in turn,

- the document that each user has read last, and which clicked documents have satisfied,
- probabilities that all documents share, whose posteriors are Beta distributions,
- the logit of each document, by an independence Metropolis step around its mode (Tierney 1994, "Markov chains for
  exploring posterior distributions"),
- slopes and variances of the normal priors of documents, and what the documents of a query share.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.special import expit, log_expit

_MODE_STEPS = 5
"""Newton steps to the mode of a logit. They do not start from its last draw, which proposals must not depend on."""
_LONGEST_STEP = 1.5
_FREEDOM = 8.0
"""Degrees of freedom of the t-distribution that logits are proposed from."""
_WIDER = 1.1
"""Its scale, in standard deviations at the mode."""
_OF_SLOPES = 25.0
"""Variance of slopes, over that of logits: a narrow one holds means by rank back where a policy orders lists."""
_LEAST_SQUARES = 1e-2
"""Sum of squares that variances start from."""
_JEFFREYS = 0.5
"""Successes and failures that probabilities start from."""

Logits = Float[np.ndarray, " rows"]
Totals = Float[np.ndarray, "rows 2"]
ByRole = Mapping[str, Float[np.ndarray, " _rows"]]
"""Of the rows of each role."""


class Events(NamedTuple):
    """Of each event in a list, the role whose tower has its probability, or the probability.

    Attributes:
        attraction: A click on a document that is read.
        satisfaction: By a document that is clicked.
        satisfied: Going on after that.
        unsatisfied: Going on after another click.
        skipped: Going on after a skip.
    """

    attraction: str
    satisfaction: str | float
    satisfied: str | float
    unsatisfied: str | float
    skipped: str | float


class Lists(NamedTuple):
    """Lists of documents, and clicks on them.

    Attributes:
        rows: Of the tower of each role, at each document.
        clicks: Which documents are clicked.
        lengths: Of the lists.
    """

    rows: Mapping[str, Integer[np.ndarray, "_lists _ranks"]]
    clicks: Bool[np.ndarray, "lists ranks"]
    lengths: Integer[np.ndarray, " lists"]


class Readers:
    """Users of a cascade model, and what their clicks leave open.

    Args:
        events: Of the model.
        lists: What the users have seen and clicked.
        sizes: Rows of the tower of each role.
    """

    def __init__(self, events: Events, lists: Lists, sizes: Mapping[str, int]):
        self._events, self._shape = events, lists.clicks.shape
        self._rows = lists.rows
        self._rank = np.arange(self._shape[1])
        self._end = lists.lengths - 1
        self._is_last = self._rank == self._end[:, None]
        self._last_click = np.where(lists.clicks, self._rank, -1).max(axis=1)
        is_below = self._rank > self._last_click[:, None]
        self._is_open = is_below & (self._rank <= self._end[:, None])
        # users may go on from these clicks
        self._clicks = np.flatnonzero(lists.clicks & ~self._is_last)
        self._list, self._place = np.divmod(self._clicks, self._shape[1])
        self._is_last_click = self._place == self._last_click[self._list]
        self._onward = np.where(self._last_click == self._end, 0.0, 1.0)
        # above the last click, skips are certain
        skips = np.flatnonzero(~lists.clicks & ~is_below)
        self._certain = {role: np.zeros((rows, 2)) for role, rows in sizes.items()}
        self._add(self._certain, events.attraction, np.flatnonzero(lists.clicks), True)
        self._add(self._certain, events.attraction, skips, False)
        self._add(self._certain, events.skipped, skips, True)

    def counts(
        self, logits: ByRole, rng: np.random.Generator
    ) -> dict[str, Float[np.ndarray, "_rows 2"]]:
        """Draws what users have done; returns how often events have come true and have not, by row of each role."""
        probabilities = {role: expit(values) for role, values in logits.items()}
        events, clicks = self._events, self._clicks
        on = _OfClicks(*(self._at_clicks(event, probabilities) for event in events[1:4]))
        end = self._read_last(probabilities, on.goes_on, rng)
        went_on = self._place < end[self._list]
        satisfied = rng.random(len(went_on)) < on.satisfied_where(went_on)
        read = np.flatnonzero(self._is_open & (self._rank <= end[:, None]))
        passed = np.flatnonzero(self._is_open & (self._rank < end[:, None]))
        left = np.flatnonzero((end > self._last_click) & (end < self._end))
        totals = {role: np.array(certain) for role, certain in self._certain.items()}
        self._add(totals, events.attraction, read, False)
        self._add(totals, events.skipped, passed, True)
        self._add(totals, events.skipped, left * self._shape[1] + end[left], False)
        self._add(totals, events.satisfaction, clicks, satisfied)
        self._add(totals, events.satisfied, clicks[satisfied], went_on[satisfied])
        self._add(totals, events.unsatisfied, clicks[~satisfied], went_on[~satisfied])
        return totals

    def _read_last(
        self,
        probabilities: ByRole,
        goes_on: Float[np.ndarray, " clicks"],
        rng: np.random.Generator,
    ) -> Integer[np.ndarray, " lists"]:
        """Draws the place of the document that each user has read last."""
        skip = 1 - self._at(self._events.attraction, probabilities)
        passed = self._at(self._events.skipped, probabilities)
        onward = np.array(self._onward)
        onward[self._list[self._is_last_click]] = goes_on[self._is_last_click]
        # chances of reaching each document below the last click, and of leaving there
        reached = np.empty(self._shape)
        reached[:, 0] = onward
        through = np.where(self._is_open, skip * passed, 1.0)[:, :-1]
        np.multiply(np.cumprod(through, axis=1), onward[:, None], out=reached[:, 1:])
        leaves = np.where(self._is_last, 1.0, 1 - passed) * self._is_open
        cumulative = np.cumsum(reached * skip * leaves, axis=1)
        drawn = rng.random(len(onward)) * (1 - onward + cumulative[:, -1]) - (1 - onward)
        below = np.minimum((cumulative <= drawn[:, None]).sum(axis=1), self._end)
        return np.where(drawn < 0, self._last_click, below)

    def _at(self, event: str | float, probabilities: ByRole) -> Float[np.ndarray, "#lists #ranks"]:
        if isinstance(event, str):
            return probabilities[event].take(self._rows[event])
        return np.full((1, 1), event)

    def _at_clicks(self, event: str | float, probabilities: ByRole) -> Float[np.ndarray, " clicks"]:
        if isinstance(event, str):
            return probabilities[event].take(self._rows_at(event, self._clicks))
        return np.full(len(self._clicks), event)

    def _rows_at(
        self, role: str, documents: Integer[np.ndarray, " documents"]
    ) -> Integer[np.ndarray, " documents"]:
        rows = self._rows[role]
        if rows.size == 1:
            return np.broadcast_to(rows[0], documents.shape)
        return rows.ravel().take(documents)

    def _add(
        self,
        totals: dict[str, Float[np.ndarray, "_rows 2"]],
        event: str | float,
        documents: Integer[np.ndarray, " documents"],
        is_true: Bool[np.ndarray, " documents"] | bool,
    ) -> None:
        """Counts an event at documents, which are numbered over all lists."""
        if not isinstance(event, str):
            return
        came_true = np.broadcast_to(is_true, documents.shape)
        for column, chosen in enumerate((documents[came_true], documents[~came_true])):
            counted = np.bincount(self._rows_at(event, chosen), minlength=len(totals[event]))
            totals[event][:, column] += counted


class _OfClicks(NamedTuple):
    """Probabilities at clicks; see `Events`."""

    satisfaction: Float[np.ndarray, " clicks"]
    satisfied: Float[np.ndarray, " clicks"]
    unsatisfied: Float[np.ndarray, " clicks"]

    @property
    def goes_on(self) -> Float[np.ndarray, " clicks"]:
        """Probability of going on."""
        return self.satisfaction * self.satisfied + (1 - self.satisfaction) * self.unsatisfied

    def satisfied_where(self, went_on: Bool[np.ndarray, " clicks"]) -> Float[np.ndarray, " clicks"]:
        """Returns the probability of satisfaction, given who has gone on."""
        both = self.satisfaction * np.where(went_on, self.satisfied, 1 - self.satisfied)
        either = np.where(went_on, self.goes_on, 1 - self.goes_on)
        # 0 / 0 where a logit rounds to certainty
        return np.divide(both, either, out=np.zeros_like(both), where=either > 0)


class NormalPrior:
    """The prior of logits N(base + slopes lines + u, variance of a group), where u ~ N(0, per_query) is of a query.

    Args:
        base: Of each document.
        lines: What the mean is a line in, for each document.
        variance: Where draws start.
        query: Labels of queries from 0; None where queries share nothing.
        group: Labels of groups from 0; None for one group.
    """

    def __init__(
        self,
        base: Float[np.ndarray, " documents"],
        lines: Float[np.ndarray, "documents slopes"],
        variance: float,
        query: Integer[np.ndarray, " documents"] | None = None,
        group: Integer[np.ndarray, " documents"] | None = None,
    ):
        self._base, self._lines, self._query = base, lines, query
        self._of_slopes = np.eye(lines.shape[1]) / (_OF_SLOPES * variance)
        self._group = np.zeros(len(base), int) if group is None else group
        self._per_query = variance / 8
        self._shared = np.zeros(len(base))
        self.means, self.variances = base, np.full(len(base), variance)

    def draw(self, logits: Float[np.ndarray, " documents"], rng: np.random.Generator) -> None:
        """Draws the numbers of the prior, given the logits of documents."""
        offsets, lines = logits - self._base, self._lines
        weighted = lines.T / self.variances
        precision = weighted @ lines + self._of_slopes
        center = np.linalg.solve(precision, weighted @ (offsets - self._shared))
        noise = rng.standard_normal(len(center))
        line = lines @ (center + np.linalg.solve(np.linalg.cholesky(precision).T, noise))
        if self._query is not None:
            self._shared = self._of_queries(self._query, offsets - line, rng)
        squares = np.bincount(self._group, (offsets - line - self._shared) ** 2)
        variances = _variances(squares, np.bincount(self._group), rng)
        self.means, self.variances = self._base + line + self._shared, variances[self._group]

    def _of_queries(
        self,
        query: Integer[np.ndarray, " documents"],
        left: Float[np.ndarray, " documents"],
        rng: np.random.Generator,
    ) -> Float[np.ndarray, " documents"]:
        """Draws what the documents of a query share, and its variance."""
        spread = 1 / (np.bincount(query, 1 / self.variances) + 1 / self._per_query)
        noise = rng.standard_normal(len(spread))
        shared = spread * np.bincount(query, left / self.variances) + np.sqrt(spread) * noise
        (self._per_query,) = _variances(shared[None] @ shared, np.array([len(shared)]), rng)
        return shared[query]


def _variances(
    squares: Float[np.ndarray, " groups"],
    counts: Integer[np.ndarray, " groups"],
    rng: np.random.Generator,
) -> Float[np.ndarray, " groups"]:
    """Draws the variances of normal values around 0, given the sums of their squares."""
    return (squares + _LEAST_SQUARES) / 2 / rng.standard_gamma((counts + 1) / 2)


Priors = Mapping[str, tuple[Integer[np.ndarray, " _rows"], NormalPrior]]
"""By role, the rows of documents and their prior."""


def draw_logits(
    logits: Logits, totals: Totals, prior: NormalPrior, rng: np.random.Generator
) -> Logits:
    """Returns the next draws of logits, given how often their events have come true and have not."""
    (successes, failures), trials = totals.T, totals.sum(axis=1)

    def curvature(values: Logits) -> Logits:
        return trials * expit(values) * expit(-values) + 1 / prior.variances

    # the mode where the prior is a Beta distribution with the slope and the curvature of the normal one
    of_prior = 1 / prior.variances / expit([-prior.means, prior.means])
    mode = np.log(successes + of_prior[0]) - np.log(failures + of_prior[1])
    for _ in range(_MODE_STEPS):
        slope = successes - trials * expit(mode) - (mode - prior.means) / prior.variances
        mode = mode + np.clip(slope / curvature(mode), -_LONGEST_STEP, _LONGEST_STEP)
    scale = _WIDER / np.sqrt(curvature(mode))

    def log_ratio(values: Logits) -> Logits:
        """Log density of the posterior, over that of proposals."""
        of_clicks = successes * values + trials * log_expit(-values)
        of_prior = (values - prior.means) ** 2 / prior.variances / 2
        of_proposal = (_FREEDOM + 1) / 2 * np.log1p(((values - mode) / scale) ** 2 / _FREEDOM)
        return of_clicks - of_prior + of_proposal

    proposed = mode + scale * rng.standard_t(_FREEDOM, len(mode))
    is_taken = np.log(rng.random(len(mode))) < log_ratio(proposed) - log_ratio(logits)
    return np.where(is_taken, proposed, logits)


def draw_shared(logits: Logits, totals: Totals, rng: np.random.Generator) -> Logits:
    """Returns the next draws of logits that have Jeffreys' prior; those without events stay."""
    is_counted = totals.sum(axis=1) > 0
    successes, failures = rng.standard_gamma(totals.T + _JEFFREYS)
    return np.where(is_counted, np.log(successes) - np.log(failures), logits)


def sample(
    readers: Readers, logits: ByRole, priors: Priors, rng: np.random.Generator
) -> Iterator[ByRole]:
    """Yields draws of the logits that have no normal prior, by role, one per sweep.

    Args:
        readers: Users.
        logits: Where the draws start.
        priors: By role the rows of documents, and their prior.
        rng: Draws.
    """
    state = {role: np.array(values, np.float64) for role, values in logits.items()}
    shared = [role for role in state if role not in priors]
    while True:
        totals = readers.counts(state, rng)
        for role in shared:
            state[role] = draw_shared(state[role], totals[role], rng)
        for role, (rows, prior) in priors.items():
            state[role][rows] = draw_logits(state[role][rows], totals[role][rows], prior, rng)
            prior.draw(state[role][rows], rng)
        yield {role: state[role] for role in shared}
