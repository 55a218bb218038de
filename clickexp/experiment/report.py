"""The page of a finished run, with its settings and its command."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from clickexp.errors import with_class
from clickexp.experiment.differences import changed_settings, command_of
from clickexp.runs.run import Run
from clickexp.utils.paths import display_path

log = logging.getLogger(__name__)


def write_page(finished: Run, overrides: Sequence[str]) -> tuple[Path, Mapping[str, str]]:
    """Writes report.html into the folder of a run, and returns it with its figures as SVG by name.

    Args:
        finished: The run.
        overrides: Those of the run.
    """
    # here, since what it imports takes long
    from clickexp.results.pages.write import write_report

    return write_report(finished, [*changed_settings(overrides)], command_of(overrides))


def report_later(finished: Run) -> str:
    """Writes the page of a run that was ended before it had one, and returns a line on where it is, or why it is not.

    Args:
        finished: The run, read from its folder.
    """
    try:
        page, _ = write_page(finished, finished.words)
        return f"report: {display_path(page)}"
    except Exception as error:  # the result is there: nothing that goes wrong here may end a sweep
        return without_page(error)


def without_page(error: Exception) -> str:
    """Returns why there is no page; the trace goes to the log."""
    log.debug("no report", exc_info=True)
    return f"no report was written ({with_class(error)})"
