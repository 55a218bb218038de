"""The command `clickexp` in two processes of this machine: the first has the folder, and both end together."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT
from processes import Process, free_port, read, wait_until

from clickexp.cli.main import main
from clickexp.utils import hosts

nightly = pytest.mark.nightly
WORDS = [
    *("debug=fast", "model=pbm", "metric=click", "logger=jsonl", "report=false", "seed=1"),
    *("trainer.devices=all", "trainer.early_stopping=null", "trainer.checkpoint_minutes=0"),
    *("shared_intervals=false", "hydra.run.dir=r", "max_sessions=500", "dataset.sessions=2000"),
]


class Hosts:
    """Starts commands in a folder.

    Args:
        folder: Their working directory.
        environment: Variables that all have.
    """

    def __init__(self, folder, environment):
        self.folder, self.environment = folder, environment
        self.address = f"127.0.0.1:{free_port()}"

    def start(self, index, *words):
        """One of two processes."""
        names = {hosts.ADDRESS: self.address, hosts.COUNT: "2", hosts.INDEX: str(index)}
        with (self.folder / f"{index}.log").open("w") as log:
            return Process(
                [sys.executable, "-m", "clickexp", *words],
                cwd=self.folder,
                env=self.environment | names,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def lines(self, index):
        """What a process has printed, without the notices of JAX's transport."""
        printed = read(self.folder / f"{index}.log").splitlines()
        return [line for line in printed if line and not line.startswith("[Gloo]")]

    def result(self, name):
        return json.loads((self.folder / name / "result.json").read_text())


@pytest.fixture
def place(tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return Hosts(tmp_path, environment)


@nightly
@pytest.mark.parametrize("killed", [0, 1])
def test_a_run_ends_with_one_of_its_processes_and_continues(place, killed):
    """To the numbers of one process, which continues it, too."""
    words = [*WORDS, "trainer.epochs=4"]
    with place.start(0, *words) as first, place.start(1, *words) as second:
        wait_until((place.folder / "r/checkpoint.npz").exists, 120)
        both = [first, second]
        both[killed].kill()
        code = both[1 - killed].wait(20)
    if code != -signal.SIGABRT:  # JAX may be faster where the first process has died
        assert code == 128 + signal.SIGTERM
        ended = [line for line in place.lines(1 - killed) if "has ended" in line]
        assert len(ended) == 1 and f"hydra.run.dir={place.folder}/r" in ended[0]
        printed = "".join(place.lines(1 - killed))
        assert "Traceback" not in printed and "Error executing" not in printed
    with place.start(0, *words) as first, place.start(1, *words) as second:
        assert (first.wait(240), second.wait(240)) == (0, 0), place.lines(0) + place.lines(1)
    assert any("training continues after epoch" in line for line in place.lines(0))
    assert not place.lines(1)
    alone = [word for word in words if "devices" not in word and "run.dir" not in word]
    command = [sys.executable, "-m", "clickexp", *alone, "hydra.run.dir=one"]
    subprocess.run(command, cwd=place.folder, env=place.environment, check=True)
    together, one = place.result("r"), place.result("one")
    assert together["test"]["ll"] == pytest.approx(one["test"]["ll"], abs=1e-6)
    assert together["config_hash"] == one["config_hash"]


@nightly
def test_two_processes_with_two_devices_each_report_as_one(place):
    """Both test; the first alone computes intervals, on one device."""
    words = [*WORDS, "trainer.epochs=2", "shared_intervals=true"]
    words += "max_sessions=3000", "dataset.sessions=4000"
    place.environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    with place.start(0, *words) as first, place.start(1, *words) as second:
        assert (first.wait(480), second.wait(480)) == (0, 0), place.lines(0) + place.lines(1)
    alone = [word for word in words if "devices" not in word and "run.dir" not in word]
    command = [sys.executable, "-m", "clickexp", *alone, "hydra.run.dir=one"]
    subprocess.run(command, cwd=place.folder, env=place.environment, check=True)
    together, one = place.result("r"), place.result("one")
    for part in ("test", "per_rank"):
        for name, values in one[part].items():
            np.testing.assert_allclose(together[part][name], values, atol=1e-6, rtol=1e-6)
    for found, known in zip(together["shared"], one["shared"], strict=True):
        for name in ("value", "sd", "relative", "relative_low", "relative_high"):
            assert found[name] == pytest.approx(known[name], rel=1e-5)


@nightly
def test_processes_of_different_runs_end(place):
    with place.start(0, *WORDS) as first, place.start(1, *WORDS, "seed=2") as second:
        assert (first.wait(120), second.wait(120)) == (128 + signal.SIGTERM, 1)
    assert "differs from the first in seed" in place.lines(1)[-1]
    assert "has ended, and so does this one" in place.lines(0)[-1]


@pytest.fixture
def second(monkeypatch):
    """This process is the second of two, whose first one does not answer."""
    address = f"127.0.0.1:{free_port()}"
    names = {hosts.ADDRESS: address, hosts.COUNT: "2", hosts.INDEX: "1"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(hosts, "_START", 0)


def test_a_process_that_starts_again_after_the_end_of_the_run_ends(
    second, tmp_path, monkeypatch, capsys
):
    """As a pod does that was stopped while the first one wrote the report: nobody would answer it."""
    command = ["clickexp", "debug=fast", f"hydra.run.dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", [*command])
    (tmp_path / "config.yaml").write_text("save_model: false")
    with pytest.raises(SystemExit, match="1"):
        main()
    assert f"start it, with {hosts.INDEX}=0" in capsys.readouterr().err
    (tmp_path / "result.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", [*command])
    main()
    assert capsys.readouterr().err == f"clickexp: {tmp_path}: the run there has finished\n"


def test_a_sweep_is_for_one_process(second, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["clickexp", "-m", "seed=1,2"])
    with pytest.raises(SystemExit):
        main()
    assert "processes share a single run" in capsys.readouterr().err
