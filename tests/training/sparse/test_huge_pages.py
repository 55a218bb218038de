"""Huge pages change neither values nor addresses, also across steps that donate the array."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from clickexp.models import PositionBasedModel
from clickexp.training import LazyAdam, Optimizer, step
from clickexp.training.sparse.huge_pages import HUGE_PAGE, use_huge_pages

on_linux_cpu = pytest.mark.skipif(
    sys.platform != "linux" or jax.default_backend() != "cpu",
    reason="huge pages are asked for on Linux CPUs only",
)


@on_linux_cpu
def test_values_and_address_stay():
    values = np.arange(3 * HUGE_PAGE // 4, dtype=np.float32)
    array = jnp.array(values)
    address = array.unsafe_buffer_pointer()
    use_huge_pages(array)
    array = jax.jit(lambda x: x.at[7].add(1.0), donate_argnums=0)(array)
    assert array.unsafe_buffer_pointer() == address
    values[7] += 1
    np.testing.assert_array_equal(array, values)


@on_linux_cpu
def test_training_asks_for_them(monkeypatch):
    """For each table: one of 100 rows here."""
    asked = []
    monkeypatch.setattr(step, "use_huge_pages", lambda table: asked.append(table.shape[:1]))
    model = PositionBasedModel(positions=3, query_doc_pairs=99, rngs=nnx.Rngs(0))
    step.split_model(model, Optimizer(optax.adam(0.1), LazyAdam(0.1)))
    assert (100,) in asked


def test_small_arrays_are_left_alone():
    assert not use_huge_pages(jnp.zeros(1000))
