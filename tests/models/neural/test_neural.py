"""Neural click models against the same recurrences, list by list and click by click, in float64 NumPy."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from small_logs import ragged_log
from zoo import fill

from clickexp.data import Column, Sessions, superbatches
from clickexp.data.batches import at_step, with_mask
from clickexp.errors import ConfigError, DataError
from clickexp.metrics import LogLikelihood
from clickexp.models import (
    CACMMinusModel,
    ContextAwareClickModel,
    NeuralClickModel,
    UserBrowsingModel,
    derived,
)
from clickexp.models.neural.combination import ClickCombination
from clickexp.numerics import log_sigmoid_pair
from clickexp.parameters import (
    ContextParameterConfig,
    EmbeddingParameterConfig,
    FeatureVectorsConfig,
    Table,
    TableVectorsConfig,
)
from clickexp.training import Trainer, lazy_adam
from clickexp.training.step import TrainStep, split_model

RANKS, LISTS, PAIRS, QUERIES, DIM, HIDDEN, FEATURES = 4, 6, 9, 3, 3, 5, 2
VECTORS = np.array(list(itertools.product([False, True], repeat=RANKS)))
SIZES = {"positions": RANKS, "query_doc_pairs": PAIRS}
EARLIER = 10
EARLIER_IDS = ("clicked_document_ids", "clicked_positions", "earlier_query_numbers")
COLUMNS = {
    "document_ids": PAIRS,
    "query_numbers": QUERIES,
    "clicked_document_ids": PAIRS,
    "earlier_query_numbers": QUERIES,
    "document_seen": 2,
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def weights(layer):
    bias = np.zeros(()) if layer.bias is None else np.float64(layer.bias[...])
    return np.float64(layer.kernel[...]), bias


def advanced(network, state, read):
    """A step of the network, one list at a time."""
    kernel, bias = weights(network.read)
    recall, _ = weights(network.recall)
    x = read @ kernel + bias
    if network.kind == "lstm":
        memory, units = state
        i, f, g, o = np.split(x + units @ recall, 4)
        memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
        units = sigmoid(o) * np.tanh(memory)
        return (memory, units), units
    (x_r, x_z, x_n), (h_r, h_z, h_n) = np.split(x, 3), np.split(state @ recall, 3)
    z = sigmoid(x_z + h_z)
    units = (1 - z) * np.tanh(x_n + sigmoid(x_r + h_r) * h_n) + z * state
    return units, units


def nothing(network):
    zeros = np.zeros(network.hidden)
    return (zeros, zeros) if network.kind == "lstm" else zeros


def click_rate(model, units, offset=0.0):
    kernel, bias = weights(model.output)
    return sigmoid(units @ kernel[:, 0] + bias[0] + offset)


def by_cacm_minus(model, lists, at, clicks):
    """P(c_r = 1 | c_<r), and relevance, of one list."""
    attraction = sigmoid(
        np.float64(model.attraction.baseline[...])
        + np.float64(model.attraction.table.get_value().values)[lists["query_doc_ids"][at], 0]
    )
    state, previous, found = nothing(model.recurrent), 0, np.zeros(RANKS)
    for rank in np.flatnonzero(lists["mask"][at]):
        position = np.broadcast_to(lists["positions"], lists["mask"].shape)[at, rank]
        embeddings = (
            model.of_position.embedding[...][position],
            model.of_click.embedding[...][previous],
        )
        state, units = advanced(
            model.recurrent, state, np.concatenate(embeddings).astype(np.float64)
        )
        found[rank] = attraction[rank] * click_rate(model, units)
        previous = int(clicks[rank])
    return found, attraction


def offset_of(model, lists, at):
    """What the context adds to the logits of a list: linear in whether a document was shown, and clicked, before."""
    if model.context is None:
        return np.zeros(RANKS)
    seen = lists["document_seen"][at]
    return np.stack([seen > 0, seen > 1], axis=-1) @ np.float64(model.context.weight[...])


def offset_of_documents(model, lists, at):
    """Of a table of numbers, which tests give: with posteriors the logit of the mean probability is not the mean."""
    if model.offset is None:
        return np.zeros(RANKS)
    rows = np.float64(model.offset.table.get_value().values)[lists["query_doc_ids"][at], 0]
    return np.float64(model.offset.baseline[...]) + rows


def by_ncm(model, lists, at, clicks):
    shown = np.flatnonzero(lists["mask"][at])
    if not shown.size:
        return np.zeros(RANKS), np.zeros(RANKS)
    vectors = np.asarray(model.documents(lists), np.float64)[at]
    query = np.asarray(model.queries(lists), np.float64)[at, shown[0]]
    first, _ = advanced(
        model.recurrent, nothing(model.recurrent), np.concatenate([query, [0], 0 * vectors[0]])
    )

    def step(state, previous, rank):
        return advanced(
            model.recurrent, state, np.concatenate([0 * query, [previous], vectors[rank]])
        )

    own = offset_of_documents(model, lists, at)
    relevance = np.array(
        [click_rate(model, step(first, 0, rank)[1], own[rank]) for rank in range(RANKS)]
    )
    state, previous, found = first, 0, np.zeros(RANKS)
    for rank in shown:
        state, units = step(state, previous, rank)
        found[rank] = click_rate(model, units, own[rank] + offset_of(model, lists, at)[rank])
        previous = int(clicks[rank])
    return found, relevance


def attended(network, read, attends, query):
    """What a query takes of the states along a sequence, which may be empty."""
    state, states = nothing(network), []
    for each in read:
        state, _ = advanced(network, state, each)
        states.append(state)
    if not states:
        return np.zeros(network.hidden)
    odds = np.exp([query @ (state @ weights(attends)[0]) for state in states])
    return np.array(states).T @ (odds / odds.sum())


def combined(combination, relevance, examination):
    match combination.kind:
        case "mul":
            return relevance * examination
        case "exp_mul":
            a, b = np.log1p(np.exp(np.float64(combination.powers[...])))
            return relevance**a * examination**b
        case "linear":
            share = sigmoid(float(combination.share[...]))
            return share * relevance + (1 - share) * examination
        case "nonlinear":
            (kernel, bias), (output, start) = (
                weights(combination.hidden),
                weights(combination.output),
            )
            units = np.tanh(np.stack([relevance, examination], axis=-1) @ kernel + bias)
            return sigmoid(units @ output[:, 0] + start[0])
    return 4 * sigmoid(np.log(relevance)) * sigmoid(np.log(examination))


def combined_clicks(combinations, logits):
    """Of each combination, so that one program has all: it compiles faster than one for each."""
    return [combination(*map(log_sigmoid_pair, logits)) for combination in combinations]


def test_relevance_and_examination_combine_as_the_paper_has_it():
    rng = np.random.default_rng(0)
    combinations = [ClickCombination(kind, rngs=nnx.Rngs(0)) for kind in COMBINED]
    powers_of_1 = combined(combinations[1], np.full(1, 0.3), np.full(1, 0.6))
    np.testing.assert_allclose(powers_of_1, 0.18, rtol=1e-6)
    for combination in combinations:
        fill(combination, lambda shape: rng.normal(size=shape))
    logits = rng.normal(0, 3, (2, 50)).astype(np.float32)
    for combination, found in zip(
        combinations, nnx.jit(combined_clicks)(combinations, logits), strict=True
    ):
        expected = combined(combination, *sigmoid(logits.astype(np.float64)))
        np.testing.assert_allclose(
            np.exp(np.float64(found.log)), expected, rtol=2e-5, err_msg=combination.kind
        )
        complement = np.exp(np.float64(found.complement))
        np.testing.assert_allclose(
            complement, 1 - expected, rtol=1e-4, atol=1e-6, err_msg=combination.kind
        )


def examined_by_cacm(model, lists, at, clicks):
    """P(examined) at each rank, given the clicks above."""
    examined = np.zeros(RANKS)
    by_cacm(model, lists, at, clicks, examined)
    return examined


def by_cacm(model, lists, at, clicks, examined=None):
    examined = np.zeros(RANKS) if examined is None else examined
    documents, queries = (
        np.float64(each.table.get_value().values) for each in (model.documents, model.queries)
    )
    positions, of_click = (
        np.float64(each.embedding[...]) for each in (model.of_position, model.of_click)
    )
    shown = np.flatnonzero(lists["mask"][at])
    query = queries[lists["query_numbers"][at, shown[0] if shown.size else 0]]
    there = np.flatnonzero(lists["clicked_positions"][at, 0])
    clicked, places = (
        lists[name][at, 0][there] for name in ("clicked_document_ids", "clicked_positions")
    )
    earlier = lists["earlier_query_numbers"][at, 0]
    ids = lists["document_ids"][at]
    (hidden, bias), (output, start) = weights(model.relevant), weights(model.relevant_output)

    def context(clicks, before):
        return np.concatenate(
            [
                attended(model.of_queries, [*before, query], model.attends_queries, query),
                attended(model.of_clicks, clicks, model.attends_clicks, query),
            ]
        )

    def relevance(session, offset=0.0):
        read = np.concatenate([np.tile([*session, *query], (RANKS, 1)), documents[ids]], axis=1)
        return sigmoid(np.tanh(read @ hidden + bias) @ output[:, 0] + start[0] + offset)

    session = context(
        np.concatenate([documents[clicked], positions[places]], axis=1),
        queries[earlier[earlier > 0]],
    )
    relevant, state = relevance(session, offset_of(model, lists, at)), nothing(model.recurrent)
    previous, found = 0, np.zeros(RANKS)
    for rank in shown:
        read = [
            *positions[np.broadcast_to(lists["positions"], lists["mask"].shape)[at, rank]],
            *session,
        ]
        state, units = advanced(model.recurrent, state, np.array([*read, *of_click[previous]]))
        examined[rank] = click_rate(model, units)
        found[rank] = combined(model.combined, relevant[rank], examined[rank])
        previous = int(clicks[rank])
    return found, relevance(context([], []))


def cacm_minus(**settings):
    tower = EmbeddingParameterConfig(posterior="none")
    return CACMMinusModel(
        **SIZES, attraction=tower, hidden=HIDDEN, embedding=2, **settings, rngs=nnx.Rngs(0)
    )


def ncm(documents=None, **settings):
    tables = TableVectorsConfig(dim=DIM), TableVectorsConfig(use_feature="query_numbers", dim=DIM)
    given = {
        "documents": documents or tables[0],
        "queries": tables[1],
        "hidden": HIDDEN,
        "columns": COLUMNS,
    }
    return NeuralClickModel(**SIZES, **{**given, "offset": None, **settings}, rngs=nnx.Rngs(0))


def cacm(combination="mul", positions=RANKS, **settings):
    tables = TableVectorsConfig(dim=DIM), TableVectorsConfig(use_feature="query_numbers", dim=DIM)
    given = {
        "positions": positions,
        "query_doc_pairs": PAIRS,
        "columns": COLUMNS,
        "hidden": HIDDEN,
        "embedding": 2,
    }
    given |= {"documents": tables[0], "queries": tables[1]}
    return ContextAwareClickModel(**given, combination=combination, **settings, rngs=nnx.Rngs(0))


SEEN = ContextParameterConfig(columns=["document_seen"])
FEATURE_VECTORS = FeatureVectorsConfig(features=FEATURES, dim=DIM)
BUILD = {
    "CACM-minus": (cacm_minus, by_cacm_minus),
    "CACM": (lambda: cacm("sigmoid_log", context=SEEN), by_cacm),
    "NCM with offset": (lambda: ncm(offset=EmbeddingParameterConfig(posterior="none"), context=SEEN), by_ncm),
    "NCM of LSTM and features": (lambda: ncm(FEATURE_VECTORS, cell="lstm", context=SEEN), by_ncm),
    "NCM": (ncm, by_ncm),
}  # fmt: skip


def by_tier(*daily):
    """Each case, those that are not named in the nightly tier alone."""
    marked = [
        pytest.param(name, marks=() if name in daily else pytest.mark.nightly) for name in BUILD
    ]
    return pytest.mark.parametrize("case", marked, indirect=True, scope="module")


most_cases = by_tier("CACM-minus", "CACM", "NCM with offset", "NCM of LSTM and features")
fewer_cases = by_tier("CACM-minus", "NCM with offset")


@pytest.fixture(scope="module")
def case(request):
    build, by_hand = BUILD[request.param]
    rng = np.random.default_rng(3)
    model = fill(build(), lambda shape: rng.normal(0, 0.8, shape))
    model.eval()
    return model, by_hand


@pytest.fixture(scope="module")
def lists():
    rng = np.random.default_rng(0)
    mask = rng.random((LISTS, RANKS)) < 0.7
    mask[0], mask[1], mask[2] = True, False, [True, False, False, False]
    query = rng.integers(1, QUERIES + 1, (LISTS, 1))
    had = np.arange(EARLIER) >= EARLIER - np.array([3, 0, 10, 1, 0, 2])[:, None, None]
    asked = np.arange(EARLIER) >= EARLIER - np.array([2, 0, 10, 1, 1, 3])[:, None, None]
    earlier = {
        "clicked_document_ids": PAIRS,
        "clicked_positions": RANKS,
        "earlier_query_numbers": QUERIES,
    }
    seen = rng.integers(0, 3, (LISTS, RANKS)).astype(np.uint8)
    earlier = {
        name: rng.integers(1, most + 1, had.shape).astype(np.int32)
        for name, most in earlier.items()
    }
    return {
        "document_seen": seen,
        **{
            name: values * (asked if name.startswith("earlier") else had)
            for name, values in earlier.items()
        },
        "query_doc_ids": rng.integers(1, PAIRS + 1, (LISTS, RANKS)).astype(np.int32),
        "document_ids": rng.integers(1, PAIRS + 1, (LISTS, RANKS)).astype(np.int32),
        "query_numbers": np.broadcast_to(query, (LISTS, RANKS)).astype(np.int32),
        "query_doc_features": rng.normal(size=(LISTS, RANKS, FEATURES)).astype(np.float32),
        "positions": np.arange(1, RANKS + 1, dtype=np.int32)[None],
        "mask": mask,
    }


def with_clicks(lists, clicks):
    return {**lists, "clicks": np.broadcast_to(clicks, lists["mask"].shape) & lists["mask"]}


@nnx.jit
def conditional(model, batch):
    return model.predict_conditional_clicks(batch)


@nnx.jit
def clicks_and_relevance(model, batch):
    return model.predict_clicks(batch), model.predict_relevance(batch)


@nnx.jit
def loss_and_slopes(model, batch):
    both = nnx.DiffState(0, nnx.Any(nnx.Param, Table))
    return nnx.value_and_grad(
        lambda model: jnp.sum(model.compute_loss(batch, aggregate=False)), argnums=both
    )(model)


@pytest.fixture(scope="module")
def conditionals(case, lists):
    """P(c_r = 1 | c_<r) along each click vector by the model, [vectors, lists, ranks]."""
    model, _ = case
    return np.stack(
        [np.exp(np.float64(conditional(model, with_clicks(lists, vector)))) for vector in VECTORS]
    )


@most_cases
def test_conditionals_are_those_of_the_recurrence(case, lists, conditionals):
    model, by_hand = case
    for number, vector in enumerate(VECTORS):
        for at in range(LISTS):
            expected, _ = by_hand(model, lists, at, vector)
            shown = lists["mask"][at]
            np.testing.assert_allclose(conditionals[number, at, shown], expected[shown], rtol=2e-5)


def joint(conditionals, mask):
    """P(click vector), with no clicks where nothing is shown."""
    each = np.where(VECTORS[:, None], conditionals, 1 - conditionals)
    return np.where(mask, each, ~VECTORS[:, None]).prod(axis=2)


@most_cases
def test_click_vectors_have_probabilities_that_sum_to_one(lists, conditionals):
    np.testing.assert_allclose(joint(conditionals, lists["mask"]).sum(axis=0), 1, rtol=1e-5)


@most_cases
def test_marginals_are_those_of_the_enumeration(case, lists, conditionals):
    model, _ = case
    expected = np.einsum("vl,vr->lr", joint(conditionals, lists["mask"]), VECTORS)
    found = np.exp(np.float64(clicks_and_relevance(model, lists)[0]))
    np.testing.assert_allclose(found, np.where(lists["mask"], expected, 0), rtol=3e-5)


@most_cases
def test_marginals_of_lists_without_holes_are_the_same(case, lists):
    """As evaluations have them, with padding behind a list."""
    model, _ = case
    mask = np.arange(RANKS) < 1 + np.arange(LISTS)[:, None] % RANKS
    plain, short = (
        {**lists, "mask": mask},
        {**lists, "mask": mask, "_shown_first": mask.sum(axis=1)},
    )
    slow, fast = (
        np.where(mask, clicks_and_relevance(model, batch)[0], 0) for batch in (plain, short)
    )
    np.testing.assert_allclose(fast, slow, atol=2e-5)


@fewer_cases
def test_conditionals_of_lists_without_holes_are_those_of_the_recurrence_and_so_are_their_gradients(
    case, lists
):
    """Lists that share their click vectors do not walk through them one by one."""
    model, by_hand = case
    mask = np.arange(RANKS) < 1 + np.arange(LISTS)[:, None] % RANKS
    rng = np.random.default_rng(1)
    plain = {
        **lists,
        "mask": mask,
        "clicks": rng.random(mask.shape) < 0.5,
    }  # padding may hold clicks
    short = {**plain, "_shown_first": mask.sum(axis=1)}
    assert RANKS * LISTS >= 2**RANKS
    found = np.exp(np.float64(conditional(model, short)))
    for at, shown in enumerate(mask):
        expected, _ = by_hand(model, plain, at, plain["clicks"][at])
        np.testing.assert_allclose(found[at, shown], expected[shown], rtol=2e-5)
    slopes = (jax.tree.leaves(loss_and_slopes(model, batch)[1]) for batch in (short, plain))
    for fast, slow in zip(*slopes, strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-4, atol=1e-5)


@most_cases
def test_clicks_below_a_rank_do_not_change_it(conditionals):
    for rank in range(RANKS):
        for above in itertools.product([False, True], repeat=rank):
            alike = (VECTORS[:, :rank] == above).all(axis=1)
            values = conditionals[alike, :, rank]
            np.testing.assert_array_equal(values, np.broadcast_to(values[:1], values.shape))


@most_cases
def test_a_document_that_the_log_does_not_have_leaves_the_query_to_the_others(case, lists):
    model, _ = case
    several = lists["mask"].sum(axis=1) > 1
    numbers = lists["query_numbers"].copy()
    numbers[np.arange(LISTS), lists["mask"].argmax(axis=1)] = 0
    _, found = clicks_and_relevance(model, {**lists, "query_numbers": numbers})
    np.testing.assert_array_equal(found[several], clicks_and_relevance(model, lists)[1][several])


@most_cases
def test_relevance_needs_no_clicks_and_no_rank(case, lists):
    model, by_hand = case
    found = np.exp(np.float64(clicks_and_relevance(model, lists)[1]))
    for at in range(LISTS):
        shown = lists["mask"][at]
        _, expected = by_hand(model, lists, at, np.zeros(RANKS, bool))
        np.testing.assert_allclose(found[at, shown], expected[shown], rtol=2e-5)


@fewer_cases
def test_draws_follow_the_model(case, lists, conditionals):
    model, _ = case
    sessions = 20_000
    many = {
        name: values if name == "positions" else np.repeat(values[:1], sessions, axis=0)
        for name, values in lists.items()
    }
    sample = nnx.jit(lambda model, batch, key: model.sample(batch, key).clicks)
    clicks = np.asarray(sample(model, many, jax.random.key(0)))
    expected = joint(conditionals, lists["mask"])[:, 0]
    found = np.array([(clicks == vector).all(axis=1).mean() for vector in VECTORS])
    assert (
        np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / sessions) + 1e-9
    ).all()


@fewer_cases
def test_long_lists_average_over_draws(case, lists, conditionals, monkeypatch):
    model, _ = case
    monkeypatch.setattr(derived, "EXACT_RANKS", RANKS - 1)
    of_vectors = joint(conditionals, lists["mask"])
    expected = np.einsum("vl,vr->lr", of_vectors, VECTORS)
    second = np.einsum("vl,vlr->lr", of_vectors, np.nan_to_num(conditionals) ** 2)
    spread = np.sqrt(np.maximum(second - expected**2, 0) / derived.DRAWS)
    predict = nnx.jit(lambda model, batch: model.predict_clicks(batch))
    found = np.exp(np.float64(predict(model, lists)))
    assert (np.abs(found - expected) < 5 * spread + 1e-5)[lists["mask"]].all()


@most_cases
def test_every_weight_moves_the_loss(case, lists):
    model, _ = case
    _, slopes = loss_and_slopes(model, with_clicks(lists, VECTORS[5]))
    for path, slope in nnx.to_flat_state(slopes):
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(slope)) > 1e-5, path


@most_cases
def test_extreme_weights_leave_everything_finite(case, lists):
    model, _ = case
    graphdef, state = nnx.split(model)
    large = nnx.merge(
        graphdef,
        jax.tree.map(lambda x: 60 * x if jnp.issubdtype(x.dtype, jnp.floating) else x, state),
    )
    found = loss_and_slopes(large, with_clicks(lists, VECTORS[5]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


class LastClick(CACMMinusModel):
    """Examination by the rank and the last click, in place of the recurrent network: UBM."""

    def start(self, batch):
        return jnp.zeros(batch.shape[1], jnp.int32), jnp.zeros(batch.shape[1], jnp.int32)

    def _examination(self, state, position, previous):
        rank, last = state
        last = jnp.where(previous, rank, last)
        logit = self.table[position * (RANKS + 1) + last]
        return (position, last), log_sigmoid_pair(logit)


def test_ubm_is_the_special_case_that_remembers_the_last_click(lists):
    rng = np.random.default_rng(4)
    ubm = fill(UserBrowsingModel(**SIZES, rngs=nnx.Rngs(0)), lambda shape: rng.normal(size=shape))
    special = LastClick(**SIZES, attraction=ubm.attraction, rngs=nnx.Rngs(0))
    special.table = nnx.data(ubm.examination.weight[...])
    for vector in VECTORS[::3]:
        batch = with_clicks(lists, vector)
        pair = (conditional(model, batch) for model in (special, ubm))
        np.testing.assert_allclose(*(np.where(lists["mask"], each, 0) for each in pair), atol=2e-5)


def test_offsets_of_tables_with_posteriors_are_integrated_over(lists):
    """P(click) at the first rank is the mean of s(u + m + x sqrt(v)) over a normal x."""
    model = ncm(offset=EmbeddingParameterConfig(posterior="normal"))
    model.eval()
    found, tower = np.exp(clicks_and_relevance(model, lists)[1]), model.offset
    shown = lists["mask"].astype(bool)
    mean, variance = (np.float64(each)[shown] for each in tower.posterior(lists))
    assert variance.min() > 0.1
    model.offset = None  # what the network says alone
    network = np.array([by_ncm(model, lists, at, [0] * RANKS)[1] for at in range(len(shown))])[
        shown
    ]
    x, weight = np.polynomial.hermite_e.hermegauss(64)
    points = (np.log(network / (1 - network)) + mean)[..., None] + np.sqrt(variance)[..., None] * x
    expected = sigmoid(points) @ weight / weight.sum()
    np.testing.assert_allclose(found[shown], expected, rtol=2e-3)


def test_hidden_events_of_draws_make_the_clicks(lists):
    @nnx.jit
    def said(model, batch, key):
        predictions = (
            model.predict_examination(batch),
            model.predict_attraction(batch),
            model.predict_clicks(batch),
        )
        return model.sample(batch, key), *predictions

    drawn, examination, attraction, clicks = said(cacm_minus(), lists, jax.random.key(1))
    np.testing.assert_array_equal(drawn.clicks, drawn.examination & drawn.attraction)
    product = np.where(lists["mask"], examination + attraction, 0)
    np.testing.assert_allclose(product, np.where(lists["mask"], clicks, 0), atol=2e-5)


def test_dropout_is_for_training_alone(lists):
    model = fill(ncm(dropout=0.5), lambda shape: np.random.default_rng(1).normal(size=shape))
    batch, loss = with_clicks(lists, VECTORS[3]), nnx.jit(NeuralClickModel.compute_loss)
    model.train()
    first, second = (float(loss(model, batch)) for _ in range(2))
    model.eval()
    third, fourth = (float(loss(model, batch)) for _ in range(2))
    assert first != second and third == fourth


def log_of(sessions=60):
    columns = ragged_log(sessions, RANKS, PAIRS, 0)
    ids = columns["query_doc_ids"]
    extra = {
        Column("document_ids", "int32"): ids,
        Column("query_numbers", "int32"): np.where(ids > 0, 1 + ids % 3, 0),
    }
    columns["session_ids"] = np.arange(sessions) // 4
    return Sessions.from_arrays(**columns, extra=extra).with_pairs(PAIRS)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(ncm, id="NCM"),
        pytest.param(cacm_minus, id="CACM-minus", marks=pytest.mark.nightly),
        pytest.param(cacm, id="CACM", marks=pytest.mark.nightly),
    ],
)
def test_training_learns_and_continues_to_the_same_bits(build, tmp_path):
    log, settings = (
        log_of(),
        dict(batch_size=16, eval_batch_size=16, metrics={"ll": LogLikelihood()}, seed=1),
    )
    whole, interrupted, resumed = (build() for _ in range(3))
    loss, batch = nnx.jit(lambda model, batch: model.compute_loss(batch)), next(batches(log))
    before = float(loss(whole, batch))
    report = Trainer(None, 6, None, **settings).train(whole, log, log)
    assert float(loss(whole, batch)) < before
    file = tmp_path / "checkpoint.npz"
    kept = {**settings, "checkpoint": file, "checkpoint_minutes": 0}
    Trainer(None, 3, None, **kept).train(interrupted, log, log)
    Trainer(None, 6, None, **kept).train(resumed, log, log)
    pairs = zip(
        *(jax.tree.leaves(nnx.state(model, nnx.Param)) for model in (whole, resumed)), strict=True
    )
    assert report.history and all(np.array_equal(one, other) for one, other in pairs)


def batches(log):
    from clickexp.data.feed import feed

    for batch in feed(log, 60, 1):
        yield at_step(with_mask(batch.arrays), 0)


def test_settings_that_do_not_go_together_are_errors():
    with refuses(ValueError, "positions="):
        CACMMinusModel(query_doc_pairs=3, rngs=nnx.Rngs(0))
    with refuses(ConfigError, "query_doc_features"):
        NeuralClickModel(
            **SIZES, documents=FeatureVectorsConfig(), columns=COLUMNS, rngs=nnx.Rngs(0)
        )
    with refuses(ConfigError, "search sessions", "session ids", "model=cacm_minus"):
        ContextAwareClickModel(
            **SIZES, columns={"document_ids": 3, "query_numbers": 2}, rngs=nnx.Rngs(0)
        )
    with refuses(ConfigError, "use_feature=price", "model=cacm", "document_ids"):
        prices = TableVectorsConfig(use_feature="price", parameters=3)
        ContextAwareClickModel(**SIZES, documents=prices, columns=COLUMNS, rngs=nnx.Rngs(0))
    with refuses(ConfigError, "combination"):
        cacm("sum")


def test_positions_and_ids_of_the_session_beyond_the_model_are_errors(lists):
    batch = with_clicks(lists, VECTORS[3])
    for model, names in ((cacm(), ("positions", *EARLIER_IDS)), (cacm_minus(), ("positions",))):
        for name in names:
            wrong = {**batch, name: batch[name].copy()}
            wrong[name][..., -1] = 50
            with refuses(DataError, f"{name} holds 50"):
                model.compute_loss(wrong)
    with refuses(DataError, "clicked_positions", "Give all of them or none"):
        cacm().compute_loss(
            {name: values for name, values in batch.items() if name != "clicked_positions"}
        )


EXACT, DRAWN = derived.EXACT_RANKS, 0
DAILY = ("sigmoid_log", EXACT), ("linear", DRAWN)


@pytest.mark.parametrize(
    "kind, exact_ranks",
    [
        pytest.param(*each, marks=() if each in DAILY else pytest.mark.nightly)
        for each in itertools.product(
            ["exp_mul", "linear", "nonlinear", "sigmoid_log"], [EXACT, DRAWN]
        )
    ],
)
def test_examination_is_that_of_the_network_whatever_the_combination(
    kind, exact_ranks, lists, monkeypatch
):
    """The mean of E_r over the click vectors above, by their enumeration; longer lists have it by draws."""
    monkeypatch.setattr(derived, "EXACT_RANKS", exact_ranks)
    model = fill(cacm(kind), lambda shape: np.random.default_rng(5).normal(0, 0.8, shape))
    model.eval()
    found = np.exp(
        np.float64(nnx.jit(lambda model, batch: model.predict_examination(batch))(model, lists))
    )
    for at in (0, 3):
        expected, second = np.zeros((2, RANKS))
        for vector in VECTORS:
            vector = vector & lists["mask"][at]
            events = examined_by_cacm(model, lists, at, vector)
            clicks = by_cacm(model, lists, at, vector)[0]
            each = np.where(vector, clicks, 1 - clicks)[lists["mask"][at]].prod()
            # vectors that differ where nothing is shown
            weight = each / 2 ** (~lists["mask"][at]).sum()
            expected, second = expected + weight * events, second + weight * events**2
        error = (
            np.sqrt(np.maximum(second - expected**2, 0) / derived.DRAWS) if exact_ranks == 0 else 0
        )
        assert (np.abs(found[at] - expected) < 5 * error + 1e-5)[lists["mask"][at]].all()


COMBINED = {
    "mul": lambda r, e, _: r * e,
    "exp_mul": lambda r, e, weights: (
        r ** softplus(weights.powers[0]) * e ** softplus(weights.powers[1])
    ),
    "linear": lambda r, e, weights: sigmoid(weights.share) * r + (1 - sigmoid(weights.share)) * e,
    "nonlinear": lambda r, e, weights: sigmoid(network(weights, np.stack([r, e], axis=-1))[..., 0]),
    "sigmoid_log": lambda r, e, _: 4 * r * e / ((1 + r) * (1 + e)),
}
"""P(click) in float64 numpy."""


def softplus(x):
    return np.logaddexp(0, x)


def network(weights, inputs):
    units = np.tanh(inputs @ weights.hidden["kernel"] + weights.hidden["bias"])
    return units @ weights.output["kernel"] + weights.output["bias"]


def test_extreme_weights_of_combinations_give_probabilities_and_finite_gradients():
    combinations = [ClickCombination(kind, rngs=nnx.Rngs(0)) for kind in COMBINED]
    for combination in combinations:
        rng = np.random.default_rng(0)
        fill(combination, lambda shape: 60 * rng.normal(size=shape))
    logits = jnp.asarray(np.array([[-90.0, -1, 40, 90, 2], [-90, 60, -3, 90, 1]], np.float32))
    for combination, pair in zip(
        combinations, nnx.jit(combined_clicks)(combinations, logits), strict=True
    ):
        weights = SimpleNamespace(
            **jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(combination)))
        )
        expected = COMBINED[combination.kind](*sigmoid(np.float64(logits)), weights)
        for logs, probabilities in zip(pair, (expected, 1 - expected), strict=True):
            assert np.isfinite(logs).all() and (logs <= 0).all(), combination.kind
            np.testing.assert_allclose(
                np.exp(np.float64(logs)), probabilities, atol=1e-6, err_msg=combination.kind
            )

    def loss(combinations, logits):
        return sum(jnp.sum(logs) for pair in combined_clicks(combinations, logits) for logs in pair)

    slopes = nnx.jit(nnx.grad(loss, argnums=(0, 1)))(combinations, logits)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 10, 11])
def test_a_training_step_has_the_loss_of_the_model(ranks):
    """Whatever ids of sessions have the shape of lists."""
    columns = ragged_log(32, ranks, PAIRS, 0)
    ids = columns["query_doc_ids"]
    extra = {
        Column("document_ids", "int32"): ids,
        Column("query_numbers", "int32"): np.where(ids > 0, 1 + ids % 3, 0),
    }
    log = Sessions.from_arrays(**columns, session_ids=np.arange(32) // 4, extra=extra).with_pairs(
        PAIRS
    )
    model = fill(
        cacm(positions=ranks), lambda shape: np.random.default_rng(2).normal(0, 0.5, shape)
    )
    optimizer = lazy_adam(1e-12, dense_learning_rate=1e-12)
    graphdef, state = split_model(model, optimizer)
    carried = log.with_batch_columns({*log.columns, *log.derived} - {"session_ids", "query_ids"})
    batch = next(superbatches(carried, 32, 1))
    _, loss, _ = jax.jit(TrainStep(graphdef, optimizer))(state, batch.arrays, np.int32(1))
    lists = at_step(with_mask(batch.arrays), 0)
    expected = float(
        nnx.jit(lambda model, lists: jnp.sum(model.compute_loss(lists, aggregate=False)))(
            model, lists
        )
    )
    np.testing.assert_allclose(float(np.sum(loss)), expected, rtol=1e-5)


def test_the_session_bears_on_clicks_and_not_on_relevance(lists):
    model = fill(BUILD["CACM"][0](), lambda shape: np.random.default_rng(2).normal(size=shape))
    other = {**lists, "clicked_document_ids": np.maximum(lists["clicked_document_ids"] - 1, 0)}
    batch = with_clicks(lists, VECTORS[5])
    first, second = (conditional(model, {**batch, **each}) for each in (lists, other))
    told = (lists["clicked_document_ids"] > 0).any(axis=(1, 2))[:, None] & lists["mask"]
    assert (np.abs(np.asarray(first - second))[told] > 1e-6).mean() > 0.9
    np.testing.assert_array_equal(first[1], second[1])  # a list without clicks before
    np.testing.assert_array_equal(
        *(clicks_and_relevance(model, each)[1] for each in (lists, other))
    )
