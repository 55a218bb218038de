"""A thread that works ahead does not keep a process from its end."""

import subprocess
import sys
import time

CODE = """
import threading, time
from clickexp.data.feed import Compiled

class Slow:
    def lower(self, *args):
        return self

    def compile(self):
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
    """The next 199 would take a minute."""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=50)
    assert done.returncode == 3 and not done.stderr
    assert time.monotonic() - start < 45
