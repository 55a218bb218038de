"""Propensities of each device: harvested from its log, in weights, and in metrics of clicks."""

from types import SimpleNamespace

import numpy as np
from flax import nnx
from layout_logs import CURVES, PAIRS, SAME, layout_log
from refusals import refuses

from clickexp.data.cells import cells_of
from clickexp.errors import ConfigError
from clickexp.evaluation.evaluator import Evaluator
from clickexp.evaluation.groups import CounterfactualMetrics, HeldOut
from clickexp.experiment.display import _doubts_of_layouts
from clickexp.metrics import SelfNormalizedDCG
from clickexp.models import PositionBasedModel, Ranker
from clickexp.models.ranker.debias import InversePropensity
from clickexp.propensities import HarvestedPropensities
from clickexp.simulation.towers import FixedParameter

BY_DEVICE = HarvestedPropensities(examination_by=["device"])
PLACES = [(str(device), at) for device, curve in CURVES.items() for at in range(1, len(curve) + 1)]
TRUE = np.concatenate([*CURVES.values()]) / CURVES[0][0]


def harvested(dataset, name="values"):
    found, cells = BY_DEVICE(dataset), cells_of(dataset, ["device"])
    return np.array(
        [
            getattr(found, name)[cells.cell({"device": device}, at) - 1] or np.nan
            for device, at in PLACES
        ],
        float,
    )


def test_harvesting_by_device_recovers_the_curve_of_each():
    """Devices are compared by the documents that both show; the reference is that with most documents."""
    dataset = layout_log(60_000)
    found, low, high = (harvested(dataset, name) for name in ("values", "low", "high"))
    error = np.log(high / low)[1:] / 2 / 1.96
    assert (error < 0.1).all() and found[0] == 1
    assert (np.abs(np.log(found / TRUE))[1:] < 3.5 * error).all()
    pooled = np.array(HarvestedPropensities()(dataset).values)
    assert (np.abs(np.log(pooled[1:3] / TRUE[1:3])) > 0.1).all()  # wrong on device 0


def test_a_metric_of_clicks_weighs_each_by_the_propensity_of_its_device():
    dataset = layout_log(3000)
    group = CounterfactualMetrics(
        {"snips": SelfNormalizedDCG([2], propensity=BY_DEVICE, clip=0.05)}
    )
    logits = np.random.default_rng(1).normal(size=PAIRS + 1)
    model = PositionBasedModel(4, PAIRS, attraction=FixedParameter(logits), rngs=nnx.Rngs(0))
    compiled = Evaluator().compiled(
        model, HeldOut.test(dataset), {"counterfactual": group.prepare(dataset)}
    )
    found = (
        compiled(Evaluator().state_of(model), "test").groups["counterfactual"].compute()["snips@2"]
    )

    propensity = dict(zip(PLACES, harvested(dataset), strict=True))
    total = weight_of_all = 0.0
    test = dataset.test
    columns = (test.column(name) for name in ("query_doc_ids", "clicks", "device", "lengths"))
    for ids, clicks, device, length in zip(*columns, strict=True):
        rank = 1 + np.argsort(np.argsort(-logits[ids[:length]]))
        for at in np.flatnonzero(clicks[:length]):
            weight = 1 / max(propensity[str(device), at + 1], 0.05)
            total += weight / np.log2(1 + rank[at]) * (rank[at] <= 2)
            weight_of_all += weight
    np.testing.assert_allclose(found, total / weight_of_all, rtol=1e-5)


def doubts(dataset, source=None, metric=None):
    """Doubts about a ranker whose weights, or metric, are of these propensities."""
    group = CounterfactualMetrics(
        {"snips": SelfNormalizedDCG([2], propensity=metric)} if metric else {}
    ).prepare(dataset)
    weighting = None
    if source is not None:
        weighting = InversePropensity(source).resolved(dataset).weighting(dataset.train)
    model = Ranker(
        query_doc_pairs=PAIRS, positions=4, click_rate=dataset.click_rate, rngs=nnx.Rngs(0)
    )
    metrics = {"counterfactual": group}
    parts = SimpleNamespace(dataset=dataset, weighting=weighting, model=model, metrics=metrics)
    return [*_doubts_of_layouts(parts)]


def test_one_curve_for_devices_that_differ_is_doubted_and_the_words_remove_it():
    dataset, pooled = layout_log(20_000), HarvestedPropensities()
    (of_weights,) = doubts(dataset, source=pooled)
    assert of_weights.endswith("propensity=harvest propensity.examination_by=[device]")
    (of_metric,) = doubts(dataset, metric=pooled)
    assert of_metric.startswith("snips: ") and of_metric.endswith(
        "metric.counterfactual.snips.propensity.examination_by=[device]"
    )
    assert doubts(dataset, source=BY_DEVICE, metric=BY_DEVICE) == []
    assert doubts(dataset) == []  # no propensities
    assert doubts(layout_log(20_000, curves=SAME), source=pooled) == []


def test_a_source_of_layouts_can_be_a_part_of_models():
    """Flax compares and hashes what models hold besides arrays."""
    assert hash(BY_DEVICE) == hash(HarvestedPropensities(examination_by=("device",)))


def test_layouts_that_cannot_be_harvested_are_refused():
    with refuses(ConfigError, "propensity.estimator=chain", "choose all_pairs"):
        HarvestedPropensities("chain", ["device"])
    with refuses(ConfigError, "no column devise"):
        HarvestedPropensities(examination_by=["devise"])(layout_log(100))
