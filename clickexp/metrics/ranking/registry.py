"""The ranking metrics under their usual names."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import rax

from clickexp.errors import ConfigError
from clickexp.metrics.base import Metric
from clickexp.metrics.ranking import binary, graded, judged, pairs
from clickexp.metrics.ranking.rax import RaxMetric

AT_CUTOFFS: dict[str, Callable[[Sequence[int]], Metric]] = {
    "precision": binary.Precision,
    "recall": binary.Recall,
    "f1": binary.F1,
    "hits": binary.Hits,
    "hit_rate": binary.HitRate,
    "map": binary.AveragePrecision,
    "map_min": partial(binary.AveragePrecision, denominator="top"),
    "mar": binary.AverageRecall,
    "mar_all": partial(binary.AverageRecall, denominator="all"),
    "mrr": binary.MRR,
    "arhr": binary.AverageReciprocalHitRate,
    "cg": graded.CumulativeGain,
    "dcg": graded.DCG,
    "dcg_linear": partial(graded.DCG, form="linear"),
    "dcg_original": partial(graded.DCG, form="original"),
    "ndcg": graded.NDCG,
    "ndcg_linear": partial(graded.NDCG, form="linear"),
    "ndcg_original": partial(graded.NDCG, form="original"),
    "err": graded.ExpectedReciprocalRank,
    "rbp": binary.RankBiasedPrecision,
    "judged": judged.JudgedShare,
}
OF_PAIRS: dict[str, Callable[[], Metric]] = {
    "concordant_pairs": pairs.ConcordantPairs,
    "fcp": partial(pairs.ConcordantPairs, ties="skip"),
    "tau": pairs.KendallTau,
    "weighted_tau": pairs.WeightedKendallTau,
}


def ranking_metrics(
    names: Iterable[str] = ("dcg", "ndcg", "mrr"), cutoffs: Iterable[int] = (1, 3, 5, 10)
) -> dict[str, Metric]:
    """Metrics by name, such as ndcg, whose values are named ndcg@10.

    Args:
        names: Those of this module; any other may be one of Rax, for its function NAME_metric.
        cutoffs: Cutoffs of each metric; those of pairs have none.

    Raises:
        ConfigError: For a name that is neither.
    """
    cutoffs = tuple(cutoffs)
    metrics: dict[str, Metric] = {}
    for name in names:
        if name in AT_CUTOFFS:
            metrics[name] = AT_CUTOFFS[name](cutoffs)
        elif name in OF_PAIRS:
            metrics[name] = OF_PAIRS[name]()
        elif function := getattr(rax, f"{name}_metric", None):
            metrics |= {f"{name}@{cutoff}": RaxMetric(function, cutoff) for cutoff in cutoffs}
        else:
            choices = ", ".join(sorted([*AT_CUTOFFS, *OF_PAIRS]))
            raise ConfigError(
                f"there is no ranking metric {name!r}: choose from {choices}, or a NAME_metric of rax"
            )
    return metrics
