"""clickexp.run: the command as a function, and what its result gives to look at."""

import json

import pytest
from places import ROOT
from refusals import refuses
from small_runs import write_run

import clickexp
from clickexp.errors import ConfigError, UserError
from clickexp.experiment.api import FittedRun
from clickexp.results import load
from clickexp.results.loading import find_runs

SMALL = {"debug": "fast", "logger": [], "progress": "off", "metric": ["click", "calibration"]}
LOG = {"dataset.sessions": 2000, "dataset.queries": 50, "max_sessions": 500}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    cache = {"cache_dir": folder / "cache"}
    text = "it's, a [test] of $ {text}"
    return clickexp.run(
        "seed=3", model="rctr", folder=folder / "out", notes=text, **SMALL, **LOG, **cache
    )


def test_it_writes_what_the_command_writes(result):
    written = json.loads((result.folder / "result.json").read_text())
    assert written["model"] == result.result.model == result.model.name == "RCTR"
    assert written["seed"] == 3 and written["test"] == result.result.test
    assert (result.folder / "model.npz").exists() and result.report.exists()
    assert result.result.config["notes"] == "it's, a [test] of $ {text}"
    assert load(result.folder).height > 0


def test_its_result_has_data_frames(result):
    metrics = {row["metric"]: row for row in result.metrics.iter_rows(named=True)}
    assert (
        metrics["ppl"]["value"] == result.result.test["ppl"]
        and metrics["ppl"]["higher_is_better"] is False
    )
    assert (
        metrics["ppl"]["rank-CTR"] > metrics["ppl"]["true user"] > 1
        and metrics["ece"]["true user"] is None
    )
    assert metrics["ll"]["validation"] == result.result.val["ll"]
    assert result.epochs["epoch"].to_list() == [1, 2] and "val/loss" in result.epochs.columns
    assert result.per_rank["rank"].to_list() == list(range(1, 11))
    assert result.per_rank["ppl"].mean() == pytest.approx(metrics["ppl"]["value"])
    assert "RCTR on simulated" in repr(result) and "ppl=" in repr(result)


def test_its_result_is_plotted(result):
    assert len(result.plot().axes) == 4
    figure = result.plot("perplexity", "learning")
    assert [axes.get_xlabel() for axes in figure.axes] == ["Rank", "Rank", "Epoch"]
    assert figure._repr_png_().startswith(b"\x89PNG")
    with refuses(UserError, "cost", "choose from perplexity, learning, calibration"):
        result.plot("cost")


def test_a_result_may_have_no_references(tmp_path):
    run = find_runs([write_run(tmp_path / "run")])[0][0]
    fitted = FittedRun(run, None, None)
    assert fitted.metrics.columns == ["metric", "value", "higher_is_better", "validation"]
    assert len(fitted.plot("examination").axes) == 1


@pytest.mark.parametrize(
    "words, settings, parts",
    [
        ((), {"model": "pbmm"}, ["model pbmm", "Did you mean pbm?"]),
        ((), {"modle": "pbm"}, ["modle", "Did you mean model?"]),
        ((), {"model": "pbm,ubm"}, ["model pbm,ubm"]),
        (("--multirun",), {}, ["clickexp.run", "seed=1"]),
        (("pbm",), {}, ["pbm: ", "key=value"]),
        (({"seed": 1},), {}, ["'seed=1'", "{'seed': 1}"]),
        ((), {"optimized_metric": "val/none"}, ["optimized_metric=val/none"]),
        ((), {"config_dir": "missing"}, ["config_dir=missing"]),
    ],
)
def test_mistakes_have_the_message_of_the_command(words, settings, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refuses(ConfigError, *parts):
        clickexp.run(*words, **settings)
    assert not list(tmp_path.iterdir())


def test_options_of_ones_own_are_found(tmp_path):
    conf = tmp_path / "my conf/model"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text((ROOT / "conf/model/rctr.yaml").read_text())
    small = {**SMALL, **LOG, "cache_dir": tmp_path / "cache", "report": False, "save_model": False}
    result = clickexp.run(
        model="mine", config_dir=tmp_path / "my conf", folder=tmp_path / "out", **small
    )
    assert result.result.model == "RCTR" and not result.report.exists()


TRAINER = '''
from clickexp.loggers import Logger
from clickexp.training import Trainer


class Short(Trainer):
    """Has its own settings, and takes of the others what it names."""

    def __init__(self, passes, optimizer=None, metrics=None, logger=None):
        super().__init__(optimizer, passes, None, metrics=metrics, logger=logger or Logger())
'''


def test_a_trainer_may_define_its_constructor(tmp_path, monkeypatch):
    (tmp_path / "short_trainer.py").write_text(TRAINER)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "conf/trainer").mkdir(parents=True)
    (tmp_path / "conf/trainer/short.yaml").write_text("_target_: short_trainer.Short\npasses: 2\n")
    options = {key: value for key, value in SMALL.items() if key != "debug"} | {
        "folder": tmp_path / "out"
    }
    found = clickexp.run(
        model="rctr", trainer="short", config_dir=tmp_path / "conf", **options, **LOG
    )
    assert found.epochs["epoch"].to_list() == [1, 2]
