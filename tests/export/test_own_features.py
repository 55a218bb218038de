"""Rankers of features that a log brings: right orders of new documents, whose features come from the file."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from refusals import refuses
from untrained import new_run

import clickexp
from clickexp.errors import UserError
from clickexp.export.export import export
from clickexp.export.fitted import fitted

FEATURES = "query_doc_features"
WEIGHTS = np.array([1.5, -1.0, 0.5, 0.0, 0.8])
QUIET = {"logger": [], "progress": "off", "report": False, "metric": ["click"]}


def vectors_of(rng, *shape):
    return rng.normal(size=(*shape, len(WEIGHTS))).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """3,000 sessions of a position-based user, examination 1 / k, and 30 judged lists of new documents."""
    folder, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    documents = vectors_of(rng, 40, 12)
    relevance = 1 / (1 + np.exp(1 - documents @ WEIGHTS))
    rows = {"query_id": [], "query_doc_ids": [], FEATURES: [], "clicks": []}
    for _ in range(3000):
        query = int(rng.integers(40))
        scores = documents[query, :, 0] - documents[query, :, 1] + rng.normal(size=12)
        shown = np.argsort(-scores)[:6]
        examined = rng.random(6) < 1 / np.arange(1, 7)
        rows["query_id"].append(f"q{query}")
        rows["query_doc_ids"].append([f"q{query}d{document}" for document in shown])
        rows[FEATURES].append(documents[query, shown].tolist())
        rows["clicks"].append((examined & (rng.random(6) < relevance[query, shown])).tolist())
    pl.DataFrame(rows).write_parquet(folder / "clicks.parquet")
    judged = vectors_of(rng, 30, 12)
    labels = np.clip(np.floor(judged @ WEIGHTS + 1), 0, 4)
    ids = [[f"t{query}d{document}" for document in range(12)] for query in range(30)]
    lists = {"query_doc_ids": ids, FEATURES: judged.tolist(), "labels": labels.tolist()}
    pl.DataFrame(lists).write_parquet(folder / "judged.parquet")
    return folder


def ndcg(ranking, judged, top=5):
    """The mean nDCG of a ranking of judged lists, by definition."""
    discounts, found = 1 / np.log2(2 + np.arange(top)), []
    for number, (ids, labels) in enumerate(judged.select("query_doc_ids", "labels").rows(), 1):
        gains = dict(zip(ids, 2.0 ** np.array(labels) - 1, strict=True))
        order = ranking.filter(pl.col("list") == number).sort("rank")["document"]
        best = sorted(gains.values(), reverse=True)[:top]
        found.append(sum(discounts * [gains[each] for each in order[:top]]) / sum(discounts * best))
    return np.mean(found)


def trained(folder, name, **settings):
    given = {"dataset.path": folder / "clicks.parquet", "dataset.pair_key": "query_document"}
    given |= {"attraction": "linear", "trainer.epochs": 8, "cache_dir": folder / "cache"}
    clickexp.run(folder=folder / name, dataset="lists", **given, **settings, **QUIET)
    return folder / name


@pytest.fixture(scope="module")
def debiased(folder):
    return trained(folder, "dla", model="ranker", loss="softmax", debias="dla")


def test_a_corrected_ranker_orders_new_documents_above_a_naive_one(folder, debiased):
    """The features of the file order them: a table of the log's own rows would order at random, .4."""
    naive = trained(folder, "naive", model="ranker", loss="softmax", debias="none")
    judged, found = pl.read_parquet(folder / "judged.parquet"), {}
    for run in (debiased, naive):
        export(run, rank=folder / "judged.parquet")
        found[run.name] = ndcg(pl.read_parquet(run / "export/ranking.parquet"), judged)
    assert found["dla"] > 0.97 and found["dla"] > found["naive"] + 0.02 > 0.6


def test_files_without_ids_and_with_ids_of_any_kind_have_one_order(
    folder, debiased, tmp_path, capsys
):
    lists = pl.read_parquet(folder / "judged.parquet")
    numbers = lists.with_columns(query_doc_ids=pl.lit([*range(1, 13)], pl.List(pl.Int64)))
    scores = []
    for name, table in (("text", lists), ("numbers", numbers), ("none", lists.select(FEATURES))):
        table.write_parquet(tmp_path / f"{name}.parquet")
        export(debiased, tmp_path / name, rank=tmp_path / f"{name}.parquet")
        ranking = pl.read_parquet(tmp_path / name / "ranking.parquet")
        scores.append(ranking["score"].to_list())
        if name != "text":
            assert sorted(ranking["document"].to_list()[:12]) == [*range(1, 13)]
    assert scores[0] == scores[1] == scores[2]
    assert "not in the log" not in capsys.readouterr().err
    lists.select("query_doc_ids").write_parquet(tmp_path / "bare.parquet")
    with refuses(UserError, "bare.parquet", f"no column '{FEATURES}'"):
        export(debiased, tmp_path / "bare", rank=tmp_path / "bare.parquet")
    wide = lists.with_columns(pl.col(FEATURES).list.eval(pl.element().list.head(3)))
    wide.write_parquet(tmp_path / "wide.parquet")
    with refuses(UserError, "wide.parquet", "vectors of 3 numbers", "reads 5"):
        export(debiased, tmp_path / "wide", rank=tmp_path / "wide.parquet")


def test_predictions_of_a_file_read_its_features(folder, tmp_path):
    given = ["dataset=lists", f"dataset.path={folder / 'clicks.parquet'}", "model=pbm"]
    run = new_run(
        tmp_path / "run", *given, "parameter@attraction=linear", "dataset.pair_key=query_document"
    )
    lists = pl.read_parquet(folder / "clicks.parquet").tail(300)
    lists.write_parquet(tmp_path / "lists.parquet")
    export(run, tmp_path / "own", predict="")
    export(run, tmp_path / "file", predict=tmp_path / "lists.parquet")
    own, file = (
        pl.read_parquet(tmp_path / each / "predictions.parquet") for each in ("own", "file")
    )
    for name in ("relevance", "click_probability", "conditional_click_probability"):
        np.testing.assert_allclose(
            file[name].explode().to_numpy(), own[name].explode().to_numpy(), rtol=1e-5
        )
    assert file["documents"].to_list() == lists["query_doc_ids"].to_list()


def impressions(seed, gaps=True):
    rng = np.random.default_rng(seed)
    count = 60
    price = [
        None if gaps and rng.random() < 0.2 else float(each) for each in rng.normal(90, 9, count)
    ]
    brand = [("acme", "bolt", "core")[number] for number in rng.integers(0, 3, count)]
    return {"price": price, "sale": (rng.random(count) < 0.5).tolist(), "brand": brand}


@pytest.fixture(scope="module")
def columns(tmp_path_factory):
    """A run on impressions whose features are a price with gaps, a flag and a brand."""
    folder, rng = tmp_path_factory.mktemp("columns"), np.random.default_rng(1)
    rows = {
        "session": np.repeat(np.arange(20), 3),
        "query": np.repeat(np.arange(20) % 4, 3),
        "document": np.arange(60) % 9,
        "rank": np.arange(60) % 3 + 1,
        "click": rng.integers(0, 2, 60),
        **impressions(1),
    }
    pl.DataFrame(rows).write_parquet(folder / "log.parquet")
    given = ["dataset=impressions", f"dataset.path={folder / 'log.parquet'}", "model=pbm"]
    given += ["dataset.features=[price,sale,brand]", "dataset.missing=indicator"]
    return new_run(folder / "run", *given, "parameter@attraction=linear"), folder


def scores_by_hand(run, rows):
    """The logits of the linear tower for vectors made in float64."""
    log = pl.read_parquet(run.parent / "log.parquet")[:48]
    known = np.array([each for each in log["price"] if each is not None])
    price = np.array([np.nan if each is None else each for each in rows["price"]])
    filled = np.where(np.isnan(price), known.mean(), price)
    deviation = np.sqrt(((known - known.mean()) ** 2).sum() / len(log))
    parts = [(filled - known.mean()) / deviation, np.array(rows["sale"], float)]
    brands = json.loads((run / "encoding.json").read_text())["categories"]["brand"]
    assert brands == list(dict.fromkeys(log["brand"]))
    parts += [(np.array(rows["brand"]) == brand).astype(float) for brand in brands]
    parts.append(np.isnan(price).astype(float))
    kernel, bias = (
        np.load(run / "model.npz")[f"attraction/linear/{name}"] for name in ("kernel", "bias")
    )
    return np.stack(parts, axis=1) @ kernel[:, 0].astype(np.float64) + bias


def test_columns_are_encoded_as_in_training_wherever_a_ranker_serves(columns, tmp_path, capsys):
    run, _ = columns
    rows = impressions(2)
    rows["brand"][0] = "new"
    expected = scores_by_hand(run, rows)
    lists = pl.DataFrame({name: [values] for name, values in rows.items()})
    lists.write_parquet(tmp_path / "lists.parquet")
    export(run, tmp_path, rank=tmp_path / "lists.parquet", numpy=True)
    assert "1 values of brand are categories that training does not show" in capsys.readouterr().err
    ranking = pl.read_parquet(tmp_path / "ranking.parquet").sort("document")
    np.testing.assert_allclose(ranking["score"], -np.logaddexp(0, -expected), rtol=1e-4)
    code = f"""
import sys
sys.modules.update(jax=None, flax=None, clickexp=None)
sys.path.insert(0, {str(tmp_path)!r})
import json
from ranker import Scorer
scorer = Scorer({str(tmp_path / "ranker.npz")!r})
print(json.dumps(scorer.score(scorer.vectors({rows!r})).tolist()))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    scores = json.loads(done.stdout)
    np.testing.assert_allclose(scores, -np.logaddexp(0, -expected), rtol=1e-5)
    pytest.importorskip("onnx", reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime")
    from clickexp.models.ranker.scorer import Scorer

    export(run, tmp_path, onnx=tmp_path / "ranker.onnx")
    features = Scorer(tmp_path / "ranker.npz").vectors(rows).astype(np.float32)
    (of_onnx,) = runtime.InferenceSession(str(tmp_path / "ranker.onnx")).run(
        None, {"features": features}
    )
    np.testing.assert_allclose(of_onnx, scores, rtol=1e-5)


def test_columns_that_towers_read_one_by_one_serve(columns, tmp_path):
    """Relevance of DBN is attraction, by a price, times satisfaction, by a brand: scored as a file of lists is."""
    _, folder = columns
    given = ["dataset=impressions", f"dataset.path={folder / 'log.parquet'}", "model=dbn"]
    given += ["+dataset.columns.price={dtype: float32, fill: 80}"]
    given += ["+dataset.columns.brand={dtype: category}"]
    given += ["parameter@attraction=linear", "attraction.use_feature=price"]
    given += ["parameter@satisfaction=embedding", "satisfaction.use_feature=brand"]
    run, rows = new_run(tmp_path / "run", *given), impressions(3, gaps=False)
    rows["brand"][0], rows["price"] = "new", [price / 90 for price in rows["price"]]
    pl.DataFrame({name: [rows[name]] for name in ("price", "brand")}).write_parquet(
        tmp_path / "lists.parquet"
    )
    export(run, rank=tmp_path / "lists.parquet", numpy=True)
    from clickexp.models.ranker.scorer import Scorer

    scorer = Scorer(run / "export/ranker.npz")
    vectors = scorer.vectors(rows)
    ranking = pl.read_parquet(run / "export/ranking.parquet").sort("document")
    assert len({round(score, 5) for score in ranking["score"]}) > 10
    np.testing.assert_allclose(scorer.score(vectors), ranking["score"], rtol=1e-4)
    pytest.importorskip("onnx", reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime")
    export(run, onnx=tmp_path / "ranker.onnx")
    (of_onnx,) = runtime.InferenceSession(str(tmp_path / "ranker.onnx")).run(
        None, {"features": vectors.astype(np.float32)}
    )
    np.testing.assert_allclose(of_onnx, ranking["score"], rtol=1e-4)


def test_another_log_is_encoded_as_the_run_has_learned(columns, tmp_path):
    """Its own prices have another mean, and its brands come in another order."""
    run, folder = columns
    log = pl.read_parquet(folder / "log.parquet")
    other = log.reverse().sort("session").with_columns(pl.col("price") + 1000)
    other.write_parquet(tmp_path / "other.parquet")
    first, second = fitted(run), fitted(run, tmp_path / "other.parquet")
    assert first.log.encoding == second.log.encoding and not second.is_own
    deviation = first.log.encoding.features.scale[0]
    shift = (
        second.log.train.column(FEATURES)[..., 0].mean()
        - first.log.train.column(FEATURES)[..., 0].mean()
    )
    assert shift > 100 * deviation


def test_documents_have_the_vectors_that_the_log_shows_last(columns):
    run, folder = columns
    export(run)
    documents = pl.read_parquet(run / "export/documents.parquet")
    log = pl.read_parquet(folder / "log.parquet")
    train, held_out = log[:48], log[48:]
    shown = pl.concat([held_out, train]).unique(
        ["query", "document"], keep="last", maintain_order=True
    )
    logits = scores_by_hand(run, shown.to_dict(as_series=False))
    of_log = shown.with_columns(expected=pl.Series(1 / (1 + np.exp(-logits))))
    joined = documents.join(of_log, on=["query", "document"])
    assert joined.height == documents.height
    np.testing.assert_allclose(joined["attraction"], joined["expected"], rtol=1e-4)


def test_a_column_that_the_model_reads_is_asked_for(columns, tmp_path):
    run, _ = columns
    pl.DataFrame({"price": [[1.0]], "sale": [[True]]}).write_parquet(tmp_path / "lists.parquet")
    with refuses(UserError, "no column 'brand'", "price"):
        export(run, tmp_path, rank=tmp_path / "lists.parquet")


def test_lists_of_a_letor_run_are_scored_by_their_own_features(tmp_path):
    """Transformed as those of training: `dataset=letor` takes logarithms."""
    rng = np.random.default_rng(0)
    for name in ("train.txt", "test.txt"):
        lines = [
            f"{document % 3} qid:{query} 0:{rng.normal():.3f} 1:{10 * rng.normal():.3f}"
            for query in range(6)
            for document in range(4)
        ]
        (tmp_path / name).write_text("\n".join(lines))
    few = [f"dataset.{part}sessions=30" for part in ("", "val_", "test_")]
    given = ["dataset=letor", f"dataset.path={tmp_path}", "dataset.policy=random", *few]
    run = new_run(tmp_path / "run", "model=pbm", "parameter@attraction=linear", *given)
    vectors = 10 * rng.normal(size=(2, 3, 2))
    lists = {"query_doc_ids": [[1, 2, 3]] * 2, FEATURES: vectors.tolist()}
    pl.DataFrame(lists).write_parquet(tmp_path / "lists.parquet")
    export(run, rank=tmp_path / "lists.parquet", numpy=True)
    from clickexp.models.ranker.scorer import Scorer

    expected = Scorer(run / "export/ranker.npz").score(vectors.astype(np.float32))
    ranking = pl.read_parquet(run / "export/ranking.parquet").sort("list", "document")
    np.testing.assert_allclose(ranking["score"], expected.ravel(), rtol=1e-4)


def test_files_of_a_letor_run_are_encoded_as_the_run_has_learned(tmp_path, capsys):
    """The same lists as a learning-to-rank file, as a table and by NumPy; one feature is missing."""
    rng = np.random.default_rng(0)
    vectors = 10 * rng.normal(size=(12, 3))
    for name in ("train.txt", "test.txt"):
        lines = [
            f"{number % 3} qid:{number // 4} " + " ".join(f"{i}:{x}" for i, x in enumerate(vector))
            for number, vector in enumerate(vectors)
        ]
        lines[5] = lines[5].replace(f"1:{vectors[5, 1]}", "1:1.7976e308")
        lines[7] += " 3:8.5"
        (tmp_path / name).write_text("\n".join(lines))
    few = [f"dataset.{part}sessions=30" for part in ("", "val_", "test_")]
    given = ["dataset=letor", f"dataset.path={tmp_path}", "dataset.policy=random", *few]
    given += ["dataset.features=[0,1,2]"]  # of four
    given += ["dataset.standardize=true", "dataset.missing=indicator", "dataset.val_queries=0.34"]
    run = new_run(tmp_path / "run", "model=pbm", "parameter@attraction=linear", *given)
    vectors[5, 1] = np.nan
    lists = vectors.reshape(3, 4, 3).tolist()
    lists[1][1][1] = None
    pl.DataFrame({FEATURES: lists}).write_parquet(tmp_path / "lists.parquet")
    scores = []
    for file in ("test.txt", "lists.parquet"):
        export(run, rank=tmp_path / file, numpy=True)
        ranking = pl.read_parquet(run / "export/ranking.parquet")
        scores.append(ranking.sort("list", "score")["score"].to_numpy())
    assert "test.txt: missing features: 1" in capsys.readouterr().err
    from clickexp.models.ranker.scorer import Scorer

    scorer = Scorer(run / "export/ranker.npz")
    by_hand = np.sort(scorer.score(vectors).reshape(3, 4), axis=1).ravel()
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5)
    np.testing.assert_allclose(scores[0], by_hand, rtol=1e-4)
    log = fitted(run).log
    np.testing.assert_allclose(
        scorer.encoded(np.sign(vectors) * np.log1p(np.abs(vectors))),
        log.train.features.values[13:],
        atol=1e-4,
    )
    pytest.importorskip("onnx", reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime")
    export(run, onnx=tmp_path / "ranker.onnx")
    (of_onnx,) = runtime.InferenceSession(str(tmp_path / "ranker.onnx")).run(
        None, {"features": vectors.astype(np.float32)}
    )
    np.testing.assert_allclose(of_onnx, scorer.score(vectors), rtol=1e-4)
    again = new_run(
        tmp_path / "again", "model=pbm", *given[:2], *few, f"dataset.policy_ranker={run}",
        "dataset.policy=ranker", "dataset.policy_noise=0.0", "dataset.keep_policy_scores=true",
        "dataset.missing=mean", "dataset.features=[0,1,2]", "dataset.val_queries=0.34",
    )  # fmt: skip
    found = fitted(again).log.ranking
    order = np.argsort(-found.column("policy_scores"), axis=1)
    np.testing.assert_array_equal(
        order, np.argsort(-scorer.score(vectors).reshape(3, 4), axis=1, kind="stable")
    )
