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


THREADS = """
import os
import threading
import numpy as np
from clickexp.utils.memory import share_pools

os.cpu_count = lambda: 2
if SHARED:
    share_pools()

def anonymous():
    status = open("/proc/self/status").read()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024

def use(turn):
    arrays = [np.ones(1 << 13) for _ in range(200)]  # 64 KiB each
    turn.wait()
    kept.append(arrays[-1])  # behind what is freed

kept, before = [], anonymous()
turn = threading.Barrier(8)
threads = [threading.Thread(target=use, args=(turn,)) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
largest = anonymous()
more = [np.ones(1 << 13) for _ in range(1500)]
print(anonymous() - largest)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other C libraries")
@pytest.mark.parametrize(("shared", "low", "high"), [(False, 80, 100), (True, 0, 80)])
def test_what_threads_have_freed_is_used_again(shared, low, high):
    """94 MiB of new arrays take the place of 100 MiB that eight threads have freed, in pools that they share."""
    program = THREADS.replace("SHARED", str(shared))
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert low <= float(done.stdout) < high
