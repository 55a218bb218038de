"""Propensities by position, their sources, and what weights of their inverse do to a log."""

import abc
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from clickexp.data import Dataset, Sessions
from clickexp.data.cells import Cells
from clickexp.errors import ConfigError

_Curve = tuple[float | None, ...]
_ROUNDING = 1e-6
_POOR = 0.1
"""Effective clicks per click below which a weighting is said to explode."""


@dataclasses.dataclass(frozen=True)
class Propensities:
    """Propensities of the positions 1, 2, ..., relative to the first.

    A click at position k of a document of relevance r has probability offset_k + c value_k r, for some c. Where
    examination differs between layouts, such as devices, they are of cells instead of positions, from the cell 1, and
    relative to one of them.

    Attributes:
        values: One per position; None where nothing is known.
        offsets: Click rate of irrelevant documents at each position, for models of trust bias; None for 0.
        first: The c of relevance 1, where there are offsets: relevant documents have click rate offset_k + c value_k.
        low: Lower bounds of 95% intervals, where there are any.
        high: Upper bounds.
        source: Where they come from, in a few words.
        cells: The positions of the layouts; None where there is one.
    """

    values: _Curve
    offsets: _Curve | None = None
    low: _Curve | None = None
    high: _Curve | None = None
    source: str = "given"
    first: float = 1.0
    cells: Cells | None = None

    def __post_init__(self) -> None:
        for name in ("values", "offsets", "low", "high"):
            curve = getattr(self, name)
            if curve is not None:
                numbers = (None if number is None else float(number) for number in curve)
                object.__setattr__(self, name, tuple(numbers))
        values = self.by_position(len(self.values))
        if (values < 0).any() or not (values > 0).any():
            raise ConfigError(
                f"propensities {list(self.values)}: give one number of at least 0 per position"
            )
        if self.offsets is not None and len(self.offsets) != len(self.values):
            raise ConfigError(
                f"{len(self.offsets)} offsets for {len(self.values)} propensities: give one per position"
            )

    @classmethod
    def relative(
        cls, values: Sequence[float] | np.ndarray, reference: int = 0, **others: Any
    ) -> "Propensities":
        """Makes them relative to one of them; not finite values, and intervals with one, are unknown."""
        scaled = {
            "values": _known(np.asarray(values, float) / values[reference]),
            "first": float(values[reference]),
        }
        for name in ("low", "high"):
            if name in others:
                others[name] = _known(np.asarray(others[name], float))
        return cls(**scaled, **others)

    def of_relevant(self) -> "Propensities":
        """Returns the click rates of relevant documents, for weights, which subtract no offsets."""
        if not any(self.offsets or ()):
            return self
        offsets = self.by_position(len(self.values), "offsets")
        rates = np.nan_to_num(offsets) + self.first * self.by_position(len(self.values))
        source = f"click rates of relevant documents, {self.source}"
        return self.relative(rates[1:], source=source, cells=self.cells)

    def view(self, sessions: Sessions) -> Sessions:
        """Returns sessions whose positions are what these propensities are of, to count by them."""
        return sessions if self.cells is None else self.cells.view(sessions)

    def places(self, batch: Mapping[str, Any]) -> Any:
        """Returns what each document of a batch has its propensity by: its position, or its cell."""
        return batch["positions"] if self.cells is None else self.cells.of(batch)

    def by_position(
        self, positions: int, name: str = "values"
    ) -> Float[np.ndarray, " positions+1"]:
        """Returns the numbers by position from 1, nan where unknown; index 0 is nan."""
        numbers = np.full(positions + 1, np.nan)
        curve = (getattr(self, name) or ())[:positions]
        numbers[1 : len(curve) + 1] = np.array(curve, float)  # nan for None
        return numbers

    def clipped(self, positions: int, clip: float) -> Float[np.ndarray, " positions+1"]:
        """Returns them by position, those below `clip` raised to it; nan where unknown."""
        return np.maximum(self.by_position(positions), clip)

    def weights(self, positions: int, clip: float) -> Float[np.ndarray, " positions+1"]:
        """Returns 1 / `clipped`; 0 where unknown."""
        return np.nan_to_num(1 / self.clipped(positions, clip), nan=0.0)


class PropensitySource(abc.ABC):
    """A source of propensities, which estimates them from a dataset or finds them elsewhere."""

    @property
    def may_have_offsets(self) -> bool:
        """Whether it can know the click rates of irrelevant documents."""
        return True

    @abc.abstractmethod
    def __call__(self, dataset: Dataset) -> Propensities:
        """Returns the propensities of the positions of a dataset.

        Raises:
            UserError: There are none.
        """


@dataclasses.dataclass(frozen=True)
class Weighting:
    """Clicks as weights by inverse propensities leave them.

    Attributes:
        propensities: The propensities.
        clip: The smallest that weights divide by.
        clicks: Clicks of the training sessions.
        effective: Effective sample size, (sum w)^2 / sum w^2 over these clicks (Kong 1992).
        clipped: Positions whose propensity is below the clip.
        unknown: Positions with documents and without a propensity, of which clicks have weight 0.
        unused: Positions with a propensity, beyond the last with a document.
        ignores_offsets: Whether there are offsets that the weights leave in.
    """

    propensities: Propensities
    clip: float
    clicks: int
    effective: float
    clipped: tuple[int, ...]
    unknown: tuple[int, ...]
    unused: tuple[int, ...] = ()
    ignores_offsets: bool = False

    @classmethod
    def of(
        cls,
        propensities: Propensities,
        clip: float,
        sessions: Sessions,
        column: str | None = None,
        ignores_offsets: bool = False,
        weights: np.ndarray | None = None,
    ) -> "Weighting":
        """Weighs the clicks of sessions.

        Args:
            propensities: The propensities.
            clip: The smallest that weights divide by.
            sessions: Sessions with clicks.
            column: Propensity of each document, which clicks at known positions are weighed by; None for that of their
                position.
            ignores_offsets: Whether there are offsets that the weights leave in.
            weights: Of a click by position from 0; None for the inverse propensities.
        """
        sessions = propensities.view(sessions)
        shown, clicked = sessions.by_position
        values = propensities.by_position(len(shown) - 1)
        if weights is None:
            weights = propensities.weights(len(shown) - 1, clip)
        weights = np.resize(np.append(weights, np.zeros(len(shown))), len(shown))
        total, squares = (clicked * weights).sum(), (clicked * weights**2).sum()
        if column is not None:
            total = squares = 0.0
            for positions, clicks, more in documents(sessions, column):
                of_click = (weights[positions] > 0)[clicks] / np.maximum(more[column][clicks], clip)
                total, squares = total + of_click.sum(), squares + (of_click**2).sum()
        return cls(
            propensities,
            clip,
            int(clicked.sum()),
            float(total**2 / squares) if squares else 0.0,
            tuple(np.flatnonzero((shown > 0) & (values < clip)).tolist()),
            tuple(np.flatnonzero((shown > 0) & np.isnan(values)).tolist()),
            tuple(
                range(int(np.flatnonzero(shown).max(initial=0)) + 1, len(propensities.values) + 1)
            ),
            ignores_offsets,
        )

    def describe(self) -> Iterator[str]:
        """Returns lines for the reader, warnings among them."""
        of_layouts = self.propensities.cells is not None
        effective = f"effective sample size {self.effective:,.0f} of {self.clicks:,} clicks"
        yield (
            f"propensities by position ({self.propensities.source}): {self._values()}; clip {self.clip:g}, {effective}"
        )
        if self.unknown:
            yield f"warning: no propensity for position {self._listed(self.unknown)}: clicks there have weight 0"
        if self.unused and not of_layouts:
            yield f"warning: propensities for position {_listed(self.unused)}, where training sessions have no document"
        if not of_layouts and (rising := self._rising()):
            yield (
                f"warning: propensities above that of the first position at position {_listed(rising)}, where "
                "examination seldom rises"
            )
        if self.ignores_offsets:
            yield (
                "warning: clicks of irrelevant documents count, although the propensities know their rates; "
                "debias=affine and doubly_robust subtract them"
            )
        if self.clicks and self.effective < _POOR * self.clicks:
            yield (
                "warning: few clicks have most of the weight; raise debias.clip, or take propensities with less decay"
            )

    def _values(self) -> str:
        """Names the propensities, or how many there are within layouts."""
        values, cells = self.propensities.values, self.propensities.cells
        if cells is None:
            return " ".join("?" if value is None else f"{value:.3g}" for value in values)
        count = sum(value is not None for value in values)
        return f"{count} positions within layouts by {', '.join(cells.names)}"

    def _listed(self, places: Sequence[int]) -> str:
        """Names positions, or positions of layouts."""
        cells = self.propensities.cells
        if cells is None:
            return _listed(places)
        names = [f"{cells.position(cell)} of {cells.words(cell)}" for cell in places[:8]]
        return ", ".join(names) + (", ..." if len(places) > 8 else "")

    def _rising(self) -> list[int]:
        """Positions with a propensity above the first one's, beyond the interval where there is one."""
        propensities, size = self.propensities, len(self.propensities.values)
        values, low = propensities.by_position(size), propensities.by_position(size, "low")
        bounds = np.where(np.isnan(low), values, low)
        return np.flatnonzero(bounds > 1 + _ROUNDING).tolist()

    def result(self) -> dict[str, Any]:
        """Returns what result.json holds of it."""
        entries = {**vars(self.propensities), **vars(self)}
        del entries["propensities"]
        cells = entries.pop("cells")
        if cells is not None:
            entries["layouts"] = [
                cells.layout(cell) | {"position": str(cells.position(cell))}
                for cell in range(1, len(self.propensities.values) + 1)
            ]
        return {name: value for name, value in entries.items() if value is not None}


def documents(
    sessions: Sessions, *more: str
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
    """Yields positions and clicks of the documents shown, some sessions at a time, and further columns of theirs."""
    for chunk in sessions.chunks():
        others = {name: chunk.of_documents(name) for name in more}
        yield chunk.of_documents("positions"), chunk["clicks"][chunk.shown], others


def _known(values: np.ndarray) -> _Curve:
    return tuple(float(value) if math.isfinite(value) else None for value in values)


def _listed(positions: Sequence[int]) -> str:
    return ", ".join(map(str, positions[:8])) + (", ..." if len(positions) > 8 else "")
