"""Differences between accelerators and CPUs: precision, and known faults of software."""

import functools
import warnings
from importlib.metadata import version

import jax

_SLOW_SCATTER = ("0.10.2", "0.11.0")
"""First and last jaxlib that compiles float32 scatter-add for NVIDIA GPUs to a compare-and-swap loop (jax 38806)."""


def is_cuda() -> bool:
    """Whether JAX runs on NVIDIA GPUs, which it calls by the same name as AMD's."""
    return (
        jax.default_backend() == "gpu"
        and "cuda" in jax.devices()[0].client.platform_version.lower()
    )


def slow_scatter() -> str | None:
    """Returns fault and remedy, where adding gradients to table rows is hundreds of times slower than it can be."""
    jaxlib = version("jaxlib")
    first, last = map(_version, _SLOW_SCATTER)
    if not (first <= _version(jaxlib) <= last and is_cuda()):
        return None
    return (
        f"jaxlib {jaxlib} adds floats on NVIDIA GPUs hundreds of times slower than it can; "
        "use Python 3.12 or later with jax 0.11.2 or later: PYTHON=python3.12 bash scripts/run.sh, or "
        "pip install -U 'jax[cuda12]>=0.11.2'"
    )


def keep_precision() -> None:
    """Multiplies matrices in float32, which JAX has accelerators round to fewer bits unless one has chosen."""
    chosen = jax.config.values["jax_default_matmul_precision"]
    if chosen is None and jax.default_backend() != "cpu":
        jax.config.update("jax_default_matmul_precision", "float32")


@functools.cache
def warn_of_faults() -> None:
    """Warns once per process."""
    if fault := slow_scatter():
        warnings.warn(fault, RuntimeWarning, stacklevel=3)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
