"""The support table: every backend asked about every capability, framework by framework. Needs no device."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from tilewise.backends.cpu import library
from tilewise.choose import backend_list
from tilewise.errors import Unsupported
from tilewise.frameworks.detect import ADAPTERS
from tilewise.spec.attention_spec import AttentionSpec
from tilewise.spec.problem import PAGE_DTYPES, QUERY_DTYPES, ArrayInfo, PagedProblem, Problem

Call = tuple[AttentionSpec, Problem | PagedProblem]

FRAMEWORKS = ("numpy", "torch", "jax", "mlx")
DEVICES = {"tpu": "tpu"}  # of the backends that are not of the CPU
NO_ARRAYS = {"mlx": ("float8_e4m3fn", "float8_e5m2")}
PLAIN = AttentionSpec(scale=0.125)
DENSE = Problem("dense", 2, 256, 256, 8, 2, 64, 64, "float32", "cpu", "numpy")
PACKED = replace(DENSE, form="packed")
PAGED = PagedProblem(64, 8, 128, 16, 16, 8, 2, 64, 64, "float32", "float32", "cpu", "numpy")
PAIRS = ArrayInfo((2, 8, 256, 256), "float32", "cpu")


def calls() -> dict[str, Call]:
    """Capability -> a call that needs it and nothing else."""
    paged_spec = replace(PLAIN, window=(None, 0))
    found: dict[str, Call] = {
        "dense forward": (PLAIN, DENSE),
        "dense backward": (PLAIN, replace(DENSE, needs_grad=True)),
        "packed forward": (PLAIN, PACKED),
        "packed backward": (PLAIN, replace(PACKED, needs_grad=True)),
        "paged (decode, prefill, mixed)": (paged_spec, PAGED),
        "append to pages": (PLAIN, replace(PAGED, form="append")),
    }
    for dtype in QUERY_DTYPES:
        found[f"{dtype}"] = (PLAIN, replace(DENSE, dtype=dtype, needs_grad=True))
    found["odd widths, D 80, E 48"] = (PLAIN, replace(DENSE, qk_dim=80, v_dim=48, needs_grad=True))
    features: dict[str, dict[str, Any]] = {
        "causal": {"window": (None, 0)}, "window": {"window": (127, 0)}, "soft cap": {"softcap": 30.0},
        "bias, its gradient": {"bias": True}, "mask": {"mask": True}, "sinks, their gradient": {"sinks": True},
        "segment ids": {"segments": True}, "lengths": {"q_lens": True, "kv_lens": True},
    }  # fmt: skip
    for name, options in features.items():
        pairs: Any = {key: PAIRS for key in ("bias", "mask") if key in options}
        found[name] = (replace(PLAIN, **options), replace(DENSE, needs_grad=True, **pairs))
    for dtype in PAGE_DTYPES:
        scaled = dtype in ("int8", "float8_e4m3fn", "float8_e5m2")
        spec = replace(paged_spec, k_scale="slot", v_scale="slot") if scaled else paged_spec
        query = dtype if dtype in QUERY_DTYPES else "float32"
        found[f"{dtype} pages"] = (spec, replace(PAGED, dtype=query, page_dtype=dtype))
    found["draft mask"] = (replace(PLAIN, draft_mask=True), replace(PAGED, max_new=4))
    found["batch invariance"] = (replace(paged_spec, batch_invariant=True), PAGED)
    return found


def answer(backend: str, framework: str, call: Call) -> str | None:
    """Why not, or None; what this machine lacks is not looked at."""
    module = backend_list.load(backend)
    if not takes(backend, framework):
        return f"{backend} does not take {framework} arrays"
    spec, problem = call
    for dtype in (problem.dtype, getattr(problem, "page_dtype", problem.dtype)):
        if dtype in NO_ARRAYS.get(framework, ()):
            return f"{framework} has no {dtype} arrays"
    unknown = spec.features() - module.KNOWN
    if unknown:
        return f"does not know {', '.join(sorted(unknown))}"
    return module.why_not(spec, replace(problem, framework=framework, device=DEVICES.get(backend, "cpu")))


def takes(backend: str, framework: str) -> bool:
    """Has the backend a way in for arrays of this framework?"""
    return backend == "composed" or find_spec(f"{backend_list.MODULES[backend]}.launch_{framework}") is not None


def markdown() -> str:
    """A table: capabilities down, backends and frameworks across (alike ones share a column); reasons below."""
    if (reason := library.missing()) is not None:
        raise Unsupported("The support table is made where the CPU backend is built:", (("cpu", reason),))
    reasons: dict[str, int] = {}
    columns: dict[tuple[str, ...], list[str]] = {}
    for backend in backend_list.MODULES:
        for framework in FRAMEWORKS:
            if find_spec(ADAPTERS[framework]) is not None and takes(backend, framework):
                cells = tuple(_cell(answer(backend, framework, call), reasons) for call in calls().values())
                columns.setdefault((backend, *cells), []).append(framework)
    heads = [f"{key[0]}: {', '.join(frameworks)}" for key, frameworks in columns.items()]
    lines = ["| | " + " | ".join(heads) + " |", "| --- |" + " :-: |" * len(heads)]
    for row, name in enumerate(calls(), start=1):
        lines.append(f"| {name} | " + " | ".join(key[row] for key in columns) + " |")
    if reasons:
        lines += ["", *(f"[{number}] {reason}  " for reason, number in reasons.items())]
    return "\n".join(lines) + "\n"


def _cell(reason: str | None, reasons: dict[str, int]) -> str:
    return "yes" if reason is None else f"no [{reasons.setdefault(reason, len(reasons) + 1)}]"
