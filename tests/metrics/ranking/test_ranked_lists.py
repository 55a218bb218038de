"""Ranking metrics against enumeration of the orders of tied documents, textbook values and other libraries."""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import jax
import numpy as np
import pytest
import pytrec_eval
import rax
import scipy.stats
from annotated_types import Gt
from hydra import compose, initialize_config_dir
from metric_updates import updated
from omegaconf import OmegaConf
from places import ROOT
from refusals import refuses

from clickexp import metrics
from clickexp.errors import ConfigError
from clickexp.experiment.instantiate import instantiate
from clickexp.metrics import CluMetric, MultiMetric, RankingMetric, ranking_metrics
from clickexp.metrics.base import outputs_by_rank
from clickexp.metrics.ranking import registry
from clickexp.utils.bounds import OneOf

CONF = ROOT / "conf"
CUTOFFS = (1, 2, 4, 9)
GRADES = 4


def relevant(labels, start=1):
    return [float(label >= start) for label in labels]


def discounted(labels, k, form):
    def gain(label):
        return 2**label - 1 if form == "exponential" else label

    def discount(rank):
        return (math.log2(rank) if rank > 1 else 1) if form == "original" else math.log2(1 + rank)

    return sum(gain(label) / discount(rank) for rank, label in enumerate(labels[:k], 1))


def normalised(labels, k, form):
    return discounted(labels, k, form) / (discounted(sorted(labels, reverse=True), k, form) or 1)


def average_precision(labels, k, top=False):
    y = relevant(labels)
    precisions = [sum(y[:i]) / i for i in range(1, min(k, len(y)) + 1) if y[i - 1]]
    return sum(precisions) / ((min(sum(y), k) if top else sum(y)) or 1)


def reciprocal_rank(labels, k):
    return max([1 / rank for rank, y in enumerate(relevant(labels)[:k], 1) if y], default=0.0)


def expected_reciprocal_rank(labels, k):
    value, searching = 0.0, 1.0
    for rank, label in enumerate(labels[:k], 1):
        stop = (2**label - 1) / 2**GRADES
        value, searching = value + searching * stop / rank, searching * (1 - stop)
    return value


def recall(labels, k):
    return sum(relevant(labels)[:k]) / (sum(relevant(labels)) or 1)


DEFINITIONS = {
    "precision": lambda y, k: sum(relevant(y)[:k]) / k,
    "recall": recall,
    "f1": lambda y, k: 2 * sum(relevant(y)[:k]) / (k + sum(relevant(y))),
    "hits": lambda y, k: sum(relevant(y)[:k]),
    "hit_rate": lambda y, k: max(relevant(y)[:k]),
    "map": average_precision,
    "map_min": lambda y, k: average_precision(y, k, top=True),
    "mar": lambda y, k: np.mean([recall(y, i) for i in range(1, k + 1)]),
    "mar_all": lambda y, k: sum(recall(y, i) for i in range(1, k + 1)) / (sum(relevant(y)) or 1),
    "mrr": reciprocal_rank,
    "arhr": lambda y, k: sum(y_i / i for i, y_i in enumerate(relevant(y)[:k], 1)),
    "cg": lambda y, k: sum(y[:k]),
    **{
        f"dcg_{form}": lambda y, k, form=form: discounted(y, k, form)
        for form in ("linear", "original")
    },
    **{
        f"ndcg_{form}": lambda y, k, form=form: normalised(y, k, form)
        for form in ("linear", "original")
    },
    "dcg": lambda y, k: discounted(y, k, "exponential"),
    "ndcg": lambda y, k: normalised(y, k, "exponential"),
    "err": expected_reciprocal_rank,
    "rbp": lambda y, k: 0.2 * sum(y_i * 0.8**i for i, y_i in enumerate(relevant(y)[:k])),
}
PAIRS = ("concordant_pairs", "tau", "weighted_tau")


def rankings(scores, labels):
    """The labels in all orders of the documents that agree with the scores."""
    return [
        [max(labels[i], 0) for i in order]
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]


def tied_lists(seed=0, count=16, ranks=5):
    """Lists with holes, ties, spam, -inf, no documents (the first) and nothing relevant (the second)."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 3, (count, ranks)).astype(np.float32)
    labels = rng.integers(-1, GRADES + 1, (count, ranks)).astype(np.float32)
    where = rng.random((count, ranks)) < 0.8
    where[0], labels[1], where[1, 0], scores[2], where[2] = False, -2, True, 0, True
    scores[3:9, 0], scores[3:9, 1] = -np.inf, -0.0
    return dict(scores=scores, labels=labels, where=where)


def padded(lists, count=16, ranks=5):
    """Pairs of scores and labels, one for each list, in the shape of `tied_lists`."""
    outputs = dict(
        scores=np.zeros((count, ranks), np.float32),
        labels=np.zeros((count, ranks), np.float32),
        where=np.zeros((count, ranks), bool),
    )
    for row, (scores, labels) in enumerate(lists):
        for name, values in (("scores", scores), ("labels", labels), ("where", True)):
            outputs[name][row, : len(scores)] = values
    return outputs


class Measure:
    """Of outputs in one shape, metrics that have seen them; compiled once."""

    def __init__(self, chosen, outputs):
        self.multi = MultiMetric(chosen).keep_values()
        self.program = (
            jax.jit(lambda outputs: self.multi.statistics(**outputs_by_rank(outputs)))
            .lower(outputs)
            .compile()
        )

    def __call__(self, outputs):
        seen = self.multi.empty()
        seen.add(self.program(outputs))
        return seen


@pytest.fixture(scope="module")
def every():
    """All metrics; lists without a relevant document count as 0 in those of cutoffs."""
    chosen = ranking_metrics([*DEFINITIONS, *PAIRS], CUTOFFS)
    for name in DEFINITIONS:
        chosen[name].no_relevant = "zero"
    return Measure(chosen, tied_lists())


@pytest.fixture(scope="module")
def tied(every):
    """Metrics that have seen lists, and those lists."""
    outputs = tied_lists()
    return every(outputs), outputs


def test_each_metric_is_the_mean_over_all_orders_of_tied_documents(tied):
    multi, outputs = tied
    values, means = multi.values(), multi.compute()
    lists = [
        rankings(s[w], y[w]) if w.any() else [] for s, y, w in zip(*outputs.values(), strict=True)
    ]
    assert max(map(len, lists)) == 120 and min(map(len, lists)) == 0
    for name, k in itertools.product(DEFINITIONS, CUTOFFS):
        values_of = [[DEFINITIONS[name](ranking, k) for ranking in orders] for orders in lists]
        expected = [np.mean(of_list) if of_list else np.nan for of_list in values_of]
        message = f"{name}@{k}"
        np.testing.assert_allclose(values[message], expected, rtol=2e-6, atol=1e-7, err_msg=message)
        assert means[message] == pytest.approx(np.nanmean(expected), rel=1e-6), message


def test_pairs_agree_with_scipy(tied):
    multi, outputs = tied
    values = multi.values()
    for i, (s, y, w) in enumerate(zip(*outputs.values(), strict=True)):
        s, y = np.maximum(s[w], -1.0), np.maximum(y[w], 0)
        if len(set(y)) < 2:
            assert all(np.isnan(values[name][i]) for name in PAIRS)
            continue
        pairs = [(a, b) for a, b in itertools.permutations(range(len(s)), 2) if y[a] > y[b]]
        ordered = np.mean([(s[a] > s[b]) + (s[a] == s[b]) / 2 for a, b in pairs])
        taus = [
            0 if len(set(s)) < 2 else tau(s, y).statistic
            for tau in (scipy.stats.kendalltau, scipy.stats.weightedtau)
        ]
        np.testing.assert_allclose([values[name][i] for name in PAIRS], [ordered, *taus], atol=1e-6)


def test_the_order_of_the_file_never_matters(every, tied):
    multi, outputs = tied
    order = np.random.default_rng(5).permuted(np.tile(np.arange(5), (16, 1)), axis=1)
    shuffled = {name: np.take_along_axis(x, order, axis=1) for name, x in outputs.items()}
    assert every(shuffled).compute() == multi.compute()


def test_what_is_not_shown_never_counts(every, tied):
    multi, outputs = tied
    for junk in (np.nan, np.inf, -np.inf):
        dirty = {
            name: np.where(outputs["where"], outputs[name], junk) for name in ("scores", "labels")
        }
        assert every(outputs | dirty).compute() == multi.compute()


def test_a_constant_score_has_the_value_of_a_random_ranking(every):
    labels = np.zeros((16, 5), np.float32) + np.array([2, 0, 1, 0, 4], np.float32)
    outputs = dict(
        scores=np.full((16, 5), 0.1, np.float32), labels=labels, where=np.ones((16, 5), bool)
    )
    values = every(outputs).compute()
    for name, definition in DEFINITIONS.items():
        for k in CUTOFFS:
            expected = np.mean(
                [definition(ranking, k) for ranking in itertools.permutations(labels[0])]
            )
            assert values[f"{name}@{k}"] == pytest.approx(expected, rel=1e-6), name


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["precision", "map_min", "mar", "dcg"], id="some"),
        pytest.param([*DEFINITIONS], id="all", marks=pytest.mark.nightly),
    ],
)
def test_without_a_cutoff_all_documents_count(names):
    outputs = tied_lists(1)
    lists = [rankings(s[w], y[w]) for s, y, w in zip(*outputs.values(), strict=True) if w.any()]
    made = {name: registry.AT_CUTOFFS[name](None, no_relevant="zero") for name in names}
    measure = Measure(made, outputs)
    values = measure(outputs).compute()
    for name in names:
        expected = np.mean(
            [np.mean([DEFINITIONS[name](y, len(y)) for y in orders]) for orders in lists]
        )
        assert values[name] == pytest.approx(expected, rel=1e-6), name


def test_textbook_values():
    log2 = math.log2
    graded, binary = [(3, 2, 3, 0, 1, 2), (0, 5, 1, 4, 2)], (1, 0, 1, 0, 1)
    rows = [(-np.arange(len(labels)), labels) for labels in (*graded, binary)]
    lists = [padded([row], count=1, ranks=6) for row in rows]
    measure = Measure(
        {
            "dcg_original": metrics.DCG(6, form="original"),
            "ndcg_original": metrics.NDCG(6, form="original"),
            "dcg": metrics.DCG(form="linear"),
            "ndcg": metrics.NDCG(form="linear"),
            "ap": metrics.AveragePrecision(),
        },
        lists[0],
    )
    of_six, of_five, of_binary = (measure(outputs).compute() for outputs in lists)

    dcg = 3 + 2 / log2(2) + 3 / log2(3) + 0 / log2(4) + 1 / log2(5) + 2 / log2(6)
    ideal = 3 + 3 / log2(2) + 2 / log2(3) + 2 / log2(4) + 1 / log2(5)
    assert (round(dcg, 3), round(ideal, 3), round(dcg / ideal, 4)) == (8.097, 8.693, 0.9315)
    assert of_six["dcg_original@6"] == pytest.approx(dcg, rel=1e-6)
    assert of_six["ndcg_original@6"] == pytest.approx(dcg / ideal, rel=1e-6)

    dcg = 0 + 5 / log2(3) + 1 / log2(4) + 4 / log2(5) + 2 / log2(6)
    ideal = 5 / log2(2) + 4 / log2(3) + 2 / log2(4) + 1 / log2(5)
    assert (round(dcg, 3), round(ideal, 3), round(dcg / ideal, 3)) == (6.151, 8.954, 0.687)
    assert of_five["dcg"] == pytest.approx(dcg, rel=1e-6)
    assert of_five["ndcg"] == pytest.approx(dcg / ideal, rel=1e-6)

    expected = (1 / 1 + 2 / 3 + 3 / 5) / 3
    assert of_binary["ap"] == pytest.approx(expected, rel=1e-6)


@pytest.fixture(scope="module")
def distinct():
    """Long lists with scores that all differ."""
    rng = np.random.default_rng(3)
    scores = rng.permuted(np.tile(np.arange(60.0), (40, 1)), axis=1)
    labels = np.maximum(rng.integers(-6, GRADES + 1, (40, 60)), 0).astype(float)
    return dict(scores=scores, labels=labels, where=rng.random((40, 60)) < 0.7)


@pytest.fixture(scope="module")
def ours(distinct):
    """Our values by name."""
    names = {*OF_TREC_EVAL, *OF_RAX}
    return Measure(ranking_metrics(names, (1, 3, 10, 50)), distinct)(distinct).compute()


OF_TREC_EVAL = {
    "precision": "P",
    "recall": "recall",
    "ndcg_linear": "ndcg_cut",
    "map": "map_cut",
    "hit_rate": "success",
}


def test_agrees_with_trec_eval(distinct, ours):
    cutoffs = (1, 3, 10, 50)
    run, judgements = {}, {}
    for query, (s, y, w) in enumerate(zip(*distinct.values(), strict=True)):
        run[f"{query}"] = {f"{i}": float(s[i]) for i in np.flatnonzero(w)}
        judgements[f"{query}"] = {f"{i}": int(y[i]) for i in np.flatnonzero(w)}
    measures = {f"{name}.{','.join(map(str, cutoffs))}" for name in OF_TREC_EVAL.values()}
    theirs = pytrec_eval.RelevanceEvaluator(judgements, measures).evaluate(run)
    for (name, trec), k in itertools.product(OF_TREC_EVAL.items(), cutoffs):
        expected = np.mean([query[f"{trec}_{k}"] for query in theirs.values()])
        assert ours[f"{name}@{k}"] == pytest.approx(expected, rel=1e-6), f"{name}@{k}"


OF_RAX = {
    "dcg": "dcg",
    "ndcg": "ndcg",
    "mrr": "mrr",
    "map": "ap",
    "recall": "recall",
    "precision": "precision",
}


@pytest.mark.parametrize("cutoff", [10, pytest.param(3, marks=pytest.mark.nightly)])
def test_agrees_with_rax_where_scores_differ(cutoff, distinct, ours):
    functions = {name: getattr(rax, f"{theirs}_metric") for name, theirs in OF_RAX.items()}
    metric = {
        f"{name}@{cutoff}": metrics.RaxMetric(function, cutoff, orders=1)
        for name, function in functions.items()
    }
    expected = Measure(metric, distinct)(distinct).compute()
    assert {name: ours[name] for name in metric} == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def promotion():
    """That of the other libraries, which multiply floats by integers."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


METRAX = {
    "MRR": "MRR",
    "AveragePrecision": "AveragePrecisionAtK",
    "Precision": "PrecisionAtK",
    "Recall": "RecallAtK",
    "DCG": "DCGAtK",
    "NDCG": "NDCGAtK",
}


def model_outputs(seed, lists):
    """What metrax reads: scores without ties, labels 0 or 1, cutoffs within the lists."""
    rng = np.random.default_rng(seed)
    scores = rng.permuted(np.tile(np.arange(12, dtype="f4"), (lists, 1)), axis=1)
    labels = rng.integers(0, 2, (lists, 12))
    labels[0] = 0
    return dict(predictions=scores, labels=labels, ks=np.array([1, 5, 12]))


@pytest.mark.parametrize(
    "name",
    [name if name == "MRR" else pytest.param(name, marks=pytest.mark.nightly) for name in METRAX],
)
def test_metrics_answer_in_the_form_of_metrax(name, promotion):
    metrax = pytest.importorskip("metrax", reason="google-metrax is not installed")
    ours = CluMetric(getattr(metrics, name)([1, 5, 12], no_relevant="zero"))
    theirs = getattr(metrax, METRAX[name])
    batches = [model_outputs(seed, lists) for seed, lists in ((0, 5), (1, 3), (2, 4))]

    def run(kind):
        first, second = (kind.from_model_output(**batch) for batch in batches[:2])
        return first.merge(second)

    def same(mine, other):
        assert mine.compute().shape == other.compute().shape == (3,)
        np.testing.assert_allclose(mine.compute(), other.compute(), rtol=1e-6)
        np.testing.assert_array_equal(mine.compute_value().value, mine.compute())
        np.testing.assert_allclose(
            mine.compute_value().value, other.compute_value().value, rtol=1e-6
        )

    mine, other = run(ours), run(theirs)
    same(mine, other)
    more, last = (kind.from_model_output(**batches[2]) for kind in (ours, theirs))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), other, last)
    same(mine.merge(more).reduce(), stacked.reduce())
    same(mine.reduce(), other)  # and merging has changed neither
    # metrax itself merges no metric of several cutoffs into an empty one
    same(ours.empty().merge(mine), other)


def test_a_metric_in_the_form_of_metrax_keeps_its_settings():
    batch = model_outputs(3, 6)
    labels = batch["labels"] * 2
    ours = CluMetric(metrics.MRR([1, 5, 12], relevant_from=2))
    seen = ours.from_model_output(**batch | {"labels": labels})
    relevant = [y for y in labels if y.any()]
    assert seen.metric.total("lists") == len(relevant) < 6 and seen.metric.relevant_from == 2
    assert ours.empty().merge(seen).metric.relevant_from == 2
    assert seen.merge(ours.empty()).compute().tolist() == seen.compute().tolist()
    assert np.isnan(ours.empty().compute()).all() and ours.metric.batches == 0
    with pytest.raises(TypeError, match=r"cutoffs=\(1, 5, 12\), not ks=\[3\]"):
        ours.from_model_output(**batch | {"ks": [3]})
    with pytest.raises(TypeError, match="ks|cutoffs"):
        CluMetric(metrics.KendallTau()).from_model_output(**batch)
    with pytest.raises(TypeError, match="cannot merge MRR"):
        seen.merge(CluMetric(metrics.DCG()))
    with pytest.raises(TypeError, match="cannot merge MRR"):
        seen.merge(CluMetric(metrics.MRR()))


CASES = {
    "ties": ([1.0, 1.0], [0, 1], (1 + 1 / math.log2(3)) / 2, 1 / math.log2(3)),
    "minus infinity": ([-np.inf, 1.0], [1, 0], 1 / math.log2(3), 0.0),
    "a negative label": ([2.0, 1.0], [1, -1], 1.0, 1 - 0.5 / math.log2(3)),
}


def test_the_docstring_lists_where_rax_differs(promotion):
    """CLAX's metric calls Rax with these arguments, list by list."""
    for case, (scores, labels, here, there) in CASES.items():
        arrays = np.array([scores], "f4"), np.array([labels], "f4")
        for metric in (metrics.DCG(), metrics.RaxMetric(rax.dcg_metric)):
            metric.update(scores=arrays[0], labels=arrays[1])
            assert metric.compute() == pytest.approx(here, rel=1e-6), case
        theirs = float(rax.dcg_metric(*map(jax.numpy.asarray, arrays)))
        assert theirs == pytest.approx(there, abs=1e-6), case
        for value in (here, there):
            assert f"{value:.3f}".rstrip("0").rstrip(".") in RankingMetric.__doc__, case


def test_masked_lists_are_none_here_and_0_in_rax(promotion):
    scores, labels = np.array([[2.0, 1.0]] * 2, "f4"), np.array([[1.0, 0.0]] * 2, "f4")
    where = np.array([[True, True], [False, False]])
    for metric in (metrics.DCG(), metrics.RaxMetric(rax.dcg_metric)):
        assert updated(metric, scores=scores, labels=labels, where=where).compute() == 1
        assert math.isnan(
            updated(metric, scores=scores, labels=labels, where=where & False).compute()
        )
    theirs = jax.tree.map(jax.numpy.asarray, (scores, labels, where))
    per_list = rax.dcg_metric(*theirs[:2], where=theirs[2], reduce_fn=None)
    np.testing.assert_allclose(per_list, [1, 0])  # of which CLAX takes the mean, 0.5
    assert float(rax.dcg_metric(*theirs[:2], where=theirs[2] & False)) == 0


def pair_signs(scores, labels):
    """Signs of the differences of scores and of labels of each pair."""
    return [
        (np.sign(scores[i] - scores[j]), np.sign(labels[i] - labels[j]), (i, j))
        for i, j in itertools.combinations(range(len(scores)), 2)
    ]


def test_pairs_with_tied_scores_are_left_out_on_request():
    """Of scores 2, 2, 1 and labels 2, 1, 0; of random lists by counting; and where no pair is left."""
    outputs = tied_lists(seed=5, count=40)
    measure = Measure(
        {
            "half": metrics.ConcordantPairs(),
            "skip": metrics.ConcordantPairs(ties="skip"),
            "zero": metrics.ConcordantPairs(ties="skip", no_relevant="zero"),
        },
        outputs,
    )
    example = measure(padded([([2, 2, 1], [2, 1, 0])], count=40)).compute()
    assert example["half"] == pytest.approx(2.5 / 3)
    assert example["skip"] == 1
    found = measure(outputs)
    expected = []
    for s, y, w in zip(*outputs.values(), strict=True):
        products = [a * b for a, b, _ in pair_signs(np.maximum(s[w], -1e9), np.maximum(y[w], 0))]
        concordant, discordant = products.count(1), products.count(-1)
        expected.append(
            concordant / (concordant + discordant) if concordant + discordant else np.nan
        )
    assert 2 < np.isnan(expected).sum() < 20
    np.testing.assert_allclose(found.values()["skip"], expected, rtol=1e-6)
    assert found.compute()["skip"] == pytest.approx(np.nanmean(expected))
    constant = measure(padded([([0, 0, 0], [2, 1, 0])], count=40)).compute()
    assert math.isnan(constant["skip"]) and constant["zero"] == 0


def test_taus_are_murphys_9_130_from_minus_1_to_1():
    """Without ties: with all weights 1, and with hyperbolic ones by the rank of the score and by that of the label."""
    rng = np.random.default_rng(6)
    scores, labels = (rng.permuted(np.tile(np.arange(7.0), (5, 1)), axis=1) for _ in range(2))

    def murphy(s, y, weight):
        signs = pair_signs(s, y)
        weights = [weight(i, j) for _, _, (i, j) in signs]
        gains = [w * (1 + a * b) for w, (a, b, _) in zip(weights, signs, strict=True)]
        return sum(gains) / (2 * sum(weights))

    def hyperbolic(values):
        ranks = np.argsort(np.argsort(-values))  # from 0
        return lambda i, j: 1 / (1 + ranks[i]) + 1 / (1 + ranks[j])

    outputs = dict(scores=scores.astype("f4"), labels=labels.astype("f4"))
    kinds = {"tau": metrics.KendallTau(), "weighted": metrics.WeightedKendallTau()}
    taus = Measure(kinds, outputs)(outputs).values()
    lists = list(zip(scores, labels, strict=True))
    plain = [murphy(s, y, lambda i, j: 1.0) for s, y in lists]
    weighted = [np.mean([murphy(s, y, hyperbolic(by)) for by in (s, y)]) for s, y in lists]
    np.testing.assert_allclose((1 + taus["tau"]) / 2, plain, rtol=1e-6)
    np.testing.assert_allclose((1 + taus["weighted"]) / 2, weighted, rtol=1e-6)


def test_average_recall_with_the_relevant_documents_below_the_line():
    """Relevant at ranks 2 and 4, a third one below: recalls 0, 1/3, 1/3, 2/3, over k = 4 or the 3 relevant ones."""
    outputs = dict(scores=-np.arange(6.0)[None], labels=np.array([[0, 1, 0, 1, 0, 1.0]]))
    expected = {"cutoff": 4 / 3 / 4, "all": 4 / 3 / 3}
    kinds = {name: metrics.AverageRecall(4, denominator=name) for name in expected}
    assert Measure(kinds, outputs)(outputs).compute() == {
        f"{name}@4": pytest.approx(value, rel=1e-6) for name, value in expected.items()
    }
    assert all(f"{value:.3f}" in metrics.AverageRecall.__doc__ for value in expected.values())


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["mrr", "map_min", "dcg", "err"], id="some"),
        pytest.param([*DEFINITIONS], id="all", marks=pytest.mark.nightly),
    ],
)
def test_lists_without_a_relevant_document_are_zero_or_skipped_and_counted(names, every):
    outputs = padded([([2, 1], labels) for labels in ([0, 3], [0, 0], [-1, 0])])
    of_cutoff = {name: registry.AT_CUTOFFS[name](2) for name in names}
    others = {
        "without": metrics.ListsWithoutRelevant(),
        "below_4": metrics.ListsWithoutRelevant(relevant_from=4),
        "skipped": metrics.MRR(relevant_from=4),
        "tau": metrics.KendallTau(no_relevant="zero"),
    }
    seen = Measure(of_cutoff | others, outputs)(outputs)
    zero, skip = every(outputs).compute(), seen.compute()
    for name in names:
        expected = DEFINITIONS[name]([0, 3], 2)
        assert skip[f"{name}@2"] == pytest.approx(expected, rel=1e-6), name
        assert zero[f"{name}@2"] == pytest.approx(skip[f"{name}@2"] / 3, rel=1e-6), name
    assert (skip["without"], skip["below_4"]) == (2, 3)
    assert seen.metrics["skipped"].total("lists") == 0
    assert skip["tau"] == pytest.approx(-1 / 3)


def test_the_lists_are_sorted_once_for_all_metrics(every):
    # by score, and by label for the ideal order
    assert every.program.as_text().count(" sort(") == 2


def test_long_lists_keep_their_digits():
    """1,000 documents: fractional labels with ties of 3, and one relevant document somewhere among all."""
    tied, one = np.zeros((3, 1000)), np.eye(3, 1000, 500)
    mrr = updated(metrics.MRR(), scores=tied, labels=one)
    assert mrr.compute() == pytest.approx(np.mean(1 / np.arange(1, 1001)), rel=1e-6)
    rng = np.random.default_rng(4)
    scores, labels = rng.integers(0, 300, (8, 1000)), rng.random((8, 1000)).astype("f4")
    metric = updated(metrics.DCG(form="linear"), scores=scores, labels=labels)
    means = [
        [np.mean(y[s == score], dtype=float) for score in s]
        for s, y in zip(scores, labels, strict=True)
    ]
    order = np.argsort(-scores, axis=1, kind="stable")
    gains = np.take_along_axis(np.array(means), order, axis=1)
    expected = np.mean(gains @ (1 / np.log2(np.arange(2, 1002))))
    assert metric.compute() == pytest.approx(expected, rel=1e-6)


def test_names_stand_for_the_same_metrics_as_in_the_configuration():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["metric=[ranking_all,pairs]"])
    built = instantiate(OmegaConf.to_container(config.metric, resolve=True), "metric")["ranking"]
    counts = ("without_relevant", "unjudged")
    assert [built.pop(name).compute() for name in counts] == [0, 0]
    named = ranking_metrics([*DEFINITIONS, "judged", "fcp", *PAIRS], (1, 3, 5, 10))
    assert {name: (type(m), m._settings()) for name, m in built.items()} == {
        name: (type(m), m._settings()) for name, m in named.items()
    }
    assert list(ranking_metrics(["opa"], [3])) == ["opa@3"]  # a function of Rax


class ReciprocalLength(RankingMetric):
    """A metric of one's own."""

    def per_list(self, ranked):
        return 1 / self.depths(ranked)


def test_a_metric_of_ones_own_is_one_method():
    where = np.tri(4, dtype=bool)
    metric = updated(ReciprocalLength(), scores=where * 1.0, labels=where * 1.0, where=where)
    assert metric.compute() == pytest.approx(
        float(sum(Fraction(1, n) for n in range(1, 5)) / 4), rel=1e-6
    )
    assert metric.higher_is_better


@dataclass(eq=False, repr=False, kw_only=True)
class ScaledLength(RankingMetric):
    """A metric of one's own with settings."""

    higher_is_better = False
    factor: Annotated[float, Gt(0)] = 1.0
    form: Annotated[str, OneOf("plain", "square")] = "plain"

    def per_list(self, ranked):
        return self.factor * self.depths(ranked) ** (2 if self.form == "square" else 1)


def test_settings_of_ones_own_are_fields_whose_annotations_are_checked():
    where = np.tri(4, dtype=bool)
    outputs = dict(scores=where * 1.0, labels=where * 1.0, where=where)
    metric = updated(ScaledLength(factor=0.5, form="square"), **outputs)
    assert metric.compute() == pytest.approx(0.5 * (1 + 4 + 9 + 16) / 4)
    assert updated(ScaledLength([2]), **outputs).compute() == [2]
    with pytest.raises(TypeError, match="settings differ"):
        metric.merge(ScaledLength(form="square"))
    for wrong, parts in (
        ({"factor": 0.0}, ("factor=0.0", "above 0")),
        ({"form": "cube"}, ("form='cube'", "plain or square")),
        ({"no_relevant": "drop"}, ("no_relevant='drop'", "skip or zero")),
    ):
        with refuses(ConfigError, *parts):
            ScaledLength(**wrong)


MISTAKES = [
    (lambda: ranking_metrics(["ndgc"]), ("'ndgc'", "arhr, cg, concordant_pairs")),
    (lambda: metrics.DCG([0, 1]), ("cutoffs=[0, 1]", "from 1")),
    (lambda: metrics.DCG([]), ("cutoffs=[]",)),
    (lambda: metrics.DCG(form="burges"), ("form='burges'", "exponential, linear or original")),
    (lambda: metrics.MRR(no_relevant="drop"), ("no_relevant='drop'", "skip or zero")),
    (lambda: metrics.MRR(relevant_from=0), ("relevant_from=0", "above 0")),
    (lambda: metrics.AveragePrecision(denominator="k"), ("denominator='k'", "all or top")),
    (lambda: metrics.AverageRecall(denominator="k"), ("denominator='k'", "cutoff or all")),
    (lambda: metrics.ConcordantPairs(ties="no"), ("ties='no'", "half or skip")),
    (
        lambda: metrics.RankBiasedPrecision(persistence=1),
        ("persistence=1", "at least 0 and below 1"),
    ),
    (lambda: metrics.ExpectedReciprocalRank(max_grade=0), ("max_grade=0", "above 0")),
]


def test_mistakes_are_refused_with_what_to_give():
    for mistake, parts in MISTAKES:
        with refuses(ConfigError, *parts):
            mistake()
