"""Ragged paged attention: decode, chunked prefill and prefill rows in one launch.

Method: ragged paged attention (Jiang et al., JAX and vLLM), on FlashAttention's online softmax. Grid: head blocks x
query blocks. A query block walks over the sequences that own its tokens and over the key blocks that they see; while
one block is computed the next one is copied, across sequences, query blocks and head blocks.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tilewise.backends.tpu.pallas import online_softmax
from tilewise.backends.tpu.pallas.block_of_keys import BlockOfKeys
from tilewise.backends.tpu.pallas.page_copies import SLOTS, PageCopies, Pages
from tilewise.backends.tpu.pallas.paged_arrays import PagedArrays, Scratch
from tilewise.backends.tpu.pallas.paged_shape import LANES, PagedShape
from tilewise.backends.tpu.pallas.work_items import Item, Keys, WorkItems

Ref = Any
Scalar = Any


PREFETCHED = PagedArrays._fields.index("q")


def paged_attention(shape: PagedShape, arrays: PagedArrays, *, vmem_limit_bytes: int | None = None,
                    interpret: Any = False) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Run the kernel.

    Returns:
        out [Hkv, query_blocks * block_rows, E] in shape.out and lse float32 [Hkv, query_blocks * block_rows].
    """
    given = [x for x in arrays if x is not None]
    scratch = _scratch(shape)
    kernel = functools.partial(
        _kernel, shape, tuple(x is not None for x in arrays), tuple(x is not None for x in scratch), bool(interpret)
    )
    rows = shape.query_blocks * shape.block_rows
    lse_rows = -(-shape.block_rows // LANES)
    out, lse = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=sum(x is not None for x in arrays[:PREFETCHED]),
            grid=(shape.head_blocks, shape.query_blocks),
            in_specs=_in_specs(shape, arrays),
            out_specs=[
                pl.BlockSpec((shape.heads, shape.block_rows, shape.v_dim), lambda h, i, *_: (h, i, 0)),
                pl.BlockSpec((shape.heads, 1, lse_rows, LANES), lambda h, i, *_: (h, i, 0, 0)),
            ],
            scratch_shapes=[x for x in scratch if x is not None],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((shape.kv_heads, rows, shape.v_dim), jnp.dtype(shape.out)),
            jax.ShapeDtypeStruct((shape.kv_heads, shape.query_blocks, lse_rows, LANES), jnp.float32),
        ],
        # The next item is handed from step to step.
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=vmem_limit_bytes
        ),
        interpret=interpret,
        name="tilewise_ragged_paged_attention",
    )(*given)
    lse = lse.reshape(shape.kv_heads, shape.query_blocks, lse_rows * LANES)[:, :, : shape.block_rows]
    return out, lse.reshape(shape.kv_heads, rows)


def _in_specs(shape: PagedShape, arrays: PagedArrays) -> list[pl.BlockSpec]:
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    specs = {
        "q": pl.BlockSpec((shape.heads, shape.block_rows, shape.qk_dim), lambda h, i, *_: (h, i, 0)),
        "drafts": pl.BlockSpec((shape.block_rows, shape.max_new), lambda h, i, *_: (i, 0)),
        "sinks": pl.BlockSpec((shape.heads, shape.block_rows, LANES), lambda h, i, *_: (h, 0, 0)),
    }
    present = zip(PagedArrays._fields[PREFETCHED:], arrays[PREFETCHED:])
    return [specs.get(name, anywhere) for name, x in present if x is not None]


def _scratch(shape: PagedShape) -> Scratch:
    stored, computed = jnp.dtype(shape.carried), jnp.dtype(shape.computed)
    row_state = pltpu.VMEM((shape.heads, shape.block_rows, LANES), jnp.float32)

    def buffers(dim: int) -> Any:
        return pltpu.VMEM((SLOTS, shape.buffer_keys, shape.stack(dim).buffer_rows, shape.packing, LANES), stored)

    scales = pltpu.VMEM((SLOTS, shape.buffer_keys, shape.kv_heads), jnp.float32)
    several_steps = shape.step_tokens > 1
    keeps_k = several_steps or shape.max_new > 0
    return Scratch(
        semaphores=pltpu.SemaphoreType.DMA((SLOTS,)),
        state=pltpu.SMEM((4,), jnp.int32),
        m=row_state,
        l=row_state,
        acc=pltpu.VMEM((shape.heads, shape.block_rows, shape.v_dim), jnp.float32),
        k_buffers=buffers(shape.qk_dim),
        v_buffers=None if shape.combined else buffers(shape.v_dim),
        k_scale_buffers=scales if shape.k_scale == "slot" else None,
        v_scale_buffers=scales if shape.v_scale == "slot" else None,
        k_scales=pltpu.VMEM((shape.kv_heads, shape.buffer_keys), jnp.float32) if shape.k_scale == "slot" else None,
        v_scales=pltpu.VMEM((shape.kv_heads, shape.buffer_keys), jnp.float32) if shape.v_scale == "slot" else None,
        s=pltpu.VMEM((2 if several_steps else shape.heads, shape.step_rows, shape.buffer_keys), jnp.float32),
        k=pltpu.VMEM((shape.unpacked_heads, shape.buffer_keys, shape.qk_dim), computed) if keeps_k else None,
        v=pltpu.VMEM((shape.unpacked_heads, shape.buffer_keys, shape.v_dim), computed),
    )


def _kernel(shape: PagedShape, given: tuple[bool, ...], has: tuple[bool, ...], interpret: bool, *refs: Ref) -> None:
    left = iter(refs)
    arrays = PagedArrays(*(next(left) if x else None for x in given))
    out, lse = next(left), next(left)
    scratch = Scratch(*(next(left) if x else None for x in has))
    head_block, query_block = pl.program_id(0), pl.program_id(1)
    items = WorkItems(shape, arrays.kv_lens, arrays.cu_q_lens, arrays.num_seqs)
    copies = PageCopies(shape, _pages(shape, arrays, scratch), arrays.page_indices, scratch.semaphores)
    block = BlockOfKeys(shape, arrays, scratch, head_block * shape.heads, interpret)

    def fetch(item: Item, keys: Keys, i: Scalar, slot: Scalar) -> None:
        copies.start(item.head_block, item.seq, keys.first + i * shape.block_keys, keys.end, slot)

    def announce(item: Item, slot: Scalar) -> None:
        """Remember the next item and start to copy its first block."""
        for i, x in enumerate(item):
            scratch.state[i] = x
        scratch.state[3] = slot

        @pl.when(item.head_block < shape.head_blocks)
        def _() -> None:
            fetch(item, items.keys(item), 0, slot)

    @pl.when((head_block == 0) & (query_block == 0))
    def _() -> None:
        announce(items.first(), jnp.int32(0))

    _begin_rows(shape, arrays, scratch, query_block)

    def here(state: tuple[Scalar, ...]) -> Scalar:
        return (state[0] == head_block) & (state[1] == query_block)

    def work(state: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        item, slot = Item(*state[:3]), state[3]
        keys, rows = items.keys(item), items.rows(item)

        def key_block(i: Scalar, slot: Scalar) -> Scalar:
            @pl.when(i + 1 < keys.blocks)
            def _() -> None:
                fetch(item, keys, i + 1, 1 - slot)

            @pl.when(i + 1 == keys.blocks)
            def _() -> None:
                announce(items.after(item), 1 - slot)

            first = keys.first + i * shape.block_keys
            copies.wait(first, keys.end, slot)
            block.attend(rows, query_block * shape.block_tokens, keys, first, slot)
            return 1 - slot

        lax.fori_loop(0, keys.blocks, key_block, slot)
        return tuple(scratch.state[i] for i in range(4))

    lax.while_loop(here, work, tuple(scratch.state[i] for i in range(4)))
    _end_rows(shape, arrays, scratch, head_block, out, lse)


def _pages(shape: PagedShape, arrays: PagedArrays, scratch: Scratch) -> tuple[Pages, ...]:
    pages = [Pages(arrays.k_pages, scratch.k_buffers, shape.stack(shape.qk_dim).rows)]
    if not shape.combined:
        pages.append(Pages(arrays.v_pages, scratch.v_buffers, shape.stack(shape.v_dim).rows))
    if shape.k_scale == "slot":
        pages.append(Pages(arrays.slot_k_scale, scratch.k_scale_buffers, 0))
    if shape.v_scale == "slot":
        pages.append(Pages(arrays.slot_v_scale, scratch.v_scale_buffers, 0))
    return tuple(pages)


def _begin_rows(shape: PagedShape, arrays: PagedArrays, scratch: Scratch, query_block: Scalar) -> None:
    """Rows that have seen nothing; a sink is a key that every owned row has seen, with no value."""
    scratch.acc[...] = jnp.zeros(scratch.acc.shape, jnp.float32)
    if not shape.sinks:
        scratch.m[...] = jnp.full(scratch.m.shape, -jnp.inf, jnp.float32)
        scratch.l[...] = jnp.zeros(scratch.l.shape, jnp.float32)
        return
    num_seqs = jnp.clip(arrays.num_seqs[0], 0, shape.seqs)
    row = lax.broadcasted_iota(jnp.int32, scratch.m.shape[1:], 0)
    token = query_block * shape.block_tokens + lax.div(row, jnp.int32(shape.token_rows))
    owned = (token >= arrays.cu_q_lens[0]) & (token < arrays.cu_q_lens[num_seqs])
    for h in range(shape.heads):
        scratch.m[h] = jnp.where(owned, arrays.sinks[h] * (1.0 / shape.unit), -jnp.inf)
        scratch.l[h] = jnp.where(owned, 1.0, 0.0)


def _end_rows(shape: PagedShape, arrays: PagedArrays, scratch: Scratch, head_block: Scalar, out: Ref,
              lse: Ref) -> None:  # fmt: skip
    for h in range(shape.heads):
        rows, row_lse = online_softmax.finish(scratch.acc[h], scratch.m[h], scratch.l[h], shape.unit)
        if shape.v_scale == "head":
            rows = rows * arrays.head_v_scale[head_block * shape.heads + h]
        out[h] = rows.astype(out.dtype)
        for i in range(lse.shape[2]):
            lse[h, 0, i] = _down_the_diagonal(row_lse[i * LANES : (i + 1) * LANES])


def _down_the_diagonal(x: jax.Array) -> jax.Array:
    """[128] of [rows <= 128, 128] whose lanes are all alike: a column laid along the lanes."""
    row, lane = (lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
    return jnp.sum(jnp.where(row == lane, x, 0.0), axis=0)
