"""Examination that differs between layouts: fits, intervals, exports, and propensities of rankers."""

import dataclasses
import json

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_tables import with_fixed_tables
from flax import nnx
from layout_logs import CURVES, PAIRS, layout_log
from refusals import refuses
from scipy.special import expit

from clickexp.data.cells import cells_of
from clickexp.errors import ConfigError
from clickexp.export.examination import examination
from clickexp.models import (
    DynamicBayesianNetwork,
    PositionBasedModel,
    TrustBiasModel,
    UserBrowsingModel,
)
from clickexp.models.ranker.debias import InversePropensity
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.parameters.layouts import layouts_of, with_shared_cells
from clickexp.posteriors.intervals import (
    of_first_positions,
    propensity,
    shared_examination,
    shared_intervals,
)
from clickexp.posteriors.shared import SharedPosterior, shared_posterior
from clickexp.posteriors.unlinked import with_open_factors
from clickexp.propensities import RunPropensities
from clickexp.runs.run import RelativeExamination, Run
from clickexp.training import Trainer

TRUTH = {
    (str(device), 1 + at): each for device, curve in CURVES.items() for at, each in enumerate(curve)
}


def model_of(dataset, kind=PositionBasedModel, by=("device",), **settings):
    sizes = {"query_doc_pairs": PAIRS, "positions": dataset.positions, "columns": dataset.columns}
    settings = kind.with_layouts(settings, by) if by else settings
    return kind(**sizes, **settings, click_rate=dataset.click_rate, rngs=nnx.Rngs(0))


def batch_of(sessions):
    ids = sessions.column("query_doc_ids")
    return {
        "query_doc_ids": ids,
        "clicks": sessions.column("clicks"),
        "mask": ids > 0,
        "device": sessions.column("device")[:, None],
        "positions": np.arange(1, 5, dtype=np.int32)[None],
    }


@pytest.fixture(scope="module")
def fits():
    """PBM with and without layouts, fitted to one log."""
    dataset = layout_log(8000)
    models = {by: model_of(dataset, by=by) for by in ((), ("device",))}
    for model in models.values():
        Trainer(seed=0).train(model, dataset.train, dataset.val)
    return dataset, models


def test_curves_of_layouts_are_recovered_with_their_intervals(fits):
    """A pooled curve is wrong, and predicts worse."""
    dataset, models = fits
    errors, losses = {}, {}
    for by, model in models.items():
        posterior = shared_posterior(model, dataset.train)
        assert posterior is not None
        found = propensity(model, posterior, dataset.test)
        ratios = {
            (device, at): each
            for each in found
            for device, at in TRUTH
            if each.position == at and each.layout.get("device", device) == device
        }
        reference = next(key for key, each in ratios.items() if each.sd == 0)
        truth = {key: value / TRUTH[reference] for key, value in TRUTH.items()}
        errors[by] = np.mean([abs(ratios[key].relative / truth[key] - 1) for key in TRUTH])
        losses[by] = float(model.compute_loss(batch_of(dataset.test)))
        if by:
            held = [
                ratios[key].relative_low <= truth[key] <= ratios[key].relative_high for key in TRUTH
            ]
            assert sum(held) >= len(TRUTH) - 1
    assert errors["device",] < 0.08 < 0.15 < errors[()]
    assert losses["device",] < losses[()] - 0.003


def test_the_table_of_an_export_has_a_row_per_layout_and_rank(fits):
    dataset, models = fits
    model = models["device",]
    posterior = shared_posterior(model, dataset.train)
    table = examination(model, dataset.test, posterior)
    assert table.columns[:3] == ["device", "rank", "examination"]
    assert list(table.select("device", "rank").iter_rows()) == [
        (int(device), rank) for device, rank in TRUTH
    ]
    device = dataset.test.column("device")
    assert table["impressions"].to_list() == [int((device == int(key)).sum()) for key, _ in TRUTH]
    assert table.filter(propensity_sd=0)["propensity"].to_list() == [1.0]
    plain = examination(model, dataset.test)
    np.testing.assert_allclose(plain["examination"], table["examination"])
    assert plain.filter(device=0, rank=1)["propensity"].to_list() == [1.0]  # of most impressions


def test_intervals_are_the_inverse_of_information_and_prior():
    """Of a model whose documents are known, by the Hessian of its loss in float64."""
    dataset = layout_log(600)
    known = EmbeddingParameterConfig(posterior="none", prior_precision=1e9)
    model = model_of(dataset, attraction=known)
    rng = np.random.default_rng(0)
    table = model.examination.terms["differences"].table
    rows = table.get_value()
    values = np.asarray(rows.values).copy()
    values[:, 0] = rng.normal(0, 0.3, len(values))
    table.set_value(dataclasses.replace(rows, values=jnp.asarray(values)))
    model.examination.terms["shared"].weight[...] = jnp.asarray([0.0, 1.5, 0.5, 0.0, -0.5])
    posterior = shared_posterior(model, dataset.train)
    assert posterior is not None
    shared = with_shared_cells(model)
    graphdef, params, rest = nnx.split(shared, nnx.Param, ...)
    theta, back = jax.flatten_util.ravel_pytree(params)
    used = posterior.places(model)
    batch = batch_of(dataset.train)

    def loss(part):
        merged = nnx.merge(graphdef, back(theta.at[used].set(part)), rest, copy=True)
        return jnp.sum(with_fixed_tables(merged, part[0]).compute_loss(batch, aggregate=False))

    information = np.asarray(jax.hessian(loss)(theta[used]), np.float64)
    precision = 1.0  # of differences that are numbers, as those of documents are here
    own = np.array(["differences" in name for name in posterior.names])
    information += np.diag(np.where(own, precision, 0.0))
    covariance = np.linalg.inv(information)
    for each in shared_intervals(model, posterior):
        if each.parameter != "examination" or each.sd == 0:
            continue
        cells = layouts_of(model)
        first = next(e for e in shared_intervals(model, posterior) if e.sd == 0)
        slope = np.zeros(len(used))
        for sign, of in ((1, each), (-1, first)):
            cell = cells.cell(of.layout, of.position)
            rate = sign * (1 - of.value)
            for name in (
                f"examination/terms/differences/weight[{cell}]",
                f"examination/terms/shared/weight[{of.position}]",
            ):
                slope[posterior.names.index(name)] += rate
        # the Newton step that is left makes deviations at most twice as large
        exact = np.sqrt(slope @ covariance @ slope)
        assert 0.98 * exact <= each.sd <= 4 * exact


def test_shared_cells_are_the_same_model():
    dataset = layout_log(300)
    batch = batch_of(dataset.train)
    for kind in (PositionBasedModel, UserBrowsingModel, TrustBiasModel):
        model = model_of(dataset, kind)
        for _, node in nnx.iter_graph(model):
            if isinstance(node, nnx.Variable) and type(node).__name__ == "Table":
                rows = node.get_value()
                values = rows.values.at[:, 0].set(jnp.linspace(-1, 1, len(rows.values)))
                node.set_value(dataclasses.replace(rows, values=values.at[:, 1].set(-9.0)))
        shared = with_shared_cells(model)
        for name in ("predict_clicks", "predict_conditional_clicks"):
            ours, theirs = (np.exp(getattr(each, name)(batch)) for each in (model, shared))
            np.testing.assert_allclose(ours, theirs, atol=2e-6)
        assert with_shared_cells(shared) is shared


def test_a_layout_without_sessions_follows_the_shared_curve():
    """Differences without data have the mean of their prior."""
    dataset = layout_log(300)
    model = model_of(dataset)
    model.examination.terms["shared"].weight[...] = jnp.asarray([0.0, 1.0, 0.5, 0.2, -0.5])
    cells = layouts_of(model)
    examination = with_shared_cells(model).examination
    found = examination.of_cells([cells.cell({"device": "1"}, at) for at in (1, 2, 3)])
    np.testing.assert_allclose(found[0], [1.0, 0.5, 0.2], atol=1e-6)
    np.testing.assert_allclose(
        shared_examination(model, dataset.train)[1:], expit([1.0, 0.5, 0.2, -0.5]), atol=1e-6
    )


def test_the_shared_curve_of_a_fit_lies_between_those_of_its_layouts(fits):
    """Where both have documents, after the first rank. That of UBM is a mean over sessions."""
    dataset, models = fits
    model = models["device",]
    found = propensity(model, shared_posterior(model, dataset.train), dataset.test)
    curve = shared_examination(model, dataset.test)
    for at in (2, 3):
        values = [each.value for each in found if each.position == at]
        assert min(values) < curve[at] < max(values)
    browsing = model_of(dataset, UserBrowsingModel)
    shared = with_shared_cells(browsing).examination.terms["shared"]
    clicks, there = (dataset.test.column(name) for name in ("clicks", "query_doc_ids"))
    sums, counts = np.zeros((2, 5))
    for row, ids in zip(clicks, there, strict=True):
        last = 0
        for at in range(1, 1 + int((ids > 0).sum())):
            sums[at] += 1 / (1 + np.exp(-float(shared.weight[...].reshape(5, -1)[at, last])))
            counts[at] += 1
            last = at if row[at - 1] else last
    expected = sums[1:] / counts[1:]
    np.testing.assert_allclose(shared_examination(browsing, dataset.test)[1:], expected, rtol=1e-5)


def test_differences_that_are_known_are_pooled_to_means_and_variance():
    """Where cells have much data: means by position, and the variance around them with its degrees of freedom."""
    model, rng = model_of(layout_log(300)), np.random.default_rng(0)
    tower = model.examination
    table, cells = tower.terms["differences"].table, tower.cells
    rows = table.get_value()
    values = np.zeros((cells.layouts + 1, cells.positions + 1, 2))
    values[:2, 1:, 0], values[:2, 1:, 1] = rng.normal(1, 0.7, (2, 4)), -12.0
    values[1, 4] = 0.0, -0.5  # with the mean of the prior, and some data
    table.set_value(dataclasses.replace(rows, values=jnp.asarray(values.reshape(-1, 2), "f4")))

    def means():
        points = with_shared_cells(model).examination
        return np.asarray(points.of_cells(np.arange(cells.count)))[0].reshape(3, 5)

    before = means()
    tower.pool()
    after = means()
    np.testing.assert_allclose(after[:2, 1:4], before[:2, 1:4], atol=1e-4)
    np.testing.assert_allclose(after[2, 1:4], before[:2, 1:4].mean(axis=0), atol=1e-4)
    assert before[1, 4] < after[1, 4] < after[2, 4] < before[0, 4]  # drawn to the other device
    exact = (np.diff(before[:2, 1:4], axis=0) ** 2).sum() / 2 / 3
    found = np.exp(-float(table.get_value().prior.log_precision))
    assert found == pytest.approx(exact, rel=0.5)


def test_the_factor_of_cells_that_no_document_links_is_open():
    """A device whose documents no other shows: its curve is known up to a factor, by clicks alone."""
    dataset = layout_log(600)
    model = model_of(dataset)
    cells = layouts_of(model)
    of = {device: [cells.cell({"device": device}, at) for at in (1, 2, 3)] for device in ("0", "1")}
    names = [
        f"examination/terms/differences/weight[{cell}]" for device in of for cell in of[device]
    ]
    posterior = SharedPosterior(tuple(names), 0.01 * np.eye(6))
    opened = with_open_factors(model, posterior, [*of.values()])
    found = shared_intervals(model, opened)
    reference = next(each.layout for each in found if each.sd == 0)
    for each in found:
        assert (each.relative_low is None) == (each.layout != reference)
    assert of_first_positions(model, opened)


def test_models_without_examination_by_rank_refuse_layouts():
    with refuses(ConfigError, "DynamicBayesianNetwork has no tower of examination", "model=pbm"):
        DynamicBayesianNetwork.with_layouts({}, ["device"])
    with refuses(ConfigError, "no column devise"):
        model_of(layout_log(100), by=("devise",))


def test_rankers_divide_clicks_by_the_propensity_of_their_layout(tmp_path):
    """Of a finished run: weights 1 / propensity by device and rank, 0 where none is known."""
    dataset = layout_log(600)
    points = [
        RelativeExamination(position=at, relative=value / 0.9, layout={"device": device})
        for (device, at), value in TRUTH.items()
        if (device, at) != ("1", 3)
    ]
    content = {
        "format": 1,
        "model": "PBM",
        "dataset": "devices",
        "test_set": "s",
        "test": {"ll": -1},
    }
    given = {"propensity": [each.model_dump() for each in points]}
    Run.of(content | given, folder=tmp_path).write()
    debias = InversePropensity(propensity=RunPropensities(str(tmp_path))).resolved(dataset)
    batch = batch_of(dataset.train)
    weights = np.asarray(debias.weights(batch))
    for device in (0, 1):
        rows = dataset.train.column("device") == device
        expected = [0.9 / TRUTH.get((str(device), at), np.inf) for at in (1, 2, 3, 4)]
        expected = [0.0 if (device, at) == (1, 3) else expected[at - 1] for at in (1, 2, 3, 4)]
        np.testing.assert_allclose(weights[rows], np.tile(expected, (rows.sum(), 1)), rtol=1e-5)
    weighting = debias.weighting(dataset.train)
    cells = cells_of(dataset, ["device"])
    assert weighting.unknown == (cells.cell({"device": "1"}, 3),)
    lines = [*weighting.describe()]
    assert any("no propensity for position 3 of device 1" in line for line in lines)
    kept = weighting.result()
    assert len(kept["layouts"]) == len(kept["values"]) == cells.count - 1
    json.dumps(kept)
    (tmp_path / "config.yaml").write_text("examination_by: [device]\n")
    Run.of(content | {"per_rank": {"examination": [0.9, 0.5]}}, folder=tmp_path).write()
    with refuses(ConfigError, "no propensities of its layouts", "shared_intervals=true"):
        RunPropensities(str(tmp_path))(dataset)
