"""What the system lets a process have."""

import os
import re
import resource
import signal
import subprocess
import sys

from clickexp.errors import UserError

ROOM = 512 << 20
"""Bytes of address space that a small run takes beyond a first compiled program."""
NO_ROOM = ("MemoryError", "annot allocate memory", "failed to map segment")
"""What a process without room says that is not aborted."""
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""How XLA ends without room."""
ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
TRY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, ({limit}, resource.getrlimit(resource.RLIMIT_AS)[1]))
import clickexp.experiment.run, jax
jax.jit(jax.numpy.sin)(1.0).block_until_ready()
"""


def check_address_space() -> None:
    """UserError where the address space of processes is limited to less than XLA needs, which would abort.

    Another process tries it out, since what XLA needs depends on the device and the number of cores.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    code = TRY.format(limit=max(limit - ROOM, 0))
    tried = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, errors="replace"
    )
    if not tried.returncode:
        return
    if -tried.returncode in CRASHES or any(sign in tried.stderr for sign in NO_ROOM):
        size = f"{limit / 1e9:.3g} GB"
        raise UserError(
            f"XLA cannot start within {size} of address space. Raise the limit (ulimit -v unlimited)."
        )
    lines = [line for line in tried.stderr.splitlines() if line.strip()] or [f"exit code {tried.returncode}"]
    errors = [line for line in lines if ERROR.match(line)]  # a note of JAX may follow
    raise UserError(f"XLA cannot start: {(errors or lines)[-1]}")
