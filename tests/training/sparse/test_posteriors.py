"""Steps, shares and priors of a table of posteriors against float64 loops, given their noise."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from posteriors import standardised
from small_logs import leaves, ragged_log, shown, sigmoid, superbatch

from clickexp.models import DocumentCTRModel
from clickexp.parameters import EmbeddingParameterConfig
from clickexp.parameters.table import Prior
from clickexp.training import LazyAdam, LazySGD, NaturalGradient, Optimizer
from clickexp.training.sparse import learned_priors, noise, packing
from clickexp.training.sparse.row_optimizers import SPREAD_RATE
from clickexp.training.step import TrainStep, split_model

RANKS, PAIRS, BATCH, STEPS = 4, 9, 8, 3
UNSEEN, START = PAIRS, 3
"""A row that no list shows, and one that is still its prior, as the row of padding is."""
LOG = ragged_log(BATCH * STEPS, RANKS, PAIRS - 1)
IDS, MASK = LOG["query_doc_ids"], shown(LOG)
COUNTS = np.bincount(IDS[MASK], minlength=PAIRS + 1)
LOG_RANKS = np.broadcast_to(np.log(np.arange(1, RANKS + 1)), IDS.shape)
SEED, PRIOR_RATE, DENSE_RATE, STEPS_PER_PASS = 5, 0.5, 0.3, 3.0
PRIOR = Prior(jnp.float32(0.4), jnp.float32([0.3]), jnp.float32([[-0.2], [0.15]]))
WEIGHT_DECAY = 10.0


@dataclasses.dataclass
class Table:
    """What a table learns, in float64."""

    offsets: np.ndarray
    spreads: np.ndarray
    x: np.ndarray
    log_precision: float
    mean: float
    slopes: np.ndarray
    site: np.ndarray | float = 0.0
    tilt: np.ndarray | float = 0.0

    @property
    def powers(self):
        """x and x^2 - 1; 0, their averages, where x is unknown."""
        known = np.isfinite(self.x)
        x = np.where(known, self.x, 0.0)
        return np.stack([x, np.where(known, x**2 - 1, 0.0)], axis=1)

    @property
    def means(self):
        return self.offsets + self.mean + self.powers @ self.slopes

    @property
    def precision(self):
        return np.exp(self.log_precision)

    @property
    def own(self):
        """Means and precisions of the learned prior times sites."""
        total = self.precision + self.site
        center = self.mean + self.powers @ self.slopes
        return (self.precision * center + self.tilt) / total, total

    @property
    def deviations(self):
        return np.exp(self.spreads) / np.sqrt(self.precision)

    def compare(self, tables, atol):
        (found,) = [table.get_value() for _, table in nnx.to_flat_state(packing.learned(tables))]
        columns = [self.offsets, self.spreads, self.x]
        columns += [self.site, self.tilt] if found.has_sites else []
        columns = np.stack(columns, axis=1)
        np.testing.assert_allclose(found.values, columns, rtol=1e-5, atol=atol)
        prior = [found.prior.log_precision, *found.prior.mean, *found.prior.slopes[:, 0]]
        expected = [self.log_precision, self.mean, *self.slopes]
        np.testing.assert_allclose(prior, expected, rtol=1e-5, atol=atol)


def start():
    """Rows as an earlier training has left them."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(PAIRS + 1, 3)) * [0.8, 0.4, 1.0]
    rows[[0, START], :2] = 0.0
    rows = rows.astype(np.float32).astype(np.float64)
    log_precision, mean, *slopes = np.float32([0.4, 0.3, -0.2, 0.15]).astype(np.float64)
    return Table(*rows.T, log_precision, mean, np.array(slopes))


def started(with_sites):
    """Rows as an earlier training has left them, with what still earlier logs say of some: site and tilt."""
    table = start()
    if not with_sites:
        return table
    rng = np.random.default_rng(1)
    sites = np.float32([rng.gamma(2.0, size=PAIRS + 1), rng.normal(size=PAIRS + 1)])
    sites[:, [0, START]] = 0.0
    return dataclasses.replace(table, site=sites[0].astype(float), tilt=sites[1].astype(float))


def built(rule, with_sites):
    """Structure, optimizer and state of a model whose table is that of `started`."""
    tower = EmbeddingParameterConfig(posterior="normal_by_rank", add_baseline=False)
    model = DocumentCTRModel(PAIRS, tower, rngs=nnx.Rngs(0))
    table, rows = started(with_sites), model.ctr.table.get_value()
    columns = [table.offsets, table.spreads, table.x]
    if with_sites:
        rows, columns = rows.with_sites(), [*columns, table.site, table.tilt]
    values = jnp.asarray(np.stack(columns, axis=1), jnp.float32)
    model.ctr.table.set_value(dataclasses.replace(rows, values=values, prior=PRIOR))
    # decay of weights leaves priors alone
    dense = optax.chain(optax.add_decayed_weights(WEIGHT_DECAY), optax.sgd(DENSE_RATE))
    optimizer = Optimizer(dense, rule)
    return (optimizer, *split_model(model, optimizer, SEED))


@functools.cache
def shared(rule, with_sites=False):
    """The step, and the state after a pass that counts."""
    optimizer, graphdef, state = built(rule, with_sites)
    step = TrainStep(graphdef, optimizer)
    nothing, arrays = learned_priors.no_documents(state.tables), superbatch(LOG, BATCH)
    found = jax.jit(step.count)(nothing, state, arrays, np.int32(STEPS))
    tables = jax.jit(learned_priors.shares)(state.tables, found, {})
    rates = dict(prior_rate=jnp.float32(PRIOR_RATE), steps_per_pass=jnp.float32(STEPS_PER_PASS))
    return step, dataclasses.replace(state, tables=tables, **rates)


def counted(with_sites=False):
    """The table after the pass that counts: means stay, but those of rows that were the prior, or have a site."""
    table = started(with_sites)
    seen = COUNTS > 0
    x = table.x.copy()
    x[0] = np.inf  # not shown and never trained
    x[seen] = standardised(IDS[MASK], LOG_RANKS[MASK])
    after = dataclasses.replace(table, x=x)
    moved = np.where(seen, (table.powers - after.powers) @ table.slopes, 0.0)
    moved[[0, START]] = 0.0
    if with_sites:
        mean, total = after.own
        spreads = np.log(after.precision / total) / 2
        offsets = mean - after.mean - after.powers @ after.slopes
        return dataclasses.replace(after, offsets=offsets, spreads=spreads)
    return dataclasses.replace(after, offsets=table.offsets + moved)


def test_rows_share_their_prior_and_know_the_ranks_of_their_documents():
    _, state = shared(LazySGD(0.3))
    (packed,) = [rows for rows in leaves(state.tables) if len(rows.shape) == 2 and len(rows) > 2]
    np.testing.assert_allclose(packed[:, -1], (COUNTS > 0) / np.maximum(COUNTS, 1), rtol=1e-6)
    assert COUNTS[UNSEEN] == COUNTS[0] == 0 and COUNTS[START] > 0
    counted().compare(state.tables, atol=1e-6)


def test_one_log_rank_predicts_x_by_regression_over_documents():
    _, state = shared(LazySGD(0.3))
    ((_, table),) = nnx.to_flat_state(state.tables)
    x, log_ranks = counted().x[IDS[MASK]], LOG_RANKS[MASK]
    slope, intercept = np.polyfit(log_ranks, x, 1)
    around = np.var(x - intercept - slope * log_ranks)
    expected = intercept, slope, around
    np.testing.assert_allclose(table.get_value().log_ranks, expected, rtol=1e-4, atol=1e-6)


def draws(step):
    """The noise of each document of a batch, one rank after the other."""
    key = jnp.array([SEED, step], jnp.uint32)
    e = noise.normal(jnp.arange(BATCH * RANKS, dtype=jnp.uint32), 1, key, 0)
    return np.asarray(e, np.float64).reshape(RANKS, BATCH).T


def sgd(rule, table, memory, grads, documents):
    for row in documents:
        table.offsets[row] -= rule.learning_rate * grads[row][0]
        table.spreads[row] -= SPREAD_RATE * rule.learning_rate * grads[row][1]


def adam(rule, table, memory, grads, documents):
    """Without decay, which the pull of the prior stands for."""
    memory["step"] = memory.get("step", 0) + 1
    for row in documents:
        m, v = memory.get(row, (0.0, 0.0))
        m = rule.b1 * m + (1 - rule.b1) * grads[row]
        v = rule.b2 * v + (1 - rule.b2) * grads[row] ** 2
        memory[row] = m, v
        m, v = m / (1 - rule.b1 ** memory["step"]), v / (1 - rule.b2 ** memory["step"])
        change = rule.learning_rate * m / (np.sqrt(v) + rule.eps)
        table.offsets[row] -= change[0]
        table.spreads[row] -= SPREAD_RATE * change[1]


def natural(rule, table, changes):
    """What documents add to their row."""
    for row, sd, mean_grad, log_sd_grad, curvature in changes:
        rate = min(rule.posterior_rate, 1 / (sd**2 * curvature))
        table.offsets[row] -= rate * sd**2 * mean_grad
        table.spreads[row] -= rate / 2 * log_sd_grad


def of_eight_bits(value):
    """The nearest number whose mantissa has eight bits, as sites weigh."""
    mantissa, exponent = np.frexp(value)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


def by_hand(rule, update, with_sites=False):
    """The table after each step, document by document."""
    table, memory, seen = counted(with_sites), {}, []
    center, total = (each + np.zeros(PAIRS + 1) for each in table.own)
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        ids, clicks, mask, e = IDS[part], LOG["clicks"][part], MASK[part], draws(step)
        means, sds, precision = table.means, table.deviations, table.precision
        z = means[ids] + sds[ids] * e
        grads = np.where(mask, sigmoid(z) - clicks, 0.0)
        summed = {row: np.zeros(2) for row in np.unique(ids[mask])}
        of_precision, of_slopes = 0.0, np.zeros(2)
        changes = []
        for place in np.argwhere(mask):
            row, grad = ids[tuple(place)], grads[tuple(place)]
            share, sd, offset = 1 / COUNTS[row], sds[row], table.offsets[row]
            if with_sites:  # the prior is refitted
                share, own = of_eight_bits(share), of_eight_bits(total[row])
                offset = means[row] - center[row]
            else:
                own = precision
                of_precision += share * (precision * (sd**2 + offset**2) - 1) / 2
                of_slopes += grad * table.powers[row]
            mean_grad = grad + share * own * offset
            log_sd_grad = grad * (z[tuple(place)] - means[row]) + share * (own * sd**2 - 1)
            summed[row] += mean_grad, log_sd_grad
            in_batch = max(1.0, 1 / (share * STEPS_PER_PASS))
            curvature = in_batch * (max(np.mean(grads**2), 0.25) + share * own)
            changes.append((row, sd, mean_grad, log_sd_grad, curvature))
        if update is natural:
            update(rule, table, changes)
        else:
            update(rule, table, memory, summed, list(summed))
        table.log_precision -= PRIOR_RATE * DENSE_RATE * of_precision / (BATCH * RANKS)
        table.slopes = table.slopes - DENSE_RATE * of_slopes / (BATCH * RANKS)
        seen.append(dataclasses.replace(table, offsets=+table.offsets, spreads=+table.spreads))
    return seen


RULES = {
    "sgd": (LazySGD(0.3), sgd, 1e-5),
    "adam with decay": (LazyAdam(0.05, b1=0.8, b2=0.95, weight_decay=WEIGHT_DECAY), adam, 1e-5),
    "natural gradient": (NaturalGradient(0.5, posterior_rate=0.9), natural, 1e-5),
}


@pytest.mark.parametrize("with_sites", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_steps_on_posteriors_match_a_float64_loop(name, with_sites):
    """Rows and prior: each step draws every document anew, and follows the bound at the draws."""
    rule, update, atol = RULES[name]
    step, state = shared(rule, with_sites)
    step, arrays = jax.jit(step), superbatch(LOG, BATCH)
    expected = by_hand(rule, update, with_sites)
    for index in range(STEPS):
        one = {key: values[index][None] for key, values in arrays.items()}
        state, _, _ = step(state, one, np.int32(1))
        expected[index].compare(state.tables, atol)
    before = counted(with_sites)
    assert np.abs(expected[-1].offsets - before.offsets).max() > 0.1
    assert np.abs(expected[-1].spreads - before.spreads).max() > 0.05


def test_the_means_of_priors_are_refitted_to_those_of_posteriors():
    """A parabola by least squares, slopes held as by one row; posteriors stay, rows that are the prior follow it."""
    _, state = shared(LazySGD(0.3))
    table, seen = counted(), COUNTS > 0
    regressors = np.concatenate([np.ones((PAIRS + 1, 1)), table.powers], axis=1)
    held = np.concatenate([regressors[seen], np.eye(3)[1:]])
    mean, *slopes = np.linalg.lstsq(held, np.append(table.offsets[seen], [0.0, 0.0]))[0]
    changed = mean + table.powers @ slopes
    changed[0] = 0.0
    expected = dataclasses.replace(
        table, offsets=table.offsets - changed, mean=table.mean + mean, slopes=table.slopes + slopes
    )
    refitted = jax.jit(learned_priors.refit_priors)(state.tables)
    expected.compare(refitted, atol=1e-6)
    before = table.means
    np.testing.assert_allclose(np.delete(expected.means, 0), np.delete(before, 0), atol=1e-9)


def test_priors_are_refitted_to_rows_of_earlier_logs_too():
    """Rows that this log does not show become prior times site; the precision is the inverse of the mean square."""
    _, state = shared(LazySGD(0.3), True)
    table, seen = counted(True), COUNTS > 0
    known = seen | (table.site != 0)
    regressors = np.concatenate([np.ones((PAIRS + 1, 1)), table.powers], axis=1)
    held = np.concatenate([regressors[known], np.eye(3)[1:]])
    mean, *slopes = np.linalg.lstsq(held, np.append(table.offsets[known], [0.0, 0.0]))[0]
    offsets = table.offsets - (mean + table.powers @ slopes)
    precision = 1 / np.mean(offsets[known] ** 2 + table.deviations[known] ** 2)
    spreads = np.log(table.deviations * np.sqrt(precision))
    prior = dict(mean=table.mean + mean, slopes=table.slopes + slopes)
    center = prior["mean"] + table.powers @ prior["slopes"]
    total = precision + table.site
    earlier = known & ~seen
    offsets = np.where(earlier, (precision * center + table.tilt) / total - center, offsets)
    spreads = np.where(earlier, np.log(precision / total) / 2, spreads)
    offsets[0] = spreads[0] = 0.0  # it is the prior
    expected = dataclasses.replace(
        table, offsets=offsets, spreads=spreads, log_precision=np.log(precision), **prior
    )
    refitted = jax.jit(learned_priors.refit_priors)(state.tables)
    expected.compare(refitted, atol=2e-6)
    assert earlier.sum() == 1 and abs(precision - table.precision) > 0.1


def test_changes_below_the_last_digit_of_a_row_are_kept_on_average():
    """4096 documents change an offset of 1000 by a third of its last digit each."""
    sessions, ranks, offset, precision, rate = 512, 8, 1000.0, 0.01, 0.5
    documents, change = sessions * ranks, float(np.spacing(np.float32(offset))) / 3
    variance = change / rate
    shape = sessions, ranks
    arrays = dict(query_doc_ids=np.ones(shape, np.int32), clicks=np.ones(shape, bool))
    arrays = {name: values[None] for name, values in arrays.items()}
    arrays["lengths"] = np.full((1, sessions), ranks, np.int32)
    tower = EmbeddingParameterConfig(posterior="normal", add_baseline=False)
    model = DocumentCTRModel(1, tower, rngs=nnx.Rngs(0))
    rows = np.tile([offset, np.log(variance * precision) / 2], (2, 1))
    prior = Prior(jnp.log(jnp.float32(precision)), jnp.array([-1030.0]))
    table = dataclasses.replace(model.ctr.table.get_value(), values=jnp.float32(rows), prior=prior)
    model.ctr.table.set_value(table)
    optimizer = Optimizer(optax.set_to_zero(), NaturalGradient(0.5, posterior_rate=rate))
    graphdef, state = split_model(model, optimizer)
    values = state.tables["ctr"]["table"].get_value().values.at[:, -1].set(1 / documents)
    state = dataclasses.replace(state, tables=packing.map_values(lambda *_: values, state.tables))
    state, _, _ = jax.jit(TrainStep(graphdef, optimizer))(state, arrays, np.int32(1))
    ((after, _),) = np.asarray(packing.learned(state.tables)["ctr"]["table"].get_value().values)[1:]
    expected = change * (documents - precision * offset)  # the gradient of each document is -1
    assert after - offset == pytest.approx(expected, abs=4 * 0.5 * 3 * change * documents**0.5)
    assert expected > 1000 * change
