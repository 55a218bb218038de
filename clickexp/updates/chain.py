"""A chain of runs: each takes the posterior of the one before as the prior of a fit to the next log."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from flax import nnx

from clickexp.data import Dataset, Sessions
from clickexp.data.description import Numbering
from clickexp.data.inspect.copies import sampled_copies
from clickexp.data.inspect.identifiability import Identifiability, positions_of
from clickexp.errors import ConfigError, DataError, UserError
from clickexp.models import ClickModel, Model
from clickexp.parameters import Table
from clickexp.parameters.table import path_name
from clickexp.posteriors.exported import row_tables
from clickexp.posteriors.marginal import has_marginal_likelihood
from clickexp.posteriors.rows import newton_refined
from clickexp.posteriors.shared import WORK, SharedPosterior, count_shared, shared_estimate
from clickexp.results.chains import folder_before
from clickexp.runs.run import Change, Origin, RelativeExamination, Run, Update
from clickexp.runs.settings import PriorSettings
from clickexp.runs.store import ENCODING, IDS, MODEL, RESULT, SEEN, SHARED
from clickexp.training import Trainer
from clickexp.training.base import BaseTrainer
from clickexp.training.checkpoint import read_parameters
from clickexp.training.earlier import EarlierLogs, SharedPrior
from clickexp.training.optimizers import optimizer_of
from clickexp.training.sparse.learned_priors import Documents
from clickexp.updates.change import OfLayouts, changes, is_of, of_layouts, released, untested
from clickexp.updates.growth import Places, Sizes, take_over
from clickexp.updates.moved import moved
from clickexp.updates.seen import Seen
from clickexp.updates.shared import move_shared, prior_of, pull_on
from clickexp.utils.content import content_of
from clickexp.utils.paths import display_path
from clickexp.utils.text import listed

_DAY = 86_400_000_000
"""Microseconds."""
_MOST_NAMED = 8
"""Positions that a message names at most."""
_MOST_UPDATES = 30
"""After so many, rows that were fitted first are worth another look; see docs/howto/daily.md."""


@dataclass(frozen=True)
class EarlierRun:
    """The run whose posterior is the prior.

    Attributes:
        folder: Its folder.
        result: Its document.
        settings: How it is taken up.
    """

    folder: Path
    result: Run
    settings: PriorSettings

    @classmethod
    def read(cls, settings: PriorSettings) -> "EarlierRun":
        """Returns the run that settings name.

        Raises:
            ConfigError: It has not finished, or has kept no model.
        """
        # a link may point elsewhere tomorrow
        folder = Path(settings.run or "").expanduser().resolve()
        where = f"prior.run={settings.run}"
        if not folder.is_dir():
            raise ConfigError(
                f"{where}: there is no such folder. Give the folder of a finished run."
            )
        if not (folder / RESULT).is_file():
            raise ConfigError(f"{where}: this is no finished run. Finish it, or give another one.")
        if not (folder / MODEL).is_file():
            raise ConfigError(f"{where}: the run has kept no model. Run it with save_model=true.")
        try:
            return cls(folder, Run.read(folder), settings)
        except UserError as error:
            raise ConfigError(f"{where}: {error}") from error

    @property
    def numberings(self) -> dict[str, Numbering]:
        """How the run numbers documents and categories, as readers take it; new ones come behind."""
        files = {"ids": self.folder / IDS, "learned": self.folder / ENCODING}
        return {name: Numbering(file, True) for name, file in files.items() if file.is_file()}

    @property
    def numberings_before(self) -> dict[str, Numbering]:
        """How the log of the run was numbered, or is where the run before it is gone: to the same ids."""
        if self.result.update is None:
            return {}
        before = folder_before(self.result)
        return replace(self, folder=before).numberings or self.numberings

    @property
    def sizes(self) -> Sizes:
        """The largest position, and the largest value of each column of whole numbers, of the model of the run."""
        return Sizes(self.result.data.positions or 0, self.result.data.columns)

    @property
    def query_doc_pairs(self) -> int:
        """The largest id of the run."""
        return self.result.data.query_doc_pairs or 0

    @property
    def logs(self) -> list[str]:
        """Hashes of the logs that the run, and those before it, were fitted to: of sessions, and of files."""
        before = [] if self.result.update is None else self.result.update.logs
        return [*dict.fromkeys([*before, *logs_of(self.result.origin)])]

    @property
    def until(self) -> int | None:
        """Time of the last session of the chain; None where no log has times."""
        parts = self.result.update, self.result.origin
        return _latest(*(part.until for part in parts if part is not None))

    def identity(self) -> dict[str, str]:
        """Returns what makes a training from the run another than one from another run."""
        return {"prior": content_of(self.folder / MODEL)}

    def check_trainer(self, trainer: BaseTrainer) -> None:
        """ConfigError for a trainer without posteriors."""
        has_posteriors = (
            isinstance(trainer, Trainer) and optimizer_of(trainer.optimizer).rows is not None
        )
        if not (has_posteriors or self.settings.warm):
            raise ConfigError(
                f"prior.run={self.folder}: this trainer or optimizer keeps no posteriors of rows. Use "
                "trainer=default optimizer=natural_gradient, or take the parameters alone by prior.warm=true."
            )

    def check(self, dataset: Dataset, origin: Origin) -> None:
        """Checks that a log goes on from those of the run.

        Args:
            dataset: The log.
            origin: Where it comes from.

        Raises:
            DataError: It does not: its ids are other documents, or it is one of them.
        """
        has_names = (self.folder / IDS).is_file()
        if has_names != (dataset.names is not None):
            one, other = ("names", "numbers") if has_names else ("numbers", "names")
            raise DataError(
                f"prior.run={self.folder}: its ids have {one}, and those of this log {other}. Read both with the same "
                "pair_key."
            )
        if {*logs_of(origin)} & {*self.logs} and not self.settings.again:
            raise DataError(
                f"prior.run={self.folder} has been fitted to this log, or a run before it: its clicks would count "
                "twice. Give a new log, or prior.again=true."
            )

    def kept(self, until: int | None) -> tuple[float, float]:
        """Returns the shares of what rows and what shared parameters know that are kept for a log that ends then."""
        before = self.until
        days = 1.0 if before is None or until is None else max(until - before, 0) / _DAY

        def after(half_life: float | None) -> float:
            return 1.0 if half_life is None else 2.0 ** (-days / half_life)

        return after(self.settings.half_life), after(self.settings.shared_half_life)

    def continued(self, model: Model, until: int | None) -> "Continued":
        """Gives a model the parameters of the run, and its rows what the run knows of them.

        Args:
            model: Built for the new log and that of the run.
            until: Time of the last session of the new log, in microseconds.

        Raises:
            ConfigError: The run is of another model or has no posterior, or there is no test of a change that is to be
                an error.
        """
        if self.settings.on_change == "error" and (roles := untested(model)):
            raise ConfigError(
                f"prior.on_change=error: {_no_test(roles)}. Leave it out, or fit a model that reads no last "
                "click, such as model=pbm."
            )
        stored = read_parameters(self.folder / MODEL)
        if self.settings.warm:
            take_over(model, stored, self.sizes, None)
            return Continued(self, until, stored, EarlierLogs(), Seen())
        _check_posteriors(model, stored, self.folder)
        rows, shared = self.kept(until)
        taken = take_over(model, stored, self.sizes, rows)
        seen = Seen.load(self.folder / SEEN).forgetting(rows)
        prior, with_cells, layouts = None, None, []
        if (self.folder / SHARED).is_file():
            posterior = _renamed(SharedPosterior.load(self.folder / SHARED), taken.places)
            prior = prior_of(model, posterior, shared)
            with_cells = prior_of(model, posterior, shared, differences=True)
            layouts = of_layouts(model, posterior, shared)
        logs = EarlierLogs(_documents(seen, model, taken.places), prior)
        return Continued(
            self,
            until,
            stored,
            logs,
            seen,
            taken.forgotten,
            layouts=layouts,
            shared=with_cells,
        )

    @property
    def sessions(self) -> int:
        """Training sessions of the run and of those before it."""
        before = self.result.update
        return self.result.data.sessions.get("train", 0) if before is None else before.sessions

    def describe(self) -> str:
        """Returns a line on the run and its logs."""
        kind = "start" if self.settings.warm else "prior"
        logs = "1 log" if self.updates == 1 else f"{self.updates} logs"
        return f"{kind}: {display_path(self.folder)}, {logs}, {self.sessions:,} training sessions"

    def advice(self, dataset: Dataset, model: Model) -> Iterator[str]:
        """Yields lines on what a reader should know of an update of a model by a log."""
        if dataset.since is not None and self.until is not None and dataset.since < self.until:
            yield (
                "this log begins before the last one ends: sessions that are in both count twice. A folder that grows "
                "holds the days before, too; name its new files by dataset.files"
            )
        for name, categories in dataset.encoding.unknown_to_features.items():
            yield (
                f"feature vectors keep the categories of {name} of the first log, in which "
                f"{listed([*map(str, categories)], _MOST_NAMED)} count as none. Fit all logs once from scratch"
            )
        if self.settings.warm:
            yield (
                f"the model starts with the parameters of {self.folder} and knows nothing else of its logs: it forgets "
                "what this log does not show"
            )
        elif dataset.train.count * count_shared(model) > WORK and not has_marginal_likelihood(
            model
        ):
            yield (
                f"this log has more than {WORK // count_shared(model):,} training sessions: shared parameters keep the "
                "noise that training leaves, which smaller logs have taken off"
            )
        if (roles := untested(model)) and not self.settings.warm:
            yield f"{_no_test(roles)}: after a change of the page, fit from scratch"
        if self.updates >= _MOST_UPDATES:
            yield (
                f"update {self.updates} since the last fit from scratch: rows of documents were fitted under the "
                "examination of their day. Fit all logs once from scratch."
            )

    @property
    def updates(self) -> int:
        """How many updates there are since a fit from scratch, with the one to come."""
        return 1 + (0 if self.result.update is None else self.result.update.updates)


@dataclass(frozen=True)
class Continued:
    """A model that goes on from an earlier run.

    Attributes:
        run: The run.
        until: Time of the last session of the new log, in microseconds.
        stored: Parameters of the run by name.
        logs: What the trainer knows of its logs.
        seen: What training has shown there.
        forgotten: Share of the information on rows that half-lives have taken off.
        changes: Roles whose shared parameters the log contradicts.
        before: Test metrics of the model before training.
        own: What the log says of shared parameters, once the model is corrected; None for nothing.
        layouts: What earlier logs say of roles that differ between layouts.
        shared: What they say of all shared parameters, differences between layouts included.
    """

    run: EarlierRun
    until: int | None
    stored: Mapping[str, np.ndarray]
    logs: EarlierLogs
    seen: Seen
    forgotten: float = 0.0
    changes: Sequence[Change] = ()
    before: Mapping[str, float] = field(default_factory=dict)
    own: SharedPosterior | None = None
    layouts: Sequence[OfLayouts] = ()
    shared: SharedPrior | None = None

    @property
    def ratios(self) -> Sequence[RelativeExamination]:
        """Those of examination that earlier logs tell."""
        return [] if self.shared is None else self.run.result.propensity

    def linked(self, links: Identifiability, model: Model, train: Sessions) -> Identifiability:
        """Returns links of a log with those by documents that earlier logs know, up to no factor of their own."""
        impressions = self.seen.impressions(model)
        is_open = any(ratio.relative_low is None for ratio in self.ratios)
        if links.identified or impressions is None or is_open or not self.ratios:
            return links
        known = np.zeros(train.query_doc_pairs + 1, bool)
        known[: len(impressions)] = impressions > 0
        return links.merged(positions_of(train, known, links.cells))

    def doubt_of_copies(self, hashes: np.ndarray) -> str | None:
        """Returns a doubt whether a log has rows of earlier ones; None where users may have repeated their lists.

        Args:
            hashes: A sample of those of its lists.
        """
        copied = sampled_copies(hashes, self.seen.hashes)
        if not copied.doubtful or self.run.settings.again:
            return None
        return (
            f"{copied.common / copied.lists:.0%} of a sample of lists are those of earlier logs, too, with the same "
            "documents and clicks. Users do not repeat so many: the log seems to have rows of earlier ones, which "
            "count twice. Update by new rows alone, or say prior.again=true"
        )

    @property
    def training(self) -> dict[str, EarlierLogs]:
        """Fields of a trainer that knows of the earlier logs."""
        return {} if self.run.settings.warm else {"earlier": self.logs}

    def again(self, model: Model, trainer: BaseTrainer) -> BaseTrainer:
        """Gives a model the parameters of the run once more, but for what its rows know of released roles.

        Args:
            model: Fitted under the prior of before.
            trainer: Which fitted it.

        Returns:
            The trainer of another fit, under the prior without these roles.
        """
        rows = self.run.kept(self.until)[0]
        take_over(model, self.stored, self.run.sizes, rows, lambda name: is_of(name, self.changes))
        names = [change.parameter for change in self.changes]
        settings = {**trainer.settings, "released": names}
        return trainer.copy_with(**self.training, settings=settings, continue_from=None)

    def tested(self, model: Model, trainer: BaseTrainer, dataset: Dataset) -> "Continued":
        """Returns the same with test metrics of the model before training."""
        if not isinstance(model, ClickModel):
            return self
        return replace(self, before=trainer.evaluate(model, dataset.test).compute())

    def corrected(self, model: Model, train: Sessions, devices: int | str = 1) -> "Continued":
        """Takes off what training has left of noise, or finds that the log contradicts the earlier ones.

        Training draws from posteriors, and leaves rows and shared parameters a little off their optimum. Over a chain
        of updates such errors would add up. A Newton step of both takes them off.

        Args:
            model: The fitted model.
            train: Its training sessions.
            devices: How many share the passes over these, or `all`.

        Returns:
            The same, with what the log says; with changes found, and without a prior that is to be released.

        Raises:
            ConfigError: The log contradicts the earlier ones, which is to be an error.
        """
        shared = self.logs.shared
        if self.run.settings.warm:
            return self
        pull = {} if shared is None else pull_on(model, shared)
        estimate = shared_estimate(model, train, pull, devices)
        if estimate is None:
            return self
        contradicted = changes(model, estimate, shared, self.layouts)
        all_changes = [*self.changes, *contradicted]
        if contradicted and self.run.settings.on_change == "error":
            reasons = " ".join(map(describe_change, contradicted))
            raise ConfigError(
                f"{reasons} prior.on_change=release forgets what earlier logs say of it."
            )
        if contradicted and self.run.settings.on_change == "release":
            return replace(self._without(contradicted), changes=all_changes)
        own = estimate.trained
        if estimate.share == 1:  # else of the first sessions alone
            own = estimate.posterior
            move_shared(model, estimate, shared)
        refined = newton_refined(model, row_tables(model), train, devices=devices)
        nnx.update(model, nnx.state(refined, Table))
        return replace(self, changes=all_changes, own=own)

    def _without(self, contradicted: Sequence[Change]) -> "Continued":
        """Returns the same without what earlier logs say of some roles."""
        shared = self.logs.shared
        logs = replace(self.logs, shared=shared and released(shared, contradicted))
        with_cells = self.shared and released(self.shared, contradicted)
        roles = {change.parameter for change in contradicted}
        layouts = [layout for layout in self.layouts if layout.curve.parameter not in roles]
        return replace(self, logs=logs, layouts=layouts, shared=with_cells)

    def update(
        self,
        model: Model,
        dataset: Dataset,
        origin: Origin,
        backward: Mapping[str, float],
        folder: Path,
    ) -> Update:
        """Returns what a run says of the chain that it belongs to.

        Args:
            model: The fitted model.
            dataset: Its data.
            origin: Where they come from.
            backward: Test metrics of the model on the test set of the run before.
            folder: That of the run.
        """
        run = self.run
        return Update(
            run=display_path(run.folder),
            beside=os.path.relpath(run.folder.resolve(), folder.resolve()),
            updates=run.updates,
            sessions=run.sessions + dataset.train.count,
            logs=[*dict.fromkeys([*run.logs, *logs_of(origin)])],
            until=_latest(run.until, origin.until),
            forgotten=self.forgotten,
            new_documents=max(dataset.query_doc_pairs - run.query_doc_pairs, 0),
            warm=run.settings.warm,
            changes=[*self.changes],
            before=dict(self.before),
            backward=dict(backward),
            moved=moved(model, self.stored, dataset.names),
        )


def _no_test(roles: Sequence[str]) -> str:
    return f"no check of change is made of the {listed(roles, _MOST_NAMED)} of layouts by the last click"


def _latest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)


def describe_change(change: Change) -> str:
    """Returns a sentence on a role whose shared parameters a log contradicts."""
    at = (
        f" at positions {listed([*map(str, change.positions)], _MOST_NAMED)}"
        if change.positions
        else ""
    )
    size = (
        f"up to {math.exp(change.largest):.2f} times what it was"
        if change.is_ratio
        else f"up to {change.largest:+.2f} in logits"
    )
    return (
        f"this log contradicts the {change.parameter} of earlier ones{at} ({size}, p = {change.p:.1g}): has the page "
        "changed, or most of what it shows?"
    )


def logs_of(origin: Origin | None) -> list[str]:
    """Returns hashes by which a log is known again: of its sessions, and of its files."""
    if origin is None:
        return []
    return [
        name for name in (origin.digest, origin.sources.get("dataset.path")) if name is not None
    ]


def _check_posteriors(model: Model, stored: dict[str, np.ndarray], folder: Path) -> None:
    """ConfigError where something that the run has learned has no posterior."""
    for path, node in _tables(model).items():
        if not node.get_value().has_posteriors:
            raise ConfigError(
                f"prior.run={folder}: the rows of {'/'.join(map(str, path))} have no posteriors. Fit both runs with "
                "posterior=normal_by_rank, or take the parameters alone by prior.warm=true."
            )
    if not (folder / SHARED).is_file() and any("/table" not in name for name in stored):
        raise ConfigError(
            f"prior.run={folder}: there is no posterior of its shared parameters ({SHARED}): these are more than 400, "
            "as of networks, or the run had shared_intervals=false. Take the parameters alone by prior.warm=true."
        )
    if not (folder / SEEN).is_file():
        raise ConfigError(
            f"prior.run={folder}: it was trained without posteriors. Take the parameters alone by prior.warm=true."
        )


def _tables(model: Model) -> dict[tuple, Table]:
    return {path: node for path, node in nnx.iter_graph(model) if isinstance(node, Table)}


def _renamed(posterior: SharedPosterior, places: Mapping[str, Places]) -> SharedPosterior:
    """Returns a posterior with the names that its numbers have where parameters have become larger."""

    def renamed(name: str) -> str:
        parameter, _, index = name.removesuffix("]").partition("[")
        return f"{parameter}[{places[parameter][int(index)]}]" if parameter in places else name

    return replace(posterior, names=tuple(map(renamed, posterior.names)))


def _documents(seen: Seen, model: Model, places: Mapping[str, Places]) -> dict[tuple, Documents]:
    """Returns the documents of tables that may have more rows now, by path."""
    by_path = {}
    for path, node in _tables(model).items():
        documents = seen.documents.get(path_name(path))
        if documents is None:
            continue
        sums = np.asarray(documents.sums)
        grown = np.zeros((len(node.get_value().values), sums.shape[1]), sums.dtype)
        grown[places.get(path_name(path), slice(len(sums)))] = sums
        by_path[path] = replace(documents, sums=grown)
    return by_path
