"""A run in MLflow: in a database on this machine or on a server."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clickexp.loggers.base import RunInfo
from clickexp.loggers.scalars import ScalarLogger
from clickexp.loggers.values import hyperparameters, missing_extra, spelled
from clickexp.runs.run import Run

_FILES = ("config.yaml", "result.json", "report.html", "model.npz")
"""Files of the run's folder that become artifacts."""
_LONGEST = 500
"""Characters of a parameter that every store of MLflow takes."""
_FOLDER = "folder"
"""The tag by which a sweep finds its best run."""
_MOST = 1000
"""Metrics that MLflow takes at a time."""


class MlflowLogger(ScalarLogger):
    """Sends a run to MLflow, in the experiment that has the name of the project.

    Settings are parameters. Names are ndcg_at_10 for ndcg@10. Values are sent once per epoch. The best run of a sweep
    has the tag best.

    Args:
        tracking_uri: Such as sqlite:///outputs/mlflow.db or http://HOST:5000; None takes that of MLflow, which
            MLFLOW_TRACKING_URI sets.
        experiment: Defaults to the project of the run.
        artifacts: Whether to keep configuration, result, report and model as artifacts.

    Raises:
        UserError: MLflow is not installed.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        artifacts: bool = True,
    ) -> None:
        try:
            import mlflow  # noqa: F401  # before the run starts
        except ImportError as error:
            raise missing_extra("mlflow", error) from error
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.artifacts = artifacts
        self._folder = Path()
        self._client: Any = None
        self._run = ""

    @property
    def destination(self) -> str:
        """The service."""
        return "MLflow"

    def start(self, info: RunInfo) -> None:
        """Creates the run, with its settings as parameters."""
        from mlflow.entities import Param

        self._folder = info.folder
        number = self._opened(info)
        tags: dict[str, str] = dict.fromkeys(info.tags, "true")
        described = {
            _FOLDER: str(info.folder.resolve()),
            "group": info.group,
            "job_type": info.job_type,
            "mlflow.note.content": info.notes,
        }
        tags |= {key: value for key, value in described.items() if value}
        self._run = self._client.create_run(number, run_name=info.name, tags=tags).info.run_id
        settings = hyperparameters(info.config).items()
        parameters = [Param(key, str(value)[:_LONGEST]) for key, value in settings]
        self._client.log_batch(self._run, params=parameters)

    def best_run(self, info: RunInfo, run: Run) -> None:
        """Gives the best run the tag `best`, the name of the sweep."""
        number = self._opened(info)
        query = f"tags.{_FOLDER} = '{run.folder.resolve()}'"
        for run_of_group in self._client.search_runs([number], query):
            self._client.set_tag(run_of_group.info.run_id, "best", info.folder.name)

    def finish(self, ok: bool) -> None:
        """Ends the run, if it was created; after a run that succeeded, with its artifacts."""
        if not self._run:
            return
        if ok and self.artifacts:
            for name in _FILES:
                if (self._folder / name).is_file():
                    self._client.log_artifact(self._run, str(self._folder / name))
        self._client.set_terminated(self._run, "FINISHED" if ok else "FAILED")

    def _opened(self, info: RunInfo) -> str:
        """Connects to MLflow; returns the number of the experiment."""
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it lists the tables it creates
        self._client = MlflowClient(self.tracking_uri)
        name = self.experiment or info.project
        experiment = self._client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment else self._client.create_experiment(name)

    def scalars(self, steps: Mapping[int, Mapping[str, float]]) -> None:
        """Sends metrics by step, in requests as large as MLflow takes."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [
            Metric(spelled(name), value, now, step)
            for step, values in steps.items()
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), _MOST):
            self._client.log_batch(self._run, metrics=metrics[first : first + _MOST])
