"""Intervals and effective impressions of documents against float64 numpy and quadrature."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from flax import nnx
from posteriors import MEAN, NORMAL, PRECISION, filled, prior_mean
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import logit
from small_logs import sigmoid

from clickexp.data import Dataset, Sessions
from clickexp.export.examination import examination
from clickexp.export.predict import predictor
from clickexp.export.tables import write_documents
from clickexp.models import (
    DocumentCTRModel,
    DynamicBayesianNetwork,
    MixtureModel,
    PositionBasedModel,
    TrustBiasModel,
)
from clickexp.parameters import (
    ContextParameterConfig,
    EmbeddingParameterConfig,
    QREmbedding,
    Rows,
    SumParameterConfig,
)
from clickexp.posteriors.documents import posterior_outputs
from clickexp.posteriors.exported import exported
from clickexp.posteriors.shared import SharedPosterior

IDS = np.array([[1, 2], [2, 3], [1, 3]], np.int32)
CLICKS = np.array([[1, 0], [1, 1], [0, 1]], bool)
LOG = Sessions.from_arrays(query_doc_ids=IDS, clicks=CLICKS, query_doc_pairs=3)


def documents(model, file, posterior=None):
    write_documents(model, Dataset("d", LOG, LOG, LOG, 3, 2), None, posterior, file)
    return pl.read_parquet(file)


ALONE = Sessions.from_arrays(
    query_doc_ids=np.arange(1, 4, dtype=np.int32)[:, None],
    clicks=np.zeros((3, 1), bool),
    query_doc_pairs=3,
)


def known(model):
    """What is known of ids 1 to 3, as posteriors in the tables are."""
    ((_, outputs),) = predictor(model, posterior_outputs)(ALONE)
    return {name: values[:, 0] for name, values in outputs.items()}


def posterior(tower):
    """Means and standard deviations of the logits of ids 1 to 3, from a table of one number per row."""
    values = np.asarray(tower.table.get_value().values, np.float64)[1:4]
    mean = values[:, 0] + prior_mean(values[:, 2]) + float(tower.baseline[...])
    return mean, np.exp(values[:, 1]) / PRECISION**0.5


def expected(function, mean, sd):
    """E[function(z)] for normal z."""
    return quad(
        lambda x: function(mean + sd * x) * np.exp(-x * x / 2) / (2 * np.pi) ** 0.5, -10, 10
    )[0]


def information(z):
    return sigmoid(z) * sigmoid(-z)


@pytest.fixture(scope="module")
def dbn():
    towers = dict(attraction=NORMAL, satisfaction=NORMAL)
    return filled(
        DynamicBayesianNetwork(positions=2, query_doc_pairs=3, **towers, rngs=nnx.Rngs(0))
    )


@pytest.fixture(scope="module")
def of_dbn(dbn, tmp_path_factory):
    """Its documents."""
    return documents(dbn, tmp_path_factory.mktemp("dbn") / "documents.parquet")


def test_intervals_of_attraction_and_satisfaction(dbn, of_dbn):
    model, table = dbn, of_dbn
    columns = [
        f"{role}{end}"
        for role in ("attraction", "satisfaction")
        for end in ("", "_sd", "_low", "_high")
    ]
    assert table.columns == [
        "query_doc_id", *columns, "relevance", "impressions", "clicks", "effective_impressions"
    ]  # fmt: skip
    for name, values in known(
        exported(model, LOG, np.ones(4, int), np.zeros(4, int), None).probabilities
    ).items():
        np.testing.assert_allclose(table[name], values, rtol=1e-5)
    table = known(model)
    for role in ("attraction", "satisfaction"):
        mean, sd = posterior(getattr(model, role))
        np.testing.assert_allclose(table[f"{role}_sd"], sd, rtol=1e-5)
        np.testing.assert_allclose(table[f"{role}_low"], sigmoid(mean - 1.959964 * sd), rtol=1e-5)
        np.testing.assert_allclose(table[f"{role}_high"], sigmoid(mean + 1.959964 * sd), rtol=1e-5)
    mean, sd = posterior(model.attraction)
    slope = [expected(information, m, s) for m, s in zip(mean, sd, strict=True)]
    np.testing.assert_allclose(
        table["effective_impressions"], np.maximum(1 / sd**2 - PRECISION, 0) / slope, rtol=1e-3
    )


def test_intervals_have_the_errors_of_shared_parameters_and_effective_impressions_do_not(
    dbn, of_dbn, tmp_path
):
    """Of continuation g: a click has the factor g, which moves no row; the skip, of 2 below 1, is 1 - g (1 - s) a."""
    posterior = SharedPosterior(("continuation/weight[0]",), np.array([[30.0]]))
    before, table = of_dbn, documents(dbn, tmp_path / "documents.parquet", posterior)
    assert table.columns == before.columns
    for role, moved in (("attraction", 2), ("satisfaction", 1)):
        sd = table[f"{role}_sd"].to_numpy()
        ratio = sd / before[f"{role}_sd"].to_numpy()
        assert ratio[moved - 1] > 1.003 and np.delete(ratio, moved - 1) == pytest.approx(
            [1, 1], abs=1e-5
        )
        middle = logit(before[[f"{role}_low", f"{role}_high"]].to_numpy()).mean(axis=1)
        for end, sign in (("low", -1), ("high", 1)):
            np.testing.assert_allclose(
                table[f"{role}_{end}"], sigmoid(middle + sign * 1.959964 * sd), rtol=1e-4
            )
    assert table["effective_impressions"].equals(before["effective_impressions"])


def test_means_and_variances_of_the_terms_of_a_sum_add_up(tmp_path):
    """In a new search session, in which context adds nothing."""
    second = EmbeddingParameterConfig(posterior="normal", add_baseline=False)
    terms = {
        "first": NORMAL,
        "second": second,
        "context": ContextParameterConfig(["session_index"]),
    }
    sum_of_terms = SumParameterConfig(terms)
    model = filled(
        PositionBasedModel(
            positions=2, query_doc_pairs=3, attraction=sum_of_terms, rngs=nnx.Rngs(0)
        )
    )
    model.attraction.terms["context"].weight[...] = jnp.array([3.0, 4.0])
    table = documents(model, tmp_path / "documents.parquet")
    mean, sd = posterior(model.attraction.terms["first"])
    values = np.asarray(model.attraction.terms["second"].table.get_value().values, np.float64)[1:4]
    mean, variance = mean + values[:, 0] + MEAN, sd**2 + np.exp(2 * values[:, 1]) / PRECISION
    sd = variance**0.5
    np.testing.assert_allclose(table["attraction_sd"], sd, rtol=1e-5)
    np.testing.assert_allclose(table["attraction_low"], sigmoid(mean - 1.959964 * sd), rtol=1e-4)
    np.testing.assert_allclose(table["attraction_high"], sigmoid(mean + 1.959964 * sd), rtol=1e-4)
    slope = np.array([expected(information, *each) for each in zip(mean, sd, strict=True)])
    effective = np.maximum(1 / variance - PRECISION / 2, 0) / slope
    np.testing.assert_allclose(table["effective_impressions"], effective, rtol=1e-3)


def closest_normal(impressions, clicks):
    """Mean and logarithm of the deviation of the normal next to the posterior, by descent on the bound."""

    def bound(point):
        mean, sd = point[0], np.exp(point[1])
        loss = expected(
            lambda z: clicks * np.logaddexp(0, -z) + (impressions - clicks) * np.logaddexp(0, z),
            mean,
            sd,
        )
        return loss - point[1] + (sd**2 + (mean + 1 - prior_mean(0.0)) ** 2) * PRECISION / 2

    options = {"xatol": 1e-7, "fatol": 1e-10}
    return minimize(bound, [-1.0, 0.0], method="Nelder-Mead", options=options).x


def test_effective_impressions_of_a_click_rate_are_its_impressions():
    model = filled(DocumentCTRModel(query_doc_pairs=3, ctr=NORMAL, rngs=nnx.Rngs(0)))
    rows, untouched = model.ctr.table.get_value(), [0.0, 0.0, 0.0]
    for impressions, clicks in ((1, 0), (20, 3), (200, 0), (500, 400)):
        mean, log_sd = closest_normal(impressions, clicks)
        row = [mean + 1 - prior_mean(0.0), log_sd + np.log(PRECISION) / 2, 0.0]
        values = jnp.asarray([untouched, untouched, row, untouched], jnp.float32)
        model.ctr.table.set_value(Rows(values, 1, rows.prior))
        table = known(model)
        assert table["effective_impressions"][1] == pytest.approx(impressions, rel=2e-3)
        assert table["effective_impressions"][2] == pytest.approx(0, abs=1e-5)
        assert table["attraction_sd"][2] == pytest.approx(PRECISION**-0.5)


def test_rows_of_several_numbers_and_compressed_tables():
    """A product of two rows: without data it varies with the prior means of both."""
    config = EmbeddingParameterConfig(
        posterior="normal_by_rank",
        embedding_features=2,
        baseline=-1.0,
        embedding_fn=QREmbedding,
        compression_ratio=1,
    )
    model = filled(
        PositionBasedModel(positions=2, query_doc_pairs=3, attraction=config, rngs=nnx.Rngs(0))
    )
    table, tower = known(model), model.attraction
    quotients, remainders = tower.table.cells(jnp.arange(1, 4))
    (q, r), weights = (
        [
            np.asarray(store.get_value().values, np.float64)[np.asarray(ids)]
            for store, ids in (
                (tower.table.quotients, quotients),
                (tower.table.remainders, remainders),
            )
        ],
        np.asarray(tower.projection[...], np.float64),
    )
    by_prior = [np.repeat(prior_mean(rows[:, 4:]), 2, axis=1) for rows in (q, r)]
    of_prior = 1 / PRECISION
    before = (
        of_prior * ((1 + by_prior[0]) ** 2 + of_prior) + by_prior[1] ** 2 * of_prior
    ) @ weights**2
    var_q, var_r = np.exp(2 * q[:, 2:4]) * of_prior, np.exp(2 * r[:, 2:4]) * of_prior
    mean_q, mean_r = 1 + q[:, :2] + by_prior[0], r[:, :2] + by_prior[1]
    variance = (var_r * (mean_q**2 + var_q) + mean_r**2 * var_q) @ weights**2
    np.testing.assert_allclose(table["attraction_sd"], variance**0.5, rtol=1e-4)
    mean = (mean_q * mean_r) @ weights - 1
    slope = [expected(information, m, s) for m, s in zip(mean, variance**0.5, strict=True)]
    effective = np.maximum(1 / variance - 1 / before, 0) / slope
    assert effective.max() > 0
    np.testing.assert_allclose(table["effective_impressions"], effective, rtol=2e-2, atol=1e-4)


SIZES = {"positions": 2, "query_doc_pairs": 3}


@pytest.fixture(scope="module")
def mixture():
    components = [PositionBasedModel, partial(DynamicBayesianNetwork, satisfaction=NORMAL)]
    return filled(
        MixtureModel(components, shared={"attraction": NORMAL}, **SIZES, rngs=nnx.Rngs(0))
    )


@pytest.mark.nightly
def test_documents_of_a_mixture_have_no_intervals_of_what_one_component_has(mixture, tmp_path):
    assert "satisfaction_sd" not in documents(mixture, tmp_path / "mixture.parquet").columns


def test_intervals_of_a_mixture_are_those_of_the_tower_that_its_components_share(mixture):
    tower = mixture.models[0].attraction
    assert mixture.models[1].attraction is tower
    table = known(mixture)
    assert "satisfaction_sd" not in table
    mean, sd = posterior(tower)
    np.testing.assert_allclose(table["attraction_sd"], sd, rtol=1e-5)
    np.testing.assert_allclose(table["attraction_low"], sigmoid(mean - 1.959964 * sd), rtol=1e-5)
    slope = [expected(information, m, s) for m, s in zip(mean, sd, strict=True)]
    effective = np.maximum(1 / sd**2 - PRECISION, 0) / slope
    np.testing.assert_allclose(table["effective_impressions"], effective, rtol=1e-3)


def test_models_without_posteriors_of_documents_have_no_intervals(tmp_path):
    """Nor has a mixture of which each component has its own; of points, see test_documents."""
    apart = MixtureModel(
        [partial(PositionBasedModel, attraction=NORMAL)] * 2, **SIZES, rngs=nnx.Rngs(0)
    )
    columns = documents(apart, tmp_path / "documents.parquet").columns
    assert columns == ["query_doc_id", "attraction", "relevance", "impressions", "clicks"]


@pytest.mark.parametrize("cls", [PositionBasedModel, DynamicBayesianNetwork])
def test_click_rates_are_those_of_positions(cls):
    """Lists of different lengths whose positions run the other way: places in the list would give 2/3 and 1/2."""
    lengths = np.array([2, 1, 2], np.int32)
    sessions = Sessions.from_arrays(
        query_doc_ids=IDS * (np.arange(2) < lengths[:, None]),
        clicks=CLICKS & (np.arange(2) < lengths[:, None]),
        lengths=lengths,
        positions=np.array([[2, 1], [2, 0], [1, 2]], np.int32),
        query_doc_pairs=3,
    )
    table = examination(cls(positions=2, query_doc_pairs=3, rngs=nnx.Rngs(0)), sessions)
    assert table["rank"].to_list() == [1, 2]
    assert table["click_rate"].to_list() == [0, 1]
    assert table["impressions"].to_list() == [2, 3]


def test_propensities_of_trust_bias_are_ratios_of_slopes():
    """Click rates of relevant documents .8 and .5, of irrelevant ones .3 and .1: slopes .5 and .4."""
    model = TrustBiasModel(positions=2, query_doc_pairs=3, rngs=nnx.Rngs(0))
    for tower, rates in ((model.true_positive, [0.8, 0.5]), (model.false_positive, [0.3, 0.1])):
        tower.weight[...] = jnp.asarray(logit([0.5, *rates]), jnp.float32)
    table = examination(
        model, Sessions.from_arrays(query_doc_ids=IDS, clicks=CLICKS, query_doc_pairs=3)
    )
    np.testing.assert_allclose(table["examination"], [0.8, 0.5], rtol=1e-6)
    np.testing.assert_allclose(table["propensity"], [1, 0.4 / 0.5], rtol=1e-6)
