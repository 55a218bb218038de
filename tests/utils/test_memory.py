"""Memory of freed arrays goes back to the system."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
from clickexp.utils.memory import return_freed_arrays, return_freed_memory

def resident():
    status = open("/proc/self/status").read()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024

if sys.argv[1] == "as they are freed":
    return_freed_arrays()
np.ones(1 << 21)  # 16 MiB, whose end makes the C library keep smaller ones
before = resident()
arrays = [np.ones(1 << 18) for _ in range(100)]
kept = arrays[::10]
del arrays
if sys.argv[1] == "later":
    return_freed_memory()
print(resident() - before)
"""


def left(how):
    """MiB that are left of 200 when 20 are kept."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other C libraries")
def test_freed_arrays_are_returned():
    assert left("as they are freed") < 30 < 100 < left("kept")
    assert left("later") < 30
