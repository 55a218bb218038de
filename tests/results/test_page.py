"""The comparison page in a real browser: what a reader does with it, in two widths and two colour schemes."""

import csv
import json
import re
import shutil
from urllib.parse import unquote

import numpy as np
import pytest
from scipy import stats
from small_runs import write_json, write_run

from clickexp.results import find_runs
from clickexp.results.commands.compare import compare
from clickexp.results.comparison import comparisons
from clickexp.results.leaderboard import differences, leaderboard
from clickexp.results.pages.comparison import page as page_of

pytestmark = pytest.mark.nightly
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
LL = {("UBM", 0.1): -0.30, ("UBM", 0.5): -0.31, ("PBM", 0.1): -0.34, ("PBM", 0.5): -0.36}
RUNS = 9  # four configurations with two seeds each, and one on another test set


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: bash scripts/install_tools.sh")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for number, ((model, rate), ll) in enumerate(LL.items()):
        for seed in (1, 2):
            test = {"ll": ll - 0.01 * seed * (1 + 0.1 * number), "ppl": 1.5 + number}
            run = folder / f"sweep/{number}-{seed}"
            settings, warnings = [("learning_rate", rate)], ["a < b"] if model == "PBM" else []
            write_run(run, model, seed, test, settings=settings, warnings=warnings)
            if seed == 1:
                (run / "report.html").write_text("its report")
    write_run(
        folder / "other", "CM", 1, {"ll": -0.1, "ppl": 1.2}, test_set="other", dataset="<b>logs</b>"
    )
    write_json(folder / "foreign/result.json", {"accuracy": 1})
    runs, skipped = find_runs([folder])
    file = folder / "comparison.html"
    file.write_text(page_of(comparisons(runs), skipped, folder))
    return file


@pytest.fixture(scope="module")
def opened(browser, file):
    """The page, and what it must not have: messages on the console and requests to anywhere."""
    page, wrong = (
        browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light"),
        [],
    )
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: wrong.append(request.url) if request.url.startswith("http") else None,
    )
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page, wrong
    assert wrong == []


@pytest.fixture
def page(opened):
    """The page as it is when it opens."""
    opened[0].evaluate("scrollTo(0, 0); chooseComparison(0)")
    return opened[0]


def names(page):
    return page.locator("#leaderboard tbody .name label > span:last-child").all_inner_texts()


def column(page, title):
    titles = page.locator("#leaderboard thead th").all_inner_texts()
    at = [text.strip(" \u00a0↑↓") for text in titles].index(title) + 1
    return page.locator(f"#leaderboard tbody tr td:nth-child({at})").all_inner_texts()


def traces(page, chart):
    page.locator(f"#{chart}").scroll_into_view_if_needed()
    page.wait_for_function(f"$('{chart}').data?.length")
    return page.evaluate(
        f"$('{chart}').data.map(({{name, x, y, visible, type}}) => ({{name, x, y, visible, type}}))"
    )


def test_it_opens_with_the_largest_test_set_best_first(page):
    assert re.fullmatch(rf"runs\d: {RUNS} runs compared", page.title())
    assert page.inner_text("#conclusion").startswith("UBM, learning_rate=0.1 is best in LL (+0.01")
    assert column(page, "learning_rate") == ["0.1", "0.5", "0.1", "0.5"]
    first = column(page, "LL")[0].split()
    assert first == ["-0.315", "(-0.320,", "-0.310)"]
    assert column(page, "PPL")[0].split() == ["1.5000"]  # the same in both seeds
    assert page.locator("#leaderboard thead th").nth(2).inner_text().strip().endswith("↑")
    assert (
        page.locator("#leaderboard td.best").count()
        == page.locator("#leaderboard td.second").count()
        == 2
    )
    assert "foreign: result.json is not that of a run" in page.locator("#skipped").text_content()


def test_columns_sort_both_ways(page):
    page.click("th button[data-sort=ppl]")
    assert [text[:6] for text in column(page, "PPL")] == ["1.5000", "2.5000", "3.5000", "4.5000"]
    page.click("th button[data-sort=ppl]")
    assert [text[:6] for text in column(page, "PPL")] == ["4.5000", "3.5000", "2.5000", "1.5000"]
    assert page.get_attribute("th:has(button[data-sort=ppl])", "aria-sort") == "descending"
    page.focus("th button[data-sort=name]")
    page.keyboard.press("Enter")
    assert names(page) == ["PBM", "PBM", "UBM", "UBM"]


def test_rows_are_filtered_by_model_override_and_search(page):
    page.select_option("#filter-model", "PBM")
    assert len(names(page)) == 2
    page.select_option("[data-filter='optimizer.learning_rate']", "0.5")
    assert len(names(page)) == 1 and page.inner_text("#count").startswith("1 of 4 rows")
    page.select_option("#filter-model", "")
    page.select_option("[data-filter='optimizer.learning_rate']", "")
    page.fill("#search", "pbm rate=0.1")
    page.wait_for_function("document.querySelectorAll('#leaderboard tbody tr').length === 1")
    # a band and a curve
    assert [trace["name"] for trace in traces(page, "ranks")] == ["PBM · 0.1"] * 2


def test_curves_have_bands_and_are_toggled_by_the_legend_and_by_rows(page):
    shown = traces(page, "ranks")
    assert len(shown) == 8 and shown[1]["x"] == [1, 2]
    for _ in range(5):  # a chart that is drawn again in the middle of a click loses it
        page.wait_for_timeout(500)
        if page.evaluate("state.hidden.size") == 0:
            page.locator("#ranks .legendtoggle").first.click()
    page.wait_for_function("$('ranks').data[1].visible === 'legendonly'")
    hidden = "$('ID').data.filter((trace) => trace.visible === 'legendonly').map((trace) => trace.legendgroup)"
    assert page.evaluate(hidden.replace("ID", "ranks")) == ["0", "0"]
    traces(page, "learning")
    assert page.evaluate(hidden.replace("ID", "learning")) == ["0", "0"]  # mean and band
    assert not page.is_checked("input[data-draw='0']") and page.inner_text("#count").endswith(
        "3 drawn"
    )
    page.check("input[data-draw='0']")
    traces(page, "ranks")
    page.wait_for_function(f"{hidden.replace('ID', 'ranks')}.length === 0")
    page.uncheck("input[data-draw='1']")
    # what is out of view is drawn when it comes into view
    page.locator("#ranks").scroll_into_view_if_needed()
    page.wait_for_function("$('ranks').data.length === 6")
    assert page.evaluate("document.activeElement.dataset.draw") == "1"


@pytest.mark.parametrize(
    "chart, kind",
    [
        ("examination", None),
        ("learning", None),
        ("cost", None),
        ("reliability", None),
        ("parallel", "parcoords"),
    ],
)
def test_every_chart_is_drawn(page, chart, kind):
    shown = traces(page, chart)
    assert shown[0]["type"] in (kind, "scatter")
    if not kind:
        axes = page.locator(f"#{chart} .xtitle, #{chart} .ytitle").all_text_contents()
        assert len(axes) == 2 and all(axes)


@pytest.mark.parametrize("chart", ["ranks", "examination", "learning", "cost", "reliability"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_toolbar_lies_over_neither_legend_nor_curves(page, chart, width):
    page.set_viewport_size({"width": width, "height": 900})
    traces(page, chart)
    page.locator(f"#{chart}").hover(position={"x": 150, "y": 150})
    bar, legend, curves = (
        page.locator(f"#{chart} {part}").first.bounding_box()
        for part in (".modebar", ".legend", ".bglayer")
    )
    assert bar["height"] > 0 and curves["height"] > 200
    assert bar["y"] + bar["height"] <= curves["y"] < curves["y"] + curves["height"] < legend["y"]


def test_learning_curves_are_the_mean_over_seeds_with_a_band_and_the_rest_of_longer_runs(page):
    drawn = page.evaluate("""() => {
      const epoch = [1, 2, 3];
      const runs = [[0.5, 0.4, 0.3], [0.6, 0.5]].map((y) => ({ seed: 1, curves: { epoch, "val/loss": y } }));
      return learned(drawn()[0], runs, "val/loss", "epoch");
    }""")
    band, line, rest = drawn
    assert line["x"] == [1, 2] and line["y"] == pytest.approx([0.55, 0.45])
    assert band["x"] == [1, 2, 2, 1]
    assert band["y"] == pytest.approx([0.6, 0.5, 0.4, 0.5])  # the lowest and highest of two runs
    assert (rest["x"], rest["y"], rest["showlegend"]) == ([2, 3], [0.4, 0.3], False)


def test_bounds_of_more_runs_are_those_of_student(page):
    values = [0.1, 0.5, 0.2, 0.4]
    half = stats.t.ppf(0.975, 3) * np.std(values, ddof=1) / 2
    expected = [0.3, 0.3 - half, 0.3 + half]
    assert page.evaluate("spread([0.1, 0.5, 0.2, 0.4])") == pytest.approx(expected, rel=1e-4)


def test_rows_link_to_the_reports_that_there_are(page, file):
    page.locator("#leaderboard [data-open]").first.click()
    links = page.locator("#leaderboard tr.runs a:text-is('report')")
    found = [link.get_attribute("href") for link in links.all()]
    page.locator("#leaderboard [data-open]").first.click()
    assert len(found) == 1 and (file.parent / found[0]).read_text() == "its report"


def test_learning_and_cost_change_their_axes(page):
    assert max(traces(page, "learning")[0]["x"]) == 3
    page.select_option("#learning-over", "sessions")
    assert max(traces(page, "learning")[0]["x"]) == 300
    page.select_option("#cost-over", "parameters")
    assert traces(page, "cost")[0]["x"] == [1000]


def test_another_baseline_gives_other_tests(page):
    def verdicts():
        page.locator("#against").scroll_into_view_if_needed()
        page.wait_for_selector("#against tbody tr")
        return {
            row.locator("th").inner_text(): row.locator("td").first.inner_text().split(" · ")[-1]
            for row in page.locator("#against tbody tr").all()
        }

    assert set(verdicts()) == {
        "UBM, learning_rate=0.5",
        "PBM, learning_rate=0.1",
        "PBM, learning_rate=0.5",
    }
    assert (
        set(verdicts().values()) <= {"worse", "not significant"} and "worse" in verdicts().values()
    )
    page.select_option("#baseline", label="PBM, learning_rate=0.5")
    assert (
        set(verdicts().values()) <= {"better", "not significant"}
        and "better" in verdicts().values()
    )
    assert "against PBM, learning_rate=0.5" in page.inner_text("#legend")


def test_runs_are_listed_with_links_to_their_folders(page, file):
    page.click("#leaderboard button[data-open]")
    links = page.locator("#leaderboard tr.runs a:not([aria-label])")
    assert [link.get_attribute("href") for link in links.all()] == ["sweep/0-1/", "sweep/0-2/"]
    assert (file.parent / links.first.get_attribute("href") / "result.json").is_file()


def test_configurations_of_two_runs_are_held_against_each_other(page):
    page.locator("#diff").scroll_into_view_if_needed()
    options = page.locator("#diff-a option").all_inner_texts()
    page.select_option(
        "#diff-a",
        label=next(text for text in options if text.startswith("UBM, learning_rate=0.1, seed 1")),
    )
    page.select_option(
        "#diff-b",
        label=next(text for text in options if text.startswith("PBM, learning_rate=0.5, seed 1")),
    )
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#diff tbody tr").all()]
    assert rows == [
        ["model._target_", "UBM", "PBM"],
        ["optimizer.learning_rate", "0.1", "0.5"],
    ]


def test_test_sets_are_ranked_apart_and_together_only_with_a_warning(page):
    assert not page.is_visible("#warnings")
    page.select_option("#test-set", "all")
    assert "2 different test sets" in page.inner_text("#warnings") and len(names(page)) == 5
    assert set(column(page, "Test set")) == {"clicks", "<b>logs</b>"}
    assert page.locator("#leaderboard .mark").count() == 0
    page.select_option("#test-set", "1")
    assert names(page) == ["CM"]


def test_warnings_of_runs_are_those_of_the_test_set(page):
    warnings = page.locator("#run-warnings")
    assert warnings.locator("summary").inner_text() == "1 warning of runs"
    assert warnings.locator("li").all_text_contents() == [
        "a < b (4 of 8 runs: PBM, learning_rate=0.1, PBM, learning_rate=0.5)"
    ]
    page.select_option("#test-set", "1")
    assert not warnings.is_visible()


@pytest.fixture(scope="module")
def searched(browser, tmp_path_factory):
    """Trials by val/loss, where PBM trains faster than UBM and compiles longer; brier, which is best at 0."""
    folder = tmp_path_factory.mktemp("search")
    trials = [("UBM", 0.3, 0.1, 2.0, 1.0), ("PBM", 0.2, 0.3, 1.0, 5.0), ("CM", 0.4, 0.2, 1.5, 2.0)]
    for number, (model, loss, brier, training, compiling) in enumerate(trials):
        run, rate = folder / str(number), 10.0**-number
        train = {"training_seconds": training, "compile_seconds": compiling}
        own = dict(
            val={"loss": loss}, train=train, higher_is_better={"brier": False, "loss": False}
        )
        write_run(
            run,
            model,
            test={"ll": -0.3 - loss * brier, "brier": brier},
            settings=[("rate", rate)],
            **own,
        )
        write_json(run / "job.json", {"number": number, "status": "finished", "result": str(run)})
        epoch = {
            "epoch": 1,
            "val/ll": -0.5,
            "seconds": training + compiling,
            "compile_seconds": compiling,
        }
        write_json(run / "metrics.jsonl", epoch)
    (folder / "best.yaml").write_text("{metric: val/loss, value: 0.2, trial: 1}")
    runs, skipped = find_runs([folder])
    (folder / "comparison.html").write_text(page_of(comparisons(runs), skipped, folder))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((folder / "comparison.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    return page


def test_a_search_opens_as_it_chose(searched):
    assert names(searched) == ["PBM", "UBM", "CM"]
    assert [text.split()[0] for text in column(searched, "Val. loss")] == [
        "0.2000",
        "0.3000",
        "0.4000",
    ]
    assert (
        searched.get_attribute("th:has(button[data-sort='val/loss'])", "aria-sort") == "ascending"
    )
    tags = searched.locator("#leaderboard td.name").all_inner_texts()
    assert ["chosen" in text for text in tags] == [True, False, False]
    assert searched.inner_text("#legend").startswith(
        "Ordered by validation loss, which the search optimised; (chosen): the trial that it chose. Values"
    )


def test_a_metric_of_a_user_is_best_where_it_states(searched):
    searched.evaluate("state.columns = ['brier']; state.sort = bestFirst('brier'); leaderboard()")
    assert [text.split()[0] for text in column(searched, "Brier")] == ["0.1000", "0.2000", "0.3000"]
    assert searched.locator("#leaderboard td.best").all_inner_texts() == ["0.1000"]
    assert searched.evaluate("metric('unheard_of').direction") == 0
    searched.evaluate("chooseComparison(0)")


def test_times_are_without_compilation_which_is_below_them(searched):
    searched.click("th button[data-sort=seconds]")
    cells = [text.split() for text in column(searched, "Time (s)")]
    assert cells == [[time, "+", more, "compiling"] for time, more in
                     [("1.00", "5.00"), ("1.50", "2.00"), ("2.00", "1.00")]]  # fmt: skip
    assert names(searched) == ["PBM", "CM", "UBM"]
    points = {trace["name"].split(" · ")[0]: trace["x"] for trace in traces(searched, "cost")}
    assert points == {"PBM": [1], "CM": [1.5], "UBM": [2]}
    searched.select_option("#learning-over", "seconds")
    curves = {trace["name"].split(" · ")[0]: trace["x"] for trace in traces(searched, "learning")}
    assert curves == {"PBM": [1], "CM": [1.5], "UBM": [2]}
    assert "without compilation" in searched.locator("#learning .xtitle").text_content()
    searched.evaluate("chooseComparison(0)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_is_readable_in_any_width_and_scheme(page, width, scheme):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
    page.wait_for_function(f"document.documentElement.scrollWidth === {width}")
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) == 4 and min(contrasts) >= 4.5  # WCAG 2.1, AA
    sizes = page.evaluate(
        "[...document.querySelectorAll('td, small, label, p')].map((one) => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(sizes) >= 11
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") != scheme


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_reports_nothing_and_nothing_is_cut(page, searched, width, scheme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="needs axe-playwright-python"
    ).Axe()
    for one in (page, searched):
        one.set_viewport_size({"width": width, "height": 900})
        one.emulate_media(color_scheme=scheme)
        one.evaluate("Object.keys(charts).forEach(refresh)")
        found = axe.run(one).response["violations"]
        assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found] == []
        boxes = "[...document.querySelectorAll('.scroll, .wide')].map((box) => box.scrollWidth - box.clientWidth)"
        assert max(one.evaluate(boxes)) <= 1


def test_cells_of_differences_do_not_run_into_each_other_on_narrow_screens(page):
    page.set_viewport_size({"width": 400, "height": 900})
    page.evaluate("Object.keys(charts).forEach(refresh)")
    cells = "[...document.querySelectorAll('#against td')].map((cell) => cell.scrollWidth - cell.clientWidth)"
    assert max(page.evaluate(cells)) <= 0
    page.set_viewport_size({"width": 1280, "height": 900})


def test_on_paper_all_is_light_and_as_wide_as_a_page(page):
    page.emulate_media(color_scheme="light")  # a change is what the page listens to
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    widths = page.evaluate(
        "[...document.querySelectorAll('.card, table, .chart')].map((one) => one.getBoundingClientRect().right)"
    )
    assert max(widths) <= 701 and page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate(
        "[...document.querySelectorAll('.chart')].every((one) => one.data || one.offsetParent === null)"
    )
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.emulate_media(color_scheme="light")


def test_the_forest_has_the_differences_to_the_baseline(page):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.select_option("#baseline", label="PBM, learning_rate=0.1")
    (points,) = traces(page, "forest")
    # the mean over two seeds is ll - 0.015 (1 + number / 10)
    means = [ll - 0.015 * (1 + 0.1 * number) for number, ll in enumerate(LL.values())]
    assert points["x"] == pytest.approx(
        [means[0] - means[2], means[1] - means[2], means[3] - means[2]], abs=1e-6
    )
    error = page.evaluate("$('forest').data[0].error_x.array")
    # differences of seeds 1 and 2 deviate by half of 0.01 (2 / 10) from their mean; t of 1 degree of freedom is 12.7062
    assert error[0] == pytest.approx(12.7062 * 0.001 * 2**0.5 / 2**0.5, rel=1e-3)


def test_cells_have_the_digits_of_the_tables(browser, tmp_path):
    """Also in copies, in the differences and in the rows of single runs."""
    for model, values in (("DCTR", (1.4299942, 1.4299965)), ("UBM", (1.41, 1.42))):
        for seed, value in enumerate(values, 1):
            write_run(tmp_path / f"{model}{seed}", model, seed, {"ll": -value / 4, "ppl": value})
    runs, skipped = find_runs([tmp_path])
    compared = comparisons(runs)
    (tmp_path / "comparison.html").write_text(page_of(compared, skipped, tmp_path))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((tmp_path / "comparison.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    table = leaderboard(compared[0])
    place = next(i for i, name in enumerate(table.header) if name.startswith("PPL"))
    cells = [row[place] for row in table.rows]
    expected = [[cell.text, *cell.deviation.split()] for cell in cells]
    assert [text.split() for text in column(page, "PPL")[:2]] == expected
    page.locator("#forest").scroll_into_view_if_needed()
    page.wait_for_function("$('against').tBodies[0].rows.length")
    differing = page.locator("#against tbody td").nth(1).inner_text()
    page.locator("button[data-open]").nth(1).click()
    assert column(page, "PPL")[2:] == ["1.4300", "1.4300"]
    (cell,) = [row[2] for row in differences(compared[0]).rows]
    assert differing.split()[0] == cell.text and cell.deviation in differing
    page.close()


def test_curves_by_rank_are_differences_with_bands_by_default(page):
    assert page.is_checked("#ranks-difference")
    page.select_option("#ranks-metric", "ll")
    shown = traces(page, "ranks")
    base, other = shown[1]["y"], shown[3]["y"]  # of the baseline itself, and the next
    assert base == [0, 0]
    means = [ll - 0.015 * (1 + 0.1 * number) for number, ll in enumerate(LL.values())]
    assert other == pytest.approx(
        [(means[1] - means[0]) * 1.2, (means[1] - means[0]) * 0.8], abs=1e-6
    )
    page.uncheck("#ranks-difference")
    assert traces(page, "ranks")[1]["y"] == pytest.approx([means[0] * 1.2, means[0] * 0.8])


def test_a_baseline_alone_is_no_flat_line(page):
    page.click("#draw-none")
    page.locator("#leaderboard tbody input[data-draw]").first.check()  # the baseline
    page.locator("#ranks").scroll_into_view_if_needed()
    page.wait_for_selector("#ranks.empty")
    assert "Only the baseline is drawn" in page.locator("#ranks").inner_text()
    page.uncheck("#ranks-difference")
    assert len(traces(page, "ranks")) == 2  # the curve and its band


def test_differences_far_from_the_others_are_beyond_the_axis(browser, tmp_path):
    """As curves are, so that the others can be told apart."""
    for model, ll in {"UBM": -0.30, "DBN": -0.301, "PBM": -0.31, "DCM": -0.32, "CM": -1.4}.items():
        write_run(tmp_path / model, model, 1, {"ll": ll, "ppl": 1.5})
    runs, skipped = find_runs([tmp_path])
    (tmp_path / "comparison.html").write_text(page_of(comparisons(runs), skipped, tmp_path))
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((tmp_path / "comparison.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    traces(page, "forest")
    low, high = page.evaluate("$('forest').layout.xaxis.range")
    names = page.evaluate("$('forest').layout.yaxis.ticktext")
    costs = {trace["name"]: trace["x"] for trace in traces(page, "cost")}
    page.close()
    assert -0.03 < low < -0.02 and 0 < high < 0.01
    assert costs.pop("CM (beyond the axis)") == [None] and [*costs.values()] == [[2]] * 4
    assert names == ["DBN", "PBM", "DCM", "CM (beyond the axis)"]


@pytest.mark.parametrize("width", [1280, 400])
def test_titles_of_axes_are_whole_whatever_the_names(browser, tmp_path, width):
    long = ("Ranker, gumbel_ndcg, doubly_robust", "UserBrowsingModelOfManySearchSessions", "PBM")
    for number, model in enumerate(long):
        for seed in (1, 2):
            ll = -0.3 - 0.01 * number - 0.002 * seed
            write_run(tmp_path / f"{number}-{seed}", model, seed, {"ll": ll, "ppl": 1.5})
    runs, skipped = find_runs([tmp_path])
    (tmp_path / "comparison.html").write_text(page_of(comparisons(runs), skipped, tmp_path))
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((tmp_path / "comparison.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    for chart in ("forest", "ranks", "learning", "cost"):
        traces(page, chart)
        place = page.locator(f"#{chart}").bounding_box()
        parts = page.locator(f"#{chart} :is(.xtitle, .ytitle, .annotation-text)")
        for box in filter(None, (part.bounding_box() for part in parts.all())):
            for start, extent in (("x", "width"), ("y", "height")):
                assert place[start] <= box[start], (chart, box)
                end = place[start] + place[extent]
                assert box[start] + box[extent] <= end, (chart, box)
        assert (
            page.locator(f"#{chart} .bglayer").first.bounding_box()["width"] > 0.4 * place["width"]
        )
    page.close()


def test_the_address_holds_what_is_shown(page, browser, file):
    page.click("th button[data-sort=ppl]")
    page.select_option("#filter-model", "PBM")
    page.select_option("#baseline", label="PBM, learning_rate=0.1")
    page.select_option("#learning-over", "sessions")
    page.uncheck("input[data-draw='2']")
    page.wait_for_function(
        "location.hash.includes('learning-over') && location.hash.includes('drawn')"
    )
    again = browser.new_page()
    again.goto(page.url)
    again.wait_for_selector("html[data-ready]")
    assert names(again) == ["PBM", "PBM"] and again.input_value("#learning-over") == "sessions"
    assert again.get_attribute("th:has(button[data-sort=ppl])", "aria-sort") == "ascending"
    assert again.input_value("#baseline") == page.input_value("#baseline")
    assert not again.is_checked("input[data-draw='2']") and again.is_checked("input[data-draw='3']")
    again.goto(
        file.as_uri()
        + "#set=9&baseline=x&sort=[&columns=%22nope%22&drawn=77&ranks-metric=<img>&filter.model=no"
    )
    again.wait_for_selector("html[data-ready]")
    assert len(names(again)) == 4
    again.close()
    page.evaluate("chooseComparison(0)")


def test_the_leaderboard_is_copied_as_shown(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.select_option("#filter-model", "UBM")
    copied = {}
    for name in ("Markdown", "LaTeX", "CSV"):
        page.click(f"#copy-{name.lower()}")
        page.wait_for_function(f"$('copied').textContent === 'Copied as {name}.'")
        copied[name] = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied["Markdown"][:3] == [
        "| Model | learning_rate | LL ↑ | PPL ↓ |", "| --- | --- | ---: | ---: |",
        "| UBM | 0.1 | **-0.315** (-0.320, -0.310) | **1.5000** |",
    ]  # fmt: skip
    assert copied["LaTeX"][5:7] == [
        r"\midrule",
        r"UBM & 0.1 & $\mathbf{-0.315} (-0.320, -0.310)$ & $\mathbf{1.5000}$ \\",
    ]
    rows = list(csv.reader(copied["CSV"]))
    assert rows[0] == [
        "model",
        "optimizer.learning_rate",
        "ll",
        "ll_uncertainty",
        "ppl",
        "ppl_uncertainty",
    ]
    assert rows[1][:3] == ["UBM", "0.1", "-0.315"] and float(rows[1][3]) == pytest.approx(
        0.005, abs=1e-6
    )


CONTRASTS = """[['text', 'page'], ['text', 'card'], ['muted', 'card'], ['accent', 'card']].map((pair) => {
    const [a, b] = pair.map((name) => [1, 3, 5].map((at) => parseInt(css(`--${name}`).slice(at, at + 2), 16) / 255)
        .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0)).sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
})"""


def test_hostile_names_are_text_and_links_stay_in_the_folder(browser, tmp_path):
    attack = "</script><img src=x onerror=hit()>\"'`${hit()}"
    folders = ["javascript:hit()+/x", "a<img src=x onerror=hit()>#?%"]
    for number, folder in enumerate(folders):
        test = {"ll": -0.3 - 0.1 * number, attack: 0.5, "__proto__": 0.1}
        run = write_run(tmp_path / folder / "y", attack + str(number), 1, test, dataset=attack, test_set=attack,
                        settings=[(attack, attack)], environment={attack: attack})  # fmt: skip
        line = {"epoch": 1, f"val/{attack}": 0.5, "seconds": 1, "sessions": 1}
        (run / "metrics.jsonl").write_text(json.dumps(line))
    write_json(tmp_path / f"{attack.replace('/', '')}/result.json", {})
    runs, skipped = find_runs([tmp_path])
    file = tmp_path / "comparison.html"
    file.write_text(page_of(comparisons(runs), skipped, tmp_path))
    page, wrong = browser.new_page(), []
    page.expose_function("hit", lambda: wrong.append("hit"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    page.evaluate(
        "Object.keys(charts).forEach(refresh); document.querySelectorAll('button[data-open]')[0].click()"
    )
    assert page.locator("img, #leaderboard script").count() == 0
    names = page.locator("#leaderboard tbody .name label > span:last-child").all_inner_texts()
    assert all(name.startswith(attack) for name in names)
    links = page.eval_on_selector_all(
        "a[href]:not([data-title])", "links => links.map(link => link.href)"
    )
    links = [link for link in links if "plotly" not in link]
    expected = {(tmp_path / folder / "y").as_uri() + "/" for folder in folders}
    expected |= {f"{tmp_path.as_uri()}/{folder}/" for folder in ("tables", "figures")}
    assert {unquote(link) for link in links} == {unquote(one) for one in expected} and wrong == []
    assert all(link.startswith("file://") for link in links)
    page.close()


def test_cards_that_would_be_empty_are_hidden(browser, tmp_path):
    """A single run with nothing but a number; then two runs that have what all cards show."""
    write_run(tmp_path / "bare/a", per_rank={}, curves={}, epochs=0)
    write_run(tmp_path / "full/a", "UBM", settings=[("learning_rate", 0.1)])
    write_run(tmp_path / "full/b", "PBM", settings=[("learning_rate", 0.5)])
    cards = ["against", "cost", "examination", "ranks", "learning", "reliability", "diff"]
    of_cards = "ids => ids.filter((id) => $(id).closest('section').hidden)"
    for name, hidden in (("bare", cards), ("full", [])):
        compare([tmp_path / name])
        page = browser.new_page()
        page.goto((tmp_path / name / "comparison.html").as_uri())
        page.wait_for_selector("html[data-ready]")
        assert page.evaluate(of_cards, cards) == hidden
        page.close()
