"""Importances of hyperparameters, and the commands that runs came from."""

import numpy as np
import pytest
import yaml
from small_runs import write_json, write_run

from clickexp.results import find_runs
from clickexp.results.comparison import comparisons
from clickexp.results.hyperparameters import commands, importances
from clickexp.results.pages.comparison import data


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """20 trials whose loss depends on the rate, and on nothing else that varies."""
    folder, rng = tmp_path_factory.mktemp("search"), np.random.default_rng(0)
    for trial, (rate, size) in enumerate(rng.uniform(size=(20, 2))):
        settings = [("rate", float(10 ** (2 * rate))), ("size", float(size)), ("fixed", 1)]
        write_run(folder / str(trial), settings=settings, val={"loss": abs(rate - 0.7)})
        write_json(
            folder / f"{trial}/job.json", {"number": trial, "status": "finished", "result": ""}
        )
    (folder / "best.yaml").write_text(yaml.safe_dump({"metric": "val/loss", "trial": 0}))
    return folder


def test_what_the_metric_depends_on_is_important(searched):
    pytest.importorskip("optuna")
    (one,) = comparisons(find_runs([searched])[0])
    found = importances(one.groups, "val/loss", -1)
    assert set(found) == {"optimizer.rate", "optimizer.size"} and sum(
        found.values()
    ) == pytest.approx(1)
    assert found["optimizer.rate"] > 0.8
    assert (
        importances(one.groups[:3], "val/loss", -1) == {} == importances(one.groups, "val/loss", 0)
    )
    shown = data([one], [], searched)["comparisons"][0]
    assert shown["optimized"] == "val/loss" and shown["importances"] == pytest.approx(
        found, abs=1e-5
    )


def test_the_command_of_a_sweep_has_all_values_of_each_key(tmp_path):
    for number, model in enumerate(("UBM", "PBM")):
        for seed in (1, 2):
            write_run(tmp_path / f"a/{number}{seed}", model, seed, settings=[("rate", 0.1)])
    write_run(tmp_path / "b/0", "CM", 1)
    groups = [group for one in comparisons(find_runs([tmp_path])[0]) for group in one.groups]
    assert sorted(commands(groups)) == [
        "clickexp -m model=ubm,pbm seed=1,2 optimizer.rate=0.1", "clickexp model=cm seed=1",
    ]  # fmt: skip
