"""Plain array code in the caller's own framework: spec/reference.py run through its namespace. Refuses nothing."""

from __future__ import annotations

from typing import Any

from tilewise.backends.operand_values import check_dense, check_paged
from tilewise.choose.plan import Plan
from tilewise.frameworks.detect import detect
from tilewise.spec import paged_reference, reference
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import Gradients, Operands, PagedOperands, PagedProblem, Problem

KNOWN = frozenset({
    "causal", "window", "softcap", "bias", "mask", "sinks", "segments", "q_lens", "kv_lens",
    "draft_mask", "k_scale", "v_scale", "batch_invariant",
})  # fmt: skip


def missing() -> str | None:
    """Never."""
    return None


def why_not(spec: AttentionSpec, problem: Problem | PagedProblem) -> str | None:
    """Never refuses."""
    return None


def tile_choices(spec: AttentionSpec, problem: Problem | PagedProblem) -> tuple[Any, ...]:
    """Whole arrays: no tiles."""
    return ()


def device_kind() -> str:
    """Any."""
    return "any"


def forward(plan: Plan, operands: Operands) -> tuple[Any, Any]:
    """(out, lse); memory grows with T x S."""
    _check(plan, operands)
    return reference.forward(detect(operands.q).namespace, plan.spec, plan.problem, operands)


def backward(plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    """All gradients; `out`, `lse` and `wanted` are not needed."""
    _check(plan, operands)
    return reference.backward(detect(operands.q).namespace, plan.spec, plan.problem, operands, dout, dlse)


def paged(plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
    """(out, lse); memory grows with T x S of the longest sequence (of all of them while tracing)."""
    _check_paged(plan, operands)
    return paged_reference.paged(detect(operands.q).namespace, plan.spec, plan.problem, operands)


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    """(k_pages, v_pages) with the new rows written."""
    _check_paged(plan, operands)
    return paged_reference.append(detect(k).namespace, plan.problem, operands, k, v)


def _on_host(problem: Problem | PagedProblem, values: Any) -> bool:
    """Are the values there to be judged, with no copy from a device?"""
    if problem.framework not in ("numpy", "torch") or problem.device != "cpu":
        return False
    return detect(values).namespace.ints(values) is not None


def _check(plan: Plan, operands: Operands) -> None:
    given = next((x for x in operands.integers() if x is not None), None)
    if given is not None and _on_host(plan.problem, given):
        check_dense(plan.problem, operands)


def _check_paged(plan: Plan, operands: PagedOperands) -> None:
    if _on_host(plan.problem, operands.kv_lens):
        check_paged(plan, operands)
