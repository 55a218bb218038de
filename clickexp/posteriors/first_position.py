"""Errors of attraction of trust bias where clicks hardly tell its scale: those of the click rate at the first position.

There P(click) is p = f + (t - f) a for a = s(z). Clicks hardly tell an affine change of all attraction,
which t and f of all positions take up, and which leaves p. So an interval of a under the estimated t and f is read as
one of p. With the logits of t and f, p of a given a moves by t (1 - t) a and f (1 - f) (1 - a). Over (t - f) a (1 - a),
these are moves of z. Clicks move z of documents that have many of them back. Documents with few impressions follow
the mean of the prior, and this follows all documents.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from jaxtyping import Float, Integer
from scipy.special import expit

from clickexp.models import Model, TrustBiasModel
from clickexp.parameters import EmbeddingParameter, PositionParameter, Rows
from clickexp.posteriors.intervals import towers
from clickexp.posteriors.policy_prior import UnderPolicy, scale_of
from clickexp.posteriors.shared import SharedPosterior
from clickexp.utils.blocks import blocks

_BLOCK = 1 << 16
"""Rows that are computed in double precision at a time."""
_FARTHEST = 30.0
"""Logit that double precision tells apart from 1."""

Pulls = Callable[[slice], Float[np.ndarray, "rows numbers"]]
"""Slopes of the gradient of the log-likelihood by logits of some of the chosen rows in numbers."""


class FirstPosition(NamedTuple):
    """Rates of trust bias at the first position that the log shows, and the posteriors of documents.

    Attributes:
        true: Name of t among shared parameters.
        false: The same of f.
        rates: Their values.
        baseline: What is added to the logits of all documents.
        under: Posteriors, and their prior.
    """

    true: str
    false: str
    rates: tuple[float, float]
    baseline: float
    under: UnderPolicy

    @classmethod
    def of(
        cls, model: Model, posterior: SharedPosterior, under: UnderPolicy
    ) -> "FirstPosition | None":
        """Returns that of a model; None of others than trust bias with rates by position."""
        if not isinstance(model, TrustBiasModel):
            return None
        found = {
            role: (f"{name}[{places[0]}]", float(expit(np.asarray(tower.weight[...])[places[0]])))
            for role, name, tower, places in towers(model, "", {*posterior.names})
            if isinstance(tower, PositionParameter)
        }
        if not found.keys() >= {"true_positive", "false_positive"}:
            return None
        (true, of_true), (false, of_false) = found["true_positive"], found["false_positive"]
        # attraction has no scale where documents do not differ
        if not of_true > of_false:
            return None
        level = cast(EmbeddingParameter, model.attraction).level
        return cls(true, false, (of_true, of_false), level, under)

    def moves(
        self,
        names: tuple[str, ...],
        rows: Rows,
        chosen: Integer[np.ndarray, " rows"],
        pulls: Pulls,
    ) -> Pulls:
        """Returns how far logits of rows move with numbers, beyond what a given prior and given t and f leave.

        Args:
            names: Of the numbers.
            rows: With posteriors for intervals.
            chosen: Those that move.
            pulls: Of numbers.
        """
        of_mean = self._of_mean(rows, chosen, pulls)
        true, false = names.index(self.true), names.index(self.false)
        t, f = self.rates

        def moved(part: slice) -> np.ndarray:
            followed = self.under.followed(rows, chosen[part])
            moves = (followed.shares * followed.lines).T @ of_mean
            means = np.asarray(rows.means(np.asarray(rows.values)[chosen[part]]), np.float64)[:, 0]
            logits = np.clip(self.baseline + means, -_FARTHEST, _FARTHEST)
            moves[:, true] += t * (1 - t) / ((t - f) * expit(-logits))
            moves[:, false] += f * (1 - f) / ((t - f) * expit(logits))
            return moves

        return moved

    def _of_mean(
        self, rows: Rows, chosen: Integer[np.ndarray, " rows"], pulls: Pulls
    ) -> Float[np.ndarray, "8 numbers"]:
        """Returns how far mean and slopes of the prior move with numbers, over its deviation."""
        information, right = np.eye(8), 0.0
        for part in blocks(len(chosen), _BLOCK):
            lines, shares, precisions = self.under.followed(rows, chosen[part])
            information += (lines * (precisions * shares)) @ lines.T
            right = right + (lines * shares) @ pulls(part)
        return np.linalg.solve(information, right) / scale_of(self.under.rows) ** 2
