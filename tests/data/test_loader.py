"""Superbatches: every session once, fixed shapes, deterministic order, a thread that ends."""

import threading
import time

import jax
import numpy as np
import pytest
from stored_logs import stored

from clickexp.data import Sessions, superbatches
from clickexp.data import order as order_of_epoch
from clickexp.data.batches import unpacked
from clickexp.data.derived import DerivedColumn
from clickexp.data.devices import SingleDevice
from clickexp.data.feed import feed
from clickexp.data.loader import padding_session, read_ahead, superbatch_readers
from clickexp.data.order import ShuffledOrder
from clickexp.data.schema import Column


def numbered(count: int, ranks: int = 3, **columns) -> Sessions:
    """Sessions whose first id is their number plus 1."""
    ids = np.arange(1, count + 1)[:, None] + np.arange(ranks)
    return Sessions.from_arrays(
        query_doc_ids=ids, clicks=ids % 2, query_ids=np.arange(count), **columns
    )


def order(sessions: Sessions, **options) -> np.ndarray:
    """The session numbers in the order in which the loader gives them."""
    parts = [
        np.ravel(unpacked(part.arrays)["query_doc_ids"][..., 0])
        for part in superbatches(sessions, 4, 3, **options)
    ]
    ids = np.concatenate(parts)
    return ids[ids > 0] - 1


@pytest.mark.parametrize(
    "count, batches", [(1, [1]), (4, [1]), (12, [3]), (13, [3, 1]), (29, [3, 3, 2])]
)
def test_shapes_are_fixed_and_the_rest_is_empty(count, batches):
    sessions = numbered(count)
    parts = list(superbatches(sessions, 4, 3))
    assert [part.steps for part in parts] == batches
    assert sum(part.sessions for part in parts) == count
    for part in parts:
        shapes = {name: (values.shape, values.dtype.name) for name, values in part.arrays.items()}
        assert shapes == {
            "query_doc_ids": ((3, 4, 3), "int32"),
            "clicks": ((3, 4, 3), "bool"),
            "lengths": ((3, 4), "int32"),
        }
    for name in ("query_doc_ids", "clicks", "lengths"):
        flat = np.concatenate([part.arrays[name].reshape(12, -1) for part in parts])
        assert np.array_equal(flat[:count].squeeze(), sessions.column(name).squeeze())
        assert not flat[count:].any()


@pytest.mark.parametrize("batch_size", [8, 9, 1 << 24])
def test_a_small_log_is_not_padded_to_a_large_batch(batch_size):
    """16 million sessions would take 200 MB for 5."""
    (batch,) = feed(numbered(5), batch_size, 16)
    assert batch.arrays["query_doc_ids"].shape == (1, 8, 3) and (batch.steps, batch.sessions) == (
        1,
        5,
    )


def test_threads_that_feed_an_accelerator_keep_the_order(monkeypatch):
    """Of some superbatches for each thread; the slower ones come first."""
    sessions = numbered(5000)
    expected = [part.arrays["query_doc_ids"] for part in superbatches(sessions, 16, 4, seed=3)]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    waits = iter(np.linspace(0.02, 0.0, len(expected)))

    class Slow(SingleDevice):
        def lay(self, batch, batch_size):
            time.sleep(next(waits))
            return super().lay(batch, batch_size)

    batches = feed(sessions, 16, 4, seed=3, devices=Slow())
    found = [part.arrays["query_doc_ids"] for part in batches]
    assert all(map(np.array_equal, found, expected)) and len(found) == len(expected)


def test_optional_columns_come_along():
    ones = np.ones((5, 3))
    part = next(superbatches(numbered(5, labels=ones, positions=ones.astype(int)), 8, 1))
    assert part.arrays["labels"].dtype == np.float32 and part.arrays["positions"].dtype == np.int32
    assert part.arrays["labels"].sum() == part.arrays["positions"].sum() == 15


def test_shuffled_order_is_a_permutation_fixed_by_seed_and_epoch():
    sessions = numbered(100)
    assert np.array_equal(order(sessions), np.arange(100))
    first = order(sessions, seed=1)
    assert np.array_equal(np.sort(first), np.arange(100))
    assert np.array_equal(first, order(sessions, seed=1))
    for other in (order(sessions, seed=1, epoch=1), order(sessions, seed=2), np.arange(100)):
        assert not np.array_equal(first, other)


def test_rows_stay_together_when_shuffled():
    for part in superbatches(numbered(50), 4, 3, seed=3):
        ids = part.arrays["query_doc_ids"]
        assert np.array_equal(part.arrays["clicks"], ids % 2 == 1)
        assert np.array_equal(part.arrays["lengths"] == 3, ids[..., 2] == ids[..., 0] + 2)


@pytest.mark.parametrize("seed", [None, 5])
def test_views_are_loaded_as_they_show(seed, tmp_path):
    saved = stored(numbered(40), tmp_path / "log")
    view = saved.slice(5, 35).select(np.arange(29, 0, -2))
    expected = np.arange(5, 35)[29:0:-2]
    found = order(view, seed=seed)
    if seed is not None:
        found, expected = np.sort(found), np.sort(expected)
    assert np.array_equal(found, expected)


def test_every_place_is_as_likely():
    """Mean position of each of 20 sessions over 400 epochs, standard error sqrt((20^2 - 1) / 12 / 400)."""
    sessions = numbered(20)
    places = [np.argsort(order(sessions, seed=0, epoch=epoch)) for epoch in range(400)]
    assert np.abs(np.mean(places, axis=0) - 9.5).max() < 5 * np.sqrt((20**2 - 1) / 12 / 400)


@pytest.mark.parametrize("ranks", [1, 3, 4, 5, 10, 33])
def test_records_are_taken_apart_into_what_they_were_made_of(ranks, tmp_path):
    """By compiled programs, whatever the numbers that clicks take; the rest of the last batch is empty."""
    rng = np.random.default_rng(ranks)
    lengths = rng.integers(1, ranks + 1, 11)
    shown = np.arange(ranks) < lengths[:, None]
    arrays = {
        "query_doc_ids": rng.integers(1, 1 << 31, (11, ranks)) * shown,
        "clicks": rng.integers(0, 2, (11, ranks)) * shown,
        "lengths": lengths,
    }
    opened = stored(Sessions.from_arrays(**arrays), tmp_path / "log")
    (batch,) = superbatches(opened, 4, 3)
    assert [*batch.arrays] == ["records"]
    found = jax.jit(unpacked)(batch.arrays)
    for name, values in arrays.items():
        flat = np.asarray(found[name]).reshape(12, *values.shape[1:])
        assert np.array_equal(flat[:11], values) and not flat[11:].any()
        assert np.array_equal(opened.columns[name], values)


@pytest.mark.parametrize("count", [4, 5, 1023, 1024, 1025, 100_003])
def test_an_order_that_is_computed_is_a_permutation_in_any_portions(count, monkeypatch):
    monkeypatch.setattr(order_of_epoch, "_MOST_IN_MEMORY", 3)
    orders = [ShuffledOrder(count, seed, epoch) for seed, epoch in ((1, 1), (1, 2), (2, 1))]
    rows = [shuffled.rows(np.arange(count)) for shuffled in orders]
    for whole in rows:
        assert np.array_equal(np.sort(whole), np.arange(count))
    part = orders[0].rows(np.arange(count // 3, count // 2))
    assert np.array_equal(part, rows[0][count // 3 : count // 2])
    if count > 5:
        assert not np.array_equal(rows[0], rows[1]) and not np.array_equal(rows[0], rows[2])


@pytest.mark.nightly
@pytest.mark.parametrize("count", [300_000, 5_000_000])
def test_an_order_that_is_computed_looks_random(count):
    """Where the sessions of a batch are from, neighbours in the log and in the order: 5 standard deviations."""
    batch, strata = 4096, 64
    for seed in range(4):
        shuffled = ShuffledOrder(count, seed, 3)
        assert shuffled.permutation is None
        rows = shuffled.rows(np.arange(count))
        batches = rows[: min(256, count // batch) * batch].reshape(-1, batch)
        for group in (batches * strata // count, batches % strata):
            seen = np.stack([np.bincount(each, minlength=strata) for each in group])
            expected = batch / strata
            chi_square = ((seen - expected) ** 2 / expected).sum()
            degrees = len(batches) * (strata - 1)
            assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)
        for lag in (1, batch):
            assert abs(np.corrcoef(rows[:-lag], rows[lag:])[0, 1]) < 5 / np.sqrt(count)
        place = np.argsort(rows)
        together = np.count_nonzero(place[1:] // batch == place[:-1] // batch)
        assert abs(together - batch) < 5 * np.sqrt(batch)


def loader_threads() -> int:
    return sum(thread.name.startswith("superbatches") for thread in threading.enumerate())


def test_closing_early_ends_the_thread():
    before = loader_threads()
    batches = superbatches(numbered(1000), 4, 3)
    next(batches)
    assert loader_threads() == before + 1
    batches.close()
    assert loader_threads() == before


def test_an_error_in_the_thread_reaches_the_consumer(monkeypatch):
    sessions, calls, before = numbered(100), [], loader_threads()

    def fail_later(self, target, rows):
        calls.append(rows)
        if len(calls) == 3:
            raise OSError("disk gone")

    monkeypatch.setattr(Sessions, "read_into", fail_later)
    received = []
    with pytest.raises(OSError, match="disk gone"):
        received.extend(superbatches(sessions, 4, 3))
    assert len(received) == 2 and loader_threads() == before


def test_batches_do_not_share_memory():
    one, two = list(superbatches(numbered(24), 4, 3))
    assert not np.shares_memory(one.arrays["clicks"], two.arrays["clicks"])


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0)])
def test_sizes_are_checked_at_the_call(arguments):
    with pytest.raises(ValueError, match="batch_size"):
        superbatches(numbered(3), *arguments)


@pytest.mark.parametrize("seed", [None, 3])
def test_shares_are_parts_of_each_batch(seed, tmp_path):
    """Of 103 sessions in batches of 12; of the last batch, one share has no session."""
    ids = np.arange(103 * 4).reshape(103, 4)
    log = stored(Sessions.from_arrays(query_doc_ids=ids, clicks=ids % 2), tmp_path / "log")
    options = {"seed": seed, "epoch": 2}
    whole = [*superbatches(log, 12, 4, **options)]
    readers = [superbatch_readers(log, 12, 4, share=(part, 3), **options) for part in range(3)]
    shares = [(read() for read in of_share) for of_share in readers]
    for one, *parts in zip(whole, *shares, strict=True):
        assert {(part.steps, part.sessions) for part in parts} == {(one.steps, one.sessions)}
        for name, values in one.arrays.items():
            joined = np.concatenate([part.arrays[name] for part in parts], axis=1)
            assert np.array_equal(joined, values)


class Unread(DerivedColumn):
    column = Column("unread", np.int32)

    def compute(self, packed, rows):
        raise AssertionError("counts a whole log")

    def bounds(self):
        return 0, 1


def test_padding_is_known_without_derived_columns():
    """Shapes of batches are asked for in a thread, beside a pass that counts what the column is derived of."""
    sessions = numbered(5).deriving(Unread()).with_batch_columns(["unread"])
    np.testing.assert_array_equal(padding_session(sessions)["unread"], np.zeros((1, 3), np.int32))


def test_items_read_ahead_keep_their_order_and_pass_on_an_error():
    """A fault in the second half of a file is that of the thread that reads it."""

    def items():
        yield from "ab"
        raise OSError("broken")

    read = read_ahead(items(), "test")
    assert [next(read), next(read)] == ["a", "b"]
    with pytest.raises(OSError, match="broken"):
        next(read)
    assert list(read_ahead(range(3), "test")) == [0, 1, 2]
