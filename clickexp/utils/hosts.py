"""One training by several processes, such as one per host: what connects them, and how all end when one does.

Each is started with the variables below. All read the data and train; the first has the folder and the loggers, and
does what follows the training.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from clickexp.errors import ConfigError, UserError
from clickexp.utils.exits import INTERRUPTED, STOPPED, complain
from clickexp.utils.text import listed

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
"""Environment variables: HOST:PORT of the first process, the number of processes, and that of this one, from 0."""
_SILENCE = 30
"""Seconds after which a process that does not answer is given up; JAX's own 100 end without a line for the user."""
_PULSE = 5
"""Seconds between signs of life."""
_GRACE, _NOTICE = 3, 1
"""Seconds that others leave to the first process to say what is wrong in all, and it to notice that one has ended."""
_START = 300
"""Seconds that processes wait for each other at the start."""
_LEAVES, _LIVES = b".", b"+"

_connections: list[socket.socket] = []
_watches: list[threading.Thread] = []
_alone = threading.Event()
"""Set once the processes have left each other."""
_released = threading.Event()
"""Set once the first process has finished."""
_MOST_FACTS = 5


def count() -> int:
    """Returns how many processes the environment names.

    Raises:
        ConfigError: Of the variables some are missing or wrong.
    """
    address, number, index = settings = [os.environ.get(name) for name in (ADDRESS, COUNT, INDEX)]
    if number is None and index is None:  # the first alone may be there for other programs
        return 1
    numbers = [int(text) if text and text.isdecimal() else -1 for text in (number, index)]
    if not address or not 0 <= numbers[1] < numbers[0]:
        shown = " ".join(
            map("=".join, zip((ADDRESS, COUNT, INDEX), map(str, settings), strict=True))
        )
        raise ConfigError(
            f"{shown}: give HOST:PORT of the first process, how many there are, and which this one is, from 0"
        )
    return numbers[0]


def index() -> int:
    """Returns the number of this process, from 0."""
    return int(os.environ[INDEX]) if count() > 1 else 0


def environment(address: str, processes: int, number: int) -> dict[str, str]:
    """Returns the variables of one of several processes; none for a single one."""
    if processes == 1:
        return {}
    return {ADDRESS: address, COUNT: str(processes), INDEX: str(number)}


def join(folder: str) -> str:
    """Connects this process with the others; before JAX starts. Where one ends before all call `leave`, all do.

    Args:
        folder: Of the run, for the first process.

    Returns:
        The folder that the first process has given.

    Raises:
        UserError: The others do not come, or have another number of devices; or they have left this one.
    """
    if _alone.is_set():
        raise UserError(
            "the processes of this command have shared a run already: start another command for the next"
        )
    if count() == 1 or _connections:
        return folder
    host, port = _address()
    connect = _accept if index() == 0 else _reach
    service, folder = connect(host, port, folder)
    if service is None:  # the others have trained; this one has started again, and waits with them
        _connections[0].settimeout(_SILENCE)
        _watch(_connections[0], folder)
        sys.exit()
    for connection in _connections:
        connection.settimeout(None)
        _watches.append(_started(_watch, connection, folder))
    if index() == 0:
        _started(_receive, folder)
    import jax  # here, since the command is light

    atexit.register(_end)  # behind what JAX registers, which would wait for the others
    handler = signal.getsignal(signal.SIGTERM)
    jax.distributed.initialize(
        f"{host}:{service}",
        count(),
        index(),
        cluster_detection_method="deactivate",
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # JAX's own would let the process go on
    devices = Counter(device.process_index for device in jax.devices())
    if len({*devices.values()}) > 1:
        numbers = ", ".join(str(devices[number]) for number in range(count()))
        raise UserError(f"processes have {numbers} devices: give each of them equally many")
    broadcast(None)
    for connection in _connections:  # no earlier, since loading libraries may hold up all threads
        connection.settimeout(_SILENCE)
    broadcast(None)
    _started(_live)
    return folder


@contextlib.contextmanager
def together() -> Iterator[None]:
    """What all processes do until they leave: where one ends meanwhile, `_watch` says so, and no error of JAX."""
    try:
        yield
    except Exception:
        if _connections and not _alone.is_set():
            _leave_time()
        raise


def leave() -> None:
    """Lets the first process go on alone, once all have come here; the others wait until it calls `release`."""
    if not _connections or _alone.is_set():
        return
    import jax

    broadcast(None)
    jax.distributed.shutdown()
    _alone.set()
    if index() > 0:
        _connections[0].sendall(_LEAVES)
        _watches[0].join()  # where the first ends before, this one has to start again with it


def release() -> None:
    """Ends the others: the first process has finished."""
    _released.set()
    for connection in _connections:
        with contextlib.suppress(OSError):  # one may have been stopped
            connection.sendall(_LEAVES)


def have_left() -> bool:
    """Whether the processes have left each other, after which JAX connects no devices."""
    return _alone.is_set()


def broadcast(value: Any) -> Any:
    """Returns what the first process calls this with, which JSON holds; all processes call it in the same order.

    The devices exchange it as they do what they compute: the first time, they open connections that later programs use,
    for which JAX waits no longer than 30 seconds.
    """
    import jax

    if _alone.is_set() or jax.process_count() == 1:
        return value
    import numpy as np
    from jax.experimental.multihost_utils import broadcast_one_to_all

    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = int(broadcast_one_to_all(np.int32(len(text))))
    return json.loads(broadcast_one_to_all(np.resize(text, length)).tobytes())


def check_same(facts: dict[str, Any]) -> None:
    """UserError where facts, by name, which JSON holds, are others than those of the first process."""
    own = {name: json.dumps(value) for name, value in facts.items()}  # of nan, too
    first = broadcast(own)
    differ = [name for name in {**own, **first} if own.get(name) != first.get(name)]
    if differ:
        raise UserError(
            f"process {index()} differs from the first in {listed(differ, _MOST_FACTS)}: start all with one "
            "command, on one log"
        )


def _address() -> tuple[str, int]:
    """Returns host and port of the first process; an address of IPv6 has brackets there, as in [::1]:29500."""
    host, _, port = os.environ[ADDRESS].rpartition(":")
    return host, int(port)


def _server(port: int) -> socket.socket:
    """Returns a socket that others reach by IPv4 and, where this machine has it, by IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _started(function: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def _accept(host: str, port: int, folder: str) -> tuple[int, str]:
    """Waits for all others, and gives them a free port for JAX, and the folder."""
    with _server(0) as free:
        service = free.getsockname()[1]
    with _server(port) as server:
        server.settimeout(_START)
        try:
            _connections.extend(server.accept()[0] for _ in range(1, count()))
        except TimeoutError as error:
            raise UserError(
                f"after {_START} seconds not all of {count()} processes have come to {host}:{port}: start the others"
            ) from error
    for connection in _connections:
        _greet(connection, service, folder)
    return service, folder


def _greet(connection: socket.socket, service: int | None, folder: str) -> None:
    connection.sendall(f"{json.dumps([service, folder])}\n".encode())


def _receive(folder: str) -> None:
    """Lets processes that end and start again wait with the others, while the first does what follows the training."""
    _alone.wait()
    with contextlib.suppress(OSError), _server(_address()[1]) as server:
        while True:
            connection, _ = server.accept()
            with contextlib.suppress(OSError):
                _greet(connection, None, folder)
                _connections.append(connection)
                if _released.is_set():
                    connection.sendall(_LEAVES)


def _live() -> None:
    """Gives signs of life to the processes that this one is connected with."""
    while True:
        for connection in _connections:
            with contextlib.suppress(OSError):  # those that have ended
                connection.sendall(_LIVES)
        time.sleep(_PULSE)


def _reach(host: str, port: int, folder: str) -> tuple[int | None, str]:
    """Connects with the first process, once it is there, and returns what that gives in place of this folder.

    Its port for JAX is None where all have left each other.
    """
    until = time.monotonic() + _START
    while not _connections:
        try:
            _connections.append(socket.create_connection((host.strip("[]"), port), _START))
        except OSError as error:
            if time.monotonic() > until:
                raise UserError(
                    f"the first process does not answer at {host}:{port}: start it, with {INDEX}=0"
                ) from error
            time.sleep(1)
    with _connections[0].makefile("rb", buffering=0) as lines:  # no byte more
        line = lines.readline()
    if not line:
        raise ConnectionError("the first process has ended before all had come")
    service, folder = json.loads(line)
    return service, folder


def _watch(connection: socket.socket, folder: str) -> None:
    """Ends this process where another ends without leaving, or does not answer."""
    host = connection.getpeername()[0].removeprefix("::ffff:")  # of IPv4
    end = "has ended, and so does this one"
    try:
        while (received := connection.recv(1)) == _LIVES:
            pass
        if received == _LEAVES:
            return
    except TimeoutError:
        end = f"has not answered for {_SILENCE} seconds, and this one ends"
    except OSError:
        pass
    complain(
        "clickexp",
        f"the process on {host} {end}. Start all again with hydra.run.dir={folder}: "
        "training continues from the last checkpoint.",
    )
    os._exit(128 + signal.SIGTERM)  # as if it had been asked to, for launchers that start it again


def _end() -> None:
    """Ends this process at once after an error, since JAX would wait for the others."""
    if _alone.is_set():
        return
    if INTERRUPTED.is_set():
        os._exit(STOPPED)
    _leave_time()
    os._exit(1)


@functools.cache
def _leave_time() -> None:
    """Waits once for `_watch`, since JAX may lose a process before that does."""
    time.sleep(_GRACE if index() > 0 else _NOTICE)
