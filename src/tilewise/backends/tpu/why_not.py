"""What the TPU kernels refuse, and why."""

from __future__ import annotations

from tilewise.backends.tpu import target
from tilewise.backends.tpu.tiles import first_choice, vmem_bytes
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem

KNOWN = frozenset({"causal", "window", "softcap", "sinks", "k_scale", "v_scale", "draft_mask", "batch_invariant"})
MIB = 2**20
SMEM_KEPT = 64 * 1024  # for what is not the page table


def why_not(spec: AttentionSpec, problem: Problem | PagedProblem) -> str | None:
    """A reason in words, or None: from spec and sizes alone."""
    if problem.framework != "jax":
        return f"takes JAX arrays only, not those of {problem.framework}"
    if not is_tpu(problem.device):
        return f'the arrays are on {problem.device}, no TPU (tw.target("v6e") lowers for one that is not there)'
    if not isinstance(problem, PagedProblem):
        return "only paged calls have a TPU kernel"
    if "float64" in (problem.dtype, problem.page_dtype):
        return "TPUs have no float64"
    if problem.form == "append" or 0 in (problem.max_seqs, problem.max_tokens):
        return None
    return _too_large(spec, problem)


def is_tpu(device: str) -> bool:
    """Is this device a TPU: "tpu", or "tpu:v6e"?"""
    return device.lower().startswith("tpu")


def _too_large(spec: AttentionSpec, problem: PagedProblem) -> str | None:
    chip = target.chip_of(problem.device)
    vmem, smem = (chip.vmem, chip.smem) if chip else (16 * MIB, MIB)
    tables = 4 * (problem.max_seqs * (problem.pages_per_seq + 2) + 2 * problem.kv_heads)
    if tables > smem - SMEM_KEPT:
        return (f"the page table of {problem.max_seqs} x {problem.pages_per_seq} entries and the lengths need "
                f"{tables / 1024:.0f} KiB of scalar memory, of {smem // 1024} KiB; use larger pages")  # fmt: skip
    needed = vmem_bytes(spec, problem, first_choice(spec, problem))
    if needed > vmem * 0.9:
        return f"the smallest tiles need {needed / MIB:.1f} MiB of VMEM, of {vmem / MIB:.0f} MiB"
    return None
