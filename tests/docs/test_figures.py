"""Figures that pages of text repeat are those of the tables that they come from."""

import re

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
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


@pytest.mark.parametrize(
    "cells", rows(DESIGN, "rows | ids | clickexp"), ids=lambda cells: "-".join(cells[:2])
)
def test_the_throughput_of_the_design_is_that_of_the_benchmarks(cells):
    size, order, later, first, peer, ratio, first_ratio = cells
    first_epoch, later_epochs, loader, _, first_to_loader, later_to_loader, _ = SPEEDS[
        f"{ORDERS[order]} {size}"
    ]
    for shown, measured in ((later, later_epochs), (first, first_epoch), (peer, loader)):
        digits = shown.removesuffix(" M")
        assert digits == rounded(measured, digits)
    assert (ratio, first_ratio) == (rounded(later_to_loader, "1"), rounded(first_to_loader, "1"))


def test_the_readme_has_the_same_ratios():
    million, ten = (rounded(SPEEDS[f"shuffled {size}"][5], "1") for size in ("1e6", "1e7"))
    assert (
        f"{million} times the sessions per second of CLAX 0.1.1 at a million pairs, {ten} times at ten"
        in README
    )
    assert f"takes {ten} times as long per session" in plain(DESIGN)


def test_steps_of_posteriors_take_as_long_as_in_the_table():
    ratios = [
        float(cells[3])
        for cells in rows(BENCHMARKS, "rows             | ms a step, point estimates")
    ]
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


def examination_by_method():
    """Cells of the table of the page on examination by order and impressions."""
    found = rows(EXAMINATION, "order, impressions per pair")
    return {cells[0]: cells[1:] for cells in found}


def test_examination_in_the_readme_is_that_of_the_table():
    table = examination_by_method()
    numbers, posteriors, counted, _, hardly = table["random, 40"]
    text = plain(README)
    assert f"estimate examination {posteriors} wrong in random order" in text
    assert (
        f"estimates {numbers}, EM {counted} with PyClick's prior counts and {hardly} with" in text
    )
    assert f"{table['medium, 40'][1]} under a policy" in text
    assert "94 to 95% of the 95% intervals hold in random order" in text
    assert "94 to 95% of the 95% intervals" in plain(EXAMINATION)


def test_tables_of_posteriors_are_those_of_the_benchmarks():
    table = examination_by_method()
    measured = {
        cells[0]: [cell.split(",")[0] for cell in cells[1:]]
        for cells in rows(BENCHMARKS, "order, impressions | posterior")
    }
    assert table.keys() == measured.keys() and len(table) == 6
    for place, (numbers, posterior, counted, default, hardly) in table.items():
        assert [posterior, counted, default, hardly] == [measured[place][at] for at in (0, 1, 3, 4)]
        assert re.fullmatch(r"[\d.]+%", numbers)
    found = {
        (cells[0], cells[1]): cells[2:] for cells in rows(BENCHMARKS, "user, policy | impressions")
    }
    assert found["PBM, random", "40"][0] == table["random, 40"][1]
    wrong, *_ = found["PBM, medium", "40"]
    own, numbers = re.fullmatch(r"([\d.]+%) \(point estimates ([\d.]+%)\)", wrong).groups()
    assert (own, numbers) == (table["medium, 40"][1], table["medium, 40"][0])
    text = plain(DESIGN)
    assert (
        f"a point estimate is {numbers} wrong in the relative examination of PBM, and this prior {own}"
        in text
    )


def test_figures_of_the_default_run_are_those_it_printed():
    printed = (ROOT / "docs/data/start.txt").read_text()
    ll = re.search(r"^ll ↑ +(\S+)", printed, re.MULTILINE)[1]
    ndcg = re.search(r"^ndcg ↑ .* (\S+)$", printed, re.MULTILINE)[1]
    assert f"to {ll} and nDCG@10 from 0.845 to {float(ndcg):.3f}." in plain(DESIGN)


def test_the_table_of_rankers_is_that_of_the_benchmarks():
    page = (ROOT / "docs/howto/learning-to-rank.md").read_text()
    shown, measured = (
        rows(text, "method | nDCG@10 | vs softmax | relative") for text in (page, BENCHMARKS)
    )
    assert shown == measured and len(shown) == 24 + 2
    ours = {cells[0].strip("`") for cells in shown if not cells[0].startswith("LightGBM")}
    assert ours == {file.stem for file in (ROOT / "conf/method").glob("*.yaml")}
    trusting = {
        cells[0]: cells[1]
        for cells in rows(BENCHMARKS.split("Trust bias (")[1], "method | nDCG@10")
    }
    named = ("softmax_affine_true", "softmax_ips_true", "softmax_ips", "softmax")
    affine, true, harvested, naive = (trusting[f"`{name}`"].lstrip("0") for name in named)
    text = f"has {affine}, inverse weights of true click rates {true}, harvested ones {harvested}, none {naive}."
    assert text in plain(page)


def options(group):
    return {file.stem for file in (ROOT / "conf" / group).glob("*.yaml")}


def quoted(cells):
    return re.findall(r"`([\w@]+)`", cells)


VARIANTS = {"cm_marginal", "embedding_even", "position_low", "position_middle", "none"}
"""Options that are another one with another setting, or the absence of a correction."""


def test_the_readme_counts_what_there_is():
    formats = options("dataset") - {"letor", "simulated", "prepared"}
    towers, models = (options(group) - VARIANTS for group in ("parameter", "model"))
    metrics = len(set(metric_names()))
    assert (
        f"{len(models)} models, {len(towers)} towers" in README
        and f"{len(formats)} log formats" in README
    )
    assert f"{metrics} metrics per rank and per query" in README
    assert (
        f"{len(options('loss'))} losses, {len(options('debias') - VARIANTS)} corrections" in README
    )


def test_tables_of_the_readme_and_of_the_start_list_every_option():
    readme, start = ((ROOT / page).read_text() for page in ("README.md", "docs/index.md"))
    for group in ("model", "dataset"):
        listed = [name for cells in rows(readme, f"`{group}=` |") for name in quoted(cells[0])]
        assert sorted(listed) == sorted(options(group) - VARIANTS)
    cells = {
        name: second for first, second in rows(start, "group | options") for name in quoted(first)
    }
    assert set(quoted(cells["model"])) == options("model") and set(
        quoted(cells["dataset"])
    ) == options("dataset")
    assert set(quoted(cells["ROLE"])) == options("parameter") - VARIANTS


def metric_names():
    """Names in the tables of the page of metrics, without cutoffs and ranges."""
    page = (ROOT / "docs/metrics.md").read_text().split("\n## ")
    tables = [part for part in page if "| name | definition" in part]
    return [
        name.partition("@")[0]
        for part in tables
        for cells in rows(part, "name |")
        for name in quoted(cells[0])
    ]


def test_the_page_of_metrics_has_every_group_and_name():
    page = (ROOT / "docs/metrics.md").read_text()
    groups = {cells[0].strip("`") for cells in rows(page, "group | metrics")}
    assert groups | {"all"} == options("metric")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        every = "[click,calibration,cold_start,ranking_all,counterfactual,pairs,truth]"
        config = compose("config", [f"metric={every}"])["metric"]
    kinds = ("click", "test", "ranking", "counterfactual", "truth")
    metrics = {name: instantiate(node) for kind in kinds for name, node in config[kind].items()}
    found = {
        f"{name}{suffix}".partition("@")[0]
        for name, metric in metrics.items()
        for suffix in metric.suffixes
    }
    assert sorted(metric_names()) == sorted(found | {"loss"})


def test_the_example_of_cacm_is_in_the_table_of_context():
    page = (ROOT / "docs/howto/session-context.md").read_text()
    text = plain((ROOT / "scripts/pages/models.yaml").read_text())

    def ll(model, context):
        """Of the first row with a context from the model's on."""
        return re.search(rf"^\| {model} .*?\| {context} \| (\S+)", page, re.MULTILINE | re.DOTALL)[
            1
        ]

    cacm, ncm = (
        ll(f"{name}, posteriors of 8 numbers", own)
        for name, own in (("CACM", "its own"), ("NCM", "none"))
    )
    assert f"log-likelihood is {cacm} with posteriors of 8 numbers" in text
    assert (
        f"no context {ncm}, that of UBM {ll('UBM', 'none')} and with `+context=both` {ll('UBM', 'both')}."
        in text
    )


def test_rankers_under_other_biases_are_those_of_the_benchmarks():
    found = {cells[0]: cells[1:] for cells in rows(BENCHMARKS, "method | mild") if cells[0]}
    text = plain((ROOT / "docs/howto/learning-to-rank.md").read_text())
    for at, sentence in (
        (0, "has {} and PBM {} in place of {};"),
        (6, ", {} and {} in place of {} ("),
    ):
        values = [found[f"`{name}`"][at].lstrip("0") for name in ("softmax_ips", "pbm", "softmax")]
        assert sentence.format(*values) in text
