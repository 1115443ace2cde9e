"""What the backward pass knows of each row before it meets a key: delta = rowsum(dout * out) - dlse, once. Plain JAX.

Source: FlashAttention (Dao et al. 2022), appendix B; the gradient of lse enters as its negative.
"""

from __future__ import annotations

import jax
from jax import numpy as jnp


def delta(out: jax.Array, dout: jax.Array, lse: jax.Array, dlse: jax.Array | None) -> jax.Array:
    """float32 [B, H, T] of out and dout [B, H, T, E], lse and dlse float32 [B, H, T]; 0 where lse is -inf.

    Where out is 0 nothing is added, so that the dout of a row that sees nothing but a sink may hold anything.
    """
    wide = out.astype(jnp.float32)
    found = jnp.sum(jnp.where(wide == 0.0, 0.0, wide * dout.astype(jnp.float32)), axis=-1)
    if dlse is not None:
        found = found - dlse.astype(jnp.float32)
    return jnp.where(lse == -jnp.inf, 0.0, found)


def stats(lse: jax.Array, delta: jax.Array, rows: int) -> jax.Array:
    """float32 [B, H, 8, rows]: lse (+inf for -inf: every weight of the row is then 0) and delta, along the lanes."""
    found = jnp.stack([jnp.where(lse == -jnp.inf, jnp.inf, lse), delta], axis=2)
    found = jnp.pad(found, ((0, 0), (0, 0), (0, 6), (0, 0)))
    return jnp.pad(found, ((0, 0), (0, 0), (0, 0), (0, rows - lse.shape[2])), constant_values=jnp.inf)


def complete(lse: jax.Array, rows: int, block: int) -> jax.Array:
    """int32 [B * H * blocks]: 1 where no row of the block has lse -inf."""
    padded = jnp.pad(lse, ((0, 0), (0, 0), (0, rows - lse.shape[2])), constant_values=-jnp.inf)
    return jnp.all(padded.reshape(*lse.shape[:2], -1, block) != -jnp.inf, -1).astype(jnp.int32).reshape(-1)


def sink_gradient(sinks: jax.Array, lse: jax.Array, delta: jax.Array) -> jax.Array:
    """float32 [H]: a sink's value is 0, so its gradient is -exp(sink - lse) * delta, over its rows."""
    p = jnp.exp(sinks.astype(jnp.float32)[None, :, None] - lse)
    return -jnp.sum(jnp.where(lse == -jnp.inf, 0.0, p * delta), axis=(0, 2))
