"""A call described by shapes alone: what is lowered, emitted and compiled with no arrays at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp

from tilewise.backends.tpu import dense_call, dense_tiles, paged_call
from tilewise.backends.tpu.dense_tiles import DenseTiles
from tilewise.backends.tpu.tiles import PagedTiles, vmem_bytes
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import ArrayInfo, Gradients, Operands, PagedOperands, PagedProblem, Problem

MIB = 2**20


def paged_function(spec: AttentionSpec, problem: PagedProblem, tiles: PagedTiles) -> Callable[[PagedOperands], Any]:
    """The call as a function of its operands."""

    def call(operands: PagedOperands) -> Any:
        return paged_call.paged(spec, problem, tiles, operands, vmem_limit_bytes=vmem_limit(spec, problem, tiles))

    return call


def vmem_limit(spec: AttentionSpec, problem: PagedProblem, tiles: PagedTiles) -> int:
    """What the compiler may use: the estimate and room for what it keeps for itself."""
    return min(max(16 * MIB, 3 * vmem_bytes(spec, problem, tiles) // 2), 60 * MIB)


def paged_operands(spec: AttentionSpec, problem: PagedProblem, sharding: Any = None) -> PagedOperands:
    """The operands as jax.ShapeDtypeStruct."""

    def array(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)

    def scale(form: str) -> jax.ShapeDtypeStruct | None:
        if form == "none":
            return None
        shapes = {"head": (problem.kv_heads,), "slot": (problem.num_pages, problem.page_size, problem.kv_heads)}
        return array(shapes.get(form, ()), "float32")

    pages, heads = (problem.num_pages, problem.page_size), problem.kv_heads
    k_heads = 2 * heads if problem.combined else heads
    return PagedOperands(
        q=array((problem.max_tokens, problem.q_heads, problem.qk_dim), problem.dtype),
        k_pages=array((*pages, k_heads, problem.qk_dim), problem.page_dtype),
        v_pages=None if problem.combined else array((*pages, heads, problem.v_dim), problem.page_dtype),
        kv_lens=array((problem.max_seqs,), "int32"),
        page_indices=array((problem.max_seqs, problem.pages_per_seq), "int32"),
        cu_q_lens=array((problem.max_seqs + 1,), "int32"),
        num_seqs=array((1,), "int32"),
        sinks=array((problem.q_heads,), "float32") if spec.sinks else None,
        k_scale=scale(spec.k_scale),
        v_scale=scale(spec.v_scale),
        draft_mask=array((problem.max_tokens, problem.max_new), "bool") if spec.draft_mask else None,
    )


def dense_function(spec: AttentionSpec, problem: Problem, tiles: DenseTiles) -> Callable[..., Any]:
    """The call as a function of dense_arguments(): forward, or with problem.needs_grad backward."""
    limit = dense_tiles.vmem_limit(spec, problem, tiles)
    wanted = Gradients(True, True, True, spec.bias, spec.sinks)

    def forward(operands: Operands) -> Any:
        return dense_call.forward(spec, problem, tiles, operands, vmem_limit_bytes=limit)

    def backward(operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any) -> Any:
        return dense_call.backward(
            spec, problem, tiles, operands, out, lse, dout, dlse, wanted, vmem_limit_bytes=limit
        )

    return backward if problem.needs_grad else forward


def dense_arguments(spec: AttentionSpec, problem: Problem, sharding: Any = None) -> tuple[Any, ...]:
    """(operands,), or with problem.needs_grad (operands, out, lse, dout, dlse), as jax.ShapeDtypeStruct."""

    def array(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)

    def rows(size: int, heads: int, width: int) -> jax.ShapeDtypeStruct:
        if problem.form == "packed":
            return array((size, heads, width), problem.dtype)
        inner = (size, heads) if problem.layout == "bthd" else (heads, size)
        return array((problem.batch, *inner, width), problem.dtype)

    def pairs(info: ArrayInfo | None) -> jax.ShapeDtypeStruct | None:
        return None if info is None else array(info.shape, info.dtype)

    def ints(given: bool, *shape: int) -> jax.ShapeDtypeStruct | None:
        return array(shape, "int32") if given else None

    batch, packed = problem.batch, problem.form == "packed"
    operands = Operands(
        q=rows(problem.q_len, problem.q_heads, problem.qk_dim),
        k=rows(problem.kv_len, problem.kv_heads, problem.qk_dim),
        v=rows(problem.kv_len, problem.kv_heads, problem.v_dim),
        bias=pairs(problem.bias), mask=pairs(problem.mask),
        sinks=array((problem.q_heads,), "float32") if spec.sinks else None,
        q_segment_ids=ints(spec.segments, batch, problem.q_len),
        kv_segment_ids=ints(spec.segments, batch, problem.kv_len),
        q_lens=ints(spec.q_lens, batch), kv_lens=ints(spec.kv_lens, batch),
        q_starts=ints(packed, batch + 1), kv_starts=ints(packed, batch + 1),
    )  # fmt: skip
    if not problem.needs_grad:
        return (operands,)
    out, lse = array(problem.out_shape, problem.dtype), array(problem.lse_shape, "float32")
    return operands, out, lse, out, lse
