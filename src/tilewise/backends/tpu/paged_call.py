"""From a plan and the caller's arrays to the operands of the paged kernel, and back. Plain JAX, traceable."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from tilewise.backends.tpu.pallas.paged import paged_attention
from tilewise.backends.tpu.pallas.paged_arrays import PagedArrays
from tilewise.backends.tpu.pallas.paged_shape import LANES, PagedShape, lanes, tile_words
from tilewise.backends.tpu.tiles import PagedTiles
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedOperands, PagedProblem


def shape_of(spec: AttentionSpec, problem: PagedProblem, tiles: PagedTiles) -> PagedShape:
    """The kernel's own description of a call."""
    low = problem.dtype == "bfloat16" and problem.page_dtype in ("bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")
    return PagedShape(
        tokens=problem.max_tokens, seqs=problem.max_seqs, pages=problem.num_pages, page_size=problem.page_size,
        pages_per_seq=problem.pages_per_seq, q_heads=problem.q_heads, kv_heads=problem.kv_heads,
        qk_dim=lanes(problem.qk_dim), v_dim=lanes(problem.v_dim), stored=problem.page_dtype,
        computed="bfloat16" if low else "float32", out="bfloat16" if problem.dtype == "bfloat16" else "float32",
        combined=problem.combined, max_new=lanes(max(problem.max_new, 1)) if spec.draft_mask else 0,
        scale=spec.scale, window=spec.window, softcap=spec.softcap, sinks=spec.sinks,
        k_scale=_form(spec.k_scale), v_scale=_form(spec.v_scale), block_tokens=tiles.block_tokens,
        step_tokens=tiles.step_tokens, block_pieces=tiles.block_pieces, piece=tiles.piece,
        head_blocks=tiles.head_blocks, aligned=spec.batch_invariant,
    )  # fmt: skip


def paged(spec: AttentionSpec, problem: PagedProblem, tiles: PagedTiles | None, operands: PagedOperands, *,
          vmem_limit_bytes: int | None = None, interpret: Any = False,
          clip_ids: bool = True) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """(out [max_tokens, H, E] in q's dtype, lse float32 [H, max_tokens]); the contract of ragged_paged_attention().

    clip_ids: an id that names no page reads another page, never out of bounds. Off, a test sees that it was read.
    """
    if tiles is None or problem.num_pages == 0:
        return _nothing(spec, problem, operands)
    shape = shape_of(spec, problem, tiles)
    k_head, k_slot = _scales(shape, spec.k_scale, operands.k_scale)
    v_head, v_slot = _scales(shape, spec.v_scale, operands.v_scale)
    indices = _ints(operands.page_indices)
    arrays = PagedArrays(
        kv_lens=_ints(operands.kv_lens),
        page_indices=(jnp.clip(indices, 0, problem.num_pages - 1) if clip_ids else indices).reshape(-1),
        cu_q_lens=_ints(operands.cu_q_lens),
        num_seqs=num_seqs_of(problem, operands),
        head_k_scale=k_head,
        head_v_scale=v_head,
        q=fold_queries(shape, operands.q),
        sinks=_sink_rows(shape, operands.sinks) if spec.sinks else None,
        drafts=_draft_rows(shape, operands.draft_mask) if spec.draft_mask else None,
        k_pages=page_rows(shape, operands.k_pages),
        v_pages=None if operands.v_pages is None else page_rows(shape, operands.v_pages),
        slot_k_scale=k_slot,
        slot_v_scale=v_slot,
    )
    out, lse = paged_attention(shape, arrays, vmem_limit_bytes=vmem_limit_bytes, interpret=interpret)
    out = unfold_rows(shape, out)[..., : problem.v_dim]
    return out.astype(operands.q.dtype), unfold_lse(shape, lse)


def num_seqs_of(problem: PagedProblem, operands: PagedOperands) -> jax.Array:
    """int32 [1]."""
    if operands.num_seqs is None:
        return jnp.full((1,), problem.max_seqs, jnp.int32)
    return _ints(operands.num_seqs).reshape(1)


def fold_queries(shape: PagedShape, q: jax.Array) -> jax.Array:
    """[T, H, D] -> [Hkv, query_blocks * block_rows, D]: the rows of a head lie together, groups and tokens padded."""
    tokens = shape.query_blocks * shape.block_tokens
    width = q.shape[-1]
    q = q.astype(shape.query_dtype).reshape(shape.tokens, shape.kv_heads, shape.group, width)
    padding = (tokens - shape.tokens, 0, shape.token_rows - shape.group, shape.qk_dim - width)
    q = jnp.pad(q, [(0, n) for n in padding])
    return q.transpose(1, 0, 2, 3).reshape(shape.kv_heads, tokens * shape.token_rows, shape.qk_dim)


def unfold_rows(shape: PagedShape, out: jax.Array) -> jax.Array:
    """[Hkv, query_blocks * block_rows, E] -> [T, H, E]."""
    out = out.reshape(shape.kv_heads, -1, shape.token_rows, shape.v_dim)[:, : shape.tokens, : shape.group]
    return out.transpose(1, 0, 2, 3).reshape(shape.tokens, shape.q_heads, shape.v_dim)


def unfold_lse(shape: PagedShape, lse: jax.Array) -> jax.Array:
    """[Hkv, query_blocks * block_rows] -> [H, T]."""
    lse = lse.reshape(shape.kv_heads, -1, shape.token_rows)[:, : shape.tokens, : shape.group]
    return lse.transpose(0, 2, 1).reshape(shape.q_heads, shape.tokens)


def page_rows(shape: PagedShape, pages: jax.Array) -> jax.Array:
    """[N, P, heads, D] -> [N, P, rows, packing, 128], the order in which the chips hold the bytes (paged_shape.Stack).

    A change of name where heads fill 2, 4 or a multiple of 8 and D whole registers; else XLA copies the cache.
    """
    if pages.dtype.name != shape.carried:
        pages = lax.bitcast_convert_type(pages, jnp.dtype(shape.carried))
    n, p, heads, width = pages.shape
    pages = jnp.pad(pages, ((0, 0), (0, 0), (0, shape.page_heads - heads), (0, lanes(width) - width)))
    words, columns = tile_words(shape.page_heads, shape.packing), lanes(width) // LANES
    pages = pages.reshape(n, p, -1, words, shape.packing, columns, LANES).transpose(0, 1, 2, 5, 3, 4, 6)
    return pages.reshape(n, p, -1, shape.packing, LANES)


def _sink_rows(shape: PagedShape, sinks: jax.Array) -> jax.Array:
    """[H] -> [Hkv, block_rows, 128]."""
    rows = sinks.astype(jnp.float32).reshape(shape.kv_heads, 1, shape.group)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, shape.token_rows - shape.group)))
    rows = jnp.broadcast_to(rows, (shape.kv_heads, shape.block_tokens, shape.token_rows))
    return jnp.broadcast_to(rows.reshape(shape.kv_heads, -1, 1), (shape.kv_heads, shape.block_rows, LANES))


def _draft_rows(shape: PagedShape, mask: jax.Array) -> jax.Array:
    """bool [T, max_new] -> [query_blocks * block_rows, shape.max_new], 1 where seen."""
    tokens = shape.query_blocks * shape.block_tokens
    rows = jnp.pad(mask, ((0, tokens - shape.tokens), (0, shape.max_new - mask.shape[1])))
    return jnp.repeat(rows.astype(shape.query_dtype), shape.token_rows, axis=0)


def _scales(shape: PagedShape, form: str, scale: Any) -> tuple[jax.Array | None, jax.Array | None]:
    """(a number each head, a number each slot): at most one of them."""
    if form == "none":
        return None, None
    scale = jnp.asarray(scale, jnp.float32)
    if form == "slot":
        return None, scale
    return jnp.broadcast_to(scale.reshape(-1), (shape.kv_heads,)), None


def _form(form: str) -> str:
    return "head" if form == "scalar" else form


def _ints(x: Any) -> jax.Array:
    return jnp.asarray(x).astype(jnp.int32)


def _nothing(spec: AttentionSpec, problem: PagedProblem, operands: PagedOperands) -> tuple[jax.Array, jax.Array]:
    """No key anywhere: out 0; lse is the sink of a row that a sequence owns."""
    lse = jnp.full(problem.lse_shape, -jnp.inf, jnp.float32)
    if spec.sinks and problem.max_seqs and problem.max_tokens:
        starts, token = _ints(operands.cu_q_lens), jnp.arange(problem.max_tokens)
        owned = (token >= starts[0]) & (token < starts[num_seqs_of(problem, operands)[0]])
        lse = jnp.where(owned[None], jnp.asarray(operands.sinks, jnp.float32)[:, None], lse)
    return jnp.zeros(problem.out_shape, operands.q.dtype), lse
