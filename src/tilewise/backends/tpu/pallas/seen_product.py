"""Products of weights with rows that may hold NaN or infinity where no pair is visible: 0 * NaN is not added."""

from __future__ import annotations

import jax
from jax import lax
from jax import numpy as jnp

from tilewise.backends.tpu.pallas.online_softmax import precision


def product(weights: jax.Array, x: jax.Array, over_rows: bool) -> jax.Array:
    """float32: weights [rows, keys] @ x [keys, width], or, over_rows, weights^T @ x [rows, width]."""
    contracted = (((0 if over_rows else 1,), (0,)), ((), ()))
    return lax.dot_general(
        weights.astype(x.dtype), x, contracted, preferred_element_type=jnp.float32, precision=precision(x.dtype)
    )


def seen_product(weights: jax.Array, seen: jax.Array, x: jax.Array, over_rows: bool) -> jax.Array:
    """The same over visible pairs only (bool [rows, keys]): what is not finite makes NaN of what it is seen by."""
    finite = jnp.abs(x.astype(jnp.float32)) < jnp.inf
    clean = product(weights, jnp.where(finite, x.astype(jnp.float32), 0.0).astype(x.dtype), over_rows)
    ones = jnp.where(seen, 1.0, 0.0)
    hits = product(ones, jnp.where(finite, 0.0, 1.0).astype(x.dtype), over_rows)
    return jnp.where(hits > 0.0, jnp.nan, clean)


def has_nan(x: jax.Array) -> jax.Array:
    """Scalar: is there a NaN in it?"""
    return jnp.max(jnp.where(x == x, 0.0, 1.0)) > 0.0
