"""The posteriors of documents that an export writes."""

from typing import NamedTuple

import numpy as np

from clickexp.data import Sessions
from clickexp.export.policy_prior import lists_of_queries, with_policy_prior
from clickexp.export.posteriors import with_settled_rows, with_shared_errors
from clickexp.loggers.progress import Steps
from clickexp.models import Model
from clickexp.training.intervals.posterior import SharedPosterior


class Exported(NamedTuple):
    """A model with the posteriors that each part of an export is of; the model itself where there is nothing to change.

    Attributes:
        settled: For effective impressions: posteriors without the noise of training.
        known: For probabilities: also with a prior that knows which lists a policy has shown documents in.
        sure: For intervals: also with the errors of that prior and of shared parameters.
    """

    settled: Model
    known: Model
    sure: Model


def exported(model: Model, train: Sessions, impressions: np.ndarray, posterior: SharedPosterior | None) -> Exported:
    """Returns the model as an export needs it.

    Args:
        model: A fitted model.
        train: Its training sessions.
        impressions: Training impressions by id.
        posterior: Of its shared parameters, if it is known.
    """
    with Steps("posteriors of documents") as progress:
        settled = with_settled_rows(model, train, progress)
    lists = lists_of_queries(train, len(impressions))
    known = with_policy_prior(settled, impressions, lists)
    sure = with_policy_prior(settled, impressions, lists, model)
    if posterior is None:
        return Exported(settled, known, sure)
    with Steps("errors of shared parameters") as progress:
        return Exported(settled, known, with_shared_errors(sure, posterior, train, progress))
