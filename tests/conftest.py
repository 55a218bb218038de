"""Strictness for all tests: no silent dtype promotion, warnings are errors (see pyproject.toml)."""

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
