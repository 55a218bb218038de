"""How much memory a process has taken."""

import resource
import sys

import jax

MIB = 1 << 20
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_memory() -> dict[str, float]:
    """Most memory so far of the process and, where JAX tells, of the accelerator, in MiB.

    Runs that share a process share its peaks.
    """
    peaks = {"peak_host_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT / MIB}
    told = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in told:
        peaks["peak_device_mib"] = told["peak_bytes_in_use"] / MIB
    return peaks
