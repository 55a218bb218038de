"""Strictness for all tests: no silent dtype promotion, warnings are errors (see pyproject.toml).

XLA takes most of their time to compile programs that run once. Hence tests compile with little optimization, but for
those marked `as_users`: they check last digits, extremes or the compiled programs themselves, or compute for long.
"""

import gc
import os
import shutil
import tempfile
from pathlib import Path

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


def as_users(item: pytest.Item) -> bool:
    return item.get_closest_marker("as_users") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait for their own processes come first, not when the other cores have nothing left to do."""
    items.sort(key=lambda item: item.path.parent.name not in ("sweeps", "backends"))
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [item for tests in files.values() for item in sorted(tests, key=as_users)]


def pytest_collection_finish() -> None:
    """What is imported by now stays; to look through it repeatedly takes 7% of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Chooses how this test, its fixtures and the commands that it runs compile."""
    quickly = not as_users(item)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quickly))
    if jax.config.read("jax_disable_most_optimizations") != quickly:
        jax.config.update("jax_disable_most_optimizations", quickly)
        jax.clear_caches()


def pytest_unconfigure() -> None:
    """The process that made the folder removes it."""
    if OWN:
        shutil.rmtree(OWN, ignore_errors=True)
