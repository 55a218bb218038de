"""Strictness for all tests: no silent dtype promotion, warnings are errors (see pyproject.toml)."""

import os
import tempfile

# before JAX starts: the processes of one test run, and the commands that tests run, share what they compile
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"alone-{os.getpid()}")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{tempfile.gettempdir()}/clickexp-tests-{RUN}")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
