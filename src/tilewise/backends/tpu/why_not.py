"""What the TPU kernels refuse, and why."""

from __future__ import annotations

from tilewise.backends.tpu import dense_tiles, target
from tilewise.backends.tpu.tiles import first_choice, vmem_bytes
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem

KNOWN = frozenset({
    "causal", "window", "softcap", "sinks", "bias", "mask", "segments", "q_lens", "kv_lens", "k_scale", "v_scale",
    "draft_mask", "batch_invariant",
})  # fmt: skip
MIB = 2**20
SMEM_KEPT = 64 * 1024  # for what is not the page table


def why_not(spec: AttentionSpec, problem: Problem | PagedProblem) -> str | None:
    """A reason in words, or None: from spec and sizes alone."""
    if problem.framework != "jax":
        return f"takes JAX arrays only, not those of {problem.framework}"
    if not is_tpu(problem.device):
        return f'the arrays are on {problem.device}, no TPU (tw.target("v6e") lowers for one that is not there)'
    if not isinstance(problem, PagedProblem):
        if problem.dtype == "float64":
            return "TPUs have no float64"
        return None if dense_tiles.empty(problem) else _dense_too_large(spec, problem)
    if "float64" in (problem.dtype, problem.page_dtype):
        return "TPUs have no float64"
    if problem.form == "append" or 0 in (problem.max_seqs, problem.max_tokens):
        return None
    return _too_large(spec, problem)


def is_tpu(device: str) -> bool:
    """Is this device a TPU: "tpu", or "tpu:v6e"?"""
    return device.lower().startswith("tpu")


def _dense_too_large(spec: AttentionSpec, problem: Problem) -> str | None:
    chip = target.chip_of(problem.device)
    vmem, smem = (chip.vmem, chip.smem) if chip else (16 * MIB, MIB)
    tiles = dense_tiles.first_choice(spec, problem)
    if (tables := dense_tiles.table_bytes(problem, tiles)) > smem - SMEM_KEPT:
        return (f"the tables of {problem.batch} sequences of {problem.q_len} queries and {problem.kv_len} keys need "
                f"{tables / 1024:.0f} KiB of scalar memory, of {smem // 1024} KiB; use smaller batches")  # fmt: skip
    if (needed := dense_tiles.vmem_bytes(spec, problem, tiles)) > vmem * 0.9:
        return f"the smallest tiles need {needed / MIB:.1f} MiB of VMEM, of {vmem / MIB:.0f} MiB"
    return None


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
