"""JAX arrays to the TPU kernels; traceable, so that it runs inside jit, shard_map and export."""

from __future__ import annotations

from typing import Any

from tilewise.backends.tpu import dense_call, dense_tiles, paged_call, target
from tilewise.backends.tpu.example_call import vmem_limit
from tilewise.choose.plan import Plan
from tilewise.spec import paged_reference
from tilewise.spec.problem import Gradients, Operands, PagedOperands


def forward(plan: Plan, operands: Operands) -> tuple[Any, Any]:
    """(out, lse) of a dense or packed call."""
    return dense_call.forward(plan.spec, plan.problem, plan.tiles, operands, **_how(plan))


def backward(plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    """The wanted gradients of a dense or packed call."""
    return dense_call.backward(
        plan.spec, plan.problem, plan.tiles, operands, out, lse, dout, dlse, wanted, **_how(plan)
    )


def _how(plan: Plan) -> dict[str, Any]:
    limit = None if plan.tiles is None else dense_tiles.vmem_limit(plan.spec, plan.problem, plan.tiles)
    return {"vmem_limit_bytes": limit, "interpret": target.interpret_parameters(plan.problem.device)}


def paged(plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
    """(out, lse) of a paged call."""
    interpret = target.interpret_parameters(plan.problem.device)
    limit = None if plan.tiles is None else vmem_limit(plan.spec, plan.problem, plan.tiles)
    return paged_call.paged(
        plan.spec, plan.problem, plan.tiles, operands, vmem_limit_bytes=limit, interpret=interpret
    )


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    """(k_pages, v_pages) with the new rows written: a scatter, which XLA does in place when the pages are donated."""
    from tilewise.frameworks.detect import detect

    return paged_reference.append(detect(k).namespace, plan.problem, operands, k, v)
