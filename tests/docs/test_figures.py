"""Figures that pages of text repeat are those of the tables that they come from."""

import re

import pytest
from places import ROOT

BENCHMARKS = (ROOT / "scripts/bench/README.md").read_text()
DESIGN = (ROOT / "docs/design.md").read_text()
README = " ".join((ROOT / "README.md").read_text().split())
EXAMINATION = (ROOT / "docs/data/examination.md").read_text()


def rows(text, header):
    """Cells of the table whose header starts so."""
    table = text[text.index(f"| {header}") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table[2:]]


def plain(text):
    return " ".join(text.split())


def rounded(value, like):
    """A number in as many decimals, or significant digits, as another text of it has."""
    decimals = len(like.partition(".")[2])
    return f"{float(value):.{decimals}f}"


ORDERS = {"scattered": "shuffled", "in order of popularity": "zipf"}
SPEEDS = {cells[0]: cells[1:] for cells in rows(BENCHMARKS, "rows | ours, first epoch")}


@pytest.mark.parametrize("cells", rows(DESIGN, "rows | ids | clickexp"), ids=lambda cells: "-".join(cells[:2]))
def test_the_throughput_of_the_design_is_that_of_the_benchmarks(cells):
    size, order, later, first, peer, ratio, first_ratio = cells
    first_epoch, later_epochs, loader, _, first_to_loader, later_to_loader, _ = SPEEDS[f"{ORDERS[order]} {size}"]
    for shown, measured in ((later, later_epochs), (first, first_epoch), (peer, loader)):
        digits = shown.removesuffix(" M")
        assert digits == rounded(measured, digits)
    assert (ratio, first_ratio) == (rounded(later_to_loader, "1"), rounded(first_to_loader, "1"))


def test_the_readme_has_the_same_ratios():
    million, ten = (rounded(SPEEDS[f"shuffled {size}"][5], "1") for size in ("1e6", "1e7"))
    assert f"{million} times the sessions per second of CLAX 0.1.1 at a million pairs, {ten} times at ten" in README
    assert f"takes {ten} times as long per session" in plain(DESIGN)


def test_steps_of_posteriors_take_as_long_as_in_the_table():
    ratios = [float(cells[3]) for cells in rows(BENCHMARKS, "rows             | ms a step, numbers")]
    low, high = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    assert plain(DESIGN).count(f"{low} to {high} times") == 2


def test_fits_beside_clax_are_those_of_the_tables():
    tables = BENCHMARKS.split("**Fit, clicks of ")[1:]
    fits = [cells for table in tables for cells in rows(table, "model         |  CLAX ll")]
    differences, ours, theirs = ([float(cells[at]) for cells in fits] for at in (11, 9, 4))
    assert min(differences) >= 0 and len(fits) == 2 * 11
    text = plain(DESIGN)
    assert f"by up to {max(differences):.4f}) in {min(ours):.0f} to {max(ours):.0f} epochs" in text
    assert f"takes {min(theirs):.0f} to {max(theirs):.0f}." in text


def test_examination_in_the_readme_is_that_of_the_table():
    (sparse,) = (cells[1:] for cells in rows(EXAMINATION, "impressions per pair") if cells[0] == "40")
    numbers, counted, posteriors = sparse
    assert f"(40 impressions per pair) {posteriors} wrong" in README
    assert f"table of numbers is {numbers} and expectation-maximisation {counted} wrong" in README
    assert "93 to 94% of the 95% intervals" in README and "93 to 94% of the 95% intervals" in EXAMINATION


def test_tables_of_posteriors_are_those_of_the_benchmarks():
    found = {(cells[0], cells[1]): cells[2:] for cells in rows(BENCHMARKS, "user, policy | impressions")}
    for impressions, *_, posteriors in rows(EXAMINATION, "impressions per pair"):
        assert found["PBM, random", impressions][0] == posteriors
    wrong, _, _, covered, *_ = found["PBM, medium", "40"]
    own, numbers = re.fullmatch(r"([\d.]+%) \(numbers ([\d.]+%)\)", wrong).groups()
    text = plain(DESIGN)
    assert f"a table of numbers is {numbers} wrong in the relative examination of PBM, and this prior {own}" in text
    assert f"{100 * float(covered):.0f}% of them hold the truth" in text


def test_figures_of_the_default_run_are_those_it_printed():
    printed = (ROOT / "docs/data/start.txt").read_text()
    ll = re.search(r"^ll ↑ +(\S+)", printed, re.MULTILINE)[1]
    ndcg = re.search(r"^ndcg ↑ .* (\S+)$", printed, re.MULTILINE)[1]
    assert f"to {ll} and nDCG@10 from 0.845 to {float(ndcg):.3f}." in plain(DESIGN)


def test_the_table_of_rankers_is_that_of_the_benchmarks():
    page = (ROOT / "docs/howto/learning-to-rank.md").read_text()
    shown, measured = (rows(text, "method | nDCG@10 | vs softmax | relative") for text in (page, BENCHMARKS))
    assert shown == measured and len(shown) == 24
    methods = {file.stem for file in (ROOT / "conf/method").glob("*.yaml")}
    assert {cells[0].strip("`") for cells in shown} == methods
    trusting = {cells[0]: cells[1] for cells in rows(BENCHMARKS.split("Trust bias (")[1], "method | nDCG@10")}
    named = ("softmax_affine_true", "softmax_ips_true", "softmax_ips", "softmax")
    affine, true, harvested, naive = (trusting[f"`{name}`"].lstrip("0") for name in named)
    text = f"has {affine}, inverse weights of true click rates {true}, harvested ones {harvested}, none {naive}."
    assert text in plain(page)
