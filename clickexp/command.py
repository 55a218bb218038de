"""What the commands have in common: how they end, and their version."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from clickexp import __version__
from clickexp.errors import UserError
from clickexp.escape import printable

VERSION = f"clickexp {__version__}"

STOPPED = 130
"""Exit code of what Ctrl-C ends; those of other signals are larger than SIGNAL, too."""
SIGNAL = 128


@contextlib.contextmanager
def quiet_pipes() -> Iterator[None]:
    """What prints inside ends without a trace when nobody reads on, as in `--help | head`: by SIGPIPE, like others."""
    if not hasattr(signal, "SIGPIPE") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        yield
        sys.stdout.flush()
    finally:
        signal.signal(signal.SIGPIPE, before)


@contextlib.contextmanager
def ending(command: str, stopped: str = "stopped") -> Iterator[None]:
    """Of the commands besides `clickexp`: one clear line for what the user can mend, the rest with its trace."""
    try:
        yield
    except (UserError, OSError) as error:
        print(f"{command}: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{command}: {stopped}", file=sys.stderr)
        sys.exit(STOPPED)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """What a signal stops inside ends with what is registered for the end, but does not take Python apart.

    XLA may still be compiling, in a thread of its own, which would crash the process.
    """
    codes = []

    def leave() -> None:
        if codes:
            sys.stdout.flush()
            os._exit(codes[0])

    atexit.register(leave)  # what is registered later is done before
    try:
        yield
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > SIGNAL:
            codes.append(end.code)
        raise
