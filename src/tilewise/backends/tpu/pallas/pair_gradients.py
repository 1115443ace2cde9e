"""The weights of a tile and the gradient of its logits, as both backward kernels need them.

p = exp(s - lse), ds = p * (dout . v - delta), and 1 - tanh^2 of a soft cap: FlashAttention-2 (Dao 2023), algorithm 2.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import numpy as jnp

from tilewise.backends.tpu.pallas import dense_visibility, online_softmax
from tilewise.backends.tpu.pallas.dense_arrays import DenseArrays, Place
from tilewise.backends.tpu.pallas.dense_scores import scores
from tilewise.backends.tpu.pallas.dense_shape import DenseShape
from tilewise.backends.tpu.pallas.online_softmax import LOG2_E


class PairGradients(NamedTuple):
    """float32 [block_q, block_k]: weights, gradients of the logits and of scale * q.k; bool: seen, None: all."""

    p: jax.Array
    dlogits: jax.Array
    ds: jax.Array
    seen: jax.Array | None


def pair_gradients(shape: DenseShape, arrays: DenseArrays, at: Place, masked: bool) -> PairGradients:
    """Of a tile; masked: pairs that are not visible have 0, as have rows with lse -inf."""
    s, slope = scores(shape, arrays)
    stats = dense_visibility.columns(arrays.stats[0, 0])
    lse, delta = stats[:, 0:1], stats[:, 1:2]
    p = jnp.exp2((s * shape.unit - lse) * LOG2_E)
    dlogits = p * (online_softmax.scores(arrays.dout[0, 0], arrays.v[0, 0]) - delta)
    ds = dlogits if slope is None else dlogits * slope
    if not masked:
        return PairGradients(p, dlogits, ds, None)
    seen = dense_visibility.seen(shape, arrays, at) & (lse != jnp.inf)
    p, dlogits, ds = (jnp.where(seen, x, 0.0) for x in (p, dlogits, ds))
    return PairGradients(p, dlogits, ds, seen)
