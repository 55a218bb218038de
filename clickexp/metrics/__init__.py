"""Metrics as mergeable sums: of click prediction, of rankings, and several in one.

Names load on first use. What a model returns for a batch, and the loop over batches, are in `clickexp.evaluation`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
