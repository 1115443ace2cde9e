"""Plain array code in the caller's own framework: spec/reference.py run through its namespace. Refuses nothing."""

from __future__ import annotations

from typing import Any

from tilewise.check_values import check_values
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
    _check_paged(plan.problem, operands, left=plan.spec.window[0])
    return paged_reference.paged(detect(operands.q).namespace, plan.spec, plan.problem, operands)


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    """(k_pages, v_pages) with the new rows written."""
    _check_paged(plan.problem, operands, append=True)
    return paged_reference.append(detect(k).namespace, plan.problem, operands, k, v)


def _on_host(problem: Problem | PagedProblem, values: Any) -> bool:
    """Are the values there to be judged, with no copy from a device?"""
    if problem.framework not in ("numpy", "torch") or problem.device != "cpu":
        return False
    return detect(values).namespace.ints(values) is not None


def _check(plan: Plan, operands: Operands) -> None:
    names = ("q_lens", "kv_lens", "q_starts", "kv_starts", "q_segment_ids", "kv_segment_ids")
    values = {name: getattr(operands, name) for name in names if getattr(operands, name) is not None}
    if values and _on_host(plan.problem, next(iter(values.values()))):
        check_values(q_len=plan.problem.q_len, kv_len=plan.problem.kv_len, **values)


def _check_paged(problem: PagedProblem, operands: PagedOperands, **options: Any) -> None:
    if _on_host(problem, operands.kv_lens):
        check_values(
            kv_lens=operands.kv_lens, page_indices=operands.page_indices, cu_q_lens=operands.cu_q_lens,
            num_seqs=operands.num_seqs, num_pages=problem.num_pages, page_size=problem.page_size,
            max_tokens=problem.max_tokens, **options,
        )  # fmt: skip
