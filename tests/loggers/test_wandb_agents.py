"""A sweep of W&B: its agent runs the documented configuration against a server on this machine."""

import os
import re
import subprocess
import sys

import pytest
from places import ROOT
from wandb_server import ENTITY, WandbServer

pytestmark = pytest.mark.nightly

PAGE = (ROOT / "docs/howto/dashboards.md").read_text()
(SWEEP,) = re.findall(r"```yaml title=\"sweep.yaml\"\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the documented file, and `clickexp` on the path."""
    commands = tmp_path / "bin"
    commands.mkdir()
    code = (
        "import sys; from clickexp.cli.main import main; sys.argv[0] = 'clickexp'; sys.exit(main())"
    )
    (commands / "clickexp").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    (commands / "clickexp").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return tmp_path


def wandb(place, server, *words):
    done = subprocess.run(
        [sys.executable, "-m", "wandb", *words],
        cwd=place,
        env=os.environ | server.environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


def test_an_agent_runs_what_the_sweep_chooses(place):
    with WandbServer() as server:
        code, printed = wandb(place, server, "sweep", "--project", "clickexp", "sweep.yaml")
        address = f"{ENTITY}/clickexp/sweep"
        assert code == 0 and f"wandb agent {address}" in printed
        server.commands.append({"model": "pbm", "optimizer.learning_rate": 0.5, "debug": "fast"})
        code, printed = wandb(place, server, "agent", "--count", "1", address)
        assert code == 0, printed
        run = server.runs["run"]
        assert run["ended"] == 0 and run["project"] == "clickexp"
        assert run["config"]["optimizer.learning_rate"] == 0.5
        assert run["summary"]["val/loss"] > 0
        assert len([*place.glob("outputs/*/*-pbm/result.json")]) == 1
        assert server.artifacts["model-run"] == ["latest"]
        assert server.used == ["log-simulated"] and server.alerts == []


def test_a_run_whose_loss_is_not_finite_sends_an_alert(place):
    with WandbServer() as server:
        wandb(place, server, "sweep", "--project", "clickexp", "sweep.yaml")
        chosen = {
            "model": "pbm",
            "debug": "fast",
            "attraction.posterior": "none",
            "optimizer": "sgd",
            "optimizer.learning_rate": 1e38,
        }
        server.commands.append(chosen)
        wandb(place, server, "agent", "--count", "1", f"{ENTITY}/clickexp/sweep")
        (alert,) = server.alerts
        assert alert.startswith("PBM-simulated-0: DivergedError:")
        assert server.runs["run"]["ended"] == 1
