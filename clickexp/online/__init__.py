"""Rankers judged by users: A/B tests and interleaving, with any click model as the user.

Comparisons on labels and logged clicks are in `clickexp.results`. Names load on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
