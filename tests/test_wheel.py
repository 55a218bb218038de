"""The built wheel, outside the checkout: it carries its configuration and answers."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip(
        "hatchling", reason="building a wheel needs hatchling, which the test extra installs"
    )
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", folder, ROOT],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("clickexp-*.whl"))


def test_the_wheel_holds_package_plugins_and_configuration_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "clickexp/conf/config.yaml" in names and "clickexp/cli/main.py" in names
    tops = {name.split("/")[0] for name in names if not name.startswith("clickexp-")}
    assert tops == {"clickexp", "hydra_plugins"}
    assert {name.split("/")[1] for name in names if name.startswith("hydra_plugins/")} == {
        "clickexp_launcher",
        "clickexp_sweeper",
    }
    assert not [name for name in names if name.startswith("clickexp/plugins")]
    inside = {name.removeprefix("clickexp/") for name in names if name.startswith("clickexp/conf/")}
    outside = {str(file.relative_to(ROOT)) for file in (ROOT / "conf").rglob("*.yaml")}
    assert inside == outside


def test_the_wheel_holds_every_file_of_the_package_and_its_licence(wheel):
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "clickexp"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    moved = {name.replace("clickexp/plugins/", "") for name in tracked}
    assert len(moved) > 100 and "clickexp/py.typed" in moved
    assert not moved - names
    (licence,) = (name for name in names if name.endswith("licenses/LICENSE"))
    assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    (metadata,) = (name for name in names if name.endswith("METADATA"))
    assert "License-Expression: Apache-2.0" in archive.read(metadata).decode()


def test_the_sdist_holds_what_git_has_but_its_own_settings(tmp_path):
    pytest.importorskip(
        "hatchling", reason="building an sdist needs hatchling, which the test extra installs"
    )
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (file,) = tmp_path.glob("clickexp-*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    left_out = (".ci/", ".github/", "outputs/")
    assert not {name for name in tracked if not name.startswith(left_out)} - names
    assert [name for name in names if name.startswith((*left_out, ".venv"))] == ["outputs/.gitkeep"]


def test_the_wheel_answers_outside_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = "import clickexp.cli.main as m; from clickexp.experiment.conf import CONF; print(CONF); m.main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--cfg", "all", "launcher=accelerators"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[0] == str(tmp_path / "site/clickexp/conf")
    assert "clickexp.models.UserBrowsingModel" in done.stdout
    assert "hydra_plugins.clickexp_launcher.launcher.QueueLauncher" in done.stdout
