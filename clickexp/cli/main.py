"""The command `clickexp`."""

import os

from clickexp.utils import exits


def main() -> None:
    """Runs the command with the arguments of the process."""
    os.environ[exits.FULL_ERROR] = "1"  # lets errors through to here
    with exits.ending("clickexp"):
        from clickexp.cli.experiment import start  # here, since Hydra takes time to load

        start()
