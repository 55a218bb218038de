"""Tables, figures and files of a comparison, against hand-computed numbers; the command."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial

import polars as pl
import pytest
import yaml
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.text import Text
from refusals import refuses
from small_runs import write_json, write_run

from clickexp.cli.compare import main
from clickexp.errors import UserError
from clickexp.results import find_runs
from clickexp.results.commands.compare import compare
from clickexp.results.commands.output import write_files
from clickexp.results.comparison import comparisons
from clickexp.results.figures.comparison import figures
from clickexp.results.figures.drawing import drawing
from clickexp.results.leaderboard import tables
from clickexp.runs.run import Run
from clickexp.utils.escape import slug
from clickexp.utils.files import whole
from clickexp.utils.tables.numbers import standing


@pytest.fixture(scope="module", autouse=True)
def without_plotly():
    """Which only a browser needs, and takes a third of a second to compress into each page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clickexp.results.pages.comparison.get_plotlyjs", lambda: "")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Over seeds 1, 2, 3, ll: UBM -0.3 +- 0.1, PBM -0.4 +- 0.1 (0.1 below UBM in each), DBN_2 -0.35, one run."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        write_run(
            folder / f"u{seed}",
            "UBM",
            seed,
            {"ll": -0.1 * seed - 0.1, "ppl": 1.5, "ndcg@5": 0.2, "ndcg@10": 0.5},
        )
        write_run(
            folder / f"p{seed}",
            "PBM",
            seed,
            {"ll": -0.1 * seed - 0.2, "ppl": 1.5, "ndcg@5": 0.2, "ndcg@10": 0.6},
        )
    write_run(folder / "d", "DBN_2", 1, {"ll": -0.35, "ppl": 1.6, "ndcg@10": None})
    return folder


@pytest.fixture(scope="module")
def files(folder):
    return tables(comparisons(find_runs([folder])[0])[0])


def test_markdown_marks_best_second_and_significance(files):
    lines = files["leaderboard.md"].splitlines()
    assert lines[0] == "| Model | LL ↑ | PPL ↓ | nDCG@10 ↑ | Seeds |"
    assert lines[2:5] == [
        "| UBM | **-0.30** (-0.40, -0.20) | **1.5000** | <u>0.5000</u> | 3 |",
        "| DBN_2 | <u>-0.35</u> | <u>1.6000</u> | – | 1 |",
        r"| PBM | -0.40\*\* (-0.50, -0.30) | **1.5000** | **0.6000**\*\* | 3 |",
    ]
    assert "against UBM: paired t-test over seeds, corrected by Holm's method" in lines[-1]


def test_latex_has_booktabs_rows_of_one_length_and_balanced_marks(files):
    text = files["leaderboard.tex"]
    for mark in (
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"\begin{tabular}{lrrrr}",
        r"\label{tab:leaderboard}",
    ):
        assert text.count(mark) == 1
    body = re.search(r"\\midrule(.*)\\bottomrule", text, re.DOTALL)[1]
    rows = [row.strip() for row in body.split(r"\\") if row.strip()]
    assert rows[:1] == [
        r"UBM & $\mathbf{-0.30} (-0.40, -0.20)$ & $\mathbf{1.5000}$ & $\underline{0.5000}$ & $3$",
    ]
    assert rows[1] == r"DBN\_2 & $\underline{-0.35}$ & $\underline{1.6000}$ & -- & $1$"
    assert rows[2].startswith(r"PBM & $-0.40^{**} (-0.50, -0.30)$ & ")
    for content in (text, files["ll_per_rank.tex"]):
        assert content.count("{") == content.count("}") and content.count("$") % 2 == 0
        assert content.isascii()


def test_csv_holds_unrounded_numbers(files):
    frame = pl.read_csv(files["leaderboard.csv"].encode())
    assert frame["name"].to_list() == ["UBM", "DBN_2", "PBM"] and frame["seeds"].to_list() == [
        3,
        1,
        3,
    ]
    low, high = frame.row(0, named=True)["ll_low"], frame.row(0, named=True)["ll_high"]
    assert frame["ll"].to_list() == pytest.approx([-0.3, -0.35, -0.4])
    assert (low, high) == pytest.approx((-0.4, -0.2))  # of three seeds
    assert not {"ndcg@5", "ll_p_over"} & {*frame.columns}  # which tables do not show
    assert frame["training_seconds"].to_list() == [4, 2, 4]
    ranks = pl.read_csv(files["ll_per_rank.csv"].encode())
    assert ranks.filter(pl.col("name") == "UBM")["ll"].to_list() == pytest.approx([-0.36, -0.24])


def test_a_full_csv_has_all_metrics_and_what_tests_are_over(folder):
    made = tables(comparisons(find_runs([folder])[0])[0], full=True)
    frame = pl.read_csv(made["leaderboard.csv"].encode())
    assert frame["ndcg@5"].is_null().to_list() == [False, True, False]
    assert frame["ll_interval_over"].to_list() == ["seeds", None, "seeds"]


@pytest.fixture
def drawn(monkeypatch):
    """Figures, as far as they can be without rendering them, which takes most of the time of a comparison."""
    made = []
    monkeypatch.setattr(
        FigureCanvasPdf, "print_pdf", lambda canvas, *_, **__: made.append(canvas.figure)
    )
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda *_, **__: None)
    return made


def test_differences_of_the_baseline_to_itself_alone_are_no_figure(tmp_path, drawn):
    write_run(tmp_path / "UBM", "UBM")
    write_run(tmp_path / "CM", "CM", per_rank={})
    (comparison,) = comparisons(find_runs([tmp_path])[0], baseline="UBM")
    names = {name.partition(".")[0] for name in figures(comparison)}
    assert "per_rank" not in names and "per_rank_values" in names


def test_times_are_without_compilation_which_has_a_column(tmp_path, drawn):
    """PBM trains 1 s and compiles 5, UBM trains 2 s and compiles 1, each in one epoch of two."""
    for model, training, compiling in (("PBM", 1.0, 5.0), ("UBM", 2.0, 1.0)):
        folder = write_run(
            tmp_path / model,
            model,
            train={"training_seconds": training, "compile_seconds": compiling},
        )
        epochs = [
            {
                "epoch": 1,
                "val/ll": -0.6,
                "seconds": training / 2 + compiling,
                "compile_seconds": compiling,
            },
            {"epoch": 2, "val/ll": -0.5, "seconds": training / 2, "compile_seconds": 0.0},
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
    (comparison,) = comparisons(find_runs([tmp_path])[0])
    frame = pl.read_csv(tables(comparison)["leaderboard.csv"].encode()).sort("training_seconds")
    columns = frame.select("model", "training_seconds", "compile_seconds").rows()
    assert columns == [("PBM", 1.0, 5.0), ("UBM", 2.0, 1.0)]
    figures(comparison)
    (over_time, cost, compilation) = (
        axes
        for figure in drawn
        for axes in figure.axes
        if "compilation" in axes.get_xlabel().lower()
    )
    curves = {line.get_label(): line.get_xdata().tolist() for line in over_time.lines}
    assert curves == {"PBM": [0.5, 1.0], "UBM": [1.0, 2.0]}
    for axes, expected in ((cost, (1.0, 2.0)), (compilation, (5.0, 1.0))):
        points = {bar.get_label(): float(bar.lines[0].get_xdata()[0]) for bar in axes.containers}
        assert points == dict(zip(("PBM", "UBM"), expected, strict=True))


@pytest.fixture
def searched(tmp_path):
    """Four trials of a search by val/loss; test and validation disagree. The chosen one was run before, elsewhere."""
    losses, lls = [0.4, 0.2, 0.3, 0.5], [-0.1, -0.4, -0.3, -0.2]
    for trial, (loss, ll) in enumerate(zip(losses, lls, strict=True)):
        folder = tmp_path / ("earlier/7" if trial == 1 else f"s/{trial}")
        test = {"ll": ll, "ppl": 1.5 + trial / 10}
        write_run(folder, test=test, settings=[("rate", trial)], val={"loss": loss, "ll": -loss})
        status = "kept" if trial == 1 else "finished"
        write_json(
            tmp_path / f"s/{trial}/job.json",
            {"number": trial, "status": status, "result": str(folder)},
        )
    best = {"metric": "val/loss", "value": 0.2, "trial": 1}
    (tmp_path / "s/best.yaml").write_text(yaml.safe_dump(best))
    return tmp_path


def test_a_search_is_ordered_by_what_it_optimised_and_its_choice_is_marked(searched):
    (one,) = comparisons(find_runs([searched / "s"])[0])
    assert one.leading == ("val/loss", "ll", "ppl")
    assert [group.overrides["optimizer.rate"] for group in one.groups] == [1, 2, 0, 3]
    assert [group.chosen for group in one.groups] == [True, False, False, False]
    files = tables(one)
    lines = files["leaderboard.md"].splitlines()
    assert lines[0] == "| Model | Val. loss ↓ | LL ↑ | PPL ↓ |"
    assert lines[2] == "| UBM, rate=1 (chosen) | **0.2000** | -0.4000 | <u>1.6000</u> |"
    assert sum("(chosen) |" in line for line in lines) == 1
    caption = (
        "Ordered by validation loss, which the search optimised; (chosen): the trial that it chose."
    )
    assert all(
        caption in text for text in (lines[-1], files["leaderboard.tex"], files["ll_per_rank.md"])
    )
    assert "UBM, rate=1 (chosen) & $\\mathbf{0.2000}$" in files["leaderboard.tex"]
    frame = pl.read_csv(files["leaderboard.csv"].encode())
    assert frame["chosen"].to_list() == [True, False, False, False]
    assert frame["val/loss"].to_list() == [0.2, 0.3, 0.4, 0.5]


def test_a_choice_is_found_from_any_folder_and_survives_a_repetition(searched):
    for folders in ([searched], [searched / "earlier", searched / "s"], [searched / "s/1"]):
        runs, _ = find_runs(folders)
        assert [run.overrides["optimizer.rate"] for run in runs if run.chosen] == [1]
    again = write_run(searched / "z", test={"ll": -0.4}, settings=[("rate", 1)], val={"loss": 0.2})
    os.utime(again / "result.json", (2e9, 2e9))
    (chosen,) = (run for run in find_runs([searched])[0] if run.chosen)
    assert chosen.folder == again and chosen.optimized == "val/loss"


def test_columns_that_are_asked_for_also_order_a_search(searched):
    (one,) = comparisons(find_runs([searched / "s"])[0], ["ll", "val/loss"])
    assert [group.overrides["optimizer.rate"] for group in one.groups] == [0, 3, 2, 1]
    assert one.leading == ("ll", "val/loss") and one.choice.startswith(
        "Search was for the best validation loss"
    )


def test_a_search_that_was_killed_is_ordered_without_a_choice(searched):
    """It left no best.yaml; the configuration of each run has what was optimised."""
    (searched / "s/best.yaml").unlink()
    for trial in (0, 2, 3):
        file = searched / f"s/{trial}/config.yaml"
        file.write_text(file.read_text() + "search: {study: s}\noptimized_metric: val/loss\n")
    (one,) = comparisons(find_runs([searched / "s"])[0])
    assert [group.overrides["optimizer.rate"] for group in one.groups] == [1, 2, 0, 3]
    assert not any(group.chosen for group in one.groups)
    assert one.choice == "Ordered by validation loss, which the search optimised"


def test_searches_of_different_metrics_have_no_common_order(searched):
    write_run(
        searched / "t/0", test={"ll": -0.35}, settings=[("rate", 9)], val={"loss": 0.1, "ll": -0.1}
    )
    write_json(searched / "t/0/job.json", {"number": 0, "status": "finished", "result": ""})
    (searched / "t/best.yaml").write_text(yaml.safe_dump({"metric": "val/ll", "trial": 0}))
    (one,) = comparisons(find_runs([searched])[0])
    assert one.leading[0] == "ll" and [group.chosen for group in one.groups] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert one.choice.startswith(
        "Search was for the best validation loss and validation log-likelihood"
    )


def test_standing_follows_what_is_shown():
    assert standing(["0.5000", "0.7000", "–", "0.7000", "0.6000"], 1) == [0, 1, 0, 1, 2]
    assert standing(["0.5000", "0.7000"], -1) == [1, 2]
    assert standing(["0.5000", "0.5000"], 1) == standing(["0.5000", "0.7000"], 0) == [0, 0]


def test_figures_are_vectors_with_text_that_stays_text(folder):
    made = figures(comparisons(find_runs([folder])[0])[0])
    names = (
        "differences",
        "per_rank",
        "per_rank_values",
        "examination",
        "learning",
        "cost",
        "calibration",
    )
    assert list(made) == [f"{name}.{suffix}" for name in names for suffix in ("pdf", "png")]
    assert all(
        made[f"{name}.pdf"].startswith(b"%PDF") and b"/Type3" not in made[f"{name}.pdf"]
        for name in names
    )
    assert all(made[f"{name}.png"].startswith(b"\x89PNG") for name in names)


def test_axes_are_named(folder, drawn):
    figures(comparisons(find_runs([folder])[0])[0])
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for figure in drawn for axes in figure.axes]
    assert labels == [
        *((f"{metric} minus UBM", "") for metric in ("LL", "PPL", "nDCG@10")),
        ("Rank", "Difference in\nlog-likelihood\n(nats per document)"),
        ("Rank", "Log-likelihood\n(nats per document)"),
        ("Rank", "P(examination)"),
        ("Epoch", "Validation log-likelihood\n(nats per document)"),
        ("Time without\ncompilation (s)", "Validation log-likelihood\n(nats per document)"),
        ("Time without\ncompilation (s)", "Log-likelihood\n(nats per document)"),
        ("Fitted parameters", "Log-likelihood\n(nats per document)"),
        ("Predicted P(click)", "Observed click rate"),
    ]


def test_differences_are_drawn_as_they_are_tabled(folder, drawn):
    """To PBM, LL of UBM is +0.1 in each seed; DBN_2 has one run, 0.05 above PBM's mean."""
    figures(comparisons(find_runs([folder])[0], None, "PBM")[0])
    forest, ranks = drawn[0].axes[0], drawn[1].axes[0]
    assert [text.get_text() for text in forest.get_yticklabels()] == ["UBM", "DBN_2"]
    points = [bar.lines[0].get_xydata()[0].tolist() for bar in forest.containers]
    assert points == [pytest.approx([0.1, 0]), pytest.approx([0.05, -1])]
    curves = {line.get_label(): line.get_ydata() for line in ranks.lines}
    assert curves["PBM"] == pytest.approx([0, 0]) and curves["UBM"] == pytest.approx([0.12, 0.08])
    # to PBM's run of the same seed
    assert curves["DBN_2"] == pytest.approx([-0.42 + 0.36, -0.28 + 0.24])


def test_a_curve_far_off_leaves_room_to_the_others_and_is_reported(tmp_path, drawn):
    for i, model in enumerate(("PBM", "UBM", "DBN", "CM")):
        is_far = model == "CM"
        test, parameters = {"ll": -9 if is_far else -0.3 - 0.01 * i}, 10 if is_far else 2000 + i
        write_run(tmp_path / model, model, test=test, parameters=parameters)
    figures(comparisons(find_runs([tmp_path])[0])[0])
    *_, costs = (
        axes for figure in drawn for axes in figure.axes if "parameters" in axes.get_xlabel()
    )
    assert 1999 < costs.get_xlim()[0] < 2000 and costs.get_xscale() == "linear"
    figure = next(
        figure for figure in drawn if figure.axes[0].get_ylabel().startswith("Log-likelihood")
    )
    (axes,) = figure.axes
    assert -0.5 < axes.get_ylim()[0] < axes.get_ylim()[1] < 0
    names = {"PBM", "UBM", "DBN", "CM (beyond the axis)"}
    assert {text.get_text() for text in figure.legends[0].texts} == names


def test_figures_of_many_panels_are_as_wide_as_a_page():
    """Five panels are three and two, in their order."""
    figure = drawing([partial(Axes.set_xlabel, xlabel=str(number)) for number in range(5)])
    assert figure.get_figwidth() < 8
    rows = [axes.get_subplotspec().rowspan.start for axes in figure.axes]
    assert rows == [0, 0, 0, 1, 1]
    assert [axes.get_xlabel() for axes in figure.axes] == ["0", "1", "2", "3", "4"]


def test_a_legend_of_capitals_is_not_wider_than_its_figure():
    names = ("UBM", "CCM", "DBN", "PBM", "TrustBias", "DCM", "DCTR", "RCTR")

    def curves(axes):
        for name in names:
            axes.plot([0, 1], label=name)

    figure = drawing([curves, curves])
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_a_legend_has_as_few_lines_as_its_names_need(tmp_path, drawn):
    """One long name among short ones makes no column of its own width for all."""
    for i, model in enumerate(("PBM", "UBM", "DBN", "DCTR", "CM")):
        write_run(tmp_path / model, model, test={"ll": -9 if model == "CM" else -0.3 - 0.01 * i})
    figures(comparisons(find_runs([tmp_path])[0])[0])
    wide = next(figure for figure in drawn if len(figure.axes) > 1)
    wide.set_layout_engine("constrained")
    FigureCanvasAgg(wide).draw()
    places = [text.get_window_extent() for text in wide.legends[0].texts]
    assert len(places) == 5 and len({round(place.y0) for place in places}) == 1
    assert max(place.x1 for place in places) <= wide.bbox.x1


def test_a_legend_reads_row_by_row_from_the_best(tmp_path, drawn):
    models = ("UBM", "PBM", "DBN", "CCM", "DCM", "CM", "RCTR")
    for i, model in enumerate(models):
        write_run(tmp_path / model, model, test={"ll": -0.3 - 0.01 * i})
    figures(comparisons(find_runs([tmp_path])[0])[0])
    named = {(figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()): figure for figure in drawn}
    for labels in (("Rank", "P(examination)"), ("Predicted P(click)", "Observed click rate")):
        figure = named[labels]
        figure.set_layout_engine("constrained")
        FigureCanvasAgg(figure).draw()
        places = {text.get_text(): text.get_window_extent() for text in figure.legends[0].texts}
        assert len({round(place.y0) for place in places.values()}) > 1
        assert (
            tuple(sorted(places, key=lambda name: (-round(places[name].y0), places[name].x0)))
            == models
        )


def test_files_of_others_are_never_overwritten(tmp_path, capsys, monkeypatch):
    figure = {"per_rank.pdf": b"%PDF"}
    monkeypatch.setattr(
        "clickexp.results.figures.comparison.figures", lambda comparison, label: figure
    )
    write_run(tmp_path / "runs/0", "UBM")
    write_run(tmp_path / "runs/3", "PBM")
    compare([tmp_path / "runs"], with_figures=True)
    written = {file.name for file in (tmp_path / "runs").rglob("*.*") if file.is_file()}
    assert {"comparison.html", "leaderboard.tex", "per_rank.pdf"} <= written
    *_, count, page = capsys.readouterr().out.splitlines()
    assert count.startswith("8 tables and 1 figures in ") and page == str(
        tmp_path / "runs/comparison.html"
    )

    write_run(tmp_path / "runs/1", "DBN", test_set="other")
    compare([tmp_path / "runs"])
    names = {file.name for file in (tmp_path / "runs/tables").iterdir()}
    assert "leaderboard-clicks-2.tex" in names and "leaderboard.tex" not in names
    assert "cannot be ranked" in capsys.readouterr().out

    mine = tmp_path / "runs/tables/leaderboard-clicks-3.tex"
    mine.write_text("mine")
    before = {
        file: file.read_bytes() for file in (tmp_path / "runs").rglob("*.*") if file.is_file()
    }
    write_run(tmp_path / "runs/2", "CM", test_set="third")
    with refuses(UserError, str(mine), "was not written by", "another --output"):
        compare([tmp_path / "runs"])
    assert all(file.read_bytes() == content for file, content in before.items())
    compare([tmp_path / "runs"], output=tmp_path / "elsewhere", metrics=["ppl"])
    assert (tmp_path / "elsewhere/comparison.html").is_file()


def test_an_interrupted_comparison_is_made_again(tmp_path, monkeypatch):
    def stop(file):
        if file.name == "b":
            raise KeyboardInterrupt
        return whole(file)

    write_files(tmp_path, dict(a="1", b="1", c="1"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("clickexp.results.commands.output.whole", stop)
        write_files(tmp_path, dict(a="2", b="2"))
    assert [(tmp_path / name).read_text() for name in "ab"] == ["2", "1"]
    write_files(tmp_path, dict(a="3", b="3"))
    assert [(tmp_path / name).read_text() for name in "ab"] == ["3", "3"] and not (
        tmp_path / "c"
    ).exists()


def test_the_command_reports_an_error_in_one_line(tmp_path, capsys):
    write_json(tmp_path / "0/result.json", {})
    with pytest.raises(SystemExit, match="1"):
        main([str(tmp_path)])
    error = capsys.readouterr().err
    assert error.startswith("clickexp-compare: no finished runs below") and error.count("\n") == 1
    assert not list(tmp_path.glob("*.*"))


def test_help_imports_nothing_heavy():
    code = """
import sys
from clickexp.cli.compare import main
try: main(["--help"])
except SystemExit: print(sorted({"jax", "polars", "numpy", "plotly", "matplotlib", "yaml"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--baseline" in done.stdout and done.stdout.splitlines()[-1] == "[]"


def test_the_command_prints_the_conclusion_the_leaderboard_and_where_it_wrote(
    folder, tmp_path, capsys, monkeypatch, drawn
):
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "more").mkdir()
    options = ["--baseline", "PBM", "--output", str(tmp_path / "out")]
    main([str(folder), *options, str(tmp_path / "more")])  # folders may follow options
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "clicks: 7 runs of 3 configurations on one test set of 50 sessions"
    assert lines[1].startswith("UBM is best in LL (+0.1000 on PBM, p < 0.001)")
    note = (
        "* p < 0.05, ** p < 0.01 against PBM: paired t-test over seeds, corrected by Holm's method."
    )
    assert note in " ".join(lines)
    assert ["UBM", "-0.30**", "(-0.40,", "-0.20)", "1.5000", "0.5000**", "3"] in [
        line.split() for line in lines
    ]
    assert len(lines) < 18 and all(len(line) <= 80 for line in lines[:-2])
    assert lines[-1] == str(tmp_path / "out/comparison.html")
    header = (tmp_path / "out/tables/ll_per_rank.md").read_text().splitlines()[0]
    assert header == "| Model | 1 | 2 |"


def test_a_comparison_of_two_hundred_runs_reads_each_once(tmp_path, monkeypatch, drawn):
    """Forty configurations of five seeds. Tests are against thirty of them; the page has no curve twice."""
    for number in range(40):
        for seed in range(5):
            ll = -0.3 - 0.001 * number - 0.0001 * (seed * 7 % 5)
            folder = tmp_path / f"runs/{number}-{seed}"
            write_run(folder, "UBM", seed, {"ll": ll, "ppl": 1.5}, settings=[("rate", number)])
    opened = Counter()
    read = Run.read.__func__
    monkeypatch.setattr(
        Run, "read", classmethod(lambda cls, at: (opened.update([at]), read(cls, at))[1])
    )
    (comparison,) = compare([tmp_path / "runs"], tmp_path / "out")
    assert len(comparison.groups) == 40 and [*opened.values()] == [1] * 200
    table = (tmp_path / "out/tables/leaderboard.md").read_text().splitlines()
    assert sum(line.startswith("| UBM") for line in table) == 40 and "| UBM, rate=0 |" in table[2]
    assert comparison.tests["ll"].p.shape == (30, 40)
    assert (tmp_path / "out/comparison.html").stat().st_size < 200 * 10_000


def test_a_metric_that_is_asked_for_has_its_table_by_rank(tmp_path):
    for model, start in (("UBM", 2.0), ("PBM", 3.0)):
        vectors = {"click_ppl": [start, start + 1], "sessions": [9, 9]}
        write_run(tmp_path / model, model, test={"click_ppl": start}, per_rank=vectors)
    main([str(tmp_path), "--metrics", "click_ppl"])
    lines = (tmp_path / "tables/click_ppl_per_rank.md").read_text().splitlines()
    assert lines[0] == "| Model | 1 | 2 |"
    assert lines[2:4] == ["| PBM | 3.0000 | 4.0000 |", "| UBM | 2.0000 | 3.0000 |"]


def test_long_names_leave_room_for_numbers(tmp_path, capsys, monkeypatch, drawn):
    monkeypatch.setenv("COLUMNS", "80")
    settings = [(f"a_long_setting_{place}", f"value_{place}") for place in range(6)]
    for run, given in enumerate((settings, settings[:3])):
        write_run(
            tmp_path / f"runs/{run}",
            "DBN",
            1,
            {"ll": -0.25 - run, "ppl": 1.5 + run},
            settings=given,
        )
    main([str(tmp_path / "runs"), "--output", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert (
        all(value in printed for value in ("-0.2500", "-1.2500", "1.5000", "2.5000"))
        and "…" not in printed
    )
    assert sum("value_5" in line for line in printed.splitlines()[3:]) == 1


NAMES = (r"$\write18{id}$", "../../../evil", "=cmd|'/C calc'!A0", r"}\input{x}%&", "</script><img src=x>", "_x",
         "[1cm] a|b", "\x1b]0;t\x07x\ny", "$x")  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """What clickexp-compare writes and prints where names are hostile, in a folder in a folder."""
    folder = tmp_path_factory.mktemp("hostile")
    runs = folder / "in/runs"
    for i, name in enumerate(NAMES):
        test = {"ll": -0.3 - 0.01 * i, "$\\frac$": 0.5, "=1+1": 0.25}
        setting = [("rate", "-0.5"), ("$a_b", "=x|y")][i % 2 :]
        write_run(runs / f"m{i}", name, 1, test, dataset="../../../..", settings=setting)
    write_run(runs / "other", "UBM", 1, {"ll": -0.5}, dataset="/a/b$c$", test_set="other")
    before = {*folder.rglob("*")}
    with pytest.MonkeyPatch.context() as patch:
        printed = []
        patch.setattr(
            "clickexp.results.commands.output.print",
            lambda text, **_: printed.append(text),
            raising=False,
        )
        compare([runs], output=folder / "out/x", with_figures=True)
    return folder, {*folder.rglob("*")} - before, printed


def test_hostile_names_write_nothing_outside(hostile):
    folder, written, printed = hostile
    out = folder / "out/x"
    labels = [slug("../../../.."), slug("/a/b$c$")]
    assert {file for file in written if not file.is_relative_to(out)} == {folder / "out"}
    assert {file.relative_to(out).as_posix() for file in written if file.is_relative_to(out / "tables")} == {
        "tables",
        *(f"tables/{name}-{label}.{suffix}" for name in ("leaderboard", "ll_per_rank")
          for label in labels for suffix in ("csv", "md", "tex")),
        *(f"tables/differences-{labels[0]}.{suffix}" for suffix in ("md", "tex")),
    }  # fmt: skip
    assert {file.suffix for file in written if file.parent == out / "figures"} == {".pdf", ".png"}
    assert not re.search(r"[\x00-\x1f\x7f]", "".join(printed))


def test_hostile_names_in_tables_are_text(hostile):
    folder = hostile[0] / "out/x/tables"
    label = slug("../../../..")
    shown = [
        "".join({"\x1b": "�", "\x07": "�", "\n": " "}.get(sign, sign) for sign in name)
        for name in NAMES
    ]
    text = (folder / f"leaderboard-{label}.csv").read_text()
    rows = list(csv.reader(io.StringIO(text)))
    models = [row[rows[0].index("model")] for row in rows[1:]]
    assert [model.removeprefix("'") for model in models] == shown and models[2].startswith("'=")
    assert not any(cell.lstrip().startswith(("=", "+", "@")) for row in rows for cell in row)
    assert {cell for row in rows for cell in row if cell.startswith("-")} >= {"-0.3", "-0.31"}
    lines = (folder / f"leaderboard-{label}.md").read_text().splitlines()[: 2 + len(NAMES)]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3} and not re.search(
        r"(?<!\\)<img", str(lines)
    )
    tex = (folder / f"leaderboard-{label}.tex").read_text()
    assert set(re.findall(r"\\([A-Za-z]+)", tex)) <= {
        "usepackage", "begin", "end", "centering", "caption", "label", "toprule", "midrule", "bottomrule",
        "uparrow", "mathbf", "underline", "textbackslash", "linewidth", "parbox", "raggedright",
    }  # fmt: skip
    assert (
        rf"\label{{tab:leaderboard-{label}}}" in tex and r"\$\textbackslash{}write18\{id\}\$" in tex
    )
    assert tex.count(r"\\") == 1 + len(NAMES)


def test_hostile_names_in_figures_are_text(hostile, drawn):
    (comparison, _) = comparisons(find_runs([hostile[0] / "in"])[0], metrics=["$\\frac$"])
    figures(comparison)
    texts = [text for figure in drawn for text in figure.findobj(Text)]
    maths = [text.get_text() for text in texts if text._preprocess_math(text.get_text())[1]]
    assert all(text.startswith(r"$\mathdefault") for text in maths)  # ticks of a logarithmic axis
    shown = {text._preprocess_math(text.get_text())[0].strip() for text in texts}
    names = [group.name for group in comparison.groups[:8]]
    assert {*names, "$\\frac$"} <= shown and any(name.startswith("_x") for name in names)


def test_test_sets_never_share_a_file(tmp_path):
    """One is called as the second test set of another would be; others differ in what names of files lack."""
    names = ("clicks", "clicks", "clicks-2", "a/b", "a\\b", slug("a/b"))
    for i, name in enumerate(names):
        write_run(tmp_path / str(i), dataset=name, test_set=str(i), settings=[("rate", i)])
    found = [comparison.name for comparison in comparisons(find_runs([tmp_path])[0])]
    assert len({slug(name) for name in found}) == len(found) == len(names)
    assert sorted(found) == sorted({*names, "clicks-3"})


@pytest.mark.parametrize("name", ["../mine", "{absolute}", "link/mine"])
def test_a_record_that_came_with_the_folder_removes_nothing_outside(name, tmp_path, monkeypatch):
    monkeypatch.setattr("clickexp.results.figures.comparison.figures", lambda comparison, label: {})
    mine, runs = tmp_path / "mine", tmp_path / "runs"
    mine.write_text("mine")
    write_run(runs / "0")
    (runs / "link").symlink_to(tmp_path)
    name = name.format(absolute=mine)
    write_json(runs / ".comparison.json", {"files": [name, 1, "tables"]})
    compare([runs])
    assert mine.read_text() == "mine" and (runs / "comparison.html").is_file()


def test_links_in_the_folder_lead_nothing_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("clickexp.results.figures.comparison.figures", lambda comparison, label: {})
    mine, runs = tmp_path / "mine", tmp_path / "runs"
    mine.write_text("mine")
    write_run(runs / "0")
    (runs / "tables").mkdir()
    for name in ("comparison.html.part", ".comparison.json.part", "tables/leaderboard.csv.part"):
        (runs / name).symlink_to(mine)
    compare([runs])
    assert mine.read_text() == "mine" and "UBM" in (runs / "tables/leaderboard.csv").read_text()
    other = tmp_path / "other"
    write_run(other / "0")
    (other / "tables").symlink_to(tmp_path)
    with refuses(UserError, str(other / "tables"), f"out of {other}", "--output"):
        compare([other])
    assert not (tmp_path / "leaderboard.csv").exists() and not (other / "comparison.html").exists()


def test_a_comparison_that_begins_with_a_run_is_in_a_folder_of_it(tmp_path):
    """The comparison is found no more than before, as it is no run."""
    first, second = write_run(tmp_path / "0"), write_run(tmp_path / "1", "PBM")
    for folders in ([first], [first, second], [first]):
        compare(folders)
        assert (first / "comparison/comparison.html").is_file()
        assert len(find_runs([tmp_path])[0]) == 2
    assert not (first / "tables").exists()
    compare([tmp_path])
    assert (tmp_path / "comparison.html").is_file()


def test_figures_are_drawn_when_asked_for_and_of_one_run_those_of_its_report(tmp_path, drawn):
    references = {"rank-CTR": {"test": {"ppl": 2.0}, "per_rank": {"ppl": [2.0, 1.9]}}}
    per_rank = {"ppl": [1.7, 1.5], "examination": [1.0, 0.5]}
    run = write_run(tmp_path / "0", references=references, per_rank=per_rank)
    compare([run])
    assert not (run / "comparison/figures").exists()
    compare([run], with_figures=True)
    names = {file.stem for file in (run / "comparison/figures").iterdir()}
    assert names == {"perplexity", "examination", "learning", "calibration"}
    labels = drawn[0].axes[0].get_legend_handles_labels()[1]
    assert "rank-CTR" in labels
    compare([run])  # what an earlier comparison drew is of results that may have changed
    assert not [*(run / "comparison/figures").iterdir()]


@pytest.mark.parametrize("part, value", [("model", ""), ("dataset", " "), ("dataset", None)])
def test_results_without_a_name_are_skipped(part, value, tmp_path):
    write_run(tmp_path / "0")
    write_run(tmp_path / "1", **{part: value})
    runs, skipped = find_runs([tmp_path])
    assert len(runs) == 1 and f"result.json is damaged: {part} is {value!r}" in str(skipped[0])


def test_a_configuration_that_refers_to_itself_is_skipped(tmp_path):
    write_run(tmp_path / "0")
    (write_run(tmp_path / "1") / "config.yaml").write_text("model: &m {of: *m}")
    runs, skipped = find_runs([tmp_path])
    assert len(runs) == 1 and str(skipped[0]).endswith(
        "1: its files are written with aliases, which may multiply without end"
    )


def test_one_run_is_one_run(tmp_path, capsys, drawn):
    write_run(tmp_path / "a", per_rank={"ll": [-0.5], "sessions": [1]})
    compare([tmp_path / "a"])
    assert capsys.readouterr().out.startswith(
        "clicks: 1 run of 1 configuration on one test set of 1 session\n"
    )
