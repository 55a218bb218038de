"""A run on Weights & Biases, online or offline."""

import contextlib
import json
import os
import re
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
from clickexp.loggers.values import by_layout, named_values, rows
from clickexp.runs.run import Run, seconds_without_compilation
from clickexp.runs.store import CONFIG, DASHBOARD, MODEL, RESULT, read_object
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
_MODEL_FILES = (MODEL, CONFIG, RESULT)
"""Files of a run's folder that become its artifact; without the first there is none."""
_LONGEST_TAG = 64
_LONGEST_NAME = 100
"""Characters of the name of an artifact, of at most 128, that come from elsewhere."""
_ON_WHITE = '<!DOCTYPE html><body style="background: white">{}</body>'
"""A figure as a page: on dark dashboards its text would be lost."""


class WandbLogger(Logger):
    """Sends a run to Weights & Biases, or keeps it in the run's folder to be synced later.

    Curves of several runs overlay, each over its axis:

        epoch       train/*, val/*, speed/sessions_per_second, speed/seconds_per_epoch
        sessions    sessions/train/*, sessions/val/*: the same over training sessions seen
        rank        rank/SPLIT/METRIC: the values per rank of the validation and the test sessions, where
                    rank/test/examination is the examination curve of the fitted model, and those of layouts
                    are rank/test/examination/device_phone and the like, relative to one of them
        cutoff      cutoff/test/ndcg and the like
        predicted   calibration/ece: observed click rate over predicted P(click), one point per bin

    The charts `references/METRIC` have the curves over ranks of the run and of its references, such as rank-CTR and,
    where clicks are simulated, the true user. `tables/per_rank` has the values per rank as rows, `report` the page of
    the run, and `figures/NAME` its figures. The summary holds `test/*` and the bounds of their intervals,
    `test_low/*` and `test_high/*`; `draws/*`, the means over posterior draws, with `draws_low/*` and `draws_high/*`;
    `train/*`, `val/*` of the best epoch, `parameters` and `config_hash`. In the configuration `_target_` becomes
    `class`, without its module. Model, dataset and experiment are tags.

    The fitted model is an artifact, that of the best run of a sweep `model-SWEEP:best`. The log is an artifact that the
    run has read; it holds the fingerprint of the data alone. An error that ends a run sends an alert.

    A run that continues an interrupted one on the same data goes on in its W&B run, which has the epochs of before.
    Jobs of a sweep are linked in the folder `wandb` of the sweep, which `wandb leet` shows.

    Args:
        project: Defaults to that of the run.
        entity: User or team; defaults to yours.
        mode: `online`, `offline`, `disabled`, or `auto`, which is the mode of W&B (`WANDB_MODE`, `wandb offline`), but
            offline if there is no API key or the server does not answer. Nothing ever prompts.
        model: Whether to upload the fitted model, its configuration and result.
        report: Whether to upload the page of the run and its figures.
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
        model: bool = True,
        report: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if mode not in ("auto", "online", "offline", "disabled"):
            raise ValueError(f"mode={mode!r}: choose auto, online, offline or disabled")
        self.project = project
        self.entity = entity
        self.mode = mode
        self.model, self.pages = model, report
        self.settings = {"silent": True, "console": "off", "init_timeout": 30, **(settings or {})}
        self.sessions = 0
        self._info = RunInfo(Path(), {}, "", "")
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
        self._find_interrupted(info)
        reason = self._open(info)
        self._remember()
        self._link()
        run = self.run
        for axis, names in _AXES.items():
            for name in (axis, *names):
                # None is W&B's choice, the last value
                summary = None if name in _SUMMARISED else "none"
                over = axis if name != axis else None
                run.define_metric(name, summary=summary, step_metric=over, hidden=name == axis)
        if run.offline:
            path = shlex.quote(display_path(self._files.resolve()))
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
        """Logs curves over cutoffs, of calibration and of references, the table per rank, and fills the summary."""
        self._log_curves(result)
        self.per_rank("test", by_layout(result))
        self.run.log(_references(result))
        vectors = {"val": result.per_rank_val, "test": result.per_rank}
        if any(vectors.values()):
            self.run.log({"tables/per_rank": _table(vectors)})
        self.run.summary.update(_summary(result))

    def _log_curves(self, result: Run) -> None:
        """Logs curves over cutoffs and of calibration."""
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

    def report(self, page: Path, figures: Mapping[str, str]) -> None:
        """Logs the page and its figures as panels."""
        if not self.pages:
            return
        panels = {"report": wandb.Html(page, inject=False)}
        for name, drawing in figures.items():
            panels[f"figures/{name}"] = wandb.Html(_ON_WHITE.format(drawing), inject=False)
        self.run.log(panels)

    def failed(self, reason: str) -> None:
        """Sends an alert."""
        if self._run is not None:
            text = f"{self._info.name}: {reason}"
            self.run.alert("Run failed", text, level="ERROR")

    def best_run(self, info: RunInfo, run: Run) -> None:
        """Logs the model of the best run as `model-SWEEP:best`, in a run that has the values of that one."""
        if not self.model:
            return
        self._open(info)
        self.run.summary.update(_summary(run))
        self._log_model(run.folder, info.folder.name, ["best", "latest"])
        self.run.finish()

    def finish(self, ok: bool) -> None:
        """Closes the run on W&B, if it was opened; after a run that succeeded, with its artifacts."""
        if self._run is None:
            return
        if ok and not self.run.disabled:
            self._use_log()
            if self.model:
                self._log_model(self._info.folder, self.run.id, ["latest"])
            self._place.unlink(missing_ok=True)
        self._run.finish(exit_code=0 if ok else 1)

    @property
    def _place(self) -> Path:
        """The file that names the run until it has finished."""
        return self._info.folder / DASHBOARD

    @property
    def _files(self) -> Path:
        """The folder that W&B keeps the run in."""
        return Path(self.run.dir).parent

    def _find_interrupted(self, info: RunInfo) -> None:
        """Takes up the id of the W&B run that this run continues, and the number of epochs that it has."""
        for folder in (info.folder, info.continues):
            earlier = read_object(folder / DASHBOARD) if folder else {}
            if earlier.get("data") == info.fingerprint and isinstance(earlier.get("id"), str):
                self._id, self._logged = earlier["id"], int(earlier.get("epochs") or 0)
                return

    def _remember(self) -> None:
        """Notes which run this is, should it be interrupted."""
        if self.run.disabled:
            return
        note = {"id": self.run.id, "data": self._info.fingerprint, "epochs": self._logged}
        self._place.write_text(json.dumps(note))

    def _link(self) -> None:
        """Links the run in the folder of its sweep, so that one look at this folder shows all jobs."""
        sweep = self._info.sweep
        if sweep is None or self.run.disabled:
            return
        place = sweep / "wandb"
        target = os.path.relpath(self._files.resolve(), place.resolve())
        with contextlib.suppress(OSError):  # some file systems have no links
            place.mkdir(parents=True, exist_ok=True)
            (place / self._files.name).symlink_to(target)

    def _log_model(self, folder: Path, name: str, aliases: list[str]) -> None:
        """Logs the model of a run as an artifact; its files stay where they are until they are uploaded."""
        files = [folder / file for file in _MODEL_FILES if (folder / file).is_file()]
        if not files or files[0].name != MODEL:
            return
        artifact = wandb.Artifact(f"model-{_slug(name)}", type="model")
        for file in files:
            artifact.add_file(str(file), name=file.name, policy="immutable", skip_cache=True)
        self.run.log_artifact(artifact, aliases=aliases)

    def _use_log(self) -> None:
        """Names the log as an input of the run; runs on the same data share the version."""
        if not self._info.fingerprint:
            return
        name = _slug(self._info.dataset or "log")
        artifact = wandb.Artifact(f"log-{name}", type="dataset")
        with artifact.new_file("fingerprint.txt") as file:
            file.write(self._info.fingerprint)
        # use_artifact, which does the same, refuses runs that are offline
        self.run._log_artifact(artifact, is_user_created=True, use_after_commit=True)

    def _point(self, row: Mapping[str, float | None]) -> None:
        """Logs a point of each curve that is known there, with its place on the axis."""
        self.run.log({name: value for name, value in plain(row).items() if value is not None})

    def _open(self, info: RunInfo) -> str:
        """Opens the run; returns why it is offline although it could be online, in brackets."""
        self._info = info
        info.folder.mkdir(parents=True, exist_ok=True)
        home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
        if not home or not os.access(home, os.W_OK):  # else W&B's service would print its log
            os.environ.setdefault("WANDB_CACHE_DIR", str(info.folder / "wandb"))
        mode = wandb.setup().settings.mode if self.mode == "auto" else self.mode
        if self.mode != "auto" or mode != "online":
            self._open_in(info, mode)
            return ""
        try:
            if wandb.login(prompt=False, verify=False):
                self._open_in(info, "online")
                return ""
            reason = "no API key is configured"
        except wandb.Error as error:
            reason = " ".join(str(error).split())
        self._open_in(info, "offline")
        return f" ({reason})"

    def _open_in(self, info: RunInfo, mode: Any) -> None:
        """Opens the run in a mode."""
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


def _tags(info: RunInfo) -> list[str]:
    """Tags of the run: model, dataset, experiment, and those that the user gave."""
    named = (info.model, info.dataset, info.experiment, *info.tags)
    return list(dict.fromkeys(str(tag)[:_LONGEST_TAG] for tag in named if tag))


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


def _references(result: Run) -> dict[str, Any]:
    """Returns a chart for each metric that references have: their curves over ranks beside that of the run."""
    vectors = {name: reference.per_rank for name, reference in result.references.items()}
    charts = {}
    for metric in dict.fromkeys(metric for of_one in vectors.values() for metric in of_one):
        curves = {}
        for name, of_one in {result.model: result.per_rank, **vectors}.items():
            if points := _points(of_one.get(metric, [])):
                curves[name] = points
        charts[f"references/{metric}"] = wandb.plot.line_series(
            xs=[list(points) for points in curves.values()],
            ys=[list(points.values()) for points in curves.values()],
            keys=list(curves),
            title=f"{metric} by rank",
            xname="rank",
        )
    return charts


def _points(vector: Sequence[float | None]) -> dict[int, float]:
    """Returns the values of a vector that are known, by rank."""
    return {rank: value for rank, value in enumerate(vector, start=1) if value is not None}


def _slug(name: str) -> str:
    """Returns a name with the letters that the name of an artifact may have."""
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)[:_LONGEST_NAME]


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
