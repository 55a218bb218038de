"""Means, intervals and tests against scipy and textbook values; test sets are kept apart."""

import json

import numpy as np
import polars as pl
import pytest
import yaml
from omegaconf import OmegaConf
from places import ROOT
from refusals import refuses
from scipy import stats
from small_runs import result_of, write_run

from clickexp.errors import UserError
from clickexp.results import find_runs
from clickexp.results.commands.compare import compare
from clickexp.results.comparison import comparisons
from clickexp.results.conclusion import conclusion
from clickexp.results.figures.comparison import _panels
from clickexp.results.groups import Group
from clickexp.results.leaderboard import leaderboard, tables
from clickexp.results.metric_names import headline, leading
from clickexp.results.pages.comparison import data
from clickexp.results.per_query import paired_test, samples
from clickexp.utils.statistics.means import Spread, holm, paired_tests

CONF = ROOT / "conf"
RNG = np.random.default_rng(0)


def compared(folder, *arguments):
    return comparisons(find_runs([folder])[0], *arguments)


def test_a_spread_is_that_of_scipy():
    values = RNG.normal(size=(5, 3))
    spread = Spread.of(values)
    low, high = stats.t.interval(0.95, 4, values.mean(axis=0), stats.sem(values))
    np.testing.assert_allclose([spread.mean, spread.sd], [values.mean(0), values.std(0, ddof=1)])
    np.testing.assert_allclose([spread.low, spread.high], [low, high])
    gaps = Spread.of([[1.0, None], [None, None], [3.0, 2.0]])
    np.testing.assert_array_equal(gaps.count, [2, 1])
    np.testing.assert_allclose(gaps.mean, [2, 2])
    np.testing.assert_allclose(gaps.sd, [2**0.5, np.nan])


@pytest.mark.parametrize("runs", [2, 3, 4])
def test_curves_of_few_runs_reach_from_the_lowest_to_the_highest_value(runs):
    curves = RNG.normal(size=(runs, 3)).round(3)
    gap = curves.tolist()
    gap[0][2] = None

    def group(model, vectors):
        made = [
            result_of({"test": {"ppl": 1.0}, "seed": i, "model": model, "per_rank": {"ppl": v}})
            for i, v in enumerate(vectors)
        ]
        return Group(tuple(made), model, model)

    spread = group("A", gap).per_rank("ppl")
    difference = group("A", curves.tolist()).per_rank_difference(
        group("B", np.ones((runs, 3)).tolist()), "ppl"
    )
    known = curves[:, :2]
    if runs > 3:
        low, high = stats.t.interval(0.95, runs - 1, known.mean(axis=0), stats.sem(known))
    else:
        low, high = known.min(axis=0), known.max(axis=0)
        assert (spread.low[2], spread.high[2]) == (curves[1:, 2].min(), curves[1:, 2].max())
    np.testing.assert_allclose([spread.low[:2], spread.high[:2]], [low, high])
    np.testing.assert_allclose([difference.low[:2], difference.high[:2]], [low - 1, high - 1])


def test_paired_p_is_that_of_scipy_where_both_have_values():
    values = RNG.normal(size=(4, 30)) + np.array([[0], [0.3], [0], [0]])
    values[2, 10:] = np.nan
    values[3] = values[0]
    p, _ = paired_tests(values, 0)
    expected = [
        stats.ttest_rel(values[1], values[0]).pvalue,
        stats.ttest_rel(values[2, :10], values[0, :10]).pvalue,
    ]
    np.testing.assert_allclose(p, [np.nan, *expected, 1])


def test_holm_multiplies_the_smallest_most_and_never_falls():
    np.testing.assert_allclose(
        holm(np.array([0.01, 0.04, np.nan, 0.03, 0.005])), [0.03, 0.06, np.nan, 0.06, 0.02]
    )
    assert holm(np.array([0.9, 0.8])).max() <= 1


def test_runs_are_grouped_over_seeds_and_ordered_best_first(tmp_path):
    for seed, offset in ((1, 0.0), (2, 0.02)):
        write_run(tmp_path / f"pbm{seed}", "PBM", seed, {"ll": -0.5 + offset, "ppl": 1.5})
        write_run(tmp_path / f"ubm{seed}", "UBM", seed, {"ll": -0.4 + offset, "ppl": 1.6})
    write_run(
        tmp_path / "rate", "PBM", 1, {"ll": -0.6, "ppl": 1.4}, settings=[("learning_rate", 0.1)]
    )
    (one,) = compared(tmp_path)
    assert [(group.name, len(group.runs)) for group in one.groups] == [
        ("UBM", 2), ("PBM", 2), ("PBM, learning_rate=0.1", 1),
    ]  # fmt: skip
    assert float(one.groups[0].spread("ll").mean) == pytest.approx(-0.39)
    assert one.groups[0].interval("ll")[2] == "seeds" and one.groups[0].tower == "Embedding"
    assert [group.model for group in compared(tmp_path, ["ppl"])[0].groups] == ["PBM", "PBM", "UBM"]
    assert compared(tmp_path, None, "pbm")[0].baseline.name == "PBM"
    with refuses(UserError, "metric mrr", "ll, ppl"):
        compared(tmp_path, ["mrr"])
    with refuses(UserError, "baseline 'cm'", "UBM, PBM"):
        compared(tmp_path, None, "cm")


@pytest.mark.parametrize(
    "stated, first, arrow",
    [
        (False, "PBM", " ↓"),
        (True, "UBM", " ↑"),
        (None, "DBN", ""),
        ("missing", "DBN", ""),
        ("both", "DBN", ""),
    ],
)
def test_a_metric_goes_the_way_that_results_state(tmp_path, stated, first, arrow):
    """brier: DBN 0.3, PBM 0.1, UBM 0.5. Where no way is stated, or two, rows stay as they came, and nothing is best."""
    for model, value in (("DBN", 0.3), ("PBM", 0.1), ("UBM", 0.5)):
        better = model == "UBM" if stated == "both" else stated
        carried = {} if stated == "missing" else {"higher_is_better": {"brier": better}}
        write_run(tmp_path / model, model, test={"brier": value}, **carried)
    (one,) = compared(tmp_path, ["brier"])
    assert one.groups[0].model == first and one.baseline.model == first
    table = leaderboard(one)
    assert table.header == ["Model", f"Brier{arrow}"]
    places = {name: cell.place for name, cell in table.rows}
    assert places == (
        {"DBN": 2, "PBM": 0, "UBM": 0} | {first: 1} if arrow else dict.fromkeys(places, 0)
    )
    assert bool(one.warnings) == (not arrow)
    shown = data([one], [], tmp_path)["metrics"]
    assert shown["brier"]["direction"] == {" ↓": -1, " ↑": 1, "": 0}[arrow]


LOSSES = {  # by run: the loss of its ranker, None of a click model, and its value
    "softmax": ("SoftmaxLoss", 0.2),
    "again": ("SoftmaxLoss", 0.1),
    "pairwise": ("PairwiseLoss", 0.4),
    "clicks": (None, 0.3),
}


def write_losses(folder, *names):
    for name in names:
        target, loss = LOSSES[name]
        for seed in (1, 2):
            test = {"loss": loss + seed / 100} | ({} if target else {"ll": -loss})
            directions = {"higher_is_better": {"loss": False}}
            file = folder / f"{name}-{seed}"
            settings = [("rate", name)]
            val = {"loss": loss}
            write_run(file, "R", seed, test, settings=settings, val=val, **directions)
            config = yaml.safe_load((file / "config.yaml").read_text())
            config["model"] |= {"loss": {"_target_": target}} if target else {}
            (file / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    "names, mixes",
    [
        (("softmax", "again"), False),
        (("softmax", "pairwise"), True),
        (("softmax", "clicks"), True),
    ],
)
def test_losses_of_several_kinds_are_not_ranked_against_each_other(names, mixes, tmp_path):
    """They stay in the leaderboard, unordered, untested, and in no figure; those of one kind are as any metric."""
    write_losses(tmp_path, *names)
    (one,) = compared(tmp_path, ["loss", "val/loss"])
    assert one.mixes_losses == mixes
    first = "again" if not mixes else min(names)  # the best, or as they came
    assert one.groups[0].runs[0].folder.name == f"{first}-1"
    cells = [cell for _, *row in leaderboard(one).rows for cell in row]
    assert any(cell.place for cell in cells) == (not mixes)
    assert np.isfinite(one.tests["loss"].p).any() == (not mixes)
    assert bool(conclusion(one)) == (not mixes)
    assert any("several kinds" in warning for warning in one.warnings) == mixes
    assert ("differences.md" in tables(one)) == (not mixes)
    assert ("cost" in _panels(one)) == (not mixes or "clicks" in names)
    assert data([one], [], tmp_path)["comparisons"][0]["mixesLosses"] == mixes


def test_labelled_lists_are_counted_where_they_are_not_the_test_sessions(tmp_path):
    sizes = {"sessions": {"train": 100, "test": 50, "ranking": 2000}}
    groups = {"clicks": ["ll"], "ranking": ["ndcg@10"]}
    write_run(tmp_path / "a", "UBM", 1, {"ll": -1, "ndcg@10": 0.5}, data=sizes, groups=groups)
    assert compared(tmp_path)[0].describe() == (
        "one test set of 50 sessions and 2,000 labelled lists"
    )
    sizes["sessions"]["ranking"] = 50  # the sessions themselves
    write_run(tmp_path / "b/c", "UBM", 1, {"ll": -1, "ndcg@10": 0.5}, data=sizes, groups=groups)
    assert compared(tmp_path / "b")[0].describe() == "one test set of 50 sessions"


def test_losses_of_several_kinds_lead_no_table_that_has_something_else(tmp_path):
    write_losses(tmp_path, "softmax", "pairwise")
    for file in tmp_path.glob("*/result.json"):
        content = json.loads(file.read_text())
        content["test"]["snips_dcg@10"] = 0.5
        file.write_text(json.dumps(content))
    (one,) = compared(tmp_path)
    assert one.leading == ("snips_dcg@10",)


def test_what_no_result_states_has_no_direction_but_losses_and_times(tmp_path):
    """Names such as entropy say nothing; every model minimises its loss, whatever metrics it reports."""
    write_run(tmp_path / "a", test={"ll": -0.5, "ndcg@10": 0.5, "entropy": 0.5}, val={"loss": 0.5})
    (one,) = compared(tmp_path)
    names = ("ll", "ndcg@10", "val/ll", "entropy", "val/loss", "train/loss", "seconds")
    assert [one.direction(metric) for metric in names] == [1, 1, 1, 0, -1, -1, -1]


def test_different_test_sets_are_compared_apart(tmp_path):
    write_run(tmp_path / "a", "PBM", test_set="one")
    write_run(tmp_path / "b", "UBM", test_set="other")
    assert [(c.name, [g.name for g in c.groups]) for c in compared(tmp_path)] == [
        ("clicks", ["PBM"]), ("clicks-2", ["UBM"]),
    ]  # fmt: skip


def of_log(content):
    """Where a run had its data from: a file with this content."""
    return {"sources": {"dataset.path": content}, "fingerprint": content, "directory": "/"}


def test_runs_of_one_path_are_apart_where_another_log_is_there_now(tmp_path):
    """Seeds of one log are together, also where its copy has another hash, and so are simulated seeds."""
    for seed in (1, 2):
        for log in ("old", "new"):
            folder = tmp_path / f"{log}{seed}"
            write_run(folder, seed=seed, test_set=log, origin=of_log(log))
    write_run(tmp_path / "copy", seed=3, test_set="new", origin=of_log("copy"))
    found = comparisons(find_runs([tmp_path])[0])
    seeds = [{run.folder.name for run in one.runs} for one in found]
    assert seeds == [{"new1", "new2", "copy"}, {"old1", "old2"}]
    simulated = {"sources": {}, "fingerprint": "f", "directory": "/"}
    for seed in (1, 2):
        write_run(tmp_path / f"s/{seed}", seed=seed, test_set=f"set-{seed}", origin=simulated)
    (one,) = comparisons(find_runs([tmp_path / "s"])[0])
    assert len(one.runs) == 2


def test_groups_share_the_test_sets_of_their_seeds_and_gaps_are_reported(tmp_path):
    for model, seed in (("PBM", 1), ("PBM", 2), ("UBM", 1), ("UBM", 2), ("DBN", 2)):
        write_run(tmp_path / f"{model}{seed}", model, seed, test_set=f"set-{seed}")
    (one,) = compared(tmp_path)
    assert one.describe() == "2 test sets of 50 sessions each, one per seed"
    assert (
        len(one.warnings) == 1
        and "1 of 3 rows average over some of the 2 test sets only" in one.warnings[0]
    )
    assert one.warnings[0].endswith("DBN")


def test_warnings_of_runs_name_the_rows_that_have_them(tmp_path):
    for model, seed, warnings in (
        ("PBM", 1, ["few lists", "short intervals"]),
        ("PBM", 2, ["few lists"]),
        ("UBM", 1, ["few lists"]),
        ("UBM", 2, []),
    ):
        write_run(
            tmp_path / f"{model}{seed}", model, seed, [("ll", -len(model))], warnings=warnings
        )
    (one,) = compared(tmp_path)
    assert one.run_warnings == [
        "few lists (3 of 4 runs: PBM, UBM)",
        "short intervals (1 of 4 runs: PBM)",
    ]


def test_warnings_of_runs_are_printed_and_in_markdown_and_not_in_the_table_of_a_paper(
    tmp_path, capsys
):
    for model, warnings in (("PBM", ["few lists"]), ("UBM", [])):
        write_run(tmp_path / model, model, 1, [("ll", -len(model))], warnings=warnings)
    compare([tmp_path])
    warned = "few lists (1 of 2 runs: PBM)"
    assert f"warning of runs: {warned}." in capsys.readouterr().out
    assert warned in (tmp_path / "tables/leaderboard.md").read_text()
    assert "few lists" not in (tmp_path / "tables/leaderboard.tex").read_text()


def test_kept_values_are_tested_over_queries_as_paired_test_does(tmp_path):
    log_probs = -RNG.random((3, 40, 2))
    log_probs[1] -= 0.1
    for name, own in zip(("PBM", "UBM", "DBN"), log_probs, strict=True):
        write_run(tmp_path / name, name, 1, {"ll": own.mean()}, log_probs=own)
    (one,) = compared(tmp_path, None, "PBM")
    tests = one.tests["ll"]
    row = tests.p[one.baselines.index(one.groups.index(one.baseline))]
    found = {group.name: p for group, p in zip(one.groups, row, strict=True)}
    raw = {
        name: paired_test(tmp_path / name, tmp_path / "PBM", "ll").p_t for name in ("UBM", "DBN")
    }
    small, large = sorted(raw, key=raw.get)
    assert tests.unit == "queries" and np.isnan(found["PBM"])
    assert found[small] == pytest.approx(2 * raw[small])
    assert found[large] == pytest.approx(max(raw[large], 2 * raw[small]))
    assert one.groups[0].interval("ll")[2] == "queries"


def test_lists_with_search_sessions_are_tested_over_these(tmp_path):
    log_probs = -RNG.random((2, 40, 2))
    for name, own in zip(("PBM", "UBM"), log_probs, strict=True):
        write_run(tmp_path / name, name, 1, {"ll": own.mean()}, log_probs=own)
        file = tmp_path / name / "test_sessions.parquet"
        frame = pl.read_parquet(file).with_columns(search_session=np.arange(40) // 4)
        frame.write_parquet(file, metadata={"rank_normalization": "own"})
    (one,) = compared(tmp_path, None, "PBM")
    assert one.tests["ll"].unit == "search sessions"
    means = log_probs.reshape(2, 10, -1).mean(axis=2)
    assert np.nanmin(one.tests["ll"].p) == pytest.approx(stats.ttest_rel(*means).pvalue, rel=1e-5)


def test_queries_of_any_size_are_tested_as_the_bootstrap_does(tmp_path):
    """Queries with many sessions count more in the metric, so they do in its test."""
    rng = np.random.default_rng(1)
    shown = np.arange(3) < rng.integers(1, 4, (600, 1))
    queries = (150 * rng.random(600) ** 2).astype(int)
    first = np.where(shown, -rng.random((600, 3)), np.nan)
    change = rng.normal(0, 0.05, 150)[queries][:, None] + rng.normal(0, 0.1, (600, 3))
    log_probs = [first, first + change - np.nanmean(np.where(shown, change, np.nan)) + 0.007]
    for model, own in zip(("PBM", "UBM"), log_probs, strict=True):
        write_run(
            tmp_path / model, model, 1, {"ll": np.nanmean(own)}, log_probs=own, queries=queries
        )
    bootstrap = paired_test(tmp_path / "PBM", tmp_path / "UBM", "ll", resamples=4000)
    p = np.nanmax(compared(tmp_path)[0].tests["ll"].p)
    assert p == pytest.approx(bootstrap.p_bootstrap, abs=0.06)
    assert p == pytest.approx(bootstrap.p_t)
    for model in ("PBM", "UBM"):
        values = samples(tmp_path / model, "ll")
        assert values.pseudo_values().mean() == pytest.approx(values.total(), abs=1e-3)


def test_seeds_that_share_a_test_set_count_a_query_once(tmp_path):
    log_probs = -RNG.random((2, 2, 40, 2))
    for i, model in enumerate(("PBM", "UBM")):
        for seed in (1, 2):
            own = log_probs[i, seed - 1]
            write_run(tmp_path / f"{model}{seed}", model, seed, {"ll": own.mean()}, log_probs=own)
    (one,) = compared(tmp_path, None, "PBM")
    p = one.tests["ll"].p[one.baselines.index(one.groups.index(one.baseline))]
    queries = log_probs.mean(axis=(1, 3))
    assert np.nanmax(p) == pytest.approx(stats.ttest_rel(queries[0], queries[1]).pvalue)


def test_without_kept_values_seeds_are_paired(tmp_path):
    values = RNG.normal(size=(2, 4))
    for i, model in enumerate(("PBM", "UBM")):
        for seed in range(4):
            write_run(tmp_path / f"{model}{seed}", model, seed, {"ll": values[i, seed]})
    tests = compared(tmp_path)[0].tests["ll"]
    assert tests.unit == "seeds"
    assert np.nanmax(tests.p) == pytest.approx(stats.ttest_rel(values[0], values[1]).pvalue)


def test_reliability_weighs_runs_by_documents(tmp_path):
    curve = {"predicted": [[0.3]], "observed": [[0.6]], "documents": [[10]]}
    write_run(tmp_path / "a", seed=1, curves={"ece": curve})
    write_run(
        tmp_path / "b", seed=2, curves={"ece": curve | {"observed": [[0.0]], "documents": [[30]]}}
    )
    pooled = compared(tmp_path)[0].groups[0].reliability()
    assert pooled["documents"] == 40 and pooled["predicted"] == pytest.approx(0.3)
    assert pooled["observed"] == pytest.approx(0.6 * 10 / 40)


def test_groups_that_overrides_do_not_distinguish_are_named_by_the_configuration(tmp_path):
    for name, patience in (("a", 1), ("b", 5)):
        file = write_run(tmp_path / name, "PBM") / "config.yaml"
        file.write_text(file.read_text() + f"patience: {patience}\n")
    write_run(tmp_path / "c", "PBM", settings=[("learning_rate", 0.1)])
    names = [(group.name, group.rest) for group in compared(tmp_path)[0].groups]
    assert sorted(names) == [
        ("PBM, learning_rate=0.1", "PBM"),
        ("PBM, patience=1", "PBM, patience=1"),
        ("PBM, patience=5", "PBM, patience=5"),
    ]


def write_fold(folder, fold, model, **content):
    """The run of a fold of three, of which each tests on other queries."""
    write_run(folder, model, test_set=f"fold-{fold}", **content)
    config = OmegaConf.load(folder / "config.yaml")
    OmegaConf.update(config, "dataset.fold", fold)
    OmegaConf.update(config, "dataset.folds", 3)
    OmegaConf.save(config, folder / "config.yaml")
    given = OmegaConf.load(folder / ".hydra/overrides.yaml")
    OmegaConf.save([*given, f"dataset.fold={fold}"], folder / ".hydra/overrides.yaml")


def test_folds_are_one_comparison_tested_over_the_queries_of_all(tmp_path):
    rng = np.random.default_rng(0)
    log_probs = -rng.random((2, 3, 30, 2)) - np.array([0, 0.15, 0.3])[None, :, None, None]
    log_probs[1] -= 0.1
    for name, of_folds in zip(("PBM", "UBM"), log_probs, strict=True):
        for fold, own in enumerate(of_folds):
            content = {"test": {"ll": own.mean()}, "log_probs": own}
            write_fold(tmp_path / f"{name}{fold}", fold, name, **content)
    (one,) = compared(tmp_path)
    assert [(group.name, len(group.runs)) for group in one.groups] == [("PBM", 3), ("UBM", 3)]
    assert one.describe().startswith("3 test sets") and one.describe().endswith(", one per fold")
    assert (
        one.uncertainty == "folds"
        and one.groups[0].interval("ll")[2] == "folds"
        and not one.warnings
    )
    assert float(one.groups[0].spread("ll").mean) == pytest.approx(log_probs[0].mean())
    means = log_probs.mean(axis=3).reshape(2, -1)
    expected = stats.ttest_rel(means[1], means[0]).pvalue
    assert one.tests["ll"].p[0, 1] == pytest.approx(expected) and one.tests["ll"].unit == "queries"
    cell = leaderboard(one).rows[0][1]
    low, *_, high = sorted(log_probs[0].mean(axis=(1, 2)))
    assert 0.1 < (high - low) / 2 < 0.2  # two decimals, and one more
    assert (
        cell.text == f"{log_probs[0].mean():.3f}" and cell.deviation == f"({low:.3f}, {high:.3f})"
    )
    assert "mean (lowest, highest) over 3 folds" in leaderboard(one).caption


def test_a_missing_fold_is_told(tmp_path):
    for name, folds in (("PBM", 3), ("UBM", 2)):
        for fold in range(folds):
            write_fold(tmp_path / f"{name}{fold}", fold, name, test={"ll": -0.5 - fold / 10})
    (one,) = compared(tmp_path)
    assert any(
        "1 of 2 rows average over some of the 3 test sets only" in line for line in one.warnings
    )


def test_tables_of_rankers_lead_with_rankings():
    """Click models among them have click metrics, which rankers lack."""
    cutoffs = ["ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10"]
    reported = ["ll", "ppl", "dcg@10", *cutoffs, "map@5", "map@10", "mrr@10"]
    assert leading(reported, clicks=False) == [*cutoffs[::-1], "map@10", "mrr@10", "ll", "ppl"]
    assert leading(reported) == ["ll", "ppl", "ndcg@10", "mrr@10"]
    assert headline(leading(reported, clicks=False)) == ["ndcg@10", "map@10", "mrr@10", "ll", "ppl"]


def test_names_of_rankers_have_loss_and_correction_once(tmp_path):
    for debias in ("none", "ips"):
        write_run(tmp_path / debias, f"Ranker(softmax, {debias})", test={"ndcg@10": 0.5})
        given = OmegaConf.load(tmp_path / debias / ".hydra/overrides.yaml")
        OmegaConf.save([*given, f"debias={debias}"], tmp_path / debias / ".hydra/overrides.yaml")
    (one,) = compared(tmp_path)
    assert {group.name for group in one.groups} == {"Ranker(softmax, none)", "Ranker(softmax, ips)"}
