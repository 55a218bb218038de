"""How well clicks are predicted on documents that training has shown never, rarely and often."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np

from clickexp.metrics.base import or_nan, pick
from clickexp.metrics.click import CONDITIONAL, MARGINAL, ClickMetric, as_events, perplexity
from clickexp.numerics import as_pair

_IMPRESSIONS = "train_impressions"
"""Column of how often the training sessions show a document, under the id that the tables have a row for."""


@dataclass(eq=False, repr=False)
class ColdStart(ClickMetric):
    """Likelihood and perplexity of the documents whose impressions in training are in each of several ranges.

        ll    = mean over documents of log P(c_r | c_<r), higher is better
        ppl   = 2 ^ (-mean over documents of log2 P(c_r)), lower is better
        share = documents in the range / documents

    Reads `conditional_log_probs` (or `cond_log_probs`), `log_probs`, `clicks`, `where`, and `train_impressions`, which
    evaluations count. nan for ranges without documents.

    Args:
        edges: Fewest impressions of each range but the first, which starts from 0; ascending.

    Schein, Popescul, Ungar and Pennock 2002, "Methods and metrics for cold-start recommendations".
    """

    edges: Sequence[int] = (1, 6, 51)

    reads = CONDITIONAL
    heading = "impressions in training"

    def __post_init__(self) -> None:
        super().__post_init__()
        edges = [0, *self.edges]
        if not self.edges or any(high <= low for low, high in pairwise(edges)):
            raise ValueError(f"edges={edges[1:]}: give whole numbers from 1 that ascend")

    @property
    def ranges(self) -> list[str]:
        """Names of the ranges, such as new, 1-5, 6-50, 51+."""
        edges = [0, *self.edges]
        inner = [f"{low}-{high - 1}" for low, high in pairwise(edges)]
        return ["new" if edges[1] == 1 else inner[0], *inner[1:], f"{edges[-1]}+"]

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Values by range."""
        return tuple(
            f"_{value}@{bound}" for value in ("ll", "ppl", "share") for bound in self.ranges
        )

    @property
    def higher_is_better(self) -> dict[str, bool | None]:  # pyright: ignore[reportIncompatibleVariableOverride]  # computed
        """Of each suffix."""
        better = {"_ll": True, "_ppl": False, "_share": None}
        return {suffix: better[suffix.partition("@")[0]] for suffix in self.suffixes}

    def statistics(self, **outputs: Any) -> dict[str, Any]:
        """By range: sums of log P(observed), given the clicks above and `marginal`; documents and clicks."""
        conditional, clicks, where = as_events(*self.read(outputs))
        marginal = as_pair(pick(self, outputs, *MARGINAL))
        impressions = jnp.asarray(pick(self, outputs, _IMPRESSIONS))
        place = jnp.searchsorted(jnp.asarray([*self.edges]), impressions, side="right")
        inside = where[..., None] & (place[..., None] == jnp.arange(len(self.edges) + 1))

        def summed(pair: Any) -> Any:
            observed = jnp.where(clicks, pair.log, pair.complement)
            return jnp.sum(jnp.where(inside, observed[..., None], 0.0), axis=(0, 1))

        documents = jnp.sum(inside, axis=(0, 1), dtype=jnp.int32)
        clicked = jnp.sum(inside & clicks[..., None], axis=(0, 1), dtype=jnp.int32)
        sums = {"log_prob": summed(conditional), "marginal": summed(marginal)}
        return {**sums, "documents": documents, "clicks": clicked}

    def compute(self) -> np.ndarray:
        """The values in the order of `suffixes`."""
        curve = self.curve()
        documents = curve["documents"]
        return np.concatenate([curve["ll"], curve["ppl"], documents / or_nan(documents.sum())])

    def curve(self) -> dict[str, np.ndarray]:
        """By range documents, clicks, ll and ppl; the fewest impressions of each, `from`."""
        number = len(self.edges) + 1
        documents, clicks, log_prob, marginal = (
            self.total(name) if self.batches else np.zeros(number)
            for name in ("documents", "clicks", "log_prob", "marginal")
        )
        counts = or_nan(documents)
        values = {"ll": log_prob / counts, "ppl": perplexity(marginal / counts)}
        return {
            "from": np.array([0, *self.edges]),
            "documents": documents,
            "clicks": clicks,
            **values,
        }
