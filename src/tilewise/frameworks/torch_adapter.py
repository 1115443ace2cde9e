"""PyTorch: straight to the kernels, or through operators (torch_ops.py) where autograd, compile or vmap watch."""

from __future__ import annotations

import sys
from typing import Any

import torch

from tilewise.choose import backend_list
from tilewise.choose.plan import Plan, to_text
from tilewise.errors import InvalidInput
from tilewise.frameworks import detect, torch_ops
from tilewise.frameworks.torch_modes import direct, refuse_forward_mode, watched
from tilewise.frameworks.torch_namespace import NAMES, TorchNamespace
from tilewise.spec import merge_reference
from tilewise.spec.problem import ArrayInfo, Gradients, Operands, PagedOperands

_grad_enabled = torch.is_grad_enabled


class TorchAdapter:
    """framework_protocol.Adapter for PyTorch.

    Under autocast q, k and v are cast as scaled_dot_product_attention casts its arguments: all that are float32,
    bfloat16 or float16 become the autocast dtype; bias and sinks stay as they are. In a paged call q alone is cast.
    """

    name = "torch"
    namespace = TorchNamespace()
    _told_dynamo = False

    def announce(self) -> None:
        """Let torch.compile keep each entry as one call, whose operators it meets below (once dynamo is loaded)."""
        if not self._told_dynamo and "torch._dynamo" in sys.modules:
            for function in detect.ENTRIES:
                torch.compiler.allow_in_graph(function)
            self._told_dynamo = True

    def convert(self, operands: Any) -> Any:
        q = operands.q
        if not torch._C._is_any_autocast_enabled() or not isinstance(q, torch.Tensor):
            return operands
        kind = q.device.type
        if not torch.is_autocast_enabled(kind):
            return operands
        dtype = torch.get_autocast_dtype(kind)
        names = ("q", "k", "v") if isinstance(operands, Operands) else ("q",)
        arrays = {name: getattr(operands, name) for name in names}
        return operands._replace(**{name: x.to(dtype) for name, x in arrays.items() if _castable(x)})

    def info(self, name: str, x: Any) -> ArrayInfo:
        if not isinstance(x, torch.Tensor):
            raise InvalidInput(f"{name} must be a torch.Tensor like the first argument, but is a {type(x).__name__}.")
        if x.layout != torch.strided or x.is_nested:
            raise InvalidInput(f"{name} must be a dense (strided) tensor, but its layout is {x.layout}; "
                               "attention_packed takes sequences of different lengths.")  # fmt: skip
        return ArrayInfo(tuple(int(size) for size in x.shape), NAMES.get(x.dtype, str(x.dtype)[6:]), str(x.device))

    def signature(self, arrays: Any) -> Any:
        # Types and strides too: plan.memo holds a native call that is made for them.
        return (_grad_enabled(), *[
            None if x is None
            else (type(x), x.shape, x.stride(), x.dtype, x.requires_grad, x.is_cpu or x.device) for x in arrays
        ])  # fmt: skip

    def needs_grad(self, *arrays: Any) -> bool:
        if not torch.is_grad_enabled():
            return False
        for x in arrays:  # noqa: SIM110 (any() would cost a microsecond)
            if x is not None and getattr(x, "requires_grad", False):
                return True
        return False

    def run(self, plan: Plan, operands: Operands, need_lse: bool = True) -> tuple[Any, Any]:
        if plan.problem.needs_grad:
            if direct(operands):
                return torch_ops.DirectAttention.apply(plan, *operands)
        elif plan.memo and plan.memo[0] is not None and not watched():
            return plan.memo[0](operands, need_lse)
        elif direct(operands):
            return torch_ops.on(operands.q, backend_list.load(plan.backend).forward, plan, operands)
        refuse_forward_mode("attention", operands)
        return torch_ops.Attention.apply(*operands, to_text(plan))

    def run_backward(
        self, plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None
    ) -> Gradients:
        refuse_forward_mode("attention_backward", (*operands, out, lse, dout, dlse))
        wanted = [x is not None for x in (*operands[:4], operands.sinks)]
        grads = iter(torch_ops.attention_backward(*operands, out, lse, dout, dlse, to_text(plan), wanted))
        return Gradients(*(next(grads) if want else None for want in wanted))

    def run_paged(self, plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
        if direct(operands):
            return torch_ops.on(operands.q, backend_list.load(plan.backend).paged, plan, operands)
        refuse_forward_mode("ragged_paged_attention", operands)
        return torch.ops.tilewise.paged(*operands, to_text(plan))

    def run_append(self, plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
        if any(x is not None and _overlaps(x) for x in (operands.k_pages, operands.v_pages)):
            raise InvalidInput("append_to_pages: pages that share memory with themselves (expanded) cannot be written.")
        if direct((k, v, *operands)):
            written = [x for x in (operands.k_pages, operands.v_pages) if x is not None and not x.is_inference()]
            torch.autograd.graph.increment_version(written)
            torch_ops.on(k, backend_list.load(plan.backend).append, plan, operands, k, v)
        else:
            refuse_forward_mode("append_to_pages", (k, v, *operands))
            torch.ops.tilewise.append(k, v, *operands[1:], to_text(plan))
        return operands.k_pages, operands.v_pages

    def run_merge(self, states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        arrays = [x for state in states for x in state]
        cpu = backend_list.load("cpu")
        if arrays[0].is_cpu and not self.needs_grad(*arrays) and direct(arrays) and cpu.missing() is None:
            return cpu.merge("torch", states)
        return torch_ops.on(arrays[0], merge_reference.merge, self.namespace, states)

    def scalar(self, value: float, like: Any) -> Any:
        return torch.tensor(value, dtype=torch.float32, device=like.device)


def _overlaps(x: Any) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape))


def _castable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in (torch.float32, torch.bfloat16, torch.float16)


adapter = TorchAdapter()
