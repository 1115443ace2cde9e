"""JAX arrays to the native kernels through the XLA FFI: inside jit, no Python on the way. Buffers are row-major."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewise.backends.cpu import launch_numpy, library
from tilewise.backends.cpu import strides as layout
from tilewise.backends.cpu.launch import DTYPES
from tilewise.choose.plan import Plan
from tilewise.spec.problem import Gradients, Operands, PagedOperands


class RowMajor:
    """strides.Layout of what XLA hands to a custom call."""

    def strides(self, x: Any) -> tuple[int, ...]:
        flat, step = [], 1
        for size in reversed(x.shape):
            flat.append(step)
            step *= size
        return tuple(reversed(flat))


ROWS = RowMajor()


def forward(plan: Plan, operands: Operands) -> Any:
    p = plan.problem
    out, lse = _like(p.out_shape, p.dtype), _like(p.lse_shape, p.real)
    o = _ready(plan, operands)
    call = _custom_call("tilewise_forward", (out, lse))
    return tuple(call(*_given(o), **_dense_attributes(plan, o, out, lse)))


def backward(plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    p = plan.problem
    o = _ready(plan, operands)
    shapes = [(x.shape, p.dtype) for x in o[:3]]
    shapes += [((1,) if x is None else x.shape, p.real) for x in (o.bias, o.sinks)]
    results = [_like(*each) if want else None for each, want in zip(shapes, wanted)]
    attributes = _dense_attributes(plan, o, out, lse)
    attributes["present"] |= np.int64((dlse is not None) << 9)
    call = _custom_call("tilewise_backward", [x for x in results if x is not None])
    grads = iter(call(
        *_given((*o, out, lse, dout, dlse)),
        grad_strides=_ints(layout.gradients(ROWS, p, dout, dlse, results[:3], results[3])),
        wanted=np.int64(sum(bool(want) << i for i, want in enumerate(wanted))),
        **attributes,
    ))  # fmt: skip
    inputs = (o.q, o.k, o.v, operands.bias, operands.sinks)
    return Gradients(*(next(grads).astype(x.dtype) if want else None for x, want in zip(inputs, wanted)))


def paged(plan: Plan, operands: PagedOperands) -> Any:
    p, spec = plan.problem, plan.spec
    out, lse = _like(p.out_shape, p.dtype), _like(p.lse_shape, p.real)
    o = _ready_pages(plan, operands)
    optional = (o.v_pages, o.k_scale, o.v_scale, o.num_seqs, o.sinks, o.draft_mask)
    call = _custom_call("tilewise_paged", (out, lse))
    return tuple(call(
        *_given((o.q, o.k_pages, o.kv_lens, o.page_indices, o.cu_q_lens, *optional)),
        sizes=_ints(layout.paged_sizes(p)), strides=_ints(layout.paged(ROWS, p, o, out, lse)),
        codes=_ints([DTYPES[p.dtype], DTYPES[p.page_dtype], *layout.sides(spec.window), spec.batch_invariant]),
        reals=np.array([spec.scale, spec.softcap or 0.0]), v_offset=np.int64(layout.v_offset(ROWS, p, o.k_pages)),
        present=_present(optional),
    ))  # fmt: skip


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    """New pages; the old ones themselves where they are donated."""
    p = plan.problem
    o = _ready_pages(plan, operands)
    pages = [x for x in (o.k_pages, o.v_pages) if x is not None]
    optional = (o.v_pages, o.k_scale, o.v_scale, o.num_seqs)
    aliases = {5 + i: i for i in range(len(pages))}
    results = _custom_call("tilewise_append", [_like(x.shape, x.dtype) for x in pages], aliases)(
        *_given((k, v, o.kv_lens, o.page_indices, o.cu_q_lens, o.k_pages, *optional)),
        sizes=_ints(layout.append_sizes(p)), strides=_ints(layout.append(ROWS, p, o, k, v)),
        codes=_ints([DTYPES[p.dtype], DTYPES[p.page_dtype]]), v_offset=np.int64(layout.v_offset(ROWS, p, o.k_pages)),
        present=_present(optional),
    )  # fmt: skip
    return results[0], results[1] if len(results) > 1 else None


def merge(states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """States whose values are known: merged on the host, as NumPy sees them."""
    out, lse = launch_numpy.merge([(np.asarray(out), np.asarray(lse)) for out, lse in states])
    return jnp.asarray(out), jnp.asarray(lse)


@cache
def _register() -> None:
    for name, handler in library.native().ffi_handlers().items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")


def _custom_call(name: str, results: Any, aliases: dict[int, int] | None = None) -> Any:
    """A call of a handler in native/xla_ffi.cpp, which says what it is told in which order."""
    _register()
    return jax.ffi.ffi_call(name, results, vmap_method="sequential", input_output_aliases=aliases)


def _dense_attributes(plan: Plan, o: Operands, out: Any, lse: Any) -> dict[str, Any]:
    p, spec = plan.problem, plan.spec
    bias = DTYPES["float32" if o.bias is None else o.bias.dtype.name]
    return {
        "sizes": _ints(layout.dense_sizes(p)),
        "strides": _ints(layout.dense(ROWS, p, o, out, lse)),
        "codes": _ints([DTYPES[p.dtype], bias, *layout.sides(spec.window)]),
        "reals": np.array([spec.scale, spec.softcap or 0.0]),
        "present": _present(o[3:]),
    }


def _ready(plan: Plan, o: Operands) -> Operands:
    """The operands as the kernels read them."""
    return Operands(*o[:5], _cast(o.sinks, plan.problem.real), *map(_ids, (o.q_segment_ids, o.kv_segment_ids)),
                    *(_cast(x, "int32") for x in o[8:]))  # fmt: skip


def _ready_pages(plan: Plan, o: PagedOperands) -> PagedOperands:
    return PagedOperands(  # type: ignore[call-arg]
        *o[:3], *(_cast(x, "int32") for x in o.integers()), _cast(o.sinks, plan.problem.real),
        *(_cast(x, "float32") for x in (o.k_scale, o.v_scale)), o.draft_mask,
    )  # fmt: skip


def _cast(x: Any, dtype: str) -> Any:
    if x is not None and x.dtype == "int64" and dtype == "int32":  # out of range stays out of range
        x = jnp.clip(x, -(2**31), 2**31 - 1)
    return None if x is None else x.astype(dtype)


def _ids(x: Any) -> Any:
    """Segment ids as int32. Those that it cannot hold belong to nobody: clipped, they would equal each other."""
    if x is not None and x.dtype == "int64":
        x = jnp.where((x > 2**31 - 1) | (x < -(2**31)), -1, x)
    return _cast(x, "int32")


def _given(arrays: Any) -> list[Any]:
    return [x for x in arrays if x is not None]


def _present(arrays: Any) -> np.int64:
    return np.int64(sum((x is not None) << i for i, x in enumerate(arrays)))


def _ints(values: list[Any]) -> np.ndarray:
    return np.array(values, np.int64)


def _like(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))
