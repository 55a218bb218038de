"""A launcher backend: jobs of a sweep over SSH, on hosts that share this folder and this Python."""

import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from clickexp.sweeps.backends.remote import Call, Outcome, RemotePool

RUN = "import pickle, sys; pickle.dump(pickle.load(sys.stdin.buffer)(), sys.stdout.buffer)"
"""What the host runs: it calls what comes in, and sends back how that ended."""


class Handle(NamedTuple):
    """A job on a host."""

    host: str
    process: subprocess.Popen


class SSHPool(RemotePool):
    """One job per host at a time, or several for hosts that are listed several times.

    Args:
        hosts: Names for ssh.
        command: What comes before Python, {host} in place of the name.
    """

    def __init__(self, hosts: list[str], command: list[str]):
        super().__init__("ssh", len(hosts))
        self.idle, self.command = list(hosts), command

    def send(self, calls: Sequence[Call]) -> list[Handle]:
        return [self._start(call, self.idle.pop(0)) for call in calls]

    def _start(self, call: Call, host: str) -> Handle:
        words = [word.format(host=host) for word in self.command]
        python = [
            sys.executable,
            "-c",
            f"'{RUN}'" if words else RUN,
        ]  # a remote shell takes the quotes away
        process = subprocess.Popen([*words, *python], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdin.write(pickle.dumps(call))
        process.stdin.close()
        return Handle(host, process)

    def has_ended(self, handle: Handle) -> bool:
        return handle.process.poll() is not None

    def outcome(self, handle: Handle) -> Outcome | str:
        self.idle.append(handle.host)
        if handle.process.returncode != 0:
            return f"{handle.host}: exit code {handle.process.returncode}"
        return pickle.load(handle.process.stdout)

    def cancel(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            handle.process.terminate()
        for handle in handles:
            handle.process.wait()
            self.idle.append(handle.host)
