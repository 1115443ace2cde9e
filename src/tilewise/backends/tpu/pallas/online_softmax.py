"""The running state of a softmax over blocks of keys (Milakov and Gimelshein 2018): m, l and acc of every row.

Numbers are compared before the last positive factor of the logits (`unit`): p = 2^((s - m) * unit * log2 e), so that
large logits lose nothing. m and l fill 128 lanes, all alike. Nothing stands for -inf but -inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl

from tilewise.backends.tpu.pallas.visibility import spread

Ref = Any
LOG2_E = math.log2(math.e)


def weights(s: jax.Array, m: Ref, l: Ref, at: Any, unit: float) -> tuple[jax.Array, jax.Array]:
    """Take scores s [rows, keys] (-inf: not seen) into m and l [.., rows, 128]; (p, alpha: what acc shrinks by)."""
    before = m[at]
    after = jnp.maximum(before, jnp.max(s, axis=1, keepdims=True))
    finite = jnp.where(after == -jnp.inf, 0.0, after)
    alpha = jnp.exp2((before - finite) * (unit * LOG2_E))
    p = jnp.exp2((s - spread(finite, s.shape[1])) * (unit * LOG2_E))
    m[at] = after
    l[at] = alpha * l[at] + jnp.sum(p, axis=1, keepdims=True)
    return p, alpha


def weights_again(s: jax.Array, m: Ref, at: Any, unit: float) -> jax.Array:
    """The p that weights() gave for these scores, after it."""
    after = m[at]
    return jnp.exp2((s - spread(jnp.where(after == -jnp.inf, 0.0, after), s.shape[1])) * (unit * LOG2_E))


def accumulate(p: jax.Array, alpha: jax.Array, v: jax.Array, acc: Ref, at: Any,
               again: Callable[[], tuple[jax.Array, jax.Array]] | None = None) -> None:  # fmt: skip
    """acc = alpha * acc + p @ v.

    again: () -> (p, bool [rows, keys]: seen), where rows differ in what they see: then no row may meet another's NaN
    or infinity, as 0 * NaN. Such values are rare, and found in the product.
    """
    product = _product(p.astype(v.dtype), v)
    scaled = spread(alpha, v.shape[1]) * acc[at]
    if again is None:
        acc[at] = scaled + product
        return
    found = jnp.max(jnp.where(product == product, 0.0, 1.0)) > 0.0
    acc[at] = scaled + jnp.where(found, 0.0, product)

    @pl.when(found)
    def _() -> None:
        acc[at] = acc[at] + _of_seen(*again(), v)


def _of_seen(p: jax.Array, seen: jax.Array, v: jax.Array) -> jax.Array:
    """p @ v in which a value that is not finite counts only where it is seen."""
    wide = v.astype(jnp.float32)
    weight = jnp.where(seen, 1.0, 0.0).astype(v.dtype)

    def seen_by(which: jax.Array) -> jax.Array:
        return _product(weight, jnp.where(which, 1.0, 0.0).astype(v.dtype)) > 0.0

    finite = jnp.abs(wide) < jnp.inf
    product = _product(p.astype(v.dtype), jnp.where(finite, wide, 0.0).astype(v.dtype))
    up, down = seen_by(wide == jnp.inf), seen_by(wide == -jnp.inf)
    product = jnp.where(up, jnp.inf, jnp.where(down, -jnp.inf, product))
    return jnp.where(seen_by(wide != wide) | (up & down), jnp.nan, product)


def _product(p: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.dot(p, v, preferred_element_type=jnp.float32, precision=precision(v.dtype))


def scores(q: jax.Array, k: jax.Array) -> jax.Array:
    """q @ k^T in float32."""
    return lax.dot_general(
        q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32, precision=precision(k.dtype)
    )


def precision(dtype: Any) -> Any:
    """float32 operands are multiplied as float32, not in one bfloat16 pass."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else None


def finish(acc: jax.Array, m: jax.Array, l: jax.Array, unit: float) -> tuple[jax.Array, jax.Array]:
    """(out [rows, E], lse [rows, 128] in natural units); a row that saw nothing: 0 and -inf."""
    empty = l == 0.0
    l = jnp.where(empty, 1.0, l)
    out = acc / spread(l, acc.shape[1])
    lse = m * unit + jnp.log(l)
    return out, jnp.where(empty, -jnp.inf, lse)
