"""Metrics as mergeable sums: click prediction, ranking, and several under one roof."""

from clickexp.metrics.base import Metric, PerList
from clickexp.metrics.calibration import AUC, ClickRateError, ExpectedCalibrationError
from clickexp.metrics.click import ConditionalPerplexity, LogLikelihood, MicroPerplexity, Perplexity
from clickexp.metrics.exact import exact_sum
from clickexp.metrics.latent import Correlation, Examination, RootMeanSquaredError
from clickexp.metrics.multi import MultiMetric
from clickexp.metrics.ranking.base import RankedLists, RankingMetric, RaxMetric, rank_lists
from clickexp.metrics.ranking.binary import (
    F1,
    MRR,
    AveragePrecision,
    AverageRecall,
    AverageReciprocalHitRate,
    HitRate,
    Hits,
    ListsWithoutRelevant,
    Precision,
    RankBiasedPrecision,
    Recall,
    RelevanceMetric,
)
from clickexp.metrics.ranking.graded import DCG, NDCG, CumulativeGain, ExpectedReciprocalRank
from clickexp.metrics.ranking.pairs import ConcordantPairs, KendallTau, PairMetric, WeightedKendallTau
from clickexp.metrics.ranking.registry import ranking_metrics

__all__ = [
    "AUC",
    "AveragePrecision",
    "AverageRecall",
    "AverageReciprocalHitRate",
    "ClickRateError",
    "ConcordantPairs",
    "ConditionalPerplexity",
    "Correlation",
    "CumulativeGain",
    "DCG",
    "Examination",
    "ExpectedCalibrationError",
    "ExpectedReciprocalRank",
    "F1",
    "HitRate",
    "Hits",
    "KendallTau",
    "ListsWithoutRelevant",
    "LogLikelihood",
    "MRR",
    "Metric",
    "MicroPerplexity",
    "MultiMetric",
    "NDCG",
    "PairMetric",
    "PerList",
    "Perplexity",
    "Precision",
    "RankBiasedPrecision",
    "RankedLists",
    "RankingMetric",
    "RaxMetric",
    "Recall",
    "RelevanceMetric",
    "RootMeanSquaredError",
    "WeightedKendallTau",
    "exact_sum",
    "rank_lists",
    "ranking_metrics",
]
