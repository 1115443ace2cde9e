"""The forward pass of dense and packed attention: out and lse.

Method: FlashAttention-2 (Dao 2023) on the online softmax. Grid: batch x query heads x blocks of queries x the blocks of
keys that those see. Blocks that nobody sees are neither copied nor computed; those that every row sees are not masked.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewise.backends.tpu.pallas import dense_visibility, online_softmax
from tilewise.backends.tpu.pallas.dense_arrays import DenseArrays, block_spec, named
from tilewise.backends.tpu.pallas.dense_kernel import by_class, call
from tilewise.backends.tpu.pallas.dense_scores import scores
from tilewise.backends.tpu.pallas.dense_shape import LANES, DenseShape

Ref = Any


def forward(shape: DenseShape, arrays: DenseArrays, *, vmem_limit_bytes: int | None = None,
            interpret: Any = False) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Run the kernel.

    Returns:
        out [B, H, q_len, v_dim] in shape.out and lse float32 [B, H, 1, q_len].
    """
    locate = functools.partial(dense_visibility.by_queries, shape)
    rows = (shape.batch, shape.q_heads)
    return call(
        "forward", _kernel, shape, arrays, locate, grid=(*rows, shape.q_blocks, shape.key_steps),
        out_specs=[
            block_spec((1, 1, shape.block_q, shape.v_dim), locate, lambda at: (at.b, at.h, at.i, 0)),
            block_spec((1, 1, 1, shape.block_q), locate, lambda at: (at.b, at.h, 0, at.i)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((*rows, shape.q_len, shape.v_dim), jnp.dtype(shape.out)),
            jax.ShapeDtypeStruct((*rows, 1, shape.q_len), jnp.float32),
        ],
        scratch=[pltpu.VMEM((shape.block_q, width), jnp.float32) for width in (LANES, LANES, shape.v_dim)],
        vmem_limit_bytes=vmem_limit_bytes, interpret=interpret,
    )  # fmt: skip


def _kernel(shape: DenseShape, present: DenseArrays, *refs: Ref) -> None:
    left = list(refs)
    arrays = named(present, left)
    out, lse, m, l, acc = left
    b, h, i, step = (pl.program_id(axis) for axis in range(4))
    at = dense_visibility.by_queries(shape, b, h, i, step, arrays.q_table)
    live, whole = dense_visibility.classes(shape, arrays, at)
    live &= step < dense_visibility.q_entry(shape, arrays.q_table, b, i, "count")

    @pl.when(step == 0)
    def _() -> None:
        _begin(shape, arrays, h, m, l, acc)

    def attend(masked: bool) -> None:
        def visible() -> tuple[jax.Array, jax.Array | None]:
            s, _ = scores(shape, arrays)
            if not masked:
                return s, None
            sees = dense_visibility.seen(shape, arrays, at)
            return jnp.where(sees, s, -jnp.inf), sees

        def again() -> tuple[jax.Array, jax.Array]:
            s, sees = visible()
            assert sees is not None
            return online_softmax.weights_again(s, m, ..., shape.unit), sees

        p, alpha = online_softmax.weights(visible()[0], m, l, ..., shape.unit)
        online_softmax.accumulate(p, alpha, arrays.v[0, 0], acc, ..., again if masked else None)

    by_class(live, whole, attend)

    @pl.when(step == shape.key_steps - 1)
    def _() -> None:
        rows, row_lse = online_softmax.finish(acc[...], m[...], l[...], shape.unit)
        out[0, 0] = rows.astype(out.dtype)
        for first in range(0, shape.block_q, LANES):
            lse[0, 0, 0, first : first + LANES] = _down_the_diagonal(row_lse[first : first + LANES])


def _begin(shape: DenseShape, arrays: DenseArrays, h: Any, m: Ref, l: Ref, acc: Ref) -> None:
    """Rows that have seen nothing; a sink is a key that every owned row has seen, with no value."""
    acc[...] = jnp.zeros(acc.shape, jnp.float32)
    if not shape.sinks:
        m[...] = jnp.full(m.shape, -jnp.inf, jnp.float32)
        l[...] = jnp.zeros(l.shape, jnp.float32)
        return
    facts = dense_visibility.columns(arrays.facts[0])
    owned = jnp.broadcast_to(facts[:, dense_visibility.OWNED : dense_visibility.OWNED + 1], m.shape) != 0
    sink = arrays.sinks[h]
    m[...] = jnp.where(owned, sink * (1.0 / shape.unit), -jnp.inf)
    l[...] = jnp.where(owned & (sink != -jnp.inf), 1.0, 0.0)


def _down_the_diagonal(x: jax.Array) -> jax.Array:
    """[128] of [128, 128] whose lanes are all alike: a column laid along the lanes."""
    row, lane = (lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
    return jnp.sum(jnp.where(row == lane, x, 0.0), axis=0)
