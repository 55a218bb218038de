"""The keys at the root of a configuration: single settings and groups of options, and what each means for a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Interval

from clickexp.utils.bounds import PositiveFloat, PositiveInt, Seed
from clickexp.utils.signatures import check_arguments

ProgressMode = Literal["auto", "bar", "plain", "off"]
"""How progress is shown: `auto` is a bar on a terminal, and lines elsewhere."""
_REPORTS = {"does": "reports"}
"""Metadata of settings that the numbers of a run do not depend on."""
_REPEATS = {"does": "repeats"}
"""Metadata of settings in which runs of one experiment may differ."""
_ONCE = {"does": "once"}
"""Metadata of settings of one update, which do not hold for the next one."""


@dataclass(frozen=True)
class PriorSettings:
    """The prior that an earlier run gives: the node `prior` of a configuration.

    Attributes:
        run: Folder of the run; None for no such prior.
        half_life: Of what rows of tables know, in days of the log's times, or in updates where it has none; None
            forgets nothing.
        shared_half_life: Of what shared parameters know, such as examination.
        on_change: What to do where the log contradicts shared parameters: release these from the prior, keep it, or
            end with an error.
        warm: Start with the parameters of the run, which need no posteriors, and with nothing else of it.
        again: Take a log that the run, or one before it, has been fitted to.
    """

    run: str | None = field(default=None, metadata=_ONCE)
    half_life: PositiveFloat | None = None
    shared_half_life: PositiveFloat | None = None
    on_change: Literal["release", "keep", "error"] = "release"
    warm: bool = field(default=False, metadata=_ONCE)
    again: bool = field(default=False, metadata=_ONCE)

    def __post_init__(self) -> None:
        check_arguments(type(self), vars(self), "prior")


@dataclass(frozen=True)
class Settings:
    """The single keys at the root of a configuration; conf/config.yaml explains each."""

    seed: Seed = field(metadata=_REPEATS)
    progress: ProgressMode = field(metadata=_REPORTS)
    max_sessions: PositiveInt | None
    examination_by: list[str]
    prior: dict[str, Any]
    report: bool = field(metadata=_REPORTS)
    verbose: bool = field(metadata=_REPORTS)
    save_model: bool = field(metadata=_REPORTS)
    keep_values: bool = field(metadata=_REPEATS)
    draws: Annotated[int, Interval(ge=0, le=10_000)] = field(metadata=_REPEATS)
    shared_intervals: bool = field(metadata=_REPORTS)
    resume: bool = field(metadata=_REPORTS)
    continue_from: str | None = field(metadata=_REPORTS)
    sweeps_dir: str = field(metadata=_REPORTS)
    cache_dir: str = field(metadata=_REPORTS)
    optimized_metric: str = field(metadata=_REPORTS)
    project: str = field(metadata=_REPORTS)
    group: str | None = field(metadata=_REPORTS)
    tags: list[str] = field(metadata=_REPORTS)
    notes: str | None = field(metadata=_REPORTS)

    def __post_init__(self) -> None:
        check_arguments(type(self), vars(self), "")


class Group(NamedTuple):
    """A group of options.

    Attributes:
        about: What its options are, in a few words; empty where users do not choose from it.
        required: Whether every run has one.
        several: Whether a run may have several options of it.
        chosen: Whether only some models have an option of it, which they choose; see conf/model/ranker.yaml.
        elsewhere: Whether its options set keys at other places than one of its name at the root.
        reports: Whether the numbers of a run do not depend on it.
        named: Whether names of results say which option a run has.
        launches: Whether it says how jobs are launched, which is no part of a run.
        ignored: Keys inside that the numbers of a run do not depend on.
        changeable: Keys inside that may differ where a training continues.
        in_names: Keys inside that names of results say, too.
    """

    about: str = ""
    required: bool = False
    several: bool = False
    chosen: bool = False
    elsewhere: bool = False
    reports: bool = False
    launches: bool = False
    named: bool = False
    ignored: tuple[str, ...] = ()
    changeable: tuple[str, ...] = ()
    in_names: tuple[str, ...] = ()

    @property
    def is_described(self) -> bool:
        """Whether every run has one option, with a _target_."""
        return self.required and not self.several


TOWERS = "parameter"
"""The group of towers, of which each role has its own choice: parameter@attraction."""
GROUPS = {
    "dataset": Group(
        "the log to learn from",
        required=True,
        named=True,
        ignored=("cache",),
        changeable=("path",),
        in_names=("path", "name"),
    ),
    "model": Group("the click model", required=True, named=True),
    TOWERS: Group("towers, as attraction=OPTION", elsewhere=True),
    "loss": Group("of model=ranker", chosen=True, named=True),
    "debias": Group("of model=ranker", chosen=True, named=True),
    "propensity": Group("for debias", chosen=True),
    "metric": Group("measures, such as [click,ranking]", required=True, several=True),
    "optimizer": Group("updates of all or of a batch's rows", required=True),
    "trainer": Group(
        "how a model is fitted",
        required=True,
        ignored=("checkpoint_minutes", "devices", "resident"),
        changeable=("epochs", "iterations"),
    ),
    "logger": Group("where results go", several=True, reports=True),
    "launcher": Group("of sweeps (-m)", elsewhere=True, launches=True),
    "search": Group("of hyperparameters", reports=True, launches=True),
    "context": Group("as +context=OPTION"),
    "debug": Group("quick trials", elsewhere=True),
    "experiment": Group("as +experiment=OPTION", elsewhere=True),
    "sweep": Group("as +sweep=OPTION", elsewhere=True),
    "variant": Group("as +variant=OPTION", elsewhere=True),
    "method": Group("as +method=OPTION, of rankers", elsewhere=True),
    "vectors": Group("of ncm, cacm", elsewhere=True),
    "reproduction": Group(reports=True),
}
"""By name, in the order of the help."""
CHOSEN = tuple(name for name, group in GROUPS.items() if group.chosen)
NAMED_GROUPS = {name for name, group in GROUPS.items() if group.named}
"""Groups whose options are in the names of results."""
NAMED = NAMED_GROUPS | {f"{name}.{key}" for name, group in GROUPS.items() for key in group.in_names}
"""Keys that names of results say."""
LAUNCHING = ("hydra", *(name for name, group in GROUPS.items() if group.launches))
"""How overrides of the way in which jobs are launched begin."""
ROOT = {
    *Settings.__dataclass_fields__,
    *(name for name, group in GROUPS.items() if not group.elsewhere),
}
"""Keys at the root besides the towers of roles."""


def _settings(kind: type, metadata: Mapping[str, str]) -> set[str]:
    return {setting.name for setting in fields(kind) if setting.metadata == metadata}


NOT_HASHED = _settings(Settings, _REPORTS) | {
    name for name, group in GROUPS.items() if group.reports
}
"""Keys that the numbers of a run do not depend on."""
REPEATED = _settings(Settings, _REPEATS)
"""Settings in which the runs of one experiment differ."""
OF_ONE_UPDATE = {f"prior.{name}" for name in _settings(PriorSettings, _ONCE)}
"""Settings of one update, which do not hold for the next one."""
