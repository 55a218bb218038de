"""The command as a user types it: runs, their files, sweeps, and errors in one line.

What is not about the process runs in this one, which saves the seconds of a start.
"""

import importlib
import importlib.metadata
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
from compositions import CONF, run_in
from hydra.core.hydra_config import HydraConfig
from places import ROOT
from refusals import refuses
from small_runs import write_run

from clickexp.cli.main import main
from clickexp.errors import ConfigError
from clickexp.experiment.values import default_value
from clickexp.utils import exits
from clickexp.utils.paths import display_path

SMALL = [
    "debug=fast",
    "report=false",
    "max_sessions=500",
    "dataset.sessions=2000",
    "dataset.queries=50",
]
FAST = [*SMALL, "metric.cutoffs=[10]"]
EDGE = ["logger=console", "progress=off"]


def in_a_process(folder, *arguments):
    """Without W&B's key or settings, in a folder that is also its home."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "HYDRA"))
    }
    env |= {"HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    line = [sys.executable, "-m", "clickexp", *arguments]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def clickexp(folder, *arguments, **environment):
    """In this process, which is afterwards as before."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["clickexp", *arguments])
        patch.setattr("atexit.register", lambda _: None)
        patch.setattr("hydra._internal.logging_config.configure_logging", lambda _: None)
        patch.setattr(HydraConfig.instance(), "cfg", None)
        for name, value in {exits.FULL_ERROR: "0", "HOME": str(folder), **environment}.items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            signal.signal(signal.SIGTERM, handler)
    return Ended(code or 0, out.getvalue(), errors.getvalue())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The default loggers, in a fresh folder."""
    folder = tmp_path_factory.mktemp("run")
    done = in_a_process(folder, *FAST, "report=true", "verbose=true", "seed=3", "hydra.run.dir=out")
    assert done.returncode == 0, done.stderr
    return folder / "out", done


def test_a_run_leaves_its_result(run):
    folder, _ = run
    result = json.loads((folder / "result.json").read_text())
    assert result["model"] == "UBM" and result["dataset"] == "simulated" and result["seed"] == 3
    assert {"ll", "ppl", "cond_ppl", "loss", "auc", "ndcg@10", "dcg@10", "mrr@10"} <= set(
        result["test"]
    )
    assert result["test"]["loss"] == pytest.approx(-result["test"]["ll"])
    assert {"ll", "ppl", "cond_ppl", "examination", "sessions"} <= set(result["per_rank"])
    assert np.mean(result["per_rank"]["ppl"]) == pytest.approx(result["test"]["ppl"])
    assert result["per_rank"]["sessions"] == [300] * 10
    assert np.mean(result["per_rank_val"]["ppl"]) == pytest.approx(result["val"]["ppl"])
    assert 100 < result["train"]["peak_host_mib"] < 1e5
    train = result["train"]
    assert train["epochs"] == 2 and train["sessions"] == 1000
    assert 0 < train["compile_seconds"] < train["seconds"]
    assert train["training_seconds"] == pytest.approx(train["seconds"] - train["compile_seconds"])
    stated = result["higher_is_better"]
    assert stated.keys() == result["test"].keys() >= result["val"].keys()
    assert [stated[name] for name in ("ll", "loss", "ppl", "ndcg@10", "attraction_rmse", "examination")] == [
        True, False, False, True, False, None
    ]  # fmt: skip
    rate = train["sessions"] / (train["seconds"] - train["compile_seconds"])
    assert train["sessions_per_second"] == pytest.approx(rate)
    assert result["environment"]["jax"] and result["environment"]["device"]
    assert len(result["config_hash"]) == 16


def test_a_run_leaves_epochs_configuration_model_and_dashboard(run):
    folder, _ = run
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert "seed: 3" in (folder / "config.yaml").read_text()
    assert "${" not in (folder / "config.yaml").read_text()
    assert (folder / "model.npz").stat().st_size > 0
    assert list(folder.glob("wandb/offline-run-*/run-*.wandb"))


def test_a_run_shows_configuration_epochs_and_tables(run):
    _, done = run
    shown = (
        "clickexp.models.UserBrowsingModel",
        "val/cond_ppl",
        "ndcg ↑",
        "rank-CTR",
        "wandb sync",
        "click rate",
    )
    for text in (*shown, "results in out"):
        assert text in done.stdout
    assert done.stdout.splitlines()[-1] == "report: out/report.html"
    assert "libtpu" not in done.stdout + done.stderr


def test_a_run_leaves_a_page_with_references(run):
    folder, _ = run
    references = json.loads((folder / "result.json").read_text())["references"]
    test = {name: reference["test"]["ppl"] for name, reference in references.items()}
    assert 1 < test["true user"] < test["rank-CTR"] < 2
    text = (folder / "report.html").read_text()
    assert (
        "clickexp debug=fast" in text
        and "max_sessions" in text
        and f"{test['rank-CTR']:.4f}" in text
    )
    assert text.count('class="panels" role="img"') >= 4


def test_a_report_that_cannot_be_written_fails_no_run(tmp_path, monkeypatch, capsys):
    """The result is there already."""
    monkeypatch.setitem(sys.modules, "clickexp.results.pages.write", None)
    run_in(
        tmp_path / "out",
        *SMALL,
        *EDGE,
        "report=true",
        "metric=click",
        "model=gctr",
        f"cache_dir={tmp_path}/cache",
    )
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("no report was written (ModuleNotFoundError: ")
    assert (tmp_path / "out/result.json").exists()


def test_the_same_seed_gives_the_same_result(run, tmp_path):
    done = clickexp(tmp_path, "-m", *FAST, *EDGE, "seed=3,4", "hydra.sweep.dir=sweep")
    assert done.returncode == 0, done.stderr
    folders = run[0], tmp_path / "sweep/0", tmp_path / "sweep/1"
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    assert results[0]["test"] == results[1]["test"] != results[2]["test"]
    assert results[0]["config_hash"] == results[1]["config_hash"] != results[2]["config_hash"]


@pytest.mark.nightly
def test_a_sweep_runs_each_job_in_its_own_folder(tmp_path):
    done = in_a_process(
        tmp_path, "-m", *SMALL, *EDGE, "metric=click", "model=gctr,rctr", "hydra.sweep.dir=sweep"
    )
    assert done.returncode == 0, done.stderr
    models = [
        json.loads((tmp_path / f"sweep/{n}/result.json").read_text())["model"] for n in (0, 1)
    ]
    assert models == ["GCTR", "RCTR"]


@pytest.mark.nightly
def test_a_sweep_over_mixtures_composes_the_components_of_each_job(tmp_path):
    """The components come with the overrides of their job, and the files hold them in full."""
    mixtures = "model.components=[gctr,rctr],[pbm,ubm]"
    arguments = [
        "model=mixture",
        mixtures,
        "attraction.prior_precision=2.0",
        "hydra.sweep.dir=sweep",
    ]
    done = clickexp(tmp_path, "-m", *SMALL, *EDGE, "metric=click", *arguments)
    assert done.returncode == 0, done.stderr
    results = [json.loads((tmp_path / f"sweep/{n}/result.json").read_text()) for n in (0, 1)]
    assert [result["model"] for result in results] == ["Mixture(GCTR, RCTR)", "Mixture(PBM, UBM)"]
    assert results[0]["config_hash"] != results[1]["config_hash"]
    config = (tmp_path / "sweep/1/config.yaml").read_text()
    for text in (
        "clickexp.models.UserBrowsingModel",
        "use_feature: examination_idx",
        "prior_precision: 2.0",
    ):
        assert text in config
    stored = np.load(tmp_path / "sweep/1/model.npz")
    assert "prior" in stored and len([name for name in stored if name.endswith("table")]) == 1


SHARED = """
import os, pathlib, jax
from clickexp.experiment.build import share_compilations

share_compilations(pathlib.Path())
for _ in range(2):
    print(jax.jit(lambda x: jax.numpy.sin(x) * 3)(jax.numpy.arange(3.0)))
    jax.clear_caches()
    entries = list(pathlib.Path("xla").iterdir())
    for entry in entries:
        os.truncate(entry, 100)
assert entries
"""


def test_what_another_process_has_half_written_is_compiled_in_silence(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX")}
    done = subprocess.run(
        [sys.executable, "-c", SHARED], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        2 * "[0.        2.5244129 2.7278922]\n",
        "",
    )


@pytest.mark.nightly
def test_a_run_whose_output_nobody_reads_comes_to_its_result(tmp_path):
    end, target = os.pipe()
    os.close(end)
    words = [*SMALL, "metric=click", "logger=console", "hydra.run.dir=out"]
    done = subprocess.run(
        [sys.executable, "-m", "clickexp", *words],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=target,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(target)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "out/result.json").read_text())["train"]["epochs"] == 2


def test_other_commands_go_on_without_their_output(tmp_path):
    code = "from clickexp.utils.exits import ending\nwith ending('x'):\n  print('y' * 10**6); open('done', 'w')"
    pipe = '"$0" -c "$1" | head -c 1 > /dev/null; exit ${PIPESTATUS[0]}'
    line = ["bash", "-c", pipe, sys.executable, code]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "done").exists()


WRONG = {
    "model=ubmm": ["model ubmm", "Did you mean ubm?", "cacm, cacm_minus, ccm, cm, "],
    "modle=pbm": ["modle", "Did you mean model?"],
    "+trainer.epoch=5": ["trainer.epoch", "Did you mean trainer.epochs?", "Trainer takes "],
    "+lr=0.1": ["+lr=0.1", "Did you mean optimizer.learning_rate?"],
    "+expriment=cascade_user": ["Did you mean +experiment?"],
    "experiment=cascade_user": ["write it with a plus, +experiment=cascade_user"],
    "+model=pbm": ["+model", "without the plus: model=pbm"],
    "+sweep=seedz": ["seedz", "Did you mean seeds?"],
    "metric=[click,foo]": ["foo", "all, calibration, click"],
    "parameter=deep": ["Did you mean to override one of parameter@attraction, "],
    "attraction=depp": ["depp", "Did you mean deep?"],
    "attraction=deep": [
        "model.attraction",
        "query_doc_features",
        "dataset=baidu_ultr_uva or dataset=impressions or dataset=letor or dataset=lists",
    ],
    "model=pbm examination=browsing dataset.sessions=500": [
        "model.examination.use_feature=examination_idx"
    ],
    "debug=null": ["debug=null", "choose an option of debug", "clickexp --help"],
    "++attraction=deep": ["attraction", "defaults list: override /parameter@"],
    "dataset.user=pbm": ["dataset.user='pbm'", "give a group of keys with _target_"],
    "metric.click=5": ["metric.click=5", "~metric.click leaves it out"],
    "seed=abc hydra.run.dir=mine/run": ["clickexp: seed='abc'", "give an integer"],
    "-m seed=1,2,-3": ["seed=-3", "at least 0 and at most 4294967295"],
    "-m dataset.train_sessions=0.5,0.9": ["train_sessions=0.9", "sum to 1.2"],
    "-m model=pbm,5 seed=1,2": ["model=pbm,5", "choose an option of model"],
    "-m launcher=accelerators +hydra.launcher.worker=2 seed=1,2": [
        "hydra.launcher.worker",
        "Did you mean hydra.launcher.workers?",
        "takes workers, jobs_per_device",
    ],
    "hydra.run.dir=": ["hydra.run.dir= ", "give a folder, or leave it out"],
    "cache_dir=": ["cache_dir= ", "give a folder, or leave it out"],
    "continue_from=nowhere": ["continue_from=nowhere", "Give the folder of an interrupted run"],
    "continue_from=conf": ["continue_from=conf", "checkpoint.npz"],
    "launcher=accelerators": ["launcher", "add -m, or leave it out"],
    "dataset=lists": ["dataset.path", "add dataset.path=..., such as dataset.path=my/clicks"],
    "dataset=lists dataset.path=nowhere seed=1,2 -m": ["nowhere: no such file or folder"],
    "dataset=tiangong_st dataset.path=mine": ["mine/train_per_query_quid.txt: no such file"],
    "trainer=em model=cm dataset=lists dataset.path=nowhere": ["not CM"],
    "dataset.documents_per_query=3": ["only 3 documents"],
    "model._target_=clickexp.models.Nope": ["model._target_=clickexp.models.Nope"],
    "--config-dir conf model=without_target": ["model: ", "_target_"],
    "--config-dir conf model=broken": ['conf/model/broken.yaml", line 2'],
    "~model": ["~model", "choose one by model=..."],
    "--model pbm": ["--model: ", "key=value", "model=pbm"],
    "dbn seed=1": ["dbn: ", "key=value", "such as model=dbn"],
    "search=tpe": ["key='interval(0.1,1)' or key=a,b,c", "clickexp -m search"],
    "-m search=tpe seed=1,2 search.trials=null": [
        "search.trials=null",
        "search=grid",
        "give at least 1",
    ],
    "-m search=tpe optimizer.learning_rate=interval(-1,1)": [
        "optimizer.learning_rate=-0.998",
        "above 0",
    ],
    "-m --cfg job seed=1,2": ["--multirun and --cfg", "Leave --multirun out"],
    "-m seed=1,2 seed=3": ["seed=1,2 and seed=3", "give seed once"],
    "dataset=data/clicks.parquet": [
        "dataset.path=data/clicks.parquet",
        "dataset=lists",
        "clickexp-data inspect data/clicks.parquet",
    ],
    "dataset=mslr": ["no dataset mslr", "Did you mean letor?"],
    "metric=ndcg@10": ["ndcg@10", "metric=ranking"],
    "model=pmb": ["no model pmb", "Did you mean pbm?"],
    "model=pbm,seed=1": ["model=pbm seed=1"],
    "model=dbn,pbm": ["model=dbn,pbm", "add -m"],
    "dataset.path=my/a,b": ["dataset.path=my/a,b", "quote it: 'dataset.path=\"my/a,b\"'"],
    "context=both": ["+context=both"],
    "trainer.iterations=3": ["no key trainer.iterations", "belongs to trainer=em"],
    "-m hydra.launcher.workers=2 seed=1,2": ["belongs to launcher=accelerators"],
    "device=gpu": ["no key device", "JAX_PLATFORMS=cpu", "trainer.devices=all"],
}
"""Words of a command, and what the message about them names: the key, and the remedy."""
ALIKE = {
    "trainer.epoch=5": ["trainer.epoch", "Did you mean trainer.epochs?"],
    "lr=0.1": ["lr", "Did you mean optimizer.learning_rate?"],
    "attraction=5": ["model.attraction=5", "give Parameter or"],
    "dataset=lists dataset.path=x dataset.columns=5": [
        "dataset.columns=5",
        "give a group of keys, or null",
    ],
    "metric.ranking.dcg.form=foo": ["form='foo'", "give exponential, linear or original"],
    "-m launcher=slurm hydra.launcher.timeout_min=4h seed=1,2": [
        "hydra.launcher.timeout_min='4h'",
        "give an integer",
    ],
    "-m seed=1,2 hydra.sweep.dir=": ["hydra.sweep.dir= ", "give a folder, or leave it out"],
    "optimized_metric=val/lll": ["Did you mean val/ll?"],
    "trainer.early_stopping.metric=foo": ["'foo'"],
    "-m search=tpe seed=1,b": ["seed='b'", "give an integer"],
    "search=tpe trainer.epoch=1,2": ["trainer.epoch", "Did you mean trainer.epochs?"],
    "model=mixture model.components=[]": ["at least one click model"],
    "-m trainer.epoch=1,2": ["trainer.epoch", "Did you mean trainer.epochs?"],
    "+sead=3": ["+sead=3", "Did you mean seed?"],
    "-m attraction=linear,deep attraction.features=3": ["model.attraction", "query_doc_features"],
    "attraction.use_feature=nope dataset.sessions=500": [
        "model.attraction.use_feature=nope",
        "It has ",
    ],
    "parameter@attraction=5": ["parameter@attraction=5", "choose an option of parameter"],
    "trainer.early_stopping=5": ["trainer.early_stopping=5", "give EarlyStopping"],
    "+optimizer.momentum=1": ["optimizer.momentum", "there is no such key"],
    "-m seed=1,b": ["seed='b'", "give an integer"],
    "-m max_sessions=5,6,0 seed=1,2": ["max_sessions=0", "give at least 1"],
    "-m optimizer.learning_rate=0.1,0.2,-1": ["optimizer.learning_rate=-1", "above 0"],
    "-m launcher=accelerators hydra.launcher.workers=x seed=1,2": [
        "hydra.launcher.workers='x'",
        "give an integer",
    ],
    "-m launcher=accelerators hydra.launcher.workers=0 seed=1,2": [
        "hydra.launcher.workers=0",
        "give at least 1",
    ],
    "-m seed=1,2 sweeps_dir=": ["sweeps_dir= ", "give a folder, or leave it out"],
    "-m seed=1,2 cache_dir=": ["cache_dir= ", "give a folder, or leave it out"],
    "seed=-1": ["seed=-1", "at least 0 and at most 4294967295"],
    "dataset.sessions=0": ["dataset.sessions=0", "give at least 1"],
    "dataset.train_sessions=0.9": [
        "train_sessions=0.9, val_sessions=0.15, test_sessions=0.15",
        "sum to 1.2",
    ],
    "optimized_metric=val/nope": ["optimized_metric=val/nope", "The nearest is val/ppl."],
    "dataset=lists dataset.path=nowhere": ["nowhere: no such file or folder"],
    "dataset=lists seed=1,2 -m": ["dataset.path"],
    "trainer=counting model=dbn dataset=lists dataset.path=nowhere": ["not DBN"],
    "--config-dir conf model=empty": ["model: ", "_target_"],
    "--config-dir conf model=list": ["model: ", "_target_"],
    "model=mixture model.components=[pbm,ubmm]": ["'ubmm'"],
    "model=mixture model.temperature=0": ["temperature=0", "above 0"],
    "metric=[]": ["metric=[]", "metric=click"],
    "model=[pbm,ubm]": ["one model", "-m model=pbm,ubm", "model=mixture"],
    "-m model=pbm ubm": ["ubm", "-m model=pbm,ubm"],
    "-m search=tpe": ["nothing to search over"],
    "-m search=tpe seed=1,2 search.trials=0": ["search.trials=0", "give at least 1"],
    "-m search=tpe seed=1,2 optimized_metric=val/nope": ["optimized_metric=val/nope"],
}
"""Others that take the same way through the code, or that tests of the layers below have."""
OPTIONS = {"without_target": "epochs: 1", "empty": "", "list": "- 1", "broken": "a: 1\nb: }"}
"""Options of a user's own group of models, none of which describes one."""


@pytest.mark.parametrize(
    "mistakes", [WRONG, pytest.param(ALIKE, marks=pytest.mark.nightly)], ids=["all", "alike"]
)
def test_mistakes_are_reported_in_one_line(mistakes, tmp_path):
    """None leaves a run's or a sweep's folder behind, nor takes away what was there."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "conf/model").mkdir(parents=True)
    for name, text in OPTIONS.items():
        (tmp_path / f"conf/model/{name}.yaml").write_text(text)
    wrong = []
    for words, parts in mistakes.items():
        code, printed, errors = clickexp(tmp_path, FAST[0], *EDGE, *words.split())
        one_line = len(errors.splitlines()) == 1 and errors.startswith("clickexp: ")
        if code != 1 or printed or not one_line or not all(part in errors for part in parts):
            wrong.append(
                f"clickexp {words}: exit code {code}, {printed!r}, {errors!r} in place of {parts}"
            )
    assert not wrong, "\n".join(wrong)
    assert {file.name for file in tmp_path.iterdir()} <= {"conf", "mine", "outputs"}
    assert {file.name for file in tmp_path.glob("outputs/*")} <= {"cache"}
    assert not [file for file in tmp_path.glob("outputs/**/*") if file.is_file()]
    assert not [*(tmp_path / "mine").iterdir()]


def test_the_whole_trace_is_there_for_who_wants_it(tmp_path, monkeypatch):
    monkeypatch.setattr(exits, "SHOW_TRACE", True)
    with refuses(ConfigError, "seed='abc'"):
        clickexp(tmp_path, "seed=abc")


def test_messages_show_paths_below_the_working_directory_as_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert display_path(tmp_path / "a/b") == display_path("a/b") == "a/b"
    assert display_path(tmp_path.parent / "c") == f"{tmp_path.parent}/c"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The help."""
    done = clickexp(tmp_path_factory.mktemp("help"), "--help", COLUMNS="80")
    assert done.returncode == 0
    return done.stdout


def test_help_names_groups_with_their_options(shown):
    words = " ".join(shown.split())
    for text in ("model the click model: cacm, cacm_minus, ccm, ", "=deep", "method as +method"):
        assert text in words
    lines = shown.splitlines()
    assert len(lines) <= 72 and max(map(len, lines)) <= 80
    groups = {file.name: sorted(file.glob("*.yaml")) for file in CONF.iterdir() if file.is_dir()}
    for group in groups.keys() - {"hydra", "reproduction", "local"}:
        named = ", ".join(file.stem for file in groups[group])
        assert named in words, group


def test_every_option_opens_with_a_sentence():
    groups = sorted({file.parent for file in CONF.glob("*/*.yaml")} - {CONF / "reproduction"})
    assert len(groups) > 15
    for group in groups:
        for file in group.glob("*.yaml"):
            head = itertools.takewhile(lambda line: line[:1] == "#", file.read_text().splitlines())
            texts = [line.lstrip("# ") for line in head]
            others = ("clickexp", "@package", "hydra", "dataset.")
            assert any(text.endswith(".") for text in texts if not text.startswith(others)), file


@pytest.mark.parametrize(
    "words",
    [
        "data",
        "data prepare",
        "data inspect",
        "data verify",
        "compare",
        "compare wandb",
        "compare online",
        "export",
    ],
)
def test_the_help_of_other_commands_fits_80_columns(words, monkeypatch, capsys):
    command, *rest = words.split()
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(f"clickexp.cli.{command}").main([*rest, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5 and max(map(len, lines)) <= 80


def test_help_shows_a_folder_of_ones_own(tmp_path):
    (tmp_path / "conf/model").mkdir(parents=True)
    (tmp_path / "conf/model/mine.yaml").write_text("_target_: my.Model\n")
    done = clickexp(tmp_path, "--help", "--config-dir", "conf")
    assert "mine, mixture, ncm" in " ".join(done.stdout.split())


@pytest.mark.parametrize("command", ["main", "data", "compare", "export"])
def test_every_command_has_our_version(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["clickexp", "--version"])
    monkeypatch.setenv(exits.FULL_ERROR, "0")
    code = 0
    try:
        importlib.import_module(f"clickexp.cli.{command}").main()
    except SystemExit as end:
        code = end.code or 0
    ours = f"clickexp {importlib.metadata.version('clickexp')}\n"
    assert (code, *capsys.readouterr()) == (0, ours, "")


PRINTS = [
    ("main", "--version"), ("data", "--help"), ("main", "--help"), ("main", "--info"), ("main", "--cfg job"),
    ("main", "--hydra-help"), ("compare", "--help"), ("export", "--help"),
]  # fmt: skip
WORKS_BEFORE = [("compare", "runs"), ("data", "inspect log.parquet")]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""Where output is not buffered, argparse hides that it is lost."""


def first(count, commands):
    """So many in the default tier, since each is a process."""
    return [
        *commands[:count],
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in commands[count:]),
    ]


@pytest.mark.parametrize("command, words", first(2, PRINTS))
def test_what_only_prints_ends_quietly_when_nobody_reads_on(command, words, tmp_path):
    """As in `clickexp --info | head -1`."""
    reads, writes = os.pipe()
    os.close(reads)
    code = f"from clickexp.cli.{command} import main; main()"
    line = [sys.executable, "-c", code, *words.split()]
    done = subprocess.run(line, cwd=tmp_path, stdout=writes, stderr=subprocess.PIPE, text=True)
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command, words", [*first(1, PRINTS), *first(1, WORKS_BEFORE)])
def test_what_only_prints_fails_where_its_output_is_lost(command, words, tmp_path):
    lists = {"query_doc_ids": [[1, 2]] * 30, "clicks": [[True, False]] * 30}
    pl.DataFrame(lists).write_parquet(tmp_path / "log.parquet")
    write_run(tmp_path / "runs/0")
    code = f"from clickexp.cli.{command} import main; main()"
    line = [sys.executable, "-c", code, *words.split()]
    with open("/dev/full", "w") as full:
        options = {"cwd": tmp_path, "env": BUFFERED, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(line, stdout=full, **options)
    name = "clickexp" if command == "main" else f"clickexp-{command}"
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"{name}: No space left on device. Free some space")


def test_a_role_is_chosen_from_the_shell_and_recorded_in_one_way(tmp_path):
    sweep = [
        "-m",
        "attraction=hash,robe",
        "attraction.compression_ratio=5",
        "hydra.sweep.dir=sweep",
    ]
    done = clickexp(tmp_path, "model=dctr", *sweep, *SMALL, *EDGE, "metric=click")
    assert done.returncode == 0, done.stderr
    for number, tower in enumerate(("hash", "robe")):
        job = json.loads((tmp_path / f"sweep/{number}/job.json").read_text())
        assert {f"parameter@attraction={tower}", "attraction.compression_ratio=5"} <= {
            *job["overrides"]
        }
        assert (
            f"- parameter@attraction={tower}"
            in (tmp_path / f"sweep/{number}/.hydra/overrides.yaml").read_text()
        )
    table = (tmp_path / "sweep/sweep.csv").read_text().splitlines()
    assert "parameter@attraction" in table[0].split(",") and len(table) == 3
    assert "compression_ratio: 5" in (tmp_path / "sweep/1/config.yaml").read_text()
    assert "HashEmbedding" in (tmp_path / "sweep/0/config.yaml").read_text()


def test_the_cache_is_in_the_folder_that_the_user_has_for_caches(monkeypatch):
    monkeypatch.delenv("CLICKEXP_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_value("cache_dir") == "~/.cache/clickexp"
    monkeypatch.setenv("XDG_CACHE_HOME", "/of/mine")
    assert default_value("cache_dir") == "/of/mine/clickexp"
    monkeypatch.setenv("CLICKEXP_CACHE", "/on/a/large/disk")
    assert default_value("cache_dir") == "/on/a/large/disk"


def test_a_local_file_sets_paths_of_this_machine(tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local/default.yaml").write_text("# @package _global_\ncache_dir: /my/cache\n")
    done = clickexp(tmp_path, "--cfg", "job", f"hydra.searchpath=[file://{tmp_path}]")
    assert "cache_dir: /my/cache" in done.stdout


@pytest.mark.nightly
def test_bash_completes_options_after_the_line_that_the_documentation_gives(tmp_path):
    command = tmp_path / "bin/clickexp"
    command.parent.mkdir()
    start = "import sys; sys.argv[0] = 'clickexp'; from clickexp.cli.main import main; main()"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{start}" "$@"\n')
    command.chmod(0o755)
    typed = """eval "$(clickexp -sc install=bash)"
        COMP_LINE="clickexp model=pb"; COMP_POINT=17; COMP_WORDS=(clickexp model=pb); COMP_CWORD=1
        hydra_bash_completion; echo "${COMPREPLY[@]}"
    """
    env = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", typed], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.stdout.strip() == "model=pbm", done.stderr


@pytest.mark.parametrize("words", [[], ["install=csh"], ["model=pbm"]])
def test_completion_without_a_shell_ends_in_one_line(words, tmp_path):
    done = clickexp(tmp_path, "--shell-completion", *words)
    assert done.returncode == 1 and not done.stdout
    assert (
        len(done.stderr.splitlines()) == 1 and 'eval "$(clickexp -sc install=bash)"' in done.stderr
    )
