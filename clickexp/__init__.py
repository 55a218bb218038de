"""clickexp: experiments with click models for web search.

Names load on first use, so that `import clickexp` alone takes no time.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
