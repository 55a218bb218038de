"""How commands end: exit codes, messages, output that nobody reads."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from clickexp import __version__
from clickexp.errors import OF_SYSTEM, UserError, reason
from clickexp.utils.escape import printable

VERSION = f"clickexp {__version__}"

STOPPED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""
_UNREAD = 128 + signal.SIGPIPE
"""Exit code of a command whose output nobody reads any more."""
FULL_ERROR = "HYDRA_FULL_ERROR"
"""Environment variable of Hydra: 1 shows the trace of every error."""
SHOW_TRACE = os.environ.get(FULL_ERROR) == "1"


def complain(command: str, text: str) -> None:
    """Writes a message of a command to standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"{command}: {text}\n")


@contextlib.contextmanager
def ending(command: str, stopped: str | None = "stopped") -> Iterator[None]:
    """Ends a command: one line for what the user can mend, the rest with its trace.

    HYDRA_FULL_ERROR=1 shows the trace of all. A command whose output nobody reads any more, as in `--help | head`, ends
    without a message.

    Args:
        command: Its name, at the head of messages.
        stopped: The message after Ctrl-C; None for none.
    """
    try:
        with _flushed():
            yield
    except BrokenPipeError:
        sys.exit(_UNREAD)
    except (UserError, *OF_SYSTEM) as error:
        if SHOW_TRACE:
            raise
        complain(command, printable(reason(error)))
        sys.exit(1)
    except KeyboardInterrupt:
        if stopped is not None:
            complain(command, stopped)
        sys.exit(STOPPED)


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Writes what is buffered at the end. What cannot be written is discarded, lest the interpreter try once more."""
    try:
        yield
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            raise
