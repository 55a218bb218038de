"""A finished run: its result, configuration and epochs, and what distinguishes it from others."""

import hashlib
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clickexp.runs.hashing import NOT_HASHED, flat
from clickexp.runs.objective import DRAWS, VALIDATION
from clickexp.runs.store import MODEL, training_seconds

SEED = "seed"
_FOLD, _FOLDS = "dataset.fold", "dataset.folds"
VARYING = (*NOT_HASHED, SEED, "keep_values", "draws")
"""Keys in which runs of one experiment may differ."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        folder: Its folder.
        result: The content of result.json.
        config: The resolved configuration, empty where there is none.
        given: Values of its overrides by key.
        epochs: One record per epoch.
        optimized: The metric by which a search chose among its trials, if the run is one of them, such as val/loss,
            or ll of the test.
        chosen: Whether the search chose it.
    """

    folder: Path
    result: Mapping[str, Any]
    config: Mapping[str, Any]
    given: Mapping[str, Any]
    epochs: tuple[Mapping[str, Any], ...]
    optimized: str | None = None
    chosen: bool = False

    @property
    def metrics(self) -> list[str]:
        """Names of the numbers of the test, over posterior draws (draws/...), and of the best epoch (val/...)."""
        drawn = (f"{DRAWS}{name}" for name in self.result.get("test_draws", {}))
        return [
            *self.result["test"],
            *drawn,
            *(f"{VALIDATION}{name}" for name in self.result.get("val", {})),
        ]

    def value(self, metric: str) -> float | None:
        """Returns the value of one of `metrics`; None where the run does not have it."""
        if metric.startswith(DRAWS):
            return (self.result.get("test_draws", {}).get(metric.removeprefix(DRAWS)) or {}).get(
                "mean"
            )
        part = "val" if metric.startswith(VALIDATION) else "test"
        return self.result.get(part, {}).get(metric.removeprefix(VALIDATION))

    @property
    def seconds(self) -> float | None:
        """Seconds of training without compilation."""
        return training_seconds(self.result.get("train", {}))

    @property
    def compile_seconds(self) -> float | None:
        """Seconds of compilation."""
        return self.result.get("train", {}).get("compile_seconds")

    @property
    def epoch_seconds(self) -> list[float]:
        """Seconds of each epoch without compilation, nan where unknown.

        Where epochs do not record compilation, the first ones are taken to hold all of it.
        """
        recorded = any("compile_seconds" in epoch for epoch in self.epochs)
        left, made = self.compile_seconds or 0.0, []
        for epoch in self.epochs:
            seconds, compiled = (
                _float_or_nan(epoch.get(name)) for name in ("seconds", "compile_seconds")
            )
            if not recorded:
                compiled = 0.0 if math.isnan(seconds) else min(left, seconds)
                left -= compiled
            made.append(seconds - (0.0 if math.isnan(compiled) else compiled))
        return made

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.result["model"]

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return self.result["dataset"]

    @property
    def seed(self) -> int | None:
        """Seed of the run."""
        return self.result.get("seed")

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
        return flat(self.config, whole_lists=True)

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

    @cached_property
    def parameters(self) -> int | None:
        """Number of fitted parameters, tables included; from model.npz where result.json does not have it."""
        known = self.result.get("parameters")
        return known if isinstance(known, int) else _stored_parameters(self.folder / MODEL)

    @cached_property
    def test_set(self) -> str:
        """Identifies the test set; results without one are distinguished by dataset, seed and sessions per rank."""
        if isinstance(known := self.result.get("test_set"), str):
            return known
        dataset = {key: value for key, value in self.settings.items() if key.startswith("dataset.")}
        source = [dataset, self.settings.get("max_sessions")] if dataset else [self.seed]
        return f"guess-{_short_hash([*source, self.dataset, self.result.get('per_rank', {}).get('sessions')])}"

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
        """Yields the rows of the tidy frame; see `clickexp.runs.load.load`."""
        own = str(self.folder), self.model, self.dataset, self.seed, self.description
        for part in ("test", "val", "train"):
            for name, value in self.result.get(part, {}).items():
                yield (*own, part, name, None, _float_or_none(value))
        yield (*own, "train", "parameters", None, _float_or_none(self.parameters))
        for part, vectors in (("test", "per_rank"), ("val", "per_rank_val")):
            for name, vector in self.result.get(vectors, {}).items():
                for rank, value in enumerate(vector, start=1):
                    yield (*own, part, name, rank, _float_or_none(value))


def _short_hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _float_or_none(value: float | None) -> float | None:
    return None if value is None else float(value)


def _float_or_nan(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _stored_parameters(file: Path) -> int | None:
    """Returns the sizes of the arrays in a NumPy archive, from their headers alone; None for an unreadable one."""
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(_size(archive, name) for name in archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return None


def _size(archive: zipfile.ZipFile, name: str) -> int:
    with archive.open(name) as stream:
        np.lib.format.read_magic(stream)  # version 1.0, as of all arrays without long headers
        return math.prod(np.lib.format.read_array_header_1_0(stream)[0])


def _target(tower: Any) -> str | None:
    """Returns the constructor of a tower; of a compressed table, that of its compression."""
    if not isinstance(tower, Mapping):
        return None
    target = tower.get("_target_")
    return _target(tower.get("embedding_fn")) or (target if isinstance(target, str) else None)
