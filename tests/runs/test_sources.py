"""A result is never kept for code of one's own that has changed since."""

import importlib

from clickexp.runs.sources import changed, sources


def test_edited_code_is_another_source_and_installed_code_is_none(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_tower.py").write_text("from own_numbers import WIDTH\nclass Tower: ...\n")
    numbers = tmp_path / "own_numbers.py"
    config = {
        "model": {
            "_target_": "clickexp.models.PBM",
            "attraction": {"_target_": "own_tower.Tower"},
            "optimizer": {"_target_": "optax.adam"},
            "missing": {"_target_": "nowhere.at.all"},
        }
    }
    found = []
    for width in (1, 2):
        numbers.write_text(f"WIDTH = {width}\n")
        importlib.invalidate_caches()
        found.append(sources(config))
    key = "model.attraction._target_"
    assert [*found[0]] == [key]
    assert changed(*found) == [key] and not changed(found[0], found[0])
