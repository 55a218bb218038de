"""A release has one version, stated in four places."""

import importlib.util

import pytest
import yaml
from places import ROOT

spec = importlib.util.spec_from_file_location("release", ROOT / "scripts/release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "clickexp").mkdir()
    (tmp_path / "clickexp/__init__.py").write_text('"""Doc."""\n\n__version__ = "0.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 0.2.0\n")
    text = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2027-01-31\n\n- New.\n\n## 0.1.0 - 2026-12-01\n\n- Old.\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    return tmp_path


def test_the_changes_of_a_version_are_those_below_its_head(checkout):
    assert release.changes("v0.2.0", checkout) == "- New."


@pytest.mark.parametrize("tag", ["v0.3.0", "0.2.0", "v0.1.0"])
def test_another_tag_is_refused(checkout, tag):
    with pytest.raises(SystemExit, match=r"clickexp/__init__\.py states 0\.2\.0"):
        release.changes(tag, checkout)


def test_a_version_without_changes_is_refused(checkout):
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- New.\n")
    with pytest.raises(SystemExit, match="CHANGELOG"):
        release.changes("v0.2.0", checkout)


def test_package_and_citation_state_one_version():
    versions = {
        release.re.search(pattern, (ROOT / name).read_text(), release.re.MULTILINE)[1]
        for name, pattern in release.STATED.items()
    }
    assert len(versions) == 1


def test_the_workflow_publishes_after_the_checks():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    jobs = workflow["jobs"]
    assert jobs["publish"]["needs"] == ["build"]
    commands = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert any("scripts/release.py" in command for command in commands)
