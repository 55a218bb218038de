"""The command `clickexp`."""

import gc
import os

from clickexp.utils import exits
from clickexp.utils.memory import share_pools

_ALLOCATIONS = 50_000
"""From one search for garbage to the next. Imports and tracing make many objects that stay, and Python would look at
them at every 700th: a tenth of the processor time of a small run."""


def main() -> None:
    """Runs the command with the arguments of the process."""
    gc.set_threshold(_ALLOCATIONS)
    share_pools()
    os.environ[exits.FULL_ERROR] = "1"  # lets errors through to here
    with exits.ending("clickexp"):
        from clickexp.cli.experiment import start  # here, since Hydra takes time to load

        start()
