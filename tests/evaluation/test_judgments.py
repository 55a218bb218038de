"""Runs on logs of which some lists were judged: the same ranking metrics as on the judged lists alone, with counts."""

import json

import numpy as np
import pytest
from flax import nnx
from small_logs import fill_tables

from clickexp.cli.log_commands import inspect_log
from clickexp.data import Dataset, Sessions
from clickexp.data.inspect.doubts import doubts
from clickexp.evaluation.evaluate import check_lists, evaluate
from clickexp.metrics import NDCG, ListsWithoutRelevant, UnjudgedLists
from clickexp.models import DocumentCTRModel


def part(count, seed, labels=None, partly=False):
    """Lists of four documents of query 0, 1 or 2: nothing relevant, judged, and unjudged, or with other labels."""
    rng = np.random.default_rng(seed)
    queries = np.arange(count) % 3
    ids = rng.permuted(np.tile(np.arange(1, 5), (count, 1)), axis=1) + 4 * queries[:, None]
    grades = np.array([0, 2, 0, 1])[(ids - 1) % 4]
    judged = np.where(queries[:, None] == 0, 0.0, np.where(queries[:, None] == 2, np.nan, grades))
    if partly:
        judged[1::3, 0] = np.nan
    return Sessions.from_arrays(
        query_doc_ids=ids,
        clicks=rng.random((count, 4)) < 0.4,
        query_ids=queries,
        labels=judged if labels is None else labels(judged),
        query_doc_pairs=12,
    )


def log(**options):
    parts = [part(count, seed, **options) for seed, count in enumerate((240, 30, 30))]
    return Dataset("log", *parts, query_doc_pairs=12, positions=4, ranking=parts[2])


GROUPS = {
    "ranking": {
        "ndcg": NDCG([1, 10]),
        "unjudged": UnjudgedLists(),
        "without_relevant": ListsWithoutRelevant(),
    }
}


@pytest.fixture(scope="module")
def model():
    model = DocumentCTRModel(query_doc_pairs=12, positions=4, rngs=nnx.Rngs(0))
    fill_tables(model)
    return model


def ndcg(model, lists, rows):
    """Mean nDCG of some lists, in float64."""
    chosen = lists.select(rows)
    batch = {key: chosen.column(key) for key in ("query_doc_ids", "clicks")}
    batch |= {"mask": np.ones((len(rows), 4), bool), "positions": np.arange(1, 5)[None]}
    scores = np.asarray(model.predict_relevance(batch), np.float64)
    gains = 2 ** chosen.column("labels").astype(np.float64) - 1
    discounts = 1 / np.log2(np.arange(2, 6))
    best = np.sort(gains)[:, ::-1] @ discounts
    ordered = np.take_along_axis(gains, np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return np.mean(ordered @ discounts / best)


def test_unjudged_lists_take_no_part_and_are_counted_and_others_are_stated(model):
    dataset = log()
    check_lists(model, dataset, GROUPS)
    evaluation = evaluate(model, dataset, GROUPS)
    values = evaluation.groups["ranking"].compute()
    alone = ndcg(model, dataset.test, np.arange(1, 30, 3))
    assert (values["unjudged"], values["without_relevant"]) == (10, 10)
    assert values["ndcg@10"] == pytest.approx(alone, rel=1e-5)
    lines = [*evaluation.describe_judgments()]
    assert lines[0].startswith("10 lists have no labels")
    stated = "10 of 20 lists with labels have no relevant document and"
    assert lines[1] == f"{stated} do not count (metric.no_relevant=skip)"
    counting = {"ranking": {**GROUPS["ranking"], "ndcg": NDCG([1, 10], no_relevant="zero")}}
    evaluation = evaluate(model, dataset, counting)
    assert evaluation.groups["ranking"].compute()["ndcg@10"] == pytest.approx(alone / 2, rel=1e-5)
    counted = [*evaluation.describe_judgments()][1]
    assert counted == f"{stated} count as 0 (metric.no_relevant=zero)"


def test_a_log_that_is_judged_has_nothing_to_state(model):
    dataset = log(labels=lambda labels: np.where(np.isnan(labels) | (labels == 0), 1, labels))
    assert not [*evaluate(model, dataset, GROUPS).describe_judgments()]


def test_lists_judged_in_part_are_doubted_and_inspect_counts_all(tmp_path, capsys):
    (doubt,) = doubts(log(partly=True))
    assert "10 documents in 10 judged lists of test" in doubt
    assert "metric.unjudged_documents=removed" in doubt
    assert not [*doubts(log())]
    rows = [f"{i % 3},1 2 3,0 {i % 2} 0,{('0 0 0', '2 nan 1', '')[i % 3]}" for i in range(60)]
    file = tmp_path / "log.csv"
    file.write_text("\n".join(["query_id,query_doc_ids,clicks,labels", *rows]))
    inspect_log(str(file), ["format=lists"], output=str(tmp_path), json=True)
    train = json.loads(capsys.readouterr().out)["parts"]["train"]
    assert train["lists_without_labels"] == 16
    assert train["documents_without_label_in_others"] == 16
    assert train["documents_by_label"] == {"0": 48, "1": 16, "2": 16}
