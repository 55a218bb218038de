"""The command `clickexp`: it composes a configuration and runs it. Heavy imports wait until a run starts."""

import sys
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from clickexp.cli.help import prints
from clickexp.cli.hosts import follows
from clickexp.experiment.conf import CONF
from clickexp.experiment.hydra_errors import MENDABLE, error_text
from clickexp.experiment.overrides import CommandLine
from clickexp.sweeps.callback import RefusedError, collected, in_sweep
from clickexp.sweeps.job import run_job
from clickexp.utils import exits


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def run(cfg: DictConfig) -> float:
    """Runs one configuration and returns the value of optimized_metric; Hydra calls it once per run."""
    try:
        return run_job(cfg, HydraConfig.get())
    except MENDABLE as error:
        if in_sweep(HydraConfig.get()) or exits.SHOW_TRACE:
            raise  # an exit would end the sweep
        _fail(error)


def start() -> None:
    """Does what the words of the process ask for: one clear line for what the user can mend; else errors pass."""
    try:
        line = CommandLine(sys.argv[1:])
        with collected():
            sys.argv[1:] = line.arguments
            if not (prints(line) or follows(line)):
                run()
    except RefusedError as refused:
        _fail(refused.__cause__)
    except MENDABLE as error:
        if exits.SHOW_TRACE:
            raise
        _fail(error)


def _fail(error: BaseException | None) -> NoReturn:
    """Ends the command with the error in one line, or a few, and the command that mends it where one is known."""
    assert isinstance(error, Exception)  # noqa: S101  # for type checkers
    exits.complain("clickexp", error_text(error, sys.argv[1:]))
    sys.exit(1)
