"""A run on Weights & Biases, online or offline."""

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

# unless the user says so, W&B does not send reports of its errors, which it would in an offline run as well
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # before W&B sets it

import wandb  # noqa: E402

from clickexp.loggers.base import Logger, RunInfo  # noqa: E402
from clickexp.utils.paths import shown  # noqa: E402

AXES = {
    "epoch": ("train/*", "val/*", "speed/*"),
    "sessions": ("sessions/*",),
    "rank": ("rank/*",),
    "cutoff": ("cutoff/*",),
    "predicted": ("calibration/*",),
}
"""What is drawn over what, without anyone having to set it up."""
SUMMARISED = ("train/*", "val/*", "epoch", "sessions")
CLASS = "class"


class WandbLogger(Logger):
    """Sends a run to Weights & Biases, or keeps it in the run's folder to be synced later.

    Curves of several runs overlay, each over its own axis:

        epoch       train/*, val/*, speed/sessions_per_second, speed/seconds_per_epoch
        sessions    sessions/train/*, sessions/val/*: the same over training sessions seen
        rank        rank/SPLIT/METRIC: what a metric has for each rank of the validation and the test sessions, where
                    rank/test/examination is the examination curve of the fitted model
        cutoff      cutoff/test/ndcg and the like
        predicted   calibration/ece: observed click rate over predicted P(click), a point a bin

    `tables/per_rank` has the values per rank as rows. The summary holds `test/*`, `train/*`, `val/*` of the best epoch,
    `parameters` and `config_hash`. In the configuration `_target_` becomes `class`, without its module.

    `mode`: `online`, `offline`, `disabled`, or `auto`, which is what W&B is set to (`WANDB_MODE`,
    `wandb offline`), but offline if there is no API key or the server does not answer. Nothing ever prompts.
    `project` defaults to that of the run. `settings` go to `wandb.Settings`; W&B's own output and its capture
    of the console, which a live line would fill, are off unless set there.
    """

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        mode: Literal["auto", "online", "offline", "disabled"] = "auto",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if mode not in ("auto", "online", "offline", "disabled"):
            raise ValueError(f"mode={mode!r}: choose auto, online, offline or disabled")
        self.project = project
        self.entity = entity
        self.mode = mode
        self.settings = {"silent": True, "console": "off", "init_timeout": 30, **(settings or {})}
        self.run: wandb.Run | None = None
        self.sessions = 0

    @property
    def destination(self) -> str:
        return "Weights & Biases"

    def start(self, info: RunInfo) -> str | None:
        info.folder.mkdir(parents=True, exist_ok=True)
        if not _has_home():
            os.environ.setdefault("WANDB_CACHE_DIR", str(info.folder / "wandb"))
        reason = self._open_automatically(info) if self.mode == "auto" else self._open(info, self.mode)
        for axis, names in AXES.items():
            self.run.define_metric(axis, hidden=True, summary=_summary(axis))
            for name in names:
                self.run.define_metric(name, step_metric=axis, summary=_summary(name))
        if self.run.offline:
            path = Path(self.run.dir).parent.resolve()
            return (
                f"Weights & Biases is offline{reason}; to sync later: wandb sync {shlex.quote(shown(path))}"
            )
        return f"Weights & Biases: {self.run.url}" if self.run.url else None

    def epoch(self, record: Mapping[str, Any]) -> None:
        metrics = {name: value for name, value in record.items() if "/" in name}
        row = {"epoch": record["epoch"], **metrics}
        if "sessions" in record:
            self.sessions += record["sessions"]
            row |= {"sessions": self.sessions} | {
                f"sessions/{name}": value for name, value in metrics.items()
            }
        if "seconds" in record:
            seconds = row["speed/seconds_per_epoch"] = record["seconds"] - record.get("compile_seconds", 0.0)
            if seconds > 0 and "sessions" in record:
                row["speed/sessions_per_second"] = record["sessions"] / seconds
        self.run.log(row)

    def per_rank(self, split: Literal["val", "test"], values: Mapping[str, Sequence[float | None]]) -> None:
        for rank, row in enumerate(_rows(values), start=1):
            self._point("rank", rank, {f"rank/{split}/{name}": value for name, value in row.items()})

    def result(self, result: Mapping[str, Any]) -> None:
        for cutoff, row in sorted(_by_cutoff(result["test"]).items()):
            self._point("cutoff", cutoff, {f"cutoff/test/{name}": value for name, value in row.items()})
        for name, curve in result.get("curves", {}).items():
            for predicted, observed in _reliability(curve):
                self._point("predicted", predicted, {f"calibration/{name}": observed})
        vectors = {"val": result.get("per_rank_val", {}), "test": result.get("per_rank", {})}
        if any(vectors.values()):
            self.run.log({"tables/per_rank": _table(vectors)})
        parts = {part: result.get(part, {}) for part in ("test", "val", "train")}
        summary = {
            f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()
        }
        facts = {name: result[name] for name in ("parameters", "config_hash") if name in result}
        self.run.summary.update(summary | facts)

    def finish(self, ok: bool) -> None:
        if self.run is not None:
            self.run.finish(exit_code=0 if ok else 1)

    def _point(self, axis: str, where: float, row: Mapping[str, Any]) -> None:
        """A point of each curve that is known there."""
        self.run.log({axis: where} | {name: value for name, value in row.items() if _is_known(value)})

    def _open_automatically(self, info: RunInfo) -> str:
        """Opens the run as W&B is set, but offline if it cannot be online; returns why, in brackets."""
        mode = wandb.setup().settings.mode
        if mode != "online":
            return self._open(info, mode)
        try:
            if wandb.login(prompt=False, verify=False):
                return self._open(info, "online")
            reason = "no API key is configured"
        except wandb.Error as error:
            reason = " ".join(str(error).split())
        return self._open(info, "offline", f" ({reason})")

    def _open(self, info: RunInfo, mode: str, reason: str = "") -> str:
        """Opens the run; returns the reason, for the line to the reader."""
        self.run = wandb.init(
            project=self.project or info.project,
            entity=self.entity,
            name=info.name,
            group=info.group,
            job_type=info.job_type,
            tags=info.tags,
            notes=info.notes,
            config=_readable(info.config),
            dir=info.folder,
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(**self.settings),
        )
        return reason


def _has_home() -> bool:
    """Whether W&B's service can write its log to its place in the home directory; else it writes to the terminal."""
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
    return bool(home) and os.access(home, os.W_OK)


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _summary(name: str) -> str | None:
    """None is W&B's own choice, the last value."""
    return None if name in SUMMARISED else "none"


def _readable(node: Any) -> Any:
    """The configuration with the name of a class in place of its path."""
    if isinstance(node, list):
        return [_readable(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    plain = {name: _readable(value) for name, value in node.items() if name not in ("_target_", "_partial_")}
    return {CLASS: node["_target_"].rpartition(".")[2], **plain} if "_target_" in node else plain


def _rows(vectors: Mapping[str, Sequence[float | None]]) -> list[dict[str, float | None]]:
    """A row a rank."""
    return [dict(zip(vectors, row, strict=True)) for row in zip(*vectors.values(), strict=True)]


def _by_cutoff(metrics: Mapping[str, float]) -> dict[int, dict[str, float]]:
    """Of names such as ndcg@10 the metrics at each cutoff."""
    rows: dict[int, dict[str, float]] = {}
    for name, value in metrics.items():
        base, _, cutoff = name.partition("@")
        if cutoff.isdecimal():
            rows.setdefault(int(cutoff), {})[base] = value
    return rows


def _reliability(curve: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Mean P(click) and click rate of each bin that holds a document, whatever its rank; [bin, rank] goes in."""
    documents, *means = (np.nan_to_num(np.asarray(curve[name], float))
                         for name in ("documents", "predicted", "observed"))  # fmt: skip
    filled = documents.sum(axis=1) > 0
    total = documents.sum(axis=1)[filled]
    predicted, observed = ((mean * documents).sum(axis=1)[filled] / total for mean in means)
    return list(zip(predicted.tolist(), observed.tolist(), strict=True))


def _table(vectors: Mapping[str, Mapping[str, Sequence[float | None]]]) -> wandb.Table:
    """A row for each split and rank."""
    names = list(dict.fromkeys(name for values in vectors.values() for name in values))
    data = [
        [split, rank, *(row[name] if _is_known(row.get(name)) else None for name in names)]
        for split, values in vectors.items()
        for rank, row in enumerate(_rows(values), start=1)
    ]
    return wandb.Table(columns=["split", "rank", *names], data=data)
