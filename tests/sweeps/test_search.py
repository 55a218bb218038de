"""Search: what Optuna is asked and receives. Most jobs are stand-ins on two imaginary devices."""

import json
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from hydra_plugins.clickexp_sweeper.sweeper import SearchSweeper
from omegaconf import OmegaConf
from refusals import refuses
from sqlalchemy import Engine, event
from stand_in import Place

from clickexp.errors import ConfigError, UserError
from clickexp.experiment import resolve
from clickexp.experiment.conf import CONF
from clickexp.metrics import Metric
from clickexp.runs.store import PRUNED, Record, records
from clickexp.sweeps import search as module
from clickexp.sweeps import space as space_module
from clickexp.sweeps.callback import SweepCallback, collected
from clickexp.sweeps.launcher import JobError
from clickexp.sweeps.study import writing_study

RATE = "optimizer.learning_rate"


class Jobs:
    """The queue, with jobs that report an epoch whenever somebody waits. `curve`: values of the epochs of a point."""

    devices = 2

    def __init__(self, curve):
        self.curve, self.log, self.together, self.pruned = curve, [], 0, []

    def __call__(self, context, task, config, total):
        self.folder, self.metric, self.total = (
            Path(config.hydra.sweep.dir),
            config.optimized_metric,
            total,
        )
        self.jobs, self.ended = {}, []
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @property
    def free(self):
        return self.devices - len(self.jobs)

    @property
    def running(self):
        return {number: self.folder / str(number) for number in self.jobs}

    def start(self, number, overrides):
        assert self.free and not (self.folder / str(number)).exists()
        (self.folder / str(number)).mkdir(parents=True)
        point = dict(override.split("=") for override in overrides)
        self.log.append((number, point))
        values = self.curve(point)
        if isinstance(values, BaseException):
            raise values
        self.jobs[number] = list(values), []
        self.together = max(self.together, len(self.jobs))

    def wait(self, timeout):
        for number, (to_come, reported) in list(self.jobs.items()):
            if to_come:
                reported.append(to_come.pop(0))
                line = json.dumps({"epoch": len(reported), self.metric: reported[-1]})
                with (self.folder / str(number) / "metrics.jsonl").open("a") as file:
                    file.write(line + "\n")
            else:
                self.end(number, min(reported) if reported else None)
        ended, self.ended = self.ended, []
        return ended

    def prune(self, number):
        self.pruned.append(number)
        Record(number, [], "", PRUNED, "").write(self.folder / str(number))
        self.end(number, None)

    def end(self, number, value):
        del self.jobs[number]
        state = JobStatus.FAILED if value is None else JobStatus.COMPLETED
        where = OmegaConf.create(
            {"hydra": {"runtime": {"output_dir": str(self.folder / str(number))}}}
        )
        error = JobError(f"job {number} failed: of no luck")
        returned = JobReturn(
            hydra_cfg=where, status=state, _return_value=error if value is None else value
        )
        self.ended.append((number, returned))


@contextmanager
def stored_in(file):
    """The storage of a study, whose connections are closed in the end."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
    try:
        yield storage
    finally:
        storage.engine.dispose()


def trials_in(file):
    """Of the study s."""
    with stored_in(file) as storage:
        return optuna.load_study(study_name="s", storage=storage).trials


@pytest.fixture(scope="module", autouse=True)
def without_waiting_for_the_disk():
    """Which SQLite does after each number of each trial."""

    def configure(connection, _):
        connection.execute("pragma synchronous = off")

    event.listen(Engine, "connect", configure)
    yield
    event.remove(Engine, "connect", configure)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(curve, *overrides) -> (jobs, study) of a search in one and the same folder."""

    Place(tmp_path)
    monkeypatch.setattr(resolve, "resolve", lambda *_: None)

    def call(curve, *overrides):
        jobs = curve if isinstance(curve, Jobs) else Jobs(curve)
        monkeypatch.setattr(module, "Queue", jobs)
        common = [
            "search.study=s",
            f"hydra.sweep.dir={tmp_path}/s",
            f"hydra.searchpath=['file://{CONF}']",
        ]
        fixed = [o for o in overrides if not re.search(r"=.*(\(|,)", o)]
        with initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"):
            config = compose("small", [*common, *fixed], return_hydra_config=True)
            context = HydraContext(GlobalHydra.instance().config_loader(), None)
            jobs.best = module.search(context, None, config, overrides)
        return jobs

    call.folder = tmp_path / "s"
    call.trials = lambda: trials_in(tmp_path / "s/search.db")
    return call


def rate(point):
    return float(point[RATE])


def parabola(point):
    return [1.0, (rate(point) - 0.3) ** 2]


INTERVAL = f"{RATE}=interval(0,1)"


def test_a_search_finds_the_best_point_and_keeps_all_devices_busy(run):
    jobs = run(
        parabola,
        "+sweep=tune",
        INTERVAL,
        "search=tpe",
        "search.trials=16",
        "search.sampler.n_startup_trials=6",
        "notes=here",
    )
    assert [number for number, _ in jobs.log] == list(range(16)) and jobs.together == jobs.devices
    assert all(point["notes"] == "here" and point["search"] == "tpe" for _, point in jobs.log)
    best = min(jobs.log, key=lambda entry: parabola(entry[1])[-1])
    written = yaml.safe_load((run.folder / "best.yaml").read_text())
    assert written["trial"] == best[0] and written["overrides"] == [f"{RATE}={best[1][RATE]}"]
    assert written["command"] == f"clickexp notes=here {RATE}={best[1][RATE]}"
    assert written["value"] == jobs.best == parabola(best[1])[-1] < 0.01
    record = yaml.safe_load((run.folder / "multirun.yaml").read_text())
    assert "notes=here" in record["hydra"]["overrides"]["task"]  # which all jobs share
    later = [abs(rate(point) - 0.3) for _, point in jobs.log[10:]]
    assert sum(later) / len(later) < 0.25  # uniform draws are 0.29 away on average


def test_metrics_that_grow_with_quality_are_maximised(run):
    jobs = run(parabola, INTERVAL, "search=random", "search.trials=4", "optimized_metric=test/ll")
    values = [min(parabola(point)) for _, point in jobs.log]
    assert jobs.best == max(values) and jobs.pruned == []


class Brier(Metric):
    """A metric of a user, best at 0."""

    higher_is_better = False


class Entropy(Metric):
    """One that states nothing."""


def of_a_user(kind):
    return f"+metric.test.brier={{_target_: {__name__}.{kind}}}", "optimized_metric=test/brier"


def test_a_search_goes_the_way_that_a_metric_states(run):
    jobs = run(parabola, INTERVAL, "search=random", "search.trials=4", *of_a_user("Brier"))
    assert jobs.best == min(min(parabola(point)) for _, point in jobs.log)
    with stored_in(f"{run.folder}/search.db") as storage:
        assert optuna.load_study(study_name="s", storage=storage).direction.name == "MINIMIZE"


def test_a_search_without_a_direction_starts_no_trial(run):
    for given in (of_a_user("Entropy"), ["optimized_metric=test/examination"]):
        jobs = Jobs(parabola)
        with refuses(ConfigError, "optimized_metric=test/", "higher_is_better"):
            run(jobs, INTERVAL, "search=random", "search.trials=2", *given)
        assert jobs.log == [] and not run.folder.exists()


def test_a_study_that_went_the_other_way_is_not_continued(run):
    run.folder.mkdir()
    with stored_in(f"{run.folder}/search.db") as storage:
        optuna.create_study(storage=storage, study_name="s", direction="maximize")
    given = [INTERVAL, "search=random", "search.trials=2", *of_a_user("Brier")]
    with refuses(ConfigError, "search.study=s", "another direction", "another name"):
        run(parabola, *given)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("interval(0.5,2)", optuna.distributions.FloatDistribution(0.5, 2)),
        ("tag(log,interval(0.5,2))", optuna.distributions.FloatDistribution(0.5, 2, log=True)),
        ("int(interval(1,8))", optuna.distributions.IntDistribution(1, 8)),
        ("tag(log,int(interval(1,8)))", optuna.distributions.IntDistribution(1, 8, log=True)),
        ("range(1,10,3)", optuna.distributions.IntDistribution(1, 7, step=3)),
        ("range(0.5,2,0.5)", optuna.distributions.FloatDistribution(0.5, 1.5, step=0.5)),
        ("choice(a,[1,2])", optuna.distributions.CategoricalDistribution(["a", "[1,2]"])),
        ("1,2", optuna.distributions.CategoricalDistribution(["1", "2"])),
    ],
)
def test_hydras_overrides_tell_the_space(text, expected):
    (override,) = space_module.OverridesParser.create().parse_overrides([f"{RATE}={text}"])
    assert space_module._distribution(override, grid=False) == expected


def test_a_grid_has_every_point_once_also_when_repeated(run):
    points = [f"{RATE}=0.1,0.3", "seed=range(1,4)"]

    def failing(point):
        return [] if point["seed"] == "2" else parabola(point)

    with pytest.raises(JobError, match="2 trials failed; job"):
        run(failing, "search=grid", *points)
    jobs = run(parabola, "search=grid", *points)
    assert [point["seed"] for _, point in jobs.log] == ["2", "2"]
    assert [number for number, _ in jobs.log] == [6, 7] and jobs.total == 2
    assert len(run(parabola, "search=grid", *points).log) == 0


def test_trials_that_fall_behind_are_pruned(run):
    jobs = Jobs(lambda point: [5 * rate(point) + 1 / epoch for epoch in range(1, 9)])
    jobs.devices = 1
    run(jobs, INTERVAL, "search=random", "search.trials=10", "search.pruner.n_startup_trials=2")
    states = [trial.state.name for trial in run.trials()]
    assert states.count("PRUNED") == len(jobs.pruned) > 2 and states.count("COMPLETE") >= 3
    assert states[:2] == ["COMPLETE", "COMPLETE"]
    for trial, state in zip(run.trials(), states, strict=True):
        assert len(trial.intermediate_values) in (range(2, 8) if state == "PRUNED" else (8,))
    more = run(jobs.curve, INTERVAL, "search=random", "search.trials=11", "search.pruner=null")
    assert [number for number, _ in more.log] == [10]  # those that were pruned count


def test_what_a_killed_launcher_left_runs_again_under_new_numbers(run):
    def killed(point):
        return KeyboardInterrupt() if len(jobs.log) == 4 else parabola(point)

    jobs, command = Jobs(killed), [INTERVAL, "search=tpe", "search.trials=6", "search.pruner=null"]
    with pytest.raises(KeyboardInterrupt):
        run(jobs, *command)
    states = [trial.state.name for trial in run.trials()]
    assert states.count("RUNNING") in (1, 2) and len(states) == 4
    lost = {trial.params[RATE] for trial in run.trials() if trial.state.name == "RUNNING"}
    again = run(parabola, *command)
    numbers = [number for number, _ in again.log]
    assert numbers == list(range(4, 4 + len(numbers))) and {
        float(f"{value:.6g}") for value in lost
    } <= {rate(point) for _, point in again.log}
    done = [trial.params[RATE] for trial in run.trials() if trial.state.name == "COMPLETE"]
    assert len(done) == len(set(done)) == 6


def test_a_study_is_about_one_thing(run):
    run(parabola, INTERVAL, "search=random", "search.trials=1")
    for overrides, differs in (
        ([f"{RATE}=interval(0,2)"], "space"),
        ([INTERVAL, "model._target_=an.Other"], "configuration"),
        ([INTERVAL, "optimized_metric=val/ppl"], "metric"),
    ):
        with refuses(ConfigError, "search.study=s", f"another {differs};", "another name"):
            run(parabola, *overrides, "search=random")


def test_a_study_does_not_go_on_with_another_log(run):
    """The same path, size and time."""
    log = run.folder.parent / "log.csv"
    log.write_text("clicks\n1\n")
    time = log.stat().st_mtime_ns
    words = [INTERVAL, "search=random", f"dataset.path={log}"]
    run(parabola, *words, "search.trials=1")
    assert len(run(parabola, *words, "search.trials=2").log) == 1
    log.write_text("clicks\n0\n")
    os.utime(log, ns=(time, time))
    with refuses(ConfigError, "search.study=s", "dataset.path", "has changed", "another name"):
        run(parabola, *words, "search.trials=3")
    log.write_text("clicks\n1\n")
    os.utime(log, ns=(time, time))
    assert len(run(parabola, *words, "search.trials=3").log) == 1


def test_a_study_does_not_go_on_where_a_log_that_some_trials_have_is_another(run):
    logs = [run.folder.parent / name for name in ("a.csv", "b.csv")]
    for log in logs:
        log.write_text("clicks\n1\n")
    paths = f"dataset.path={logs[0]},{logs[1]}"
    run(parabola, INTERVAL, paths, "search=random", "search.trials=1")
    assert len(run(parabola, INTERVAL, paths, "search=random", "search.trials=2").log) == 1
    logs[1].write_text("clicks\n0\n")
    parts = "search.study=s", f"what dataset.path={logs[1]} names has changed", "another name"
    with refuses(ConfigError, *parts):
        run(parabola, INTERVAL, paths, "search=random", "search.trials=3")


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (["search=tpe"], ["nothing to search over", "key='interval(0.1,1)'"]),
        (["search=grid", INTERVAL], [INTERVAL, "range(...) or a,b,c"]),
        (["search=tpe", INTERVAL, "search.trials=null"], ["search.trials=null", "at least 1"]),
        (["search=tpe", f"{RATE}=tag(log,interval(0,1))"], [RATE, "low"]),
        (["search=tpe", INTERVAL, "launcher=basic"], ["launcher=accelerators"]),
        (["search=tpe", INTERVAL, "search.trials=many"], ["search.trials='many'", "integer"]),
        (
            ["search=tpe", INTERVAL, "dataset.path=nowhere"],
            ["nowhere", "no such file", "dataset.path"],
        ),
    ],
)
def test_what_cannot_be_searched_is_reported(overrides, parts, run):
    with refuses(ConfigError, *parts):
        run(parabola, *overrides)


@pytest.mark.parametrize(
    "overrides, parts",
    [
        (
            ["search.pruner._target_=optuna.pruners.Nope"],
            ["search.pruner._target_=optuna.pruners.Nope", "nothing of"],
        ),
        (["search.pruner._target_=builtins.dict"], ["search.pruner", "dict", "a pruner of Optuna"]),
        (["search.pruner.n_startup_trials=-5"], ["search.pruner", "n_startup_trials=-5"]),
        (["+search.pruner.foo=3"], ["search.pruner.foo", "no such key", "n_startup_trials"]),
        (
            ["search.pruner={n_startup_trials:3}", "~search.pruner._target_"],
            ["search.pruner", "as search.pruner._target_"],
        ),
        (
            ["search.sampler={_target_:builtins.dict}"],
            ["search.sampler", "dict", "a sampler of Optuna"],
        ),
        (
            ["search.sampler.n_startup_trials=many"],
            ["search.sampler.n_startup_trials='many'", "a number"],
        ),
        (["search.sampler.seed=text"], ["search.sampler"]),
        (["search.storage=nonsense"], ["search.storage=nonsense", "sqlite:///"]),
        (
            ["search.storage=sqlite:////dev/null/a.db"],
            ["search.storage=sqlite:////dev/null/a.db", "cannot be opened"],
        ),
        (["hydra.launcher.workers=0"], ["hydra.launcher.workers=0", "at least 1"]),
    ],
)
def test_a_search_that_cannot_start_leaves_no_study(overrides, parts, run):
    with refuses(ConfigError, *parts):
        run(parabola, INTERVAL, "search=tpe", *overrides)
    assert not run.folder.exists()


def test_a_new_study_without_a_trial_is_removed(run, monkeypatch):
    """Whatever ended the search; one that has trials stays."""

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Trials, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(parabola, INTERVAL, "search=random", "search.trials=2")
    assert not run.folder.exists()
    monkeypatch.undo()


def test_without_optuna_one_line_tells_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "clickexp.sweeps.search")
    with refuses(UserError, "search=... needs Optuna: pip install 'clickexp[search]'"):
        SearchSweeper({}).sweep([])


def test_a_study_that_cannot_be_written_is_an_error_in_writing_study(tmp_path):
    """SQLite's reason, without SQLAlchemy's lines around it."""
    with pytest.raises(UserError) as raised, writing_study(tmp_path):
        optuna.create_study(storage="sqlite:////dev/null/search.db")
    assert str(raised.value).startswith(
        f"{tmp_path}/search.db: unable to open database file. Free some space"
    )
    with pytest.raises(KeyError), writing_study(tmp_path):
        raise KeyError


def test_results_of_before_are_not_printed_where_a_search_is_refused(tmp_path, monkeypatch, capsys):
    """Those of a search that ended with the error are."""
    hydra = {"sweep": {"dir": str(tmp_path), "subdir": "0"}}
    config = OmegaConf.create({"hydra": hydra, "optimized_metric": "val/loss"})
    Record(0, ["seed=1"], "a", "failed", "nowhere").write(tmp_path / "0")
    earlier = records(tmp_path)
    for jobs in (0, 1):
        monkeypatch.setattr(SweepCallback, "config", config)
        monkeypatch.setattr(SweepCallback, "earlier", earlier)
        with pytest.raises(ConfigError), collected():
            if jobs:
                Record(1, ["seed=2"], "b", "failed", "nowhere").write(tmp_path / "1")
            raise ConfigError("another space")
        assert ("2 failed" in capsys.readouterr().out) == bool(jobs)
