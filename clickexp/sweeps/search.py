"""Search: Optuna is asked for a trial when a device is free, and hears of every epoch of those that run."""

import contextlib
import dataclasses
import json
import math
import shlex
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import optuna
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, TaskFunction
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial, TrialState
from sqlalchemy.pool import NullPool

from clickexp.errors import ConfigError, UserError
from clickexp.runs.objective import higher_is_better
from clickexp.runs.store import CHECKPOINT, HOW, PRUNED, Record, config_hash
from clickexp.sweeps.checks import check_jobs
from clickexp.sweeps.launcher import JobError, Queue
from clickexp.sweeps.view import METRICS, say
from clickexp.utils.bounds import PositiveInt
from clickexp.utils.files import whole
from clickexp.utils.signatures import check_arguments

OURS = "hydra_plugins.clickexp_launcher.launcher.QueueLauncher"
FILE = "search.db"
BEST = "best.yaml"
SWEEP = "+sweep="
"""How the preset of a search is chosen, which has no part in its trials."""
SECONDS_BETWEEN_REPORTS = 0.2
COUNTED = (TrialState.COMPLETE, TrialState.PRUNED)
FOLDER, SUBJECT = "folder", "subject"

Space = dict[str, BaseDistribution]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of the group `search`."""

    study: str
    trials: PositiveInt | None
    sampler: dict[str, Any] | None
    pruner: dict[str, Any] | None
    storage: str | None


def search(
    context: HydraContext, task: TaskFunction, config: DictConfig, given: Sequence[str]
) -> float | None:
    """Runs the trials that the study does not have yet; returns the best value. given: the sweep's overrides.

    JobError if trials failed, after all others have ended.
    """
    with _one_line(Path(config.hydra.sweep.dir)):
        return _search(context, task, config, given)


def _search(
    context: HydraContext, task: TaskFunction, config: DictConfig, given: Sequence[str]
) -> float | None:
    node = OmegaConf.to_container(config.search, resolve=True)
    check_arguments(Settings, node, "search")
    settings = Settings(**node)
    if settings.sampler is not None and settings.trials is None:
        raise ConfigError("search.trials=null is for search=grid; give at least 1")
    if config.hydra.launcher._target_ != OURS:
        raise ConfigError("a search runs on launcher=accelerators (its default), slurm or ray")
    fixed, swept = _split(given, context)
    space = {name: _distribution(override, settings) for name, override in swept.items()}
    jobs = [[*fixed, *_overrides(point)] for point in _ends(space)]
    check_jobs(context, config, jobs, data=not any(name.startswith("dataset") for name in swept))
    common = _composed(context, config, fixed)
    study = _study(settings, config, space, config_hash(common), _direction(common))
    _take_up(study, Path(config.hydra.sweep.dir))
    if settings.sampler is None:
        _enqueue_grid(study, space)
    trials = _Trials(study, space, fixed, config, settings.pruner is not None)
    try:
        to_come = trials.left(settings)
        if to_come:
            with Queue(context, task, config, to_come) as queue:
                trials.run(queue)
    finally:
        _tell_best(study, fixed, config)
    if trials.failures:
        failed = f"{len(trials.failures)} trials failed" if len(trials.failures) > 1 else "a trial failed"
        raise JobError(f"{failed}; {trials.failures[0]}")
    return study.best_value if study.get_trials(states=(TrialState.COMPLETE,)) else None


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    """UserError where the study cannot be written, as on a full disk."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None)  # of SQLAlchemy's errors
        if isinstance(cause, sqlite3.Error):
            raise UserError(f"{folder / FILE}: {cause}. Free some space, or choose another place.") from error
        raise


class _Trials:
    """The trials of one call, running and to come."""

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        fixed: Sequence[str],
        config: DictConfig,
        prunes: bool,
    ):
        self.study, self.space, self.fixed = study, space, fixed
        self.folder, self.metric = str(config.hydra.sweep.dir), config.optimized_metric
        self.prunes = prunes and self.metric.startswith("val/")
        self.running: dict[int, Trial] = {}
        self.steps: dict[int, int] = {}
        self.failures: list[Exception] = []
        self.to_come = 0

    def left(self, settings: Settings) -> int:
        """How many are to come: those that are enqueued, or what the study lacks of the number that is wanted."""
        if settings.sampler is None:
            self.to_come = len(self.study.get_trials(states=(TrialState.WAITING,)))
        else:
            done = len(self.study.get_trials(states=COUNTED))
            self.to_come = max(settings.trials - done, 0)
        return self.to_come

    def run(self, queue: Queue) -> None:
        while self.running or self.to_come:
            ready = queue.free and self.to_come
            if ready:
                self._start(queue)
            for number, returns in queue.wait(0 if ready else SECONDS_BETWEEN_REPORTS):
                self._tell(number, returns)
            if self.prunes:
                self._prune(queue)

    def _start(self, queue: Queue) -> None:
        trial = self.study.ask(self.space)
        trial.set_user_attr(FOLDER, self.folder)
        self.to_come -= 1
        self.running[trial.number], self.steps[trial.number] = trial, 0
        queue.start(trial.number, [*self.fixed, *_overrides(trial.params)])

    def _tell(self, number: int, returns: JobReturn) -> None:
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
        """Reports epochs that are new; whether there were any."""
        before = self.steps[trial.number]
        for epoch, value in _epochs(folder, self.metric):
            if epoch > self.steps[trial.number]:
                trial.report(value, epoch)
                self.steps[trial.number] = epoch
        return self.steps[trial.number] > before


def _split(given: Sequence[str], context: HydraContext) -> tuple[list[str], dict[str, Override]]:
    """Overrides that all trials have, and those to search over, by key; a later one stands for an earlier."""
    parsed = OverridesParser.create(config_loader=context.config_loader).parse_overrides(list(given))
    last = {override.get_key_element().lstrip("+~"): override for override in parsed}
    fixed = [override.input_line for override in last.values() if not override.is_sweep_override()]
    swept = {o.get_key_element(): o for o in last.values() if o.is_sweep_override()}
    if not swept:
        raise ConfigError(
            "there is nothing to search over: give key='interval(0.1,1)' or key=a,b,c, as in "
            "clickexp -m search=tpe 'optimizer.learning_rate=interval(0.1,1)'"
        )
    return fixed, swept


def _distribution(override: Override, settings: Settings) -> BaseDistribution:
    """What Hydra's interval, range and choice mean to Optuna; a grid takes every value as it is written."""
    value, log = override.value(), "log" in getattr(override.value(), "tags", ())
    key = override.get_key_element()
    grid = settings.sampler is None
    try:
        if isinstance(value, IntervalSweep):
            if grid:
                raise ConfigError(f"{override.input_line}: a grid has no intervals; give range(...) or a,b,c")
            whole = isinstance(value.start, int) and isinstance(value.end, int)
            kind = IntDistribution if whole else FloatDistribution
            return kind(value.start, value.end, log=log)
        if isinstance(value, RangeSweep) and not grid:
            values = list(value.range())
            low, high, step = min(values), max(values), abs(value.step)
            whole = all(isinstance(number, int) for number in (low, high, step))
            if whole:
                return IntDistribution(low, high, log=log, step=step)
            return FloatDistribution(float(low), float(high), log=log, step=float(step))
        return CategoricalDistribution([str(choice) for choice in override.sweep_string_iterator()])
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(f"{key}: {error}") from error


def _ends(space: Space) -> Iterator[dict[str, Any]]:
    """Points with every choice, and both ends of every interval, at least once."""
    values = {name: _end_values(distribution) for name, distribution in space.items()}
    first = {name: choices[0] for name, choices in values.items()}
    yield first
    for name, choices in values.items():
        yield from ({**first, name: choice} for choice in choices[1:])


def _end_values(distribution: BaseDistribution) -> list[Any]:
    """Every choice, or both ends; those of an interval of numbers just inside, since 0 may only be its limit."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    low, high = distribution.low, distribution.high
    inside = 1e-3 * (high - low) if isinstance(distribution, FloatDistribution) and not distribution.step else 0
    return [low + inside, high - inside]


def _overrides(params: dict[str, Any]) -> list[str]:
    """Numbers in six digits, which is closer than any search gets, and can be read and typed."""
    return [
        f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in params.items()
    ]


def _direction(config: dict[str, Any]) -> str:
    """Which way Optuna goes: the way that is better as optimized_metric states it; ConfigError where it does not."""
    from clickexp.experiment.run import stated_directions  # here, since it imports JAX

    metric = config["optimized_metric"]
    better = higher_is_better(metric, stated_directions(config["metric"]))
    if better is None:
        raise ConfigError(
            f"optimized_metric={metric}: no metric of this name states which way it is better. Choose another, or set "
            "higher_is_better = True or False in its class"
        )
    return "maximize" if better else "minimize"


def _file(file: Path) -> optuna.storages.RDBStorage:
    """A file of SQLite, whose connections are closed after each use, not left to the garbage collector."""
    return optuna.storages.RDBStorage(f"sqlite:///{file}", engine_kwargs={"poolclass": NullPool})


def _study(settings: Settings, config: DictConfig, space: Space, digest: str, direction: str) -> optuna.Study:
    """The study in its storage, new or as an earlier call has left it; ConfigError for one of something else."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = Path(config.hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=settings.storage or _file(folder / FILE),
        study_name=settings.study,
        direction=direction,
        load_if_exists=True,
    )
    if settings.sampler:
        sampler = settings.sampler
        if sampler.get("seed") is not None:  # else it would draw again what it drew for the earlier trials
            sampler = {**sampler, "seed": sampler["seed"] + len(study.trials)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.sampler = instantiate(sampler)
    study.pruner = instantiate(settings.pruner) if settings.pruner else optuna.pruners.NopPruner()
    subject = {
        "configuration": digest,
        "metric": config.optimized_metric,
        "space": {key: optuna.distributions.distribution_to_json(value) for key, value in space.items()},
    }
    known = study.user_attrs.get(SUBJECT, subject)
    differ = [name for name in subject if subject[name] != known.get(name)]
    differ += ["direction"] * (study.direction.name.lower() != direction)
    if differ:
        raise ConfigError(
            f"search.study={settings.study} has another {', '.join(differ)}; give this search another name"
        )
    study.set_user_attr(SUBJECT, subject)
    return study


def _composed(context: HydraContext, config: DictConfig, fixed: Sequence[str]) -> dict[str, Any]:
    """What all trials have in common."""
    composed = context.config_loader.load_sweep_config(config, list(fixed))
    keys = [key for key in composed if key != "hydra"]
    return OmegaConf.to_container(OmegaConf.masked_copy(composed, keys), resolve=True)


def _take_up(study: optuna.Study, folder: Path) -> None:
    """Enqueues anew what an earlier call in this folder, which has ended, left running."""
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        if trial.user_attrs.get(FOLDER) == str(folder):
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)


def _enqueue_grid(study: optuna.Study, space: Space) -> None:
    """Enqueues the points that have no trial, or only failed ones."""
    trials = [trial for trial in study.get_trials() if trial.state is not TrialState.FAIL]
    known = [trial.params or trial.system_attrs.get("fixed_params") for trial in trials]
    for values in product(*(distribution.choices for distribution in space.values())):
        point = dict(zip(space, values, strict=True))
        if point not in known:
            study.enqueue_trial(point)


def _epochs(folder: Path, metric: str) -> Iterator[tuple[int, float]]:
    """Epochs and values of a metric in metrics.jsonl, as far as it is written and they are numbers."""
    try:
        whole, _, _ = (folder / METRICS).read_bytes().rpartition(b"\n")
    except OSError:
        return
    for line in whole.splitlines():
        record = json.loads(line)
        if record.get(metric) is not None:
            yield record["epoch"], record[metric]


def _tell_best(study: optuna.Study, fixed: Sequence[str], config: DictConfig) -> None:
    """Prints the best trial and writes it to best.yaml."""
    if not study.get_trials(states=(TrialState.COMPLETE,)):
        return
    trial, folder = study.best_trial, Path(config.hydra.sweep.dir)
    overrides = _overrides(trial.params)
    best = {
        "metric": config.optimized_metric,
        "value": trial.value,
        "trial": trial.number,
        "overrides": overrides,
        "command": shlex.join(
            ["clickexp", *(o for o in fixed if not o.startswith((*HOW, SWEEP))), *overrides]
        ),
    }
    with whole(folder / BEST) as part:
        part.write_text(yaml.safe_dump(best, sort_keys=False))
    line = f"best of {len(study.trials)} trials: {config.optimized_metric} {trial.value:.6g} in trial {trial.number}"
    say(f"{line}: {' '.join(overrides)}")
