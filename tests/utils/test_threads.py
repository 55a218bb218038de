"""A thread that works ahead does not keep a process from its end, and ends where its work has failed."""

import subprocess
import sys
import threading
import time

import pytest

from clickexp.utils import threads

CODE = """
import os, threading, time
from clickexp.data.feed import Compiled

class Slow:
    def lower(self, *args):
        return self

    def compile(self):
        os.write(1, b"compiling ")
        time.sleep(0.3)

def ahead():
    for size in range(200):
        program = Compiled.__new__(Compiled)
        program.programs, program.jitted, program._lock = {}, Slow(), threading.Lock()
        program.program()

threading.Thread(target=ahead).start()
time.sleep(0.1)
raise SystemExit(3)
"""


def test_a_process_ends_after_the_program_that_a_thread_compiles():
    """And leaves out most of the next 199, which would take a minute."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 3 and not done.stderr
    assert 0 < done.stdout.count("compiling") < 100


def test_threads_of_work_that_fails_end_and_others_go_on():
    """As of a job of a sweep, beside which the next one runs in the same process."""
    ended, others, inner = (threading.Event() for _ in range(3))

    def until_needless(event):
        try:
            while True:
                threads.end_where_needless()
                time.sleep(0.001)
        finally:
            event.set()

    with pytest.raises(KeyboardInterrupt), threads.work():
        threads.start(until_needless, others)
        with pytest.raises(ValueError, match="diverged"), threads.work():
            threads.start(until_needless, ended)
            raise ValueError("diverged")
        with threads.work():
            threads.start(until_needless, inner)
        assert ended.wait(60) and not (others.wait(0.05) or inner.is_set())
        raise KeyboardInterrupt
    assert others.wait(60) and inner.wait(60)
