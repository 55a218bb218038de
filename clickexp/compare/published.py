"""Reproductions beside what was published: figures come from the `reproduction` node of each run's config.yaml."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clickexp.compare.names import short
from clickexp.compare.output import Output
from clickexp.errors import UserError
from clickexp.runs.load import Run, Skipped, find_runs
from clickexp.runs.store import training_seconds
from clickexp.utils import escape

FOLDER = "published"
SECONDS = "seconds"
LOSS_PER_SESSION = "loss_per_session"
DEVIATIONS = 2
"""Published standard deviations that a difference may have, where they are more than the tolerance."""
ID_SLACK = 1
"""Ids may be counted from 0 or from 1."""
OTHER_DATA, NOT_COMPARABLE = "other data", "not comparable"
OWN_KEYS = ("experiment", "model", "dataset", "dataset.path", "dataset.name", "miniature")
"""Overrides that a table tells of already."""

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A metric of a model: published by the first reference and by others, and ours over splits.

    verdict: inside or outside the tolerance, or that there is none. notes: numbers of the notes that bear on it.
    compiling: of seconds those of compilation, as far as runs record them, which are not in `ours`.
    """

    model: str
    metric: str
    published: float | None
    others: tuple[float | None, ...]
    ours: tuple[float, ...]
    verdict: str
    notes: tuple[int, ...]
    compiling: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return float(np.mean(self.ours))

    @property
    def sd(self) -> float:
        """Standard deviation over splits; nan for one."""
        return float(np.std(self.ours, ddof=1)) if len(self.ours) > 1 else math.nan

    @property
    def difference(self) -> float:
        """Ours minus published; of the training time ours over published; nan where that would mean nothing."""
        if self.published is None or self.verdict == OTHER_DATA:
            return math.nan
        return self.mean / self.published if self.metric == SECONDS else self.mean - self.published


@dataclass(frozen=True)
class Reproduction:
    """An experiment and what came of it. references: names of those who published figures, the first is compared."""

    name: str
    caption: str
    references: Sequence[str]
    sources: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str]


def compare_published(
    folders: Sequence[str | Path],
    output: str | Path | None = None,
    baseline: str | None = None,
    metrics: Sequence[str] | None = None,
) -> list[Reproduction]:
    """Prints the reproductions below the folders and writes each as Markdown, LaTeX and CSV.

    output: a folder for `published/`, by default the first folder. metrics: those to show, by default all published.
    UserError for a baseline, and where no run is of an experiment with published figures.
    """
    if baseline is not None:
        raise UserError("--published compares with published figures: leave --baseline out")
    runs, skipped = find_runs(folders)
    damaged = [Skipped(run.folder, reason) for run in runs if (reason := damage(run))]
    runs = [run for run in runs if run.folder not in {one.folder for one in damaged}]
    for one in (*skipped, *damaged):
        print(escape.printable(f"skipped {one}"))
    found = reproductions(runs, metrics)
    if not found:
        raise UserError(
            "no run is of an experiment with published figures: run one, such as "
            "clickexp -m +experiment=clax2025_yandex_baseline"
        )
    files = Output(Path(folders[0] if output is None else output) / FOLDER, print)
    for reproduction in found:
        text = markdown(reproduction)
        print(text)
        name = escape.slug(reproduction.name)
        files.add(f"{name}.md", text)
        files.add(f"{name}.tex", latex(reproduction))
        files.add(f"{name}.csv", as_csv(reproduction))
    files.write()
    return found


def reproductions(runs: Sequence[Run], metrics: Sequence[str] | None = None) -> list[Reproduction]:
    """One for each experiment with published figures that any of the runs is of."""
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        node = run.config.get("reproduction")
        if isinstance(node, Mapping) and node.get("published"):
            by_name[str(node["name"])].append(run)
    return [_reproduction(name, of_name, metrics) for name, of_name in by_name.items()]


def damage(run: Run) -> str | None:
    """Why no reproduction can be made of a run that has published figures; None where it can."""
    try:
        for reproduction in reproductions([run]):
            markdown(reproduction)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return f"the reproduction in its config.yaml is damaged ({type(error).__name__}: {error})"
    return None


def _reproduction(name: str, runs: Sequence[Run], metrics: Sequence[str] | None) -> Reproduction:
    node = runs[-1].config["reproduction"]
    references = [*map(str, node["published"])]
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[_told(run)].append(run)
    notes = [note["text"] for note in node.get("notes", ())]
    rows = [row for told, group in groups.items() for row in _rows(told, group, metrics, notes)]
    return Reproduction(
        name,
        f"{node['paper']}, experiment {node['experiment']}",
        references,
        [reference["source"] for reference in node["published"].values()],
        rows,
        notes,
    )


def _told(run: Run) -> str:
    """The model, what its figures are told apart by, and overrides that make it another experiment."""
    by = run.config["reproduction"].get("by")
    own = {key: value for key, value in run.overrides.items() if key not in (*OWN_KEYS, by)}
    parts = [run.model, *([str(run.config[by])] if by else []), *(f"{key}={own[key]}" for key in own)]
    return ", ".join(parts)


def _rows(told: str, runs: Sequence[Run], metrics: Sequence[str] | None, texts: list[str]) -> Iterator[Row]:
    """Those of a group of runs; why they have no verdict is added to the texts of the notes."""
    node = runs[0].config["reproduction"]
    first, *others = [_figures(reference, runs[0]) for reference in node["published"].values()]
    reason = next((why for run in runs if (why := other_data(run))), None)
    if reason and reason not in texts:
        texts.append(reason)
    for metric in metrics or _published_metrics(node):
        ours = tuple(value for run in runs if (value := _measured(run, metric)) is not None)
        if not ours:
            continue
        notes = [
            (number, note)
            for number, note in enumerate(node.get("notes", ()), start=1)
            if runs[0].model in note.get("models", [runs[0].model])
            and metric in note.get("metrics", [metric])
        ]
        numbers = [number for number, _ in notes]
        if reason:
            numbers.append(texts.index(reason) + 1)
        published = tuple(other.get(metric) for other in others)
        compiling = (
            tuple(run.compile_seconds for run in runs if run.compile_seconds) if metric == SECONDS else ()
        )
        row = Row(told, metric, first.get(metric), published, ours, "", tuple(numbers), compiling)
        if reason:
            yield replace(row, verdict=OTHER_DATA)
        elif not all(note.get("comparable", True) for _, note in notes):
            yield replace(row, verdict=NOT_COMPARABLE)
        else:
            yield replace(row, verdict=_verdict(row, node["tolerance"], first.get("sd", {})))


def _published_metrics(node: Figures) -> list[str]:
    """Those of the first reference, of whatever model."""
    first = next(iter(node["published"].values()))
    metrics = dict.fromkeys(key for of in first["figures"].values() for key in of)
    return [key for key in metrics if key != "sd"]


def _verdict(row: Row, tolerance: Mapping[str, float], sd: Mapping[str, float]) -> str:
    """Whether the difference is inside the tolerance; nothing where nothing was published, and of times."""
    if row.published is None or row.metric == SECONDS:
        return ""
    limit = max(tolerance.get(row.metric, 0.0), DEVIATIONS * sd.get(row.metric, 0.0))
    return f"{'inside' if abs(row.difference) <= limit else 'outside'} {limit:g}"


def other_data(run: Run) -> str | None:
    """None where the run has read what published figures are of, else what tells that it has not.

    It must have the name of the dataset, the sessions of each part of its split, and, where they are known, the
    query-document pairs and labelled lists. Sessions that a filter leaves are fewer than those of the range.
    """
    node = run.config["reproduction"]
    expected, read = node["data"], run.result.get("data")
    if not isinstance(read, Mapping):
        return "other data, as far as is known: the run tells no sizes"
    if run.dataset != expected["dataset"]:
        return f"other data: the dataset is {run.dataset}, not {expected['dataset']}"
    split = node["full"]["splits"].get(f"seed_{run.seed}")
    if split is None:
        return f"other data: no published split of seed {run.seed}"
    for part, (start, stop) in split.items():
        count, published = read["sessions"].get(part, 0), stop - start
        short_of = expected.get("filtered", False) and part != "train" and 0 < count <= published
        if count != published and not short_of:
            return f"other data: {count:,} sessions in {part}, not {published:,}"
    pairs = expected.get("query_doc_pairs")
    if pairs is not None and abs(read["query_doc_pairs"] - pairs) > ID_SLACK:
        return f"other data: {read['query_doc_pairs']:,} pairs, not {pairs:,}"
    lists = expected.get("ranking")
    if lists is not None and read["sessions"].get("ranking", 0) != lists:
        return f"other data: {read['sessions'].get('ranking', 0):,} labelled lists, not {lists:,}"
    return None


def _figures(reference: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Published figures by metric, those of the run's value of `by` where figures are told apart."""
    by = run.config["reproduction"].get("by")
    figures = reference["figures"].get(run.model, {})
    if by is None:
        return dict(figures)
    return {metric: of[run.config[by]] for metric, of in figures.items() if run.config[by] in of}


def _measured(run: Run, metric: str) -> float | None:
    """Of the test, or of the training, whose seconds are those without compilation."""
    if metric == SECONDS:
        return training_seconds(run.result["train"])
    if metric == LOSS_PER_SESSION:
        sessions, lists = run.result["per_rank"]["sessions"], run.result.get("data", {}).get("sessions", {})
        return -run.result["test"]["ll"] * sum(sessions) / lists["test"] if "test" in lists else None
    return run.result["test"].get(metric)


def _cells(reproduction: Reproduction, row: Row) -> list[str]:
    """A line of the table for a reader."""
    digits = 0 if row.metric == SECONDS else 4
    deviation = f" ± {row.sd:.{digits}f}" if math.isfinite(row.sd) else ""
    if math.isfinite(row.difference):
        difference = f"{row.difference:.3g}x" if row.metric == SECONDS else f"{row.difference:+.{digits}f}"
    else:
        difference = ""
    published = ["" if value is None else f"{value:,.{digits}f}" for value in (row.published, *row.others)]
    numbers = ", ".join(map(str, row.notes))
    name = "Seconds" if row.metric == SECONDS else short(row.metric)
    compiling = f" (+ {np.mean(row.compiling):,.0f} compiling)" if row.compiling else ""
    ours = f"{row.mean:,.{digits}f}{deviation}{compiling}"
    return [row.model, name, *published, ours, str(len(row.ours)), difference, row.verdict, numbers]


def _header(reproduction: Reproduction) -> list[str]:
    return ["Model", "Metric", *reproduction.references, "Ours", "Splits", "Difference", "Tolerance", "Notes"]


def _caption(reproduction: Reproduction) -> str:
    sources = "; ".join(
        f"{name}: {source}"
        for name, source in zip(reproduction.references, reproduction.sources, strict=True)
    )
    return (
        f"{reproduction.caption}. Published figures: {sources}. Ours: mean ± standard deviation over splits; the "
        f"difference is to {reproduction.references[0]}, of seconds, ours without compilation, it is the ratio."
    )


def markdown(reproduction: Reproduction) -> str:
    """A table of GitHub-flavoured Markdown, with its notes."""
    header = _header(reproduction)
    lines = [[*map(escape.markdown, header)], ["---", "---", *["---:"] * (len(header) - 4), "---", "---"]]
    lines += [[*map(escape.markdown, _cells(reproduction, row))] for row in reproduction.rows]
    notes = [f"{number}. {escape.markdown(text)}" for number, text in enumerate(reproduction.notes, start=1)]
    table = [f"| {' | '.join(line)} |" for line in lines]
    title, caption = f"## {escape.markdown(reproduction.name)}", escape.markdown(_caption(reproduction))
    return "\n".join([title, "", *table, "", caption, "", *notes, ""])


def latex(reproduction: Reproduction) -> str:
    """A longtable with booktabs rules; the table may be longer than a page."""

    def line(cells: Sequence[str]) -> str:
        return "  " + " & ".join(escape.latex(cell.replace("_", " ")) for cell in cells) + r" \\"

    header = _header(reproduction)
    notes = " ".join(f"({number}) {text}." for number, text in enumerate(reproduction.notes, start=1))
    return "\n".join(
        [
            r"% \usepackage{booktabs,longtable}",
            rf"\begin{{longtable}}{{ll{'r' * (len(header) - 4)}ll}}",
            rf"  \caption{{{escape.latex(f'{_caption(reproduction)} {notes}')}}}",
            rf"  \label{{tab:{escape.slug(reproduction.name)}}} \\",
            r"  \toprule",
            line(header),
            r"  \midrule",
            r"  \endhead",
            *(line(_cells(reproduction, row)) for row in reproduction.rows),
            r"  \bottomrule",
            r"\end{longtable}",
            "",
        ]
    )


def as_csv(reproduction: Reproduction) -> str:
    """All numbers, unrounded."""
    references = [reference.lower() for reference in reproduction.references]
    columns = ["ours", "ours_sd", "splits", "difference", "verdict", "notes", "compile_seconds"]
    rows: list[list[Any]] = [["model", "metric", *references, *columns]]
    for row in reproduction.rows:
        published = ["" if value is None else value for value in (row.published, *row.others)]
        numbers = [value if math.isfinite(value) else "" for value in (row.mean, row.sd)]
        difference = row.difference if math.isfinite(row.difference) else ""
        notes = " ".join(map(str, row.notes))
        ours = [*numbers, len(row.ours), difference, row.verdict, notes]
        compiling = float(np.mean(row.compiling)) if row.compiling else ""
        rows.append([row.model, row.metric, *published, *ours, compiling])
    return escape.csv_text(rows)
