"""Strictness for all tests: no silent dtype promotion, warnings are errors (see pyproject.toml)."""

import os
import shutil
import tempfile

# before JAX starts: the processes of one test run, and the commands that tests run, share what they compile
CACHE = "JAX_COMPILATION_CACHE_DIR"
OWN = None if CACHE in os.environ else tempfile.mkdtemp(prefix="clickexp-tests-")
if OWN:
    os.environ[CACHE] = OWN
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_unconfigure() -> None:
    """The process that made the folder removes it."""
    if OWN:
        shutil.rmtree(OWN, ignore_errors=True)
