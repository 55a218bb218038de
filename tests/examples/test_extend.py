"""The programs in examples/extend run through the command, and stay as short as the README says."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT

EXAMPLES = ROOT / "examples/extend"
TINY = "dataset.sessions=400 dataset.queries=10 trainer.epochs=2 logger=[] progress=off".split()


def clickexp(folder, example, *arguments):
    """The command as the head of the example's configuration has it, in a folder of the test."""
    path = os.pathsep.join([str(ROOT), str(EXAMPLES / example)])
    return subprocess.run(
        [sys.executable, "-m", "clickexp", "--config-dir", str(EXAMPLES / example / "conf"), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("file, most", [("gru/gru_click_model.py", 60), ("launcher/ssh_launcher.py", 80)])
def test_an_example_is_short(file, most):
    assert len((EXAMPLES / file).read_text().splitlines()) <= most


def test_a_recurrence_trains_and_is_tested_like_any_model(tmp_path):
    done = clickexp(
        tmp_path, "gru", "model=gru", *TINY, "dataset.positions=4", "metric=click", "hydra.run.dir=run"
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["model"] == "GRU" and result["train"]["epochs"] == 2
    ppl, conditional = result["test"]["ppl"], result["test"]["cond_ppl"]
    assert 1 < conditional < 2 and 1 < ppl < 2 and conditional != ppl
    ranks = result["per_rank"]
    # nothing is above the first rank; below it the clicks above matter
    np.testing.assert_allclose(ranks["ppl"][0], ranks["cond_ppl"][0], rtol=1e-5)
    assert not np.allclose(ranks["ppl"][1:], ranks["cond_ppl"][1:], rtol=1e-5)


@pytest.mark.slow
def test_another_launcher_runs_every_job(tmp_path):
    """Without ssh: the Python of a job starts here."""
    arguments = ["launcher=ssh", "hydra.launcher.options.command=[]", "hydra.launcher.options.hosts=[a,b]"]
    done = clickexp(
        tmp_path, "launcher", "-m", *arguments, "model=gctr", *TINY, "seed=1,2", "hydra.sweep.dir=sweep"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads((tmp_path / f"sweep/{number}/job.json").read_text()) for number in range(2)]
    assert [record["status"] for record in records] == ["finished"] * 2
    for number in range(2):
        result = json.loads((tmp_path / f"sweep/{number}/result.json").read_text())
        assert result["model"] == "GCTR" and result["seed"] == number + 1
