"""Threads that do ahead what a process needs later."""

import sys
import threading


def end_with_process() -> None:
    """Ends the thread that calls it where the process ends, which waits for its threads."""
    if not threading.main_thread().is_alive():
        sys.exit()
