"""JAX as the words of spec/reference.py."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class JaxNamespace:
    """framework_protocol.Namespace for JAX."""

    inf, nan = math.inf, math.nan
    exp, log, tanh, isfinite = (staticmethod(f) for f in (jnp.exp, jnp.log, jnp.tanh, jnp.isfinite))
    round, zeros_like, reshape = (staticmethod(f) for f in (jnp.round, jnp.zeros_like, jnp.reshape))
    transpose, clip, stack = (staticmethod(f) for f in (jnp.transpose, jnp.clip, jnp.stack))
    broadcast, where = staticmethod(jnp.broadcast_to), staticmethod(jnp.where)

    def real(self, dtype: str) -> Any:
        return jnp.dtype("float64" if dtype == "float64" else "float32")

    def cast(self, x: Any, dtype: Any) -> jax.Array:
        return x.astype(dtype)

    def dtype_of(self, x: Any) -> Any:
        return x.dtype

    def arange(self, n: int) -> jax.Array:
        return jnp.arange(n, dtype=jnp.int32)

    def full(self, shape: tuple[int, ...], value: Any, dtype: Any = "bool") -> jax.Array:
        return jnp.full(shape, value, dtype)

    def max(self, x: Any, axis: int) -> jax.Array:
        return jnp.max(x, axis, keepdims=True)

    def sum(self, x: Any, axis: int) -> jax.Array:
        return jnp.sum(x, axis, keepdims=True, dtype=x.dtype)

    def take(self, x: Any, index: Any) -> jax.Array:
        return jnp.take(x, index, axis=0, mode="clip")

    def matmul(self, a: Any, b: Any) -> jax.Array:
        return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)

    def concat(self, xs: list[Any], axis: int) -> jax.Array:
        return jnp.concatenate(xs, axis)

    def known_true(self, x: Any) -> bool:
        return not isinstance(x, jax.core.Tracer) and bool(x.all())

    def ints(self, x: Any) -> list[int] | None:
        if isinstance(x, jax.core.Tracer):
            return None
        return [int(i) for i in np.asarray(x).reshape(-1)]

    def put_rows(self, x: Any, page: Any, slot: Any, rows: Any, keep: Any) -> jax.Array:
        nowhere = x.shape[0]  # out of range: dropped
        return x.at[jnp.where(keep, page, nowhere), slot].set(rows, mode="drop")
