"""Numbers follow their uncertainty, conclusions follow the tests, and LaTeX tables fit a page."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from scipy import stats
from small_runs import write_run

from clickexp.results import find_runs
from clickexp.results.comparison import comparisons
from clickexp.results.conclusion import conclusion
from clickexp.results.figures.panels import forest
from clickexp.results.leaderboard import differences, leaderboard, tables
from clickexp.utils.tables.latex import latex
from clickexp.utils.tables.numbers import STARS, p_value, rounded
from clickexp.utils.tables.table import Cell, Table
from clickexp.utils.tables.terminal import fitting

ADJUSTBOX = r"""
\usepackage{booktabs,graphicx}
\IfFileExists{adjustbox.sty}{\usepackage{adjustbox}}{%
  \newsavebox{\wide}
  \newenvironment{adjustbox}[1]{\begin{lrbox}{\wide}}{\end{lrbox}%
    \ifdim\wd\wide>\linewidth \resizebox{\linewidth}{!}{\usebox{\wide}}\else\usebox{\wide}\fi}}
"""
"""The package, or where this machine lacks it what it does to `max width`."""


def test_digits_of_a_column_follow_its_smallest_uncertainty():
    """At most four decimals, or six of differences."""
    values = [-0.332881, -0.33412, 0.25, np.nan]
    assert rounded(values, [0.031, 0.142, 0.0, 0.1]) == [
        ("-0.33", "0.03"), ("-0.33", "0.14"), ("0.25", ""), ("–", ""),
    ]  # fmt: skip
    fine = [0.000031, 0.0014, 0.0, 0.1]
    assert rounded(values, fine) == [
        ("-0.3329", ""), ("-0.3341", "0.0014"), ("0.2500", ""), ("–", ""),
    ]  # fmt: skip
    assert rounded(values, fine, "+", most=6) == [
        ("-0.33288", "0.00003"), ("-0.33412", "0.00140"), ("+0.25000", ""), ("–", ""),
    ]  # fmt: skip


def test_an_uncertainty_of_nothing_is_not_shown():
    assert rounded([0.61618, 0.5], [0.0, 1e-9]) == [("0.6162", ""), ("0.5000", "")]
    assert rounded([0.004, -0.1], [np.nan, np.nan], "+") == [("+0.0040", ""), ("-0.1000", "")]


def test_small_numbers_without_an_uncertainty_show_their_first_digit():
    values = [3e-5, -2e-7, 0.0, 0.12345]
    assert rounded(values, [np.nan] * 4, "+") == [
        ("+0.00003", ""), ("-0.0000002", ""), ("+0.0000", ""), ("+0.1235", ""),
    ]  # fmt: skip
    assert rounded([1e308, -1e-300], [np.nan, np.nan]) == [("1.0000e+308", ""), ("-1e-300", "")]
    assert rounded([1e308, 2.0], [1e300, 0.1]) == [("1.00e+308", "1.00e+300"), ("2.00", "0.10")]
    assert rounded([2e-6, 0.25], [np.nan, 0.0012]) == [("0.000002", ""), ("0.2500", "0.0012")]


def test_intervals_over_one_test_set_leave_a_decimal_for_differences(tmp_path):
    """Half intervals of .012 round to three decimals; the same queries tell models apart by .002."""
    log_probs = -np.random.default_rng(0).random((300, 2))
    for model, gain in (("PBM", 0.0), ("UBM", 0.002)):
        write_run(
            tmp_path / model, model, 1, {"ll": log_probs.mean() + gain}, log_probs=log_probs + gain
        )
    (comparison,) = comparisons(find_runs([tmp_path])[0])
    ubm, pbm = (row[1] for row in leaderboard(comparison).rows)
    assert float(ubm.text) - float(pbm.text) == pytest.approx(0.002, abs=1e-9) and len(
        ubm.text
    ) == len("-0.5010")


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """UBM 0.1 +- 0.01 above PBM in every seed, DBN at PBM's level; nDCG the other way round."""
    folder, rng = tmp_path_factory.mktemp("tested"), np.random.default_rng(0)
    values = {
        model: base + rng.normal(0, 0.01, 5)
        for model, base in (("UBM", -0.3), ("PBM", -0.4), ("DBN", -0.4))
    }
    for model, lls in values.items():
        for seed, ll in enumerate(lls):
            write_run(folder / f"{model}{seed}", model, seed, {"ll": ll, "ndcg@10": -ll})
    return comparisons(find_runs([folder])[0], None, "PBM")[0], values


def test_differences_have_the_interval_of_the_paired_test(tested):
    comparison, values = tested
    low, high = stats.ttest_rel(values["UBM"], values["PBM"]).confidence_interval()
    cells = {row[0]: row[1] for row in differences(comparison).rows}
    assert set(cells) == {"UBM", "DBN"}
    shown = cells["UBM"]
    assert float(shown.text) == pytest.approx(np.mean(values["UBM"] - values["PBM"]), abs=1e-3)
    assert (
        float(shown.deviation.removeprefix("± ")) == pytest.approx((high - low) / 2, rel=0.1)
        and shown.stars == "**"
    )
    assert cells["DBN"].stars == ""


def test_the_conclusion_names_the_best_and_how_sure_it_is(tested):
    comparison, _ = tested
    text = conclusion(comparison)
    assert re.fullmatch(
        r"UBM is best in LL \(\+0\.\d+ on PBM, p < 0.001\); "
        r"(PBM is best in nDCG@10 \(\+0\.\d+ on DBN|DBN is best in nDCG@10 \(\+0\.\d+), "
        r"not significant, p = \d\.\d{3}\)\.",
        text,
    ), text
    ubm = next(group for group in comparison.groups if group.name == "UBM")
    assert re.match(
        r"UBM is best in LL \(\+0\.\d+ on (DBN|PBM), p < 0.001\)", conclusion(comparison, ubm)
    )


def test_metrics_that_the_baseline_lacks_are_held_against_the_next(tmp_path):
    """A ranker has no log-likelihood."""
    write_run(tmp_path / "a", "PBM", 1, {"ndcg@10": 0.5, "ll": -0.3})
    write_run(tmp_path / "b", "UBM", 1, {"ndcg@10": 0.4, "ll": -0.4})
    write_run(tmp_path / "c", "Ranker", 1, {"ndcg@10": 0.9})
    text = conclusion(comparisons(find_runs([tmp_path])[0])[0])
    assert "Ranker is best in nDCG@10 (+0.4000 on PBM" in text
    assert "PBM is best in LL (+0.1000 on UBM)" in text and "–" not in text


def test_a_single_run_has_no_conclusion_and_two_are_not_tested(tmp_path):
    write_run(tmp_path / "a", "UBM", 1, {"ll": -0.3})
    assert conclusion(comparisons(find_runs([tmp_path])[0])[0]) == ""
    write_run(tmp_path / "b", "PBM", 1, {"ll": -0.4})
    assert conclusion(comparisons(find_runs([tmp_path])[0])[0]) == (
        "UBM is best in LL (+0.1000 on PBM). Nothing is tested: none of 2 runs have values per query, which "
        "keep_values=true keeps of clicks and labelled lists, and a test over seeds needs two per row."
    )
    log_probs = np.full((3, 2), -0.4)
    write_run(tmp_path / "c", "DBN", 1, {"ll": -0.4}, log_probs=log_probs)
    text = conclusion(comparisons(find_runs([tmp_path])[0])[0])
    assert "Nothing is tested: 1 of 3 runs have values per query" in text


EXAMINATION = [{"position": 1, "relative": 1.0}, {"position": 2, "relative": 0.7}]
"""What a model says of its users."""


def test_parameters_are_to_be_taken_from_the_model_that_fits_users_best(tmp_path):
    """Every model of users is in one list; not named are other settings of the best, and click rates."""
    rng = np.random.default_rng(0)
    models = {"UBM": -0.30, "CM": -0.301, "CCM": -0.302, "PBM": -0.4, "DBN": -0.5, "RCTR": -0.6}
    for model, level in models.items():
        for seed, ll in enumerate(level + rng.normal(0, 0.01, 5)):
            rates = {"shared": [{"parameter": "ctr", "position": 1, "value": 0.5}]}
            of_users = rates if model == "RCTR" else {"propensity": EXAMINATION}
            write_run(tmp_path / f"{model}{seed}", model, seed, {"ll": ll}, **of_users)
    for seed in range(5):
        write_run(
            tmp_path / f"flat{seed}", "UBM", seed, {"ll": -0.6}, settings=[("rate", 1)],
            propensity=EXAMINATION,
        )  # fmt: skip
    text = conclusion(comparisons(find_runs([tmp_path])[0])[0])
    assert text.endswith(
        " Take parameters from UBM: clicks speak against PBM, DBN, whose intervals do not show it, and not "
        "significantly against CM, CCM."
    ), text


def test_runs_without_a_test_say_nothing_of_whose_parameters_to_take(tmp_path):
    write_run(tmp_path / "a", "UBM", 1, {"ll": -0.3}, propensity=EXAMINATION)
    shared = [{"parameter": "continuation", "value": 0.8, "low": 0.7, "high": 0.9}]
    write_run(tmp_path / "b", "DBN", 1, {"ll": -0.4}, shared=shared)
    text = conclusion(comparisons(find_runs([tmp_path])[0])[0])
    assert text.startswith("UBM is best in LL (+0.1000 on DBN). Nothing is tested"), text


def test_a_table_that_is_too_wide_says_how_many_of_its_columns_are_shown():
    table = Table(["Name", *map(str, range(12))], [["row", *["0.1234"] * 12]])
    shown = fitting(table, Console(width=40))
    assert shown.caption == f"the first {len(shown.columns)} of 13 columns"


def test_the_conclusion_shows_a_small_difference_by_its_first_digit(tmp_path):
    write_run(tmp_path / "a", "UBM", 1, {"ll": -0.300000})
    write_run(tmp_path / "b", "PBM", 1, {"ll": -0.300004})
    text = conclusion(comparisons(find_runs([tmp_path])[0])[0])
    assert text.startswith("UBM is best in LL (+0.000004 on PBM). Nothing is tested")


TABLES = {
    "six metrics": (6, ["UBM", "PBM", "DBN"]),
    "long names": (
        4,
        ["UBM, learning_rate=0.1, batch_size=1000, attraction=deep_cross, dropout=0.25", "PBM"],
    ),
    "twenty ranks": (20, ["UBM", "Mixture"]),
    "two": (2, ["UBM", "PBM"]),
}


def table_of(kind):
    metrics, names = TABLES[kind]
    cells = [Cell("-0.33288", "± 0.00003", 1, "**")] * metrics
    rows = [(name, *cells) for name in names]
    return Table(["Model", *["nDCG@10 ↑"] * metrics], rows, "A table.")


def test_names_have_classes_without_modules_and_long_ones_are_in_the_legend(tmp_path):
    """Beside an axis there is room for two lines."""
    classes = ("clickexp.parameters.HashedTable", "clickexp.parameters.deep.DeepCrossTower")
    for seed, name in enumerate(classes):
        settings = [("attraction._target_", name), ("path", "/srv/" + "long/" * 9)][: 1 + seed]
        write_run(tmp_path / str(seed), "PBM", 1, {"ll": -0.5 - seed / 10}, settings=settings)
    (one,) = comparisons(find_runs([tmp_path])[0])
    first, second = (group.name for group in one.groups)
    assert first == "PBM, attraction=HashedTable"
    assert second.startswith("PBM, attraction=DeepCrossTower, path=/srv/long/")
    for name, legend in (("PBM, attraction=HashedTable", []), (second, [second])):
        axes = Figure().subplots()
        forest([(name, 0, 0.1, 0.05, True)], "LL", True, axes)
        beside = " ".join(tick.get_text() for tick in axes.get_yticklabels()).replace("\n", " ")
        assert axes.get_legend_handles_labels()[1] == legend
        assert beside == ("" if legend else name)


@pytest.mark.parametrize("kind", TABLES)
def test_latex_tables_of_many_columns_span_the_page(kind):
    metrics, names = TABLES[kind]
    tex = latex(table_of(kind), "tab:a")
    assert tex.count(r"\pm 0.00003") == metrics * len(names)
    assert (r"\begin{table*}" in tex) == (metrics > 4)


@pytest.mark.parametrize("columns", ["onecolumn", "twocolumn"])
def test_latex_tables_compile_without_overfull_boxes(columns, tested, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("needs TeX: bash scripts/install_tools.sh")
    texts = [text for name, text in tables(tested[0]).items() if name.endswith(".tex")]
    body = "\n".join(
        [*texts, *(latex(table_of(kind), f"tab:{place}") for place, kind in enumerate(TABLES))]
    )
    (tmp_path / "a.tex").write_text(
        f"\\documentclass[{columns}]{{article}}\n{ADJUSTBOX}"
        f"\\begin{{document}}\n{body}\n\\end{{document}}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout


@pytest.mark.parametrize(
    "p, text",
    [
        (0.0123, "0.012"), (0.00999, "0.00999"), (0.0099996, "0.0099996"), (0.01, "0.010"), (0.0499, "0.0499"),
        (0.0501, "0.050"), (0.2, "0.200"), (0.0004, "< 0.001"),
    ],
)  # fmt: skip
def test_p_values_are_shown_on_the_side_of_a_limit_where_their_stars_are(p, text):
    """Not "p = 0.010" beside the stars of p < 0.01."""
    assert p_value(p) == text
    shown = float(text.removeprefix("< ")) if text[0] != "<" else 0.0
    assert [shown < limit for limit in STARS] == [p < limit for limit in STARS]
