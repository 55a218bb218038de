"""How well the model of an update still predicts the last log of the run before it."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from clickexp.data import Dataset
from clickexp.errors import UserError
from clickexp.experiment.build import Parts, numbers_ids
from clickexp.models import ClickModel

if TYPE_CHECKING:
    from clickexp.updates.chain import EarlierRun


def of_last_log(parts: Parts, run: "EarlierRun") -> Mapping[str, float]:
    """Returns test metrics of a fitted model on the test set of an earlier run.

    Args:
        parts: Those of the update.
        run: The run that it goes on from.

    Returns:
        The metrics; none, and a message, where the log of that run is not there as it was.
    """
    if not isinstance(parts.model, ClickModel):
        return {}
    try:
        dataset = _read_again(parts, run)
    except (UserError, OSError) as error:
        parts.logger.message(f"the test set of {run.folder} cannot be read again: {error}")
        return {}
    origin = run.result.origin
    if origin is None or dataset.fingerprint() != origin.fingerprint:
        parts.logger.message(f"the log of {run.folder} has changed: its test set is left out")
        return {}
    here = parts.dataset
    dataset = dataset.covering(here.query_doc_pairs, here.positions, here.largest)
    dataset = parts.model.prepare(dataset)
    return parts.trainer.evaluate(parts.model, dataset.test).compute()


def _read_again(parts: Parts, run: "EarlierRun") -> Dataset:
    """Reads the dataset of an earlier run: by the reader of this one, with plain values of the other configuration."""
    read, config = parts.config.open_dataset, run.result.config
    values: dict[str, Any] = {
        name: value
        for name, value in config.get("dataset", {}).items()
        if name in read.keywords and name != "cache" and not isinstance(value, Mapping)
    }
    if isinstance(values.get("path"), str) and run.result.origin is not None:
        values["path"] = run.result.origin.located(values["path"])
    numberings = run.numberings_before if numbers_ids(read) else {}
    return partial(read, **values)(**numberings).first(config.get("max_sessions"))
