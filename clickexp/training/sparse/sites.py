"""Rows with what earlier logs say, while a model trains: each has a prior of its own, the learned prior times its site.

That prior is all that steps need to know of sites. It takes as many columns as the x and the share of other rows, so
that rows stay as wide: those of 32 bytes for 16 made a step a third slower. What it follows from lies aside.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from clickexp.parameters.table import LEAST_SITE, Prior, Rows
from clickexp.types import Array

Numbers = Float[Array, "rows dim"]
Share = Float[Array, "rows 1"]
Columns = Float[Array, "rows columns"]
_UPPER, _BITS = np.uint32(0xFFFF0000), np.uint32(16)


def set_aside(rows: Rows) -> Rows:
    """Returns a table with its x and sites aside, whose rows are their own priors, of logs without documents."""
    rows = dataclasses.replace(rows, aside=rows.values[:, rows.numbers :])
    values = own_rows(rows, jnp.zeros((len(rows.values), 1)))
    return dataclasses.replace(rows, values=values)


def together(rows: Rows) -> Float[Array, "rows width"]:
    """Returns the values of a table whose x and sites are aside, as `Rows` has them."""
    offsets = rows.means(rows.values) - of_learned_prior(rows)
    spreads = rows.own(rows.values)[:, rows.dim : rows.numbers]
    return jnp.concatenate([offsets, spreads, rows.aside], axis=1)


def x_and_sites(rows: Rows) -> tuple[Float[Array, " rows"], Numbers, Numbers]:
    """Returns x, precisions and tilts of rows that have them aside."""
    precisions, tilts = jnp.split(rows.aside[:, rows.by_rank :], 2, axis=1)
    return rows.aside[:, 0], precisions, tilts


def of_learned_prior(rows: Rows) -> Numbers:
    """Returns the means of the learned prior in rows that have their x aside."""
    x, site, _ = x_and_sites(rows)
    return rows.from_prior(jnp.zeros_like(site), x)


def own_rows(rows: Rows, share: Share) -> Columns:
    """Returns rows that are their own priors, [offsets | spreads | centers | precisions and shares].

    Args:
        rows: The prior, and what lies aside.
        share: Of one document of this log.
    """
    center, total = _own_priors(rows)
    parts = jnp.zeros_like(total), _own_spreads(rows, total), center, _in_one(total, share)
    return jnp.concatenate(parts, axis=1)


def under(rows: Rows, prior: Prior) -> Columns:
    """Returns rows under another learned prior: posteriors of this log stay, other rows are their own priors."""
    _, share = own_precision_and_share(rows, rows.values)
    other = dataclasses.replace(rows, prior=prior)
    center, total = _own_priors(other)
    spreads = rows.own(rows.values)[:, rows.dim : rows.numbers]
    spreads += (prior.log_precision - _log_precision(rows)) / 2
    is_shown = share > 0
    offsets = jnp.where(is_shown, rows.means(rows.values) - center, 0.0)
    spreads = jnp.where(is_shown, spreads, _own_spreads(other, total))
    return jnp.concatenate([offsets, spreads, center, _in_one(total, share)], axis=1)


def _own_priors(rows: Rows) -> tuple[Numbers, Numbers]:
    """Centers, infinite where no log has shown the row, and precisions: the learned prior times sites."""
    x, site, tilt = x_and_sites(rows)
    precision = jnp.exp(_log_precision(rows))
    total = precision + jnp.maximum(site, LEAST_SITE * precision)
    center = (precision * of_learned_prior(rows) + tilt) / total
    if rows.by_rank:  # what no log has shown is predicted by the rank where it is shown
        center = jnp.where(jnp.isinf(x)[:, None], x[:, None], center)
    return center, total


def _own_spreads(rows: Rows, precision: Numbers) -> Numbers:
    """Those of rows that are their own priors, of these precisions."""
    return jnp.log(jnp.exp(_log_precision(rows)) / precision) / 2


def _log_precision(rows: Rows) -> Array | float:
    return 0.0 if rows.prior is None else rows.prior.log_precision


def _in_one(precision: Numbers, share: Share) -> Numbers:
    """Two numbers of eight bits: they weigh the prior of a row, whose center has all digits."""
    upper, lower = (
        jax.lax.bitcast_convert_type(number.astype(jnp.bfloat16), jnp.uint16).astype(jnp.uint32)
        for number in (precision, share)
    )
    return jax.lax.bitcast_convert_type((upper << _BITS) | lower, jnp.float32)


def own_precision_and_share(rows: Rows, packed: Columns) -> tuple[Numbers, Share]:
    """Returns the precisions of the own priors of packed rows, and the shares of these of one document."""
    start = rows.numbers + rows.dim
    bits = jax.lax.bitcast_convert_type(rows.own(packed)[:, start : start + rows.dim], jnp.uint32)
    precision = jax.lax.bitcast_convert_type(bits & _UPPER, jnp.float32)
    return precision, jax.lax.bitcast_convert_type(bits[:, :1] << _BITS, jnp.float32)
