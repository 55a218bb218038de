"""The pool of processes: slots, logs, ends of every kind, and nothing left behind."""

import os
import runpy
import signal
import subprocess
import sys
import time

import psutil
import pytest
from processes import Process, gone, read, wait_until
from refusals import refuses

from clickexp.errors import UserError
from clickexp.sweeps.backends import pool as pool_module
from clickexp.sweeps.backends.base import OVERDUE
from clickexp.sweeps.backends.pool import Pool, Slot
from clickexp.sweeps.backends.remote import RemotePool
from clickexp.sweeps.backends.slots import accelerator_slots, cpu_slots, device_slots

TWO = [Slot("a", {"PLACE": "a"}), Slot("b", {"PLACE": "b"})]


def run(slots, *codes, folder):
    """Runs lines of Python, as many at a time as there are slots; the jobs in the order of their ends."""
    waiting, ended = list(enumerate(codes)), []
    with Pool(slots) as pool:
        while waiting or pool.running:
            while waiting and pool.free:
                number, code = waiting.pop(0)
                submit(pool, number, folder / str(number), code)
            ended += pool.wait()
    return ended


def submit(pool, key, folder, code):
    folder.mkdir(exist_ok=True)
    (folder / "code.py").write_text(code)
    return pool.submit(key, folder, runpy.run_path, [str(folder / "code.py")])


def numbers(file):
    """A line of numbers that another process writes into a file, once it is there."""
    return [
        int(word) for word in wait_until(lambda: read(file).endswith("\n") and read(file)).split()
    ]


@pytest.mark.parametrize("forks", [pool_module._FORKS, False])
def test_a_job_sees_its_slot_and_writes_its_log(forks, tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "_FORKS", forks)
    monkeypatch.setenv("ALL", "1")
    monkeypatch.setenv("PLACE", "none")
    code = "import os, sys; print(os.environ['PLACE'], os.environ['ALL']); print('oh', file=sys.stderr)"
    jobs = run(TWO, code, code, folder=tmp_path)
    for job in jobs:
        assert job.returncode == 0 and job.seconds > 0
        assert sorted(job.log.read_text().splitlines()) == sorted([f"{job.slot.name} 1", "oh"])
    assert {job.slot.name for job in jobs} == {"a", "b"}


@pytest.mark.skipif(sys.platform != "linux", reason="jobs are copies of a process on Linux only")
def test_jobs_are_copies_of_a_process_that_has_imported_what_runs_need(tmp_path):
    """One with a single thread that has not started JAX, or they would hang; signals to all do not end it."""
    code = """
import os, signal, sys
from jax._src import xla_bridge
print("clickexp.experiment.run" in sys.modules, "wandb" in sys.modules, xla_bridge.backends_are_initialized())
print(os.listdir(f"/proc/{os.getppid()}/task") == [str(os.getppid())])
os.kill(os.getppid(), signal.SIGTERM)
os.kill(os.getppid(), signal.SIGUSR2)
"""
    (job,) = run(TWO[:1], code, folder=tmp_path)
    assert job.log.read_text().split() == ["True", "True", "False", "True"] and job.returncode == 0


def test_a_slot_has_one_job_at_a_time(tmp_path):
    """Every job writes down when it began and ended; on one slot they do not overlap, on two they do.

    A job ends once one has begun on the other slot.
    """
    code = f"""
import os, pathlib, time
begun = time.time()
place, folder = os.environ["PLACE"], pathlib.Path({str(tmp_path)!r})
(folder / place).touch()
while not (folder / "a").exists() or not (folder / "b").exists():
    time.sleep(0.02)
print(place, begun, time.time())
"""
    jobs = run(TWO, code, code, code, code, folder=tmp_path)
    spans = [
        (words[0], float(words[1]), float(words[2]))
        for words in (j.log.read_text().split() for j in jobs)
    ]
    for place in "ab":
        first, second = sorted(span[1:] for span in spans if span[0] == place)
        assert first[1] <= second[0]
    firsts = [min(span[1:] for span in spans if span[0] == place) for place in "ab"]
    assert max(start for start, _ in firsts) < min(end for _, end in firsts)


ENDS = {
    "raise ValueError('wrong')": (1, "exit code 1"),
    "import os; os._exit(3)": (3, "exit code 3"),
    "import os; os.kill(os.getpid(), 9)": (
        -9,
        "killed by SIGKILL, perhaps by the system for want of memory",
    ),
    "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); bytearray(1 << 30)": (
        1,
        "exit code 1",
    ),
    "open('/dev/full', 'w').write('x' * 100000)": (1, "exit code 1"),
    "pass": (0, "exit code 0"),
}


def test_a_job_that_fails_leaves_the_others_alone(tmp_path):
    jobs = {job.key: job for job in run(TWO, *ENDS, folder=tmp_path)}
    assert [(jobs[n].returncode, jobs[n].end) for n in range(len(ENDS))] == list(ENDS.values())
    logs = [jobs[n].log.read_text() for n in range(len(ENDS))]
    assert (
        "ValueError: wrong" in logs[0] and "MemoryError" in logs[3] and "No space left" in logs[4]
    )


@pytest.mark.parametrize("stubborn", [False, True])
def test_leaving_the_pool_ends_jobs_and_what_they_started(stubborn, tmp_path, monkeypatch):
    """Which would end by themselves with exit code 0."""
    monkeypatch.setattr(pool_module, "GRACE", 0.5 if stubborn else 30)
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" if stubborn else "pass"
    code = f"""
import subprocess, os, time
{ignore}
child = subprocess.Popen(["sleep", "60"])
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""
    with pytest.raises(KeyboardInterrupt), Pool(TWO) as pool:
        job = submit(pool, "x", tmp_path, code)
        pids = numbers(job.log)
        raise KeyboardInterrupt
    assert not pool.running and len(pool.free) == 2
    assert job.returncode == (-9 if stubborn else 128 + signal.SIGTERM)
    assert all(map(gone, pids))


PARENT = """
import runpy, sys, time
from pathlib import Path
from clickexp.sweeps.backends.base import OVERDUE
from clickexp.sweeps.backends.pool import Pool, Slot

folder = Path(sys.argv[1])
with Pool([Slot("a")]) as pool:
    pool.submit("x", folder, runpy.run_path, [str(folder / "code.py")])
    time.sleep(60)
"""
TIDY = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "60"])
print(os.getpid(), child.pid, flush=True)
try:
    time.sleep(60)
finally:
    print("tidy", flush=True)
"""


def test_jobs_end_when_their_parent_is_killed(tmp_path):
    """They are asked to stop, so that they can tidy up; what they started ends with them."""
    (tmp_path / "code.py").write_text(TIDY)
    with Process([sys.executable, "-c", PARENT, str(tmp_path)]) as parent:
        pids = numbers(tmp_path / "job.log")
        parent.kill()
    assert gone(pids[0]) and "tidy" in (tmp_path / "job.log").read_text()
    assert gone(pids[1])


def test_waiting_takes_no_longer_than_allowed(tmp_path):
    """Else it would return the job."""
    with Pool(TWO) as pool:
        assert pool.wait() == []
        pool.submit("x", tmp_path, time.sleep, [30])
        assert pool.wait(0.2) == []


@pytest.mark.parametrize("stops", [False, True])
def test_a_job_that_takes_too_long_is_ended_with_what_it_started(stops, tmp_path, monkeypatch):
    """One that is stopped answers no request. A job beside it goes on, and the slot takes the next."""
    monkeypatch.setattr(pool_module, "GRACE", 0.3 if stops else 30)
    code = f"""
import os, signal, subprocess, time
child = subprocess.Popen(["sleep", "60"])
print(os.getpid(), child.pid, flush=True)
{"os.kill(os.getpid(), signal.SIGSTOP)" if stops else ""}
time.sleep(60)
"""
    with Pool(TWO) as pool:
        slow = submit(pool, "slow", tmp_path / "slow", code)
        quick = submit(pool, "quick", tmp_path / "quick", "import time; time.sleep(0.2)")
        pids = numbers(slow.log)
        assert pool.wait(30) == [quick] and not quick.ended_for and pool.running == [slow]
        pool.job_minutes = 0.5 / 60
        assert pool.wait(30) == [slow] and slow.ended_for == OVERDUE
        assert slow.returncode == (-signal.SIGKILL if stops else 128 + signal.SIGTERM)
        assert all(map(gone, pids)) and len(pool.free) == 2
        assert stops or "most recent call first" in slow.log.read_text()  # where it was
        pool.job_minutes = None
        submit(pool, "next", tmp_path / "next", "pass")
        (after,) = pool.wait(30)
    assert after.returncode == 0 and not after.ended_for


def test_a_job_that_shows_no_sign_of_life_is_ended(tmp_path, monkeypatch):
    """Without a limit of time. Time in which the pool itself did not look does not count."""
    monkeypatch.setattr(pool_module, "GRACE", 0.3)
    stopped = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with Pool(TWO[:1]) as pool:
        job = submit(pool, "stopped", tmp_path, stopped)
        process = psutil.Process(job.handle.process.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        monkeypatch.setattr(pool_module, "SILENCE", 0.5)
        assert pool.wait() == [job]
        assert job.ended_for.startswith("no sign of life") and job.returncode == -signal.SIGKILL
        worker = submit(pool, "stopped again", tmp_path, stopped).handle
        worker.look()
        before, clock = worker.silence, time.monotonic
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: clock() + 1000)
            worker.look()
        assert worker.silence <= before + 1


def test_a_job_shows_signs_of_life_while_it_works(tmp_path):
    with Pool(TWO[:1]) as pool:
        job = submit(pool, "works", tmp_path, "import time; time.sleep(60)")
        for _ in range(3):
            wait_until(lambda: job.handle._signs.poll(1))
            job.handle.look()
            assert job.handle.silence == 0


def test_a_job_that_is_ended_at_once_says_so(tmp_path, monkeypatch):
    """Signals wait for the handlers of its process; that for where it is would kill it."""
    monkeypatch.setattr(pool_module, "GRACE", 30)
    with Pool(TWO[:1], job_minutes=1e-9) as pool:
        job = submit(pool, "x", tmp_path, "import time; time.sleep(60)")
        assert pool.wait() == [job] and job.ended_for == OVERDUE
    assert job.returncode == 128 + signal.SIGTERM and job.end == "exit code 143"


def test_a_scheduler_hands_the_limit_to_where_the_job_runs(tmp_path):
    """Time in its queue does not count."""

    class Waiting(RemotePool):
        def send(self, calls):
            sent.extend(calls)
            return [None] * len(calls)

        def has_ended(self, handle):
            looks.append(handle)
            return len(sent) > 1

        def outcome(self, handle):
            return sent[1]

        def cancel(self, handles):
            pytest.fail("it only waits")

    sent, looks = [], []
    pool = Waiting("scheduler", 1, call_minutes=0.001)
    job = pool.submit("x", tmp_path, time.sleep, [30])
    assert pool.wait(0.3) == [] and sent[0].job_minutes == 0.001
    assert len(looks) <= 3  # it sleeps between looks
    sent.append(sent[0]())
    assert (
        pool.wait() == [job] and job.ended_for == OVERDUE and job.returncode == 128 + signal.SIGTERM
    )


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_a_cpu_job_keeps_to_its_cores(tmp_path):
    """XLA's thread pool, too: one thread for each core that the process may use."""
    core = min(os.sched_getaffinity(0))
    code = """
import os, jax
jax.numpy.ones((300, 300)) @ jax.numpy.ones((300, 300))
names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
print(os.sched_getaffinity(0), names.count("tf_XLAEigen"))
"""
    (job,) = run([Slot("cpu:0", cores=(core,))], code, folder=tmp_path)
    assert job.log.read_text() == f"{{{core}}} 1\n"


def test_cores_are_divided_among_workers():
    assert [slot.cores for slot in cpu_slots([0, 1, 2, 3, 4], 2)] == [(0, 1), (2, 3, 4)]
    assert [slot.cores for slot in cpu_slots([3, 5])] == [(3, 5)]
    assert [slot.cores for slot in cpu_slots([3, 5], 3)] == [(3,), (5,), (3,)]
    assert len({slot.name for slot in cpu_slots([0], 4)}) == 4


def test_each_slot_sees_one_accelerator():
    slots = accelerator_slots("gpu", 2, 1, {})
    assert [(slot.name, slot.environment) for slot in slots] == [
        ("gpu:0", {"CUDA_VISIBLE_DEVICES": "0"}),
        ("gpu:1", {"CUDA_VISIBLE_DEVICES": "1"}),
    ]
    narrowed = accelerator_slots("gpu", 2, 1, {"CUDA_VISIBLE_DEVICES": "5,7"})
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in narrowed] == ["5", "7"]
    shared = accelerator_slots("gpu", 1, 2, {})
    assert [slot.name for slot in shared] == ["gpu:0.0", "gpu:0.1"]
    assert [slot.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] for slot in shared] == [
        "0.450",
        "0.450",
    ]
    tpu = accelerator_slots("tpu", 4, 1, {})
    assert [slot.environment["TPU_VISIBLE_CHIPS"] for slot in tpu] == ["0", "1", "2", "3"]


def test_devices_are_those_that_a_process_with_jax_sees(monkeypatch):
    """Here: JAX is replaced in that process by a stand-in that knows three GPUs."""
    stand_in = "jax.default_backend = lambda: 'gpu'; jax.local_device_count = lambda: 3; "
    look = (
        "import jax, json; "
        + stand_in
        + "print(json.dumps([jax.default_backend(), jax.local_device_count()]))"
    )
    monkeypatch.setattr("clickexp.sweeps.backends.slots._LOOK", look)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [slot.name for slot in device_slots(jobs_per_device=2)][:4] == [
        "gpu:0.0",
        "gpu:1.0",
        "gpu:2.0",
        "gpu:0.1",
    ]
    monkeypatch.setattr("clickexp.sweeps.backends.slots._LOOK", "raise RuntimeError('no driver')")
    with pytest.raises(
        Exception, match="JAX does not start on this machine: RuntimeError: no driver"
    ):
        device_slots()
    monkeypatch.setattr("clickexp.sweeps.backends.slots.SILENCE", 1e-3)
    with refuses(UserError, "JAX does not start on this machine in", "JAX_PLATFORMS=cpu"):
        device_slots()


def test_the_parent_never_imports_jax():
    modules = ("launcher", "callback", "job", "table", "view", "backends.pool", "backends.slots")
    code = "import sys\n" + "\n".join(f"import clickexp.sweeps.{name}" for name in modules)
    code += "\nimport clickexp.runs.store"
    code += "\nprint(sorted({'jax', 'numpy', 'flax', 'wandb'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
