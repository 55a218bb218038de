"""Tiers, compiled programs and strictness of all tests: no silent dtype promotion.

Tests marked `nightly` run with `--all` alone. XLA takes most of the time to compile programs that run once. Hence runs
share a folder of compiled programs (programs.py), and tests compile with little optimization, but for those marked
`as_users`: they check last digits, extremes or the compiled programs themselves, or compute for long.
"""

import collections
import gc
import importlib
import os
from pathlib import Path

import programs

# before JAX starts: the processes of test runs, and the commands that tests run, share what they compile
CACHE = "JAX_COMPILATION_CACHE_DIR"
os.environ.setdefault(CACHE, str(programs.shared_folder()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ["CLICKEXP_CACHE"] = "outputs/cache"  # of the folder of a test, not of the user
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# the files of tests are what runs side by side: XLA need not cut each program in parts for that
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")

PROCESSOR = "processor seconds"
SLOWEST = 10
STARTED = pytest.StashKey[float]()
BEGUN: set[Path] = set()
NIGHTLY_FILE = "pytestmark = pytest.mark.nightly"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="run the tests that are marked nightly, too"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of the nightly tier alone are not even imported without it."""
    if config.option.all or collection_path.suffix != ".py" or config.option.markexpr:
        return None
    return True if f"\n{NIGHTLY_FILE}\n" in collection_path.read_text() else None


def as_users(item: pytest.Item) -> bool:
    return item.get_closest_marker("as_users") is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the nightly tier unless asked for it, and orders the rest.

    Files that wait for their own processes come first, not when the other cores have nothing left to do.
    """
    if not config.option.all and not config.option.markexpr:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    items.sort(key=lambda item: item.path.parent.name not in ("sweeps", "backends"))
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [item for tests in files.values() for item in sorted(tests, key=as_users)]


def pytest_collection_finish() -> None:
    """What is imported by now stays; to look through it repeatedly takes 7% of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Chooses how this test, its fixtures and the commands that it runs compile."""
    item.stash[STARTED] = processor_seconds()
    if item.path not in BEGUN:
        BEGUN.add(item.path)
        module = importlib.import_module("clickexp.utils.programs")  # once its types are checked
        module.forget_programs()
    quickly = not as_users(item)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quickly))
    if jax.config.read("jax_disable_most_optimizations") != quickly:
        jax.config.update("jax_disable_most_optimizations", quickly)
        jax.clear_caches()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item):
    """Notes what the test has cost, its fixtures included."""
    try:
        return (yield)
    finally:
        item.user_properties.append((PROCESSOR, processor_seconds() - item.stash[STARTED]))


def pytest_terminal_summary(terminalreporter) -> None:
    """Processor seconds of folders and of the slowest tests: what else runs hardly changes them."""
    costs = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                costs[report.nodeid] = dict(report.user_properties).get(PROCESSOR, 0.0)
    folders, cases = collections.Counter(), collections.Counter()
    for name, seconds in costs.items():
        folder = str(Path(name.split("::")[0]).parent)
        folders[folder] += seconds
        cases[folder] += 1
    terminalreporter.section("processor seconds")
    for folder, seconds in folders.most_common():
        terminalreporter.write_line(f"{seconds:7.1f} s {cases[folder]:5} {folder}")
    terminalreporter.write_line(f"{costs.total():7.1f} s {len(costs):5} in all; the slowest:")
    for name, seconds in costs.most_common(SLOWEST):
        terminalreporter.write_line(f"{seconds:7.1f} s {name}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The process that others work for tidies up."""
    if not hasattr(config, "workerinput"):
        programs.prune(programs.shared_folder().parent)
