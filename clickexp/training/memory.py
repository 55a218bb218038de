"""How much memory a process has taken."""

import resource
import sys

import jax

_MIB = 1 << 20
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_memory() -> dict[str, float]:
    """Most memory that the process and, where JAX reports it, the device have taken so far, in MiB.

    Runs that share a process share its peaks.
    """
    peaks = {
        "peak_host_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT / _MIB
    }
    reported = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in reported:
        peaks["peak_device_mib"] = reported["peak_bytes_in_use"] / _MIB
    return peaks


def free_device_bytes() -> int | None:
    """Returns the least memory that is free on a device of this process; None where devices do not report it."""
    reports = [device.memory_stats() or {} for device in jax.local_devices()]
    if any("bytes_limit" not in report for report in reports):
        return None
    return min(report["bytes_limit"] - report.get("bytes_in_use", 0) for report in reports)
