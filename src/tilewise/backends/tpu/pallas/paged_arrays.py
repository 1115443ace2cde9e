"""The operands and the scratch memory of the paged kernel, by name."""

from __future__ import annotations

from typing import Any, NamedTuple


class PagedArrays(NamedTuple):
    """Operands of the kernel; None where the shape has none.

    q: [Hkv, query_blocks * block_rows, D]. sinks: float32 [Hkv, block_rows, 128].
    drafts: [query_blocks * block_rows, max_new padded to registers], 1 where a row sees a new token, else 0.
    k_pages, v_pages: [N, P, rows, packing, 128] (paged_shape.Stack). Scales: float32 [Hkv], or [N, P, Hkv].
    page_indices: int32 [max_seqs * pages_per_seq].
    """

    kv_lens: Any
    page_indices: Any
    cu_q_lens: Any
    num_seqs: Any
    head_k_scale: Any
    head_v_scale: Any
    q: Any
    sinks: Any
    drafts: Any
    k_pages: Any
    v_pages: Any
    slot_k_scale: Any
    slot_v_scale: Any


class Scratch(NamedTuple):
    """Memory of the kernel; None where the shape has none."""

    semaphores: Any
    state: Any  # SMEM: the next item (3) and the slot that its first block goes to
    m: Any
    l: Any
    acc: Any
    k_buffers: Any
    v_buffers: Any
    k_scale_buffers: Any
    v_scale_buffers: Any
    k_scales: Any  # of the block at hand, along lanes [Hkv, keys]
    v_scales: Any
    s: Any  # scores [2, rows, keys]; of all heads where a step is all heads of a token
    k: Any  # the block at hand, unpacked [heads, keys, D], where it is used more than once
    v: Any
