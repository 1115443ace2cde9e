"""NumPy arrays to the native kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewise.backends.cpu import launch
from tilewise.choose.plan import Plan
from tilewise.frameworks.numpy_adapter import DTYPES
from tilewise.spec.problem import Gradients, Operands, PagedOperands


class NumpyAccess:
    """launch.Access for NumPy."""

    def address(self, x: np.ndarray) -> int:
        return x.ctypes.data

    def strides(self, x: np.ndarray) -> tuple[int, ...]:
        item = x.itemsize
        return tuple(stride // item for stride in x.strides)

    def rows(self, x: np.ndarray) -> np.ndarray:
        x = self.strided(x)
        if x.shape[-1] > 1 and x.strides[-1] != x.itemsize:
            return np.ascontiguousarray(x)
        return x

    def strided(self, x: np.ndarray) -> np.ndarray:
        if not x.dtype.isnative:
            x = x.astype(x.dtype.newbyteorder("="))
        if not x.flags.aligned or any(stride % x.itemsize for stride in x.strides):
            return np.ascontiguousarray(x).copy()
        return x

    def dense(self, x: Any, dtype: str) -> np.ndarray:
        return np.require(np.asarray(x).astype(DTYPES[dtype], copy=False), requirements=["C", "A"])

    def empty(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return np.empty(shape, DTYPES[dtype])

    def dtype(self, x: np.ndarray) -> str:
        return x.dtype.name

    def copy_into(self, x: np.ndarray, values: np.ndarray) -> None:
        x[...] = values


ACCESS = NumpyAccess()


def forward(plan: Plan, operands: Operands) -> tuple[Any, Any]:
    return launch.forward(ACCESS, plan, operands)


def backward(plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None,
             wanted: Gradients) -> Gradients:  # fmt: skip
    return launch.backward(ACCESS, plan, operands, out, lse, dout, dlse, wanted)


def paged(plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
    return launch.paged(ACCESS, plan, operands)


def append(plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
    return launch.append(ACCESS, plan, operands, k, v)


def merge(states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    return launch.merge(ACCESS, states)
