"""The logits of a tile, and the slope of the soft cap at them."""

from __future__ import annotations

import jax
from jax import numpy as jnp

from tilewise.backends.tpu.pallas import online_softmax
from tilewise.backends.tpu.pallas.dense_arrays import DenseArrays
from tilewise.backends.tpu.pallas.dense_shape import DenseShape


def scores(shape: DenseShape, arrays: DenseArrays) -> tuple[jax.Array, jax.Array | None]:
    """(float32 [block_q, block_k]: logits in natural units over shape.unit, the slope or None); nothing is masked."""
    s = online_softmax.scores(arrays.q[0, 0], arrays.k[0, 0])
    slope = None
    if shape.softcap is not None:
        s = jnp.tanh(s * (shape.scale / shape.softcap))
        slope = 1.0 - s * s
        s = s if shape.unit == shape.softcap else s * shape.softcap
    elif shape.unit != shape.scale:
        s = s * shape.scale
    if shape.bias is not None:
        s = s + arrays.bias[0, 0].astype(jnp.float32)
    return s, slope
