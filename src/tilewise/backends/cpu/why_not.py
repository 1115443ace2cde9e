"""What the CPU kernels refuse, and why."""

from __future__ import annotations

from tilewise.backends.cpu import library
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PagedProblem, Problem

KNOWN = frozenset({
    "causal", "window", "softcap", "bias", "mask", "sinks", "segments", "q_lens", "kv_lens",
    "draft_mask", "k_scale", "v_scale", "batch_invariant",
})  # fmt: skip


def why_not(spec: AttentionSpec, problem: Problem | PagedProblem) -> str | None:
    """A reason in words, or None: from spec and sizes alone."""
    if problem.device != "cpu":
        return f"the arrays are on {problem.device}"
    if problem.framework == "jax" and not library.has_ffi():
        return "the compiled module was built without the XLA FFI headers of jaxlib, so JAX cannot call it"
    if isinstance(problem, PagedProblem) and (problem.dtype == "float64") != (problem.page_dtype == "float64"):
        return f"float64 goes with float64 only, but q is {problem.dtype} and the pages are {problem.page_dtype}"
    return None
