"""Where a run reports to: a terminal, a file, Weights & Biases, or several at once. Loggers compute nothing.

Names load on first use, so that a run pays only for the backends it uses.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
