from .loading import Run as Run
from .loading import Skipped as Skipped
from .loading import find_runs as find_runs
from .loading import load as load
