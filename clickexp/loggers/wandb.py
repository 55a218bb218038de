"""A run on Weights & Biases, online or offline."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import wandb

from clickexp.loggers.base import Logger, RunInfo

EPOCH_METRICS = ("train/*", "val/*", "seconds", "sessions", "improved")


class WandbLogger(Logger):
    """Sends a run to Weights & Biases, or keeps it in the run's folder to be synced later.

    Metrics of `epoch` are drawn over `epoch`; metrics per rank are `rank/SPLIT/METRIC` over `rank`, so that
    the curves of several runs overlay. The summary holds `test/*`, `train/*` and `config_hash`.

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

    @property
    def destination(self) -> str:
        return "Weights & Biases"

    def start(self, info: RunInfo) -> str | None:
        info.folder.mkdir(parents=True, exist_ok=True)
        reason = self._open_automatically(info) if self.mode == "auto" else self._open(info, self.mode)
        for axis in ("epoch", "rank"):
            self.run.define_metric(axis, hidden=True)
        for name in EPOCH_METRICS:
            self.run.define_metric(name, step_metric="epoch")
        self.run.define_metric("rank/*", step_metric="rank", summary="none")
        if self.run.offline:
            path = Path(self.run.dir).parent.resolve()
            return f"Weights & Biases is offline{reason}; to sync later: wandb sync {shlex.quote(str(path))}"
        return f"Weights & Biases: {self.run.url}" if self.run.url else None

    def epoch(self, record: Mapping[str, Any]) -> None:
        self.run.log(dict(record))

    def per_rank(self, split: Literal["val", "test"], values: Mapping[str, Sequence[float | None]]) -> None:
        for rank, row in enumerate(zip(*values.values(), strict=True), start=1):
            point = {f"rank/{split}/{name}": value for name, value in zip(values, row, strict=True)}
            self.run.log({"rank": rank} | {name: value for name, value in point.items() if _is_known(value)})

    def result(self, result: Mapping[str, Any]) -> None:
        self.run.summary.update(
            {f"{part}/{name}": value for part in ("test", "train") for name, value in result[part].items()}
            | {"config_hash": result["config_hash"]}
        )

    def finish(self, ok: bool) -> None:
        if self.run is not None:
            self.run.finish(exit_code=0 if ok else 1)

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
            config=info.config,
            dir=info.folder,
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(**self.settings),
        )
        return reason


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
