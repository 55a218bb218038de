"""How commands end: exit codes, messages, output that nobody reads."""

import argparse
import atexit
import contextlib
import logging
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TextIO

from clickexp import __version__
from clickexp.errors import OF_SYSTEM, DataError, UserError, lines_of
from clickexp.utils.escape import printable_lines

VERSION = f"clickexp {__version__}"

STOPPED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""
INTERRUPTED = threading.Event()
"""Set after Ctrl-C."""
_PRESSED = threading.Event()
"""Set from Ctrl-C to the end of the command."""
_IMPORTING = threading.Event()
"""Set while a command imports what it needs."""
_LATER = 0.1
"""Seconds until a Ctrl-C that was ignored comes again."""
FULL_ERROR = "HYDRA_FULL_ERROR"
"""Environment variable of Hydra: 1 shows the trace of every error."""
SHOW_TRACE = os.environ.get(FULL_ERROR) == "1"


def parser(command: str, description: str) -> argparse.ArgumentParser:
    """Returns the parser of a command, whose description keeps its lines, with --version."""
    described = argparse.ArgumentParser(
        command, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    described.add_argument("--version", action="version", version=VERSION)
    return described


def complain(command: str, text: str) -> None:
    """Writes a message of a command to standard error, its lines printable."""
    if sys.stderr is not None:
        sys.stderr.write(printable_lines(f"{command}: {text}") + "\n")


def again(command: str, words: Sequence[str], options: Mapping[str, str | None]) -> str:
    """A command with other options.

    Args:
        command: Its name.
        words: Its arguments.
        options: Values by key, in place of those that it has; None leaves an option out.
    """
    kept = [word for word in words if word.partition("=")[0] not in options]
    stated = {key: value for key, value in options.items() if value is not None}
    if words[:1] == ["prepare"] and "format" in stated:  # there it has a place, and no key
        kept[1] = stated.pop("format")
    return shlex.join([command, *kept, *(f"{key}={value}" for key, value in stated.items())])


@contextlib.contextmanager
def ending(
    command: str, stopped: str = "stopped", words: Sequence[str] | None = None
) -> Iterator[None]:
    """Ends a command: one line for what the user can mend, the rest with its trace.

    HYDRA_FULL_ERROR=1 shows the trace of all. A command whose output nobody reads any more, as in `--help | head`, goes
    on without it.

    Args:
        command: Its name, at the head of messages.
        stopped: The message after Ctrl-C, unless the interruption comes with one.
        words: Its arguments, by default those of the process.
    """
    try:
        with _interruptible(), _piped():
            yield
    except (UserError, *OF_SYSTEM) as error:
        if SHOW_TRACE:
            raise
        lines = lines_of(error)
        if isinstance(error, DataError) and error.options:
            lines.append(f"next: {again(command, words or sys.argv[1:], error.options)}")
        complain(command, "\n".join(lines))
        sys.exit(1)
    except KeyboardInterrupt as stop:
        complain(command, str(stop) or stopped)
        INTERRUPTED.set()
        # else they keep arrays and programs of JAX until the interpreter is gone, where freeing them crashes
        traceback.clear_frames(stop.__traceback__)
        sys.exit(STOPPED)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Has Ctrl-C end the block wherever it falls.

    Python ignores errors in callbacks of the garbage collector, and a library may make an error of another kind of it,
    as of an import that it has cut off.
    """
    before, handler = sys.unraisablehook, signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        waits = _IMPORTING.is_set() and not _PRESSED.is_set()
        _PRESSED.set()
        if not waits:
            signal.default_int_handler(number, frame)

    def again(ignored: Any) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            threading.Timer(_LATER, _press_again).start()
        else:
            before(ignored)

    sys.unraisablehook = again
    # another handler stays, such as of a process in the background, and other threads receive no signals
    is_default = handler is signal.default_int_handler
    if is_default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if _PRESSED.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        atexit.register(_end_at_once if _PRESSED.is_set() else _ignore_interruptions)
        _PRESSED.clear()
        sys.unraisablehook = before
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Has Ctrl-C wait for the end of imports, unless it comes twice.

    Where it falls into compiled code, this prints its trace, crashes, or makes an ImportError of it, which JAX takes
    for a library that is not installed: the command went on.
    """
    _IMPORTING.set()
    try:
        yield
    finally:
        _IMPORTING.clear()
    if _PRESSED.is_set():
        raise KeyboardInterrupt


def _press_again() -> None:
    """Sends Ctrl-C to a command that has not ended since; Python ends with a signal that comes later."""
    if not INTERRUPTED.is_set():
        os.kill(os.getpid(), signal.SIGINT)


def _ignore_interruptions() -> None:
    """Lets the interpreter end: the work of the command is done, and Ctrl-C would print traces of libraries."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_at_once() -> None:
    """Has a second Ctrl-C end the process, whatever libraries wait for in its end."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(STOPPED))


@contextlib.contextmanager
def _piped() -> Iterator[None]:
    """Replaces standard output and standard error, and writes what is buffered at the end."""
    logging.raiseExceptions = False  # else each line that is lost comes with a trace
    before = sys.stdout, sys.stderr
    # a stream is None that was closed from the start
    sys.stdout, sys.stderr = (stream and _Piped(stream) for stream in before)  # pyright: ignore[reportAttributeAccessIssue]  # it answers as a stream does
    try:
        yield
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            _discard(before[0])  # lest the interpreter try once more
            raise
        finally:
            sys.stdout, sys.stderr = before


class _Piped:
    """A stream whose text is discarded once nobody reads it any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except BrokenPipeError:
            _discard(self._stream)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            _discard(self._stream)


def _discard(stream: TextIO) -> None:
    """Discards the text of a stream, what is buffered and what follows."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
