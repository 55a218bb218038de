"""Sessions that stay on the device train a model to the same bits as sessions that are fed."""

import jax
import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from small_logs import Last, packed, ragged_log
from stored_logs import stored

from clickexp.data import Column, Features
from clickexp.data.batches import with_mask
from clickexp.data.feed import feed, resident_on
from clickexp.data.loader import resident_bytes
from clickexp.data.numbered import numbered
from clickexp.data.order import ShuffledOrder
from clickexp.errors import ConfigError
from clickexp.models import PositionBasedModel
from clickexp.parameters import DeepParameterConfig, EmbeddingParameterConfig
from clickexp.training import Trainer, memory, trainer

RANKS, PAIRS, COUNT = 4, 40, 150
TOWERS = {
    "posteriors": {},
    "points": {"attraction": EmbeddingParameterConfig(posterior="none")},
    "features": {"attraction": DeepParameterConfig(features=3)},
}


def log():
    sessions = packed(ragged_log(COUNT, RANKS, PAIRS), PAIRS)
    features = np.random.default_rng(0).normal(size=(PAIRS + 1, 3)).astype(np.float16)
    return sessions.with_features(Features(features))


def trained(tower, resident, shuffle):
    model = PositionBasedModel(
        query_doc_pairs=PAIRS, positions=RANKS, **TOWERS[tower], click_rate=0.3, rngs=nnx.Rngs(0)
    )
    settings = dict(epochs=2, batch_size=16, steps_per_execution=3, early_stopping=Last(), seed=1)
    fit = Trainer(resident=resident, shuffle=shuffle, **settings)
    report = fit.train(model, log(), log())
    return model, [record["train/loss"] for record in report.history]


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_resident_sessions_train_to_the_same_bits(tower, shuffle):
    fed, losses = trained(tower, False, shuffle)
    resident, others = trained(tower, True, shuffle)
    assert losses == others
    leaves = [jax.tree.leaves(nnx.state(model, nnx.Param)) for model in (fed, resident)]
    assert all(map(np.array_equal, *leaves))


def columns(rng):
    """Columns of every shape and of 64 bits, with paddings of their own."""
    return {
        Column("heights", np.float16, fill=2.5): rng.random((COUNT, RANKS)),
        Column("vectors", np.float32, shape=(3,)): rng.random((COUNT, RANKS, 3)),
        Column("days", np.int64, per="session", fill=7): rng.integers(0, 9, COUNT),
    }


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("seed", [None, 3])
def test_batches_are_those_that_are_fed(is_packed, seed, tmp_path, monkeypatch):
    """Padding included; tables are read in pieces."""
    monkeypatch.setattr("clickexp.data.loader._PIECE", 64)
    extra = columns(np.random.default_rng(1))
    sessions = type(log()).from_arrays(**ragged_log(COUNT, RANKS, PAIRS, full=True), extra=extra)
    if is_packed:
        sessions = stored(sessions, tmp_path / "log")
    sessions = sessions.select(np.random.default_rng(2).permutation(COUNT)[:100])
    sessions = sessions.with_batch_columns(["heights", "vectors", "days"])
    tables = resident_on(sessions)
    assert resident_bytes(sessions) == sum(table.nbytes for table in tables.values())
    ways = [feed(sessions, 16, 3, seed, 1, resident=way) for way in (None, tables)]
    for fed, resident in zip(*ways, strict=True):
        assert (fed.steps, fed.sessions) == (resident.steps, resident.sessions)
        one, other = (with_mask(batch.arrays) for batch in (fed, resident))
        assert {*one} == {*other}
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("count", [1, 1000, 1024, 5003])
@pytest.mark.parametrize("most_in_memory", [0, 1 << 22])
def test_devices_compute_the_order_of_the_host(count, most_in_memory, monkeypatch):
    """Of permutations and of orders that are computed, whose last superbatch is filled up."""
    monkeypatch.setattr("clickexp.data.order._MOST_IN_MEMORY", most_in_memory)
    expected = ShuffledOrder(count, 3, 2).rows(np.arange(count))
    found = [*numbered(count, 8, 32, seed=3, epoch=2)]
    numbers = np.concatenate([batch.arrays["numbers"].ravel() for batch in found])
    assert np.array_equal(numbers[:count], expected) and (numbers[count:] == count).all()
    assert sum(batch.sessions for batch in found) == count
    assert sum(batch.steps for batch in found) == -(-count // 8)


@pytest.mark.parametrize(
    ("backend", "free", "stays"),
    [("cpu", 1 << 40, False), ("gpu", None, False), ("gpu", 20_000, True), ("gpu", 9_000, False)],
)
def test_sessions_stay_on_accelerators_that_have_room(backend, free, stays, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(trainer, "free_device_bytes", lambda: free)
    sessions = log()
    assert resident_bytes(sessions) == (COUNT + 1) * (5 * RANKS + 4)
    assert trainer._stays("auto", sessions) is stays
    assert trainer._stays(True, sessions) and not trainer._stays(False, sessions)


def test_free_memory_is_that_of_the_fullest_device(monkeypatch):
    class Device:
        def __init__(self, stats):
            self.memory_stats = lambda: stats

    full = [Device({"bytes_limit": 9, "bytes_in_use": used}) for used in (2, 5, 3)]
    monkeypatch.setattr(memory.jax, "local_devices", lambda: full)
    assert memory.free_device_bytes() == 4
    monkeypatch.setattr(memory.jax, "local_devices", lambda: [*full, Device(None)])
    assert memory.free_device_bytes() is None


def test_other_words_are_refused():
    with refuses(ConfigError, "resident='never'", "auto"):
        Trainer(resident="never")
