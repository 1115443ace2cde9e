"""From arrays on the host to a native call: strides, addresses, results. Written once, for any framework's Access."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from tilewise.backends.cpu import library
from tilewise.backends.cpu import strides as layout
from tilewise.backends.operand_values import check_dense, check_paged
from tilewise.choose.plan import Plan
from tilewise.errors import InvalidInput
from tilewise.spec.problem import Gradients, Operands, PagedOperands, PagedProblem, Problem, real_dtype

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


@lru_cache(maxsize=8192)
def dense_call(plan: Plan, strides: tuple[int, ...], bias_dtype: str) -> Any:
    """The native call of a plan and strides."""
    p, spec = plan.problem, plan.spec
    return library.native().DenseCall(
        layout.dense_sizes(p), DTYPES[p.dtype], spec.scale, *layout.sides(spec.window), spec.softcap or 0.0,
        list(strides), DTYPES[bias_dtype],
    )  # fmt: skip


def plain_call(plan: Plan, *strides: tuple[int, ...]) -> Any:
    """The native call of a dense plan with q, k and v alone (strides given); out and lse are contiguous."""
    return dense_call(plan, tuple(layout.plain(plan.problem, *strides)), "float32")


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
    wants = ((ready.q, wanted.q), (ready.k, wanted.k), (ready.v, wanted.v))
    grads = [access.empty(tuple(x.shape), p.dtype) if want else None for x, want in wants]
    dbias = access.empty(tuple(ready.bias.shape), p.real) if wanted.bias and ready.bias is not None else None
    dsinks = access.empty((p.q_heads,), p.real) if wanted.sinks and ready.sinks is not None else None
    call, addresses = _bind(access, plan, ready, out, lse)
    strides = layout.gradients(access, p, dout, dlse, grads, dbias)
    error = call.backward(
        addresses, access.address(out), access.address(lse),
        [_address(access, x) for x in (dout, dlse, *grads, dbias, dsinks)], strides,
    )  # fmt: skip
    _judge_dense(error, p, operands)
    dbias, dsinks = (
        None if grad is None else access.dense(grad, access.dtype(given))
        for grad, given in ((dbias, operands.bias), (dsinks, operands.sinks))
    )
    return Gradients(grads[0], grads[1], grads[2], dbias, dsinks)


def paged(access: Access, plan: Plan, operands: PagedOperands) -> tuple[Array, Array]:
    """(out, lse) of a paged call."""
    p = plan.problem
    out = access.empty(p.out_shape, p.dtype)
    lse = access.empty(p.lse_shape, p.real)
    ready = _ready_pages(access, plan, operands)
    call = _paged_call(plan, tuple(layout.paged(access, p, ready, out, lse)))
    rest = [_address(access, x) for x in (ready.sinks, ready.draft_mask, out, lse)]
    _judge_paged(call.run([access.address(ready.q), *_page_addresses(access, p, ready), *rest]), plan, operands)
    return out, lse


def append(access: Access, plan: Plan, operands: PagedOperands, k: Array, v: Array) -> tuple[Array, Array | None]:
    """Write the new rows into the caller's pages and return them."""
    p = plan.problem
    k, v = access.rows(k), access.rows(v)
    ready = _ready_pages(access, plan, operands)
    call = _append_call(plan, tuple(layout.append(access, p, ready, k, v)))
    addresses = [access.address(k), access.address(v), *_page_addresses(access, p, ready)]
    _judge_paged(call.run(addresses), plan, operands)
    for mine, theirs in ((ready.k_pages, operands.k_pages), (ready.v_pages, operands.v_pages)):
        if theirs is not None and mine is not theirs:
            access.copy_into(theirs, mine)
    return operands.k_pages, operands.v_pages


def merge(access: Access, states: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Merge (out, lse) states on the host."""
    outs = [access.rows(out) for out, _ in states]
    lses = [access.strided(lse) for _, lse in states]
    dtype = access.dtype(outs[0])
    *batch, rows, heads, width = outs[0].shape
    out, lse = access.empty(tuple(outs[0].shape), dtype), access.empty(tuple(lses[0].shape), real_dtype(dtype))
    strides = [stride for x in outs for stride in layout.tokens(access, x)]
    strides += [stride for x in lses for stride in layout.state(access, x)]
    strides += layout.tokens(access, out) + layout.state(access, lse)
    library.native().merge(
        [batch[0] if batch else 1, rows, heads, width], DTYPES[dtype], [access.address(x) for x in outs],
        [access.address(x) for x in lses], strides, access.address(out), access.address(lse),
    )  # fmt: skip
    return out, lse


@lru_cache(maxsize=8192)
def _paged_call(plan: Plan, strides: tuple[int, ...]) -> Any:
    p, spec = plan.problem, plan.spec
    return library.native().PagedCall(
        layout.paged_sizes(p), DTYPES[p.dtype], DTYPES[p.page_dtype], spec.scale, *layout.sides(spec.window),
        spec.softcap or 0.0, spec.batch_invariant, list(strides),
    )  # fmt: skip


@lru_cache(maxsize=8192)
def _append_call(plan: Plan, strides: tuple[int, ...]) -> Any:
    p = plan.problem
    return library.native().AppendCall(layout.append_sizes(p), DTYPES[p.dtype], DTYPES[p.page_dtype], list(strides))


def _ready(access: Access, p: Problem, o: Operands) -> Operands:
    """The operands as the kernels read them."""
    if _has_int64(access, o.integers()):  # judged before they are narrowed: 2^32 + 3 is no 3
        check_dense(p, o)
    rows, strided, dense = access.rows, access.strided, access.dense
    return Operands(
        *map(rows, (o.q, o.k, o.v)),
        *(None if x is None else strided(x) for x in (o.bias, o.mask)),
        None if o.sinks is None else dense(o.sinks, p.real),
        *(None if x is None else dense(x, "int32") for x in o.integers()),
    )  # type: ignore[call-arg]


def _ready_pages(access: Access, plan: Plan, o: PagedOperands) -> PagedOperands:
    """The operands as the kernels read them."""

    def each(ready: Any, x: Array | None, *dtype: str) -> Array | None:
        return None if x is None else ready(x, *dtype)

    if _has_int64(access, o.integers()):
        check_paged(plan, o)
    return PagedOperands(
        *(each(access.rows, x) for x in (o.q, o.k_pages, o.v_pages)),
        *(each(access.dense, x, "int32") for x in o.integers()),
        each(access.dense, o.sinks, plan.problem.real),
        *(each(access.dense, x, "float32") for x in (o.k_scale, o.v_scale)),
        each(access.rows, o.draft_mask),
    )  # type: ignore[call-arg]


def _bind(access: Access, plan: Plan, o: Operands, out: Array, lse: Array) -> tuple[Any, list[int]]:
    strides = layout.dense(access, plan.problem, o, out, lse)
    bias_dtype = "float32" if o.bias is None else access.dtype(o.bias)
    return dense_call(plan, tuple(strides), bias_dtype), [_address(access, x) for x in o]


def _page_addresses(access: Access, p: PagedProblem, o: PagedOperands) -> list[int]:
    """k v k_scale v_scale kv_lens page_indices cu_q_lens num_seqs."""
    k = access.address(o.k_pages)
    v = k + layout.v_offset(access, p, o.k_pages) if o.v_pages is None else access.address(o.v_pages)
    return [k, v, *(_address(access, x) for x in (o.k_scale, o.v_scale, *o.integers()))]


def _address(access: Access, x: Array | None) -> int:
    return 0 if x is None else access.address(x)


def _has_int64(access: Access, arrays: Sequence[Array | None]) -> bool:
    return any(x is not None and access.dtype(x) == "int64" for x in arrays)


def _judge_dense(error: int, p: Problem, o: Operands) -> None:
    if error:
        check_dense(p, o)
        raise InvalidInput(f"{VALUE_ERRORS[error]}.")


def _judge_paged(error: int, plan: Plan, o: PagedOperands) -> None:
    if error:
        check_paged(plan, o)
        raise InvalidInput(f"{VALUE_ERRORS[error]}.")
