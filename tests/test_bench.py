"""scripts/bench/gpu.py runs, and finds in compiled programs copies of tables and loops of unknown length."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from places import ROOT

pytestmark = pytest.mark.nightly
ROWS = 7


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts/bench")
    return pytest.importorskip("gpu")


def compiled(function, *arguments, **options):
    """The text of a program, as the script reads it."""
    return jax.jit(function, **options).lower(*arguments).compile().as_text()


def add(table, ids):
    return table.at[ids].add(1.0)


def test_copies_of_a_table_are_found_and_nothing_else(gpu):
    table, ids = jnp.zeros((ROWS + 1, 4)), jnp.array([1, 2])
    kept, in_place = compiled(add, table, ids), compiled(add, table, ids, donate_argnums=0)
    assert gpu.copies(kept, ROWS) == 1  # the caller keeps the table, so the sum needs another
    assert gpu.copies(in_place, ROWS) == 0
    assert gpu.copies(kept, ROWS + 1) == 0  # of another size


def test_copies_in_the_form_of_other_backends_are_found(gpu):
    """A GPU copies in two instructions and gives types a layout, in a tuple."""
    start = "  %copy-start.1 = (f32[8,4]{1,0}, f32[8,4]{1,0}, u32[]) copy-start(%p)"
    done = "  ROOT %copy-done.1 = f32[8,4]{1,0} copy-done(%copy-start.1)"
    assert gpu.copies(start, ROWS) == gpu.copies(done, ROWS) == 1
    assert gpu.copies("  %add.1 = f32[8,4]{1,0} add(%copy.1, %p)", ROWS) == 0


def test_loops_of_unknown_length_are_found_and_nothing_else(gpu):
    table = jnp.ones((ROWS + 1, 4))
    known = compiled(lambda t: jax.lax.fori_loop(0, 5, lambda _, t: t * 2 + jnp.sin(t), t), table)
    unknown = compiled(
        lambda t: jax.lax.while_loop(lambda t: t.sum() < 9, lambda t: t * 2 + 1, t), table
    )
    assert " while(" in known and gpu.unknown_loops(known) == 0
    assert " while(" in unknown and gpu.unknown_loops(unknown) == 1
    assert gpu.kernels(known) > 0 and gpu.kernels(compiled(jnp.sin, table)) == 0


SECTIONS = {"memory": 2, "rows": 4, "steps": 3, "around": 3, "feed": 3, "jobs": 2}
"""Rows of the table of each section."""


@pytest.mark.timeout(580)
@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_measures_on_two_devices_of_a_cpu(section, tmp_path):
    """As it does on GPUs, with small tables."""
    program = [sys.executable, str(ROOT / "scripts/bench/gpu.py"), "--small", "--sections", section]
    devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    environment = {**os.environ, **devices, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|")[2:-1] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + SECTIONS[section]
    assert all(float(cell) >= 0 for row in rows[1:] for cell in row), done.stdout
