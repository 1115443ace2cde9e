"""A call does not know what ran before it: no option, plan or scratch memory is carried over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise as tw
from tests.frameworks.calls import BACKENDS, KINDS, call_of, paged_step


def dense(kind: str, backend: str, fill: float | None = None) -> list[Any]:
    """All results of a call; fill: with q, k, v and dout of this number."""
    call = call_of(kind)
    packed = kind == "packed"
    forward: Any = tw.attention_packed if packed else tw.attention
    backward: Any = tw.attention_packed_backward if packed else tw.attention_backward
    arrays = {n: x.astype(np.float32) if fill is None else np.full(x.shape, fill, "f") for n, x in call.arrays.items()}
    given: dict[str, Any] = {**arrays, **call.others, **call.options, "backend": backend}
    out, lse = forward(**given, return_lse=True)
    return [out, lse, *backward(**given, out=out, lse=lse, dout=call.dout.astype(np.float32))]


def paged(dtype: str, backend: str, fill: float | None = None) -> list[Any]:
    step = paged_step(dtype, combined=True)
    q, pages = step.q, step.kv_pages
    if fill is not None and dtype != "int8":
        q, pages = np.full(q.shape, fill, q.dtype), np.full(pages.shape, fill, pages.dtype)
    return list(tw.ragged_paged_attention(q, pages, **step.batch, **step.scales, return_lse=True, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_in_any_order(backend: str) -> None:
    """The dense kinds have the same sizes, and differ in options and operands alone."""
    calls = [(dense, kind) for kind in KINDS] + [(paged, dtype) for dtype in ("float32", "bfloat16", "int8")]
    first = [[None if x is None else x.tobytes() for x in run(kind, backend)] for run, kind in calls]
    rng = np.random.default_rng(0)
    for i in rng.permutation(np.repeat(np.arange(len(calls)), 5)):
        run, kind = calls[rng.integers(len(calls))]
        with np.errstate(all="ignore"):
            run(kind, backend, fill=rng.choice([np.nan, np.inf, 1e30]))  # leaves what it likes in scratch memory
        run, kind = calls[i]
        assert [None if x is None else x.tobytes() for x in run(kind, backend)] == first[i], kind
