"""Text that one line has room for."""

import re
from collections.abc import Sequence
from typing import Any

_MODULE = re.compile(r"^clickexp\.(\w+\.)*")
Layout = dict[str, str]
"""Values of columns that set pages apart, in the words of the log, such as {"device": "mobile"}."""


def layout_name(layout: Layout) -> str:
    """Returns a layout in words, such as "device mobile"."""
    return ", ".join(f"{name} {value}" for name, value in layout.items())


def without_module(value: Any) -> Any:
    """Returns the name of a class of this package without its modules; any other value as it is."""
    return _MODULE.sub("", value) if isinstance(value, str) else value


def listed(names: Sequence[str], most: int) -> str:
    """Returns the first names, at most so many, and how many more there are: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 list", "2,000 lists"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shortened(text: str, most: int) -> str:
    """Returns the text, or of a longer one the beginning and an ellipsis, so many characters in all."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def byte_size(count: int) -> str:
    """Returns a number of bytes in the unit that suits it, such as "1.5 GiB"."""
    power = min((max(count, 1).bit_length() - 1) // 10, 4)
    return f"{count / (1 << 10 * power):.4g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
