"""The space of a search: what Hydra's intervals, ranges and choices mean to Optuna."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.types import HydraContext
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from clickexp.errors import ConfigError

Space = dict[str, BaseDistribution]
"""Distributions by the key of their override."""


def read_space(words: Sequence[str], context: HydraContext, grid: bool) -> tuple[list[str], Space]:
    """Separates overrides that all trials have from those to search over.

    Args:
        words: The overrides of a sweep; of those with one key the last counts.
        context: Hydra's.
        grid: Take every value as it is written.

    Raises:
        ConfigError: There is nothing to search over, or nothing that Optuna can.
    """
    parsed = OverridesParser.create(config_loader=context.config_loader).parse_overrides(
        list(words)
    )
    last = {override.get_key_element().lstrip("+~"): override for override in parsed}.values()
    fixed = [str(override.input_line) for override in last if not override.is_sweep_override()]
    space = {o.get_key_element(): _distribution(o, grid) for o in last if o.is_sweep_override()}
    if not space:
        raise ConfigError(
            "there is nothing to search over: give key='interval(0.1,1)' or key=a,b,c, as in "
            "clickexp -m search=tpe 'optimizer.learning_rate=interval(0.1,1)'"
        )
    return fixed, space


def overrides(params: Mapping[str, Any]) -> list[str]:
    """Returns a point as overrides, its numbers in six digits: closer than any search gets, and easy to type."""
    return [
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in params.items()
    ]


def ends(space: Space) -> Iterator[dict[str, Any]]:
    """Yields points that have every choice, and both ends of every interval, at least once."""
    values = {name: _end_values(distribution) for name, distribution in space.items()}
    first = {name: choices[0] for name, choices in values.items()}
    yield first
    for name, choices in values.items():
        yield from ({**first, name: choice} for choice in choices[1:])


def _distribution(override: Override, grid: bool) -> BaseDistribution:
    value, key = override.value(), override.get_key_element()
    log = "log" in getattr(value, "tags", ())
    if isinstance(value, IntervalSweep) and grid:
        raise ConfigError(
            f"{override.input_line}: a grid has no intervals; give range(...) or a,b,c"
        )
    try:
        if isinstance(value, IntervalSweep):
            return _numbers(value.start, value.end, None, log)
        if isinstance(value, RangeSweep) and not grid:
            values = list(value.range())
            return _numbers(min(values), max(values), abs(value.step), log)
        return CategoricalDistribution([str(choice) for choice in override.sweep_string_iterator()])
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def _numbers(low: Any, high: Any, step: Any, log: bool) -> BaseDistribution:
    if all(isinstance(number, int | None) for number in (low, high, step)):
        return IntDistribution(low, high, log=log, step=step or 1)
    return FloatDistribution(float(low), float(high), log=log, step=step and float(step))


def _end_values(distribution: BaseDistribution) -> list[Any]:
    """Returns every choice, or both ends; of an interval of fractions just inside, since 0 may only be its limit."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)  # noqa: S101  # there is no other
    low, high = distribution.low, distribution.high
    inside = (
        1e-3 * (high - low)
        if isinstance(distribution, FloatDistribution) and not distribution.step
        else 0
    )
    return [low + inside, high - inside]
