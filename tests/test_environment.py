"""What scripts/environment.sh installs where, with interpreters, a pip and an nvidia-smi that only write down."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).resolve().parent.parent
PYTHON = """#!/bin/sh
case "$1 $2" in
"-c "*print*) echo VERSION ;;
"-c "*) ;;
"-m venv")
    for folder; do :; done
    test "$3" != --clear || rm -r "$folder"
    mkdir -p "$folder/bin"
    cp "$0" "$folder/bin/python"
    touch "$folder/pyvenv.cfg" ;;
"-m pip") echo "VERSION $*" >>"$(dirname "$0")/../../pip.log" ;;
*) exit 1 ;;
esac
"""


class Machine:
    """A folder whose bin/ comes first on the PATH; `venv` is made and filled by what is sourced."""

    def __init__(self, folder: Path, versions=("3.11", "3.12", "3.13")):
        self.folder = folder
        self.log = folder / "pip.log"
        (folder / "bin").mkdir()
        for version in versions:
            self.command(f"python{version}", PYTHON.replace("VERSION", version))
        self.command("python3", "#!/bin/sh\nexit 1\n")

    def command(self, name: str, script: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(script)
        file.chmod(0o755)

    def gpu(self, exit_code: int) -> None:
        self.command("nvidia-smi", f"#!/bin/sh\nexit {exit_code}\n")

    def source(self, extras: str = "", **variables: str) -> list[str]:
        """What pip was asked for: Python's version, constraints, extras."""
        self.log.unlink(missing_ok=True)
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        env = {"PATH": path, "VENV": str(self.folder / "venv"), "EXTRAS": extras, **variables}
        script = (
            f"set -euo pipefail; source {ROOT}/scripts/environment.sh >/dev/null; command -v python"
        )
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(self.folder / "venv/bin/python")
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        assert not lines or " install " in lines[0]
        words = [line.split() for line in lines]
        return [
            f"{w[0]} {Path(w[-3]).name} {w[-1].removeprefix(str(ROOT)) or 'users'}" for w in words
        ]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_run_installs_what_users_need_and_test_the_rest_once(machine):
    assert machine.source() == ["3.11 constraints.txt users"]
    assert machine.source() == []
    assert machine.source("test") == ["3.11 constraints.txt [test]"]
    assert machine.source() == machine.source("test") == machine.source("test ") == []
    assert machine.source("search test") == ["3.11 constraints.txt [search,test]"]


def test_a_changed_project_is_installed_with_what_was_there(machine):
    machine.source("test")
    stamp = machine.folder / "venv/installed"
    stamp.write_text("other sources\n" + stamp.read_text().splitlines()[1] + "\n")
    assert machine.source() == ["3.11 constraints.txt [test]"]


def test_cuda_comes_where_nvidia_smi_answers(machine):
    machine.gpu(9)  # as without a driver
    assert machine.source() == ["3.11 constraints.txt users"]
    machine.gpu(0)
    assert machine.source() == ["3.11 constraints.txt [cuda]"]
    assert machine.source("test") == ["3.11 constraints.txt [cuda,test]"]
    assert machine.source() == []


def test_a_new_environment_with_cuda_takes_a_python_whose_jax_is_fast(machine):
    machine.gpu(0)
    assert machine.source() == ["3.13 constraints-py312.txt [cuda]"]
    assert machine.source() == []


def test_another_interpreter_makes_the_environment_again(machine):
    machine.source("test")
    (machine.folder / "venv/of-3.11").touch()
    assert machine.source("test", PYTHON="python3.12") == ["3.12 constraints-py312.txt [test]"]
    assert not (machine.folder / "venv/of-3.11").exists()
    assert machine.source("test", PYTHON="python3.12") == machine.source("test") == []


def test_a_folder_that_is_no_environment_keeps_its_files(machine):
    (machine.folder / "venv").mkdir()
    (machine.folder / "venv/thesis.tex").touch()
    machine.source()
    assert (machine.folder / "venv/thesis.tex").exists()


def test_a_machine_without_a_fitting_python_is_described(tmp_path):
    machine = Machine(tmp_path, versions=())
    with pytest.raises(
        AssertionError, match="clickexp needs Python 3.11 or later, not python3. Install it"
    ):
        machine.source(PYTHON="python3")
