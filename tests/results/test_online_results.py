"""Comparisons of rankers by users on the comparison page."""

import dataclasses
import json

import pytest
from browsing import shown_page
from small_runs import write_run

from clickexp.results import find_runs
from clickexp.results.comparison import comparisons
from clickexp.results.online_results import online_results
from clickexp.results.pages.comparison import data, page
from clickexp.utils.documents import plain
from clickexp.utils.statistics.sequential import estimate as alike


def estimate(value, half):
    low, high = value - half, value + half
    bounds = {"low": low, "high": high, "anytime_low": low - half, "anytime_high": high + half}
    more = {
        "p_value": 0.0004 if low > 0 else 0.3,
        "standard_error": half / 2,
        "minimum_detectable_effect": half,
    }
    return {"value": value, **bounds, **more, "significant": low > 0, "units_needed": 1234}


def content(a="<i>a</i>"):
    days = []
    for day in (1, 2, 3):
        metrics = {
            "click_rate": {
                "a": 0.1,
                "b": 0.12,
                "difference": estimate(0.02, 0.03 / day),
                "higher_is_better": True,
            },
            "abandonment": {
                "a": 0.4,
                "b": 0.41,
                "difference": estimate(0.01, 0.03),
                "higher_is_better": False,
            },
        }
        ab = {"sessions": [50 * day, 50 * day], "units": [50 * day, 50 * day], "metrics": metrics}
        test = {
            "sessions": 100 * day,
            "wins_a": 10,
            "wins_b": 30,
            "ties": 60,
            "preference": estimate(0.2, 0.05),
        }
        days.append({"day": day, "ab": ab, "interleaving": test})
    unknown = plain(dataclasses.asdict(alike(0.5, 0.0, 10)))  # units that are all alike
    days[0]["interleaving"]["preference"] = unknown | {"value": 0.2}
    days[-1]["ab"]["metrics"]["abandonment"]["difference"] |= {
        "anytime_low": None,
        "anytime_high": None,
    }
    own = {
        "a": a,
        "b": "runs/b",
        "user": "DBN (true user)",
        "models": ["PBM", "UBM"],
        "lists": 20,
        "same": 0.25,
    }
    rest = {
        "positions": 5,
        "sessions": 300,
        "users": None,
        "alpha": 0.05,
        "power": 0.8,
        "seed": 0,
        "days": days,
    }
    return {**own, **rest}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for number, model in enumerate(("PBM", "UBM")):
        write_run(folder / f"{number}", model, 1, {"ll": -0.3 - number, "ppl": 1.5})
    for name, text in (
        ("a", json.dumps(content())),
        ("damaged", "{"),
        ("other", json.dumps({"days": []})),
    ):
        (folder / "1/online" / name).mkdir(parents=True)
        (folder / "1/online" / name / "online.json").write_text(text)
    return folder


def test_what_is_no_comparison_is_skipped(folder):
    runs, _ = find_runs([folder])
    found, skipped = online_results(runs)
    assert [one.a for one in found] == ["<i>a</i>"]
    damaged, other = (str(one) for one in skipped)
    assert "damaged/online.json: online.json is damaged" in damaged
    assert "other/online.json: online.json is no comparison by users: it names no a" in other
    assert len(data(comparisons(runs), [], folder)["online"]) == 1


@pytest.mark.nightly
def test_the_page_shows_differences_by_day_and_by_metric(folder):
    runs, skipped = find_runs([folder])
    file = folder / "comparison.html"
    file.write_text(page(comparisons(runs), skipped, folder))
    with shown_page(file) as opened:
        opened.locator("#online-results").scroll_into_view_if_needed()
        opened.wait_for_function("$('online').data?.length === 3")
        y = opened.evaluate("$('online').data.at(-1).y")
        rows = opened.locator("#online-table tbody tr").all_inner_texts()
        opened.select_option("#online-metric", "preference")
        opened.wait_for_function("$('online').data.at(-1).y[0] === 0.2")
        about, best = (
            opened.inner_text("#online-about"),
            opened.locator("#online-table td.best").all_inner_texts(),
        )
        hash_ = opened.evaluate("location.hash") or opened.evaluate("(remember(), location.hash)")
    assert y == [0.02] * 3
    assert (
        rows[0].split("\t")[:4] == ["Click rate", "0.1000", "0.1200", "+0.0200"]
        and "< 0.001" in rows[0]
    )
    assert (
        rows[1].split("\t")[4] == "-0.0200 to +0.0400"
        and rows[1].split("\t")[6] == "–"
        and rows[2].split("\t")[:3] == ["Interleaving: sessions won, and preference", "10", "30"]
    )
    assert best == ["0.1200", "30"]
    assert "A is PBM (<i>a</i>), B is UBM (runs/b)" in about and "online-metric=preference" in hash_


def test_the_section_is_hidden_where_nothing_was_judged(tmp_path):
    write_run(tmp_path / "0", "PBM", 1, {"ll": -0.3, "ppl": 1.5})
    runs, skipped = find_runs([tmp_path])
    assert data(comparisons(runs), skipped, tmp_path)["online"] == []
    text = page(comparisons(runs), skipped, tmp_path)
    assert (
        '<section id="online-results" class="card" aria-labelledby="online-title" hidden>' in text
    )
