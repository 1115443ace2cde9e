"""The operators that PyTorch's dispatcher knows: for autograd, torch.compile, fake tensors and vmap.

Each carries its plan as text, so that a graph can be kept, moved and run in another process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewise.choose import backend_list
from tilewise.choose.plan import Plan, from_text, to_text, with_gradients
from tilewise.errors import Unsupported
from tilewise.frameworks import fold
from tilewise.frameworks.torch_modes import watched
from tilewise.frameworks.torch_namespace import DTYPES, TorchNamespace
from tilewise.spec.problem import Gradients, Operands, PagedOperands

NO_SECOND = (
    "attention: its gradient cannot be differentiated again: tilewise has first derivatives only "
    "(call backward without create_graph=True)."
)
NO_BATCH = (
    "attention: batched gradients (is_grads_batched, vectorize=True, check_batched_grad) are not to be had from the "
    "autograd engine; use torch.func.jacrev or torch.func.vmap."
)
COUNT = len(Operands._fields)
DIFFERENTIABLE = (0, 1, 2, 3, 5)  # q, k, v, bias, sinks
OPTIONAL = ", ".join(f"Tensor? {name}" for name in Operands._fields[3:])
PAGED = ", ".join(
    f"Tensor{'' if name in ('k_pages', 'kv_lens', 'page_indices', 'cu_q_lens') else '?'} {name}"
    for name in PagedOperands._fields[1:]
)
xp = TorchNamespace()

library = torch.library.Library("tilewise", "DEF")
library.define(f"attention(Tensor q, Tensor k, Tensor v, {OPTIONAL}, str plan) -> (Tensor, Tensor)")
library.define(
    f"attention_backward(Tensor q, Tensor k, Tensor v, {OPTIONAL}, Tensor out, Tensor lse, Tensor dout, "
    "Tensor? dlse, str plan, bool[] wanted) -> Tensor[]"
)
library.define(f"paged(Tensor q, {PAGED}, str plan) -> (Tensor, Tensor)")
library.define(
    "append(Tensor k, Tensor v, "
    + PAGED.replace("Tensor k_pages", "Tensor(a!) k_pages").replace("Tensor? v_pages", "Tensor(b!)? v_pages")
    + ", str plan) -> ()"
)


def on(x: Tensor, function: Callable[..., Any], *args: Any) -> Any:
    """function(*args) with the device of x as the place of new tensors."""
    if x.is_cpu:
        return function(*args)
    with x.device:
        return function(*args)


def _attention(*args: Any) -> tuple[Tensor, Tensor]:
    *operands, text = args
    plan = from_text(text)
    out, lse = on(args[0], backend_list.load(plan.backend).forward, plan, Operands(*operands))
    return out.contiguous(), lse.contiguous()


def _attention_fake(*args: Any) -> tuple[Tensor, Tensor]:
    return _like(args[0], from_text(args[-1]).problem)


def _attention_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:COUNT], *output)
    ctx.plan = inputs[COUNT]


def _attention_grad(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    return (*_gradients(ctx, attention_backward, ctx.needs_input_grad, dout, dlse), None)


def _gradients(ctx: Any, run: Any, needed: Any, dout: Tensor | None, dlse: Tensor | None) -> list[Any]:
    """The gradient of each operand, by run (attention_backward or what it calls); None where none is needed."""
    for x in (dout, dlse):
        if x is not None and not watched() and not torch._C._has_storage(x):
            raise Unsupported(NO_BATCH)
    *operands, out, lse = ctx.saved_tensors
    found: list[Any] = [None] * COUNT
    if dout is None and dlse is None:
        return found
    if dout is None:
        dout = torch.zeros_like(out)
    wanted = [needed[i] for i in DIFFERENTIABLE]
    grads = iter(run(*operands, out, lse, dout, dlse, ctx.plan, wanted))
    for i, want in zip(DIFFERENTIABLE, wanted):
        found[i] = next(grads) if want else None
    return found


class DirectAttention(torch.autograd.Function):
    """For calls that nothing watches: without the dispatcher, which takes most of the time of a small call."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *operands: Any) -> Any:
        out, lse = on(operands[0], backend_list.load(plan.backend).forward, plan, Operands(*operands))
        _attention_setup(ctx, (*operands, to_text(plan)), (out, lse))
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        run = attention_backward if watched() or torch.is_grad_enabled() else _backward
        return (None, *_gradients(ctx, run, ctx.needs_input_grad[1:], dout, dlse))


class Attention(torch.autograd.Function):
    """The operator with its gradient, also for torch.func (which cannot see the gradient of a plain operator)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return torch.ops.tilewise.attention(*args)

    setup_context = staticmethod(_attention_setup)
    backward = staticmethod(_attention_grad)


def _backward(*args: Any) -> list[Tensor]:
    *arrays, out, lse, dout, dlse, text, flags = args
    plan, operands, wanted = with_gradients(from_text(text)), Operands(*arrays), Gradients(*flags)
    backward = backend_list.load(plan.backend).backward
    grads = on(out, backward, plan, operands, out, lse, dout, dlse, wanted)
    return [grad.contiguous() for grad, want in zip(grads, wanted, strict=True) if want]


def _backward_fake(*args: Any) -> list[Tensor]:
    *operands, _, _, _, _, _, wanted = args
    inputs = [operands[i] for i in DIFFERENTIABLE]
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x, want in zip(inputs, wanted) if want]


def _backward_grad(ctx: Any, *grads: Any) -> Any:
    raise Unsupported(NO_SECOND)


class AttentionBackward(torch.autograd.Function):
    """The gradient as a function of its own, which refuses a second derivative in words."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*args: Any) -> Any:
        return tuple(torch.ops.tilewise.attention_backward(*args))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    backward = staticmethod(_backward_grad)


def attention_backward(*args: Any) -> Any:
    """The gradients that are wanted, as a sequence."""
    return AttentionBackward.apply(*args)


def _paged(*args: Any) -> tuple[Tensor, Tensor]:
    *operands, text = args
    plan = from_text(text)
    out, lse = on(args[0], backend_list.load(plan.backend).paged, plan, PagedOperands(*operands))
    return out.contiguous(), lse.contiguous()


def _append(*args: Any) -> None:
    k, v, *operands, text = args
    plan = from_text(text)
    on(k, backend_list.load(plan.backend).append, plan, PagedOperands(None, *operands), k, v)


def _like(x: Tensor, problem: Any) -> tuple[Tensor, Tensor]:
    out = torch.empty(problem.out_shape, dtype=x.dtype, device=x.device)
    return out, torch.empty(problem.lse_shape, dtype=DTYPES[problem.real], device=x.device)


def _attention_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    n, plan = info.batch_size, from_text(args[COUNT])
    moved, mapped = _leading(args, in_dims)
    operands = Operands(*moved[:COUNT])
    if not fold.foldable(plan, operands, mapped[:COUNT]):
        return _loop(torch.ops.tilewise.attention, n, moved, mapped)
    return _folded(plan, operands, mapped, n, ()), (0, 0)


def _folded(plan: Plan, operands: Operands, mapped: tuple[bool, ...], n: int, rest: tuple[Any, ...]) -> Any:
    """rest: out, lse, dout, dlse and wanted of a backward call."""
    batch = plan.problem.batch
    plan, operands = fold.fold(xp, plan, operands, mapped[:COUNT], n)
    if not rest:
        results = torch.ops.tilewise.attention(*operands, to_text(plan))
        return tuple(fold.split_axes(xp, x, n, batch) for x in results)
    *rows, wanted = rest
    rows = [None if x is None else fold.merge_axes(xp, x, m, n) for x, m in zip(rows, mapped[COUNT:])]
    results = torch.ops.tilewise.attention_backward(*operands, *rows, to_text(plan), wanted)
    return [fold.split_axes(xp, x, n, batch) for x in results]


def _backward_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    n, plan, wanted = info.batch_size, from_text(args[-2]), args[-1]
    moved, mapped = _leading(args, in_dims)
    operands = Operands(*moved[:COUNT])
    if not fold.foldable(plan, operands, mapped[:COUNT], backward=True):
        return _loop(torch.ops.tilewise.attention_backward, n, moved, mapped)
    grads = _folded(plan, operands, mapped, n, (*moved[COUNT : COUNT + 4], wanted))
    return grads, [0] * len(grads)


def _paged_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    return _loop(torch.ops.tilewise.paged, info.batch_size, *_leading(args, in_dims))


def _append_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    raise Unsupported("append_to_pages: it writes in place and cannot be mapped by torch.func.vmap.")


def _leading(args: tuple[Any, ...], in_dims: tuple[Any, ...]) -> tuple[list[Any], tuple[bool, ...]]:
    """Arguments with their mapped axis in front, and which have one."""
    mapped = tuple(isinstance(dim, int) for dim in in_dims)
    return [x.movedim(dim, 0) if m else x for x, dim, m in zip(args, in_dims, mapped)], mapped


def _loop(op: Any, n: int, args: list[Any], mapped: tuple[bool, ...]) -> tuple[Any, Any]:
    """One call after the other: what no single call can do."""
    calls = [op(*(x[i] if m else x for x, m in zip(args, mapped))) for i in range(n)]
    stacked = [torch.stack(parts) for parts in zip(*calls, strict=True)]
    return (tuple(stacked), (0,) * len(stacked)) if isinstance(calls[0], tuple) else (stacked, [0] * len(stacked))


def _register(name: str, run: Any, fake: Any, vmap: Any, grad: Any = None, setup: Any = None) -> None:
    full = f"tilewise::{name}"
    library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(full, fake, lib=library)
    torch.library.register_vmap(full, vmap, lib=library)
    if grad is not None:
        torch.library.register_autograd(full, grad, setup_context=setup, lib=library)


_register("attention", _attention, _attention_fake, _attention_vmap, _attention_grad, _attention_setup)
_register("attention_backward", _backward, _backward_fake, _backward_vmap, _backward_grad)
_register("paged", _paged, _attention_fake, _paged_vmap)
_register("append", _append, lambda *args: None, _append_vmap)
