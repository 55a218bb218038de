"""Sums that do not depend on the order: against `math.fsum`."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from clickexp.metrics.exact import exact_sum


@pytest.mark.parametrize("scale", [1.0, 1e3, 3.0e6, 6.0e6, 1e9])
def test_a_sum_is_that_of_fsum_at_any_size(scale):
    """Values on both sides of the largest that integers count, 3.1e6; many of one sign, which add up in one integer."""
    rng = np.random.default_rng(0)
    values = (scale * rng.uniform(0.9, 1, (1 << 14, 2))).astype(np.float32)
    found = exact_sum(jnp.asarray(values)).on_host().value()
    np.testing.assert_allclose(
        found, [math.fsum(column) for column in values.T], rtol=1e-6 if scale > 3.1e6 else 1e-13
    )
