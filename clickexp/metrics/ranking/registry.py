"""The ranking metrics under their usual names."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import rax

from clickexp.errors import ConfigError
from clickexp.metrics.base import Metric
from clickexp.metrics.ranking.base import RaxMetric
from clickexp.metrics.ranking.binary import (
    F1,
    MRR,
    AveragePrecision,
    AverageRecall,
    AverageReciprocalHitRate,
    HitRate,
    Hits,
    Precision,
    RankBiasedPrecision,
    Recall,
)
from clickexp.metrics.ranking.graded import DCG, NDCG, CumulativeGain, ExpectedReciprocalRank
from clickexp.metrics.ranking.pairs import ConcordantPairs, KendallTau, WeightedKendallTau

AT_CUTOFFS: dict[str, Callable[[Sequence[int]], Metric]] = {
    "precision": Precision,
    "recall": Recall,
    "f1": F1,
    "hits": Hits,
    "hit_rate": HitRate,
    "map": AveragePrecision,
    "map_min": partial(AveragePrecision, denominator="top"),
    "mar": AverageRecall,
    "mar_all": partial(AverageRecall, denominator="all"),
    "mrr": MRR,
    "arhr": AverageReciprocalHitRate,
    "cg": CumulativeGain,
    "dcg": DCG,
    "dcg_linear": partial(DCG, form="linear"),
    "dcg_original": partial(DCG, form="original"),
    "ndcg": NDCG,
    "ndcg_linear": partial(NDCG, form="linear"),
    "ndcg_original": partial(NDCG, form="original"),
    "err": ExpectedReciprocalRank,
    "rbp": RankBiasedPrecision,
}
OF_PAIRS: dict[str, Callable[[], Metric]] = {
    "concordant_pairs": ConcordantPairs,
    "fcp": partial(ConcordantPairs, ties="skip"),
    "tau": KendallTau,
    "weighted_tau": WeightedKendallTau,
}


def ranking_metrics(
    names: Iterable[str] = ("dcg", "ndcg", "mrr"), cutoffs: Iterable[int] = (1, 3, 5, 10)
) -> dict[str, Metric]:
    """Metrics by name at each cutoff, such as ndcg, for values named ndcg@10; those of pairs have no cutoff.

    A name not of this module may be one of Rax, for its function NAME_metric. ConfigError for any other.
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
            known = ", ".join(sorted([*AT_CUTOFFS, *OF_PAIRS]))
            raise ConfigError(
                f"there is no ranking metric {name!r}: choose from {known}, or a NAME_metric of rax"
            )
    return metrics
