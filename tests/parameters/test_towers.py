"""Logits of every tower against forward passes in float64 numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from zoo import fill, sigmoid

from clickexp.errors import ConfigError, DataError
from clickexp.models import PositionBasedModel
from clickexp.parameters import (
    Combination,
    DeepCrossParameterConfig,
    DeepParameterConfig,
    EmbeddingParameterConfig,
    GlobalParameterConfig,
    LinearParameterConfig,
    PositionParameterConfig,
    Rows,
    Sizes,
    new_table,
)
from clickexp.parameters.table import Prior, Table
from clickexp.simulation.towers import DecayingExamination, FixedParameter

FEATURES = 4
SIZES = Sizes(query_doc_pairs=9, positions=6, click_rate=0.2)


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    return {
        "query_doc_ids": rng.integers(0, 10, (3, 6)).astype(np.int32),
        "positions": np.arange(1, 7, dtype=np.int32)[None],
        "query_doc_features": rng.normal(size=(3, 6, FEATURES)).astype(np.float32),
    }


def built(config):
    """The config's parameter with normal numbers everywhere."""
    rng = np.random.default_rng(1)
    return fill(config.build(SIZES, rngs=nnx.Rngs(0)), lambda shape: rng.normal(size=shape))


def f64(variable):
    return np.asarray(variable[...], np.float64)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)


def linear(layer, x):
    return x @ f64(layer.kernel) + f64(layer.bias)


def normed(norm, x):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return scaled * f64(norm.scale) + f64(norm.bias)


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def perceptron(layers, x, activation=elu):
    """layers is the tower's sequence of linear, norm, activation, dropout, ..."""
    for step in range(0, len(layers), 4):
        x = activation(normed(layers[step + 1], linear(layers[step], x)))
    return x


@nnx.jit
def logit(tower, batch):
    return tower.logit(batch)


@nnx.jit
def prob(tower, batch):
    return tower.prob(batch)


def features(batch):
    return batch["query_doc_features"].astype(np.float64)


def test_global(batch):
    tower = built(GlobalParameterConfig())
    assert logit(tower, batch).shape == (1, 1)
    close(nnx.jit(lambda tower: tower.log_prob(batch))(tower), np.log(sigmoid(f64(tower.weight))))


@pytest.mark.parametrize("rows", [1, 3])
def test_position(batch, rows):
    tower = built(PositionParameterConfig())
    positions = np.tile(batch["positions"], (rows, 1))
    expected = f64(tower.weight)[positions]
    close(logit(tower, {**batch, "positions": positions}), expected)
    pair = nnx.jit(lambda tower, batch: tower.log_pair(batch))(
        tower, {**batch, "positions": positions}
    )
    close(np.exp(pair.log), sigmoid(expected))
    close(np.exp(pair.complement), sigmoid(-expected))


def test_copies_of_positions_that_accelerators_read_have_the_same_pair_and_slope(monkeypatch):
    tower, rng = built(PositionParameterConfig()), np.random.default_rng(2)
    positions = rng.integers(0, 7, (700, 6)).astype(np.int32)
    weights = rng.normal(size=(2, 700, 6)).astype(np.float32)

    def weighted(tower):
        pair = tower.log_pair({"positions": positions})
        return jnp.sum(weights[0] * pair.log + weights[1] * pair.complement)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    value, slopes = nnx.value_and_grad(weighted)(tower)
    logits = f64(tower.weight)
    sums = np.array(
        [[w[positions == place].sum(dtype=np.float64) for place in range(7)] for w in weights]
    )
    np.testing.assert_allclose(
        value, (sums * np.log([sigmoid(logits), sigmoid(-logits)])).sum(), rtol=1e-5
    )
    slope = sums[0] * sigmoid(-logits) - sums[1] * sigmoid(logits)
    np.testing.assert_allclose(slopes.weight[...], slope, rtol=1e-4, atol=1e-3)


def test_probabilities_of_positions_start_at_the_first():
    tower = built(PositionParameterConfig())
    weights = f64(tower.weight)
    np.testing.assert_allclose(tower.probabilities(4), sigmoid(weights[1:5]), rtol=1e-5)


@pytest.mark.parametrize("dim", [1, 8])
@pytest.mark.parametrize("add_baseline", [True, False])
def test_embedding(batch, dim, add_baseline):
    tower = built(EmbeddingParameterConfig(embedding_features=dim, add_baseline=add_baseline))
    rows = np.asarray(tower.table.get_value().values, np.float64)[batch["query_doc_ids"]]
    expected = rows[..., 0] if dim == 1 else rows @ f64(tower.projection)
    close(logit(tower, batch), expected + (f64(tower.baseline) if add_baseline else 0))
    close(prob(tower, batch), sigmoid(logit(tower, batch)))


def test_linear(batch):
    tower = built(LinearParameterConfig(features=FEATURES))
    close(
        logit(tower, batch), linear(tower.linear, normed(tower.input_norm, features(batch)))[..., 0]
    )


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_deep(batch, layers):
    tower = built(DeepParameterConfig(features=FEATURES, layers=layers))
    hidden = perceptron(tower.deep.layers, normed(tower.input_norm, features(batch)))
    close(logit(tower, batch), linear(tower.output, hidden)[..., 0])


def test_deep_without_norms_and_with_another_activation(batch):
    config = DeepParameterConfig(
        features=FEATURES, layers=1, norm=None, input_norm=None, activation_fn=jnp.tanh
    )
    tower = built(config)
    hidden = np.tanh(linear(tower.deep.layers[0], features(batch)))
    close(logit(tower, batch), linear(tower.output, hidden)[..., 0])


@pytest.mark.parametrize("combination", [Combination.STACKED, "parallel"])
@pytest.mark.parametrize(("cross", "deep"), [(2, 2), (0, 1), (1, 0)])
def test_deep_cross(batch, combination, cross, deep):
    config = DeepCrossParameterConfig(
        features=FEATURES,
        cross_layers=cross,
        deep_layers=deep,
        combination=combination,
        hidden_units=5,
    )
    tower = built(config)
    start = crossed = normed(tower.input_norm, features(batch))
    for layer in tower.cross:
        crossed = start * linear(layer, crossed) + crossed
    if combination == "stacked":
        last = perceptron(tower.deep.layers, crossed)
    else:
        last = np.concatenate([perceptron(tower.deep.layers, start), crossed], axis=-1)
    close(logit(tower, batch), linear(tower.output, last)[..., 0])


def test_layers_by_default():
    deep, cross = (
        config(features=FEATURES).build(SIZES, rngs=nnx.Rngs(0))
        for config in (DeepParameterConfig, DeepCrossParameterConfig)
    )
    assert [len(tower.deep.layers) // 4 for tower in (deep, cross)] == [2, 2]
    assert len(cross.cross) == 2 and cross.stacked


def test_dropout_acts_in_training_only(batch):
    tower = built(DeepParameterConfig(features=FEATURES, layers=2, dropout=0.5))
    tower.train()
    assert (logit(tower, batch) != logit(tower, batch)).any()
    tower.eval()
    hidden = perceptron(tower.deep.layers, normed(tower.input_norm, features(batch)))
    close(logit(tower, batch), linear(tower.output, hidden)[..., 0])


def test_fixed_values_by_id_by_position_or_one_for_all(batch):
    values = np.random.default_rng(2).normal(size=10)
    close(logit(FixedParameter(values), batch), values[batch["query_doc_ids"]])
    close(logit(FixedParameter(values, "positions"), batch), values[batch["positions"]])
    close(logit(FixedParameter(-1.5), batch), [[-1.5]])
    assert not jax.tree.leaves(nnx.state(FixedParameter(values), nnx.Param))


def test_decaying_examination_is_a_power_of_the_distance(batch):
    """Odds of exp(top) d^-decay: 8, 4, 8/3 for d = 1, 2, 3 with top log 8 and decay 1."""
    tower = DecayingExamination(np.log(8.0), 1.0)
    close(jnp.exp(logit(tower, batch)), 8 / batch["positions"])
    last = np.array([[0, 1, 1, 3, 3, 5]], np.int32)
    odds = jnp.exp(logit(tower, {**batch, "last_click_positions": last}))
    close(odds, 8 / np.array([[1, 1, 2, 1, 2, 1]]))


@pytest.mark.parametrize("dim", [1, 8])
def test_untrained_embedding_predicts_the_click_rate(batch, dim):
    config = EmbeddingParameterConfig(embedding_features=dim, posterior="none")
    tower = config.build(SIZES, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(prob(tower, batch), np.full((3, 6), 0.2), rtol=1e-6)


def mean_probability(mean, variance):
    """E[s(z)] of normal z by quadrature at 100 nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    return sigmoid(mean[..., None] + np.sqrt(variance)[..., None] * nodes) @ weights / weights.sum()


@pytest.mark.parametrize("dim", [1, 8])
def test_untrained_posteriors_predict_the_mean_over_their_prior(batch, dim):
    config = EmbeddingParameterConfig(
        embedding_features=dim, posterior="normal_by_rank", prior_precision=2.0
    )
    tower = config.build(SIZES, rngs=nnx.Rngs(0))
    variance = 0.5 if dim == 1 else 0.5 * (f64(tower.projection) ** 2).sum()
    expected = mean_probability(np.log(0.25), np.full((3, 6), variance))
    np.testing.assert_allclose(prob(tower, batch), expected, atol=1e-4)


@pytest.mark.parametrize("dim", [1, 8])
def test_posteriors_of_rows(batch, dim):
    """A mean is an offset from that of the prior, m + a x + b (x^2 - 1); a spread is relative to the prior's."""
    config, rng = (
        EmbeddingParameterConfig(embedding_features=dim, posterior="normal_by_rank"),
        np.random.default_rng(3),
    )
    tower = config.build(SIZES, rngs=nnx.Rngs(0))
    log_precision, center, slopes = 0.4, rng.normal(size=dim), rng.normal(size=(2, dim))
    values = 0.5 * rng.normal(size=(10, 2 * dim + 1))
    prior = Prior(
        jnp.float32(log_precision), *(jnp.asarray(each, jnp.float32) for each in (center, slopes))
    )
    tower.table.set_value(Rows(jnp.asarray(values, jnp.float32), dim, prior))
    weights = np.ones(1) if dim == 1 else f64(tower.projection)
    rows = values[batch["query_doc_ids"]]
    x = rows[..., 2 * dim :]
    means, sds = (
        rows[..., :dim] + center + slopes[0] * x + slopes[1] * (x**2 - 1),
        np.exp(rows[..., dim : 2 * dim] - log_precision / 2),
    )
    mean, variance = means @ weights + f64(tower.baseline), sds**2 @ weights**2
    posterior = nnx.jit(lambda tower, batch: tower.posterior(batch))(tower, batch)
    for actual, expected in zip(posterior, (mean, variance), strict=True):
        close(actual, expected)
    np.testing.assert_allclose(prob(tower, batch), mean_probability(mean, variance), rtol=2e-2)
    tower.table.set_value(tower.table.get_value().point())
    close(logit(tower, batch), mean)


def test_starting_logits(batch):
    for config, expected in (
        (EmbeddingParameterConfig(baseline=-1.0, posterior="none"), -1.0),
        (EmbeddingParameterConfig(baseline=0.0, posterior="none"), 0.0),
        (GlobalParameterConfig(None), np.log(0.25)),
        (GlobalParameterConfig(0.5), 0.5),
        (PositionParameterConfig(initial=None), np.log(0.25)),
        (PositionParameterConfig(), 2.0),
    ):
        found = logit(config.build(SIZES, rngs=nnx.Rngs(0)), batch)
        np.testing.assert_allclose(
            found, np.full(found.shape, expected), rtol=1e-6, err_msg=str(config)
        )


def test_without_a_click_rate_everything_starts_even(batch):
    sizes = Sizes(query_doc_pairs=9, positions=6)
    position = PositionParameterConfig(initial=None)
    for config in EmbeddingParameterConfig(), GlobalParameterConfig(None), position:
        assert np.all(np.asarray(prob(config.build(sizes, rngs=nnx.Rngs(0)), batch)) == 0.5)


def test_ids_may_start_from_zero_or_from_one():
    config = EmbeddingParameterConfig(posterior="normal_by_rank")
    assert config.build(SIZES, rngs=nnx.Rngs(0)).table.get_value().values.shape == (10, 3)
    config = EmbeddingParameterConfig(parameters=4, has_padding=False, posterior="none")
    assert config.build(Sizes(), rngs=nnx.Rngs(0)).table.get_value().values.shape == (4, 1)
    assert PositionParameterConfig(parameters=3).build(SIZES, rngs=nnx.Rngs(0)).weight.shape == (4,)


def test_sizes_are_checked():
    for name, value, most in ("positions", 0, "at least 1"), ("click_rate", 1.5, "at most 1"):
        with refuses(ConfigError, f"{name}={value}", most):
            Sizes(**{name: value})


def test_a_table_takes_rows_of_any_shape_and_only_their_parameters():
    table = new_table(5, 2)
    assert table.prior_precision == 0
    rows = table.get_value()
    rows.values = jnp.arange(20.0).reshape(5, 4)
    table.set_value(rows)
    np.testing.assert_array_equal(
        table.take(jnp.array([[4, 0, 4]])), [[[16, 17], [0, 1], [16, 17]]]
    )
    assert table.take(jnp.zeros((2, 3, 4), jnp.int32)).shape == (2, 3, 4, 2)
    assert table.take(jnp.int32(1)).tolist() == [4, 5]


def test_a_loop_without_the_tables_is_refused(batch):
    """As with nnx.Param alone, by which flax's optimizers are used; with both, gradients are those of the mean."""
    rows = EmbeddingParameterConfig("query_doc_ids", 11, posterior="none")
    model = PositionBasedModel(6, 10, attraction=rows, rngs=nnx.Rngs(0))
    shown = {**batch, "clicks": np.arange(18).reshape(3, 6) % 4 == 0, "mask": np.ones((3, 6), bool)}
    for without in (nnx.grad, lambda loss: nnx.jit(nnx.value_and_grad(loss))):
        for aggregate in (True, False):
            with refuses(ConfigError, "tables", "nnx.Any(nnx.Param, Table)"):
                without(lambda model: model.compute_loss(shown, aggregate).sum())(model)
    graph, params, rest = nnx.split(model, nnx.Any(nnx.Param, Table), ...)

    def mean(params):
        return nnx.merge(graph, params, rest).compute_loss(shown)

    def summed(params):
        return nnx.merge(graph, params, rest).compute_loss(shown, aggregate=False).sum()

    found, expected = jax.jit(jax.grad(mean))(params), jax.jit(jax.grad(summed))(params)
    jax.tree.map(lambda one, other: close(one, other / 18), found, expected)
    assert np.abs(found["attraction"]["table"].get_value().values).max() > 0
    rates = PositionBasedModel(6, 10, attraction=PositionParameterConfig(), rngs=nnx.Rngs(0))
    nnx.grad(lambda model: model.compute_loss(shown))(rates)


@pytest.mark.parametrize(
    "config", [LinearParameterConfig, DeepParameterConfig, DeepCrossParameterConfig]
)
def test_a_column_of_numbers_is_a_vector_of_width_1_as_it_is(config):
    """A norm of one number would leave nothing of it."""
    rng = np.random.default_rng(0)
    price = rng.normal(5, 2, (3, 6)).astype(np.float32)
    sizes = Sizes(features={"price": 1})
    tower = fill(
        config(use_feature="price").build(sizes, rngs=nnx.Rngs(0)),
        lambda shape: rng.normal(size=shape),
    )
    found = logit(tower, {"price": price})
    assert found.shape == (3, 6) and len(np.unique(found)) == 18
    close(found, logit(tower, {"price": price[..., None]}))
    per_list = logit(tower, {"price": price[:, :1]})
    close(per_list, found[:, :1])


def test_vectors_that_the_data_has_standardised_are_not_normalised_again(batch):
    sizes = Sizes(features={"query_doc_features": FEATURES}, standardized=["query_doc_features"])
    tower = LinearParameterConfig().build(sizes, rngs=nnx.Rngs(0))
    close(logit(tower, batch), linear(tower.linear, features(batch))[..., 0])


@pytest.mark.parametrize("ranks", [4, 6])
def test_other_widths_are_refused(ranks):
    """A list as long as the tower is wide is no vector."""
    sizes = Sizes(features={"price": 1, "query_doc_features": FEATURES})
    with refuses(ConfigError, "features=6", "price has 1", "set features to null"):
        LinearParameterConfig(use_feature="price", features=6).build(sizes, rngs=nnx.Rngs(0))
    with refuses(ConfigError, "no feature cost", "price, query_doc_features"):
        LinearParameterConfig(use_feature="cost").build(sizes, rngs=nnx.Rngs(0))
    tower = LinearParameterConfig(use_feature="price", features=ranks).build(
        Sizes(), rngs=nnx.Rngs(0)
    )
    with refuses(DataError, "price has shape (4, 6)", f"[batch, rank, {ranks}]"):
        tower.logit({"price": np.zeros((4, 6), np.float32)})
