"""Metrics as mergeable sums: click prediction, ranking, and several under one roof."""

from clickexp.metrics.base import Metric
from clickexp.metrics.click import ConditionalPerplexity, LogLikelihood, Perplexity
from clickexp.metrics.multi import MultiMetric
from clickexp.metrics.ranking import RaxMetric

__all__ = ["ConditionalPerplexity", "LogLikelihood", "Metric", "MultiMetric", "Perplexity", "RaxMetric"]
