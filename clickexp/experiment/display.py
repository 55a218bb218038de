"""Output before a run trains: its configuration as YAML, the record that loggers receive, and notes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from rich import get_console

from clickexp.data.inspect.doubts import doubts, examination_doubts
from clickexp.data.inspect.layouts import EXAMINATION_BY
from clickexp.data.seen import has_common_documents
from clickexp.experiment.build import Parts
from clickexp.loggers import RunInfo
from clickexp.models import Ranker, TwoTowersModel
from clickexp.parameters import EmbeddingParameter
from clickexp.parameters.context import in_new_session
from clickexp.parameters.layouts import layouts_of
from clickexp.posteriors.intervals import short_intervals
from clickexp.posteriors.unlinked import with_known_ratios
from clickexp.runs.hashing import distinguishing, flat
from clickexp.runs.settings import NAMED
from clickexp.runs.store import MULTIRUN, read_object, values
from clickexp.utils.text import shortened

_LONGEST = 60
"""Characters of an override in a line."""
_HARVEST = "propensity=harvest propensity.examination_by"


def print_config(config: Mapping[str, Any]) -> None:
    """Prints a configuration as YAML."""
    text = yaml.safe_dump(_without_figures(config), sort_keys=False, allow_unicode=True)
    get_console().print(text, markup=False, soft_wrap=True)


def run_info(parts: Parts, sweep: Path | None) -> RunInfo:
    """The record of a run for its loggers.

    Besides the configuration, it has `model.name` and `dataset.name` as results have them, the `overrides` by key, and
    `experiment`: a name in words, the same for runs that differ in their seed or fold only.
    """
    config, model, dataset = parts.config.values, parts.model.name, parts.dataset.name
    settings, overrides = parts.config.settings, values(parts.config.overrides)
    group = settings.group or (sweep.name if sweep else None)
    named = {
        key: value
        for key, value in distinguishing(overrides, flat(config)).items()
        if key not in NAMED
    }
    shared = {} if sweep is None else _shared_by_jobs(sweep)
    unshared = {
        key: value
        for key, value in named.items()
        if key not in shared or shared[key] != overrides.get(key)
    }
    return RunInfo(
        folder=parts.folder,
        config={
            "experiment": ", ".join([model, dataset, *_pairs(named)]),
            **_without_figures(config),
            "model": {**config["model"], "name": model},
            "dataset": {**config["dataset"], "name": dataset},
            "overrides": overrides,
            "group": group,
            "fingerprint": parts.origin.fingerprint,
        },
        name=f"{model}-{dataset}-{settings.seed}",
        project=settings.project,
        group=group,
        job_type="sweep" if sweep else "run",
        tags=tuple(settings.tags),
        notes=settings.notes,
        model=model,
        dataset=dataset,
        experiment=overrides.get("experiment"),
        title=f"{model} · {dataset} · seed {settings.seed}",
        changes=tuple(shortened(change, _LONGEST) for change in _pairs(unshared)),
        fingerprint=parts.origin.fingerprint,
        continues=Path(settings.continue_from) if settings.continue_from else None,
        sweep=sweep,
    )


def _shared_by_jobs(sweep: Path) -> dict[str, Any]:
    """Overrides of a sweep, in Hydra's record of it: those of a single value are the same for all of its jobs."""
    try:
        words = read_object(sweep / MULTIRUN)["hydra"]["overrides"]["task"]
    except (KeyError, TypeError):  # there is no record
        return {}
    return values(words)


def _pairs(overrides: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in overrides.items()]


def note(parts: Parts) -> None:
    """Reports the data, doubts about it, what the log identifies, and what weights do, before training."""
    for line in (*parts.config.without_effect, parts.dataset.describe()):
        parts.logger.message(line)
    for line in _doubts(parts):
        parts.logger.warning(f"warning: {line}")
    _note_identifiability(parts)
    is_evaluated = parts.dataset.ranking is not None or parts.metrics.get("counterfactual")
    if isinstance(parts.model, Ranker) and not is_evaluated:
        parts.logger.message(
            "no list has labels: metric=[all,counterfactual] judges the ranker by clicks"
        )
    _note_unseen(parts)
    _note_earlier_run(parts)
    _note_weights(parts)


def _doubts(parts: Parts) -> Iterator[str]:
    """What was left out of the data, doubts about the rest, and about examination by rank where it counts."""
    yield from _left_out(parts.dataset.notes)
    yield from doubts(parts.dataset)
    yield from _doubts_of_layouts(parts)


def _doubts_of_layouts(parts: Parts) -> Iterator[str]:
    """Doubts that layouts have one examination by rank: of the weights, or the model, and of metrics."""
    if parts.weighting is not None:
        cells = parts.weighting.propensities.cells
        yield from examination_doubts(parts.dataset, cells, _HARVEST).values()
    elif parts.model.separates_examination:
        setting = f"debias=ips {_HARVEST}" if isinstance(parts.model, Ranker) else EXAMINATION_BY
        yield from examination_doubts(parts.dataset, layouts_of(parts.model), setting).values()
    for key, group in parts.metrics.items():
        for name, weighting in group.weightings.items():
            of_metric = f"metric.{key}.{name}.propensity"
            setting = f"propensity@{of_metric}=harvest {of_metric}.examination_by"
            cells = weighting.propensities.cells
            doubts_of_metric = examination_doubts(parts.dataset, cells, setting).values()
            yield from (f"{name}: {doubt}" for doubt in doubts_of_metric)


def _left_out(notes: Mapping[str, int | str]) -> list[str]:
    """A line on what a reader has left out of the log, of the counts in its notes; none where that is nothing."""
    counts = {unit: notes.get(f"dropped_{unit}", 0) for unit in ("rows", "pages", "lines")}
    dropped = [f"{unit} ({count:,})" for unit, count in counts.items() if count]
    return [f"invalid=drop left {' and '.join(dropped)} out of the log"] if dropped else []


def _note_weights(parts: Parts) -> None:
    """Reports the weights of clicks in training, and those of metrics behind the name of each, with warnings."""
    weightings = {"": parts.weighting} if parts.weighting else {}
    weightings |= {f"{name}: ": weighting for name, weighting in parts.metric_weightings.items()}
    for name, weighting in weightings.items():
        about, *warnings = weighting.describe()
        parts.logger.message(f"{name}{about}")
        for line in warnings:
            parts.logger.warning(f"{name}{line}")


def _note_earlier_run(parts: Parts) -> None:
    """Reports the run whose posterior is the prior."""
    if parts.continued is None:
        return
    parts.logger.message(parts.continued.run.describe())
    for line in parts.continued.run.advice(parts.dataset, parts.model):
        parts.logger.warning(line)
    if (doubt := parts.continued.doubt_of_copies(parts.list_hashes.sample)) is not None:
        parts.logger.warning(doubt)


def _note_identifiability(parts: Parts) -> None:
    """Reports which positions the log compares, where that decides what the model learns."""
    if (why := short_intervals(parts.model, parts.dataset.train)) is not None:
        parts.logger.warning(why)
    if not parts.model.separates_examination:
        return
    links = parts.links
    if parts.continued is not None:
        links = with_known_ratios(links, parts.continued.ratios)
    if links.warns:
        parts.logger.warning(links.describe())
    elif isinstance(parts.model, TwoTowersModel):  # of which much depends on it
        parts.logger.message(links.describe())


def _note_unseen(parts: Parts) -> None:
    """Reports tables of documents of which training shows none that validation does."""
    tables = [
        role
        for role, tower in vars(parts.model).items()
        if isinstance(table := in_new_session(tower)[1], EmbeddingParameter)
        and table.config.use_feature == "query_doc_ids"
    ]
    if tables and not has_common_documents(parts.dataset.train, parts.dataset.val):
        parts.logger.warning(
            f"training shows no document of the validation sessions, so that the table of {', '.join(tables)} learns "
            f"nothing of them. Take a tower of features: parameter@{tables[0]}=linear"
        )


def _without_figures(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without published figures."""
    return {key: node for key, node in config.items() if key != "reproduction"}
