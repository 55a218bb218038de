"""Metrics as mergeable sums: click prediction, ranking, and several under one roof."""

from clickexp.metrics.base import Metric, PerList
from clickexp.metrics.calibration import AUC, ClickRateError, ExpectedCalibrationError
from clickexp.metrics.click import ConditionalPerplexity, LogLikelihood, MicroPerplexity, Perplexity
from clickexp.metrics.exact import exact_sum
from clickexp.metrics.hidden import Correlation, Examination, RootMeanSquaredError
from clickexp.metrics.multi import MultiMetric
from clickexp.metrics.ranking import RaxMetric

__all__ = [
    "AUC",
    "ClickRateError",
    "ConditionalPerplexity",
    "Correlation",
    "Examination",
    "ExpectedCalibrationError",
    "LogLikelihood",
    "Metric",
    "MicroPerplexity",
    "MultiMetric",
    "PerList",
    "Perplexity",
    "RaxMetric",
    "RootMeanSquaredError",
    "exact_sum",
]
