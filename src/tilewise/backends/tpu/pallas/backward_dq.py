"""dQ of dense and packed attention, and the gradient of its bias.

Method: FlashAttention-2 (Dao 2023), algorithm 2, a block of queries at a time. Grid as in forward.py; where the bias
has a gradient, every tile is visited, for its own part of it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewise.backends.tpu.pallas import dense_visibility
from tilewise.backends.tpu.pallas.dense_arrays import DenseArrays, Place, block_spec, named
from tilewise.backends.tpu.pallas.dense_kernel import by_class, call
from tilewise.backends.tpu.pallas.dense_shape import DenseShape
from tilewise.backends.tpu.pallas.pair_gradients import pair_gradients
from tilewise.backends.tpu.pallas.seen_product import has_nan, product, seen_product

Ref = Any


def backward_dq(shape: DenseShape, arrays: DenseArrays, with_bias: bool, *, vmem_limit_bytes: int | None = None,
                interpret: Any = False) -> tuple[jax.Array, jax.Array | None]:  # fmt: skip
    """Run the kernel.

    Returns:
        dq [B, H, q_len, qk_dim] in shape.out, and with_bias the gradient of every logit, float32 [B, H, q_len, kv_len].
    """
    locate = _every_tile if with_bias else functools.partial(dense_visibility.by_queries, shape)
    rows = (shape.batch, shape.q_heads)
    specs = [block_spec((1, 1, shape.block_q, shape.qk_dim), locate, lambda at: (at.b, at.h, at.i, 0))]
    shapes = [jax.ShapeDtypeStruct((*rows, shape.q_len, shape.qk_dim), jnp.dtype(shape.out))]
    if with_bias:
        specs.append(block_spec((1, 1, shape.block_q, shape.block_k), locate, lambda at: at))
        shapes.append(jax.ShapeDtypeStruct((*rows, shape.q_len, shape.kv_len), jnp.float32))
    results = call(
        "backward_dq", functools.partial(_kernel, with_bias), shape, arrays, locate,
        grid=(*rows, shape.q_blocks, shape.k_blocks if with_bias else shape.key_steps), out_specs=specs,
        out_shape=shapes, scratch=[pltpu.VMEM((shape.block_q, shape.qk_dim), jnp.float32)],
        vmem_limit_bytes=vmem_limit_bytes, interpret=interpret,
    )  # fmt: skip
    return results[0], results[1] if with_bias else None


def _every_tile(b: Any, h: Any, i: Any, step: Any, *_: Any) -> Place:
    return Place(b, h, i, step)


def _kernel(with_bias: bool, shape: DenseShape, present: DenseArrays, *refs: Ref) -> None:
    left = list(refs)
    arrays = named(present, left)
    dq, acc = left[0], left[-1]
    dbias = left[1] if with_bias else None
    b, h, i, step = (pl.program_id(axis) for axis in range(4))
    at = Place(b, h, i, step)
    if not with_bias:
        at = dense_visibility.by_queries(shape, b, h, i, step, arrays.q_table)
    live, whole = dense_visibility.classes(shape, arrays, at)
    if not with_bias:
        live &= step < dense_visibility.q_entry(shape, arrays.q_table, b, i, "count")

    @pl.when(step == 0)
    def _() -> None:
        acc[...] = jnp.zeros(acc.shape, jnp.float32)

    def tile(masked: bool) -> None:
        found = pair_gradients(shape, arrays, at, masked)
        if dbias is not None:
            dbias[0, 0] = found.dlogits
        part = product(found.ds, arrays.k[0, 0], over_rows=False)
        if not masked:
            acc[...] += part
            return
        mixed = has_nan(part)
        acc[...] += jnp.where(mixed, 0.0, part)

        @pl.when(mixed)
        def _() -> None:
            again = pair_gradients(shape, arrays, at, masked)
            assert again.seen is not None
            acc[...] += seen_product(again.ds, again.seen, arrays.k[0, 0], over_rows=False)

    by_class(live, whole, tile)

    @pl.when(jnp.logical_not(live) & with_bias)
    def _() -> None:
        if dbias is not None:
            dbias[0, 0] = jnp.zeros(dbias.shape[2:], jnp.float32)

    @pl.when(step == pl.num_programs(3) - 1)
    def _() -> None:
        dq[0, 0] = (acc[...] * shape.scale).astype(dq.dtype)
