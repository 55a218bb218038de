"""Trainings by two processes, which JAX connects over this machine's loopback, against those of one."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import yaml
from places import ROOT
from processes import free_port
from refusals import refuses

from clickexp.errors import ConfigError
from clickexp.training import CountingTrainer, EMTrainer, Trainer
from clickexp.utils import hosts

PROGRAM = ROOT / "tests/training/on_devices.py"
nightly = pytest.mark.nightly


def trained(case, file, processes, devices):
    """Numbers and losses of a training by some processes with some devices each."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    common = os.environ | {"PYTHONPATH": path, "CPU_DEVICES": str(devices)}
    if processes > 1:
        address = f"127.0.0.1:{free_port()}"
        common |= {hosts.ADDRESS: address, hosts.COUNT: str(processes)}
    started = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), "together", case, str(file)],
            env=common | ({hosts.INDEX: str(index)} if processes > 1 else {}),
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    errors = [process.communicate()[1] for process in started]
    assert not any(process.returncode for process in started), errors
    with np.load(file) as stored:
        return [stored[name] for name in stored]


@pytest.mark.parametrize(
    "case",
    [
        "pbm",
        pytest.param("em", marks=nightly),
        pytest.param("ubm", marks=nightly),
        pytest.param("counting", marks=nightly),
        pytest.param("dbn", marks=nightly),
        pytest.param("deep", marks=nightly),
        pytest.param("hash", marks=nightly),
        pytest.param("ncm", marks=nightly),
        pytest.param("positions", marks=nightly),
        pytest.param("resident", marks=nightly),
        pytest.param("update", marks=nightly),
    ],
)
def test_two_processes_train_and_test_as_one(case, tmp_path):
    """Losses to 1e-7, and numbers to 1e-6 of the largest: the last digits of float32, in which batches are summed."""
    losses, *numbers = trained(case, tmp_path / "one.npz", 1, 1)
    others, *found = trained(case, tmp_path / "two.npz", 2, 2)
    assert np.abs(losses - others).max() < 1e-7
    for one, other in zip(numbers, found, strict=True):
        finite = np.isfinite(one)
        assert (finite == np.isfinite(other)).all()
        scale = np.abs(one[finite]).max(initial=1.0)
        assert np.abs(one[finite] - other[finite]).max(initial=0.0) < 1e-6 * scale


@pytest.mark.parametrize(
    "given",
    [
        {hosts.COUNT: "2"},
        {hosts.ADDRESS: "node1:1234", hosts.COUNT: "two", hosts.INDEX: "0"},
        {hosts.ADDRESS: "node1:1234", hosts.COUNT: "2", hosts.INDEX: "2"},
    ],
)
def test_variables_that_name_no_process_are_an_error(given, monkeypatch):
    for name in (hosts.ADDRESS, hosts.COUNT, hosts.INDEX):
        monkeypatch.delenv(name, raising=False)
    assert (hosts.count(), hosts.index()) == (1, 0)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with refuses(ConfigError, hosts.INDEX, "give HOST:PORT"):
        hosts.count()


def test_pods_of_the_guide_are_processes_of_one_run(monkeypatch):
    """Kubernetes numbers them, and gives them names of the job, their number and the service."""
    page = (ROOT / "docs/howto/hosts.md").read_text()
    (manifest,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    service, job = yaml.safe_load_all(manifest)
    pods, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
    (container,) = pods["containers"]
    assert " ".join(container["command"]) in page.replace(manifest, "")
    for index in range(job["spec"]["completions"]):
        for variable in container["env"]:
            monkeypatch.setenv(variable["name"], variable.get("value", str(index)))
        assert (hosts.count(), hosts.index()) == (job["spec"]["parallelism"], index)
    assert os.environ[hosts.ADDRESS].startswith(f"{name}-0.{pods['subdomain']}:")
    assert service["metadata"]["name"] == pods["subdomain"]
    assert service["spec"]["selector"] == {"job-name": name}


def test_a_process_leaves_others_time_once(monkeypatch):
    """Where it ends with an error: before the error is printed, and not again when the process ends."""
    waits = []
    monkeypatch.setattr(hosts, "time", SimpleNamespace(sleep=waits.append))
    hosts._leave_time.cache_clear()
    hosts._leave_time()
    hosts._leave_time()
    hosts._leave_time.cache_clear()
    assert waits == [hosts._NOTICE]


@pytest.mark.parametrize("trainer", [Trainer, EMTrainer, CountingTrainer])
def test_processes_that_do_not_use_all_devices_are_an_error(trainer, monkeypatch):
    trainer().check_machine()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    with refuses(ConfigError, "trainer.devices=1", "set trainer.devices=all"):
        trainer().check_machine()
