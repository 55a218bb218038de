"""How commands end: exit codes, lost output, signals."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

from clickexp import __version__
from clickexp.errors import OF_SYSTEM, UserError, reason
from clickexp.utils.escape import printable

VERSION = f"clickexp {__version__}"

STOPPED = 130
"""Exit code after Ctrl-C; those of other signals are larger than _SIGNAL, too."""
FULL_ERROR = "HYDRA_FULL_ERROR"
"""Environment variable of Hydra: 1 shows the trace of every error."""
SHOW_TRACE = os.environ.get(FULL_ERROR) == "1"
_SIGNAL = 128
_MOMENT = 0.05
"""Seconds after which a lost signal is raised again."""


def complain(command: str, text: str) -> None:
    """Writes a message of a command to standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"{command}: {text}\n")


@contextlib.contextmanager
def printing(command: str) -> Iterator[None]:
    """Runs code that only prints, such as --help.

    It ends without a trace when nobody reads on, as in `--help | head`: by SIGPIPE, like other programs; and with an
    error where its output is lost.
    """
    with lasting_output(command, prints=True):
        if (
            not hasattr(signal, "SIGPIPE")
            or threading.current_thread() is not threading.main_thread()
        ):
            yield
            return
        before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            yield
        finally:
            sys.stdout.flush()
            signal.signal(signal.SIGPIPE, before)


@contextlib.contextmanager
def ending(command: str, stopped: str = "stopped", *, prints: bool = False) -> Iterator[None]:
    """Ends a command other than `clickexp`: one line for what the user can mend, the rest with its trace.

    HYDRA_FULL_ERROR=1 shows the trace of all, as it does of `clickexp`.

    Args:
        command: Its name, at the head of messages.
        stopped: The message after Ctrl-C.
        prints: As in `lasting_output`.
    """
    with lasting_output(command, prints=prints), insisting():
        try:
            yield
        except (UserError, *OF_SYSTEM) as error:
            if SHOW_TRACE:
                raise
            complain(command, printable(reason(error)))
            sys.exit(1)
        except KeyboardInterrupt:
            complain(command, stopped)
            sys.exit(STOPPED)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Ends a process that a signal stops after its exit handlers, without the interpreter's own shutdown.

    XLA may still be compiling, in another thread, which would crash the process.
    """
    codes = []

    def leave() -> None:
        if codes:
            sys.stdout.flush()
            os._exit(codes[0])

    atexit.register(leave)  # handlers that are registered later run before
    try:
        yield
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > _SIGNAL:
            codes.append(end.code)
        raise


@contextlib.contextmanager
def insisting() -> Iterator[None]:
    """Raises again, a moment later, the exception of a signal that Python drops.

    It drops what is raised in a finalizer or in a callback of the garbage collector, of which JAX has one.
    """
    before, lost = sys.unraisablehook, []

    def again(*_: object) -> None:
        raise lost.pop()

    def dropped(what: Any) -> None:
        of_signal = issubclass(what.exc_type, KeyboardInterrupt | SystemExit)
        if not of_signal or threading.current_thread() is not threading.main_thread():
            before(what)
            return
        lost[:] = [what.exc_type(*what.exc_value.args)]
        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, _MOMENT)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = before
        if lost:  # another one has come through meanwhile
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def lasting_output(command: str, *, prints: bool = False) -> Iterator[None]:
    """Lets a command go on when nobody reads its output any more, as in `| head -1`, or the disk is full.

    A closed pipe is no reason for a message; anything else is, in one line on stderr.

    Args:
        command: Its name, at the head of the message.
        prints: Its output is its purpose: losing it ends the command, once it is through, with exit code 1.
    """
    if isinstance(sys.stdout, _Lasting):  # inside another
        sys.stdout.prints |= prints
        yield
        return
    before = sys.stdout, sys.stderr
    # a stream is None that was closed from the start
    out, err = (stream and _Lasting(stream, command, prints) for stream in before)
    sys.stdout, sys.stderr = out, err  # pyright: ignore[reportAttributeAccessIssue]  # it answers as a stream does
    try:
        yield
    finally:
        for stream in filter(None, (out, err)):
            stream.flush()
        sys.stdout, sys.stderr = before
        if out and out.prints and out.lost:
            sys.exit(1)


class _Lasting:
    """A stream that writes as long as there is where to."""

    def __init__(self, stream: TextIO, command: str, prints: bool) -> None:
        self._stream, self._command, self.prints, self.lost = stream, command, prints, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Discards the output of the past, if buffered, and of the future."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError) or self is not sys.stdout:
            return
        self.lost = True
        goes_on = "" if self.prints else "; it goes on without"
        complain(self._command, f"standard output: {error.strerror}{goes_on}")
