"""Strictness for all tests: no silent dtype promotion, warnings are errors (see pyproject.toml)."""

import os
import shutil
import tempfile
from collections.abc import Iterator

# before JAX starts: the processes of one test run, and the commands that tests run, share what they compile
CACHE = "JAX_COMPILATION_CACHE_DIR"
OWN = None if CACHE in os.environ else tempfile.mkdtemp(prefix="clickexp-tests-")
if OWN:
    os.environ[CACHE] = OWN
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# the files of tests are what runs side by side: XLA need not cut each program in parts for that
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait for processes of their own come first, not when the other cores have nothing left to do."""
    items.sort(key=lambda item: not item.path.name.startswith("test_sweeps_"))


@pytest.fixture(scope="module")
def compiled_quickly() -> Iterator[None]:
    """For modules that compile much, compute little and compare no last digits: XLA leaves out what costs most time."""
    jax.config.update("jax_disable_most_optimizations", True)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    del os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"]


def pytest_unconfigure() -> None:
    """The process that made the folder removes it."""
    if OWN:
        shutil.rmtree(OWN, ignore_errors=True)
