"""Strictness for all tests: no silent dtype promotion, warnings are errors (see pyproject.toml).

XLA takes most of their time to compile programs that run once. Hence, for scripts/test.sh, two sorts of tests:
CLICKEXP_TESTS=quick are those that compile without optimization; CLICKEXP_TESTS=as_users are the others, which are
marked: they tell of last digits, extremes, or the compiled programs themselves, or compute for long. Without the
variable all tests compile as for users.
"""

import gc
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

# before JAX starts: the processes of one test run, and the commands that tests run, share what they compile
CACHE = "JAX_COMPILATION_CACHE_DIR"
OWN = None if CACHE in os.environ else tempfile.mkdtemp(prefix="clickexp-tests-")
if OWN:
    os.environ[CACHE] = OWN
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
SORT = os.environ.get("CLICKEXP_TESTS")
# the files of tests are what runs side by side: XLA need not cut each program in parts for that
FLAGS = ["--xla_cpu_parallel_codegen_split_count=1"]
if SORT == "quick":
    if version("jaxlib").split(".")[:2] == ["0", "10"]:  # later ones end at the flag, which they do not know
        FLAGS.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files without a marked test need not be imported for these."""
    if SORT == "as_users" and collection_path.suffix == ".py":
        return "mark.as_users" not in collection_path.read_text() or None


def sort_of(item: pytest.Item) -> str:
    return "as_users" if item.get_closest_marker("as_users") else "quick"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that wait for processes of their own come first, not when the other cores have nothing left to do."""
    items.sort(key=lambda item: item.path.parent.name not in ("sweeps", "backends"))
    if SORT:
        config.hook.pytest_deselected(items=[item for item in items if sort_of(item) != SORT])
        items[:] = [item for item in items if sort_of(item) == SORT]


def pytest_collection_finish() -> None:
    """What is imported by now stays; to look through it again and again takes 7% of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure() -> None:
    """The process that made the folder removes it."""
    if OWN:
        shutil.rmtree(OWN, ignore_errors=True)
