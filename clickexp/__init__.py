"""clickexp: experiments with click models for web search.

The names below load on first use, so that `import clickexp` alone takes no time.
"""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "clickexp.models": (
        "CascadeModel",
        "ClickChainModel",
        "DependentClickModel",
        "DocumentCTRModel",
        "DocumentRankCTRModel",
        "DynamicBayesianNetwork",
        "GlobalCTRModel",
        "MixtureModel",
        "PositionBasedModel",
        "RankCTRModel",
        "TrustBiasModel",
        "UserBrowsingModel",
    ),
    "clickexp.training": ("EarlyStopping", "Trainer"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> type:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
