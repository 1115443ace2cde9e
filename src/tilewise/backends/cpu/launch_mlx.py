"""MLX arrays to the native kernels: evaluated, then seen as NumPy arrays without a copy; results are copied once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from tilewise.backends.cpu import launch_numpy
from tilewise.choose.plan import Plan
from tilewise.spec.problem import Gradients, Operands, PagedOperands


def forward(plan: Plan, operands: Operands) -> tuple[Any, Any]:
    out, lse = launch_numpy.forward(plan, Operands(*map(_see, operands)))
    return _give(out), _give(lse)


def backward(plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    seen = Operands(*map(_see, operands))
    out, lse, dout, dlse = (_see(x) for x in (out, lse, dout, dlse))
    return Gradients(*map(_give, launch_numpy.backward(plan, seen, out, lse, dout, dlse, wanted)))


def paged(plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
    out, lse = launch_numpy.paged(plan, PagedOperands(*map(_see, operands)))
    return _give(out), _give(lse)


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    """Into copies of the pages: MLX arrays are values."""
    seen = PagedOperands(*map(_see, operands))
    pages = [None if x is None else x.copy() for x in (seen.k_pages, seen.v_pages)]
    seen = seen._replace(k_pages=pages[0], v_pages=pages[1])
    k_pages, v_pages = launch_numpy.append(plan, seen, _see(k), _see(v))
    return _give(k_pages), _give(v_pages)


def merge(states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    out, lse = launch_numpy.merge([(_see(out), _see(lse)) for out, lse in states])
    return _give(out), _give(lse)


def _see(x: Any) -> Any:
    if x is None:
        return None
    if x.dtype == mx.bfloat16:  # not a format of Python's buffers
        return np.asarray(x.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.asarray(x)


def _give(x: Any) -> Any:
    if x is None:
        return None
    return mx.array(x, dtype=mx.float64) if x.dtype == np.float64 else mx.array(x)
