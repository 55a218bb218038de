"""The command `clickexp-update`: fits a run's model to a further log, with the run's posterior as the prior."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from clickexp.utils import exits

_DESCRIPTION = """\
Fits the model of a run to a new log, with what the run knows as the prior:
documents keep their ids, new ones come behind, and nothing is counted twice.
The run stays as it is. Like clickexp with the settings of the run and prior=RUN.

  clickexp-update outputs/day1 logs/2026-01-02.parquet hydra.run.dir=outputs/day2
  clickexp-update outputs/day1 logs/2026-01-02.parquet prior.half_life=30
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command with the arguments, by default those of the process."""
    with exits.ending("clickexp-update"):
        chosen = _parser().parse_intermixed_args(arguments)
        words = words_of(Path(chosen.run), chosen.log, chosen.overrides)
    from clickexp.cli.main import main as fit  # here, since Hydra takes as long to load as the help

    sys.argv = ["clickexp", *words]
    fit()


def words_of(run: Path, log: str, overrides: Sequence[str]) -> list[str]:
    """Returns the words of `clickexp` that fit the model of a run to a further log.

    Args:
        run: Folder of the run.
        log: Path of the log.
        overrides: Further settings, which count.

    Raises:
        ConfigError: The folder is that of no run, or its run has read no log.
    """
    from clickexp.errors import ConfigError
    from clickexp.experiment.overrides import line_of, parsed, quoted
    from clickexp.runs.settings import LAUNCHING, OF_ONE_UPDATE
    from clickexp.runs.store import CONFIG, OVERRIDES, read_document, read_object

    before = read_document(run / OVERRIDES)
    if not isinstance(before, list):
        raise ConfigError(f"{run}: this is not the folder of a run. Give that of a finished one.")
    stated = {override.get_key_element() for override in parsed(overrides)}
    read = read_object(run / CONFIG).get("dataset") or {}
    if "path" not in read and "dataset" not in stated:
        raise ConfigError(
            f"{run}: its clicks are of no log, which another could follow. Give the run of a log."
        )
    replaced = {"dataset.path", "prior", "continue_from", *OF_ONE_UPDATE}
    kept = [
        line_of(override)
        for override in parsed([str(word) for word in before])
        if override.key_or_group not in replaced
        and not override.key_or_group.startswith(LAUNCHING)
        and override.get_key_element() not in stated
    ]
    path = log.removeprefix("dataset.path=")  # as clickexp takes it
    named = {"dataset.path": path, "prior.run": str(run)}
    return [*kept, *(f"{key}={quoted(path)}" for key, path in named.items()), *overrides]


def _parser() -> argparse.ArgumentParser:
    parser = exits.parser("clickexp-update", _DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="folder of a finished run, or of an update")
    parser.add_argument("log", metavar="LOG", help="file or folder of the new log")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="settings, as of clickexp"
    )
    return parser
