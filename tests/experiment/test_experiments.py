"""Published experiments: their files hold together, each runs on a log in its layout, and verdicts are earned."""

import importlib.util
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from compositions import CONF, composed, options, run_in, values, with_hydra
from places import ROOT
from refusals import refuses
from small_runs import result_of

from clickexp.data import Sessions, open_lists, open_yandex
from clickexp.data.dataset import Dataset
from clickexp.data.features import Features
from clickexp.errors import UserError
from clickexp.experiment.build import build_model
from clickexp.experiment.instantiate import build_optimizer, constructor
from clickexp.experiment.values import plain
from clickexp.loggers import Logger
from clickexp.results.commands.published import as_csv, compare_published, table
from clickexp.results.publication import Publication
from clickexp.results.reproductions import reproductions
from clickexp.runs.hashing import config_hash
from clickexp.utils.signatures import accepted
from clickexp.utils.tables.latex import latex
from clickexp.utils.tables.markdown import markdown

EXPERIMENTS = [name for name in options("experiment") if name.startswith("clax2025_")]
REFERENCE = "CLAX"
TOY = {"yandex": (1_000, 700), "baidu_ultr": (300, 200), "baidu_ultr_uva": (90, 60)}
"""Sessions in all and in training."""


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sweep_of(experiment):
    """The values that its sweep takes, by key."""
    swept = with_hydra(f"+experiment={experiment}").hydra.sweeper.params
    return {key: str(each).split(",") for key, each in swept.items()}


def reproduction_of(experiment):
    return plain(composed(f"+experiment={experiment}").reproduction)


def tiny_dataset():
    """Ids up to 50,000, so that all but the largest compression have rows to keep, and features."""
    ids = np.arange(1, 50_001).reshape(-1, 5)
    sessions = Sessions.from_arrays(query_doc_ids=ids, clicks=ids % 3 == 0)
    sessions = sessions.with_features(Features(np.zeros((50_001, 4), np.float16)))
    return Dataset("tiny", sessions, sessions, sessions, 50_000, 5)


def name_of(model):
    """What results call a model."""
    new_model = constructor(values(f"model={model}")["model"], "model")
    return new_model.func.name_with(**new_model.keywords)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The layouts, written small."""
    folder = tmp_path_factory.mktemp("miniature") / "logs"
    sizes = (TOY[kind][0] for kind in ("yandex", "baidu_ultr", "baidu_ultr_uva"))
    script("make_miniature").write(folder, "dbn", *sizes, features=8, seed=0)
    return folder


@pytest.fixture(scope="module")
def random_pages(tmp_path_factory):
    """Those of Yandex as CLAX publishes them; nobody has browsed them."""
    folder, rng = tmp_path_factory.mktemp("random"), np.random.default_rng(0)
    pages, _ = TOY["yandex"]
    shape = pages, 10
    log = {"query_doc_ids": rng.integers(1, 2000, shape), "clicks": rng.random(shape) < 0.2}
    log |= {"query_ids": rng.integers(0, 20, pages), "lengths": np.full(pages, 10)}
    script("make_miniature").write_lists(folder / "yandex_clax", log, with_query=True)
    return folder


def test_there_are_the_five_experiments():
    kinds = "yandex_baseline", "compression", "baidu_ids", "baidu_uva", "mixture"
    assert EXPERIMENTS == sorted(f"clax2025_{kind}" for kind in kinds)


@pytest.mark.parametrize("size", ["full", "miniature"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_composes_and_its_parts_build(experiment, size):
    given = [f"+experiment={experiment}", *(["+miniature=true"] if size == "miniature" else [])]
    config = values(*given)
    node = config["reproduction"]
    assert node["size"] == size and node["name"] == experiment
    for part in ("dataset", "model"):
        assert callable(constructor(config[part], part))
    parts = dict(optimizer=build_optimizer(config["optimizer"]), metrics=None, logger=Logger())
    new_trainer = constructor(config["trainer"], "trainer")
    trainer = new_trainer(**accepted(new_trainer, parts))
    assert trainer.batch_size == node[size]["batch_size"] and not trainer.shuffle
    assert (size == "miniature" or trainer.epochs == 100) and trainer.epochs == node[size]["epochs"]
    assert trainer.early_stopping.patience == 0
    for seed in sweep_of(experiment)["seed"]:
        dataset = plain(composed(*given, f"seed={seed}").dataset)
        split = node[size]["splits"][f"seed_{seed}"]
        assert [dataset[f"{part}_sessions"] for part in split] == list(split.values())
        assert dataset["path"] == node[size]["path"]


@pytest.mark.parametrize("size", ["full", "miniature"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_splits_are_of_one_size_and_do_not_overlap(experiment, size):
    splits = reproduction_of(experiment)[size]["splits"]
    sizes = {tuple(stop - start for start, stop in split.values()) for split in splits.values()}
    assert len(splits) == 3 and len(sizes) == 1
    for split in splits.values():
        ranges = sorted(split.values())
        assert all(ranges[i][1] <= ranges[i + 1][0] for i in range(2))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_published_models_are_those_that_run(experiment):
    node = reproduction_of(experiment)
    if experiment == "clax2025_mixture":
        model = values(f"+experiment={experiment}")["model"]
        names = {build_model(constructor(model, "model"), tiny_dataset(), 0).name}
        assert [component["_target_"].split(".")[-1] for component in model["models"]] == [
            "GlobalCTRModel", "DocumentCTRModel", "PositionBasedModel"
        ]  # fmt: skip
    else:
        models = list(sweep_of(experiment)["model"])
        for line in (CONF / f"experiment/{experiment}.yaml").read_text().splitlines():
            # of models that the sweep leaves out
            if line.startswith("# clickexp -m") and " model=" in line:
                models += line.split(" model=")[1].split()[0].split(",")
        names = set(map(name_of, models))
    for reference in node["published"].values():
        assert set(reference["figures"]) == names
    for note in node["notes"]:
        assert set(note.get("models", names)) <= names


def test_the_experiment_of_neural_models_names_its_models_and_gives_no_verdict():
    config, sweep = (
        values("+experiment=deffayet2023_yandex", "dataset.path=log.txt"),
        sweep_of("deffayet2023_yandex"),
    )
    node = config["reproduction"]
    (reference,) = node["published"].values()
    assert set(reference["figures"]) == set(map(name_of, sweep["model"]))
    assert config["trainer"]["batch_size"] == 128 and not node["full"]["splits"]
    for figures in reference["figures"].values():
        assert figures.keys() == {metric for note in node["notes"] for metric in note["metrics"]}
    assert not any(note["comparable"] for note in node["notes"])


def test_the_experiment_of_rankers_names_its_methods_and_gives_no_verdict():
    """Those of its sweep, and of the further commands at its head."""
    config, sweep = (
        values("+experiment=ultr_baidu_uva", "dataset.path=folder"),
        sweep_of("ultr_baidu_uva"),
    )
    further = [("softmax", "dla"), ("lambda", "pair_debias"), ("pointwise", "regression_em")]
    methods = {*itertools.product(sweep["loss"], sweep["debias"]), *further}
    head = (CONF / "experiment/ultr_baidu_uva.yaml").read_text()
    assert all(f"loss={loss} debias={debias}\n" in head for loss, debias in further)
    names = {f"Ranker({loss}, {debias})" for loss, debias in methods} | {"TwoTowers"}
    of = {
        name: reference["figures"]
        for name, reference in config["reproduction"]["published"].items()
    }
    (first, *_) = of.values()
    assert first.keys() <= names and all(figures.keys() == first.keys() for figures in of.values())
    notes = config["reproduction"]["notes"]
    assert not any(note["comparable"] for note in notes)
    assert {name for note in notes for name in note.get("models", [])} <= first.keys()


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_figure_has_a_source_a_metric_and_a_tolerance(experiment):
    node, metrics = reproduction_of(experiment), plain(composed(f"+experiment={experiment}").metric)
    known = {"ll", "cond_ppl", "ppl", "seconds", "loss_per_session"}
    known |= {
        f"{name}@{k}"
        for name, metric in metrics.get("ranking", {}).items()
        for k in metric.get("cutoffs", [])
    }
    open_ended = [note for note in node["notes"] if not note.get("comparable", True)]
    for reference in node["published"].values():
        assert "philipphager/" in reference["source"]
    for model, figures in node["published"][REFERENCE]["figures"].items():
        assert figures.keys() - {"sd"} <= known
        for metric in figures.keys() - {"sd", "seconds"}:
            no_verdict = any(
                metric in note["metrics"] and model in note.get("models", [model])
                for note in open_ended
            )
            assert no_verdict or node["tolerance"][metric] > 0
            if "by" in node:
                assert set(figures[metric]) <= set(node["full"]["compressions"].split(","))


STORES = {"full": "Table", "hash": "HashEmbedding", "qr": "QREmbedding"}


def test_every_compression_is_what_it_is_called():
    dataset = tiny_dataset()
    for compression in sweep_of("clax2025_compression")["compression"]:
        if compression == "qr_1000":  # takes more ids
            continue
        store, _, ratio = compression.partition("_")
        model = values(
            "+experiment=clax2025_compression", f"compression={compression}", "model=sdbn"
        )["model"]
        model = build_model(constructor(model, "model"), dataset, 0)
        for tower in (model.attraction, model.satisfaction):
            assert type(tower.table).__name__ == STORES[store], compression
            assert tower.config.compression_ratio == (int(ratio) if ratio else None)
            assert tower.baseline[...] == 1.0


def test_the_fast_variant_has_our_defaults():
    ours, default = (
        values("+experiment=clax2025_yandex_baseline", "+variant=fast"),
        values("seed=1"),
    )
    assert all(ours[part] == default[part] for part in ("optimizer", "trainer"))
    assert ours["model"]["attraction"] == default["model"]["attraction"]
    assert ours["dataset"]["train_sessions"] == [0, 10_000_000]


@pytest.mark.parametrize("trainer", ["counting", "em"])
def test_estimators_of_pyclick_take_the_place_of_the_published_trainer(trainer):
    ours = composed("+experiment=clax2025_yandex_baseline", "model=sdbn", f"trainer={trainer}")
    assert plain(ours.trainer) == plain(composed(f"trainer={trainer}").trainer)


def test_figures_do_not_change_the_hash_of_a_configuration():
    config = values("+experiment=clax2025_yandex_baseline")
    other = json.loads(json.dumps(config))
    other["reproduction"]["published"][REFERENCE]["figures"]["UBM"]["ppl"] = 1.0
    assert config_hash(other) == config_hash(config)
    assert config_hash(config | {"seed": 2}) != config_hash(config)


def test_a_seed_without_a_split_is_an_error():
    with refuses(Exception, "seed_7"):
        values("+experiment=clax2025_mixture", "seed=7")


SPLIT = ("train", "val", "test")


@pytest.mark.nightly
def test_raw_text_and_parquet_of_yandex_are_the_same_pages(sources):
    relevance = str(sources / "yandex/YandexRelevance.txt")
    raw = open_yandex(sources / "yandex/YandexClicks.txt", relevance=relevance)
    table = open_lists(sources / "yandex_clax", files="part-*.parquet")
    for name in (
        "query_doc_ids",
        "clicks",
        "query_ids",
        "lengths",
    ):  # raw text is split between search sessions
        whole = [
            np.concatenate([getattr(log, part).column(name) for part in SPLIT])
            for log in (raw, table)
        ]
        np.testing.assert_array_equal(*whole)
    users = [set(getattr(raw, part).column("session_ids")) for part in SPLIT]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(users, 2))
    assert set(raw.ranking.column("labels").ravel()) == {0.0, 1.0}
    assert not any(raw.notes.values())
    assert raw.train.count + raw.val.count + raw.test.count == TOY["yandex"][0]


@pytest.mark.nightly
def test_the_miniature_has_the_statistics_of_the_published_log():
    miniature = script("make_miniature")
    log, _ = miniature.pages_of_ten(20_000, miniature.USERS["dbn"], np.random.default_rng(1))
    _, shown = np.unique(log["query_doc_ids"], return_counts=True)
    assert log["query_doc_ids"].shape[1] == 10 and log["lengths"].min() == 10
    assert 3.8 < shown.mean() < 4.6 and np.median(shown) == 1 and shown.max() > 500
    assert (np.diff(log["clicks"].mean(0)) < 0).all()


@pytest.mark.nightly
def test_the_miniature_of_baidu_is_ragged_and_hashed(sources):
    ids = open_lists(sources / "baidu_ultr", files="part-*.parquet").train
    lengths = ids.column("lengths")
    assert {5, 10, 25} <= set(lengths) and np.median(lengths) == 10
    assert ids.column("query_doc_ids").max() > 2**30


CASES = {
    "clax2025_yandex_baseline": ("yandex", ["model=ubm"]),
    "clax2025_compression": ("yandex", ["model=pbm", "compression=hash_10"]),
    "clax2025_baidu_ids": ("baidu_ultr", ["model=cm_marginal"]),
    "clax2025_baidu_uva": ("baidu_ultr_uva", ["model=sdbn"]),
    "clax2025_mixture": ("baidu_ultr_uva", []),
}


def run_toy(sources, folder, experiment, *more, own=None):
    key, chosen = CASES[experiment]
    total, train = TOY[key]
    val = (train + total) // 2
    given = [
        f"+experiment={experiment}", *more, "+miniature=true", *(own or chosen), "trainer.epochs=1", "logger=console",
        "progress=off",
        f"dataset.path={sources / (key if key != 'yandex' else 'yandex_clax')}", f"cache_dir={folder / 'cache'}",
        f"dataset.train_sessions=[0,{train}]", f"dataset.val_sessions=[{train},{val}]",
        f"dataset.test_sessions=[{val},{total}]",
    ]  # fmt: skip
    return run_in(folder / "run", *given)


@pytest.fixture(scope="module")
def labelled_lists(tmp_path_factory):
    """Learning-to-rank files of 20 queries; feature 34 knows something of the labels."""
    folder, rng = tmp_path_factory.mktemp("lists"), np.random.default_rng(0)
    for name, queries in (("rank.train", range(14)), ("rank.test", range(14, 20))):
        lines = [
            f"{label} qid:{query} 1:{label + rng.normal():.3f} 34:{label + 2 * rng.normal():.3f}"
            for query in queries
            for label in rng.integers(0, 5, 12)
        ]
        (folder / name).write_text("\n".join(lines))
    return folder


SMALL = ["trainer.epochs=1", "logger=console", "progress=off", "report=false", "save_model=false"]


@pytest.mark.nightly
@pytest.mark.parametrize("method, name", [("softmax_ips", "Ranker(softmax, ips)"), ("pbm", "PBM")])
def test_the_experiment_of_rankers_from_simulated_clicks_runs(
    labelled_lists, tmp_path, method, name
):
    sizes = [f"dataset.{part}sessions=200" for part in ("", "val_", "test_")]
    own = [
        f"method={method}",
        f"dataset.path={labelled_lists}",
        "dataset.fold=1",
        f"cache_dir={tmp_path}/cache",
    ]
    result = run_in(tmp_path / "run", "+experiment=ultr_letor", *own, *sizes, *SMALL)
    assert result.model == name and 0 < result.test["ndcg@10"] <= 1
    assert result.data.sessions["ranking"] == 4  # a fifth of the queries
    learned = [each.relative for each in result.propensity]
    curve = learned or result.weighting.values  # of the model, or what clicks are weighted by
    assert curve[0] == 1 and len(curve) == 10


@pytest.mark.nightly
def test_the_experiment_of_rankers_on_annotated_lists_runs_and_earns_no_verdict(sources, tmp_path):
    own = [
        f"dataset.path={sources / 'baidu_ultr_uva'}",
        f"cache_dir={tmp_path}/cache",
        "debias=ips",
    ]
    result = run_in(tmp_path / "run", "+experiment=ultr_baidu_uva", *own, *SMALL)
    assert result.model == "Ranker(softmax, ips)" and result.test["dcg@10"] > 0
    (found,) = compare_published([tmp_path])
    assert {row.metric for row in found.rows} == {"dcg@10"}
    assert all(np.isfinite(row.mean) and row.verdict == "other data" for row in found.rows)


def check_report(experiment, result, folder, capsys):
    """It has the published metrics, and no verdict."""
    figures = reproduction_of(experiment)["published"][REFERENCE]["figures"][result.model]
    assert result.data.sessions["train"] == TOY[CASES[experiment][0]][1]
    (found,) = compare_published([folder])
    assert {row.metric for row in found.rows} == figures.keys() - {"sd"}
    for row in found.rows:
        assert np.isfinite(row.mean) and np.isnan(row.difference) and row.verdict == "other data"
        assert found.notes[row.notes[-1] - 1].startswith("other data: ")
    assert markdown(table(found)) in capsys.readouterr().out
    assert {file.suffix for file in (folder / "published").glob(f"{experiment}.*")} == {
        ".md",
        ".tex",
        ".csv",
    }


def test_the_baseline_experiment_runs_and_earns_no_verdict(random_pages, tmp_path, capsys):
    experiment = "clax2025_yandex_baseline"
    result = run_toy(random_pages, tmp_path, experiment, own=["model=rctr"])
    check_report(experiment, result, tmp_path, capsys)


@pytest.mark.nightly
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_runs_and_earns_no_verdict(sources, tmp_path, experiment, capsys):
    result = run_toy(sources, tmp_path, experiment)
    check_report(experiment, result, tmp_path, capsys)


@pytest.mark.nightly
def test_the_fast_variant_runs(sources, tmp_path):
    result = run_toy(sources, tmp_path, "clax2025_yandex_baseline", "+variant=fast")
    assert result.model == "UBM" and np.isfinite(result.test["ppl"])
    (found,) = compare_published([tmp_path])
    assert found.rows[0].model.startswith("UBM, variant=fast")


def runs_of(experiment, tests, seconds=74.0, data=None, **changes):
    """Finished runs, one a seed, as if on the published data."""
    runs = []
    for seed, test in enumerate(tests, start=1):
        model = ["model=ubm"] if "mixture" not in experiment else []
        config = values(f"+experiment={experiment}", *model, f"seed={seed}")
        node = config["reproduction"]
        split = {
            part: stop - start
            for part, (start, stop) in node["full"]["splits"][f"seed_{seed}"].items()
        }
        expected = node["data"]
        split |= {"ranking": expected["ranking"]} if "ranking" in expected else {}
        recorded = {
            "sessions": split | (data or {}),
            "query_doc_pairs": expected.get("query_doc_pairs", 100),
        }
        result = {
            "dataset": expected["dataset"],
            "seed": seed,
            "test": test,
            "train": {"training_seconds": seconds},
            "data": recorded,
            "per_rank": {"sessions": []},
        }
        given = {
            "experiment": experiment,
            "model": "ubm",
            "seed": seed,
            "dataset.path": "somewhere",
        }
        beside = {
            "folder": Path(f"run{seed}"),
            "config": config,
            "words": tuple(f"{key}={value}" for key, value in given.items()),
        }
        runs.append(result_of(result | changes, **beside))
    return runs


def rows_of(runs):
    (found,) = reproductions(runs)
    return {row.metric: row for row in found.rows}, found


def test_mean_deviation_difference_and_verdict():
    moved = (-0.001, 0, 0.001)
    tests = [
        {"ll": -0.2412 + d, "ppl": 1.3088 + 0.0015 + d, "cond_ppl": 1.2866 + 0.0021} for d in moved
    ]
    rows, found = rows_of(runs_of("clax2025_yandex_baseline", tests))
    ppl = rows["ppl"]
    assert (ppl.published, len(ppl.ours)) == ((1.3088, 1.3104), 3)
    np.testing.assert_allclose(
        [ppl.mean, ppl.sd, ppl.difference], [1.3103, 0.001, 0.0015], atol=1e-9
    )
    assert [rows[name].verdict for name in ("ll", "ppl", "cond_ppl")] == ["inside 0.002"] * 2 + [
        "outside 0.002"
    ]
    assert rows["seconds"].difference == 74 / 148 and rows["seconds"].verdict == ""
    row = "| UBM | PPL | 1.3088 | 1.3104 | 1.3103 ± 0.0010 | 3 | +0.0015 | inside 0.002 | 1 |"
    assert row in markdown(table(found))
    assert "UBM & Seconds & 148 & 11,514 & 74 $\\pm$ 0 & 3 & 0.5x &  & 2 " in latex(
        table(found), "tab:x"
    )
    lines = as_csv(found).splitlines()
    assert (
        lines[0]
        == "model,metric,clax,pyclick,ours,ours_sd,splits,difference,verdict,notes,compile_seconds"
    )
    assert len(lines) == 1 + 4


def test_seconds_leave_compilation_out_and_state_it_apart():
    train = {"training_seconds": 74.0, "compile_seconds": 100.0}
    rows, found = rows_of(runs_of("clax2025_yandex_baseline", [{"ll": -0.25}] * 2, train=train))
    assert rows["seconds"].mean == 74 and rows["seconds"].difference == 74 / 148
    assert "| 74 ± 0 (+ 100 compiling) |" in markdown(table(found))
    assert "ours without compilation" in markdown(table(found))
    assert as_csv(found).splitlines()[-1].endswith(",100.0")


@pytest.mark.parametrize(
    "change, why",
    [
        (dict(data={"train": 60_000}), "other data: 60,000 sessions in train, not 10,000,000"),
        (dict(data={"test": 5_000_001}), "other data: 5,000,001 sessions in test"),
        (dict(dataset="other"), "other data: the dataset is other, not yandex_clax"),
        (dict(seed=9), "other data: no published split of seed 9"),
        (dict(data_of={"query_doc_pairs": 571_730}), "other data: 571,730 pairs, not 346,711,929"),
    ],
)
def test_other_data_has_no_verdict(change, why):
    pairs = change.pop("data_of", {})
    (run,) = runs_of("clax2025_yandex_baseline", [{"ppl": 1.3088}], **change)
    moved = run.data.model_copy(update=pairs)
    run = run.model_copy(update={"data": moved})
    assert Publication.of(run).other_data(run).startswith(why)
    rows, found = rows_of([run])
    assert rows["ppl"].verdict == rows["seconds"].verdict == "other data" and np.isnan(
        rows["ppl"].difference
    )
    assert found.notes[rows["ppl"].notes[-1] - 1].startswith(why)


def test_sessions_that_a_filter_leaves_are_the_published_data():
    (run,) = runs_of(
        "clax2025_yandex_baseline", [{"ppl": 1.3088}], data={"val": 3_000_000, "test": 3_000_000}
    )
    assert Publication.of(run).other_data(run) is None
    (run,) = runs_of("clax2025_compression", [{"ppl": 1.3389}], data={"test": 3_000_000})
    assert Publication.of(run).other_data(run).startswith("other data: 3,000,000 sessions in test")
    (run,) = runs_of("clax2025_baidu_uva", [{"ppl": 1.2280}], data={"ranking": 7_007})
    assert Publication.of(run).other_data(run) == "other data: 7,007 labelled lists, not 7,008"


def test_where_conventions_differ_there_is_no_verdict():
    model = "Mixture(GCTR, DCTR, PBM)"
    test = {"ll": -0.1865, "ppl": 1.2287, "dcg@10": 7.7}
    per_rank = {"sessions": [250_000, 150_000]}
    rows, _ = rows_of(runs_of("clax2025_mixture", [test], model=model, per_rank=per_rank))
    assert rows["ll"].verdict == "not comparable" and rows["ppl"].verdict == "inside 0.002"
    assert rows["dcg@10"].verdict == "outside 0.05"
    np.testing.assert_allclose(rows["loss_per_session"].mean, 0.1865 * 400_000 / 250_000)


def test_twice_the_published_deviation_holds_where_it_is_more():
    test = {"dcg@10": 7.69 + 0.8}
    rows, _ = rows_of(runs_of("clax2025_baidu_uva", [test], model="DBN"))
    assert rows["dcg@10"].verdict == "inside 0.814"


def test_runs_of_no_published_experiment_are_an_error(tmp_path):
    (run,) = runs_of("clax2025_yandex_baseline", [{"ppl": 1.3}])
    (tmp_path / "run").mkdir()
    run.model_copy(update={"folder": tmp_path / "run"}).write()
    with refuses(
        UserError, "published figures", "clickexp -m +experiment=clax2025_yandex_baseline"
    ):
        compare_published([tmp_path])
    with refuses(UserError, "--published", "leave --baseline out"):
        compare_published([tmp_path], baseline="UBM")


def write_folder(run, folder, node):
    """The run on disk, with this for its reproduction node."""
    folder.mkdir()
    run.model_copy(update={"folder": folder}).write()
    (folder / "config.yaml").write_text(yaml.safe_dump({**run.config, "reproduction": node}))


DAMAGES = {
    "no name": lambda node: node.pop("name"),
    "no paper": lambda node: node.pop("paper"),
    "no data": lambda node: node.pop("data"),
    "no tolerance": lambda node: node.pop("tolerance"),
    "no source": lambda node: node["published"][REFERENCE].pop("source"),
    "no figures": lambda node: node["published"][REFERENCE].pop("figures"),
    "published is a list": lambda node: node.update(published=[1]),
    "figures are text": lambda node: node["published"][REFERENCE]["figures"]["UBM"].update(
        ppl="1.3"
    ),
    "notes are numbers": lambda node: node.update(notes=[1]),
    "no such key": lambda node: node.update(by="nothing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_reproduction_is_skipped_in_one_line(damage, tmp_path, capsys):
    good, bad = runs_of("clax2025_yandex_baseline", [{"ppl": 1.3}, {"ppl": 1.3}])
    node = json.loads(json.dumps(bad.config["reproduction"]))
    DAMAGES[damage](node)
    write_folder(good, tmp_path / "good", good.config["reproduction"])
    write_folder(bad, tmp_path / "bad", node)
    (found,) = compare_published([tmp_path])
    assert {len(row.ours) for row in found.rows} == {1}
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped")]
    assert f"{tmp_path / 'bad'}: the reproduction in its config.yaml is damaged" in line


def test_names_of_a_reproduction_are_text(tmp_path, capsys):
    """They are no paths, commands, formulas or control characters."""
    (run,) = runs_of("clax2025_yandex_baseline", [{"ppl": 1.3}], model="=1+1|x")
    node = json.loads(json.dumps(run.config["reproduction"]))
    node |= {
        "name": "../../x/y",
        "paper": r"\input{x}",
        "notes": [{"text": "a\n\n</td><img src=x>"}],
    }
    node["published"] = {"=cmd()": {**node["published"][REFERENCE], "source": "\\write18{id}\x1b"}}
    write_folder(run, tmp_path / "run", node)
    before = {*tmp_path.rglob("*")}
    compare_published([tmp_path / "run"], output=tmp_path / "a/b")
    written = {file for file in {*tmp_path.rglob("*")} - before if file.is_file()}
    assert {(file.parent, file.suffix) for file in written} == {
        (tmp_path / "a/b/published", suffix) for suffix in (".json", ".md", ".tex", ".csv")
    }
    text = {file.suffix: file.read_text() for file in written}
    assert not re.search(r"(?<!\\)<img|(?<!\\)\[", text[".md"]) and r"=1+1\|x" in text[".md"]
    assert r"\textbackslash{}input\{x\}" in text[".tex"] and "\n\n" not in text[".tex"]
    label = re.search(r"\\label\{tab:([\w-]+)\}", text[".tex"])[1]
    assert tmp_path / f"a/b/published/{label}.tex" in written
    assert (
        "'=1+1|x,PPL" in text[".csv"].replace("ppl", "PPL")
        and "'=cmd()" in text[".csv"].splitlines()[0]
    )
    assert "\x1b" not in capsys.readouterr().out


def test_the_page_of_reproductions_is_what_the_files_say():
    text = (ROOT / "docs/reproductions.md").read_text()
    assert script("reproductions").replaced(text) == text
