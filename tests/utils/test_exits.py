"""How commands end: one line with the remedy that fits, or the trace for who wants it."""

import errno
import os
import subprocess
import sys
import weakref

import pytest

from clickexp.errors import UserError, reason
from clickexp.utils import exits

PLACE, SPACE = ". Choose another place.", ". Free some space, or choose another place."
REMEDIES = {"ENOSPC": SPACE, "EDQUOT": SPACE, "EFBIG": SPACE, "EROFS": PLACE, "EACCES": PLACE, "EPERM": PLACE,
            "ENOTDIR": PLACE, "EISDIR": PLACE, "EEXIST": PLACE,
            "ENOENT": "", "ECONNREFUSED": "", "EMFILE": ""}  # fmt: skip


def test_the_remedy_is_that_of_the_error():
    for name, remedy in REMEDIES.items():
        number = getattr(errno, name)
        text = os.strerror(number)
        assert reason(OSError(number, text, "a/file")) == f"a/file: {text}{remedy}"
        assert reason(OSError(number, text)) == f"{text}{remedy}"


def test_what_must_not_be_read_asks_for_no_other_place(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # nothing is refused to root
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path))
    assert reason(error) == f"{tmp_path}: Permission denied"


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("error", [UserError("wrong"), OSError(2, "wrong")])
def test_the_whole_trace_of_any_command_is_there_for_who_wants_it(error, full, monkeypatch, capsys):
    monkeypatch.setattr(exits, "SHOW_TRACE", full)
    with pytest.raises(type(error) if full else SystemExit) as ended, exits.ending("x"):
        raise error
    assert full or ended.value.code == 1
    assert capsys.readouterr().err == ("" if full else "x: wrong\n")


IMPORT = """
    try:
        work()
    except KeyboardInterrupt as error:
        raise ImportError("an extension was not initialized") from error
"""


@pytest.mark.parametrize("place", ["work()", "gc.callbacks.append(work); gc.collect()", IMPORT])
def test_an_interrupt_ends_a_command_wherever_it_comes(place):
    """Also in a callback of the garbage collector, as JAX has one, and where a library makes another error of it."""
    code = f"""
import gc, signal, time
from clickexp.utils.exits import ending
done = []
def work(*_):
    if not done:
        done.append(1)
        signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
with ending("x"):
    {place}
    time.sleep(20)
print("goes on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "x: stopped\n")


TRACED = """
            sys.meta_path.remove(self)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                traceback.print_exc()
"""


def interrupted_in_import(command, words, package, interrupt, folder):
    """Runs a command which is interrupted where it imports a package."""
    code = f"""
import signal, sys, traceback
class Interrupting:
    def find_spec(self, name, *_):
        if name == "{package}":
            {interrupt}
sys.meta_path.insert(0, Interrupting())
from clickexp.cli.{command} import main
sys.argv[1:] = {words}
main()
"""
    run = [sys.executable, "-c", code]
    return subprocess.run(run, capture_output=True, text=True, timeout=60, cwd=folder)


def name_of(command):
    return "clickexp" if command == "main" else f"clickexp-{command}"


@pytest.mark.parametrize(
    "command, words, package",
    [
        ("main", ["debug=fast"], "hydra"),
        ("data", ["inspect", "log.csv"], "numpy"),
        ("compare", ["runs"], "numpy"),
        ("export", ["run"], "hydra"),
        ("update", ["run", "log.csv"], "hydra"),
    ],
)
def test_an_interrupt_while_a_command_imports_ends_it_in_one_line(
    command, words, package, tmp_path
):
    """Imports take the first second of a command, and modules of commands none of it."""
    done = interrupted_in_import(
        command, words, package, "signal.raise_signal(signal.SIGINT)", tmp_path
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 130 and line.startswith(f"{name_of(command)}: stopped")


@pytest.mark.parametrize(
    "command, words, package",
    [
        ("main", ["debug=fast"], "jaxlib.gpu_rnn"),
        ("data", ["inspect", "log.csv"], "numpy"),
        ("compare", ["runs"], "polars"),
        ("export", ["run"], "jaxlib.gpu_rnn"),
    ],
)
def test_an_interrupt_in_the_import_of_compiled_code_ends_the_command_in_one_line(
    command, words, package, tmp_path
):
    """Such code prints the trace, and makes an ImportError of it, for which JAX does without the package."""
    done = interrupted_in_import(command, words, package, TRACED, tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 130 and line.startswith(
        (f"{name_of(command)}: stopped", f"{name_of(command)}: interrupted")
    )
    assert not (tmp_path / "outputs").exists()


def test_a_second_interrupt_ends_an_import():
    code = """
import signal, time
from clickexp.utils.exits import ending, importing
signal.signal(signal.SIGINT, signal.default_int_handler)
with ending("x"), importing():
    for n in (1, 2, 3):
        signal.raise_signal(signal.SIGINT)
        print(n, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "1\n", "x: stopped\n")


def test_the_environment_asks_for_the_trace():
    code = "from clickexp.utils import exits; print(exits.SHOW_TRACE)"
    env = {**os.environ, "HYDRA_FULL_ERROR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


def test_what_an_interrupted_command_held_is_freed():
    """Arrays and programs of JAX that lived until the interpreter ended crashed it, after every third Ctrl-C."""
    held = []

    class Model: ...

    def train():
        model = Model()
        held.append(weakref.ref(model))
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended, exits.ending("clickexp"):
        train()
    assert ended.value.code == exits.STOPPED and held[0]() is None


def test_an_interruption_after_the_end_of_a_command_is_ignored():
    """The interpreter ends with the exit code of the command, without a trace of what libraries do at exit."""
    code = (
        "import atexit, os, signal\n"
        "from clickexp.utils import exits\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "with exits.ending('clickexp'):\n"
        "    print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
