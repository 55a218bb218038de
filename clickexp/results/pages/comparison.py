"""One self-contained page that compares runs: data, charts (plotly.js) and all in a single HTML file."""

import base64
import gzip
import json
import os
import re
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

from clickexp.results import metric_names
from clickexp.results.colors import COLORS
from clickexp.results.comparison import Comparison
from clickexp.results.conclusion import conclusion
from clickexp.results.groups import Group, varying
from clickexp.results.hyperparameters import commands, importances
from clickexp.results.leaderboard import difference_texts, value_texts
from clickexp.results.loading import Skipped
from clickexp.results.online_results import online_results, online_table
from clickexp.results.pages.template import filled, static
from clickexp.runs.objective import stated_by
from clickexp.runs.online import OnlineComparison
from clickexp.runs.run import Run
from clickexp.runs.store import REPORT
from clickexp.utils.escape import html_text, printable
from clickexp.utils.statistics.means import SIGNIFICANT, Spread, t_quantile
from clickexp.utils.tables.numbers import interval, number

_SCRIPTS = ("state", "leaderboard", "plot", "charts", "online", "search", "share", "controls")
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
    groups = [group for comparison in comparisons for group in comparison.groups]
    runs = [run for group in groups for run in group.runs]
    group_at = {group: i for i, group in enumerate(groups)}
    run_at = {id(run): i for i, run in enumerate(runs)}
    settings = varying([_settings(run) for run in runs])
    metrics = dict.fromkeys(metric for comparison in comparisons for metric in comparison.metrics)
    metrics |= dict.fromkeys(metric for group in groups for metric in _per_rank(group))
    metrics |= dict.fromkeys(
        name for run in runs for epoch in run.epochs for name in epoch if "/" in name
    )
    stated = stated_by(runs)
    online, damaged = online_results(runs)
    return {
        "title": printable(
            title or f"{folder.resolve().name}: {len(runs)} run{'s' * (len(runs) > 1)} compared"
        ),
        "about": f"clickexp {version('clickexp')}, {datetime.now():%Y-%m-%d %H:%M}",
        "commands": [*commands(groups)[:_MOST_COMMANDS], *filter(None, [printable(command)])],
        "environment": _environments(runs),
        "colors": COLORS,
        "quantiles": _rounded(t_quantile(np.arange(2, 32))),
        "significant": SIGNIFICANT,
        "skipped": [
            printable(
                f"{os.path.relpath(one.folder, folder)}: {one.reason.replace(f'{folder}{os.sep}', '')}"
            )
            for one in (*skipped, *damaged)
        ],
        "online": [_online(one) for one in online],
        "metrics": {
            metric: {
                "name": metric_names.name(metric),
                "short": metric_names.short(metric),
                "axis": metric_names.axis(metric),
                "direction": metric_names.direction(metric, stated),
            }
            for metric in [*metrics, "seconds", "parameters"]
        },
        "keys": [
            key
            for key in varying([group.overrides for group in groups])
            if key not in ("model", "dataset")
        ],
        "settings": settings,
        "comparisons": [_comparison(comparison, group_at) for comparison in comparisons],
        "groups": [
            _group(group, run_at, one.uncertainty) for one in comparisons for group in one.groups
        ],
        "runs": [_run_data(run, settings, folder) for run in runs],
    }


def _comparison(comparison: Comparison, group_at: dict[Group, int]) -> dict[str, Any]:
    tests = comparison.tests.items()
    baselines = [comparison.groups[at] for at in comparison.baselines]
    searched = next(
        (run.optimized for run in comparison.runs if run.optimized in comparison.metrics), None
    )
    return {
        **{
            name: getattr(comparison, name)
            for name in ("name", "choice", "warnings", "metrics", "leading")
        },
        "about": comparison.describe(),
        "meaning": comparison.meaning,
        "conclusions": {group_at[group]: conclusion(comparison, group) for group in baselines},
        "optimized": searched,
        "importances": _rounded(
            importances(comparison.groups, searched, comparison.direction(searched))
        )
        if searched
        else {},
        "groups": [group_at[group] for group in comparison.groups],
        "texts": {metric: value_texts(comparison, metric) for metric in comparison.metrics},
        "differences": {
            metric: [difference_texts(comparison, baseline, metric) for baseline in baselines]
            for metric in comparison.metrics
        },
        "baselines": [group_at[group] for group in baselines],
        "baseline": group_at[comparison.baseline],
        "tests": {
            metric: {"unit": test.unit, "p": _rounded(test.p), "half": _rounded(test.half)}
            for metric, test in tests
            if np.isfinite(test.p).any()
        },
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
    ranks, metrics = (
        _per_rank(group).items(),
        dict.fromkeys(name for run in group.runs for name in run.metrics),
    )
    return {
        **{name: getattr(group, name) for name in ("name", "rest", "model", "tower", "chosen")},
        "overrides": {key: _as_json(value) for key, value in group.overrides.items()},
        "runs": [run_at[id(run)] for run in group.runs],
        "values": {metric: _value(group, metric, over) for metric in metrics},
        "hints": {metric: _hint(group, metric) for metric in metrics},
        "examines": not _everything_examined(group),
        "seconds": _rounded(group.seconds),
        "compiling": _rounded(group.compile_seconds),
        "parameters": group.runs[0].parameters,
        "perRank": {
            metric: _rounded([spread.mean, spread.low, spread.high]) for metric, spread in ranks
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
    set_here = _settings(run)
    columns = dict.fromkeys(name for epoch in run.epochs for name in epoch if "/" in name)
    curves = {
        name: [_number_or_none(epoch.get(name)) for epoch in run.epochs]
        for name in ("epoch", *columns)
    }
    per_epoch = [_number_or_none(epoch.get("sessions")) for epoch in run.epochs]
    sessions = [] if None in per_epoch else np.cumsum(np.array(per_epoch, np.float64))
    curves |= {"sessions": list(sessions), "seconds": list(np.cumsum(run.epoch_seconds))}
    return {
        "folder": Path(os.path.relpath(run.folder.resolve(), folder.resolve())).as_posix(),
        "report": REPORT if (run.folder / REPORT).is_file() else None,
        "seed": run.seed,
        "testSet": run.test_set,
        "perRank": {
            key: _rounded(list(map(_number_or_none, own))) for key, own in run.per_rank.items()
        },
        "chosen": run.chosen,
        "texts": {metric: number(run.value(metric)) for metric in run.metrics},
        "seconds": _rounded(run.train.training_seconds),
        "compiling": _rounded(run.train.compile_seconds),
        "environment": run.environment,
        "curves": _rounded(curves),
        "settings": [_setting(set_here[key]) if key in set_here else None for key in settings],
    }


def _settings(run: Run) -> dict[str, Any]:
    """The configuration without towers at the root, which the model repeats if it has such a role."""
    model = run.config.get("model")
    roles = set(model if isinstance(model, dict) else ())
    targets = {
        key: str(node.get("_target_")) for key, node in run.config.items() if isinstance(node, dict)
    }
    roles |= {key for key, target in targets.items() if target.startswith("clickexp.parameters.")}
    return {key: value for key, value in run.settings.items() if key.partition(".")[0] not in roles}


def _setting(value: Any) -> str:
    """A value for a reader: text without quotes, classes of this package without their modules."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"^clickexp\.(\w+\.)*", "", text)


def _environments(runs: Sequence[Run]) -> list[str]:
    """Commits, versions and devices of the runs, where they are recorded."""
    environments = [run.environment for run in runs]
    shown = {"git_commit": "commit", "clickexp": "clickexp", "jax": "JAX", "device": "device"}
    values = {key: sorted({str(own[key]) for own in environments if own.get(key)}) for key in shown}
    if values["clickexp"] == [version("clickexp")]:  # which the page begins with
        values["clickexp"] = []
    values["git_commit"] = sorted({commit[:_COMMIT] for commit in values["git_commit"]})
    return [f"{name} {' and '.join(values[key])}" for key, name in shown.items() if values[key]]


def _everything_examined(group: Group) -> bool:
    """Whether the model has no examination: it is 1 at all ranks."""
    spread = group.per_rank("examination")
    return spread is not None and bool((spread.mean == 1).all())


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
    """The value, as text where JSON has no number for it."""
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _packed(text: str) -> str:
    """Compressed, as the page unpacks it."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
