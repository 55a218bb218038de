"""Chains of updates among runs: which belong together, and what their table, figures and page show."""

import shutil

import numpy as np
import pytest
from browsing import shown_page
from small_runs import write_run

from clickexp.results.chains import (
    chain_layouts,
    chain_of,
    chain_table,
    chains,
    lines,
    moved_table,
)
from clickexp.results.commands.compare import compare
from clickexp.results.comparison import comparisons
from clickexp.results.figures.chain import chain_panels
from clickexp.results.layouts import layouts_of, references_of
from clickexp.results.loading import find_runs
from clickexp.results.pages.comparison import data


def update_of(folder, number, before, **more):
    facts = {"run": str(folder), "updates": number, "sessions": 100 * number, "logs": []}
    return {**facts, "before": {"ll": before}, **more}


def propensity(*ratios):
    return [
        {"position": at, "relative": ratio, "relative_low": ratio, "relative_high": ratio}
        for at, ratio in enumerate(ratios, 1)
    ]


def of_devices(scale, reference="phone"):
    """Examination on two devices, of which phones show two documents, relative to the first of one of them."""
    curves = {"desktop": [0.5, 0.3, 0.2], "phone": [1.0, 0.8 * scale]}
    first = curves[reference][0]
    return [
        {"position": at, "relative": value / first, "layout": {"device": device},
         "relative_low": 0.9 * value / first, "relative_high": 1.2 * value / first}
        for device, curve in curves.items()
        for at, value in enumerate(curve, 1)
    ]  # fmt: skip


def chain_of_layouts(tmp_path):
    """Three days, the second of which has examination relative to the other device."""
    days = {"a": of_devices(1.0), "b": of_devices(0.9, "desktop"), "c": of_devices(0.7)}
    for number, (day, examination) in enumerate(days.items()):
        before = update_of(tmp_path / "ab"[number - 1], number, -0.5) if number else None
        write_run(tmp_path / day, test_set=day, propensity=examination, update=before)
    return chain_of({run.folder.name: run for run in find_runs([tmp_path])[0]}["c"])


def test_a_chain_shows_examination_of_each_layout_on_one_scale(tmp_path, capsys):
    chain = chain_of_layouts(tmp_path)
    assert chain_layouts(chain).rows == [
        [day, f"device {device}", *values]
        for day, phone in zip("abc", ("0.8000", "0.7200", "0.5600"))
        for device, values in (
            ("desktop", ["0.5000", "0.3000", "0.2000"]),
            ("phone", ["1.0000", phone, ""]),
        )
    ]
    assert "relative to position 1 of device phone" in chain_layouts(chain).caption
    by_label = lines(chain)
    at_1, at_2 = by_label["Relative examination, device phone"]
    np.testing.assert_allclose([at_1.values, at_2.values], [[1.0, 1.0, 1.0], [0.8, 0.72, 0.56]])
    assert at_2.low == [0.8 * 0.9, None, 0.7 * 0.8 * 0.9]  # nobody knows those to another device
    names = [line.name for line in by_label["Relative examination, device desktop"]]
    assert names == ["position 1", "position 2"]  # which both devices show
    compare([tmp_path], with_figures=True)
    assert "0.5600" in capsys.readouterr().out
    layouts = (tmp_path / "tables" / "chain-1-layouts.csv").read_text()
    assert layouts.count("\n") == 7 and "c,device phone,1.0000,0.5600" in layouts
    (shown,) = data(comparisons(chain), [], tmp_path)["chains"]
    assert shown["layouts"]["rows"] == chain_layouts(chain).rows


def test_layouts_with_most_documents_come_first(tmp_path):
    shown = {"desktop": [2, 1], "phone": [5, 4]}
    rates = {device: {"shown": count, "clicks": [0, 0]} for device, count in shown.items()}
    write_run(tmp_path / "a", propensity=of_devices(1.0), click_rates={"device": rates})
    ((run,), _) = find_runs([tmp_path])
    assert [*layouts_of(run, references_of([run]))] == ["device phone", "device desktop"]


def test_a_comparison_shows_examination_of_each_layout(tmp_path):
    """Means over two seeds, one of which has examination relative to the other device, beside a run without layouts."""
    write_run(tmp_path / "0", "PBM", 1, propensity=of_devices(1.0))
    write_run(tmp_path / "1", "PBM", 2, propensity=of_devices(0.5, "desktop"))
    write_run(tmp_path / "2", "UBM", 1, propensity=propensity(1.0, 0.6))
    compare([tmp_path], with_figures=True)
    rows = (tmp_path / "tables" / "examination_by_layout.csv").read_text().splitlines()[1:]
    means = {("desktop", at): value for at, value in enumerate([0.5, 0.3, 0.2], 1)}
    means |= {("phone", 1): 1.0, ("phone", 2): (0.8 + 0.4) / 2}
    for row, ((device, rank), mean) in zip(rows, means.items(), strict=True):
        name, layout, *numbers = row.split(",")
        assert (name, layout) == ("PBM", f"device {device}")
        np.testing.assert_allclose(list(map(float, numbers)), [rank, mean, 0.9 * mean, 1.2 * mean])
    (compared,) = comparisons(find_runs([tmp_path])[0])
    shown = data([compared], [], tmp_path)["comparisons"][0]
    ((at, by_layout),) = shown["layouts"].items()
    assert compared.groups[at].model == "PBM" and shown["reference"] == "position 1 of device phone"
    np.testing.assert_allclose(by_layout["device phone"], [[1, 0.6], [0.9, 0.54], [1.2, 0.72]])


@pytest.mark.nightly
def test_the_page_draws_examination_of_the_chosen_layout(tmp_path):
    chain_of_layouts(tmp_path)
    compare([tmp_path])
    with shown_page(tmp_path / "comparison.html") as opened:
        opened.locator("#examination").scroll_into_view_if_needed()
        opened.wait_for_function("$('examination').data?.length === 1")
        assert opened.evaluate("$('examination').data[0].y") == [0.5, 0.3, 0.2]
        opened.select_option("#examination-layout", "device phone")
        opened.wait_for_function("$('examination').data[0].y.length === 2")
        assert opened.evaluate("$('examination').data[0].error_y.visible")
        assert "position 1 of device phone" in opened.inner_text("#examination-note")
        rows = opened.locator("#chain-layouts tbody tr").all_inner_texts()
    assert rows[1].split("\t")[:4] == ["a", "device phone", "1.0000", "0.8000"]


def written(tmp_path):
    """Three days, and a run beside them."""
    data = {"sessions": {"train": 1200}}
    moved = [
        {"id": 3, "query": "q", "document": "d", "before": 0.2, "after": 0.5, "deviations": 2.5}
    ]
    change = [{"parameter": "examination", "p": 1e-9, "positions": [2], "largest": -1.0}]
    for day, update in {
        "a": None,
        "b": update_of(tmp_path / "a", 1, -0.6, new_documents=7, moved=moved),
        "c": update_of(
            tmp_path / "b", 2, -0.55, forgotten=0.25, changes=change, backward={"ll": -0.52}
        ),
        "other": None,
    }.items():
        at = "abc".find(day)
        write_run(tmp_path / day, test=[("ll", -0.5 + at / 100)], test_set=day, data=data,
                  propensity=propensity(1.0, 0.6, 0.4 - at / 100), update=update)  # fmt: skip
    return {run.folder.name: run for run in find_runs([tmp_path])[0]}


def test_runs_of_a_chain_are_found_from_its_last_one(tmp_path):
    runs = written(tmp_path)
    (chain,) = chains([*runs.values()])
    assert [run.folder.name for run in chain] == ["a", "b", "c"]
    assert [run.folder.name for run in chain_of(runs["c"])] == ["a", "b", "c"]
    assert [run.folder.name for run in chain_of(runs["other"])] == ["other"]
    assert chains([runs["c"], runs["other"]]) == []
    assert chains([runs["a"], runs["c"]]) == []  # b is missing, whose log c has judged


def test_the_table_of_a_chain_has_likelihoods_before_and_after(tmp_path):
    runs = written(tmp_path)
    table = chain_table(chain_of(runs["c"]))
    columns = dict(zip(table.header, zip(*table.rows, strict=True), strict=True))
    assert columns["Run"] == ("a", "b", "c") and columns["Training sessions"] == ("1,200",) * 3
    assert columns["ll before"] == ("", "-0.6000", "-0.5500")
    assert columns["ll"] == ("-0.5000", "-0.4900", "-0.4800")
    assert columns["ll next"] == ("", "-0.5200", "")
    assert columns["e(3)"] == ("0.4000", "0.3900", "0.3800")
    assert columns["New"] == ("", "7", "0") and columns["Forgotten"] == ("", "0%", "25%")
    assert columns["Changed"] == ("", "", "examination")
    (row,) = moved_table(runs["b"].update).rows
    assert row == ["d", "q", "0.2000", "0.5000", "+2.5"]


def test_a_comparison_prints_and_draws_the_chain(tmp_path, capsys):
    runs = written(tmp_path)
    compare([tmp_path], with_figures=True)
    assert "3 runs are a chain of updates" in capsys.readouterr().out
    assert (tmp_path / "tables" / "chain-1.csv").read_text().count("\n") == 4
    assert (tmp_path / "figures" / "chain-1.pdf").stat().st_size > 1000
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 3)
    for panel, one in zip(chain_panels(chain_of(runs["c"])), axes, strict=True):
        panel(one)
    after, before, later = (line.get_ydata() for line in axes[0].lines)
    np.testing.assert_allclose(later, [np.nan, -0.52, np.nan])
    np.testing.assert_allclose(after, [-0.5, -0.49, -0.48])
    np.testing.assert_allclose(before, [np.nan, -0.6, -0.55])
    named = [line for one in axes for line in one.lines if not line.get_label().startswith("_")]
    assert [line.get_label() for line in named] == [
        "after",
        "before",
        "after the next",
        "position 2",
        "position 3",
    ]
    assert len({line.get_color() for line in named}) == 5  # the panels share a legend


@pytest.mark.nightly
def test_the_page_draws_a_chain_over_its_runs(tmp_path):
    written(tmp_path)
    compare([tmp_path])
    with shown_page(tmp_path / "comparison.html") as opened:
        opened.locator("#chain-results").scroll_into_view_if_needed()
        opened.wait_for_function("$('chain').data?.length === 3")
        likelihoods = opened.evaluate("$('chain').data.map(({ x, y }) => [x, y])")
        rows = opened.locator("#chain-table tbody tr").all_inner_texts()
        opened.select_option("#chain-what", "Relative examination")
        opened.wait_for_function("$('chain').data.length === 4")
        at_3 = opened.evaluate("$('chain').data.at(-1).y")
        opened.set_viewport_size({"width": 400, "height": 900})
        cells = "[...document.querySelectorAll('#chain-table td')].map((cell) => cell.scrollWidth - cell.clientWidth)"
        assert max(opened.evaluate(cells)) <= 0  # labels do not run into one another
    days = ["a", "b", "c"]
    assert [x for x, _ in likelihoods] == [days] * 3
    assert [y for _, y in likelihoods] == [
        [-0.5, -0.49, -0.48],
        [None, -0.6, -0.55],
        [None, -0.52, None],
    ]
    assert at_3 == [0.4, 0.39, 0.38]
    assert rows[1].split("\t")[3:6] == ["-0.6000", "-0.4900", "-0.5200"]


def test_the_section_is_hidden_where_no_run_goes_on_from_another(tmp_path):
    write_run(tmp_path / "0", "PBM", 1, {"ll": -0.3, "ppl": 1.5})
    compare([tmp_path])
    text = (tmp_path / "comparison.html").read_text()
    assert '<section id="chain-results" class="card" aria-labelledby="chain-title" hidden>' in text
    assert data(comparisons(find_runs([tmp_path])[0]), [], tmp_path)["chains"] == []


def test_a_copied_chain_is_that_of_its_copies(tmp_path):
    """Each run knows the one before also from its own folder; the first chain may still be there, or not."""
    for number, day in enumerate("abc"):
        before = update_of(tmp_path / "x" / "ab"[number - 1], number, -0.5) if number else None
        beside = {} if before is None else {"beside": f"../{'ab'[number - 1]}"}
        update = None if before is None else before | beside
        write_run(tmp_path / "x" / day, test_set=day, update=update)
    shutil.copytree(tmp_path / "x", tmp_path / "y")
    (chain,) = chains(find_runs([tmp_path / "y"])[0])
    assert [run.folder for run in chain] == [tmp_path / "y" / day for day in "abc"]
    shutil.rmtree(tmp_path / "x")
    (chain,) = chains(find_runs([tmp_path / "y"])[0])
    assert len(chain) == 3


def test_a_printed_chain_says_what_only_its_files_have(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    written(tmp_path)
    compare([tmp_path])
    printed = capsys.readouterr().out
    assert "Forgotten" in (tmp_path / "tables/chain-1.md").read_text()
    assert "the tables in files also have Training sessions" in " ".join(printed.split())
