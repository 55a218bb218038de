"""Results of runs for a reader: beside each other, as tables, figures and pages; one tidy data frame of many runs.

Nothing here computes metrics. Names load on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
