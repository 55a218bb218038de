"""Hashes and compressed tables: uniform, without accidental collisions, as their papers define them, and trainable."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import posteriors
import pytest
from flax import nnx
from refusals import refuses
from small_logs import fill_tables, leaves, ragged_log, superbatch
from zoo import fill

from clickexp.data.batches import at_step, with_mask
from clickexp.errors import ConfigError
from clickexp.models import DocumentCTRModel, PositionBasedModel
from clickexp.parameters import (
    EmbeddingParameterConfig,
    FullEmbedding,
    HashEmbedding,
    QREmbedding,
    RobeDEmbedding,
    Sizes,
    Table,
)
from clickexp.parameters.hashing import buckets, murmur3, shuffled_cells, signs
from clickexp.simulation import simulate
from clickexp.training import LazySGD, Optimizer, Trainer
from clickexp.training.sparse import learned_priors, packing
from clickexp.training.step import TrainStep, split_model

RANKS, PAIRS, BATCH = 4, 40, 16
COMBINATIONS = "addition", "multiplication", "concatenation"
STORES = {
    "hash": HashEmbedding,
    **{f"QR {name}": partial(QREmbedding, qr_combination=name) for name in COMBINATIONS},
    "QR unshuffled": partial(QREmbedding, shuffle_indices=False),
    "ROBE-D": RobeDEmbedding,
    "ROBE of chunks": partial(RobeDEmbedding, chunk_size=3),
}
every_store = pytest.mark.parametrize("store", STORES.values(), ids=STORES)


def murmur(*words, seed=0):
    """MurmurHash3_x86_32 of one tuple of words in Python integers."""

    def rotated(x, bits):
        return (x << bits | x >> (32 - bits)) & 0xFFFFFFFF

    state = seed
    for word in words:
        word = rotated((word & 0xFFFFFFFF) * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        state = (rotated(state ^ word, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    state ^= 4 * len(words)
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return state ^ state >> 16


def sign(number, id, seed):
    return 1 - 2 * (murmur(id, seed=seed + number // 32) >> number % 32 & 1)


@pytest.mark.parametrize(
    ("word", "seed", "expected"),
    [
        (0x00000000, 0, 0x2362F9DE),
        (0x87654321, 0, 0xF55B516B),
        (0x87654321, 0x5082EDEE, 0x2362F9DE),
        (0xFFFFFFFF, 0, 0x76293B50),
    ],
)
def test_published_values_of_murmur3(word, seed, expected):
    assert (
        int(murmur3(np.asarray(word, np.uint32), seed=seed)) == expected == murmur(word, seed=seed)
    )


def test_murmur3_of_several_words_of_any_type_and_sign():
    ids, other = np.array([[0, -1], [2**31 - 1, 7]], np.int32), np.array([3, 40000], np.uint16)
    expected = [
        [murmur(int(i), int(j), seed=5) for i, j in zip(row, other, strict=True)] for row in ids
    ]
    np.testing.assert_array_equal(jax.jit(partial(murmur3, seed=5))(ids, other), expected)
    assert murmur3(ids).dtype == jnp.uint32


IDS = 200_000
PATTERNS = {
    "sequential": np.arange(IDS),
    "strided": np.arange(IDS) * 1024,
    "of an odd stride": np.arange(IDS) * 9973,
    "random": np.random.default_rng(0).choice(2**31 - 1, IDS, replace=False),
}
every_pattern = pytest.mark.parametrize("ids", PATTERNS.values(), ids=PATTERNS)


def assert_uniform(cells, count):
    """Chi-square within 5 sigma of its mean, both ways: count - 1 degrees of freedom, variance twice as many."""
    seen = np.bincount(np.asarray(cells, np.int64).ravel(), minlength=count)
    expected = seen.sum() / count
    statistic = ((seen - expected) ** 2 / expected).sum()
    assert abs(statistic - (count - 1)) < 5 * np.sqrt(2 * (count - 1))


@every_pattern
def test_hashes_spread_ids_as_chance_does(ids):
    for seed, count in itertools.product((0, 1, 12345), (1000, 1024, 4999)):
        assert_uniform(buckets(ids.astype(np.int32), count=count, seed=seed), count)


@jax.jit
def several_signs(ids):
    return signs(ids, 34, seed=1)[:, jnp.array([0, 1, 31, 32, 33])]


@every_pattern
def test_seeds_give_independent_hashes_and_signs_independent_of_buckets(ids):
    ids = ids.astype(np.int32)
    one, other = (np.asarray(buckets(ids, count=32, seed=seed), np.int64) for seed in (0, 1))
    assert_uniform(one * 32 + other, 32 * 32)
    bits = np.asarray(several_signs(ids)) > 0
    assert_uniform(one * 32 + bits @ (1 << np.arange(5)), 32 * 32)


MANY = np.arange(20_000, dtype=np.int32)
"""Ids in one shape, which JAX compiles hashes once for."""


def test_cells_of_all_ids_are_a_permutation():
    for grid in (1, 1), (1, 7), (2, 2), (3, 7), (16, 64), (11, 99), (97, 101), (1, 1000):
        size = grid[0] * grid[1]
        for seed in 0, 7:
            row, column = (
                np.asarray(each)[:size] for each in shuffled_cells(MANY, *grid, seed=seed)
            )
            cell = row * grid[1] + column
            np.testing.assert_array_equal(
                np.sort(cell), np.arange(size), err_msg=f"{grid}, seed {seed}"
            )
            assert size < 50 or (cell == np.arange(size)).mean() < 0.1, grid


def built_without_arrays(store, *sizes, **settings):
    """The store as it is traced, so that JAX compiles no zeros of its sizes."""
    return nnx.eval_shape(lambda: store(*sizes, **settings))


@pytest.mark.parametrize(
    "ids", [2, 3, 10, 127, 128, 129, 1000, 4097, pytest.param(100_003, marks=pytest.mark.nightly)]
)
def test_no_two_ids_share_both_rows(ids):
    every = MANY if ids <= len(MANY) else np.arange(ids, dtype=np.int32)
    for shuffle, ratio in itertools.product((True, False), (1.0, 1.5, 4.0, 10.0)):
        try:
            store = built_without_arrays(
                QREmbedding, ids, 1, compression_ratio=ratio, shuffle_indices=shuffle
            )
        except ConfigError:
            continue
        quotient, remainder = (np.asarray(each)[:ids] for each in store.cells(every))
        assert quotient.min() >= 0 and remainder.min() >= 0
        assert quotient.max() < store.rows[0] and remainder.max() < store.rows[1]
        assert len(np.unique(quotient.astype(np.int64) * store.rows[1] + remainder)) == ids, (
            shuffle,
            ratio,
        )


def test_ids_that_meet_once_do_not_meet_again():
    """Blocks of ten ids, such as those of a query: two blocks share several rows no more often than by chance."""
    ids = MANY
    _, remainder = map(np.asarray, QREmbedding(len(ids), 1, compression_ratio=10).cells(ids))
    order = np.argsort(remainder)
    groups = np.split(ids[order] // 10, np.flatnonzero(np.diff(remainder[order])) + 1)
    meetings = [pair for group in groups for pair in itertools.combinations(sorted(group), 2)]
    assert len(meetings) / len(set(meetings)) < 1.05


def kept(store):
    return sum(values.size for values in jax.tree.leaves(nnx.state(store, Table)))


@every_store
def test_the_ratio_is_met_and_its_budget_used(store):
    for features, ratio in itertools.product((4, 9), (1, 7.5)):
        numbers = 10_001 * features
        built = kept(built_without_arrays(store, 10_001, features, compression_ratio=ratio))
        assert numbers / ratio - 1 - features < built <= numbers / ratio, (features, ratio)


def test_an_array_has_as_many_numbers_as_an_index():
    store = built_without_arrays(RobeDEmbedding, 2**31 - 1, 1, compression_ratio=1)
    assert kept(store) == 2**31 - 1


@every_store
def test_an_unattainable_ratio_names_the_largest(store):
    for ids in 7, 100, 1000, 99_999:
        with refuses(ConfigError, "compression_ratio=1e+07", "give at most ") as error:
            store(ids, 5, compression_ratio=1e7)
        largest = float(str(error.value).split("give at most ")[1])
        built_without_arrays(store, ids, 5, compression_ratio=largest)
        with refuses(ConfigError, "compression_ratio=", "give at most "):
            store(ids, 5, compression_ratio=largest * 1.03)


def test_quotients_and_remainders_compress_to_twice_the_square_root():
    assert QREmbedding(10_000, 1, compression_ratio=50).rows == (100, 100)
    with refuses(ConfigError, "compression_ratio=51", "200", "give at most 50"):
        QREmbedding(10_000, 1, compression_ratio=51)


def test_what_cannot_be_built_is_refused():
    for build, *parts in (
        (
            lambda: HashEmbedding(10, 1, compression_ratio=0.5),
            "compression_ratio=0.5",
            "at least 1",
        ),
        (
            lambda: HashEmbedding(10, 1, compression_ratio=float("nan")),
            "compression_ratio=nan",
            "finite number",
        ),
        (
            lambda: QREmbedding(10, 1, qr_combination="concatenation"),
            "concatenation",
            "embedding_features to 2",
        ),
        (
            lambda: QREmbedding(10, 1, qr_combination="max"),
            "max",
            "addition, multiplication, concatenation",
        ),
        (lambda: RobeDEmbedding(10, 4, chunk_size=5), "chunk_size=5", "1 to 4"),
        (
            lambda: RobeDEmbedding(400_000_000, 8, compression_ratio=1),
            "2,147,483,647",
            "raise compression_ratio",
        ),
        (
            lambda: EmbeddingParameterConfig(compression_ratio=10),
            "compression_ratio=10",
            "embedding_fn=",
        ),
        (
            lambda: EmbeddingParameterConfig(parameters=8).build(Sizes(9), rngs=nnx.Rngs(0)),
            "parameters=8",
            "9",
            "null",
        ),
    ):
        with refuses(ConfigError, *parts):
            build()


FEATURES, SEED = 7, 3


def filled(store, ids=PAIRS + 1, features=FEATURES, **settings):
    rng = np.random.default_rng(1)
    settings = dict(compression_ratio=2, seed=SEED) | settings
    return fill(store(ids, features, **settings), lambda shape: rng.normal(size=shape))


def numbers(table):
    return np.asarray(table.get_value().values, np.float64)


def expected_embeddings(store, embed, **settings):
    """Checks take, for ids of several shapes, against a function of one id."""
    ids = np.random.default_rng(2).integers(0, PAIRS + 1, (3, 2, 4)).astype(np.int32)
    expected = np.array([embed(int(id)) for id in ids.ravel()]).reshape(*ids.shape, FEATURES)
    every, some = jax.jit(lambda ids: (store.take(ids), store.take(ids[0, 0])))(ids)
    np.testing.assert_allclose(every, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(some, expected[0, 0], rtol=1e-6, atol=1e-7)
    assert jax.eval_shape(store.take, jnp.int32(1)).shape == (FEATURES,)


def test_feature_hashing_by_definition():
    """Weinberger et al. 2009: the weight of a number of an id is its sign times that of its bucket."""
    store = filled(HashEmbedding)
    rows = numbers(store.table)
    expected_embeddings(
        store,
        lambda id: [
            sign(k, id, SEED + 1) * rows[murmur(id, seed=SEED) % len(rows), k]
            for k in range(FEATURES)
        ],
    )


@pytest.mark.parametrize("chunk", [None, 1, 3, 5])
def test_random_offset_blocks_by_definition(chunk):
    """Desai et al. 2022: number i lies i mod Z after the place to which (id, i // Z) hashes, on a circle."""
    store, size = filled(RobeDEmbedding, chunk_size=chunk), chunk or FEATURES
    array = numbers(store.array)[:, 0]
    expected_embeddings(
        store,
        lambda id: [
            sign(i, id, SEED + 1)
            * array[(murmur(id, i // size, seed=SEED) + i % size) % len(array)]
            for i in range(FEATURES)
        ],
    )


@pytest.mark.parametrize("name", COMBINATIONS)
def test_quotient_and_remainder_by_definition(name):
    """Shi et al. 2020 on ids in their own order: quotient and remainder of the id by the rows of remainders."""
    store = filled(QREmbedding, qr_combination=name, shuffle_indices=False)
    quotients, remainders = numbers(store.quotients), numbers(store.remainders)

    def embed(id):
        q, r = quotients[id // len(remainders)], remainders[id % len(remainders)]
        return (
            {"addition": r + q, "multiplication": r * (1 + q)}[name]
            if q.size == r.size
            else [*r, *q]
        )

    expected_embeddings(store, embed)


def test_variances_are_those_of_the_numbers_that_make_an_embedding_up():
    def posterior(table, row):
        """Means and variances."""
        rows, dim = numbers(table), table.get_value().dim
        return rows[row, :dim] + posteriors.MEAN, np.exp(
            2 * rows[row, dim : 2 * dim]
        ) / posteriors.PRECISION

    def of_hash(store, id):
        return posterior(store.table, murmur(id, seed=SEED) % store.rows)[1]

    def of_circle(store, id):
        return [
            posterior(store.array, (murmur(id, 0, seed=SEED) + i) % store.size)[1][0]
            for i in range(FEATURES)
        ]

    def of_grid(store, id):
        (q, of_q), (r, of_r) = (
            posterior(store.quotients, id // store.rows[1]),
            posterior(store.remainders, id % store.rows[1]),
        )
        match store.qr_combination:
            case "addition":
                return of_r + of_q
            case "multiplication":
                return (r**2 + of_r) * ((1 + q) ** 2 + of_q) - (r * (1 + q)) ** 2
        return [*of_r, *of_q]

    settings = {"compression_ratio": 2, "seed": SEED}
    grids = ({"qr_combination": name, "shuffle_indices": False} for name in COMBINATIONS)
    built = [
        (of_hash, HashEmbedding(PAIRS + 1, FEATURES, 1.0, "normal", **settings)),
        (of_circle, RobeDEmbedding(PAIRS + 1, FEATURES, 1.0, "normal", **settings)),
        *(
            (of_grid, QREmbedding(PAIRS + 1, FEATURES, 1.0, "normal", **settings, **grid))
            for grid in grids
        ),
    ]
    stores, ids = (
        [posteriors.filled(store) for _, store in built],
        np.arange(PAIRS + 1, dtype=np.int32),
    )
    found = nnx.jit(lambda stores, ids: [store.variance(ids) for store in stores])(stores, ids)
    for (by_hand, store), variances in zip(built, found, strict=True):
        expected = [by_hand(store, int(id)) for id in ids]
        np.testing.assert_allclose(variances, expected, rtol=1e-5, err_msg=str(type(store)))


def test_the_shuffle_is_a_feistel_network():
    rows, columns = 5, 9
    found = np.transpose(shuffled_cells(MANY, rows, columns, SEED))
    for id in range(rows * columns):
        row, column = divmod(id, columns)
        for key in range(SEED, SEED + 6, 2):
            column = (column + murmur(row, seed=key) % columns) % columns
            row = (row + murmur(column, seed=key + 1) % rows) % rows
        assert found[id].tolist() == [row, column]


def tower(store, features=FEATURES, precision=0.0, ratio=3, posterior="none"):
    return EmbeddingParameterConfig(
        embedding_features=features,
        posterior=posterior,
        prior_precision=precision,
        embedding_fn=store,
        compression_ratio=ratio,
    )


def document_model(store, **settings):
    return DocumentCTRModel(PAIRS, tower(store, **settings), rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "QR multiplication" else pytest.mark.nightly)
        for name in STORES
    ],
)
def test_a_step_moves_every_number_by_its_gradient(name):
    """Plain descent at rate 1, on lists of all lengths with padding and ids many times in the batch."""
    model, columns = fill_tables(document_model(STORES[name])), ragged_log(BATCH, RANKS, PAIRS)
    arrays, optimizer = superbatch(columns, BATCH), Optimizer(optax.sgd(1.0), LazySGD(1.0))
    graphdef, state = split_model(model, optimizer)
    state, loss, _ = jax.jit(TrainStep(graphdef, optimizer))(state, arrays, np.int32(1))
    graphdef, tables, params, other = nnx.split(model, Table, nnx.Param, ...)

    def summed_loss(tables, params):
        batch = at_step(with_mask(jax.tree.map(jnp.asarray, arrays)), 0)
        return nnx.merge(graphdef, tables, params, other).compute_loss(batch, aggregate=False).sum()

    expected, (table_grads, grads) = jax.jit(jax.value_and_grad(summed_loss, argnums=(0, 1)))(
        tables, params
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    for after, before, grad in zip(
        *map(leaves, (packing.learned(state.tables), tables, table_grads)), strict=True
    ):
        np.testing.assert_allclose(before - after, grad, rtol=1e-4, atol=5e-6)
        assert np.abs(grad).max() > 0.01
    for after, before, grad in zip(*map(leaves, (state.params, params, grads)), strict=True):
        np.testing.assert_allclose(before - after, grad / (BATCH * RANKS), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "hash",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("QR multiplication", "ROBE of chunks")
        ),
    ],
)
def test_an_epoch_pulls_a_number_by_the_precision_of_its_prior(name):
    """The pull of all steps of an epoch from one place sums to precision times the number, whoever shares it."""
    columns, steps, moves = ragged_log(4 * BATCH, RANKS, PAIRS), 4, []
    for precision in 1.7, 0.0:
        model = fill_tables(document_model(STORES[name], precision=precision))
        optimizer = Optimizer(optax.set_to_zero(), LazySGD(1.0))
        graphdef, state = split_model(model, optimizer)
        step, arrays = TrainStep(graphdef, optimizer), superbatch(columns, BATCH)
        found = jax.jit(step.count)(
            learned_priors.no_documents(state.tables), state, arrays, np.int32(steps)
        )
        state = dataclasses.replace(state, tables=learned_priors.shares(state.tables, found, {}))
        before, run, total = leaves(packing.learned(state.tables)), jax.jit(step), 0.0
        for index in range(steps):
            one = {name: values[index][None] for name, values in arrays.items()}
            after = leaves(packing.learned(run(state, one, np.int32(1))[0].tables))
            total = total + np.concatenate(
                [(a - b).ravel() for a, b in zip(after, before, strict=True)]
            )
        moves.append(total)
    rows = np.concatenate([b.ravel() for b in before])
    pulled = np.abs(moves[0] - moves[1]) > 1e-4
    assert pulled.mean() > 0.8
    np.testing.assert_allclose(
        (moves[0] - moves[1])[pulled], -1.7 * rows[pulled], rtol=1e-3, atol=1e-4
    )


@pytest.fixture(scope="module")
def log():
    return simulate(PositionBasedModel, sessions=20_000, queries=50, seed=0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "features", "posterior"),
    [
        ("hash", 1, "none"),
        ("hash", 1, "normal"),
        ("QR addition", 1, "normal"),
        ("QR multiplication", 1, "normal"),
        ("QR concatenation", 4, "normal"),
        ("ROBE of chunks", 4, "normal"),
    ],
)
def test_models_learn(log, name, features, posterior):
    """Half the numbers of a full table distinguish documents: PBM beats the click rates of the ranks by 0.01, of the
    0.02 that a full table gains."""
    pairs, config = log.query_doc_pairs, tower(STORES[name], features, 1.0, 2, posterior)
    model = PositionBasedModel(
        log.positions, pairs, attraction=config, click_rate=log.click_rate, rngs=nnx.Rngs(0)
    )
    trainer = Trainer(epochs=15)
    trainer.train(model, log.train, log.val)
    rates, clicks = log.train.column("clicks").mean(axis=0), log.test.column("clicks")
    by_rank = np.log(np.where(clicks, rates, 1 - rates)).mean()
    assert trainer.test(model, log.test)["test_ll"] > by_rank + 0.01


def test_untrained_stores_predict_the_click_rate():
    batch = {"query_doc_ids": np.arange(6, dtype=np.int32)[None]}
    sizes = Sizes(PAIRS, click_rate=0.2)
    towers = [tower(store, ratio=2).build(sizes, rngs=nnx.Rngs(0)) for store in STORES.values()]
    probabilities = nnx.jit(lambda towers: [each.prob(batch) for each in towers])(towers)
    for name, found in zip(STORES, probabilities, strict=True):
        np.testing.assert_allclose(found, np.full((1, 6), 0.2), rtol=1e-6, err_msg=name)


def test_names_of_the_field():
    """Stores given as partials of constructors, whose own ratio then holds."""
    config = EmbeddingParameterConfig(
        parameters=99, embedding_fn=partial(HashEmbedding, compression_ratio=20)
    )
    assert config.build(Sizes(), rngs=nnx.Rngs(0)).table.table.largest_id == 4
    full = EmbeddingParameterConfig(parameters=99, embedding_fn=FullEmbedding).build(
        Sizes(), rngs=nnx.Rngs(0)
    )
    assert full.table.largest_id == 99
