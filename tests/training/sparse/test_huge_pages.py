"""Huge pages change neither values nor addresses, also across steps that donate the array."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def test_small_arrays_are_left_alone():
    assert not use_huge_pages(jnp.zeros(1000))
