"""The formats of logs, by the names that `dataset=` and `clickexp-data` use."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

_OPENERS = {
    "baidu_ultr_uva": "clickexp.data.readers.baidu:open_baidu_ultr_uva",
    "counts": "clickexp.data.readers.counts:open_counts",
    "impressions": "clickexp.data.readers.impressions:open_impressions",
    "letor": "clickexp.simulation.letor:open_letor",
    "lists": "clickexp.data.readers.lists:open_lists",
    "tiangong_st": "clickexp.data.readers.tiangong_st:open_tiangong_st",
    "yandex": "clickexp.data.readers.yandex:open_yandex",
}


class _Formats(Mapping[str, Any]):
    """Openers by format, imported when they are asked for: that of letor simulates clicks, and takes a second."""

    def __getitem__(self, format: str) -> Any:
        module, _, name = _OPENERS[format].partition(":")
        return getattr(import_module(module), name)

    def __contains__(self, format: object) -> bool:
        return format in _OPENERS

    def __iter__(self) -> Iterator[str]:
        return iter(_OPENERS)

    def __len__(self) -> int:
        return len(_OPENERS)


FORMATS = _Formats()
"""The opener of each format."""
