"""A run on Weights & Biases, online or offline."""

import json
import os
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

# unless the user says so, W&B sends no reports of its errors, which it would also do in an offline run
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # before W&B sets it

import wandb

from clickexp.loggers.base import Logger, RunInfo, Split, Vectors
from clickexp.loggers.values import named_values, rows, seconds_without_compilation
from clickexp.runs.run import Run
from clickexp.runs.store import DASHBOARD, read_object
from clickexp.utils.documents import plain
from clickexp.utils.paths import display_path

_Mode = Literal["auto", "online", "offline", "disabled"]

_AXES = {
    "epoch": ("train/*", "val/*", "speed/*"),
    "sessions": ("sessions/*",),
    "rank": ("rank/*",),
    "cutoff": ("cutoff/*",),
    "predicted": ("calibration/*",),
}
"""The axis of each chart, so that nobody has to set it up."""
_SUMMARISED = ("train/*", "val/*", "epoch", "sessions")
_ARTIFACTS = {
    "model": ("model.npz", "config.yaml", "result.json"),
    "report": ("report.html",),
}
"""Files of a run's folder by the type of the artifact that they become; without the first there is none."""
_LONGEST_TAG = 64


class WandbLogger(Logger):
    """Sends a run to Weights & Biases, or keeps it in the run's folder to be synced later.

    Curves of several runs overlay, each over its axis:

        epoch       train/*, val/*, speed/sessions_per_second, speed/seconds_per_epoch
        sessions    sessions/train/*, sessions/val/*: the same over training sessions seen
        rank        rank/SPLIT/METRIC: the values per rank of the validation and the test sessions, where
                    rank/test/examination is the examination curve of the fitted model; rank/NAME/METRIC: those of a
                    reference on the test sessions, such as rank-CTR and, where clicks are simulated, the true user
        cutoff      cutoff/test/ndcg and the like
        predicted   calibration/ece: observed click rate over predicted P(click), one point per bin

    `tables/per_rank` has the values per rank as rows. The summary holds `test/*` and the bounds of their intervals,
    `test_low/*` and `test_high/*`; `draws/*`, the means over posterior draws, with `draws_low/*` and `draws_high/*`;
    `train/*`, `val/*` of the best epoch, `parameters` and `config_hash`. In the configuration `_target_` becomes
    `class`, without its module. Model, dataset and experiment are tags; the fitted model and the report are artifacts.

    A run that continues an interrupted one on the same data goes on in its W&B run, which has the epochs of before.

    Args:
        project: Defaults to that of the run.
        entity: User or team; defaults to yours.
        mode: `online`, `offline`, `disabled`, or `auto`, which is the mode of W&B (`WANDB_MODE`, `wandb offline`), but
            offline if there is no API key or the server does not answer. Nothing ever prompts.
        artifacts: Whether to upload the fitted model and the report.
        settings: Arguments of `wandb.Settings`. W&B's output and its capture of the console, which a live line would
            fill, are off unless set here.

    Raises:
        ValueError: For another mode.
    """

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        mode: _Mode = "auto",
        artifacts: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if mode not in ("auto", "online", "offline", "disabled"):
            raise ValueError(f"mode={mode!r}: choose auto, online, offline or disabled")
        self.project = project
        self.entity = entity
        self.mode = mode
        self.artifacts = artifacts
        self.settings = {"silent": True, "console": "off", "init_timeout": 30, **(settings or {})}
        self.sessions = 0
        self._folder = Path()
        self._place = Path(DASHBOARD)
        self._data = ""
        self._id: str | None = None
        self._logged = 0
        self._run: wandb.Run | None = None

    @property
    def run(self) -> wandb.Run:
        """The run on W&B.

        Raises:
            RuntimeError: Before `start`.
        """
        if self._run is None:
            raise RuntimeError("start the logger first")
        return self._run

    @property
    def destination(self) -> str:
        """The service."""
        return "Weights & Biases"

    def start(self, info: RunInfo) -> str | None:
        """Opens the run; returns its address, or why it is offline and how to sync it."""
        info.folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._data = info.folder, info.fingerprint
        self._place = info.folder / DASHBOARD
        self._find_interrupted(info)
        home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
        if not home or not os.access(home, os.W_OK):  # else W&B's service would print its log
            os.environ.setdefault("WANDB_CACHE_DIR", str(info.folder / "wandb"))
        reason = (
            self._open_automatically(info) if self.mode == "auto" else self._open(info, self.mode)
        )
        self._remember()
        run = self.run
        for axis, names in _AXES.items():
            for name in (axis, *names):
                summary = (
                    None if name in _SUMMARISED else "none"
                )  # None is W&B's choice, the last value
                over = axis if name != axis else None
                run.define_metric(name, summary=summary, step_metric=over, hidden=name == axis)
        if run.offline:
            path = shlex.quote(display_path(Path(run.dir).parent.resolve()))
            return f"Weights & Biases is offline{reason}; to sync later: wandb sync {path}"
        return f"Weights & Biases: {run.url}" if run.url else None

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Logs an epoch's metrics and speed."""
        metrics = {name: value for name, value in record.items() if "/" in name}
        row = {"epoch": record["epoch"], **metrics}
        if "sessions" in record:
            self.sessions += record["sessions"]
            row |= {
                "sessions": self.sessions,
                **{f"sessions/{name}": x for name, x in metrics.items()},
            }
        if "seconds" in record:
            seconds = row["speed/seconds_per_epoch"] = seconds_without_compilation(record)
            if seconds > 0 and "sessions" in record:
                row["speed/sessions_per_second"] = record["sessions"] / seconds
        if record["epoch"] <= self._logged:  # by the run that this one continues
            return
        self.run.log(row)
        self._logged = record["epoch"]
        self._remember()

    def per_rank(self, split: Split, values: Vectors) -> None:
        """Logs a point per rank of each curve."""
        for rank, row in enumerate(rows(values), start=1):
            self._point(
                {"rank": rank, **{f"rank/{split}/{name}": value for name, value in row.items()}}
            )

    def result(self, result: Run) -> None:
        """Logs curves over cutoffs, of calibration and the table per rank, and fills the summary."""
        self._log_curves(result)
        vectors = {"val": result.per_rank_val, "test": result.per_rank}
        if any(vectors.values()):
            self.run.log({"tables/per_rank": _table(vectors)})
        self.run.summary.update(_summary(result))

    def _log_curves(self, result: Run) -> None:
        """Logs curves over cutoffs, of calibration, and of references over ranks."""
        cutoffs: dict[int, dict[str, Any]] = defaultdict(dict)
        for name, value in result.test.items():
            base, _, cutoff = name.partition("@")
            if cutoff.isdecimal():
                cutoffs[int(cutoff)][f"cutoff/test/{base}"] = value
        for cutoff, row in sorted(cutoffs.items()):
            self._point({"cutoff": cutoff, **row})
        for name, curve in result.curves.by_name().items():
            for predicted, observed in _reliability(curve) if "predicted" in curve else ():
                self._point({"predicted": predicted, f"calibration/{name}": observed})
        for name, reference in result.references.items():
            for rank, row in enumerate(rows(reference.per_rank), start=1):
                self._point(
                    {
                        "rank": rank,
                        **{f"rank/{name}/{metric}": value for metric, value in row.items()},
                    }
                )

    def finish(self, ok: bool) -> None:
        """Closes the run on W&B, if it was opened; after a run that succeeded, with its artifacts."""
        if self._run is None:
            return
        if ok and self.artifacts:
            for kind, patterns in _ARTIFACTS.items():
                self._log_artifact(kind, patterns)
        if ok:
            self._place.unlink(missing_ok=True)
        self._run.finish(exit_code=0 if ok else 1)

    def _find_interrupted(self, info: RunInfo) -> None:
        """Takes up the id of the W&B run that this run continues, and the number of epochs that it has."""
        for folder in (info.folder, info.continues):
            earlier = read_object(folder / DASHBOARD) if folder else {}
            if earlier.get("data") == self._data and isinstance(earlier.get("id"), str):
                self._id, self._logged = earlier["id"], int(earlier.get("epochs") or 0)
                return

    def _remember(self) -> None:
        """Notes which run this is, should it be interrupted."""
        if self.run.disabled:
            return
        note = {"id": self.run.id, "data": self._data, "epochs": self._logged}
        self._place.write_text(json.dumps(note))

    def _log_artifact(self, kind: str, patterns: Sequence[str]) -> None:
        """Logs files of the run's folder as an artifact; they stay where they are until they are uploaded."""
        files = [sorted(self._folder.glob(pattern)) for pattern in patterns]
        if not files[0]:
            return
        artifact = wandb.Artifact(f"{kind}-{self.run.id}", type=kind)
        for file in (file for some in files for file in some):
            name = file.relative_to(self._folder).as_posix()
            artifact.add_file(str(file), name=name, policy="immutable", skip_cache=True)
        self.run.log_artifact(artifact)

    def _point(self, row: Mapping[str, float | None]) -> None:
        """Logs a point of each curve that is known there, with its place on the axis."""
        self.run.log({name: value for name, value in plain(row).items() if value is not None})

    def _open_automatically(self, info: RunInfo) -> str:
        """Opens the run in the mode of W&B, but offline if it cannot be online; returns why, in brackets."""
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

    def _open(self, info: RunInfo, mode: Any, reason: str = "") -> str:
        """Opens the run; returns the reason, for the line to the reader."""
        self._run = wandb.init(
            project=self.project or info.project,
            entity=self.entity,
            id=self._id,
            resume="allow" if self._id and mode == "online" else None,
            name=info.name,
            group=info.group,
            job_type=info.job_type,
            tags=_tags(info),
            notes=info.notes,
            config=_readable(info.config),
            dir=info.folder,
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(**self.settings),
        )
        return reason


def _tags(info: RunInfo) -> list[str]:
    """Tags of the run: model, dataset, experiment, and those that the user gave."""
    names = [(info.config.get(part) or {}).get("name") for part in ("model", "dataset")]
    experiment = (info.config.get("overrides") or {}).get("experiment")
    found = dict.fromkeys(
        str(tag)[:_LONGEST_TAG] for tag in (*names, experiment, *info.tags) if tag
    )
    return list(found)


def _readable(node: Any) -> Any:
    """The configuration with the name of a class in place of its path."""
    if isinstance(node, list):
        return [_readable(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    plain = {
        name: _readable(value)
        for name, value in node.items()
        if name not in ("_target_", "_partial_")
    }
    return {"class": node["_target_"].rpartition(".")[2], **plain} if "_target_" in node else plain


def _reliability(curve: Mapping[str, Any]) -> Sequence[tuple[float, float]]:
    """Mean P(click) and click rate of each bin that holds a document, of all ranks; from arrays [bin, rank]."""
    documents, predicted, observed = (
        np.nan_to_num(np.asarray(curve[name], float))
        for name in ("documents", "predicted", "observed")
    )
    total = documents.sum(axis=1)
    means = [
        (mean * documents).sum(axis=1)[total > 0] / total[total > 0]
        for mean in (predicted, observed)
    ]
    return list(zip(*(mean.tolist() for mean in means), strict=True))


def _table(vectors: Mapping[str, Vectors]) -> wandb.Table:
    """One row for each split and rank."""
    names = list(dict.fromkeys(name for values in vectors.values() for name in values))
    data = [
        [split, rank, *map(row.get, names)]
        for split, values in vectors.items()
        for rank, row in enumerate(rows(values), start=1)
    ]
    return wandb.Table(columns=["split", "rank", *names], data=plain(data))


def _summary(result: Run) -> dict[str, Any]:
    """Returns the values of a result by name, with the bounds of their intervals."""
    summary = {**named_values(result), "config_hash": result.config_hash}
    for name, drawn in result.test_draws.items():
        summary |= {f"draws/{name}": drawn.mean, f"draws_low/{name}": drawn.low}
        summary[f"draws_high/{name}"] = drawn.high
    return summary
