"""dK and dV of dense and packed attention.

Method: FlashAttention-2 (Dao 2023), algorithm 2, a block of keys at a time: all query heads of its group, and of each
the blocks of queries that see it, are summed in float32 in one order, so that the same inputs give the same bits.
Grid: batch x kv heads x blocks of keys x (query heads of the group x blocks of queries).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewise.backends.tpu.pallas import dense_visibility
from tilewise.backends.tpu.pallas.dense_arrays import DenseArrays, block_spec, named
from tilewise.backends.tpu.pallas.dense_kernel import by_class, call
from tilewise.backends.tpu.pallas.dense_shape import DenseShape
from tilewise.backends.tpu.pallas.pair_gradients import pair_gradients
from tilewise.backends.tpu.pallas.seen_product import has_nan, product, seen_product

Ref = Any


def backward_dkv(shape: DenseShape, arrays: DenseArrays, *, vmem_limit_bytes: int | None = None,
                 interpret: Any = False) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Run the kernel.

    Returns:
        dk [B, Hkv, kv_len, qk_dim] and dv [B, Hkv, kv_len, v_dim] in shape.out.
    """
    locate = functools.partial(dense_visibility.by_keys, shape)
    widths = (shape.qk_dim, shape.v_dim)
    return call(
        "backward_dkv", _kernel, shape, arrays, locate,
        grid=(shape.batch, shape.kv_heads, shape.k_blocks, shape.group * shape.query_steps),
        out_specs=[
            block_spec((1, 1, shape.block_k, width), locate, lambda at: (at.b, at.h // shape.group, at.j, 0))
            for width in widths
        ],
        out_shape=[
            jax.ShapeDtypeStruct((shape.batch, shape.kv_heads, shape.kv_len, width), jnp.dtype(shape.out))
            for width in widths
        ],
        scratch=[pltpu.VMEM((shape.block_k, width), jnp.float32) for width in widths],
        vmem_limit_bytes=vmem_limit_bytes, interpret=interpret,
    )  # fmt: skip


def _kernel(shape: DenseShape, present: DenseArrays, *refs: Ref) -> None:
    left = list(refs)
    arrays = named(present, left)
    dk, dv, dk_acc, dv_acc = left
    b, kv_head, j, step = (pl.program_id(axis) for axis in range(4))
    at = dense_visibility.by_keys(shape, b, kv_head, j, step, arrays.q_table, arrays.k_table)
    live, whole = dense_visibility.classes(shape, arrays, at)
    count = dense_visibility.k_entry(shape, arrays.k_table, b, j, "count")
    live &= lax.rem(step, jnp.int32(shape.query_steps)) < count

    @pl.when(step == 0)
    def _() -> None:
        dk_acc[...] = jnp.zeros(dk_acc.shape, jnp.float32)
        dv_acc[...] = jnp.zeros(dv_acc.shape, jnp.float32)

    def tile(masked: bool) -> None:
        found = pair_gradients(shape, arrays, at, masked)
        parts = [(dv_acc, product(found.p, arrays.dout[0, 0], over_rows=True)),
                 (dk_acc, product(found.ds, arrays.q[0, 0], over_rows=True))]  # fmt: skip
        mixed = (has_nan(parts[0][1]) | has_nan(parts[1][1])) if masked else None
        for acc, part in parts:
            acc[...] += part if mixed is None else jnp.where(mixed, 0.0, part)
        if mixed is None:
            return

        @pl.when(mixed)
        def _() -> None:
            again = pair_gradients(shape, arrays, at, masked)
            assert again.seen is not None
            dv_acc[...] += seen_product(again.p, again.seen, arrays.dout[0, 0], over_rows=True)
            dk_acc[...] += seen_product(again.ds, again.seen, arrays.q[0, 0], over_rows=True)

    by_class(live, whole, tile)

    @pl.when(step == pl.num_programs(3) - 1)
    def _() -> None:
        dk[0, 0] = (dk_acc[...] * shape.scale).astype(dk.dtype)
        dv[0, 0] = dv_acc[...].astype(dv.dtype)
