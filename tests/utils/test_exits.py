"""How commands end: one line with the remedy that fits, or the trace for who wants it."""

import errno
import os
import subprocess
import sys

import pytest

from clickexp.utils.exits import reason

PLACE, SPACE = ". Choose another place.", ". Free some space, or choose another place."
REMEDIES = {"ENOSPC": SPACE, "EDQUOT": SPACE, "EFBIG": SPACE, "EROFS": PLACE, "EACCES": PLACE, "EPERM": PLACE,
            "ENOTDIR": PLACE, "EISDIR": PLACE, "ENOENT": "", "ECONNREFUSED": "", "EMFILE": ""}  # fmt: skip


@pytest.mark.parametrize("name", REMEDIES)
def test_the_remedy_is_that_of_the_error(name):
    number = getattr(errno, name)
    text = os.strerror(number)
    assert reason(OSError(number, text, "a/file")) == f"a/file: {text}{REMEDIES[name]}"
    assert reason(OSError(number, text)) == f"{text}{REMEDIES[name]}"


def test_what_must_not_be_read_asks_for_no_other_place(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # nothing is refused to root
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path))
    assert reason(error) == f"{tmp_path}: Permission denied"


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("error", ["UserError('wrong')", "OSError(2, 'wrong')"])
def test_the_whole_trace_of_any_command_is_there_for_who_wants_it(error, full):
    code = f"from clickexp.utils.exits import *\nwith ending('x'): raise {error}"
    env = {**os.environ, "HYDRA_FULL_ERROR": str(int(full))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and ("Traceback" in done.stderr) == full
    assert full or done.stderr == "x: wrong\n"
