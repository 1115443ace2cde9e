"""Sizes and strides of a native call as flat lists of integers, in the order that native/calls.hpp reads them."""

from __future__ import annotations

from typing import Any, Protocol

from tilewise.spec.problem import Operands, PagedOperands, PagedProblem, Problem

Array = Any


class Layout(Protocol):
    """How the strides of a framework's arrays are found."""

    def strides(self, x: Array) -> tuple[int, ...]: ...  # in elements


def dense_sizes(p: Problem) -> list[int]:
    return [p.batch, p.q_len, p.kv_len, p.q_heads, p.kv_heads, p.qk_dim, p.v_dim]


def paged_sizes(p: PagedProblem) -> list[int]:
    return [p.max_tokens, p.q_heads, p.kv_heads, p.qk_dim, p.v_dim, p.max_seqs, p.pages_per_seq, p.max_new,
            p.num_pages, p.page_size]  # fmt: skip


def append_sizes(p: PagedProblem) -> list[int]:
    return [p.max_tokens, p.kv_heads, p.qk_dim, p.v_dim, p.max_seqs, p.pages_per_seq, p.num_pages, p.page_size]


def dense(layout: Layout, p: Problem, o: Operands, out: Array, lse: Array) -> list[int]:
    flat = [s for x in (o.q, o.k, o.v, out) for s in _token(layout, p, x)]
    flat += [*state(layout, lse), *_pair(layout, o.bias), *_pair(layout, o.mask)]
    return flat + ([0, 1, 0, 1] if o.q_segment_ids is None else [p.q_len, 1, p.kv_len, 1])


def plain(p: Problem, *strides: tuple[int, ...]) -> list[int]:
    """Of a dense call with q, k and v alone (their strides given); out and lse are contiguous."""
    sizes = p.out_shape
    out = (sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1)
    flat = [s for each in (*strides, out) for s in _bht(p, each)]
    return [*flat, p.q_heads * p.q_len, p.q_len, 1, *[0] * 8, 0, 1, 0, 1]


def gradients(layout: Layout, p: Problem, dout: Array, dlse: Any, grads: Any, dbias: Array | None) -> list[int]:
    flat = [*_token(layout, p, dout), *state(layout, dlse)]
    for grad in grads:
        flat += _token(layout, p, grad)
    return flat + _pair(layout, dbias) + ([1, 1, 1, 1] if dbias is None else list(dbias.shape))


def paged(layout: Layout, p: PagedProblem, o: PagedOperands, out: Array, lse: Array) -> list[int]:
    draft = 0 if o.draft_mask is None else layout.strides(o.draft_mask)[0]
    return [*tokens(layout, o.q), *tokens(layout, out), *state(layout, lse), draft, *_pages(layout, p, o)]


def append(layout: Layout, p: PagedProblem, o: PagedOperands, k: Array, v: Array) -> list[int]:
    return [*tokens(layout, k), *tokens(layout, v), *_pages(layout, p, o)]


def v_offset(layout: Layout, p: PagedProblem, k_pages: Array) -> int:
    """Bytes from K to V in combined pages: one head on."""
    item = 8 if p.page_dtype == "float64" else {"float32": 4, "bfloat16": 2, "float16": 2}.get(p.page_dtype, 1)
    return layout.strides(k_pages)[2] * item


def tokens(layout: Layout, x: Array) -> list[int]:
    """(b, h, t) of [.., t, h, width]."""
    *batch, t, h, _ = layout.strides(x)
    return [batch[0] if batch else 0, h, t]


def state(layout: Layout, x: Array | None) -> list[int]:
    """(b, h, t) of an lse."""
    if x is None:
        return [0, 0, 0]
    *batch, h, t = layout.strides(x)
    return [batch[0] if batch else 0, h, t]


def sides(window: tuple[int | None, int | None]) -> tuple[int, int]:
    """The window with -1 for open."""
    left, right = window
    return -1 if left is None else left, -1 if right is None else right


def _pages(layout: Layout, p: PagedProblem, o: PagedOperands) -> list[int]:
    """(page, slot, head) each of k_pages, v_pages, k_scale, v_scale."""
    page, slot, head, _ = layout.strides(o.k_pages)
    flat = [page, slot, 2 * head] * 2  # K at even heads, V at odd ones
    if o.v_pages is not None:
        flat = [page, slot, head, *layout.strides(o.v_pages)[:3]]
    for scale in (o.k_scale, o.v_scale):  # contiguous
        shape: tuple[int, ...] = () if scale is None else tuple(scale.shape)
        rank = 0 if shape == (1,) else len(shape)
        flat += [p.page_size * p.kv_heads, p.kv_heads, 1] if rank == 3 else [0, 0, min(rank, 1)]
    return flat


def _token(layout: Layout, p: Problem, x: Array | None) -> list[int]:
    """(b, h, t) of an array in the layout of q."""
    if x is None:
        return [0, 0, 0]
    return tokens(layout, x) if p.form == "packed" else _bht(p, layout.strides(x))


def _bht(p: Problem, strides: tuple[int, ...]) -> list[int]:
    b, first, second, _ = strides
    return [b, second, first] if p.layout == "bthd" else [b, first, second]


def _pair(layout: Layout, x: Array | None) -> list[int]:
    """(b, h, t, s); 0 along axes of size 1."""
    if x is None:
        return [0, 0, 0, 0]
    return [0 if size == 1 else stride for size, stride in zip(x.shape, layout.strides(x))]
