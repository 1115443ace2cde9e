"""CPU tensors of PyTorch to the native kernels."""

from __future__ import annotations

from typing import Any

import torch

from tilewise.backends.cpu import launch
from tilewise.choose.plan import Plan
from tilewise.frameworks.torch_namespace import DTYPES, NAMES
from tilewise.spec.problem import Gradients, Operands, PagedOperands


class TorchAccess:
    """launch.Access for PyTorch."""

    def address(self, x: torch.Tensor) -> int:
        return x.data_ptr()

    def strides(self, x: torch.Tensor) -> tuple[int, ...]:
        return x.stride()

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        x = self.strided(x)
        return x if x.stride(-1) == 1 or x.shape[-1] < 2 else x.contiguous()

    def strided(self, x: torch.Tensor) -> torch.Tensor:
        return x.resolve_neg()

    def dense(self, x: torch.Tensor, dtype: str) -> torch.Tensor:
        return x.to(DTYPES[dtype]).contiguous()

    def empty(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.empty(shape, dtype=DTYPES[dtype], device="cpu")

    def dtype(self, x: torch.Tensor) -> str:
        return NAMES[x.dtype]

    def copy_into(self, x: torch.Tensor, values: torch.Tensor) -> None:
        x.copy_(values)


ACCESS = TorchAccess()
_prepared: dict[Any, Any] = {}  # (plan, strides of q, k, v) -> what a call of these three alone needs


def forward(plan: Plan, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = operands[:3]
    key = (plan, q.stride(), k.stride(), v.stride())
    prepared = _prepared.get(key)
    if prepared is None:
        prepared = _prepared[key] = _prepare(plan, *key[1:]) or False
        if len(_prepared) > 8192:
            _prepared.clear()
    q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if prepared and q_at and k_at and v_at and not (q.is_neg() or k.is_neg() or v.is_neg()):
        call, out_shape, lse_shape, lse_dtype = prepared
        out = q.new_empty(out_shape)
        lse = q.new_empty(lse_shape) if lse_dtype is None else torch.empty(lse_shape, dtype=lse_dtype, device="cpu")
        call(q_at, k_at, v_at, out.data_ptr(), lse.data_ptr())
        return out, lse
    return launch.forward(ACCESS, plan, operands)


def _prepare(plan: Plan, *strides: tuple[int, ...]) -> tuple[Any, ...] | None:
    """The native call of a dense call with q, k, v alone and dense rows."""
    p, spec = plan.problem, plan.spec
    operands = spec.bias or spec.mask or spec.sinks or spec.segments or spec.q_lens or spec.kv_lens
    widths = (p.qk_dim, p.qk_dim, p.v_dim)
    if p.form != "dense" or operands or any(s[-1] != 1 and width > 1 for s, width in zip(strides, widths)):
        return None
    call = launch.plain_call(plan, *strides)
    return call.forward_plain, p.out_shape, p.lse_shape, None if p.real == p.dtype else DTYPES[p.real]


def backward(plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    grads = launch.backward(ACCESS, plan, operands, out, lse, dout, dlse, wanted)
    dbias, dsinks = (
        None if grad is None else grad.to(given.dtype)
        for grad, given in zip(grads[3:], (operands.bias, operands.sinks))
    )
    return Gradients(*grads[:3], dbias, dsinks)


def paged(plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
    return launch.paged(ACCESS, plan, operands)


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    return launch.append(ACCESS, plan, operands, k, v)


def merge(states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    return launch.merge(ACCESS, states)
