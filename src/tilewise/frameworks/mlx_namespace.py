"""MLX as the words of spec/reference.py."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np

DTYPES = {
    name: getattr(mx, name)
    for name in ("float32", "bfloat16", "float16", "float64", "int8", "int32", "int64")
} | {"bool": mx.bool_}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def known(*arrays: Any) -> bool:
    """Do the arrays have values? Not inside mx.compile or mx.vmap; inside mx.grad they do."""
    try:
        mx.eval([x for x in arrays if x is not None])
    except ValueError:
        return False
    return True


class MlxNamespace:
    """framework_protocol.Namespace for MLX."""

    inf, nan = math.inf, math.nan
    log, tanh, isfinite, round = (staticmethod(f) for f in (mx.log, mx.tanh, mx.isfinite, mx.round))
    zeros_like, reshape, transpose = (staticmethod(f) for f in (mx.zeros_like, mx.reshape, mx.transpose))
    clip, matmul, broadcast = (staticmethod(f) for f in (mx.clip, mx.matmul, mx.broadcast_to))

    def real(self, dtype: str) -> Any:
        return mx.float64 if dtype == "float64" else mx.float32

    def cast(self, x: Any, dtype: Any) -> mx.array:
        return x.astype(DTYPES[dtype] if isinstance(dtype, str) else dtype)

    def dtype_of(self, x: Any) -> Any:
        return x.dtype

    def arange(self, n: int) -> mx.array:
        return mx.arange(n, dtype=mx.int32)

    def full(self, shape: tuple[int, ...], value: Any, dtype: Any = "bool") -> mx.array:
        return mx.full(shape, value, dtype=DTYPES[dtype] if isinstance(dtype, str) else dtype)

    def where(self, condition: Any, a: Any, b: Any) -> mx.array:
        dtype = next((x.dtype for x in (a, b) if isinstance(x, mx.array)), None)
        a, b = (x if isinstance(x, mx.array) or dtype is None else mx.array(x, dtype=dtype) for x in (a, b))
        return mx.where(condition, a, b)

    def exp(self, x: Any) -> mx.array:
        if x.dtype == mx.float64:  # mx.exp has the digits of float32 there
            return mx.power(mx.array(math.e, dtype=mx.float64), x)
        return mx.exp(x)

    def max(self, x: Any, axis: int) -> mx.array:
        m = mx.max(x, axis, keepdims=True)
        return mx.where(mx.any(x != x, axis, keepdims=True), mx.array(math.nan, dtype=x.dtype), m)

    def sum(self, x: Any, axis: int) -> mx.array:
        return mx.sum(x, axis, keepdims=True)

    def take(self, x: Any, index: Any) -> mx.array:
        return mx.take(x, index, axis=0)

    def concat(self, xs: list[Any], axis: int) -> mx.array:
        return mx.concatenate(xs, axis=axis)

    def stack(self, xs: list[Any], axis: int) -> mx.array:
        return mx.stack(xs, axis=axis)

    def known_true(self, x: Any) -> bool:
        return known(x) and bool(mx.all(x).item())

    def ints(self, x: Any) -> list[int] | None:
        return [int(i) for i in np.asarray(x).reshape(-1)] if known(x) else None

    def put_rows(self, x: Any, page: Any, slot: Any, rows: Any, keep: Any) -> mx.array:
        nowhere = x.shape[0]  # a page of its own for the rows that are not kept
        wider = mx.concatenate([x, mx.zeros((1, *x.shape[1:]), dtype=x.dtype)], axis=0)
        wider[mx.where(keep, page, mx.array(nowhere, dtype=page.dtype)), slot] = rows
        return wider[:nowhere]
