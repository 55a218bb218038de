"""Threads that do ahead what a process needs later, as long as somebody needs it."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_failed: ContextVar[tuple[threading.Event, ...]] = ContextVar("failed", default=())
"""Set where work has failed that a thread belongs to, the outermost first."""


@contextlib.contextmanager
def work() -> Iterator[None]:
    """A block whose threads end where it fails, so that they do not go on beside what the process does next."""
    failed = threading.Event()
    token = _failed.set((*_failed.get(), failed))
    try:
        yield
    except BaseException:
        failed.set()
        raise
    finally:
        _failed.reset(token)


def start(function: Callable[..., Any], *arguments: Any) -> None:
    """Starts a thread of the work that is being done."""

    def run() -> None:
        with contextlib.suppress(
            SystemExit
        ):  # a thread's end is no fault, and pytest takes it for one
            function(*arguments)

    threading.Thread(target=copy_context().run, args=(run,)).start()


def result_of(function: Callable[..., _Result], *arguments: Any) -> Future[_Result]:
    """Starts a thread of the work that is being done, for its result; whoever asks for that receives its error."""
    found = Future[_Result]()

    def find() -> None:
        try:
            found.set_result(function(*arguments))
        except BaseException as error:
            found.set_exception(error)

    start(find)
    return found


def end_where_needless() -> None:
    """Ends the thread that calls it where its work has failed, or the process ends, which waits for its threads."""
    is_failed = any(failed.is_set() for failed in _failed.get())
    if is_failed or not threading.main_thread().is_alive():
        sys.exit()
