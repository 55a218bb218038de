"""What the commands have in common: how they end, and their version."""

import atexit
import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from clickexp import __version__
from clickexp.errors import UserError
from clickexp.utils.escape import printable

VERSION = f"clickexp {__version__}"

STOPPED = 130
"""Exit code of what Ctrl-C ends; those of other signals are larger than SIGNAL, too."""
SIGNAL = 128
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR)
"""Errors of a place that cannot be written."""
FULL_ERROR = "HYDRA_FULL_ERROR"
SHOW_TRACE = os.environ.get(FULL_ERROR) == "1"
OF_SYSTEM = (OSError, MemoryError)
"""What the system refuses."""
MOMENT = 0.05
"""Seconds after which a signal that was lost is raised again."""


def reason(error: OSError | MemoryError) -> str:
    """What the system refused, in one line with the remedy, where one is known."""
    if isinstance(error, MemoryError):
        return f"{str(error) or 'Out of memory'}. Use less data or smaller batches, or allow more memory."
    if error.strerror is None:
        return " ".join(str(error).split()) or type(error).__name__
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{error.strerror}{_remedy(error)}"


def _remedy(error: OSError) -> str:
    if error.errno in FULL:
        return ". Free some space, or choose another place."
    unreadable = isinstance(error.filename, str) and os.path.exists(error.filename)
    unreadable = unreadable and not os.access(error.filename, os.R_OK)  # so it was read
    return ". Choose another place." if error.errno in CLOSED and not unreadable else ""


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
    """Of the commands besides `clickexp`: one clear line for what the user can mend, the rest with its trace.

    HYDRA_FULL_ERROR=1 shows the trace of all, as it does of `clickexp`.
    """
    with lasting_output(command), insisting():
        try:
            yield
        except (UserError, *OF_SYSTEM) as error:
            if SHOW_TRACE:
                raise
            text = " ".join(str(error).split()) if isinstance(error, UserError) else reason(error)
            print(f"{command}: {printable(text)}", file=sys.stderr)
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


@contextlib.contextmanager
def insisting() -> Iterator[None]:
    """Lets no signal be lost inside that ends a command by an exception.

    Python drops what is raised in a finalizer or in a callback of the garbage collector, of which JAX has one. Here
    it is raised again a moment later, outside of it.
    """
    before, lost = sys.unraisablehook, []

    def again(*_: object) -> None:
        raise lost.pop()

    def dropped(what: Any) -> None:
        of_signal = issubclass(what.exc_type, KeyboardInterrupt | SystemExit)
        if not of_signal or threading.current_thread() is not threading.main_thread():
            return before(what)
        lost[:] = [what.exc_type(*what.exc_value.args)]
        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, MOMENT)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = before
        if lost:  # another one has come through meanwhile
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def lasting_output(command: str) -> Iterator[None]:
    """Lets what runs inside go on when nobody reads its output any more, as in `| head -1`, or the disk is full.

    A closed pipe is no reason for a message; anything else is, in one line on stderr.
    """
    before = sys.stdout, sys.stderr
    lasting = [
        stream and _Lasting(stream, command) for stream in before
    ]  # None: it was closed from the start
    sys.stdout, sys.stderr = lasting
    try:
        yield
    finally:
        for stream in filter(None, lasting):
            stream.flush()
        sys.stdout, sys.stderr = before


class _Lasting:
    """A stream that writes as long as there is where to."""

    def __init__(self, stream: TextIO, command: str) -> None:
        self._stream, self._command = stream, command

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Sends what is and will be written nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError) and self is sys.stdout:
            print(f"{self._command}: standard output: {error.strerror}; it goes on without", file=sys.stderr)
