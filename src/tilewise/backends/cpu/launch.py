"""From arrays on the host to a native call: strides, addresses, results. Written once, for any framework's Access."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from tilewise.backends.cpu import library
from tilewise.check_values import check_values
from tilewise.choose.plan import Plan
from tilewise.errors import InvalidInput
from tilewise.spec.problem import Gradients, Operands, PagedOperands, PagedProblem, Problem

Array = Any
DTYPES = {name: code for code, name in enumerate(
    ("float32", "bfloat16", "float16", "float64", "int8", "float8_e4m3fn", "float8_e5m2"))}  # fmt: skip
VALUE_ERRORS = {
    1: "a kv length is out of range", 2: "a page id is out of range", 3: "starts fall",
    4: "starts begin below 0 or end past the tokens", 5: "num_seqs is out of range",
    6: "a query length is out of range",
}  # fmt: skip


class Access(Protocol):
    """How a framework's host arrays are looked into."""

    def address(self, x: Array) -> int: ...
    def strides(self, x: Array) -> tuple[int, ...]: ...  # in elements
    def rows(self, x: Array) -> Array: ...  # as is if the innermost axis is dense and aligned, else a copy
    def dense(self, x: Array, dtype: str) -> Array: ...  # contiguous, of this dtype; no copy if it is already
    def strided(self, x: Array) -> Array: ...  # as is if its strides are whole elements, else a copy
    def empty(self, shape: tuple[int, ...], dtype: str) -> Array: ...
    def dtype(self, x: Array) -> str: ...
    def copy_into(self, x: Array, values: Array) -> None: ...


def real(dtype: str) -> str:
    """The dtype of lse, sinks and their gradients."""
    return "float64" if dtype == "float64" else "float32"


@lru_cache(maxsize=8192)
def dense_call(plan: Plan, strides: tuple[int, ...], bias_dtype: str) -> Any:
    """The native call of a plan and strides."""
    p, spec = plan.problem, plan.spec
    sizes = [p.batch, p.q_len, p.kv_len, p.q_heads, p.kv_heads, p.qk_dim, p.v_dim]
    return library.native().DenseCall(
        sizes, DTYPES[p.dtype], spec.scale, *_sides(spec.window), spec.softcap or 0.0, list(strides), DTYPES[bias_dtype]
    )


def plain_call(plan: Plan, *strides: tuple[int, ...]) -> Any:
    """The native call of a dense plan with q, k and v alone (strides given); out and lse are contiguous."""
    p = plan.problem
    sizes = p.out_shape
    out = (sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1)
    flat = [s for each in (*strides, out) for s in _bht(p, each)]
    return dense_call(plan, (*flat, p.q_heads * p.q_len, p.q_len, 1, *[0] * 8, 0, 1, 0, 1), "float32")


def forward(access: Access, plan: Plan, operands: Operands) -> tuple[Array, Array]:
    """(out, lse) of a dense or packed call."""
    p = plan.problem
    out = access.empty(p.out_shape, p.dtype)
    lse = access.empty(p.lse_shape, p.real)
    ready = _ready(access, p, operands)
    call, addresses = _bind(access, plan, ready, out, lse)
    _judge_dense(call.forward(addresses, access.address(out), access.address(lse)), p, operands)
    return out, lse


def backward(access: Access, plan: Plan, operands: Operands, out: Array, lse: Array, dout: Array, dlse: Array | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    """Gradients of a dense or packed call; those that are not wanted are None."""
    p = plan.problem
    out, dout = access.rows(out), access.rows(dout)
    lse = access.strided(lse)
    dlse = None if dlse is None else access.strided(dlse)
    ready = _ready(access, p, operands)
    grads = [access.empty(tuple(x.shape), p.dtype) if want else None for x, want in zip(ready[:3], wanted[:3])]
    dbias = access.empty(tuple(ready.bias.shape), real(p.dtype)) if wanted.bias and ready.bias is not None else None
    dsinks = access.empty((p.q_heads,), real(p.dtype)) if wanted.sinks and ready.sinks is not None else None
    call, addresses = _bind(access, plan, ready, out, lse)
    strides = [*_token_strides(access, p, dout), *_lse_strides(access, dlse)]
    for grad in grads:
        strides += _token_strides(access, p, grad)
    strides += _pair_strides(access, dbias)
    strides += [1, 1, 1, 1] if dbias is None else list(dbias.shape)
    error = call.backward(
        addresses, access.address(out), access.address(lse),
        [_address(access, x) for x in (dout, dlse, *grads, dbias, dsinks)], strides,
    )  # fmt: skip
    _judge_dense(error, p, operands)
    return Gradients(grads[0], grads[1], grads[2], dbias, dsinks)


def paged(access: Access, plan: Plan, operands: PagedOperands) -> tuple[Array, Array]:
    """(out, lse) of a paged call."""
    p = plan.problem
    out = access.empty(p.out_shape, p.dtype)
    lse = access.empty(p.lse_shape, p.real)
    q = access.rows(operands.q)
    draft = None if operands.draft_mask is None else access.rows(operands.draft_mask)
    sinks = None if operands.sinks is None else access.dense(operands.sinks, real(p.dtype))
    pages = [None if x is None else access.rows(x) for x in (operands.k_pages, operands.v_pages)]
    addresses, strides, kept = _pages(access, p, operands, pages)
    head = [*_packed_strides(access, q), *_packed_strides(access, out), *_lse_strides(access, lse)]
    head.append(0 if draft is None else access.strides(draft)[0])
    call = _paged_call(plan, (*head, *strides))
    k, v, k_scale, v_scale, *batch = addresses
    error = call.run([
        access.address(q), k, v, k_scale, v_scale, *batch, _address(access, sinks), _address(access, draft),
        access.address(out), access.address(lse),
    ])  # fmt: skip
    _judge_paged(error, p, operands)
    del kept
    return out, lse


def append(access: Access, plan: Plan, operands: PagedOperands, k: Array, v: Array) -> tuple[Array, Array | None]:
    """Write the new rows into the caller's pages and return them."""
    p = plan.problem
    given = [operands.k_pages, operands.v_pages]
    pages = [None if x is None else access.rows(x) for x in given]
    k, v = access.rows(k), access.rows(v)
    addresses, strides, kept = _pages(access, p, operands, pages)
    call = _append_call(plan, (*_packed_strides(access, k), *_packed_strides(access, v), *strides))
    _judge_paged(call.run([access.address(k), access.address(v), *addresses]), p, operands)
    del kept
    for mine, theirs in zip(pages, given, strict=True):
        if theirs is not None and mine is not theirs:
            access.copy_into(theirs, mine)
    return operands.k_pages, operands.v_pages


def merge(access: Access, states: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Merge (out, lse) states on the host."""
    outs = [access.rows(out) for out, _ in states]
    lses = [access.strided(lse) for _, lse in states]
    dtype = access.dtype(outs[0])
    if access.dtype(lses[0]) != real(dtype):  # states of another origin: their lse decides what to compute in
        lses = [access.dense(lse, real(dtype)) for lse in lses]
    *batch, rows, heads, width = outs[0].shape
    out, lse = access.empty(tuple(outs[0].shape), dtype), access.empty(tuple(lses[0].shape), real(dtype))
    strides: list[int] = []
    for x in (*outs, *lses, out, lse):
        is_out = len(strides) < 3 * len(outs) or x is out
        strides += _thd_strides(access, x) if is_out else _lse_strides(access, x)
    library.native().merge(
        [batch[0] if batch else 1, rows, heads, width], DTYPES[dtype], [access.address(x) for x in outs],
        [access.address(x) for x in lses], strides, access.address(out), access.address(lse),
    )  # fmt: skip
    return out, lse


@lru_cache(maxsize=8192)
def _paged_call(plan: Plan, strides: tuple[int, ...]) -> Any:
    p, spec = plan.problem, plan.spec
    sizes = [p.max_tokens, p.q_heads, p.kv_heads, p.qk_dim, p.v_dim, p.max_seqs, p.pages_per_seq, p.max_new,
             p.num_pages, p.page_size]  # fmt: skip
    return library.native().PagedCall(
        sizes, DTYPES[p.dtype], DTYPES[p.page_dtype], spec.scale, *_sides(spec.window), spec.softcap or 0.0,
        spec.batch_invariant, list(strides),
    )  # fmt: skip


@lru_cache(maxsize=8192)
def _append_call(plan: Plan, strides: tuple[int, ...]) -> Any:
    p = plan.problem
    sizes = [p.max_tokens, p.kv_heads, p.qk_dim, p.v_dim, p.max_seqs, p.pages_per_seq, p.num_pages, p.page_size]
    return library.native().AppendCall(sizes, DTYPES[p.dtype], DTYPES[p.page_dtype], list(strides))


def _ready(access: Access, p: Problem, o: Operands) -> Operands:
    """The operands as the kernels read them."""
    rows, strided, dense = access.rows, access.strided, access.dense
    return Operands(
        *map(rows, o[:3]),
        *(None if x is None else strided(x) for x in o[3:5]),
        None if o.sinks is None else dense(o.sinks, real(p.dtype)),
        *(None if x is None else dense(x, "int32") for x in o[6:]),
    )  # type: ignore[call-arg]


def _bind(access: Access, plan: Plan, o: Operands, out: Array, lse: Array) -> tuple[Any, list[int]]:
    p = plan.problem
    strides = [s for x in (o.q, o.k, o.v, out) for s in _token_strides(access, p, x)]
    strides += _lse_strides(access, lse)
    strides += [*_pair_strides(access, o.bias), *_pair_strides(access, o.mask)]
    strides += [0, 1, 0, 1] if o.q_segment_ids is None else [p.q_len, 1, p.kv_len, 1]
    bias_dtype = "float32" if o.bias is None else access.dtype(o.bias)
    return dense_call(plan, tuple(strides), bias_dtype), [_address(access, x) for x in o]


def _pages(access: Access, p: PagedProblem, o: PagedOperands, pages: Sequence[Array | None]) -> tuple[
        list[int], list[int], list[Array]]:  # fmt: skip
    """(addresses k v k_scale v_scale kv_lens page_indices cu_q_lens num_seqs, strides, arrays to keep alive)."""
    k_pages, v_pages = pages
    page, slot, head, _ = access.strides(k_pages)
    k_address = access.address(k_pages)
    if v_pages is None:  # K at even heads, V at odd ones
        item = 8 if p.page_dtype == "float64" else {"float32": 4, "bfloat16": 2, "float16": 2}.get(p.page_dtype, 1)
        addresses, strides = [k_address, k_address + head * item], [page, slot, 2 * head] * 2
    else:
        addresses, strides = [k_address, access.address(v_pages)], [page, slot, head, *access.strides(v_pages)[:3]]
    kept = []
    for scale in (o.k_scale, o.v_scale):
        scale = None if scale is None else access.dense(scale, "float32")
        kept.append(scale)
        addresses.append(_address(access, scale))
        rank = 0 if scale is None or tuple(scale.shape) == (1,) else len(scale.shape)
        strides += [p.page_size * p.kv_heads, p.kv_heads, 1] if rank == 3 else [0, 0, min(rank, 1)]
    for x in (o.kv_lens, o.page_indices, o.cu_q_lens, o.num_seqs):
        x = None if x is None else access.dense(x, "int32")
        kept.append(x)
        addresses.append(_address(access, x))
    return addresses, strides, kept


def _address(access: Access, x: Array | None) -> int:
    return 0 if x is None else access.address(x)


def _sides(window: tuple[int | None, int | None]) -> tuple[int, int]:
    left, right = window
    return -1 if left is None else left, -1 if right is None else right


def _token_strides(access: Access, p: Problem, x: Array | None) -> list[int]:
    """(b, h, t) strides of an array in the layout of q."""
    if x is None:
        return [0, 0, 0]
    if p.form == "packed":
        return _packed_strides(access, x)
    return _bht(p, access.strides(x))


def _bht(p: Problem, strides: tuple[int, ...]) -> list[int]:
    b, first, second, _ = strides
    return [b, second, first] if p.layout == "bthd" else [b, first, second]


def _packed_strides(access: Access, x: Array) -> list[int]:
    t, h, _ = access.strides(x)
    return [0, h, t]


def _thd_strides(access: Access, x: Array) -> list[int]:
    *batch, t, h, _ = access.strides(x)
    return [batch[0] if batch else 0, h, t]


def _lse_strides(access: Access, x: Array | None) -> list[int]:
    if x is None:
        return [0, 0, 0]
    *batch, h, t = access.strides(x)
    return [batch[0] if batch else 0, h, t]


def _pair_strides(access: Access, x: Array | None) -> list[int]:
    """(b, h, t, s) strides; 0 along axes of size 1."""
    if x is None:
        return [0, 0, 0, 0]
    return [0 if size == 1 else stride for size, stride in zip(x.shape, access.strides(x))]


def _judge_dense(error: int, p: Problem, o: Operands) -> None:
    if error:
        check_values(q_len=p.q_len, kv_len=p.kv_len, q_lens=o.q_lens, kv_lens=o.kv_lens, q_starts=o.q_starts,
                     kv_starts=o.kv_starts)  # fmt: skip
        raise InvalidInput(f"{VALUE_ERRORS[error]}.")


def _judge_paged(error: int, p: PagedProblem, o: PagedOperands) -> None:
    if error:
        check_values(kv_lens=o.kv_lens, page_indices=o.page_indices, cu_q_lens=o.cu_q_lens, num_seqs=o.num_seqs,
                     num_pages=p.num_pages, page_size=p.page_size, max_tokens=p.max_tokens)  # fmt: skip
        raise InvalidInput(f"{VALUE_ERRORS[error]}.")
