"""The export of a run: the files that say what its fitted model knows."""

import filecmp
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clickexp.data import Sessions, open_lists
from clickexp.data.folders import temporary
from clickexp.data.inspect.identifiability import ENOUGH_SESSIONS, identifiability
from clickexp.data.names import NamesFile
from clickexp.errors import UserError
from clickexp.export.examination import examination, learned_examination
from clickexp.export.files import ALIKE, OPTIONS, ShownLists, Source
from clickexp.export.fitted import Fitted, configuration, devices_of, fitted
from clickexp.export.judgments import check_names, judgments
from clickexp.export.ranker import described, onnx_writer, ranker_files, transform_of
from clickexp.export.ranking import ranked
from clickexp.export.tables import lists_to_predict, write_documents, write_predictions
from clickexp.export.thompson import thompson_order
from clickexp.models import ClickModel, Model, Ranker
from clickexp.models.ranker.scorer import Scorer
from clickexp.parameters.layouts import layouts_of
from clickexp.posteriors.intervals import shared_intervals, short_intervals, why_no_intervals
from clickexp.posteriors.policy_prior import Queries
from clickexp.posteriors.shared import SharedPosterior
from clickexp.posteriors.unlinked import with_known_ratios
from clickexp.runs.run import Run
from clickexp.runs.store import SEEN, SHARED
from clickexp.training.spread import computing_on
from clickexp.updates.seen import Seen
from clickexp.utils.bounds import Seed, bounded
from clickexp.utils.escape import csv_cell
from clickexp.utils.files import check_inside, whole
from clickexp.utils.signatures import check_arguments, parsed_options
from clickexp.utils.sources import source_path
from clickexp.utils.text import listed

EXAMINATION_TABLE, SHARED_TABLE = "examination.csv", "shared.csv"
DOCUMENTS_TABLE = "documents.parquet"
_OPTIONS = (
    f"options are columns.KEY=NAME, {', '.join(OPTIONS[1:])}, for --predict FILE or --rank LISTS"
)
Write = Callable[[Path], object]
"""Writes a file to a path."""


@bounded
def export(
    run: str | Path,
    output: str | Path | None = None,
    dataset: str | Path | None = None,
    part: str = "test",
    predict: str | Path | None = None,
    options: Sequence[str] = (),
    trust: bool = False,
    thompson: Seed | None = None,
    rank: str | Path | None = None,
    numpy: bool = False,
    onnx: str | Path | None = None,
    judgment_list: bool = False,
    report: Callable[[Path], object] = print,
) -> None:
    """Writes examination.csv, shared.csv, documents.parquet and, as asked for, predictions, orders and rankers.

    A model that ranks and does not predict clicks has relevance alone, and propensities where it learns them.

    Args:
        run: Its folder.
        output: Where to write, by default run/export.
        dataset: Path of the log, if not that in the configuration.
        part: Sessions that examination is averaged over.
        predict: A file of sessions, or a folder of them; "" predicts those of the part.
        options: Of the files to predict or to rank: columns.KEY=NAME, files, separator, header, encoding, decimal,
            first_rank, time_format, time_zone, null_is_no_click and invalid, as `dataset=lists` has them.
        trust: The configuration in the folder may call code outside clickexp.
        thompson: Seed of a draw from the posteriors that thompson.parquet orders documents by.
        rank: File of lists that ranking.parquet has in the order of their scores.
        numpy: Whether to write ranker.npz, and ranker.py, which scores with NumPy alone.
        onnx: File of an ONNX model of the ranker.
        judgment_list: Whether to write judgments.txt, grades of relevance as Elasticsearch Learning to Rank reads them.
        report: Called with each file once it is there.

    Raises:
        UserError: Something is missing or does not fit.
    """
    run = Path(run)
    folder = Path(output) if output is not None else run / "export"
    if output is None:
        check_inside(folder, run)  # a link may have come with the folder
    _check_paths({"RUN": run, "--predict": predict, "--rank": rank})
    file_options = _file_options(options, predict or rank)
    to_onnx = None if onnx is None else onnx_writer()
    config = configuration(run)
    devices = devices_of(config)
    with computing_on(devices):
        fit = fitted(run, dataset, trust)
        files = Export(run, config, devices, fit, folder, report, file_options)
        sessions: Sessions = getattr(files.fit.log, part)
        if judgment_list:
            check_names([] if files.names is None else files.names.columns)
        if rank is not None:  # files may be faulty, which is said before what takes longer
            files.write_ranking(rank)
        if predict == "":
            files.write_predictions(ShownLists.of_log(sessions, files.names))
        elif predict is not None:
            files.write_predictions_of(predict)
        if to_onnx is not None:
            files.write_onnx(Path(str(onnx)), to_onnx)
        if numpy:
            files.write_numpy(or_by_id=to_onnx is None)
        files.write_parameters(sessions)
        if judgment_list:
            files.write_judgments()
        if thompson is not None:
            files.write_thompson(thompson)


class Export:
    """The files of an export, each written whole or not at all.

    Args:
        run: Folder of the run.
        config: Its configuration.
        devices: How many share the passes over the log; see `devices_of`.
        fit: Its model and log.
        folder: Where to write.
        report: Called with each file once it is there.
        file_options: Options of the files to predict or to rank.
    """

    def __init__(
        self,
        run: Path,
        config: Mapping[str, Any],
        devices: int | str,
        fit: Fitted,
        folder: Path,
        report: Callable[[Path], object],
        file_options: Mapping[str, Any],
    ):
        self.run, self.fit, self.folder = run, fit, folder
        self._report, self._file_options = report, file_options
        self._config, self._devices = config, devices
        self._transform = transform_of(self._config, fit.log)

    @cached_property
    def names(self) -> NamesFile | None:
        """The file that names the ids of the log; None where it came with them."""
        log = self.fit.log
        return None if log.names is None else NamesFile(log.names, log.query_doc_pairs)

    @property
    def all_names(self) -> pl.DataFrame | None:
        """All names of ids, read again: they take more room than the model."""
        return None if self.names is None else self.names.all()

    def save(self, name: str, write: Write) -> None:
        """Writes a file into the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_whole(self.folder / name, write)

    def write_whole(self, file: Path, write: Write) -> None:
        """Writes a file and reports it; a line on stderr says that it replaces another one."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole(file) as part:
            write(part)
            replaced = file.is_file() and not filecmp.cmp(part, file, shallow=False)
        if replaced:
            sys.stderr.write(
                f"{file}: an earlier one that differs is replaced; --output FOLDER keeps both\n"
            )
        self._report(file)

    def source(self, path: str | Path) -> Source:
        """Returns files to read, whose values are written as those of the log are, if options do not say otherwise."""
        settings = self._config["dataset"]
        alike = {name: settings[name] for name in ALIKE if name in settings}
        return Source(
            source_path(path), {**alike, **self._file_options}, settings.get("columns") or {}
        )

    def write_ranking(self, path: str | Path) -> None:
        """Writes the lists of files in the order of their scores."""
        arguments = self.fit.model, self.fit.log, self._config, self.all_names
        table, scores = ranked(*arguments, self.source(path))
        self.save("ranking.parquet", table.write_parquet)
        if scores is not None:
            text = "".join(f"{score:.9g}\n" for score in scores)
            self.save("scores.txt", partial(Path.write_text, data=text))

    def write_onnx(self, file: Path, to_onnx: Callable[[Scorer], bytes]) -> None:
        """Writes an ONNX model of the ranker."""
        content = to_onnx(self._ranker(or_by_id=False))
        self.write_whole(file, partial(Path.write_bytes, data=content))

    def write_numpy(self, *, or_by_id: bool) -> None:
        """Writes a ranker, and what scores with NumPy alone."""
        for name, content in ranker_files(self._ranker(or_by_id=or_by_id)).items():
            self.save(name, partial(Path.write_bytes, data=content))

    def _ranker(self, *, or_by_id: bool) -> Scorer:
        """What scores documents without JAX."""
        return described(self.fit.model, self.fit.log, self._transform, or_by_id=or_by_id)

    def write_parameters(self, sessions: Sessions) -> None:
        """Writes examination, averaged over some sessions, shared parameters and documents."""
        model, shared = self.fit.model, self.run / SHARED
        posterior = SharedPosterior.load(shared) if shared.is_file() else None
        self._write_examination(sessions, posterior)
        intervals = [] if posterior is None else shared_intervals(model, posterior)
        if intervals:
            rows = [
                {**parameter.layout, **parameter.model_dump(exclude={"layout"})}
                for parameter in intervals
            ]
            table = pl.DataFrame(rows, infer_schema_length=None)
            self.save(SHARED_TABLE, _without_formulas(table).write_csv)
        _warn_of_examination(self.run, model, self.fit.log.train, posterior is None)
        settings: dict[str, Any] = {"intervals": intervals, "has_intervals": self.fit.is_own}
        settings["devices"] = self._devices
        if self.fit.is_own and (self.run / SEEN).is_file():
            settings["read_seen"] = self._read_seen
        arguments = model, self.fit.log, self.names, posterior
        self.save(DOCUMENTS_TABLE, partial(write_documents, *arguments, **settings))

    def _read_seen(self) -> tuple[np.ndarray | None, Queries | None]:
        """Reads impressions and lists of the run and those before it."""
        seen = Seen.load(self.run / SEEN)
        impressions = seen.impressions(self.fit.model)
        # the sums that a copy is a column of are freed
        return None if impressions is None else impressions.copy(), seen.queries

    def _write_examination(self, sessions: Sessions, posterior: SharedPosterior | None) -> None:
        model = self.fit.model
        table = _examination(model, sessions, posterior)
        if table is None:
            return
        self.save(EXAMINATION_TABLE, _without_formulas(table).write_csv)
        if model.separates_examination and "propensity_sd" not in table.columns:
            sys.stderr.write(f"no intervals of examination: {why_no_intervals(model, posterior)}\n")

    def write_judgments(self) -> None:
        """Writes grades of relevance."""
        text = judgments(self.folder / DOCUMENTS_TABLE)
        self.save("judgments.txt", partial(Path.write_text, data=text, encoding="utf-8"))

    def write_thompson(self, seed: int) -> None:
        """Writes documents in the order of a draw from the posteriors."""
        table = thompson_order(self.fit.model, self.fit.log, self.all_names, seed)
        self.save("thompson.parquet", table.write_parquet)

    def write_predictions(self, lists: ShownLists) -> None:
        """Writes what is predicted for lists."""
        self.save("predictions.parquet", partial(write_predictions, self.fit.model, lists))

    def write_predictions_of(self, path: str | Path) -> None:
        """Writes what is predicted for files."""
        arguments = self.fit.model, self.fit.log, self.source(path), self.all_names
        with temporary() as scratch:
            self.write_predictions(lists_to_predict(*arguments, self._transform, scratch))


def _without_formulas(table: pl.DataFrame) -> pl.DataFrame:
    """Returns a table for CSV, whose text, such as names of layouts, no spreadsheet takes for a formula."""
    return table.with_columns(pl.col(pl.String).map_elements(csv_cell, return_dtype=pl.String))


def _check_paths(paths: Mapping[str, str | Path | None]) -> None:
    """Raises a UserError for an option in the place of a path.

    Args:
        paths: By the argument that takes it; None where it is not given.
    """
    for argument, path in paths.items():
        key, equals, _ = str(path or "").partition("=")
        if equals and "/" not in key and not source_path(str(path)).exists():
            raise UserError(
                f"{path}: an option in the place of the path of {argument}. Paths come first; {_OPTIONS}"
            )


def _file_options(options: Sequence[str], given_file: str | Path | None) -> dict[str, Any]:
    """Returns the options of the files to predict or to rank; UserError for others."""
    parsed = parsed_options(options)
    if unknown := [key for key in parsed if key not in OPTIONS]:
        raise UserError(f"{' '.join(options)}: there is no option {listed(unknown, 3)}; {_OPTIONS}")
    if options and not given_file:
        raise UserError(f"{' '.join(options)}: {_OPTIONS}")
    check_arguments(open_lists, parsed, "")
    return parsed


def _warn_of_examination(run: Path, model: Model, sessions: Sessions, takes_as_known: bool) -> None:
    if (why := short_intervals(model, sessions)) is not None:
        sys.stderr.write(f"{why}\n")
    if not model.separates_examination:
        return
    links = identifiability(sessions, ENOUGH_SESSIONS, layouts_of(model))
    result = Run.read(run)
    if result.update is not None:
        links = with_known_ratios(links, result.propensity)
    if links.warns:
        more = " Intervals of attraction take examination as known." if takes_as_known else ""
        sys.stderr.write(f"{links.describe()}{more}\n")


def _examination(
    model: Model, sessions: Sessions, posterior: SharedPosterior | None
) -> pl.DataFrame | None:
    """Returns examination by position, of models that know it."""
    if isinstance(model, ClickModel):
        return examination(model, sessions, posterior)
    curve = model.examination() if isinstance(model, Ranker) else None
    return None if curve is None else learned_examination(np.asarray(curve, np.float64), sessions)
