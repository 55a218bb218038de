"""Search: Optuna is asked for a trial when a device is free, and receives every epoch of those that run."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from optuna.trial import Trial, TrialState

from clickexp.errors import ConfigError
from clickexp.experiment.values import plain, without_hydra
from clickexp.runs.objective import higher_is_better
from clickexp.runs.sources import Sources, sources
from clickexp.runs.store import CHECKPOINT, MULTIRUN, PRUNED, Record, read_epochs
from clickexp.sweeps.checks import check_jobs
from clickexp.sweeps.launcher import LAUNCHER, JobError, Queue, check_pool
from clickexp.sweeps.space import Space, ends, overrides, read_space
from clickexp.sweeps.study import (
    ENDED,
    FOLDER,
    Direction,
    SearchSettings,
    build_parts,
    open_study,
    report_best,
    writing_study,
)
from clickexp.sweeps.view import print_plain
from clickexp.utils.signatures import check_arguments

_SECONDS_BETWEEN_REPORTS = 0.2


def search(
    context: HydraContext, task: TaskFunction, config: DictConfig, words: Sequence[str]
) -> float | None:
    """Runs the trials that the study does not have yet.

    Args:
        context: Hydra's.
        task: The function of a job.
        config: The configuration of the sweep.
        words: The overrides of the sweep.

    Returns:
        The best value, if any trial is complete.

    Raises:
        JobError: Trials failed. It comes after all others have ended.
    """
    with writing_study(Path(config.hydra.sweep.dir)):
        return _search(context, task, config, words)


def _search(
    context: HydraContext, task: TaskFunction, config: DictConfig, words: Sequence[str]
) -> float | None:
    settings = _settings(config)
    metric, folder = config.optimized_metric, Path(config.hydra.sweep.dir)
    parts = build_parts(settings, folder)
    check_pool(config)
    fixed, space = read_space(words, context, grid=settings.sampler is None)
    jobs = [[*fixed, *overrides(point)] for point in ends(space)]
    check_jobs(context, config, jobs, data=not any(name.startswith("dataset") for name in space))
    common = plain(without_hydra(context.config_loader.load_sweep_config(config, fixed)))
    contents = _contents(context, config, fixed, space)
    study = open_study(
        settings.study, parts, folder, space, metric, common, contents, _direction(common)
    )
    trials = _Trials(study, space, fixed, config, settings)
    # as Hydra does of other sweeps; it says what all jobs share
    OmegaConf.save(config, folder / MULTIRUN)
    try:
        if trials.to_come:
            with Queue(context, task, config, trials.to_come) as queue:
                trials.run(queue)
        else:
            more = "" if settings.sampler is None else "; a higher search.trials runs more"
            print_plain(f"nothing is left to run in study {settings.study}{more}")
    finally:
        report_best(study, fixed, metric, folder)
    trials.check()
    return study.best_value if study.get_trials(states=(TrialState.COMPLETE,)) else None


def _contents(
    context: HydraContext, config: DictConfig, fixed: Sequence[str], space: Space
) -> Sources:
    """Returns the content of what trials name: all of them by its key, some by their choice, too."""

    def of(*words: str) -> Sources:
        composed = context.config_loader.load_sweep_config(config, [*fixed, *words])
        return sources(plain(without_hydra(composed)))

    contents = of()
    for name, distribution in space.items():
        for choice in getattr(distribution, "choices", ()):
            if choice.replace(".", "").isdigit():  # it names nothing, and composing takes long
                continue
            word = f"{name}={choice}"
            contents |= {
                word if key == name else f"{key} of {word}": content
                for key, content in of(word).items()
                if content != contents.get(key)
            }
    return contents


def _settings(config: DictConfig) -> SearchSettings:
    """Returns the settings of a search; a ConfigError where they do not fit each other or the launcher."""
    node = plain(config.search)
    check_arguments(SearchSettings, node, "search")
    settings = SearchSettings(**node)
    if settings.sampler is not None and settings.trials is None:
        raise ConfigError("search.trials=null is for search=grid; give at least 1")
    if config.hydra.launcher._target_ != LAUNCHER:
        raise ConfigError("a search runs on launcher=accelerators (its default), slurm or ray")
    return settings


class _Trials:
    """The trials of one call, running and to come: those enqueued, or what the study lacks of the wanted number."""

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        fixed: Sequence[str],
        config: DictConfig,
        settings: SearchSettings,
    ):
        self.study, self.space, self.fixed = study, space, fixed
        self.folder, self.metric = str(config.hydra.sweep.dir), config.optimized_metric
        self.prunes = settings.pruner is not None and self.metric.startswith("val/")
        self.running: dict[int, Trial] = {}
        self.reported: dict[int, int] = {}
        self.failures: list[Exception] = []
        if settings.sampler is None or settings.trials is None:
            self.to_come = len(study.get_trials(states=(TrialState.WAITING,)))
        else:
            self.to_come = max(settings.trials - len(study.get_trials(states=ENDED)), 0)

    def run(self, queue: Queue) -> None:
        while self.running or self.to_come:
            ready = queue.free and self.to_come
            if ready:
                self._start(queue)
            for number, returns in queue.wait(0 if ready else _SECONDS_BETWEEN_REPORTS):
                self._end(number, returns)
            if self.prunes:
                self._prune(queue)

    def check(self) -> None:
        """Raises a JobError where trials failed."""
        if self.failures:
            count = len(self.failures)
            failed = "a trial failed" if count == 1 else f"{count} trials failed"
            raise JobError(f"{failed}; {self.failures[0]}")

    def _start(self, queue: Queue) -> None:
        trial = self.study.ask(self.space)
        trial.set_user_attr(FOLDER, self.folder)
        self.to_come -= 1
        self.running[trial.number], self.reported[trial.number] = trial, 0
        queue.start(trial.number, [*self.fixed, *overrides(trial.params)])

    def _end(self, number: int, returns: JobReturn) -> None:
        assert returns.hydra_cfg is not None  # noqa: S101  # the queue sets it
        trial, folder = self.running.pop(number), Path(returns.hydra_cfg.hydra.runtime.output_dir)
        record = Record.read(folder)
        if returns.status is JobStatus.COMPLETED:
            value = returns.return_value
            self._report(trial, Path(record.result) if record else folder)
            if value is not None and math.isfinite(value):
                self.study.tell(trial, value)
                return
            self.failures.append(JobError(f"job {number}: {self.metric} is {value}"))
        elif record and record.status == PRUNED:
            self.study.tell(trial, state=TrialState.PRUNED)
            return
        else:
            self.failures.append(returns._return_value)
        self.study.tell(trial, state=TrialState.FAIL)

    def _prune(self, queue: Queue) -> None:
        for number, folder in queue.running.items():
            if self._report(self.running[number], folder) and self.running[number].should_prune():
                queue.prune(number)
                (folder / CHECKPOINT).unlink(missing_ok=True)

    def _report(self, trial: Trial, folder: Path) -> bool:
        """Reports new epochs to Optuna; returns whether there were any."""
        before = self.reported[trial.number]
        for record in read_epochs(folder):
            if record["epoch"] > before and record.get(self.metric) is not None:
                trial.report(record[self.metric], record["epoch"])
                self.reported[trial.number] = record["epoch"]
        return self.reported[trial.number] > before


def _direction(config: dict[str, Any]) -> Direction:
    """Returns Optuna's word for the way that is better; a ConfigError where the metric states none."""
    from clickexp.experiment.instantiate import directions  # here, since it imports JAX

    metric = config["optimized_metric"]
    better = higher_is_better(metric, directions(config["metric"]))
    if better is None:
        raise ConfigError(
            f"optimized_metric={metric}: no metric of this name states which way it is better. Choose another, or set "
            "higher_is_better = True or False in its class"
        )
    return "maximize" if better else "minimize"
