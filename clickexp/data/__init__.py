"""Click logs: readers of each format, packed sessions, datasets, and the loader that feeds them to training.

Nothing here knows a click model. Names load on first use, so that a run pays only for the reader of its format.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
