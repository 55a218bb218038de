"""The page of a run: what a reader finds there, whatever the run was."""

import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from hydra import initialize_config_dir
from matplotlib.backends.backend_svg import FigureCanvasSVG
from small_runs import write_run

from clickexp.experiment.conf import CONF
from clickexp.experiment.differences import changed_settings, command_of
from clickexp.results.figures.drawing import drawing
from clickexp.results.figures.run import run_figures
from clickexp.results.loading import find_runs
from clickexp.results.pages.write import write_report
from clickexp.runs.run import Run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REFERENCES = {
    "rank-CTR": {"test": {"ll": -0.7, "ppl": 2.0}, "per_rank": {"ppl": [2.2, 1.8]}},
    "true user": {
        "test": {"ll": -0.4, "ppl": 1.4},
        "per_rank": {"ppl": [1.5, 1.3], "examination": [0.9, 0.4]},
    },
}
RANKS = {"ppl": [1.7, 1.5], "examination": [1.0, 0.5], "sessions": [50, 40]}
GROUPS = {"clicks": ["ll", "ppl"], "ranking": ["ndcg@1", "ndcg@10"]}
TEST = {"ll": -0.51234, "ppl": 1.6, "ndcg@1": 0.25, "ndcg@10": 0.75}


@pytest.fixture
def unrendered(monkeypatch):
    """Figures stay empty: to render them takes most of the time of a report."""
    monkeypatch.setattr(
        FigureCanvasSVG, "print_svg", lambda _, file, **__: file.write(b"<svg></svg>")
    )


def report(folder, changed=(("seed", "3", 0),), command="clickexp seed=3", **result):
    usual = {"test": TEST, "references": REFERENCES, "per_rank": RANKS, "groups": GROUPS}
    write_run(folder, "UBM", 3, **usual | result)
    return write_report(find_runs([folder])[0][0], changed, command)[0]


class Rows(HTMLParser):
    """Cells of all rows of all tables."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.inside = [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.inside = tag in ("td", "th")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def test_the_page_has_the_result_with_directions_beside_references(tmp_path, unrendered):
    text = report(tmp_path / "run").read_text()
    rows = Rows(text).rows
    assert ["clicks", "UBM", "rank-CTR", "true user", "validation"] in rows
    assert ["Log-likelihood (ll) ↑", "-0.5123", "-0.7000", "-0.4000", "-0.5123"] in rows
    assert ["Perplexity (ppl) ↓", "1.6000", "2.0000", "1.4000", ""] in rows
    assert ["ranking", "@1", "@10"] in rows and ["nDCG ↑", "0.2500", "0.7500"] in rows
    assert "67% of the way from rank-CTR to the true user" in text  # (2 - 1.6) / (2 - 1.4)
    assert ["seed", "3", "0"] in rows and "<code>clickexp seed=3</code>" in text
    assert ["2", "1.5000", "0.5000", "40", "1.8000", "1.3000", "0.4000"] in rows


def test_settings_are_as_options_are_written_and_seconds_as_on_the_terminal(tmp_path, unrendered):
    tags = ("tags", "[o'brien]", ["d'arcy", 2])
    changed = [("logger", "jsonl", ["jsonl", "wandb"]), ("report", "false", True), tags]
    train = {"epochs": 3, "seconds": 2.5, "training_seconds": 2.0, "compile_seconds": 0.5}
    text = report(tmp_path / "run", changed, train=train).read_text()
    rows = {*map(tuple, Rows(text).rows)}
    assert {("logger", "jsonl", "[jsonl, wandb]"), ("report", "false", "true")} <= rows
    assert ("tags", "[o'brien]", "[d'arcy, 2]") in rows
    assert "3 epochs in 2.0 s (+ 0.5 s compiling)" in text


def test_warnings_of_the_run_stand_above_its_result(tmp_path, unrendered):
    text = report(tmp_path / "run", warnings=["a < b in few lists", "short intervals"]).read_text()
    assert "<li>a &lt; b in few lists</li><li>short intervals</li>" in text
    assert text.index("short intervals") < text.index("<h2>Result</h2>")
    assert "<h2>Warnings" not in report(tmp_path / "other").read_text()


def test_without_a_true_user_the_gain_over_rank_ctr_is_named(tmp_path, unrendered):
    text = report(tmp_path / "run", references={"rank-CTR": REFERENCES["rank-CTR"]}).read_text()
    assert "a gain of 40.0% of the perplexity above 1" in text


def test_intervals_of_the_metrics_are_shown(tmp_path, unrendered):
    rows = Rows(report(tmp_path / "run", intervals={"ll": [-0.52, -0.5]}).read_text()).rows
    assert [
        "Log-likelihood (ll) ↑",
        "-0.5123",
        "-0.520 to -0.500",
        "-0.7000",
        "-0.4000",
        "-0.5123",
    ] in rows


def test_shared_parameters_have_their_intervals_beside_the_truth(tmp_path, unrendered):
    shared = [
        {
            "parameter": "examination",
            "position": 1,
            "relative": 1.0,
            "relative_low": 1.0,
            "relative_high": 1.0,
        },
        {
            "parameter": "examination",
            "position": 2,
            "relative": 0.5,
            "relative_low": 0.4,
            "relative_high": 0.625,
        },
        {"parameter": "continuation", "position": None, "low": 0.7, "high": 0.8, "relative": None},
    ]
    missing = dict.fromkeys(("last_click", "low", "high", "relative_low", "relative_high"))
    file = report(tmp_path / "run", shared=[{**missing, "value": 0.75, **each} for each in shared])
    rows = Rows(file.read_text()).rows
    assert ["examination", "2", "0.7500", "", "0.5000", "0.40 to 0.62"] in rows
    assert ["continuation", "", "0.7500", "0.700 to 0.800", "", ""] in rows  # no last click
    panels = run_figures(find_runs([tmp_path / "run"])[0][0])["examination"]
    figure = drawing(panels)
    handles = dict(zip(*reversed(figure.axes[1].get_legend_handles_labels()), strict=True))
    assert handles["UBM"].get_ydata().tolist() == [1, 0.5]
    true = handles["true user"]
    assert true.get_ydata().tolist() == pytest.approx([1, 0.4 / 0.9])
    (bars,) = figure.axes[1].collections
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [
        [1, 1],
        pytest.approx([0.4, 0.625]),
    ]


def test_layouts_have_curves_of_their_own_and_no_mean(tmp_path, unrendered):
    """A mean over layouts is the curve of none."""
    points = [
        {"position": position, "relative": relative, "layout": {"device": device}}
        for device, curve in {"phone": [1.0, 0.4], "desktop": [0.9, 0.7]}.items()
        for position, relative in enumerate(curve, 1)
    ]
    text = report(tmp_path / "run", propensity=points).read_text()
    assert "each rank of each layout" in text and "mean over the test sessions" not in text
    (axes,) = drawing(run_figures(find_runs([tmp_path / "run"])[0][0])["examination"]).axes
    curves = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert {"device phone": [1.0, 0.4], "device desktop": [0.9, 0.7]}.items() <= curves.items()
    assert axes.get_ylabel().split() == "Examination relative to rank 1 of device phone".split()


def test_examination_without_ratios_promises_none(tmp_path, unrendered):
    text = report(tmp_path / "run", per_rank={"examination": [1.0, 0.7]}).read_text()
    assert "mean over the test sessions." in text and "relative to rank 1" not in text


def test_click_rates_of_few_lists_are_not_drawn(tmp_path, unrendered):
    """Those of a handful of lists are chance."""
    often, seldom = {"shown": [200, 150], "clicks": [50, 30]}, {"shown": [4], "clicks": [3]}
    fading = {"shown": [200, 150, 99], "clicks": [40, 15, 90]}
    rates = {"length of list": {"1": seldom, "2": often, "3": fading}}
    text = report(tmp_path / "run", click_rates=rates).read_text()
    assert "click_rates_by_length_of_list" in drawn(text)
    figures = run_figures(find_runs([tmp_path / "run"])[0][0])
    (axes,) = drawing(figures["click_rates_by_length_of_list"]).axes
    curves = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert curves == {
        "length of list 2": [0.25, 0.2],
        "length of list 3": pytest.approx([0.2, 0.1, np.nan], nan_ok=True),
    }
    assert axes.get_ylabel() == "Click rate\n(at least 100 impressions)"
    rates = {"length of list": {"1": seldom, "2": often}}
    text = report(tmp_path / "other", click_rates=rates).read_text()
    assert "click_rates_by_length_of_list" not in drawn(text)


def test_ranges_of_few_documents_have_no_gain_over_the_reference(tmp_path, unrendered):
    """A perplexity of a handful of documents is chance; their shares are counts."""

    def cold(*documents):
        ranges = {"from": [0, 1, 6, 51], "documents": documents, "clicks": [1, 10, 50, 60]}
        return {"cold": {**ranges, "ppl": [1.9, 1.5, 1.6, 1.7]}}

    rank_ctr = REFERENCES["rank-CTR"] | {"curves": cold(3, 100, 700, 99)}
    rank_ctr["curves"]["cold"]["ppl"] = [2.0, 2.0, 2.0, 2.0]
    curves, references = cold(3, 100, 700, 99), {"rank-CTR": rank_ctr}
    text = report(tmp_path / "run", curves=curves, references=references).read_text()
    assert "fewer than 100 test documents" in text
    gains, shares = drawing(run_figures(find_runs([tmp_path / "run"])[0][0])["cold_start"]).axes
    expected = [np.nan, 100 * (2.0 - 1.5), 100 * (2.0 - 1.6), np.nan]
    np.testing.assert_allclose(gains.lines[0].get_ydata(), expected)
    np.testing.assert_allclose(shares.lines[0].get_ydata(), np.array([3, 100, 700, 99]) / 902)
    assert gains.get_xlim()[0] < 0 and gains.get_xlim()[1] > 3  # all ranges have their place
    text = report(tmp_path / "one", curves=cold(0, 99, 0, 700), references=references).read_text()
    assert "cold_start" not in drawn(text)


def drawn(text):
    """Names of the figures of a page."""
    labels = re.findall(r'<div class="panels" role="img" aria-label="([^:]+):', text)
    return [label.lower().replace(" ", "_") for label in labels]


def test_figures_are_in_the_page_which_refers_to_nothing_outside(tmp_path):
    file = report(tmp_path / "run")
    assert not (tmp_path / "run/figures").exists()
    text = file.read_text()
    assert drawn(text) == ["perplexity", "examination", "learning", "calibration"]
    assert f"clickexp-compare {tmp_path}/run --figures" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    panels = [part.count("<svg ") for part in text.split('<div class="panels"')[1:]]
    assert panels == [2, 1, 1, 1]  # small screens lay those of a figure below one another
    assert "<script" not in text and "@import" not in text
    assert not re.findall(r'(?:src|href)="(?!#|data:|[a-z]+-)[^"]*"', text)


@pytest.mark.parametrize(
    "result, figures",
    [
        (
            {
                "per_rank": {},
                "curves": {},
                "references": {},
                "test": {"ndcg@10": 0.5},
                "groups": {},
            },
            ["learning"],
        ),
        ({"references": {}}, ["calibration", "examination", "learning", "perplexity"]),
        ({"curves": {}, "epochs": 1}, ["examination", "learning", "perplexity"]),
    ],
)
def test_a_run_with_less_has_less_to_look_at(result, figures, tmp_path, unrendered):
    """Rankers without click metrics, results without references, a single pass of counting."""
    text = report(tmp_path / "run", changed=(), **result).read_text()
    assert sorted(drawn(text)) == figures
    assert "all settings have their defaults" in text and "nan" not in text


def test_rankers_have_their_ranking_beside_random_order_and_their_propensities(
    tmp_path, unrendered
):
    weighting = {
        "values": [1.0, 0.6, None],
        "low": [1.0, 0.5, None],
        "high": [1.0, 0.7, None],
        "source": "harvest",
    }
    result = {
        "test": {"loss": 0.3, "ndcg@1": 0.25, "ndcg@10": 0.75},
        "groups": {"loss": ["loss"], "ranking": ["ndcg@1", "ndcg@10"]},
        "references": {"random order": {"test": {"ndcg@1": 0.2, "ndcg@10": 0.5}, "per_rank": {}}},
        "per_rank": {},
        "curves": {},
        "weighting": weighting,
    }
    text = report(tmp_path / "run", **result).read_text()
    rows = Rows(text).rows
    assert "nDCG@10 0.7500 on the test set, 0.5000 in random order." in text
    assert ["nDCG ↑", "0.2500", "0.7500"] in rows and [
        "nDCG, random order",
        "0.2000",
        "0.5000",
    ] in rows
    assert {*drawn(text)} == {"learning", "propensities"}
    run = find_runs([tmp_path / "run"])[0][0]
    (axes,) = drawing(run_figures(run)["propensities"]).axes
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1, 1], [2, 0.6]])


@pytest.mark.parametrize("points", [[], [{"position": 1, "relative": 1.0}]])
def test_models_without_examination_have_no_picture_of_it(points, tmp_path, unrendered):
    text = report(
        tmp_path / "run", per_rank=RANKS | {"examination": [1.0, 1.0]}, propensity=points
    ).read_text()
    assert {*drawn(text)} == {"calibration", "learning", "perplexity"}
    assert "How likely users look" not in text


def test_names_of_others_are_text(tmp_path, unrendered):
    text = report(
        tmp_path / "run", dataset="<b>logs</b>", command="clickexp dataset.name='<b>'"
    ).read_text()
    assert "<b>" not in text and "&lt;b&gt;logs&lt;/b&gt;" in text


@pytest.mark.nightly
@pytest.mark.parametrize("width, scheme", [(1280, "light"), (400, "dark")])
def test_nothing_is_cut_in_a_browser(width, scheme, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: bash scripts/install_tools.sh")
    file = report(tmp_path / "run")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        wrong = []
        page.on("console", lambda message: wrong.append(message.text))
        page.on(
            "request",
            lambda request: wrong.append(request.url) if request.url.startswith("http") else None,
        )
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".panels[role=img]").count() == 4
        colors = page.evaluate(
            "[...document.querySelectorAll('svg text')].map((text) => getComputedStyle(text).fill)"
        )
        assert set(colors) == {"rgb(27, 31, 36)" if scheme == "light" else "rgb(232, 235, 239)"}
        page.add_style_tag(content=".scroll { overflow: visible !important; }")
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 700, "height": 900})  # a page without its margins
        assert page.evaluate("document.documentElement.scrollWidth") <= 700
        assert wrong == []
        browser.close()


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_reports_nothing_on_a_screen_and_on_paper(scheme, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    package = "axe_playwright_python.sync_playwright"
    axe = pytest.importorskip(package, reason="needs axe-playwright-python").Axe()
    if CHROMIUM is None:
        pytest.skip("needs Chromium: bash scripts/install_tools.sh")
    shared = {
        "parameter": "examination",
        "position": 1,
        "last_click": None,
        "value": 0.5,
        "low": 0.4,
        "high": 0.6,
    }
    shared |= dict.fromkeys(("relative", "relative_low", "relative_high"))
    file = report(tmp_path / "run", intervals={"ll": [-0.52, -0.5]}, shared=[shared])
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(color_scheme=scheme)
        page.goto(file.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        for width, media in ((1280, "screen"), (400, "screen"), (700, "print")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(media=media)
            found = axe.run(page).response["violations"]
            assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == [], (width, media)
        browser.close()


def test_settings_are_those_that_were_given_with_the_defaults_of_the_options_chosen():
    """A learning rate has the default of the optimizer that was chosen."""
    given = [
        "model=pbm",
        "optimizer=adamw",
        "optimizer.learning_rate=0.2",
        "parameter@attraction=hash",
    ]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        changed = [*changed_settings(given)]
        assert [*changed_settings([])] == []
        preset = [*changed_settings(["+sweep=seeds", "seed=2", "keep_values=True"])]
        usual = [
            "model=ubm",
            "save_model=true",
            "trainer.early_stopping.patience=1",
            "metric.cutoffs=[1,3,5,10]",
        ]
        assert [*changed_settings(usual)] == []
    assert changed[:3] == [
        ("model", "pbm", "ubm"),
        ("optimizer", "adamw", "natural_gradient"),
        ("parameter@attraction", "hash", "embedding"),
    ]  # fmt: skip
    key, value, default = changed[3]
    assert (key, value) == ("optimizer.learning_rate", "0.2") and default == 0.003
    assert preset == [("sweep", "seeds", None), ("seed", "2", 0), ("keep_values", True, False)]
    assert command_of([*given, "hydra.run.dir=a"]) == f"clickexp {' '.join(given)}"


@pytest.mark.usefixtures("unrendered")
def test_names_are_text_without_control_characters(tmp_path):
    """In whatever place a result, a setting or a command has them; UTF-8 does not have halves of characters."""
    named = "\x1b[31m<b a='\"'>\x9b\u202e\0"
    hostile = f"{named}\ud800"
    write_run(tmp_path / "run")
    (run,) = find_runs([tmp_path])[0]
    result = {
        "format": 1,
        "test_set": "a",
        "model": named,
        "dataset": named,
        "test": {named: 0.5, f"{named}@1": 0.5},
        "groups": {named: [named, f"{named}@1"]},
        "references": {named: {"test": {named: 0.5}, "per_rank": {named: [0.5]}}},
        "per_rank": {named: [0.5]},
        "shared": [{"parameter": named, "value": 1.0}],
        "environment": {named: named},
    }
    changed = [(hostile, hostile, hostile)]
    foreign = Run.of(result, folder=run.folder)
    file, _ = write_report(foreign, changed, f"clickexp tags={hostile}")
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "<b a" not in text and text.count("[31m&lt;b a=") > 10
