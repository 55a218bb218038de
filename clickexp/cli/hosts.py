"""The part of a process that is not the first of those that share a run."""

from clickexp.errors import ConfigError
from clickexp.experiment.overrides import CommandLine
from clickexp.utils import hosts


def follows(line: CommandLine) -> bool:
    """Trains with the first process, unless this is the first.

    Args:
        line: The words of the command.

    Returns:
        Whether it has.

    Raises:
        ConfigError: The command is a sweep, and there are several processes.
    """
    if hosts.count() > 1 and line.options.multirun:
        raise ConfigError(
            f"{hosts.COUNT}={hosts.count()} and -m: processes share a single run. Launchers start those of a sweep: "
            "launcher=slurm hydra.launcher.nodes=2"
        )
    if not hosts.index():
        return False
    from clickexp.experiment.api import follow  # here, since JAX takes a second to import

    follow(line)
    return True
