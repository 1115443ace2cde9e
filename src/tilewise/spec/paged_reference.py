"""Paged attention in plain array code: gather a sequence's pages, then spec/reference.py, sequence by sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewise.spec import reference
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import Operands, PagedOperands, PagedProblem, Problem

Array = Any


def paged(
    xp: Any, spec: AttentionSpec, problem: PagedProblem, operands: PagedOperands, rounded: Any = reference.exact
) -> tuple[Array, Array]:
    """(out [max_tokens, H, E] in q's dtype, lse [H, max_tokens])."""
    kv_lens, starts = xp.ints(operands.kv_lens), xp.ints(operands.cu_q_lens)
    count = [problem.max_seqs] if operands.num_seqs is None else xp.ints(operands.num_seqs)
    if kv_lens is None or starts is None or count is None:
        return _all_at_once(xp, spec, problem, operands, rounded)
    real = xp.real(problem.dtype)
    begin, end = (starts[0], starts[count[0]]) if count[0] else (0, 0)

    def nothing(rows: int) -> tuple[Array, Array]:
        shape = (rows, problem.q_heads, problem.v_dim)
        return xp.full(shape, 0.0, problem.dtype), xp.full((problem.q_heads, rows), -xp.inf, real)

    parts = [nothing(begin)]
    for i in range(count[0]):
        first, last = starts[i], starts[i + 1]
        if first != last:
            parts.append(_sequence(xp, spec, problem, operands, i, first, last, kv_lens[i], rounded))
    parts.append(nothing(problem.max_tokens - end))
    return xp.concat([out for out, _ in parts], 0), xp.concat([lse for _, lse in parts], 1)


def append(xp: Any, problem: PagedProblem, operands: PagedOperands, k: Array, v: Array) -> tuple[Array, Array | None]:
    """Write row r of a sequence's k and v at position kv_len - q_len + r of its pages. Returns (k_pages, v_pages)."""
    if problem.max_seqs == 0:
        return operands.k_pages, operands.v_pages
    token = xp.arange(problem.max_tokens)
    sequence, row, q_len, live = _rows(xp, problem, operands, token)
    position = xp.take(xp.cast(operands.kv_lens, "int32"), sequence) - q_len + row
    live = live & (position >= 0) & (position < problem.pages_per_seq * problem.page_size)
    at = xp.clip(position, 0, max(problem.pages_per_seq * problem.page_size - 1, 0))
    flat = xp.reshape(xp.cast(operands.page_indices, "int32"), (-1,))
    page = xp.take(flat, sequence * problem.pages_per_seq + at // problem.page_size)
    live = live & (page >= 0) & (page < problem.num_pages)
    page, slot = xp.clip(page, 0, max(problem.num_pages - 1, 0)), at % problem.page_size
    k = quantise(xp, problem, k, _slot_scale(xp, operands.k_scale, page, slot))
    v = quantise(xp, problem, v, _slot_scale(xp, operands.v_scale, page, slot))
    if operands.v_pages is None:
        both = xp.reshape(xp.stack([k, v], 2), (problem.max_tokens, 2 * problem.kv_heads, problem.qk_dim))
        return xp.put_rows(operands.k_pages, page, slot, both, live), None
    return (
        xp.put_rows(operands.k_pages, page, slot, k, live),
        xp.put_rows(operands.v_pages, page, slot, v, live),
    )


def quantise(xp: Any, problem: PagedProblem, x: Array, scale: Array | None) -> Array:
    """x / scale in the page dtype: to nearest even, past the largest finite value stays there."""
    real = xp.real(problem.dtype)
    x = xp.cast(x, real)
    if scale is not None:
        x = x / xp.cast(scale, real)
    limit = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}.get(problem.page_dtype)
    if limit is not None:
        x = xp.where(x > limit, limit, xp.where(x < -limit, -limit, x))
    if problem.page_dtype == "int8":
        x = xp.round(xp.where(x != x, 0.0, x))
    return xp.cast(x, problem.page_dtype)


def _sequence(xp: Any, spec: AttentionSpec, problem: PagedProblem, operands: PagedOperands, i: int, first: int,
              last: int, kv_len: int, rounded: Any) -> tuple[Array, Array]:  # fmt: skip
    pages = -(-kv_len // problem.page_size)
    ids = _in_pool(xp, problem, operands.page_indices[i, :pages])
    k, v = _gather(xp, problem, operands, ids)
    q_len = last - first
    mask = None
    if spec.draft_mask:
        mask = _draft_pairs(xp, problem, operands, xp.arange(q_len)[None] + first, q_len, kv_len)
    dense = Problem(
        "dense", 1, q_len, kv_len, problem.q_heads, problem.kv_heads, problem.qk_dim, problem.v_dim,
        problem.dtype, problem.device, problem.framework,
    )  # fmt: skip
    inner = Operands(operands.q[first:last][None], k[None, :kv_len], v[None, :kv_len], mask=mask, sinks=operands.sinks)
    out, lse = reference.forward(xp, _dense_spec(spec, mask is not None), dense, inner, rounded)
    return out[0], lse[0]


def _in_pool(xp: Any, problem: PagedProblem, ids: Array) -> Array:
    """Page ids that can be read: those of pages that nobody sees may be anything."""
    return xp.cast(xp.clip(ids, 0, max(problem.num_pages - 1, 0)), "int32")


def _all_at_once(
    xp: Any, spec: AttentionSpec, problem: PagedProblem, operands: PagedOperands, rounded: Any
) -> tuple[Array, Array]:
    """The same while lengths are unknown (tracing): every sequence padded to all tokens and all its pages."""
    n, tokens, context = problem.max_seqs, problem.max_tokens, problem.pages_per_seq * problem.page_size
    starts = xp.cast(operands.cu_q_lens, "int32")
    sequence, row, _, live = _rows(xp, problem, operands, xp.arange(tokens))
    q_lens = starts[1:] - starts[:-1]
    kv_lens = xp.clip(xp.cast(operands.kv_lens, "int32"), 0, context)
    index = xp.clip(starts[:-1][:, None] + xp.arange(tokens)[None], 0, max(tokens - 1, 0))
    ids = _in_pool(xp, problem, xp.reshape(operands.page_indices, (-1,)))
    k, v = _gather(xp, problem, operands, ids)
    k = xp.reshape(k, (n, context, problem.kv_heads, problem.qk_dim))
    v = xp.reshape(v, (n, context, problem.kv_heads, problem.v_dim))
    mask = _draft_pairs(xp, problem, operands, index, q_lens, kv_lens) if spec.draft_mask else None
    dense = Problem(
        "dense", n, tokens, context, problem.q_heads, problem.kv_heads, problem.qk_dim, problem.v_dim, problem.dtype,
        problem.device, problem.framework,
    )  # fmt: skip
    inner = Operands(
        xp.take(operands.q, index), k, v, mask=mask, sinks=operands.sinks, q_lens=q_lens, kv_lens=kv_lens
    )
    lengths = replace(_dense_spec(spec, mask is not None), q_lens=True, kv_lens=True)
    out, lse = reference.forward(xp, lengths, dense, inner, rounded)
    at = sequence * tokens + row
    out = xp.take(xp.reshape(out, (n * tokens, problem.q_heads, problem.v_dim)), at)
    lse = xp.take(xp.reshape(xp.transpose(lse, (0, 2, 1)), (n * tokens, problem.q_heads)), at)
    out = xp.cast(xp.where(live[:, None, None], out, 0.0), problem.dtype)
    return out, xp.transpose(xp.where(live[:, None], lse, -xp.inf), (1, 0))


def _rows(xp: Any, problem: PagedProblem, operands: PagedOperands, token: Array) -> tuple[Array, Array, Array, Array]:
    """(sequence, row within it, its q_len, does the token belong to one?) of each token; all in range."""
    starts = xp.cast(operands.cu_q_lens, "int32")
    count = problem.max_seqs
    if operands.num_seqs is not None:
        count = xp.reshape(xp.cast(operands.num_seqs, "int32"), (1,))
    index = xp.arange(problem.max_seqs + 1)
    begun = (token[:, None] >= starts[None]) & (index[None] < count)
    sequence = xp.sum(xp.cast(begun, "int32"), -1)[:, 0] - 1
    at = xp.clip(sequence, 0, max(problem.max_seqs - 1, 0))
    first, last = xp.take(starts[:-1], at), xp.take(starts[1:], at)
    live = (sequence >= 0) & (token < last)
    return at, xp.clip(token - first, 0, max(problem.max_tokens - 1, 0)), last - first, live


def _gather(xp: Any, problem: PagedProblem, operands: PagedOperands, ids: Array) -> tuple[Array, Array]:
    """Dequantised ([len(ids) * P, Hkv, D], [.., E]) of the pages with these ids, in the dtype computed in."""
    k, v = xp.take(operands.k_pages, ids), None
    if operands.v_pages is None:
        k, v = k[:, :, 0::2], k[:, :, 1::2]
    else:
        v = xp.take(operands.v_pages, ids)
    real = xp.real(problem.dtype)
    result = []
    for x, scale in ((k, operands.k_scale), (v, operands.v_scale)):
        x = xp.cast(x, real)
        if scale is not None:
            scale = xp.cast(scale, real)
            scale = xp.take(scale, ids) if len(scale.shape) == 3 else scale
            x = x * (scale[..., None] if len(scale.shape) else scale)
        result.append(xp.reshape(x, (x.shape[0] * problem.page_size, problem.kv_heads, x.shape[-1])))
    return result[0], result[1]


def _slot_scale(xp: Any, scale: Array | None, page: Array, slot: Array) -> Array | None:
    """The scale of each new row, broadcastable to [tokens, Hkv, D]."""
    if scale is None or len(scale.shape) < 3:
        return None if scale is None else (scale[:, None] if len(scale.shape) == 1 else scale)
    pages, size, heads = scale.shape
    return xp.take(xp.reshape(scale, (pages * size, heads)), page * size + slot)[..., None]


def _draft_pairs(
    xp: Any, problem: PagedProblem, operands: PagedOperands, token: Array, q_len: Any, kv_len: Any
) -> Array:
    """[n, 1, rows, keys] bool: older keys are visible; new key c iff draft_mask[token, c]."""
    tokens = token.shape[-1]
    traced = not isinstance(kv_len, int)
    keys = problem.pages_per_seq * problem.page_size if traced else kv_len
    first_new = (kv_len - q_len)[:, None] if traced else kv_len - q_len
    new = xp.arange(keys)[None] - first_new
    if problem.max_new == 0:
        old = xp.reshape(new < 0, (-1, 1, 1, keys))
        return old & xp.full((token.shape[0], 1, tokens, 1), True)
    column = xp.clip(new, 0, problem.max_new - 1)
    flat = xp.reshape(operands.draft_mask, (-1,))
    rows = xp.clip(token, 0, max(problem.max_tokens - 1, 0))
    seen = xp.take(flat, rows[:, :, None] * problem.max_new + column[:, None, :])
    seen = (seen & (new < problem.max_new)[:, None, :]) | (new < 0)[:, None, :]
    return xp.reshape(seen, (token.shape[0], 1, tokens, keys))


def _dense_spec(spec: AttentionSpec, masked: bool) -> AttentionSpec:
    return AttentionSpec(scale=spec.scale, window=spec.window, softcap=spec.softcap, sinks=spec.sinks, mask=masked)
