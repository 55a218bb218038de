"""The panels of a dashboard on Weights & Biases, by section."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from clickexp.errors import UserError, install
from clickexp.results import metric_names
from clickexp.results.comparison import comparisons
from clickexp.results.conclusion import conclusion
from clickexp.results.groups import varying
from clickexp.results.leaderboard import differences
from clickexp.runs.run import Run
from clickexp.utils.tables.markdown import markdown

try:
    import wandb_workspaces.reports.v2 as wr
    from wandb_workspaces.reports.v2.interface import Layout, ParallelCoordinatesPlotColumn
except ImportError as error:
    raise UserError(f"{error.name} is missing: {install('dashboard')}") from error

EXPERIMENT = "experiment"
"""Key of a run's configuration, the same for all seeds."""
MOST_LINES = 50
"""Runs in a panel."""
TESTED = ("ppl", "cond_ppl", "ll", "ndcg@10", "mrr@10", "auc", "ece")
"""Metrics of the test set, the first ones first."""
_RANKED = ("ppl", "cond_ppl", "ll", "examination", "click_rate_error", "auc")
_VALIDATED = ("ppl", "cond_ppl", "ll")
_CUT = ("ndcg", "dcg", "mrr")
_COST = {
    "train/sessions_per_second": "Training sessions per second",
    "train/training_seconds": "Training time without compilation (s)",
    "train/compile_seconds": "Compilation (s)",
    "train/peak_host_mib": "Peak memory of the host (MiB)",
    "train/peak_device_mib": "Peak memory of the accelerator (MiB)",
}
_TUNED = ("optimizer.learning_rate", "trainer.batch_size")
"""Hyperparameters that are shown where no folder of runs says what was varied."""
_AXES = {
    "rank": "rank",
    "cutoff": "cutoff",
    "epoch": "epoch",
    "sessions": "training sessions seen",
    "predicted": "predicted P(click)",
}

_Panels = dict[str, list[Any]]
"""Panels by section."""


def sections(
    logged: set[str] | None, runs: Sequence[Run] = (), baseline: str | None = None
) -> _Panels:
    """New panels of each section, without those that would show nothing.

    Args:
        logged: Keys that runs have; None for any.
        runs: The runs, if they are at hand: they say what varies, and are compared with the baseline here.
        baseline: A group by its name or model; by default the best.
    """

    def of(panel: Callable[..., Any], prefix: str, names: Iterable[str], *axis: Any) -> list:
        return [panel(key, *axis) for key in present((prefix + name for name in names), logged)]

    losses = ["train/loss", *(f"val/{name}" for name in _VALIDATED)]
    panels = {
        "Test": of(_bars, "test/", TESTED, runs),
        "Difference to the baseline": _differences(runs, baseline),
        "Hyperparameters": _hyperparameters(logged, runs),
        "Test, over posterior draws": of(_bars, "draws/", TESTED, runs) if logged else [],
        "Test, by rank": of(_curve, "rank/test/", _RANKED, "rank"),
        "Validation, by rank": of(_curve, "rank/val/", _VALIDATED, "rank"),
        "Ranking, by cutoff": of(_curve, "cutoff/test/", _CUT, "cutoff"),
        "Calibration": of(_curve, "calibration/", ["ece"], "predicted"),
        "Training, over epochs": of(_curve, "", losses, "epoch"),
        "Training, over sessions": of(_curve, "sessions/", losses, "sessions"),
        "Speed and memory": of(_bars, "", _COST) + _scatter(logged),
    }
    return {name: of_section for name, of_section in panels.items() if of_section}


def _differences(runs: Sequence[Run], baseline: str | None) -> list:
    """The conclusion and the differences of each test set, tested: W&B tests nothing itself."""
    wide = Layout(w=24, h=12)
    return [
        wr.MarkdownPanel(
            "\n\n".join([f"**{conclusion(one)}**", markdown(differences(one))]), layout=wide
        )
        for one in (comparisons(runs, None, baseline) if runs else ())
        if len(one.groups) > 1
    ]


def _hyperparameters(logged: set[str] | None, runs: Sequence[Run]) -> list:
    """Parallel coordinates and importances, where runs differ in more than model and seed."""
    differing = varying([run.overrides for run in runs])
    keys = [key for key in differing if all(key in run.settings for run in runs)]
    if runs and not keys:
        return []
    target = _target(logged, runs)
    axes = [ParallelCoordinatesPlotColumn(wr.Config("model.name"))]
    for key in keys or _TUNED:
        log = _is_logarithmic([run.settings[key] for run in runs])
        axes.append(ParallelCoordinatesPlotColumn(wr.Config(key), log=log))
    axes.append(ParallelCoordinatesPlotColumn(wr.SummaryMetric(target)))
    title = f"{metric_names.name(_metric(target))} by hyperparameters"
    return [
        wr.ParallelCoordinatesPlot(columns=axes, title=title, layout=Layout(w=24, h=10)),
        wr.ParameterImportancePlot(with_respect_to=target),
    ]


def _target(logged: set[str] | None, runs: Sequence[Run]) -> str:
    """The key of the metric that hyperparameters are chosen by."""
    optimized = next((run.optimized for run in runs if run.optimized), "test/ll")
    return next(iter(present([optimized, f"test/{optimized}", "test/ll"], logged)), "val/loss")


def _is_logarithmic(values: Sequence[Any]) -> bool | None:
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        for value in values
    )
    return True if values and numbers and max(values) > 10 * min(values) else None


def present(keys: Iterable[str], logged: set[str] | None) -> list[str]:
    """The keys that runs have."""
    return [key for key in keys if logged is None or key in logged]


def _curve(key: str, axis: str) -> Any:
    """Mean and standard deviation over the runs of an experiment."""
    metric = _metric(key)
    title, y = f"{metric_names.name(metric)} by {axis}", metric_names.axis(metric)
    if axis == "predicted":
        title, y = "Calibration", "click rate"
    return wr.LinePlot(
        title=title,
        title_x=_AXES[axis],
        title_y=y,
        x=axis,
        y=[key],
        max_runs_to_show=MOST_LINES,
        **_over_seeds(),
    )


def _bars(key: str, runs: Sequence[Run] = ()) -> Any:
    """Means over seeds; the axis begins near the smallest where bars from 0 would look alike."""
    part, _, metric = key.partition("/")
    values = [run.value(metric if part == "test" else key) for run in runs]
    heights = np.array([value for value in values if value is not None])
    spread = np.ptp(heights) if len(heights) else 0
    near = 0 < spread < np.abs(heights).min(initial=np.inf) / 2
    bounds = (
        {"range_x": (float(heights.min() - spread), float(heights.max() + spread / 4))}
        if near
        else {}
    )
    return wr.BarPlot(
        title=_COST.get(key) or metric_names.name(_metric(key)),
        metrics=[wr.SummaryMetric(key)],
        max_runs_to_show=MOST_LINES,
        max_bars_to_show=MOST_LINES,
        **bounds,
        **_over_seeds(),
    )


def _scatter(logged: set[str] | None) -> list:
    """Quality over cost of the fits, one point per run."""
    x = {
        "train/training_seconds": "training time without compilation (s)",
        "parameters": "fitted parameters",
    }
    return [
        wr.ScatterPlot(
            title=f"{metric_names.axis('ll')} by {cost}",
            x=wr.SummaryMetric(key),
            y=wr.SummaryMetric(y),
            log_x=True,
        )
        for y in present(["test/ll"], logged)
        for key, cost in x.items()
    ]


def _over_seeds() -> dict[str, Any]:
    return {
        "groupby": wr.Config(EXPERIMENT),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "minmax",
    }


def _metric(key: str) -> str:
    """The metric of a key: val/ll for sessions/val/ll, ndcg for cutoff/test/ndcg."""
    *_, part, metric = key.split("/")
    return metric if part in ("test", "draws") else f"{part}/{metric}"
