"""The math on whole arrays, for any array namespace: the oracle, the fallback and the documentation.

Arrays are brought to [B, Hkv, G, T, D] (G query heads a kv head), scores are [B, Hkv, G, T, S].
`xp` is a framework adapter's namespace (frameworks/framework_protocol.py). Nothing here is fast; everything is exact:
a pair (query, key) that is not visible contributes nothing, be its values NaN or Inf.
Source of the formulas: FlashAttention (Dao et al. 2022), section 3.1 and appendix B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import Gradients, Operands, Problem

Array = Any
Rounding = Callable[[Array], Array]


def exact(x: Array) -> Array:
    """No rounding: every step stays in float32 (float64 for float64 inputs)."""
    return x


class Rows(NamedTuple):
    """What a forward pass knows of each query row."""

    p: Array  # [B, K, G, T, S] softmax weights; 0 where not visible
    visible: Array  # bool, the same shape: the pair is visible, and its row has weight (a key's or the sink's)
    sees: Array  # [B, K, G, T, 1] does the row see any key?
    owned: Array  # [B, 1, 1, T, 1] does the row belong to a sequence?
    p_sink: Array | None  # [B, K, G, T, 1]
    slope: Array | None  # derivative of the soft cap at each score
    s: Array  # logits, -inf where not visible
    sink: Array | None  # [B, K, G, T, 1] or broadcastable to it

    def from_lse(self, xp: Any, lse: Array) -> Rows:
        """The same with the weights exp(logit - lse), as a kernel has them that kept no weights."""
        lse = xp.where(lse == -xp.inf, xp.inf, lse)
        p = xp.where(self.visible, xp.exp(self.s - lse), 0.0)
        return self._replace(p=p, p_sink=None if self.sink is None else xp.exp(self.sink - lse))


def forward(
    xp: Any, spec: AttentionSpec, problem: Problem, operands: Operands, rounded: Rounding = exact
) -> tuple[Array, Array]:
    """(out in q's layout and dtype, lse [B, H, T] or [H, tokens]).

    rounded: applied to the softmax weights: the plain low-precision computation of testing/oracle.py. Scores stay as
        they are, in every kernel too: q.k may pass the largest float16.
    """
    q, k, v = _heads_apart(xp, problem, operands)
    out, lse, _ = _forward(xp, spec, problem, operands, q, k, v, rounded)
    return _out(xp, problem, out, problem.dtype), _lse(xp, problem, lse)


def backward(
    xp: Any, spec: AttentionSpec, problem: Problem, operands: Operands, dout: Array, dlse: Array | None,
    rounded: Rounding = exact, stored: tuple[Array, Array | None] | None = None,
) -> Gradients:  # fmt: skip
    """Gradients of sum(out * dout) + sum(lse * dlse), each in its input's dtype and layout.

    stored: (out, lse) of the forward call: the weights are then exp(s - lse) and `out` is not computed anew, as in a
        kernel, with what rounding them costs. (out, None): the weights stay exact. None: all from scratch.
    """
    q, k, v = _heads_apart(xp, problem, operands)
    out, lse, rows = _forward(xp, spec, problem, operands, q, k, v, rounded)
    if stored is not None:
        out = xp.cast(_split(xp, problem, stored[0], problem.q_heads), xp.real(problem.dtype))
        rows = rows if stored[1] is None else rows.from_lse(xp, xp.reshape(stored[1], lse.shape))
    g = xp.where(rows.sees, xp.cast(_split(xp, problem, dout, problem.q_heads), xp.real(problem.dtype)), 0.0)
    delta = xp.sum(g * xp.where(rows.sees, out, 0.0), -1)
    if dlse is not None:
        dlse = xp.reshape(xp.cast(dlse, xp.real(problem.dtype)), delta.shape)
        counts = rows.owned if spec.sinks else rows.sees
        delta = delta - xp.where(counts, dlse, 0.0)

    dp = _scores(xp, g, v)
    ds = rounded(xp.where(rows.visible, rows.p * (dp - delta), 0.0))
    dbias = _sum_to(xp, problem, ds) if spec.bias else None
    if rows.slope is not None:
        ds = xp.where(rows.visible, ds * rows.slope, 0.0)
    dq = spec.scale * _seen_product(xp, ds, rows.visible, k)
    dk = spec.scale * _sum_queries(xp, ds, rows.visible, q)
    dv = _sum_queries(xp, rounded(rows.p), rows.visible, g)
    dsinks = None
    if rows.p_sink is not None:
        terms = xp.where(rows.owned, rows.p_sink * delta, 0.0)
        dsinks = xp.cast(xp.reshape(-_sum_axes(xp, terms, (0, 3)), (problem.q_heads,)), xp.dtype_of(operands.sinks))
    return Gradients(
        _out(xp, problem, dq, problem.dtype),
        _join_heads(xp, problem, dk[:, :, 0], problem.dtype),
        _join_heads(xp, problem, dv[:, :, 0], problem.dtype),
        None if dbias is None else xp.cast(dbias, xp.dtype_of(operands.bias)),
        dsinks,
    )


def _segment_ids(xp: Any, ids: Array) -> Array:
    """As int32. Ids that it cannot hold, where nobody refused them before, belong to no segment."""
    small = xp.cast(ids, "int32")
    return xp.where(xp.cast(small, xp.dtype_of(ids)) == ids, small, -1)


def visibility(xp: Any, spec: AttentionSpec, problem: Problem, operands: Operands) -> tuple[Array, Array]:
    """(visible [B, 1|Hkv, 1|G, T, S], owned [B, 1, 1, T, 1]), bool: which pairs see each other, which rows exist."""
    if problem.form == "packed":
        q_at, q_segment = _packed_positions(xp, problem.q_len, operands.q_starts, operands.kv_starts)
        k_at, k_segment = _packed_positions(xp, problem.kv_len, operands.kv_starts, None)
        owned = q_segment >= 0
        seen = (q_segment[:, :, None] == k_segment[:, None, :]) & owned[:, :, None]
    else:
        q_at, owned = _dense_positions(xp, problem, operands)
        k_at = xp.arange(problem.kv_len)[None, :]
        seen = owned[:, :, None] & xp.full((1, 1, problem.kv_len), True)
        if operands.kv_lens is not None:
            seen = seen & (k_at[:, None, :] < xp.cast(operands.kv_lens, "int32")[:, None, None])
        if spec.segments:
            q_ids, k_ids = (_segment_ids(xp, x) for x in (operands.q_segment_ids, operands.kv_segment_ids))
            owned = owned & (q_ids >= 0)
            seen = seen & (q_ids[:, :, None] == k_ids[:, None, :]) & (q_ids >= 0)[:, :, None]
    left, right = spec.window
    if left is not None:
        seen = seen & (k_at[:, None, :] >= (q_at - left)[:, :, None])
    if right is not None:
        seen = seen & (k_at[:, None, :] <= (q_at + right)[:, :, None])
    visible = seen[:, None, None]
    if spec.mask:
        visible = visible & _pairs(xp, problem, operands.mask)
    return visible, owned[:, None, None, :, None]


def _forward(xp: Any, spec: AttentionSpec, problem: Problem, operands: Operands, q: Array, k: Array, v: Array,
             rounded: Rounding) -> tuple[Array, Array, Rows]:  # fmt: skip
    real = xp.real(problem.dtype)
    visible, owned = visibility(xp, spec, problem, operands)
    s = _scores(xp, q, k) * spec.scale
    slope = None
    if spec.softcap is not None:
        t = xp.tanh(s / spec.softcap)
        s, slope = spec.softcap * t, 1.0 - t * t
    if spec.bias:
        s = s + xp.cast(_pairs(xp, problem, operands.bias), real)
    s = xp.where(visible, s, -xp.inf)
    m = xp.max(s, -1) if problem.kv_len else xp.full((*s.shape[:-1], 1), -xp.inf, real)
    sink = None
    if spec.sinks:
        sink = xp.reshape(xp.cast(operands.sinks, real), (1, problem.kv_heads, problem.group, 1, 1))
        sink = xp.where(owned, sink, -xp.inf)
        m = xp.where(m >= sink, m, xp.where(m != m, m, sink))
    finite_m = xp.where(m == -xp.inf, 0.0, m)
    p = xp.where(visible, xp.exp(s - finite_m), 0.0)
    l = xp.sum(p, -1)
    sees = (l > 0) | (l != l)
    p_sink = None
    if sink is not None:
        p_sink = xp.exp(sink - finite_m)
        l = l + p_sink
    some = (l > 0) | (l != l)
    safe_l = xp.where(some, l, 1.0)
    p = xp.where(visible, p / safe_l, 0.0)  # a row whose sum is NaN is NaN only where it sees
    out = _seen_product(xp, rounded(p), visible, v)
    out = xp.where(sees, out, 0.0)
    lse = xp.where(some, finite_m + xp.log(safe_l), -xp.inf)
    p_sink = None if p_sink is None else p_sink / safe_l
    return out, lse, Rows(p, visible & some, sees, owned, p_sink, slope, s, sink)


def _seen_product(xp: Any, weights: Array, visible: Array, values: Array) -> Array:
    """weights [.., T, S] @ values [.., S, E] in IEEE arithmetic, but over visible pairs only."""
    finite = xp.isfinite(values)
    product = xp.matmul(weights, xp.where(finite, values, 0.0))
    if xp.known_true(finite):
        return product
    # Of each result, how many values that are not finite it sees, and how many of them give +inf less how many -inf.
    # One that gives NaN (0 * inf, NaN) counts among the former only.
    real = values.dtype
    hits = xp.matmul(xp.cast(visible, real) + xp.zeros_like(weights), xp.cast(~finite, real))
    net = xp.matmul(_sign(xp, xp.where(visible, weights, 0.0)), _sign(xp, xp.where(finite, 0.0, values)))
    infinite = xp.where(net == hits, xp.inf, xp.where(net == -hits, -xp.inf, xp.nan))
    return xp.where(hits > 0, product + infinite, product)


def _sign(xp: Any, x: Array) -> Array:
    """1, -1 or 0; 0 for NaN."""
    return xp.cast(x > 0, x.dtype) - xp.cast(x < 0, x.dtype)


def _sum_queries(xp: Any, weights: Array, visible: Array, values: Array) -> Array:
    """sum over group and queries of weights[.., g, t, s] * values[.., g, t, e] -> [B, K, 1, S, E]."""
    b, kv_heads, group, q_len, kv_len = weights.shape
    weights = xp.reshape(weights, (b, kv_heads, 1, group * q_len, kv_len))
    if not xp.known_true(xp.isfinite(values)):
        visible = xp.reshape((visible & xp.full((b, kv_heads, group, q_len, kv_len), True)), weights.shape)
        visible = xp.transpose(visible, (0, 1, 2, 4, 3))
    values = xp.reshape(values, (b, kv_heads, 1, group * q_len, values.shape[-1]))
    return _seen_product(xp, xp.transpose(weights, (0, 1, 2, 4, 3)), visible, values)


def _scores(xp: Any, rows: Array, columns: Array) -> Array:
    """rows [.., T, D] . columns [.., S, D]: each pair has a score of its own, so what others hold cannot enter."""
    return xp.matmul(rows, xp.transpose(columns, (0, 1, 2, 4, 3)))


def _dense_positions(xp: Any, problem: Problem, operands: Operands) -> tuple[Array, Array]:
    """(position [B, T], owned [B, T]) of each query row."""
    i = xp.arange(problem.q_len)[None, :]
    q_lens = xp.full((problem.batch,), problem.q_len, "int32")
    kv_lens = xp.full((problem.batch,), problem.kv_len, "int32")
    if operands.q_lens is not None:
        q_lens = xp.cast(operands.q_lens, "int32")
    if operands.kv_lens is not None:
        kv_lens = xp.cast(operands.kv_lens, "int32")
    return i + (kv_lens - q_lens)[:, None], i < q_lens[:, None]


def _packed_positions(xp: Any, size: int, starts: Array, others: Array | None) -> tuple[Array, Array]:
    """(position [1, tokens], sequence [1, tokens] or -1); with `others`, aligned to the end of the other side."""
    starts = xp.cast(starts, "int32")
    index = xp.arange(size)
    sequence = xp.sum(xp.cast(index[:, None] >= starts[None, :], "int32"), -1)[:, 0] - 1
    last = starts.shape[0] - 1
    owned = (sequence >= 0) & (sequence < last)
    at = xp.clip(sequence, 0, max(last - 1, 0))
    offset = -xp.take(starts, at)
    if others is not None and last > 0:
        others = xp.cast(others, "int32")
        lengths = (others[1:] - others[:-1]) - (starts[1:] - starts[:-1])
        offset = offset + xp.take(lengths, at)
    return (index + offset)[None, :], xp.where(owned, sequence, -1 if others is not None else -2)[None, :]


def _heads_apart(xp: Any, problem: Problem, operands: Operands) -> tuple[Array, Array, Array]:
    real = xp.real(problem.dtype)
    q = xp.cast(_split(xp, problem, operands.q, problem.q_heads), real)
    k = xp.cast(_split(xp, problem, operands.k, problem.kv_heads), real)
    v = xp.cast(_split(xp, problem, operands.v, problem.kv_heads), real)
    return q, k, v


def _split(xp: Any, problem: Problem, x: Array, heads: int) -> Array:
    """The caller's layout -> [B, Hkv, G, T, D] (G is 1 for keys and values)."""
    if problem.form == "packed":
        x = x[None]
    if problem.layout == "bthd":
        x = xp.transpose(x, (0, 2, 1, 3))
    b, _, t, d = x.shape
    return xp.reshape(x, (b, problem.kv_heads, heads // problem.kv_heads, t, d))


def _out(xp: Any, problem: Problem, x: Array, dtype: str) -> Array:
    """[B, Hkv, G, T, E] -> the caller's layout."""
    b, kv_heads, group, t, e = x.shape
    return _join_heads(xp, problem, xp.reshape(x, (b, kv_heads * group, t, e)), dtype)


def _join_heads(xp: Any, problem: Problem, x: Array, dtype: str) -> Array:
    """[B, H, T, E] -> the caller's layout."""
    if problem.layout == "bthd":
        x = xp.transpose(x, (0, 2, 1, 3))
    return xp.cast(x[0] if problem.form == "packed" else x, dtype)


def _lse(xp: Any, problem: Problem, lse: Array) -> Array:
    shape = (problem.batch, problem.q_heads, problem.q_len)
    return xp.reshape(lse, shape if problem.form == "dense" else shape[1:])


def _pairs(xp: Any, problem: Problem, x: Array) -> Array:
    """[B|1, H|1, T|1, S|1] -> [B|1, Hkv|1, G|1, T|1, S|1]."""
    b, h, t, s = x.shape
    heads = (1, 1) if h == 1 else (problem.kv_heads, problem.group)
    return xp.reshape(x, (b, *heads, t, s))


def _sum_to(xp: Any, problem: Problem, ds: Array) -> Array:
    """Sum a [B, Hkv, G, T, S] gradient over the axes that the bias broadcasts."""
    assert problem.bias is not None
    shape = problem.bias.shape
    b, _, _, t, s = ds.shape
    ds = xp.reshape(ds, (b, problem.q_heads, t, s))
    axes = tuple(axis for axis in range(4) if shape[axis] == 1 and ds.shape[axis] != 1)
    return xp.reshape(_sum_axes(xp, ds, axes), shape)


def _sum_axes(xp: Any, x: Array, axes: tuple[int, ...]) -> Array:
    for axis in axes:
        x = xp.sum(x, axis)
    return x
