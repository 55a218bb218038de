"""Readers that turn each format into packed sessions, and the loader that feeds them to training.

The names below load on first use, so that a run pays only for the reader of its format.
"""

import importlib
from typing import Any

_HOMES = {
    "baidu": ("open_baidu_ultr_uva",),
    "csv": ("open_csv",),
    "dataset": ("Dataset", "keep_queries_seen", "split"),
    "features": ("Features",),
    "formats": ("FORMATS",),
    "impressions": ("open_impressions",),
    "letor": ("open_letor",),
    "loader": ("Superbatch", "superbatches"),
    "log": ("Log", "LogWriter", "log_format", "open_prepared", "prepare"),
    "pack": ("PackWriter",),
    "parquet": ("open_parquet",),
    "schema": ("DataError", "Place"),
    "sessions": ("Sessions",),
    "tiangong_st": ("open_tiangong_st",),
    "yandex": ("open_yandex",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
