"""Rankers that serve: files of lists in order, and scorers of NumPy and ONNX that agree with the model to 1e-6."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from flax import nnx
from posteriors import filled
from refusals import refuses
from small_logs import fill_tables
from untrained import new_run

from clickexp import models
from clickexp.cli.export import main
from clickexp.data import Dataset, Features, Sessions
from clickexp.errors import UserError
from clickexp.evaluation.scores import relevance_scores
from clickexp.export.export import export
from clickexp.export.fitted import fitted
from clickexp.export.predict import single_documents
from clickexp.export.ranker import described
from clickexp.models.ranker import scorer
from clickexp.models.ranker.ranker import Ranker
from clickexp.parameters import (
    DeepCrossParameterConfig,
    DeepParameterConfig,
    EmbeddingParameterConfig,
    GlobalParameterConfig,
    HashEmbedding,
    LinearParameterConfig,
)
from clickexp.utils.signatures import accepted

PAIRS, RANKS, WIDTH = 40, 5, 6
CLOSE = dict(rtol=1e-6, atol=1e-6)
TOWERS = {
    "linear": LinearParameterConfig(),
    "linear without norm": LinearParameterConfig(input_norm=None),
    "deep": DeepParameterConfig(),
    "deep of no layers": DeepParameterConfig(layers=0, norm=None),
    **{
        f"deep {function.__name__}": DeepParameterConfig(
            activation_fn=function, norm=None, dropout=0.5
        )
        for function in (jax.nn.relu, jnp.tanh, jax.nn.sigmoid, jax.nn.silu, jax.nn.softplus)
    },
    "deep_cross": DeepCrossParameterConfig(),
    "deep_cross parallel": DeepCrossParameterConfig(
        combination="parallel", cross_layers=1, deep_layers=1
    ),
    "deep_cross without deep layers": DeepCrossParameterConfig(deep_layers=0),
    "embedding": EmbeddingParameterConfig(posterior="none"),
    "embedding of several numbers": EmbeddingParameterConfig(
        posterior="none", embedding_features=3
    ),
    "embedding with posteriors": EmbeddingParameterConfig(posterior="normal_by_rank"),
    "hash": EmbeddingParameterConfig(
        posterior="none", embedding_fn=HashEmbedding, compression_ratio=4
    ),
    "global": GlobalParameterConfig(0.3),
}


def some(names, *chosen):
    """Cases of a test: those chosen, the others each night."""
    nightly = pytest.mark.nightly
    return [name if name in chosen else pytest.param(name, marks=nightly) for name in names]


MODELS = {
    **{
        name: getattr(models, name)
        for name in ("CascadeModel", "PositionBasedModel", "UserBrowsingModel")
    },
    **{
        name: getattr(models, name)
        for name in ("DependentClickModel", "ClickChainModel", "TrustBiasModel")
    },
    "DynamicBayesianNetwork": models.DynamicBayesianNetwork,
    "Ranker": Ranker,
}


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    features = rng.normal(0, 2, (PAIRS + 1, WIDTH)).astype(np.float32)
    features[0] = 0
    log = Sessions.from_arrays(
        query_doc_ids=rng.integers(1, PAIRS + 1, (30, RANKS)).astype(np.int32),
        clicks=rng.random((30, RANKS)) < 0.3,
        query_doc_pairs=PAIRS,
    ).with_features(Features(features))
    return Dataset("log", log, log, log, PAIRS, RANKS)


def built(kind, dataset, **towers):
    known = {
        "positions": RANKS,
        "query_doc_pairs": PAIRS,
        "features": dataset.train.feature_lengths,
    }
    return kind(**accepted(kind, known), **towers, rngs=nnx.Rngs(3))


def scores_of(model, dataset):
    ids = np.arange(PAIRS + 1)
    return np.concatenate([*relevance_scores(model)(single_documents(dataset, ids))])[:, 0]


def randomised(model):
    """Norms and biases start at 1 and 0, which would hide a mistake."""
    rng = np.random.default_rng(1)
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Param) and node.ndim > 0:
            node.set_value(
                node.get_value() + jnp.asarray(0.3 * rng.normal(size=node.shape), jnp.float32)
            )
    model.eval()
    return model


def served(ranker, dataset):
    return ranker.score(
        np.asarray(dataset.train.features.values), np.arange(PAIRS + 1), transformed=True
    )


def onnx_session(ranker):
    """Runs the ONNX model of a ranker: its scores, by the inputs that it reads."""
    pytest.importorskip("onnx", reason="needs the extra onnx")
    runtime = pytest.importorskip("onnxruntime")
    from clickexp.export.onnx_graph import onnx_model

    session = runtime.InferenceSession(onnx_model(ranker).SerializeToString())
    names = [own.name for own in session.get_inputs()]
    return lambda **inputs: session.run(None, {name: inputs[name] for name in names})[0]


def assert_served(ranker, model, dataset):
    """NumPy and ONNX score documents as the model does, and unknown ones alike."""
    expected, features = scores_of(model, dataset), np.asarray(dataset.train.features.values)
    np.testing.assert_allclose(served(ranker, dataset), expected, **CLOSE)
    score = onnx_session(ranker)
    np.testing.assert_allclose(
        score(features=features, ids=np.arange(PAIRS + 1)), expected, **CLOSE
    )
    if ranker.reads_ids:
        unknown = np.full(PAIRS + 1, 10**9)
        of_unknown = ranker.score(None if ranker.width is None else features, unknown)
        np.testing.assert_allclose(score(features=features, ids=unknown), of_unknown, **CLOSE)


@pytest.mark.parametrize("tower", some(TOWERS, "embedding with posteriors"))
def test_each_tower_scores_as_the_model_does(dataset, tower):
    model = built(models.PositionBasedModel, dataset, attraction=TOWERS[tower])
    model = randomised(filled(model) if "posterior" in tower else fill_tables(model))
    ranker = described(model, dataset)
    assert_served(ranker, model, dataset)
    assert (ranker.width is None) == ranker.reads_ids


def test_onnx_has_each_operation_of_the_scorer():
    pytest.importorskip("onnx", reason="needs the extra onnx")
    from clickexp.export import onnx_graph

    assert onnx_graph.OPERATIONS.keys() == scorer.OPERATIONS.keys()


@pytest.mark.parametrize("kind", some(MODELS, "DynamicBayesianNetwork"))
def test_each_model_scores_by_its_towers(dataset, kind):
    tower = DeepCrossParameterConfig()
    model = randomised(fill_tables(built(MODELS[kind], dataset, attraction=tower)))
    ranker = described(model, dataset)
    assert_served(ranker, model, dataset)
    tables = [operation for _, operation, _, _ in ranker.description["steps"] if operation == "row"]
    assert len(tables) == (1 if kind == "DynamicBayesianNetwork" else 0)  # of satisfaction


def test_a_click_rate_of_documents_is_a_table(dataset):
    model = fill_tables(built(models.DocumentCTRModel, dataset))
    ranker = described(model, dataset)
    np.testing.assert_allclose(served(ranker, dataset), scores_of(model, dataset), **CLOSE)


def test_unknown_documents_get_the_score_of_row_0(dataset):
    model = filled(
        built(models.PositionBasedModel, dataset, attraction=TOWERS["embedding with posteriors"])
    )
    ranker = described(model, dataset)
    expected = scores_of(model, dataset)
    np.testing.assert_allclose(
        ranker.score(ids=[0, PAIRS + 1, -3, 10**9, 7]), expected[[0, 0, 0, 0, 7]], **CLOSE
    )


def test_documents_without_a_vector_do_not_hide_that_a_score_is_a_sum(dataset):
    """On another log than that of the run, unknown documents have none."""
    model = randomised(
        built(models.PositionBasedModel, dataset, attraction=LinearParameterConfig())
    )
    expected = scores_of(model, dataset)
    known = np.arange(PAIRS + 1) % 3 > 0
    values = np.where(known[:, None], dataset.train.features.values, np.nan).astype(np.float32)
    train = dataset.train.with_features(Features(values))
    ranker = described(model, dataclasses.replace(dataset, train=train))
    np.testing.assert_allclose(served(ranker, dataset), expected, **CLOSE)


def test_features_are_transformed_as_the_dataset_does(dataset):
    model = randomised(
        built(models.PositionBasedModel, dataset, attraction=LinearParameterConfig())
    )
    ranker = described(model, dataset, "log1p")
    x = np.asarray(dataset.train.features.values)
    raw = np.sign(x) * np.expm1(np.abs(x.astype(np.float64)))
    np.testing.assert_allclose(ranker.score(raw), scores_of(model, dataset), **CLOSE)
    assert np.array_equal(ranker.rank(raw), np.argsort(-ranker.score(raw), kind="stable"))


def test_what_a_scorer_needs_is_said(dataset):
    ranker = described(
        built(models.PositionBasedModel, dataset, attraction=LinearParameterConfig()), dataset
    )
    with pytest.raises(ValueError, match="the ranker reads features: give vectors of 6 numbers"):
        ranker.score(ids=[1])
    with pytest.raises(
        ValueError, match=r"features have shape \(2, 5\), and the ranker reads 6 per document"
    ):
        ranker.score(np.zeros((2, 5)))
    table = described(fill_tables(built(models.DocumentCTRModel, dataset)), dataset)
    with pytest.raises(ValueError, match="the ranker has a table of ids: give ids"):
        table.score(np.zeros((2, 6)))
    for ids in ([1.5], ["a"], [True]):  # the first row for 1.5 would be that of another document
        with pytest.raises(
            ValueError, match="ids are whole numbers, query_doc_id of documents.par"
        ):
            table.score(ids=ids)
    assert table.score(ids=[]).shape == (0,)


@pytest.mark.parametrize(
    "model, message",
    [
        (lambda data: built(models.RankCTRModel, data), "its tower reads positions"),
        (
            lambda data: built(
                models.PositionBasedModel,
                data,
                attraction=DeepParameterConfig(activation_fn=jax.nn.gelu),
            ),
            "it has a layer gelu, and known are Linear, LayerNorm, elu",
        ),
    ],
)
def test_other_scores_are_refused(dataset, model, message):
    with refuses(UserError, "no sum of towers of features", message, "Use --rank"):
        described(model(dataset), dataset)


class Satisfying(models.DynamicBayesianNetwork):
    """Ranks by satisfaction alone, and not by the towers of the model that it follows."""

    def relevance(self, batch):
        return self.satisfaction.log_prob(batch)


def test_the_score_of_a_model_of_ones_own_is_not_that_of_the_model_it_follows(dataset):
    model = built(Satisfying, dataset)
    with refuses(UserError, "the score of DBN is no sum of towers", "Use --rank"):
        described(model, dataset)
    described(built(models.DynamicBayesianNetwork, dataset), dataset)


@pytest.mark.parametrize("name", some(["mixture", "gctr", "rank"], "mixture", "gctr"))
def test_any_other_score_is_a_table_where_asked_for(dataset, name, caplog):
    kinds = {"gctr": models.GlobalCTRModel, "rank": models.RankCTRModel}
    components = [
        fill_tables(built(kind, dataset))
        for kind in (models.PositionBasedModel, models.DocumentCTRModel)
    ]
    model = models.MixtureModel(components) if name == "mixture" else built(kinds[name], dataset)
    ranker = described(model, dataset, or_by_id=True)
    np.testing.assert_allclose(served(ranker, dataset), scores_of(model, dataset), **CLOSE)
    assert (name == "gctr") == (not caplog.text)  # one number is a table of ids, too


def test_onnx_transforms_features(dataset):
    ranker = described(built(Ranker, dataset, attraction=LinearParameterConfig()), dataset, "log1p")
    raw = np.random.default_rng(0).normal(0, 100, (7, WIDTH)).astype(np.float32)
    np.testing.assert_allclose(onnx_session(ranker)(features=raw), ranker.score(raw), **CLOSE)


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Training, test and new lists in svmlight form."""
    folder, rng = tmp_path_factory.mktemp("lists"), np.random.default_rng(0)
    for name, queries in (("train.txt", 10), ("test.txt", 4), ("candidates", 3)):
        rows = [
            f"{document % 3} qid:{query} 1:{rng.normal():.3f} 2:{10 * rng.normal():.3f}"
            for query in range(queries)
            for document in range(rng.integers(2, 7))
        ]
        (folder / name).write_text("\n".join(rows))
    return folder


FEW = ["dataset=letor", "dataset.policy=random"]
FEW += [f"dataset.{part}sessions=50" for part in ("", "val_", "test_")]


@pytest.fixture(scope="module")
def linear(lists, tmp_path_factory):
    given = ["model=pbm", "parameter@attraction=linear", *FEW, f"dataset.path={lists}"]
    return new_run(tmp_path_factory.mktemp("linear") / "run", *given)


def test_a_loaded_model_drops_no_units(lists, tmp_path):
    """Predictions of a model in training are random."""
    given = ["model=pbm", "parameter@attraction=deep", "attraction.dropout=0.5"]
    run = new_run(tmp_path / "run", *given, *FEW, f"dataset.path={lists}")
    model = fitted(run).model
    found = [node for _, node in nnx.iter_graph(model) if isinstance(node, nnx.Dropout)]
    assert found and all(node.deterministic for node in found)


def test_a_learning_to_rank_file_is_scored_and_ordered(linear, lists, capsys):
    export(linear, rank=lists / "candidates", numpy=True)
    assert "ranking.parquet" in capsys.readouterr().out
    lines = [line.split() for line in (lists / "candidates").read_text().splitlines()]
    vectors = np.zeros((len(lines), 3))
    for row, line in enumerate(lines):
        for token in line[2:]:
            index, value = token.split(":")
            vectors[row, int(index)] = float(value)
    model = fitted(linear).model
    x = (np.sign(vectors) * np.log1p(np.abs(vectors))).astype(np.float32)
    batch = {"query_doc_features": x[:, None], "mask": np.ones((len(x), 1), bool)}
    expected = np.asarray(model.predict_relevance(batch))
    scores = np.loadtxt(linear / "export/scores.txt")
    np.testing.assert_allclose(scores, expected[:, 0], **CLOSE)
    table = pl.read_parquet(linear / "export/ranking.parquet")
    assert table.columns == ["list", "query_id", "rank", "document", "score"]
    queries = np.array([line[1] for line in lines])
    assert [f"qid:{query}" for query in table["query_id"]] == queries.tolist()
    for number, query in enumerate(dict.fromkeys(queries), 1):
        own, of = table.filter(pl.col("list") == number), np.flatnonzero(queries == query)
        assert (
            own["document"].to_list() == (of[np.argsort(-scores[of], kind="stable")] + 1).tolist()
        )
        assert own["rank"].to_list() == [*range(1, len(of) + 1)]
    code = f"""
import sys
sys.modules.update(jax=None, flax=None, clickexp=None)
sys.path.insert(0, {str(linear / "export")!r})
import json
import numpy as np
from ranker import Scorer
scorer = Scorer({str(linear / "export/ranker.npz")!r})
print(json.dumps(scorer.score(np.array({vectors.tolist()})).tolist()))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    np.testing.assert_allclose(json.loads(done.stdout), expected[:, 0], **CLOSE)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A run on a log with text as ids, and lists of it with two documents that it does not have."""
    folder, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    rows = {"query_id": [f"q{i % 5}" for i in range(60)], "query_doc_ids": [], "clicks": []}
    for _ in range(60):
        rows["query_doc_ids"].append([f"d{i}" for i in rng.permutation(8)[:4]])
        rows["clicks"].append((rng.random(4) < 0.4).tolist())
    pl.DataFrame(rows).write_parquet(folder / "log.parquet")
    given = [
        f"dataset.path={folder / 'log.parquet'}",
        "dataset.pair_key=document",
        "attraction.posterior=none",
    ]
    run = new_run(folder / "run", "model=pbm", "dataset=lists", *given)
    candidates = {
        "query_id": ["q1", "new"],
        "query_doc_ids": [["d3", "x", "d1", "d0", "d7", "y"], ["d2", "d3"]],
    }
    pl.DataFrame(candidates).write_parquet(folder / "lists.parquet")
    text = "query_id,docs\nq1,d3 x d1 d0 d7 y\nnew,d2 d3\n"
    (folder / "lists.csv").write_text(text)
    return run, folder


def test_tables_of_lists_are_ordered_and_unknown_documents_get_the_prior(table, capsys):
    run, folder = table
    export(run, rank=folder / "lists.parquet")
    assert "2 of the 8 documents shown are not in the log" in capsys.readouterr().err
    first = pl.read_parquet(run / "export/ranking.parquet")
    export(run, rank=folder / "lists.csv", options=["columns.query_doc_ids=docs"])
    assert first.equals(pl.read_parquet(run / "export/ranking.parquet"))
    parameters = dict(np.load(run / "model.npz"))
    logits = parameters["attraction/table"][:, 0] + parameters["attraction/baseline"]
    known = pl.read_parquet(run / "export/documents.parquet")
    row = {"x": 0, "y": 0, **dict(known.select("document", "query_doc_id").iter_rows())}
    for number, documents in enumerate([["d3", "x", "d1", "d0", "d7", "y"], ["d2", "d3"]], 1):
        own = first.filter(pl.col("list") == number)
        expected = sorted(documents, key=lambda document: -logits[row[document]])
        assert own["document"].to_list() == expected
        np.testing.assert_allclose(
            own["score"],
            [-np.logaddexp(0, -logits[row[document]]) for document in expected],
            rtol=1e-5,
        )


def test_text_is_read_as_the_numbers_of_the_log(table, tmp_path, capsys):
    rows = pl.read_parquet(table[1] / "log.parquet").with_columns(
        pl.col("query_id").str.strip_prefix("q").cast(pl.Int64),
        pl.col("query_doc_ids").list.eval(pl.element().str.strip_prefix("d").cast(pl.Int64)),
    )
    rows.write_parquet(tmp_path / "log.parquet")
    given = [f"dataset.path={tmp_path / 'log.parquet'}", "dataset.pair_key=query_document"]
    run = new_run(tmp_path / "run", "model=pbm", "dataset=lists", *given)
    rows.select("query_id", "query_doc_ids").head(3).write_parquet(tmp_path / "lists.parquet")
    lines = [f"{query},{' '.join(map(str, ids))}" for query, ids, _ in rows.head(3).iter_rows()]
    (tmp_path / "lists.csv").write_text("\n".join(["query_id,query_doc_ids", *lines]))
    found = []
    for kind in ("parquet", "csv"):
        export(run, tmp_path / kind, rank=tmp_path / f"lists.{kind}")
        found.append(pl.read_parquet(tmp_path / kind / "ranking.parquet"))
    assert found[0].equals(found[1]) and "not in the log" not in capsys.readouterr().err
    (tmp_path / "lists.csv").write_text("query_id,query_doc_ids\n1,3 five\n")
    with refuses(UserError, "query_doc_ids holds 'five'", "numbers"):
        export(run, rank=tmp_path / "lists.csv")


def test_what_cannot_be_ranked_is_refused(linear, lists, table, tmp_path):
    run, folder = table
    by_id = new_run(tmp_path / "run", "model=pbm", *FEW, f"dataset.path={lists}")
    candidates, named = lists / "candidates", ["columns.query_doc_ids=docs"]
    os.mkfifo(tmp_path / "pipe.csv")
    for ranker, file, options, parts in (
        (linear, tmp_path / "none", (), ("none", "no such file or folder")),
        (run, tmp_path / "pipe.csv", named, ("pipe.csv", "neither a file nor a folder")),
        (by_id, candidates, (), ("scores documents by their ids",)),
        (run, folder / "lists.parquet", named, ("docs",)),
        (run, None, named, ("columns.query_doc_ids=docs", "--predict FILE or --rank LISTS")),
        (
            run,
            candidates,
            (),
            ("candidates", "the ending of the name shows no kind", ".parquet, .csv"),
        ),
        (run, folder / "lists.parquet", ["first_rank=2"], ("first_rank", "2")),
        (linear, lists, (), ("one learning-to-rank file", ".parquet")),
    ):
        with refuses(UserError, *parts):
            export(ranker, rank=file, options=options)


def test_onnx_without_its_package_is_one_line(linear, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "clickexp.export.onnx_graph", raising=False)
    with pytest.raises(SystemExit):
        main([str(linear), "--onnx", "x.onnx"])
    assert (
        capsys.readouterr().err
        == "clickexp-export: --onnx needs the package onnx: pip install 'clickexp[onnx]'\n"
    )
