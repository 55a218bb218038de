"""What the system lets a process have."""

import os
import resource
import subprocess
import sys

from clickexp.errors import UserError

ROOM = 512 << 20
"""Bytes of address space that a small run takes beyond a first compiled program."""
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
    if subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode:
        size = f"{limit / 1e9:.3g} GB"
        raise UserError(
            f"XLA cannot start within {size} of address space. Raise the limit (ulimit -v unlimited)."
        )
