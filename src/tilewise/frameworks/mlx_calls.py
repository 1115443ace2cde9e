"""A plan as functions that MLX can transform: grad, compile, vmap. One set of functions a plan.

Where arrays have values (eager calls, also under mx.grad and mx.vmap) the plan's backend runs; inside mx.compile they
have none, and the same plan runs as plain array code, which MLX traces.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import mlx.core as mx

from tilewise.choose import backend_list
from tilewise.choose.plan import Plan, with_gradients
from tilewise.errors import Unsupported
from tilewise.frameworks import fold
from tilewise.frameworks.mlx_namespace import MlxNamespace, known
from tilewise.spec import merge_reference
from tilewise.spec.problem import Gradients, Operands, PagedOperands

NO_SECOND = "attention: its gradient cannot be differentiated again: tilewise has first derivatives only."
NO_FORWARD = "it has no forward-mode derivative (mx.jvp); use mx.grad or mx.vjp."
DIFFERENTIABLE = ("q", "k", "v", "bias", "sinks")
Function = Callable[..., Any]
xp = MlxNamespace()


def names_of(operands: Any) -> tuple[str, ...]:
    """The operands that are there: MLX's functions take arrays only."""
    return tuple(name for name, x in operands._asdict().items() if x is not None)


@lru_cache(maxsize=4096)
def attention(plan: Plan, names: tuple[str, ...]) -> Function:
    """The named arrays -> (out, lse), differentiable in q, k, v, bias and sinks."""
    wanted = Gradients(*(name in names for name in DIFFERENTIABLE))

    @mx.custom_function
    def call(*arrays: Any) -> Any:
        return _backend(plan, arrays).forward(plan, _operands(names, arrays))

    @call.vjp
    def gradient(primals: Any, cotangents: Any, outputs: Any) -> Any:
        grads = attention_backward(with_gradients(plan), names, wanted, True)(*primals, *outputs, *cotangents)
        found = dict(zip([name for name, want in zip(DIFFERENTIABLE, wanted) if want], grads))
        return tuple(found.get(name, mx.zeros_like(x)) for name, x in zip(names, primals))

    def of_all(n: int, mapped: tuple[bool, ...], arrays: list[Any]) -> Any:
        operands, flags = _operands(names, arrays), _flags(names, mapped)
        if not fold.foldable(plan, operands, flags):
            return None
        one, operands = fold.fold(xp, plan, operands, flags, n)
        return attention(one, names)(*(x for x in operands if x is not None))

    _map(call, of_all, plan.problem.batch)
    return _refuse(call, f"attention: {NO_FORWARD}")


@lru_cache(maxsize=4096)
def attention_backward(plan: Plan, names: tuple[str, ...], wanted: Gradients, has_dlse: bool) -> Function:
    """The named arrays, out, lse, dout and, if it is there, dlse -> the gradients that are wanted."""

    @mx.custom_function
    def call(*arrays: Any) -> Any:
        operands, (out, lse, dout, *dlse) = _operands(names, arrays), arrays[len(names) :]
        backend = _backend(plan, arrays)
        grads = backend.backward(plan, operands, out, lse, dout, dlse[0] if has_dlse else None, wanted)
        return tuple(grad for grad, want in zip(grads, wanted) if want)

    def of_all(n: int, mapped: tuple[bool, ...], arrays: list[Any]) -> Any:
        operands, flags, count = _operands(names, arrays), _flags(names, mapped), len(names)
        if not fold.foldable(plan, operands, flags, backward=True):
            return None
        one, operands = fold.fold(xp, plan, operands, flags, n)
        rows = [fold.merge_axes(xp, x, m, n) for x, m in zip(arrays[count:], mapped[count:])]
        one_call = attention_backward(with_gradients(one), names, wanted, has_dlse)
        return one_call(*(x for x in operands if x is not None), *rows)

    _map(call, of_all, plan.problem.batch)
    return _refuse(call, f"attention: {NO_FORWARD}", NO_SECOND)


@lru_cache(maxsize=4096)
def paged(plan: Plan, names: tuple[str, ...]) -> Function:
    """The named arrays -> (out, lse)."""

    @mx.custom_function
    def call(*arrays: Any) -> Any:
        return _backend(plan, arrays).paged(plan, PagedOperands(**_by_name(PagedOperands, names, arrays)))

    _map(call)
    words = "ragged_paged_attention: it is for serving and has no gradient; use attention_packed for training."
    return _refuse(call, words, words)


@lru_cache(maxsize=4096)
def append(plan: Plan, names: tuple[str, ...]) -> Function:
    """The named arrays, k and v -> the pages."""

    @mx.custom_function
    def call(*arrays: Any) -> Any:
        operands = PagedOperands(**_by_name(PagedOperands, names, arrays))
        pages = _backend(plan, arrays).append(plan, operands, *arrays[len(names) :])
        return tuple(x for x in pages if x is not None)

    _map(call)
    words = "append_to_pages: it has no gradient."
    return _refuse(call, words, words)


@mx.custom_function
def merge(*arrays: Any) -> Any:
    """out of each state, then lse of each -> (out, lse)."""
    cpu = backend_list.load("cpu")
    if known(*arrays) and mx.default_device() == mx.cpu and cpu.missing() is None:
        return cpu.merge("mlx", _states(arrays))
    return _merge_reference(*arrays)


@merge.vjp
def _merge_gradient(primals: Any, cotangents: Any, outputs: Any) -> Any:
    return tuple(mx.vjp(_merge_reference, list(primals), list(cotangents))[1])


@merge.jvp
def _merge_forward_gradient(primals: Any, tangents: Any) -> Any:
    raise Unsupported(f"merge: {NO_FORWARD}")


def _merge_reference(*arrays: Any) -> Any:
    return merge_reference.merge(xp, _states(arrays))


def _states(arrays: Any) -> list[tuple[Any, Any]]:
    half = len(arrays) // 2
    return list(zip(arrays[:half], arrays[half:], strict=True))


def _backend(plan: Plan, arrays: Any) -> ModuleType:
    return backend_list.load(plan.backend if known(*arrays) else "composed")


def _operands(names: tuple[str, ...], arrays: Any) -> Operands:
    return Operands(**_by_name(Operands, names, arrays))


def _by_name(kind: Any, names: tuple[str, ...], arrays: Any) -> dict[str, Any]:
    return dict.fromkeys(kind._fields) | dict(zip(names, arrays))


def _flags(names: tuple[str, ...], mapped: tuple[bool, ...]) -> tuple[bool, ...]:
    by_name = dict(zip(names, mapped))
    return tuple(by_name.get(name, False) for name in Operands._fields)


def _map(call: Any, of_all: Function = lambda *_: None, batch: int = 0) -> None:
    """A rule for mx.vmap: one call for all (each of `batch`) where of_all() knows one, else a call each."""

    def rule(arrays: Any, axes: Any) -> Any:
        mapped = tuple(axis is not None for axis in axes)
        arrays = [mx.moveaxis(x, axis, 0) if m else x for x, axis, m in zip(arrays, axes, mapped)]
        n = next(x.shape[0] for x, m in zip(arrays, mapped) if m)
        results = of_all(n, mapped, arrays)
        if results is not None:
            results = tuple(fold.split_axes(xp, x, n, batch) for x in results)
        else:
            calls = [call(*(x[i] if m else x for x, m in zip(arrays, mapped))) for i in range(n)]
            results = tuple(mx.stack(list(parts)) for parts in zip(*calls, strict=True))
        return results, tuple(0 for _ in results)

    call.vmap(rule)


def _refuse(call: Any, forward_mode: str, reverse_mode: str = "") -> Any:
    def jvp(primals: Any, tangents: Any) -> Any:
        raise Unsupported(forward_mode)

    def vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
        raise Unsupported(reverse_mode)

    call.jvp(jvp)
    if reverse_mode:
        call.vjp(vjp)
    return call
