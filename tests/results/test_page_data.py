"""The content of the comparison page: what its scripts show, against what runs left."""

import base64
import gzip
import json
import re

import pytest
from small_runs import write_json, write_run

from clickexp.results import find_runs
from clickexp.results.comparison import comparisons
from clickexp.results.leaderboard import differences, leaderboard
from clickexp.results.pages.comparison import data, page


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of UBM and one of PBM at another rate, one on another test set, and a folder of somebody else."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, ll in ((1, -0.30), (2, -0.32)):
        train = {"training_seconds": 4.0 * seed - 1, "compile_seconds": 1.0, "epochs": 3}
        run = write_run(folder / f"sweep/{seed}", "UBM", seed, {"ll": ll, "ppl": 1.5}, train=train)
        (run / "report.html").touch() if seed == 1 else None
    rate = [("rate", float("inf"))]
    write_run(
        folder / "pbm",
        "PBM",
        1,
        {"ll": -0.1234567, "auc": None},
        settings=rate,
        per_rank={"ll": [-0.2, None]},
    )
    environment = {"device": "gpu", "jax": "0.10.2", "git_commit": "0123456789abcdef"}
    examined = {"ll": [-0.5, -0.4], "examination": [1.0, 1.0]}
    write_run(
        folder / "elsewhere/other",
        "CM",
        3,
        test_set="b",
        environment=environment,
        per_rank=examined,
        curves={},
    )
    write_json(folder / "foreign/result.json", {"format": 1, "accuracy": 1})
    return folder


@pytest.fixture(scope="module")
def content(runs):
    found, skipped = find_runs([runs])
    return data(comparisons(found), skipped, runs, command="clickexp-compare runs")


def test_groups_have_their_runs_values_and_curves(content):
    groups = {group["model"]: group for group in content["groups"]}
    assert list(groups) == ["PBM", "UBM", "CM"]
    mean, shown, low, high = groups["UBM"]["values"]["ll"]
    assert (mean, shown, low, high) == (-0.31, pytest.approx(0.01), -0.32, -0.3)
    # an interval of one degree of freedom, -0.31 -+ 12.7062 0.01, would tell less
    assert groups["UBM"]["hints"]["ll"] == ["values over seeds: -0.3000, -0.3200"]
    assert groups["PBM"]["values"]["ll"] == [-0.1234567, None, None, None]
    assert (
        groups["PBM"]["values"]["auc"][0] is None
        and groups["PBM"]["overrides"]["optimizer.rate"] == "inf"
    )
    assert [content["runs"][at]["seed"] for at in groups["UBM"]["runs"]] == [1, 2]
    assert (groups["UBM"]["seconds"], groups["UBM"]["compiling"]) == (5.0, 1.0)
    assert groups["UBM"]["perRank"]["ll"][0] == [
        pytest.approx(-0.31 * 1.2),
        pytest.approx(-0.31 * 0.8),
    ]
    assert (
        groups["PBM"]["perRank"]["ll"][0] == [-0.2, None]
        and "sessions" not in groups["UBM"]["perRank"]
    )
    assert [group["examines"] for group in content["groups"]] == [True, True, False]
    assert (
        groups["UBM"]["reliability"]["documents"] == [[60, 40], [40, 0]]
        and groups["CM"]["reliability"] is None
    )
    assert groups["UBM"]["parameters"] == 1000 and groups["UBM"]["tower"] == "Embedding"


def test_texts_have_the_digits_of_the_tables(tmp_path):
    """Means have the decimals of the largest error that is shown; differences those that a paired test tells apart."""
    for model, values in (("DCTR", (1.4299942, 1.4299965)), ("UBM", (1.41, 1.42))):
        for seed, value in enumerate(values, 1):
            write_run(tmp_path / f"{model}{seed}", model, seed, {"ll": -value / 4, "ppl": value})
    (one,) = comparisons(find_runs([tmp_path])[0])
    made = data([one], [], tmp_path)
    (shown,) = made["comparisons"]
    assert ("1.430", "") in shown["texts"]["ppl"]
    for place, metric in enumerate(one.leading, 1):
        cells = [row[place] for row in leaderboard(one).rows]
        assert shown["texts"][metric] == [(cell.text, cell.deviation) for cell in cells]
        baseline = shown["baselines"].index(shown["baseline"])
        (cell,) = [row[place] for row in differences(one).rows]
        own, other = shown["differences"][metric][baseline]
        assert float(own[0]) == 0 and other == (cell.text, cell.deviation)
    (run,) = [run for run in made["runs"] if run["folder"] == "DCTR1"]
    assert run["texts"]["ppl"] == "1.4300"


def test_runs_are_linked_and_their_times_are_summed_without_compilation(content, runs):
    found = {run["folder"]: run for run in content["runs"]}
    assert set(found) == {"sweep/1", "sweep/2", "pbm", "elsewhere/other"}
    assert [run["report"] for run in found.values()] == [
        "report.html" if name == "sweep/1" else None for name in found
    ]
    curves = found["sweep/1"]["curves"]
    assert curves["epoch"] == [1, 2, 3] and curves["sessions"] == [100, 200, 300]
    assert curves["seconds"] == [0.25, 0.75, 1.25]  # a quarter of the first is compilation
    assert curves["val/ll"] == [-0.6, -0.3, -0.2] and found["sweep/1"]["seconds"] == 3.0
    assert (
        found["pbm"]["perRank"]["ll"] == [-0.2, None] and found["elsewhere/other"]["testSet"] == "b"
    )
    settings = dict(zip(content["settings"], found["pbm"]["settings"], strict=True))
    assert (settings["model._target_"], settings["optimizer.rate"]) == ("PBM", "Infinity")
    settings = dict(zip(content["settings"], found["elsewhere/other"]["settings"], strict=True))
    assert (settings["model._target_"], settings["optimizer.rate"]) == ("CM", None)


def test_each_test_set_has_its_order_its_tests_and_its_conclusions(content):
    first, second = content["comparisons"]
    assert [content["groups"][at]["model"] for at in first["groups"]] == ["PBM", "UBM"]
    assert content["groups"][first["baseline"]]["model"] == "PBM" and second["groups"] == [2]
    assert first["tests"] == {} and first["importances"] == {} and first["optimized"] is None
    assert first["conclusions"][first["baseline"]].startswith("PBM, rate=inf is best in LL (+0.18")
    assert (
        first["meaning"] == "mean (lowest, highest) over seeds"
        and first["about"] == "one test set of 50 sessions"
    )


def test_what_is_around_the_comparison(content, runs):
    assert content["title"] == f"{runs.name}: 4 runs compared"
    assert content["skipped"] == ["foreign: result.json is not that of a run: it names no model"]
    assert content["environment"] == ["commit 0123456789", "JAX 0.10.2", "device cpu and gpu"]
    assert content["commands"][-1] == "clickexp-compare runs" and len(content["commands"]) == 4
    assert content["keys"] == ["optimizer.rate"] and content["quantiles"][0] == pytest.approx(
        12.7062
    )
    assert (
        content["metrics"]["ppl"]["direction"] == -1 and content["metrics"]["ll"]["short"] == "LL"
    )
    assert (
        content["metrics"]["val/ll"]["direction"] == 1
        and content["metrics"]["train/loss"]["direction"] == -1
    )


def test_the_page_is_whole(runs, monkeypatch):
    """With the data as its script unpacks them, and the title as text."""
    monkeypatch.setattr("clickexp.results.pages.comparison.get_plotlyjs", lambda: "plotly()")
    found, skipped = find_runs([runs])
    text = page(comparisons(found), skipped, runs, title="<b>mine</b>")
    packed = base64.b64encode(gzip.compress(b"plotly()", mtime=0)).decode()
    assert packed in text and "<title>&lt;b&gt;mine&lt;/b&gt;</title>" in text
    packed = re.search(r'id="packed-data">(.*?)</script>', text)[1]
    assert json.loads(gzip.decompress(base64.b64decode(packed)))["title"] == "<b>mine</b>"
