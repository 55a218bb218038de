"""The command `clickexp` as a function: one run, whose result has data frames and figures."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from clickexp.data import Dataset
from clickexp.errors import ConfigError, UserError
from clickexp.experiment.build import build, open_loggers
from clickexp.experiment.conf import CONF
from clickexp.experiment.hydra_errors import MENDABLE, format_hydra_error
from clickexp.experiment.overrides import CommandLine, quoted
from clickexp.experiment.resolve import resolve
from clickexp.experiment.run import follow as run_followed
from clickexp.experiment.run import run as run_parts
from clickexp.experiment.values import current, without_hydra
from clickexp.models import Model
from clickexp.runs.claims import claim_named, claim_new, is_finished
from clickexp.runs.run import Run
from clickexp.runs.store import HYDRA, OVERRIDES, REPORT
from clickexp.utils import hosts
from clickexp.utils.exits import complain
from clickexp.utils.files import whole

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class FittedRun:
    """A finished run with its model and data.

    A `Run` is what its folder holds, which commands read without JAX. This is what the process that trained has beside.

    Attributes:
        result: Its document, as result.json has it, with its folder, configuration and epochs.
        model: The fitted model.
        dataset: The sessions that it was fitted to and tested on.
    """

    result: Run
    model: Model
    dataset: Dataset

    @property
    def folder(self) -> Path:
        """Where result.json, model.npz, report.html and the rest are."""
        return self.result.folder

    @property
    def report(self) -> Path:
        """The page on the run, with `report=true`."""
        return self.folder / REPORT

    @cached_property
    def metrics(self) -> "pl.DataFrame":
        """Test metrics, one row each: metric, value, higher_is_better, validation, and a column for each reference."""
        import polars as pl

        test, stated = self.result.test, self.result.higher_is_better
        columns = {"metric": list(test), "value": list(test.values())}
        columns["higher_is_better"] = [stated.get(name) for name in test]
        columns["validation"] = [self.result.val.get(name) for name in test]
        for title, reference in self.result.references.items():
            columns[title] = [reference.test.get(name) for name in test]
        return pl.DataFrame(columns, strict=False)

    @cached_property
    def epochs(self) -> "pl.DataFrame":
        """The record of each epoch, one row each."""
        import polars as pl

        return pl.DataFrame(list(self.result.epochs), infer_schema_length=None)

    @cached_property
    def per_rank(self) -> "pl.DataFrame":
        """Test metrics by rank, one row per rank from 1."""
        import polars as pl

        vectors = self.result.per_rank
        ranks = range(1, 1 + max(map(len, vectors.values()), default=0))
        return pl.DataFrame({"rank": list(ranks), **vectors}, strict=False)

    def plot(self, *names: str) -> "Figure":
        """Draws what the report has.

        Args:
            *names: Of perplexity, examination, learning and calibration; by default all that the run has.

        Returns:
            A figure of Matplotlib, with up to three panels in a row.

        Raises:
            UserError: The run has no such figure.
        """
        from clickexp.results.figures.drawing import drawing
        from clickexp.results.figures.run import run_figures

        figures = run_figures(self.result)
        for name in names:
            if name not in figures:
                raise UserError(f"there is no figure {name}: choose from {', '.join(figures)}")
        return drawing([panel for name in names or figures for panel in figures[name]])

    def __repr__(self) -> str:
        test = self.result.test
        headline = {name: test.get(name) for name in ("ll", "ppl", "cond_ppl")}
        shown = ", ".join(
            f"{name}={value:.4f}" for name, value in headline.items() if value is not None
        )
        return f"FittedRun({self.result.model} on {self.result.dataset}: {shown}, in {self.folder})"


def run(
    *overrides: str,
    folder: str | Path | None = None,
    config_dir: str | Path | None = None,
    **settings: Any,
) -> FittedRun:
    """Runs one experiment, as the command `clickexp` does, and writes the same files.

        clickexp.run(model="pbm", dataset="simulated", seed=1)
        clickexp.run("optimizer.learning_rate=0.1", "+experiment=cascade_user", model="dbn", attraction="hash")

    Args:
        *overrides: As on the command line.
        folder: Of the run, in which an interrupted one continues; by default a new one below outputs/.
        config_dir: A folder of further options, as `--config-dir`.
        **settings: Options by group and values by key: model="pbm", progress="off".

    Returns:
        Its result, with data frames, figures, the fitted model and the dataset.

    Raises:
        UserError: The configuration or the data is wrong; before training starts.
    """
    if hosts.index():
        raise ConfigError("clickexp.run is for the first process: start others by the command")
    if others := [word for word in overrides if not isinstance(word, str)]:
        raise ConfigError(
            f"clickexp.run takes overrides as text, such as 'seed=1', and not {others[0]!r}"
        )
    words = [*overrides, *(f"{key}={_text(value)}" for key, value in settings.items())]
    options = _options(config_dir)
    try:
        line = CommandLine([*words, *options])
        if len(line.overrides) != len(words):
            raise ConfigError("clickexp.run takes overrides, such as seed=1, and no options")
        with _composed(line) as cfg:
            return _run_in(cfg, line.overrides, folder)
    except MENDABLE as error:
        if isinstance(error, UserError | OSError) and not isinstance(error, HydraException):
            raise
        raise ConfigError(format_hydra_error(error, [*words, *options])) from error


def _options(config_dir: str | Path | None) -> list[str]:
    """The words that add a folder of options; a ConfigError where there is none of the name."""
    if config_dir is None:
        return []
    if not Path(config_dir).is_dir():
        raise ConfigError(
            f"config_dir={config_dir}: there is no such folder. Give a folder of options."
        )
    return ["--config-dir", str(config_dir)]


def follow(line: CommandLine) -> None:
    """Trains with the first of several processes, as `clickexp.experiment.run.follow`.

    Args:
        line: The words of the command.
    """
    with _composed(line) as cfg:
        folder = Path(cfg.hydra.run.dir)
        if is_finished(folder):  # this process has ended in the meantime, and was started again
            complain("clickexp", f"{folder}: the run there has finished")
            return
        run_followed(without_hydra(cfg), line.overrides)


@contextlib.contextmanager
def _composed(line: CommandLine) -> Iterator[DictConfig]:
    """The configuration of a command, Hydra's own included, to which ${hydra:...} refers in the block."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", [*line.searchpath, *line.overrides], return_hydra_config=True)
        with current(cfg):
            yield cfg


def _run_in(cfg: DictConfig, overrides: list[str], folder: str | Path | None) -> FittedRun:
    config = resolve(without_hydra(cfg), overrides)
    claim = (
        claim_new(Path(cfg.hydra.run.dir))
        if folder is None
        else claim_named(Path(folder), lambda: config.values)
    )
    try:
        (claim.folder / HYDRA).mkdir(exist_ok=True)
        with whole(claim.folder / OVERRIDES) as part:
            part.write_text(OmegaConf.to_yaml(overrides))
        with open_loggers(config) as logger:
            parts = build(config, claim.folder, logger)
            return FittedRun(run_parts(parts), parts.model, parts.dataset)
    finally:
        claim.release()


def _text(value: Any) -> str:
    """A value as Hydra's grammar has it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, str | Path):
        return quoted(str(value))
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
