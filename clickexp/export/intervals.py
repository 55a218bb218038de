"""The posteriors of documents that exported intervals are of."""

import numpy as np

from clickexp.data import Sessions
from clickexp.export.posteriors import with_settled_rows, with_shared_errors
from clickexp.export.prior_variance import with_prior_variance
from clickexp.loggers.progress import Steps
from clickexp.models import Model
from clickexp.training.intervals.posterior import SharedPosterior


def exported(
    model: Model, train: Sessions, impressions: np.ndarray, posterior: SharedPosterior | None
) -> tuple[Model, Model]:
    """Returns the model with the posteriors that effective impressions are of, and with those of intervals.

    The first have no noise of training. The others also have a prior that varies by impressions, and the errors of
    shared parameters. Either is the model itself where there is nothing to change.

    Args:
        model: A fitted model.
        train: Its training sessions.
        impressions: Training impressions by id.
        posterior: Of its shared parameters, if it is known.
    """
    with Steps("posteriors of documents") as progress:
        settled = with_settled_rows(model, train, progress)
    varied = with_prior_variance(settled, impressions, model) or settled
    if posterior is None:
        return settled, varied
    with Steps("errors of shared parameters") as progress:
        return settled, with_shared_errors(varied, posterior, train, progress)
