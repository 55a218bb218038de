"""What the tests themselves rest on: two tiers, programs that follow the code, and a folder of bounded size."""

import os
import subprocess
import sys

import programs
import pytest
from places import ROOT

FILE = """
import pytest

def test_each_change(): ...

@pytest.mark.nightly
def test_each_night(): ...
"""
WHOLE = """
import pytest

pytestmark = pytest.mark.nightly

raise ImportError("imported")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the configuration of these tests and three tests of its own."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("conftest.py", "programs.py"):
        (folder / name).write_text((ROOT / "tests" / name).read_text())
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n nightly\n as_users\n")
    (folder / "test_some.py").write_text(FILE)
    (folder / "test_whole.py").write_text(WHOLE)
    return folder


@pytest.mark.parametrize(
    "options, selected",
    [
        ([], {"test_each_change"}),
        pytest.param(["-m", "nightly"], {"test_each_night"}, marks=pytest.mark.nightly),
    ],
)
def test_the_nightly_tier_runs_where_it_is_asked_for(project, options, selected):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "-q",
        *options,
    ]
    if options:
        command += ["--ignore", "test_whole.py"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert {line.split("::")[1] for line in done.stdout.splitlines() if "::" in line} == selected


@pytest.mark.nightly
def test_with_all_no_file_is_left_out(project):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "-q",
        "--all",
    ]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert "ImportError: imported" in done.stdout and "test_each_night" in done.stdout


PROGRAM = "import jax; print(jax.jit(lambda x: x {operation} 3)(2.0))"


def test_changed_code_is_compiled_anew_where_programs_are_kept(tmp_path):
    env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    printed, entries = [], []
    for operation in ("*", "+"):
        command = [sys.executable, "-c", PROGRAM.format(operation=operation)]
        printed.append(
            subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
        )
        entries.append(len([*tmp_path.glob("*-cache")]))
    assert printed == ["6.0\n", "5.0\n"]
    assert 0 < entries[0] < entries[1]


def test_programs_that_no_run_has_read_for_longest_are_removed(tmp_path):
    for age, name in enumerate(("newest", "middle", "oldest")):
        file = tmp_path / f"versions/{name}-cache"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(100))
        os.utime(file, (1_000_000 - age, 1_000_000 - age))
    programs.prune(tmp_path, most_bytes=250)
    assert {file.name for file in tmp_path.rglob("*-cache")} == {"newest-cache", "middle-cache"}
    programs.prune(tmp_path / "nothing there", most_bytes=0)
