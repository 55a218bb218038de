"""A process does not keep all programs that it has ever compiled."""

import sys

import jax
import pytest

from clickexp.utils import programs


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
@pytest.mark.parametrize(("most", "is_forgotten"), [(10, True), (10**9, False)])
def test_programs_are_forgotten_before_linux_has_no_mapping_left(
    most, is_forgotten, monkeypatch, tmp_path
):
    """Without one, XLA ends the process by a segmentation fault."""
    limit = tmp_path / "max_map_count"
    limit.write_text(f"{most}\n")
    monkeypatch.setattr(programs, "_MOST_MAPPINGS", limit)
    traced = []
    program = jax.jit(lambda x: traced.append(x) or x + 1)
    program(1.0)
    programs.forget_programs()
    program(1.0)
    assert len(traced) == 1 + is_forgotten
