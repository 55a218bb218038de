"""How processes that share a run end when one of them stops, is interrupted, or starts again."""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest
from places import ROOT
from processes import Process, read, wait_until

from clickexp.utils import hosts

pytestmark = pytest.mark.nightly
ENDED = 128 + signal.SIGTERM


class Pair:
    """Starts processes of `together.py`.

    Args:
        folder: Where they write.
        host: Of the first.
    """

    def __init__(self, folder, host="127.0.0.1"):
        self.folder = folder
        with socket.create_server(("", 0)) as server:
            self.address = f"{host}:{server.getsockname()[1]}"

    def start(self, index):
        names = {hosts.ADDRESS: self.address, hosts.COUNT: "2", hosts.INDEX: str(index)}
        with (self.folder / f"{index}.log").open("w") as log:
            return Process(
                [sys.executable, str(ROOT / "tests/utils/together.py"), str(self.folder)],
                env={**os.environ, **names, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @contextlib.contextmanager
    def joined(self):
        """Both, once they are connected."""
        with self.start(0) as first, self.start(1) as second:
            self.wait("0.joined", "1.joined")
            yield first, second

    def wait(self, *names):
        for name in names:
            wait_until((self.folder / name).exists, 120)

    def lines(self, index):
        """What a process has said of another one."""
        printed = read(self.folder / f"{index}.log").splitlines()
        return [line for line in printed if line.startswith("clickexp: ")]


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_process_that_does_not_answer_is_given_up(stopped, tmp_path):
    """With a line for the user, before JAX aborts after 100 seconds."""
    pair = Pair(tmp_path)
    with pair.joined() as both:
        both[stopped].send_signal(signal.SIGSTOP)
        code = both[1 - stopped].wait(60)
        both[stopped].kill()
    assert code == ENDED
    (line,) = pair.lines(1 - stopped)
    assert "has not answered for 30 seconds" in line and f"hydra.run.dir={tmp_path}" in line


@pytest.mark.parametrize("interrupted", [0, 1])
def test_an_interrupted_process_has_the_exit_code_of_one(interrupted, tmp_path):
    pair = Pair(tmp_path)
    with pair.joined() as both:
        both[interrupted].send_signal(signal.SIGINT)
        assert both[interrupted].wait(20) == 128 + signal.SIGINT
        assert both[1 - interrupted].wait(20) == ENDED
    assert "has ended" in pair.lines(1 - interrupted)[0]
    assert "Traceback" not in read(tmp_path / f"{1 - interrupted}.log")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_process_that_starts_again_after_the_training_waits_with_the_others(host, tmp_path):
    """The first one goes on without it; addresses of IPv6 have brackets."""
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    pair = Pair(tmp_path, host)
    with pair.start(0) as first:
        with pair.start(1) as second:
            pair.wait("0.joined", "1.joined")
            (tmp_path / "trained").touch()
            pair.wait("0.left")
            second.kill()
        with pair.start(1) as again:
            with pytest.raises(subprocess.TimeoutExpired):
                again.wait(5)
            (tmp_path / "finished").touch()
            assert (first.wait(20), again.wait(20)) == (0, 0), pair.lines(1)
    assert not pair.lines(0) and not pair.lines(1)


def test_settings_that_are_no_numbers_are_the_same_in_all_processes():
    hosts.check_same({"seed": 1, "trainer.rate": float("nan")})
