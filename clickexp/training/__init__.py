"""Fits models: the loop over epochs, gradient descent, stopping and checkpoints. Runs are configured elsewhere."""

from clickexp.evaluation.evaluator import Evaluator
from clickexp.evaluation.groups import click_metrics
from clickexp.training.em.counting import CountingTrainer
from clickexp.training.em.em import EMTrainer
from clickexp.training.loop import FitReport
from clickexp.training.optimizers import (
    Optimizer,
    lazy_adagrad,
    lazy_adam,
    lazy_adamw,
    lazy_sgd,
    natural_gradient,
    with_rate,
)
from clickexp.training.sparse.row_optimizers import (
    LazyAdagrad,
    LazyAdam,
    LazySGD,
    NaturalGradient,
    RowOptimizer,
)
from clickexp.training.stopping import EarlyStopping
from clickexp.training.trainer import Trainer

__all__ = [
    "CountingTrainer",
    "EMTrainer",
    "EarlyStopping",
    "Evaluator",
    "FitReport",
    "LazyAdagrad",
    "LazyAdam",
    "LazySGD",
    "NaturalGradient",
    "Optimizer",
    "RowOptimizer",
    "Trainer",
    "click_metrics",
    "lazy_adagrad",
    "lazy_adam",
    "lazy_adamw",
    "lazy_sgd",
    "natural_gradient",
    "with_rate",
]
