"""What a command does in a process that is not the first of those that share a run."""

from hydra import compose, initialize_config_dir

from clickexp.errors import ConfigError
from clickexp.experiment.conf import CONF
from clickexp.experiment.overrides import CommandLine
from clickexp.experiment.values import current
from clickexp.sweeps.callback import without_hydra
from clickexp.utils import hosts


def follows(given: CommandLine) -> bool:
    """Trains with the first process, unless this is the first.

    Args:
        given: The words of the command.

    Returns:
        Whether it has.

    Raises:
        ConfigError: The command is a sweep, and there are several processes.
    """
    if hosts.count() > 1 and given.options.multirun:
        raise ConfigError(
            f"{hosts.COUNT}={hosts.count()} and -m: processes share a single run. Launchers start those of a sweep: "
            "launcher=slurm hydra.launcher.nodes=2"
        )
    if not hosts.index():
        return False
    from clickexp.experiment.run import follow  # here, since JAX takes a second to import

    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", [*given.searchpath, *given.overrides], return_hydra_config=True)
    with current(cfg):
        follow(without_hydra(cfg), given.overrides)
    return True
