"""The content of code of one's own, by the name of a class or function."""

import pytest

from clickexp.utils.content import content_of_target


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The file of a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "own_module_of_towers.py"


@pytest.mark.parametrize("name", ["Tower", "Tower.of"])
def test_an_edit_of_a_class_changes_it(module, name):
    module.write_text("class Tower:\n    of = 1\n")
    before = content_of_target(f"{module.stem}.{name}")
    module.write_text("class Tower:\n    of = 2\n")
    assert None not in (before, after := content_of_target(f"{module.stem}.{name}"))
    assert after != before


def test_a_module_beside_it_need_not_parse(module):
    """Such as one of another version of Python, which nobody calls."""
    module.write_text("def build():\n    import own_legacy\n")
    module.with_name("own_legacy.py").write_text("print 'two'\n")
    assert content_of_target(f"{module.stem}.build")
