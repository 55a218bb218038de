"""A finished run: its result, configuration and epochs, and what distinguishes it from others."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clickexp.runs.hashing import flat
from clickexp.runs.objective import DRAWS, VALIDATION
from clickexp.runs.result import RunResult
from clickexp.runs.settings import VARYING

SEED = "seed"
_FOLD, _FOLDS = "dataset.fold", "dataset.folds"


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        folder: Its folder.
        result: What it reported.
        config: The resolved configuration, empty where there is none.
        given: Values of its overrides by key.
        epochs: One record per epoch.
        optimized: The metric by which a search chose among its trials, if the run is one of them, such as val/loss,
            or ll of the test.
        chosen: Whether the search chose it.
    """

    folder: Path
    result: RunResult
    config: Mapping[str, Any]
    given: Mapping[str, Any]
    epochs: tuple[Mapping[str, Any], ...]
    optimized: str | None = None
    chosen: bool = False

    @property
    def metrics(self) -> list[str]:
        """Names of the numbers of the test, over posterior draws (draws/...), and of the best epoch (val/...)."""
        drawn = (f"{DRAWS}{name}" for name in self.result.test_draws)
        return [*self.result.test, *drawn, *(f"{VALIDATION}{name}" for name in self.result.val)]

    def value(self, metric: str) -> float | None:
        """Returns the value of one of `metrics`; None where the run does not have it."""
        if metric.startswith(DRAWS):
            drawn = self.result.test_draws.get(metric.removeprefix(DRAWS))
            return None if drawn is None else drawn.mean
        if metric.startswith(VALIDATION):
            return self.result.val.get(metric.removeprefix(VALIDATION))
        return self.result.test.get(metric)

    @property
    def seconds(self) -> float | None:
        """Seconds of training without compilation."""
        return self.result.train.training_seconds

    @property
    def compile_seconds(self) -> float | None:
        """Seconds of compilation."""
        return self.result.train.compile_seconds

    @property
    def epoch_seconds(self) -> list[float]:
        """Seconds of each epoch without compilation, nan where unknown."""
        return [
            _float_or_nan(epoch.get("seconds")) - _float_or_nan(epoch.get("compile_seconds", 0.0))
            for epoch in self.epochs
        ]

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.result.model

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return self.result.dataset

    @property
    def seed(self) -> int | None:
        """Seed of the run."""
        return self.result.seed

    @property
    def fold(self) -> int | None:
        """The fold of the queries that is the test set; None where they are not in folds."""
        return self.settings.get(_FOLD) if (self.settings.get(_FOLDS) or 1) > 1 else None

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """Overrides that distinguish experiments: neither the seed, nor the fold, nor where runs report to."""
        given = {
            key: value for key, value in self.given.items() if key.split(".")[0] not in VARYING
        }
        return {key: value for key, value in given.items() if key != _FOLD or self.fold is None}

    @property
    def description(self) -> str:
        """The overrides for a reader."""
        return ", ".join(f"{key}={value}" for key, value in self.overrides.items())

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration as dotted keys and plain values."""
        return flat(self.config, whole_lists=True) if self.config else {}

    @cached_property
    def towers(self) -> dict[str, str]:
        """The class of the tower of each role of the model, such as {"attraction": "Embedding"}."""
        roles = self.config.get("model")
        targets = (
            {role: _target(tower) for role, tower in roles.items()}
            if isinstance(roles, Mapping)
            else {}
        )
        return {
            role: re.sub(r"Parameter(Config)?$", "", target.split(".")[-1])
            for role, target in targets.items()
            if target
        }

    @property
    def parameters(self) -> int | None:
        """Number of fitted parameters, tables included."""
        return self.result.parameters

    @property
    def test_set(self) -> str:
        """Fingerprint of the test set."""
        return self.result.test_set

    @cached_property
    def experiment(self) -> str:
        """The same for runs that differ in their seed or fold only, and in what follows it."""
        left_out = ("dataset.cache", *((_FOLD,) if self.fold is not None else ()))
        settings = {
            key: value
            for key, value in self.settings.items()
            if key.split(".")[0] not in VARYING
            and key.split(".")[-1] != SEED
            and key not in left_out
        }
        seeds = {key: value for key, value in self.overrides.items() if key.endswith(f".{SEED}")}
        return _short_hash([self.model, self.dataset, settings or self.overrides, seeds])

    @property
    def same(self) -> tuple[str, str, int | None]:
        """The same for runs of one configuration and seed on one test set."""
        return self.experiment, self.test_set, self.seed

    def rows(self) -> Iterator[tuple]:
        """Yields the rows of the tidy frame; see `clickexp.results.load`."""
        own = str(self.folder), self.model, self.dataset, self.seed, self.description
        for part, numbers in self.result.parts().items():
            for name, value in numbers.items():
                yield (*own, part, name, None, _float_or_none(value))
        yield (*own, "train", "parameters", None, _float_or_none(self.parameters))
        for part, vectors in self.result.vectors().items():
            for name, vector in vectors.items():
                for rank, value in enumerate(vector, start=1):
                    yield (*own, part, name, rank, _float_or_none(value))


def _short_hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _float_or_none(value: float | None) -> float | None:
    return None if value is None else float(value)


def _float_or_nan(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _target(tower: Any) -> str | None:
    """Returns the constructor of a tower; of a compressed table, that of its compression."""
    if not isinstance(tower, Mapping):
        return None
    target = tower.get("_target_")
    return _target(tower.get("embedding_fn")) or (target if isinstance(target, str) else None)
