"""Users whose parameters are known, and logs of their clicks. Plain NumPy in float64: nothing here is clickexp's.

P(click at rank r | clicks above):

    PBM        e_r a
    UBM        e_{r r'} a, r' the rank of the last click above, 0 for none
    TrustBias  f_r + (t_r - f_r) a
    DBN        x_r a, x_r the probability of examination: 1 at rank 1, then g (1 - s) after a click and, by Bayes' rule,
               g x (1 - a) / (1 - x a) after a skip
    DCM        x_r a, with l_r in place of g (1 - s) and 1 in place of g
    CCM        x_r a, with (1 - a) t_2 + a t_3 in place of g (1 - s) and t_1 in place of g
    DCTR       a
    DRCTR      a_r, one per document and rank

Attraction a = s(z), z ~ N(-1.5, 1.2^2) for each pair, the family of the prior of the default, or a ~ Beta(1, 3), which
is another; satisfaction s = s(y), y ~ N(0, 1), on its own or correlated with the attraction logit.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats
from scipy.special import betaln, expit, log_expit, logit, logsumexp

POSITIONS = 10
ATTRACTION = -1.5, 1.2
"""Mean and standard deviation of the logits."""

FAMILIES = "normal", "beta", "peaked", "rare", "uniform", "mixture"
"""Of attraction: logits from ATTRACTION, or probabilities from one of BETAS."""
BETAS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "beta": ((1.0, 1.0, 3.0),),
    "peaked": ((1.0, 2.0, 5.0),),
    "rare": ((1.0, 0.5, 5.0),),
    "uniform": ((1.0, 1.0, 1.0),),
    "mixture": ((0.8, 1.0, 30.0), (0.2, 5.0, 3.0)),
}
"""Mixtures of Beta distributions: (weight, a, b) of each."""

POLICIES = {"random": 0.0, "weak": 1 / 3, "medium": 1.0, "strong": 3.0, "fixed": 10.0}
"""Weight of the standardised attraction logit in a document's score, beside noise of standard deviation 1 that is new
in every session."""

TEST_SESSIONS = 20_000
CASCADES = ("DBN", "DCM", "CCM")

_RANK = np.arange(1, POSITIONS + 1)
_DISTANCE = np.maximum(_RANK[:, None] - np.arange(POSITIONS), 1)
"""[r - 1, r'] = r - r', for r' < r."""

SHARED: dict[str, dict[str, np.ndarray]] = {
    "PBM": {"examination": _RANK**-0.7},
    "UBM": {
        "examination": np.where(np.arange(POSITIONS) == 0, _DISTANCE**-0.7, 0.9 * _DISTANCE**-0.5)
    },
    "TrustBias": {
        "true_positive": _RANK**-0.7 * (0.98 - _RANK / 100),
        "false_positive": _RANK**-0.7 * 0.4 / _RANK,
    },
    "DBN": {"continuation": np.array([0.9])},
    "DCM": {"continuation": 0.5 + 0.04 * _RANK},
    "CCM": {"continuation": np.array([0.9, 0.8, 0.3])},
    "DCTR": {},
    "DRCTR": {},
}
"""Probabilities that all pairs share: [positions], for UBM [r - 1, r'], for CCM [t_1, t_2, t_3], for DBN [g]."""

CURVES = {
    "power": SHARED["PBM"]["examination"],
    "factor": 0.8 ** (_RANK - 1),
    "sum": 0.6 * 0.5 ** (_RANK - 1) + 0.4 * _RANK**-0.3,
    "fold": np.where(_RANK <= 5, 1.0, 0.4) * 0.95 ** (_RANK - 1),
    "rough": np.array([1.0, 0.9, 0.8, 0.35, 0.3, 0.28, 0.13, 0.2, 0.15, 0.1]),
}
"""Examination of PBM: that of SHARED, and others."""

POWERS = 1.0, 2.0, 0.5, 1.5, 0.7
"""To which these are raised, by the number of the truth: what is right for one may be chance."""

ClicksAt = Callable[[int, np.ndarray], np.ndarray]
"""(rank from 0, probability of a click [sessions]) -> clicks [sessions]."""


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Parameters of a user, true or estimated.

    Attributes:
        shared: Probabilities, as in SHARED.
        attraction: Logits [pairs + 1], row 0 for padding; for DRCTR [pairs + 1, positions].
        satisfaction: Logits [pairs + 1], of DBN.
    """

    shared: Mapping[str, np.ndarray]
    attraction: np.ndarray
    satisfaction: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Part:
    """Sessions: ids and clicks [sessions, positions]."""

    ids: np.ndarray
    clicks: np.ndarray


@dataclasses.dataclass(frozen=True)
class Design:
    """What a log is drawn from.

    Attributes:
        user: One of SHARED.
        policy: One of POLICIES.
        skew: The i-th query is asked with probability proportional to i ** -skew.
        impressions: Mean number of training impressions per pair.
        queries: Number of queries.
        documents: Number of documents per query, of which a list shows the ten of highest score.
        family: One of FAMILIES.
        correlation: Of the logits of satisfaction and attraction.
        power: To which the probabilities of SHARED are raised.
        curve: One of CURVES, of PBM.
    """

    user: str
    policy: str = "random"
    skew: float = 1.0
    impressions: int = 40
    queries: int = 400
    documents: int = 20
    family: str = "normal"
    correlation: float = 0.0
    power: float = 1.0
    curve: str = "power"

    @property
    def pairs(self) -> int:
        """Number of query-document pairs."""
        return self.queries * self.documents

    @property
    def sessions(self) -> int:
        """Number of training sessions."""
        return math.ceil(self.impressions * self.pairs / POSITIONS)


@dataclasses.dataclass(frozen=True)
class SimulatedLog:
    """Sessions of one user; validation has a quarter of the training sessions, the test TEST_SESSIONS."""

    design: Design
    truth: Parameters
    train: Part
    val: Part
    test: Part


def simulate(design: Design, seed: int) -> SimulatedLog:
    """A log, the same for the same arguments."""
    rng = np.random.default_rng(seed)
    rows = (design.pairs + 1, POSITIONS) if design.user == "DRCTR" else design.pairs + 1
    attraction = _attraction(design.family, rows, rng)
    satisfaction = None
    if design.user == "DBN":
        own = math.sqrt(1 - design.correlation**2)
        satisfaction = own * rng.normal(0, 1, rows)
        satisfaction += design.correlation * _standardised(attraction, design.family)
    of_user = {"examination": CURVES[design.curve]} if design.user == "PBM" else SHARED[design.user]
    shared = {role: values**design.power for role, values in of_user.items()}
    truth = Parameters(shared, attraction, satisfaction)
    sizes = design.sessions, math.ceil(design.sessions / 4), TEST_SESSIONS
    parts = []
    for count in sizes:
        ids = lists(design, attraction, count, rng)
        clicks = np.zeros(ids.shape, bool)

        def draw(rank: int, probability: np.ndarray) -> np.ndarray:
            clicks[:, rank] = rng.random(count) < probability
            return clicks[:, rank]

        walk(design.user, truth, ids, draw)
        parts.append(Part(ids, clicks))
    return SimulatedLog(design, truth, *parts)


def _attraction(family: str, rows: int | tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Logits of pairs."""
    if family == "normal":
        return rng.normal(*ATTRACTION, rows)
    weights, a, b = np.array(BETAS[family]).T
    # one component draws nothing else
    component = rng.choice(len(a), rows, p=weights) if len(a) > 1 else np.zeros(rows, int)
    return logit(rng.beta(a[component], b[component]))


def log_density(family: str, logits: np.ndarray) -> np.ndarray:
    """Logarithm of the density of attraction logits."""
    if family == "normal":
        return stats.norm.logpdf(logits, *ATTRACTION)
    weights, a, b = np.array(BETAS[family]).T[..., None]
    slopes = log_expit(logits) + log_expit(-logits)
    components = (a - 1) * log_expit(logits) + (b - 1) * log_expit(-logits) - betaln(a, b)
    return logsumexp(components, axis=0, b=weights) + slopes


def lists(
    design: Design, attraction: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Ids [count, positions] of queries by popularity and of their documents by the policy."""
    popularity = np.arange(1, design.queries + 1, dtype=float) ** -design.skew
    query = rng.choice(design.queries, count, p=popularity / popularity.sum())
    candidates = 1 + query[:, None] * design.documents + np.arange(design.documents)
    scores = rng.standard_normal(candidates.shape)
    if weight := POLICIES[design.policy]:
        quality = attraction if attraction.ndim == 1 else attraction.mean(axis=1)
        scores += weight * _standardised(quality, design.family)[candidates]
    best = np.argsort(-scores, axis=1)[:, :POSITIONS]
    return np.take_along_axis(candidates, best, axis=1).astype(np.int32)


def _standardised(logits: np.ndarray, family: str) -> np.ndarray:
    mean, spread = ATTRACTION if family == "normal" else (logits.mean(), logits.std())
    return (logits - mean) / spread


def conditional(user: str, parameters: Parameters, part: Part) -> np.ndarray:
    """P(click at r | clicks above r), [sessions, positions]."""
    return walk(user, parameters, part.ids, lambda rank, _: part.clicks[:, rank])


def walk(user: str, parameters: Parameters, ids: np.ndarray, clicks_at: ClicksAt) -> np.ndarray:
    """Goes down lists, where `clicks_at` says what is clicked, and returns P(click at r | clicks above r)."""
    result = np.zeros(ids.shape)
    examining, last = np.ones(len(ids)), np.zeros(len(ids), int)
    for rank in range(POSITIONS):
        if user in CASCADES:
            attraction = expit(parameters.attraction[ids[:, rank]])
            probability = examining * attraction
            click = clicks_at(rank, probability)
            after_click, after_skip = _continue_probs(user, parameters, ids[:, rank], rank)
            skipped = after_skip * examining * (1 - attraction) / (1 - probability)
            examining = np.where(click, after_click, skipped)
        else:
            probability = _independent(user, parameters, ids[:, rank], rank, last)
            last = np.where(clicks_at(rank, probability), rank + 1, last)
        result[:, rank] = probability
    return result


def top_click_rate(user: str, parameters: Parameters, logits: np.ndarray) -> np.ndarray:
    """P(click at rank 1) of documents with these attraction logits, which clicks identify for every user."""
    attraction, shared = expit(logits), parameters.shared
    match user:
        case "PBM":
            return shared["examination"][0] * attraction
        case "UBM":
            return shared["examination"][0, 0] * attraction
        case "TrustBias":
            first, slope = shared["false_positive"][0], _slopes(parameters)[0]
            return first + slope * attraction
    return attraction


def relative_examination(user: str, parameters: Parameters) -> np.ndarray | None:
    """Examination relative to rank 1, of ranks 2 to 10; None for users without it.

    Of UBM that of every cell (r, r') but the first; of TrustBias that of the slopes t_r - f_r, which are identified.
    """
    match user:
        case "PBM":
            examination = parameters.shared["examination"]
        case "UBM":
            examination = parameters.shared["examination"][np.tril_indices(POSITIONS)]
        case "TrustBias":
            examination = _slopes(parameters)
        case _:
            return None
    return examination[1:] / examination[0]


def continuation(user: str, parameters: Parameters) -> np.ndarray | None:
    """Continuation as far as clicks tell: of DCM not that after the last rank; None for users without it."""
    given = parameters.shared.get("continuation")
    return given[: POSITIONS - 1] if user == "DCM" and given is not None else given


def shared(user: str, parameters: Parameters) -> np.ndarray | None:
    """What intervals of shared parameters are of: relative examination, or else continuation."""
    ratios = relative_examination(user, parameters)
    return continuation(user, parameters) if ratios is None else ratios


def log_likelihood(probability: np.ndarray, part: Part) -> float:
    """Mean log-likelihood per document of predicted clicks."""
    return float(np.mean(np.log(np.where(part.clicks, probability, 1 - probability))))


def _continue_probs(
    user: str, parameters: Parameters, ids: np.ndarray, rank: int
) -> tuple[np.ndarray | float, float]:
    """P(continue | click) and P(continue | examined, no click)."""
    continues = parameters.shared["continuation"]
    match user:
        case "DBN":
            assert parameters.satisfaction is not None
            return continues[0] * expit(-parameters.satisfaction[ids]), continues[0]
        case "DCM":
            return continues[rank], 1.0
    attraction = expit(parameters.attraction[ids])
    return (1 - attraction) * continues[1] + attraction * continues[2], continues[0]


def _independent(
    user: str, parameters: Parameters, ids: np.ndarray, rank: int, last: np.ndarray
) -> np.ndarray:
    if user == "DRCTR":
        return expit(parameters.attraction[ids, rank])
    attraction, shared = expit(parameters.attraction[ids]), parameters.shared
    match user:
        case "PBM":
            return shared["examination"][rank] * attraction
        case "UBM":
            return shared["examination"][rank, last] * attraction
        case "TrustBias":
            return shared["false_positive"][rank] + _slopes(parameters)[rank] * attraction
    return attraction


def _slopes(parameters: Parameters) -> np.ndarray:
    return parameters.shared["true_positive"] - parameters.shared["false_positive"]
