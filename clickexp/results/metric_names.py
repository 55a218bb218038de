"""Names of metrics in tables and figures, and which of them come first."""

from collections.abc import Iterable

from clickexp.runs.objective import Stated, higher_is_better
from clickexp.runs.run import VALIDATION

_NAMES = {
    "ll": "Log-likelihood",
    "ppl": "Perplexity",
    "cond_ppl": "Conditional perplexity",
    "micro_ppl": "Micro perplexity",
    "click_ppl": "Click perplexity",
    "skip_ppl": "Skip perplexity",
    "cold_ll": "LL by training impressions",
    "cold_ppl": "PPL by training impressions",
    "cold_share": "Share by training impressions",
    "without_relevant": "Lists without a relevant document",
    "ece": "Calibration error",
    "click_rate_error": "Click-rate error",
    "examination": "P(examination)",
    "train/loss": "Training loss",
    "ndcg": "nDCG",
    "snips_dcg": "SNIPS DCG",
    "attraction_rmse": "Attraction RMSE",
    "examination_error": "Relative error of examination",
    "seconds": "Time without compilation",
    "compile_seconds": "Compilation",
    "parameters": "Fitted parameters",
}
ARROWS = {1: " ↑", 0: "", -1: " ↓"}
"""Behind the name of a metric, by its `direction`."""
PER_RANK = ("ll", "ppl", "cond_ppl")
"""Metrics of clicks that tables show first, and figures by rank."""
_ACRONYMS = ("auc", "dcg", "mrr", "map", "err", "rbp")
_SHORT = {"ll": "LL", "ppl": "PPL", "cond_ppl": "cPPL", "ece": "ECE"}
_UNITS = {
    "ll": "nats per document",
    **dict.fromkeys(("loss", "train/loss"), "per document"),  # of a ranking loss no nats
    **dict.fromkeys(("seconds", "compile_seconds"), "s"),
}


def name(metric: str) -> str:
    """Name of a metric for a reader, such as "nDCG@10" for ndcg@10."""
    if metric.startswith(VALIDATION):
        return "Validation " + uncapitalised(name(metric.removeprefix(VALIDATION)))
    base, at, cutoff = metric.partition("@")
    spelled = base.upper() if base in _ACRONYMS else base.replace("_", " ").capitalize()
    return _NAMES.get(base, spelled) + at + cutoff


def short(metric: str) -> str:
    """Name for narrow tables, such as "cPPL" for cond_ppl."""
    if metric.startswith(VALIDATION):
        return "Val. " + uncapitalised(short(metric.removeprefix(VALIDATION)))
    return _SHORT.get(metric) or name(metric)


def axis(metric: str) -> str:
    """Name with its unit, for an axis."""
    unit = _UNITS.get(metric.removeprefix(VALIDATION))
    return f"{name(metric)} ({unit})" if unit else name(metric)


def direction(metric: str, stated: Stated) -> int:
    """1 where more is better, -1 where less is, 0 where neither is or nothing is known.

    Args:
        metric: Its name, such as ll or val/loss.
        stated: By name what the metrics of the runs state.
    """
    better = False if metric == "seconds" else higher_is_better(metric, stated)
    return 0 if better is None else 1 if better else -1


def leading(metrics: Iterable[str], clicks: bool = True) -> list[str]:
    """Metrics that a paper's table shows: of clicks, and of rankings at the largest cutoff.

    Args:
        metrics: Those that there are.
        clicks: Whether all models predict clicks. Where some only rank, metrics of rankings come first, nDCG at several
            cutoffs and MAP among them.
    """
    metrics = list(metrics)
    of_clicks = [metric for metric in PER_RANK if metric in metrics]
    gains = _largest_first("ndcg", metrics) or _largest_first("dcg", metrics)
    ranks = _largest_first("mrr", metrics)[:1]
    if clicks:
        return [*of_clicks, *gains[:1], *ranks] or metrics[:6]
    return [*gains, *_largest_first("map", metrics)[:1], *ranks, *of_clicks] or metrics[:6]


def _largest_first(base: str, metrics: Iterable[str]) -> list[str]:
    """A metric at its cutoffs, that without one first."""
    cutoffs = {}
    for metric in metrics:
        name, _, cutoff = metric.partition("@")
        if name == base:
            cutoffs[metric] = float(cutoff or "inf")
    return sorted(cutoffs, key=lambda metric: -cutoffs[metric])


def headline(metrics: Iterable[str]) -> list[str]:
    """Of metrics at several cutoffs the first only."""
    return list({metric.partition("@")[0]: metric for metric in reversed(list(metrics))}.values())[
        ::-1
    ]


def uncapitalised(text: str) -> str:
    """The text with its first letter in lower case, but for abbreviations."""
    return text if text[:2].isupper() else text[:1].lower() + text[1:]
