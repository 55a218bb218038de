"""Fitting and evaluating click models."""

from clickexp.training.evaluation import Evaluator, click_metrics, ranking_metrics
from clickexp.training.optimizers import (
    LazyAdam,
    Optimizer,
    RowAdagrad,
    RowOptimizer,
    RowSGD,
    lazy_adam,
    lazy_adamw,
    row_adagrad,
    row_sgd,
)
from clickexp.training.stopping import EarlyStopping
from clickexp.training.trainer import FitReport, Trainer

__all__ = [
    "EarlyStopping",
    "Evaluator",
    "FitReport",
    "LazyAdam",
    "Optimizer",
    "RowAdagrad",
    "RowOptimizer",
    "RowSGD",
    "Trainer",
    "click_metrics",
    "lazy_adam",
    "lazy_adamw",
    "ranking_metrics",
    "row_adagrad",
    "row_sgd",
]
