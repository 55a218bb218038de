"""Limits of the system on a process."""

import os
import re
import resource
import signal
import subprocess
import sys

from clickexp.errors import UserError

_ROOM = 512 << 20
"""Bytes of address space that a small run takes beyond a first compiled program."""
_NO_ROOM = ("MemoryError", "annot allocate memory", "failed to map segment")
"""Messages of a process without room that is not aborted."""
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""Signals that end XLA without room."""
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
_TRY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, ({limit}, resource.getrlimit(resource.RLIMIT_AS)[1]))
import clickexp.experiment.run, jax
jax.jit(jax.numpy.sin)(1.0).block_until_ready()
"""


def check_address_space() -> None:
    """Checks that the address space of processes is large enough for XLA, which would abort.

    Another process tries it, since what XLA needs depends on the device and the number of cores.

    Raises:
        UserError: It is too small.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    code = _TRY.format(limit=max(limit - _ROOM, 0))
    command = [sys.executable, "-c", code]
    tried = subprocess.run(  # noqa: S603  # fixed words
        command, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    if not tried.returncode:
        return
    if -tried.returncode in _CRASHES or any(sign in tried.stderr for sign in _NO_ROOM):
        size = f"{limit / 1e9:.3g} GB"
        raise UserError(
            f"XLA cannot start within {size} of address space. Raise the limit (ulimit -v unlimited)."
        )
    lines = [line for line in tried.stderr.splitlines() if line.strip()] or [
        f"exit code {tried.returncode}"
    ]
    errors = [line for line in lines if _ERROR.match(line)]  # a note of JAX may follow
    raise UserError(f"XLA cannot start: {(errors or lines)[-1]}")
