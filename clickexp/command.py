"""How commands end."""

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator

from clickexp.errors import UserError
from clickexp.escape import printable

STOPPED = 130
"""Exit code of what Ctrl-C ends; those of other signals are larger than SIGNAL, too."""
SIGNAL = 128


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
