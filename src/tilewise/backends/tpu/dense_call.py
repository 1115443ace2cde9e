"""From a plan and the caller's arrays to the operands of the dense kernels, and back. Plain JAX, traceable."""

from __future__ import annotations

from typing import Any

import jax
from jax import numpy as jnp

from tilewise.backends.tpu.dense_tiles import DenseTiles
from tilewise.backends.tpu.pallas import delta as row_delta
from tilewise.backends.tpu.pallas import row_ranges
from tilewise.backends.tpu.pallas.backward_dkv import backward_dkv
from tilewise.backends.tpu.pallas.backward_dq import backward_dq
from tilewise.backends.tpu.pallas.dense_arrays import DenseArrays
from tilewise.backends.tpu.pallas.dense_shape import Axes, DenseShape
from tilewise.backends.tpu.pallas.forward import forward as forward_kernel
from tilewise.backends.tpu.pallas.paged_shape import lanes
from tilewise.backends.tpu.pallas.row_ranges import RowRanges
from tilewise.backends.tpu.pallas.visibility import FAR
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import ArrayInfo, Gradients, Operands, Problem


def shape_of(spec: AttentionSpec, problem: Problem, tiles: DenseTiles) -> DenseShape:
    """The kernels' own description of a call."""
    left, right = spec.window
    band = None if left is None or right is None or problem.form == "packed" else min(left, FAR) + min(right, FAR)
    low = "bfloat16" if problem.dtype == "bfloat16" else "float32"
    return DenseShape(
        batch=1 if problem.form == "packed" else problem.batch, q_heads=problem.q_heads, kv_heads=problem.kv_heads,
        q_len=_up(problem.q_len, tiles.block_q), kv_len=_up(problem.kv_len, tiles.block_k),
        qk_dim=lanes(problem.qk_dim), v_dim=lanes(problem.v_dim), computed=low, out=low, block_q=tiles.block_q,
        block_k=tiles.block_k, scale=spec.scale, softcap=spec.softcap, segments=spec.segments, sinks=spec.sinks,
        mask=_axes(problem.mask) if spec.mask else None, bias=_axes(problem.bias) if spec.bias else None,
        span=None if band is None else tiles.block_q + band, reach=None if band is None else tiles.block_k + band,
    )  # fmt: skip


def forward(spec: AttentionSpec, problem: Problem, tiles: DenseTiles | None, operands: Operands, *,
            vmem_limit_bytes: int | None = None, interpret: Any = False) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """(out in q's layout and dtype, lse float32 [B, H, T] or [H, tokens]); the contract of attention()."""
    if tiles is None:
        return _nothing(spec, problem, operands)
    shape = shape_of(spec, problem, tiles)
    arrays = arrays_of(spec, problem, shape, operands, rows_of(spec, problem, operands))
    out, lse = forward_kernel(shape, arrays, vmem_limit_bytes=vmem_limit_bytes, interpret=interpret)
    return from_heads(problem, out[:, :, : problem.q_len, : problem.v_dim], problem.dtype), (
        lse[:, :, 0, : problem.q_len].reshape(problem.lse_shape)
    )


def backward(spec: AttentionSpec, problem: Problem, tiles: DenseTiles | None, operands: Operands, out: jax.Array,
             lse: jax.Array, dout: jax.Array, dlse: jax.Array | None, wanted: Gradients, *,
             vmem_limit_bytes: int | None = None, interpret: Any = False) -> Gradients:  # fmt: skip
    """The wanted gradients of sum(out * dout) + sum(lse * dlse), each in its input's dtype and layout."""
    if tiles is None:
        return _no_gradients(problem, operands, lse, dlse)
    shape = shape_of(spec, problem, tiles)
    arrays = arrays_of(spec, problem, shape, operands, rows_of(spec, problem, operands))
    out, dout = (by_heads(problem, x, shape.q_len, shape.v_dim, shape.computed) for x in (out, dout))
    lse = lse.reshape(shape.batch, shape.q_heads, problem.q_len)
    dlse = None if dlse is None else dlse.reshape(lse.shape)
    delta = row_delta.delta(out[:, :, : problem.q_len], dout[:, :, : problem.q_len], lse, dlse)
    arrays = arrays._replace(
        sinks=None, complete=row_delta.complete(lse, shape.q_len, shape.block_q), dout=dout,
        stats=row_delta.stats(lse, delta, shape.q_len),
    )  # fmt: skip
    dq = dk = dv = dbias = dsinks = None
    if wanted.q or wanted.bias:
        dq, ds = backward_dq(
            shape, arrays, bool(wanted.bias), vmem_limit_bytes=vmem_limit_bytes, interpret=interpret
        )
        dq = from_heads(problem, dq[:, :, : problem.q_len, : problem.qk_dim], problem.dtype)
        dbias = None if ds is None else _bias_gradient(problem, operands.bias, ds)
    if wanted.k or wanted.v:
        dk, dv = backward_dkv(shape, arrays, vmem_limit_bytes=vmem_limit_bytes, interpret=interpret)
        dk = from_heads(problem, dk[:, :, : problem.kv_len, : problem.qk_dim], problem.dtype)
        dv = from_heads(problem, dv[:, :, : problem.kv_len, : problem.v_dim], problem.dtype)
    if wanted.sinks:
        dsinks = row_delta.sink_gradient(operands.sinks, lse, delta).astype(operands.sinks.dtype)
    return Gradients(dq, dk, dv, dbias, dsinks)


def rows_of(spec: AttentionSpec, problem: Problem, operands: Operands) -> RowRanges:
    """Which keys each row sees."""
    if problem.form == "packed":
        return row_ranges.packed(
            problem.q_len, problem.kv_len, spec.window, operands.q_starts, operands.kv_starts
        )
    return row_ranges.dense(
        problem.batch, problem.q_len, problem.kv_len, spec.window, operands.q_lens, operands.kv_lens,
        operands.q_segment_ids, operands.kv_segment_ids,
    )  # fmt: skip


def arrays_of(spec: AttentionSpec, problem: Problem, shape: DenseShape, operands: Operands,
              rows: RowRanges) -> DenseArrays:  # fmt: skip
    """What every kernel is given."""
    q_table, k_table = row_ranges.tables(shape, rows)
    return DenseArrays(
        q_table=q_table,
        k_table=k_table,
        complete=None,
        sinks=jnp.asarray(operands.sinks, jnp.float32) if spec.sinks else None,
        q=by_heads(problem, operands.q, shape.q_len, shape.qk_dim, shape.computed),
        k=by_heads(problem, operands.k, shape.kv_len, shape.qk_dim, shape.computed),
        v=by_heads(problem, operands.v, shape.kv_len, shape.v_dim, shape.computed),
        facts=row_ranges.facts(shape, rows),
        k_ids=row_ranges.key_ids(shape, rows),
        mask=_pairs(shape, operands.mask.astype(jnp.int8)) if spec.mask else None,
        bias=_pairs(shape, operands.bias) if spec.bias else None,
    )


def by_heads(problem: Problem, x: jax.Array, rows: int, width: int, dtype: str) -> jax.Array:
    """The caller's layout -> [B, H, rows, width], padded with zeros."""
    if problem.form == "packed":
        x = x[None]
    if problem.layout == "bthd":
        x = x.transpose(0, 2, 1, 3)
    padding = ((0, 0), (0, 0), (0, rows - x.shape[2]), (0, width - x.shape[3]))
    return jnp.pad(x.astype(dtype), padding)


def from_heads(problem: Problem, x: jax.Array, dtype: str) -> jax.Array:
    """[B, H, T, E] -> the caller's layout."""
    if problem.layout == "bthd":
        x = x.transpose(0, 2, 1, 3)
    return (x[0] if problem.form == "packed" else x).astype(dtype)


def _pairs(shape: DenseShape, x: jax.Array) -> jax.Array:
    """[B|1, H|1, T|1, S|1], padded along T and S; narrow numbers only where blocks of them are whole."""
    spread = x.shape[2] > 1 and x.shape[3] > 1
    if x.dtype == jnp.int8:
        x = x if spread else x.astype(jnp.int32)
    elif x.dtype != jnp.bfloat16 or not spread:
        x = x.astype(jnp.float32)
    sizes = (shape.q_len, shape.kv_len)
    padding = [(0, 0 if size == 1 else full - size) for size, full in zip(x.shape[2:], sizes)]
    return jnp.pad(x, ((0, 0), (0, 0), *padding))


def _axes(info: ArrayInfo | None) -> Axes:
    assert info is not None
    b, h, t, s = (size > 1 for size in info.shape)
    return b, h, t, s


def _up(size: int, block: int) -> int:
    return -(-size // block) * block


def _bias_gradient(problem: Problem, bias: jax.Array, ds: jax.Array) -> jax.Array:
    """The gradients of all logits, float32 [B, H, q_len, kv_len], summed along the axes that the bias broadcasts."""
    ds = ds[:, :, : problem.q_len, : problem.kv_len]
    axes = tuple(axis for axis in range(4) if bias.shape[axis] == 1)
    return jnp.sum(ds, axes, keepdims=True).astype(bias.dtype)


def _no_gradients(problem: Problem, operands: Operands, lse: jax.Array, dlse: jax.Array | None) -> Gradients:
    """No row or no key: 0, but for sinks: lse is the sink of every row that has one."""
    dbias = None if operands.bias is None else jnp.zeros_like(operands.bias)
    dsinks = None
    if operands.sinks is not None:
        dsinks = jnp.zeros_like(operands.sinks)
        if dlse is not None and lse.size:
            given = jnp.where(lse == -jnp.inf, 0.0, dlse).reshape(-1, problem.q_heads, problem.q_len)
            dsinks = jnp.sum(given, (0, 2)).astype(operands.sinks.dtype)
    dq, dk, dv = (jnp.zeros_like(x) for x in operands[:3])
    return Gradients(dq, dk, dv, dbias, dsinks)


def _nothing(spec: AttentionSpec, problem: Problem, operands: Operands) -> tuple[jax.Array, jax.Array]:
    """No row or no key: out 0; lse is the sink of a row that a sequence owns."""
    lse = jnp.full(problem.lse_shape, -jnp.inf, jnp.float32)
    if spec.sinks and lse.size:
        owned = rows_of(spec, problem, operands).owned[:, None, :] != 0
        lse = jnp.where(owned, jnp.asarray(operands.sinks, jnp.float32)[None, :, None], -jnp.inf)
        lse = lse.reshape(problem.lse_shape)
    return jnp.zeros(problem.out_shape, operands.q.dtype), lse
