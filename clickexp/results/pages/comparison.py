"""One self-contained page that compares runs: data, charts (plotly.js) and all in a single HTML file."""

import base64
import gzip
import json
import os
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

from clickexp.results import metric_names
from clickexp.results.chains import chain_layouts, chain_table, chains, lines
from clickexp.results.colors import COLORS
from clickexp.results.comparison import Comparison
from clickexp.results.conclusion import conclusion
from clickexp.results.groups import Group, varying
from clickexp.results.hyperparameters import commands, importances
from clickexp.results.layouts import layout_curves, named_references, references_of
from clickexp.results.leaderboard import difference_texts, value_texts
from clickexp.results.loading import Skipped
from clickexp.results.online_results import online_results, online_table
from clickexp.results.pages.template import filled, static
from clickexp.runs.objective import stated_by
from clickexp.runs.online import OnlineComparison
from clickexp.runs.run import Run
from clickexp.runs.store import REPORT
from clickexp.utils.escape import html_text, printable
from clickexp.utils.statistics.means import Spread, t_quantile
from clickexp.utils.tables.numbers import SIGNIFICANT, interval, number
from clickexp.utils.text import without_module

_SCRIPTS = (
    "state",
    "leaderboard",
    "plot",
    "charts",
    "chains",
    "online",
    "search",
    "share",
    "controls",
)
_DIGITS, _MOST_DIGITS = 6, 12
"""Significant digits of curves, and of means, which are copied; tables have texts."""
_MOST_COMMANDS, _COMMIT = 3, 10
"""Commands that the page shows at most, and characters of a commit."""


def page(
    comparisons: Sequence[Comparison],
    skipped: Sequence[Skipped],
    folder: Path,
    title: str | None = None,
    command: str = "",
) -> str:
    """The page, as HTML.

    Args:
        comparisons: The groups on each test set.
        skipped: Folders without a run, to be listed.
        folder: Where the page will be, from where it links to the runs' folders.
        title: Title; by default the names of folder and datasets.
        command: The command that made the page.
    """
    content = data(comparisons, skipped, folder, title, command)
    parts = {
        "generator": "clickexp-compare",
        "title": html_text(content["title"]),
        "js": "\n".join(static(f"{name}.js") for name in _SCRIPTS),
        "plotly": _packed(get_plotlyjs()),
        "data": _packed(json.dumps(content, separators=(",", ":"), allow_nan=False)),
    }
    return filled("comparison", parts)


def data(
    comparisons: Sequence[Comparison],
    skipped: Sequence[Skipped],
    folder: Path,
    title: str | None = None,
    command: str = "",
) -> dict[str, Any]:
    """The content of the page in the types of JSON; groups and runs are referred to by their places in the lists."""
    uncertainties = {group: one.uncertainty for one in comparisons for group in one.groups}
    groups = list(uncertainties)
    runs = [run for group in groups for run in group.runs]
    group_at, run_at = _places(groups), _places(runs)
    settings = varying([run.settings for run in runs])
    online, damaged = online_results(runs)
    return {
        "title": printable(_title(title, runs, folder)),
        "about": f"clickexp {version('clickexp')}, {datetime.now():%Y-%m-%d %H:%M}",
        "commands": list(filter(None, [*commands(groups)[:_MOST_COMMANDS], printable(command)])),
        "environment": _environments(runs),
        "colors": COLORS,
        "quantiles": _rounded(t_quantile(np.arange(2, 32))),
        "significant": SIGNIFICANT,
        "skipped": [_reason(one, folder) for one in (*skipped, *damaged)],
        "chains": [_chain(chain) for chain in chains(runs)],
        "online": list(map(_online, online)),
        "metrics": _metrics(comparisons, runs),
        "keys": _keys(groups),
        "settings": settings,
        "comparisons": [_comparison(comparison, group_at) for comparison in comparisons],
        "groups": [_group(group, run_at, over) for group, over in uncertainties.items()],
        "runs": [_run_data(run, settings, folder) for run in runs],
    }


def _title(title: str | None, runs: Sequence[Run], folder: Path) -> str:
    """The title, by default such as "users: 15 runs compared"."""
    return title or f"{folder.resolve().name}: {len(runs)} run{'s' * (len(runs) > 1)} compared"


def _places(parts: Sequence[Group] | Sequence[Run]) -> dict[int, int]:
    """The place of each part in a list by its identity."""
    return {id(part): place for place, part in enumerate(parts)}


def _keys(groups: Sequence[Group]) -> list[str]:
    """Overrides that differ, but for those that the page shows by themselves."""
    keys = varying([group.overrides for group in groups])
    return [key for key in keys if key not in ("model", "dataset")]


def _reason(skipped: Skipped, folder: Path) -> str:
    """Where a folder is, and why it is left out, by paths from that of the page."""
    reason = skipped.reason.replace(f"{folder}{os.sep}", "")
    return printable(f"{os.path.relpath(skipped.folder, folder)}: {reason}")


def _metrics(comparisons: Sequence[Comparison], runs: Sequence[Run]) -> dict[str, Any]:
    """Names, unit and direction of each metric of the page."""
    metrics = dict.fromkeys(metric for comparison in comparisons for metric in comparison.metrics)
    for run in runs:
        metrics |= dict.fromkeys(metric for metric in run.per_rank if metric != "sessions")
    for run in runs:
        metrics |= dict.fromkeys(_recorded(run))
    stated = stated_by(runs)
    return {
        metric: {
            "name": metric_names.name(metric),
            "short": metric_names.short(metric),
            "axis": metric_names.axis(metric),
            "direction": metric_names.direction(metric, stated),
        }
        for metric in [*metrics, "seconds", "parameters"]
    }


def _recorded(run: Run) -> dict[str, None]:
    """Names of the metrics of epochs."""
    return dict.fromkeys(name for epoch in run.epochs for name in epoch if "/" in name)


def _comparison(comparison: Comparison, group_at: dict[int, int]) -> dict[str, Any]:
    baselines = [comparison.groups[at] for at in comparison.baselines]
    return {
        **{
            name: getattr(comparison, name)
            for name in ("name", "choice", "warnings", "metrics", "leading")
        },
        **_search(comparison),
        "runWarnings": comparison.run_warnings,
        "mixesLosses": comparison.mixes_losses,
        "about": comparison.describe(),
        "meaning": comparison.meaning,
        "conclusions": {group_at[id(group)]: conclusion(comparison, group) for group in baselines},
        "groups": [group_at[id(group)] for group in comparison.groups],
        "texts": {metric: value_texts(comparison, metric) for metric in comparison.metrics},
        "differences": {
            metric: [difference_texts(comparison, baseline, metric) for baseline in baselines]
            for metric in comparison.metrics
        },
        "baselines": [group_at[id(group)] for group in baselines],
        "baseline": group_at[id(comparison.baseline)],
        "tests": _tests(comparison),
        **_layouts(comparison, group_at),
    }


def _tests(comparison: Comparison) -> dict[str, Any]:
    """Unit, p-values and half intervals of each metric that is tested."""
    return {
        metric: {"unit": test.unit, "p": _rounded(test.p), "half": _rounded(test.half)}
        for metric, test in comparison.tests.items()
        if np.isfinite(test.p).any()
    }


def _layouts(comparison: Comparison, group_at: dict[int, int]) -> dict[str, Any]:
    """Examination of layouts by group, and what it is relative to."""
    curves = {
        group_at[id(group)]: {
            name: _rounded([spread.mean, spread.low, spread.high])
            for name, spread in by_layout.items()
        }
        for group, by_layout in layout_curves(comparison.groups).items()
    }
    return {"layouts": curves, "reference": named_references(references_of(comparison.runs))}


def _search(comparison: Comparison) -> dict[str, Any]:
    """The metric that a search optimised, and how much each hyperparameter mattered for it."""
    for run in comparison.runs:
        if (metric := run.optimized) in comparison.metrics:
            shares = importances(comparison.groups, metric, comparison.direction(metric))
            return {"optimized": metric, "importances": _rounded(shares)}
    return {"optimized": None, "importances": {}}


def _chain(runs: Sequence[Run]) -> dict[str, Any]:
    """The tables of a chain of updates, and what is drawn of it."""
    table, layouts = chain_table(runs), chain_layouts(runs)
    drawn = {
        label: [[name, *map(_rounded, values)] for name, *values in of_label]
        for label, of_label in lines(runs).items()
    }
    return {
        "header": table.header,
        "rows": table.rows,
        "lines": drawn,
        "layouts": layouts
        and {name: getattr(layouts, name) for name in ("header", "rows", "caption")},
    }


def _online(comparison: OnlineComparison) -> dict[str, Any]:
    table = online_table(comparison)
    tests = [*comparison.ab.metrics.values(), comparison.interleaving]
    return {
        **comparison.as_dict(),
        "header": table.header,
        "rows": table.rows,
        "better": [test.better for test in tests],
    }


def _group(group: Group, run_at: dict[int, int], over: str) -> dict[str, Any]:
    metrics = dict.fromkeys(name for run in group.runs for name in run.metrics)
    ranks = _per_rank(group)
    examination = ranks.get("examination")
    return {
        **{name: getattr(group, name) for name in ("name", "rest", "model", "tower", "chosen")},
        "overrides": {key: _as_json(value) for key, value in group.overrides.items()},
        "runs": [run_at[id(run)] for run in group.runs],
        "values": {metric: _value(group, metric, over) for metric in metrics},
        "hints": {metric: _hint(group, metric) for metric in metrics},
        "examines": examination is None or not (examination.mean == 1).all(),
        "seconds": _rounded(group.seconds),
        "compiling": _rounded(group.compile_seconds),
        "parameters": group.runs[0].parameters,
        "perRank": {
            metric: _rounded([spread.mean, spread.low, spread.high])
            for metric, spread in ranks.items()
        },
        "reliability": _rounded(group.reliability()),
    }


def _value(group: Group, metric: str, over: str) -> list[float | None]:
    """Mean, its uncertainty, and the bounds over runs."""
    spread = group.spread(metric)
    values = [spread.mean, group.uncertainty(metric, over), spread.low, spread.high]
    return _rounded(values, _MOST_DIGITS)


def _hint(group: Group, metric: str) -> list[str]:
    """Standard deviation and interval of a metric, and what they are over, in words."""
    spread, (low, high, over) = group.spread(metric), group.interval(metric)
    hints = []
    if group.is_few(spread) and over == group.repeats:
        values = [run.value(metric) for run in group.runs]
        listed = ", ".join(number(value) for value in values if value is not None)
        return [f"values over {group.repeats}: {listed}"]
    if np.isfinite(spread.sd):
        hints.append(f"standard deviation over {group.repeats} {spread.sd:.2g}")
    if np.isfinite(low):
        units = "queries, or search sessions where known" if over == "queries" else over
        hints.append(f"95% interval {interval(low, high)} over {units}")
    return hints


def _per_rank(group: Group) -> dict[str, Spread]:
    """By metric, but for the numbers of sessions."""
    metrics = dict.fromkeys(metric for run in group.runs for metric in run.per_rank)
    spreads = {metric: group.per_rank(metric) for metric in metrics if metric != "sessions"}
    return {metric: spread for metric, spread in spreads.items() if spread}


def _run_data(run: Run, settings: Sequence[str], folder: Path) -> dict[str, Any]:
    per_rank = {
        name: [_number_or_none(value) for value in values] for name, values in run.per_rank.items()
    }
    return {
        "folder": Path(os.path.relpath(run.folder.resolve(), folder.resolve())).as_posix(),
        "report": REPORT if (run.folder / REPORT).is_file() else None,
        "seed": run.seed,
        "testSet": run.test_set,
        "perRank": _rounded(per_rank),
        "chosen": run.chosen,
        "texts": {metric: number(run.value(metric)) for metric in run.metrics},
        "seconds": _rounded(run.train.training_seconds),
        "compiling": _rounded(run.train.compile_seconds),
        "environment": run.environment,
        "curves": _rounded(_curves(run)),
        "settings": [
            _setting(run.settings[key]) if key in run.settings else None for key in settings
        ],
    }


def _curves(run: Run) -> dict[str, Any]:
    """Metrics by epoch, with the sessions and seconds until the end of each; no sessions where some are unknown."""
    curves: dict[str, Any] = {
        name: [_number_or_none(epoch.get(name)) for epoch in run.epochs]
        for name in ("epoch", *_recorded(run))
    }
    sessions = [_number_or_none(epoch.get("sessions")) for epoch in run.epochs]
    counted = [count for count in sessions if count is not None]
    curves["sessions"] = np.cumsum(counted) if len(counted) == len(sessions) else []
    curves["seconds"] = np.cumsum(run.epoch_seconds)
    return curves


def _setting(value: Any) -> str:
    """A value for a reader: text without quotes, classes of this package without their modules."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return without_module(text)


def _environments(runs: Sequence[Run]) -> list[str]:
    """Commits, versions and devices of the runs, where they are recorded."""
    environments = [run.environment for run in runs]
    shown = {"git_commit": "commit", "clickexp": "clickexp", "jax": "JAX", "device": "device"}
    values = {key: sorted({str(one[key]) for one in environments if one.get(key)}) for key in shown}
    if values["clickexp"] == [version("clickexp")]:  # which the page begins with
        values["clickexp"] = []
    values["git_commit"] = sorted({commit[:_COMMIT] for commit in values["git_commit"]})
    return [f"{name} {' and '.join(values[key])}" for key, name in shown.items() if values[key]]


def _rounded(values: Any, digits: int = _DIGITS) -> Any:
    """Numbers rounded, nan as None."""
    if isinstance(values, dict):
        return {key: _rounded(value, digits) for key, value in values.items()}
    if np.ndim(values):
        return [_rounded(value, digits) for value in values]
    return None if values is None or not np.isfinite(values) else float(f"{values:.{digits}g}")


def _number_or_none(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) else None


def _as_json(value: Any) -> Any:
    """The value, as text where JSON has no number for it; classes of this package without their modules."""
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return without_module(value)


def _packed(text: str) -> str:
    """Compressed, as the page unpacks it."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
