"""Simulated clicks: true users, the lists they see, and datasets of both. Nothing here reads a log of real clicks.

Names load on first use, so that simulated lists do without the reader of learning-to-rank files.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
