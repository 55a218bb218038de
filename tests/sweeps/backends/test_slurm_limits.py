"""The time that SLURM is asked for; no cluster is needed, only the name of a command."""

import pytest
import yaml
from places import ROOT
from refusals import refuses

from clickexp.errors import ConfigError

SETTINGS = yaml.safe_load((ROOT / "conf/launcher/slurm.yaml").read_text())["hydra"]["launcher"]


@pytest.fixture
def pool_with(tmp_path, monkeypatch):
    pytest.importorskip(
        "submitit", reason="submitit is not installed: pip install 'clickexp[slurm]'"
    )
    from clickexp.sweeps.backends.slurm import SlurmPool

    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return lambda **settings: SlurmPool(tmp_path, **SETTINGS | settings)


@pytest.mark.parametrize(
    "job_minutes, timeout, asked",
    [(None, 240, 240), (30, 240, 30 + 2 + 5), (0.5, 240, 3 + 5), (239, 240, 240), (10, 10, 10)],
)
def test_slurm_is_asked_for_the_time_of_a_job_and_of_its_start_and_end(
    pool_with, job_minutes, timeout, asked
):
    """Two minutes for the signal, five to start; never more than the user's own limit."""
    pool = pool_with(job_minutes=job_minutes, timeout_min=timeout, signal_delay_s=120)
    assert pool.executor._executor.parameters["time"] == asked
    assert pool._call_minutes == job_minutes


def test_a_job_may_not_take_longer_than_slurm_lets_it(pool_with):
    with refuses(
        ConfigError, "hydra.launcher.job_minutes=300", "timeout_min=240", "raise the other"
    ):
        pool_with(job_minutes=300)
