"""Examination that a log leaves open: of positions that no document links with the first one.

The click rate e_p a_d of a document d at position p is that of (c e_p)(a_d / c), too. Where documents with numbers of
their own link positions in groups, each group but the first has a factor c that no clicks determine (see
`clickexp.data.inspect.identifiability`), and the information on it is 0. What is computed of it is the difference of
two large numbers of one size, whose errors may pass for information.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from clickexp.data.inspect.identifiability import Identifiability
from clickexp.models import Model, TrustBiasModel, TwoTowersModel
from clickexp.parameters import PositionParameter
from clickexp.parameters.context import in_new_session
from clickexp.parameters.layouts import LayoutParameter, with_shared_cells
from clickexp.posteriors.documents import table_of_documents
from clickexp.posteriors.intervals import positions_of, towers
from clickexp.posteriors.shared import SharedPosterior
from clickexp.runs.run import RelativeExamination

_UNKNOWN = 100.0
"""Deviation of the logarithm of a factor that a log leaves open."""


def with_open_factors(
    model: Model,
    posterior: SharedPosterior,
    groups: Sequence[Sequence[int]],
) -> SharedPosterior:
    """Returns the posterior with a deviation of 100 of the logarithm of each factor that the log leaves open.

    Args:
        model: A fitted model. If it does not separate examination from attraction, or its attraction is no table of
            documents, the posterior stays as it is: what documents have in common may link positions.
        posterior: Of its shared parameters.
        groups: Positions that documents of the training sessions link, or cells of layouts; see `Identifiability`.
    """
    unknown = _UNKNOWN * open_directions(model, posterior.names, groups)
    if not len(unknown):
        return posterior
    return SharedPosterior(posterior.names, posterior.covariance + unknown.T @ unknown)


def with_known_ratios(
    links: Identifiability, ratios: Iterable[RelativeExamination]
) -> Identifiability:
    """Returns links with the positions as linked whose examination a run knows relative to each other's.

    Args:
        links: Of a log.
        ratios: Of the run.
    """
    cells = links.cells
    known = [ratio for ratio in ratios if ratio.relative_low is not None]
    if cells is None:
        return links.merged({ratio.position for ratio in known})
    own = [ratio for ratio in known if {*ratio.layout} == {*cells.names}]
    return links.merged({cells.cell(ratio.layout, ratio.position) for ratio in own})


def open_directions(
    model: Model,
    names: tuple[str, ...],
    groups: Sequence[Sequence[int]] = (),
    *,
    scale: bool = False,
) -> Float[np.ndarray, "directions numbers"]:
    """Returns how shared parameters move by changes that clicks do not show; none where `with_open_factors` has none.

    Args:
        model: A fitted model.
        names: Of the parameters.
        groups: Positions that documents link.
        scale: Whether the change of all positions alike counts, which also moves attraction.
    """
    directions = {}
    if model.separates_examination and _has_table_of_documents(model):
        directions = _directions(with_shared_cells(model), names, groups)
    chosen = [moved for (group, _), moved in directions.items() if group > 0 or scale]
    return np.array(chosen).reshape(-1, len(names))


def _directions(
    model: Model, names: tuple[str, ...], groups: Sequence[Sequence[int]]
) -> dict[tuple[int, str], Float[np.ndarray, " numbers"]]:
    """Returns how shared parameters move by each change of the positions of each group."""
    group_of = {position: number for number, group in enumerate(groups) for position in group}
    place_of = {name: place for place, name in enumerate(names)}
    directions = defaultdict(lambda: np.zeros(len(names)))
    for number in _numbers(model, names):
        group = group_of.get(number.position, 0)
        for change, moved in _moved(model, number).items():
            directions[group, change][place_of[number.name]] = moved
    return directions


def factors(model: Model, names: tuple[str, ...]) -> list[str]:
    """Returns the numbers whose s(z) is a factor of click rates, of which clicks tell ratios: examination by position.

    Args:
        model: A fitted model.
        names: Those of its shared numbers to choose from.
    """
    if not (model.separates_examination and _has_table_of_documents(model)):
        return []
    if isinstance(model, TwoTowersModel | TrustBiasModel):
        return []
    return [
        f"{name}[{place}]"
        for _, name, tower, places in towers(model, "", set(names))
        if isinstance(tower, PositionParameter)
        for place in places
    ]


class _Number(NamedTuple):
    """A shared number of a position.

    Attributes:
        name: As posteriors call it.
        role: Of its tower.
        position: The position, or the cell of a layout.
        rates: Probabilities at the same place by role.
    """

    name: str
    role: str
    position: int
    rates: Mapping[str, float]


def _numbers(model: Model, names: tuple[str, ...]) -> Iterator[_Number]:
    """Yields the numbers of towers of positions, by position alone or also by the last click above."""
    rates: dict[int, dict[str, float]] = defaultdict(dict)
    numbers = []
    for role, name, tower, places in towers(model, "", set(names)):
        if not isinstance(tower, LayoutParameter | PositionParameter) or (
            isinstance(tower, PositionParameter)
            and tower.config.use_feature not in ("positions", *model.indices())
        ):
            continue
        probabilities = expit(np.ravel(tower.of_cells(np.arange(tower.cells.count))))
        for place, key in zip(places, positions_of(model, tower, places), strict=True):
            rates[place][role] = float(probabilities[place])
            numbers.append(_Number(f"{name}[{place}]", role, key.position or 0, rates[place]))
    yield from numbers


def _moved(model: Model, number: _Number) -> dict[str, float]:
    """Returns by how much changes that clicks do not show move a logit, by the change.

    A factor c of P(click | attractive) moves the logit of e by dc / (1 - e). Two towers add logits, so that one takes
    up a shift of the other. In the trust-bias model, t and f take up a shift of attraction, too, by t - f.
    """
    if isinstance(model, TwoTowersModel):
        return {"shift": 1.0}
    if not isinstance(model, TrustBiasModel):
        return {"factor": 1 / (1 - number.rates[number.role])}
    rate = number.rates[number.role]
    slope = number.rates.get("true_positive", 0.0) - number.rates.get("false_positive", 0.0)
    moved = slope / (rate * (1 - rate))
    return {"shift": moved, "factor": moved} if number.role == "true_positive" else {"shift": moved}


def _has_table_of_documents(model: Model) -> bool:
    tower = in_new_session(getattr(model, "attraction", None))[1]
    return table_of_documents(tower) is not None
