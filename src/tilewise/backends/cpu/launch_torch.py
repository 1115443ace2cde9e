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
        if x.data_ptr() % x.element_size():
            return x.clone(memory_format=torch.contiguous_format)
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


class Prepared:
    """A dense call of q, k and v alone, with all but the addresses known."""

    __slots__ = ("call", "like", "lse_shape", "out_like_q", "out_shape", "plan")

    def __init__(self, plan: Plan, q: torch.Tensor, strides: list[tuple[int, ...]]) -> None:
        self.plan = plan
        self.call = launch.plain_call(plan, *strides).forward_plain
        self.out_shape, self.lse_shape = plan.problem.out_shape, plan.problem.lse_shape
        self.out_like_q = q.is_contiguous() and tuple(q.shape) == self.out_shape
        self.like = ACCESS.empty((0,), plan.problem.real)  # new_empty is the fastest way to a tensor

    def __call__(self, operands: Operands, need_lse: bool) -> tuple[Any, Any]:
        q, k, v = operands[:3]
        q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if not (q_at and k_at and v_at) or q.is_neg() or k.is_neg() or v.is_neg():
            return launch.forward(ACCESS, self.plan, operands)
        out = torch.empty_like(q) if self.out_like_q else q.new_empty(self.out_shape)
        if not need_lse:
            self.call(q_at, k_at, v_at, out.data_ptr(), 0)
            return out, None
        lse = self.like.new_empty(self.lse_shape)
        self.call(q_at, k_at, v_at, out.data_ptr(), lse.data_ptr())
        return out, lse


def forward(plan: Plan, operands: Operands) -> tuple[Any, Any]:
    if plan.memo is not None and not plan.memo:
        strides = [x.stride() for x in (operands.q, operands.k, operands.v)]
        widths = (plan.problem.qk_dim, plan.problem.qk_dim, plan.problem.v_dim)
        dense_rows = all(s[-1] == 1 or width == 1 for s, width in zip(strides, widths))
        alone = plan.problem.form == "dense" and all(x is None for x in operands[3:])
        plan.memo.append(Prepared(plan, operands.q, strides) if alone and dense_rows else None)
    return launch.forward(ACCESS, plan, operands)


def backward(plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    return launch.backward(ACCESS, plan, operands, out, lse, dout, dlse, wanted)


def paged(plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
    return launch.paged(ACCESS, plan, operands)


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    return launch.append(ACCESS, plan, operands, k, v)


def merge(states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    return launch.merge(ACCESS, states)
