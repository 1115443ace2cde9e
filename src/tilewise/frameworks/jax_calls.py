"""A plan as functions that JAX can transform: jit, grad, vmap, remat, scan. One set of functions a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from tilewise.choose import backend_list
from tilewise.choose.plan import Plan, with_gradients
from tilewise.errors import Unsupported
from tilewise.frameworks import fold
from tilewise.frameworks.jax_namespace import JaxNamespace
from tilewise.spec.problem import Gradients, Operands, PagedOperands

NO_SECOND = "attention: its gradient cannot be differentiated again: tilewise has first derivatives only."
xp = JaxNamespace()
Function = Callable[..., Any]
COUNT = len(Operands._fields)


@lru_cache(maxsize=4096)
def attention(plan: Plan) -> Function:
    """operands -> (out, lse), differentiable in q, k, v, bias and sinks."""

    @jax.custom_vjp
    def call(operands: Operands) -> tuple[Any, Any]:
        return _spread_alike(_forward(plan)(operands), operands)

    def forward(primals: Any) -> Any:
        operands = Operands(*(None if x is None else x.value for x in primals))
        inputs = (primals.q, primals.k, primals.v, primals.bias, primals.sinks)
        wanted = _as_shape(tuple(x is not None and x.perturbed for x in inputs))
        out, lse = _spread_alike(_forward(plan)(operands), operands)
        return (out, lse), (operands, out, lse, wanted)

    def backward(kept: Any, gradients: Any) -> tuple[Operands]:
        operands, out, lse, wanted = kept
        dout, dlse = (None if isinstance(g, SymbolicZero) else g for g in gradients)
        if dout is None and dlse is None:
            return (Operands(None, None, None),)
        dout = jnp.zeros_like(out) if dout is None else dout
        g = attention_backward(plan, _from_shape(wanted))(operands, out, lse, dout, dlse)
        g = _spread_alike(g, operands)
        return (Operands(g.q, g.k, g.v, bias=g.bias, sinks=g.sinks),)

    call.defvjp(forward, backward, symbolic_zeros=True)
    return jax.jit(lambda operands: call(_spread_alike(operands, operands)), inline=True)


@lru_cache(maxsize=4096)
def attention_backward(plan: Plan, wanted: Gradients) -> Function:
    """(operands, out, lse, dout, dlse) -> Gradients."""
    plan = with_gradients(plan)

    def gradients(operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any) -> Gradients:
        backward = backend_list.load(plan.backend).backward
        grads = backward(plan, operands, out, lse, dout, dlse, wanted)
        return Gradients(*(grad if want else None for grad, want in zip(grads, wanted)))

    def of_all(n: int, mapped: Any, operands: Operands, *rows: Any) -> Any:
        flags = _flags(mapped[0])
        if not fold.foldable(plan, operands, flags, backward=True):
            return None
        one, folded = fold.fold(xp, plan, operands, flags, n)
        rows = tuple(None if x is None else fold.merge_axes(xp, x, m, n) for x, m in zip(rows, mapped[1:]))
        return attention_backward(one, wanted)(folded, *rows)

    return jax.jit(_refuse_derivative(_vmapped(gradients, of_all, plan.problem.batch), NO_SECOND), inline=True)


@lru_cache(maxsize=4096)
def paged(plan: Plan) -> Function:
    """operands -> (out, lse)."""

    def run(operands: PagedOperands) -> Any:
        return backend_list.load(plan.backend).paged(plan, operands)

    return _over_pages(
        plan, run, "ragged_paged_attention: it is for serving and has no gradient; use attention_packed for training."
    )


@lru_cache(maxsize=4096)
def append(plan: Plan) -> Function:
    """(operands, k, v) -> (k_pages, v_pages)."""

    def run(operands: PagedOperands, k: Any, v: Any) -> Any:
        return backend_list.load(plan.backend).append(plan, operands, k, v)

    return _over_pages(plan, run, "append_to_pages: it has no gradient.")


def _over_pages(plan: Plan, run: Function, no_gradient: str) -> Function:
    """Compiled as a whole, but for plain array code: with lengths in hand it computes no more than they say."""
    call = _refuse_derivative(_vmapped(run), no_gradient)
    return call if plan.backend == "composed" else jax.jit(call, inline=True)


@lru_cache(maxsize=4096)
def _forward(plan: Plan) -> Function:
    def run(operands: Operands) -> tuple[Any, Any]:
        return backend_list.load(plan.backend).forward(plan, operands)

    def of_all(n: int, mapped: Any, operands: Operands) -> Any:
        flags = _flags(mapped[0])
        if not fold.foldable(plan, operands, flags):
            return None
        one, folded = fold.fold(xp, plan, operands, flags, n)
        return _forward(one)(folded)

    return _refuse_derivative(_vmapped(run, of_all, plan.problem.batch), NO_SECOND)


def _vmapped(function: Function, of_all: Function = lambda *_: None, batch: int = 0) -> Function:
    """The function with a rule for vmap: one call for all (each of `batch`) where of_all() knows one, else a loop."""
    call = custom_vmap(function)

    def rule(n: int, mapped: Any, *args: Any) -> Any:
        results = of_all(n, mapped, *args)
        if results is not None:
            results = jax.tree.map(lambda x: fold.split_axes(xp, x, n, batch), results)
        else:
            leaves, tree = jax.tree.flatten(args)
            flags = jax.tree.leaves(mapped)

            def one(i: Any) -> Any:
                return call(*jax.tree.unflatten(tree, [x[i] if m else x for x, m in zip(leaves, flags)]))

            results = jax.lax.map(one, jnp.arange(n))
        return results, jax.tree.map(lambda _: True, results)

    call.def_vmap(rule)
    return call


def _refuse_derivative(function: Function, words: str) -> Function:
    """The function as JAX sees it; differentiating it raises an error that says why there is no gradient."""
    call = jax.custom_jvp(function)

    def refuse(primals: Any, tangents: Any) -> Any:
        raise Unsupported(words)

    call.defjvp(refuse)
    return call


def _spread_alike(results: Any, given: Any) -> Any:
    """Within jax.shard_map: each result differs from device to device along all axes that anything given does.

    A custom call does not say so itself. JAX sums the gradient of an array that was one for all devices.
    """
    axes = frozenset().union(*(_axes(x) for x in jax.tree.leaves(given)))
    if not axes:
        return results
    return jax.tree.map(lambda x: jax.lax.pcast(x, tuple(axes - _axes(x)), to="varying"), results)


def _axes(x: Any) -> frozenset[Any]:
    kind = jax.typeof(x)
    axes = getattr(getattr(kind, "manual_axis_type", None), "varying", None)
    return getattr(kind, "vma", frozenset()) if axes is None else axes  # vma: its name in other versions


def _as_shape(wanted: tuple[bool, ...]) -> Any:
    """Which gradients are wanted, as the shape of an empty array.

    Not as a static part of the residuals: JAX keeps a traced forward a set of perturbed inputs, but only the last
    one's tree of residuals, so that a gradient would be taken with the flags of another one.
    """
    return jnp.zeros((sum(want << i for i, want in enumerate(wanted)), 0), bool)


def _from_shape(x: Any) -> Gradients:
    return Gradients(*(bool(x.shape[0] >> i & 1) for i in range(len(Gradients._fields))))


def _flags(mapped: Operands) -> tuple[bool, ...]:
    return tuple(bool(m) for m in mapped)
