"""Numbers as text: the one rule by which all tables round."""

import math
from collections.abc import Sequence

MISSING = "–"
DECIMALS = 4
"""Decimals of numbers without an uncertainty, and of the ends of intervals at most."""
FINE = 6
"""Decimals at most of differences, which paired tests tell apart beyond the error of the test set."""
SIGNIFICANT = 0.05
"""P-values below it are of significant differences."""
STARS = {0.01: "**", SIGNIFICANT: "*"}
"""Marks of p-values below a limit."""
_LEAST_P = 0.001
"""P-values are shown down to here."""
_LARGE = 1e15
"""Numbers from here on, and those below its inverse, have an exponent."""
_END_ERROR = 0.0216
"""Standard error of an end of a 95% interval by 1,000 resamples of a normal quantity, over the interval's width."""


def number(value: float | None, decimals: int = DECIMALS, missing: str = MISSING) -> str:
    """Returns a number with so many decimals; counts whole; `missing` for None and nan."""
    if value is None or not math.isfinite(value):
        return missing
    return f"{value:,}" if isinstance(value, int) else _fixed(value, decimals)


def interval(low: float | None, high: float | None) -> str:
    """Returns both ends, the last decimal about as large as the error of resampling; empty without an end."""
    if low is None or high is None:
        return ""
    error = _END_ERROR * (high - low)
    decimals = DECIMALS
    if math.isfinite(error) and error > 0:
        decimals = min(max(round(-math.log10(error)), 0), DECIMALS)
    return f"{number(low, decimals)} to {number(high, decimals)}"


def p_value(p: float) -> str:
    """Returns a p-value, below 0.001 as such, with three decimals or more where these would pass a limit of `STARS`."""
    if p < _LEAST_P:
        return f"< {_LEAST_P}"
    decimals = DECIMALS - 1
    while any((float(f"{p:.{decimals}f}") < limit) != (p < limit) for limit in STARS):
        decimals += 1
    return f"{p:.{decimals}f}"


def count(value: float) -> str:
    """Returns a count in three digits: 950, 12.3k, 2.00M; a dash for nan and inf."""
    if not math.isfinite(value):
        return MISSING
    if value >= _LARGE:
        return f"{value:.2e}"
    mantissa, exponent = f"{value:.2e}".split("e")
    thousands, shift = divmod(max(int(exponent), 0), 3)
    if not thousands:
        return f"{value:.0f}"
    return f"{float(mantissa) * 10**shift:.{2 - shift}f}{'kMGT'[thousands - 1]}"


def rounded(
    values: Sequence[float],
    uncertainties: Sequence[float],
    sign: str = "",
    more: int = 0,
    most: int = DECIMALS,
) -> list[tuple[str, str]]:
    """Returns text of each number of a column and of its uncertainty, with the decimals that uncertainties leave.

    Args:
        values: The numbers; nan becomes MISSING.
        uncertainties: One for each. The smallest one that is shown gives the decimals of the column; without any these
            are `most`, or four. One that is 0 to `most` decimals is not shown. A number without one, whose decimals are
            zeros, has its first digit.
        sign: "+" shows the sign of all.
        more: Decimals beyond those, where the uncertainty is not that of differences between rows.
        most: Decimals at most.
    """
    shown = [math.isfinite(error) and error >= 0.5 * 10.0**-most for error in uncertainties]
    places = [
        _decimals(error) + more
        for error, is_shown in zip(uncertainties, shown, strict=True)
        if is_shown
    ]
    decimals = min(max(places, default=DECIMALS), most)

    def text(value: float, is_shown: bool) -> str:
        digits = _fixed(value, decimals, sign)
        if is_shown or not value or float(digits):
            return digits
        if abs(value) < 1 / _LARGE:
            return f"{value:{sign}.0e}"
        return _fixed(value, -math.floor(math.log10(abs(value))), sign)

    return [
        (text(value, is_shown), _fixed(error, decimals) if is_shown else "")
        if math.isfinite(value)
        else (MISSING, "")
        for value, error, is_shown in zip(values, uncertainties, shown, strict=True)
    ]


def _fixed(value: float, decimals: int, sign: str = "") -> str:
    kind = "f" if abs(value) < _LARGE else "e"
    return f"{value:{sign}.{decimals}{kind}}"


def _decimals(uncertainty: float) -> int:
    """Returns decimals of a number with this uncertainty: those of its first digit, or of its second after a 1."""
    digit, exponent = f"{uncertainty:.1e}".split("e")
    return max((1 if digit[0] == "1" else 0) - int(exponent), 0)


def standing(texts: Sequence[str], direction: int) -> list[int]:
    """Returns 1 for the best of the numbers as shown, 2 for the second, else 0; all 0 without a choice."""
    shown = sorted({float(text) for text in texts if text != MISSING}, reverse=direction > 0)
    if not direction or len(shown) < 2:
        return [0] * len(texts)
    places = {shown[0]: 1, shown[1]: 2}
    return [0 if text == MISSING else places.get(float(text), 0) for text in texts]
