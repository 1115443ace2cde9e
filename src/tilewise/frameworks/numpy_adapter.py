"""NumPy: no gradients of its own; ml_dtypes gives it bfloat16 and float8."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilewise.choose import backend_list
from tilewise.choose.plan import Plan
from tilewise.errors import InvalidInput
from tilewise.spec import merge_reference
from tilewise.spec.problem import ArrayInfo, Gradients, Operands, PagedOperands

DTYPES = {
    "bool": np.dtype(bool), "int32": np.dtype(np.int32), "int64": np.dtype(np.int64), "int8": np.dtype(np.int8),
    "float16": np.dtype(np.float16), "float32": np.dtype(np.float32), "float64": np.dtype(np.float64),
    "bfloat16": np.dtype(ml_dtypes.bfloat16), "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip


class NumpyNamespace:
    """framework_protocol.Namespace for NumPy."""

    inf, nan = np.float32(np.inf), np.float32(np.nan)
    exp, log, tanh, isfinite, round = np.exp, np.log, np.tanh, np.isfinite, np.rint
    zeros_like, reshape = staticmethod(np.zeros_like), staticmethod(np.reshape)
    transpose, clip = staticmethod(np.transpose), staticmethod(np.clip)

    def real(self, dtype: str) -> np.dtype:
        return DTYPES["float64" if dtype == "float64" else "float32"]

    def cast(self, x: Any, dtype: Any) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.asarray(x).astype(DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype, copy=False)

    def dtype_of(self, x: Any) -> np.dtype:
        return x.dtype

    def arange(self, n: int) -> np.ndarray:
        return np.arange(n, dtype=np.int32)

    def full(self, shape: tuple[int, ...], value: Any, dtype: Any = "bool") -> np.ndarray:
        return np.full(shape, value, DTYPES[dtype] if isinstance(dtype, str) else dtype)

    def where(self, condition: Any, a: Any, b: Any) -> np.ndarray:
        # A bare number takes the dtype of its partner.
        dtype = next((x.dtype for x in (a, b) if isinstance(x, np.ndarray)), None)
        return np.where(condition, np.asarray(a, dtype), np.asarray(b, dtype))

    def max(self, x: Any, axis: int) -> np.ndarray:
        return np.max(x, axis, keepdims=True)

    def sum(self, x: Any, axis: int) -> np.ndarray:
        return np.sum(x, axis, keepdims=True, dtype=x.dtype)

    def take(self, x: Any, index: Any) -> np.ndarray:
        return x[index]

    def matmul(self, a: Any, b: Any) -> np.ndarray:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.matmul(a, b)

    def concat(self, xs: list[Any], axis: int) -> np.ndarray:
        return np.concatenate(xs, axis)

    def stack(self, xs: list[Any], axis: int) -> np.ndarray:
        return np.stack(xs, axis)

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(x, shape)

    def known_true(self, x: Any) -> bool:
        return bool(x.all())

    def ints(self, x: Any) -> list[int] | None:
        return [int(i) for i in np.asarray(x).reshape(-1)]

    def put_rows(self, x: Any, page: Any, slot: Any, rows: Any, keep: Any) -> np.ndarray:
        x[page[keep], slot[keep]] = rows[keep]
        return x


# What may not be looked at may be NaN or infinite: plain array code meets it, and does not use it.
_quiet = np.errstate(all="ignore")


class NumpyAdapter:
    """framework_protocol.Adapter for NumPy."""

    name = "numpy"
    namespace = NumpyNamespace()

    def announce(self) -> None:
        pass

    def convert(self, operands: Any) -> Any:
        return operands

    def info(self, name: str, x: Any) -> ArrayInfo:
        if not isinstance(x, np.ndarray | np.generic):
            raise InvalidInput(f"{name} must be a NumPy array like the first argument, but is a {type(x).__name__}.")
        if isinstance(x, np.ma.MaskedArray):
            raise InvalidInput(f"{name} is a masked array, whose mask means nothing here; pass its data.")
        return ArrayInfo(x.shape, x.dtype.name, "cpu")

    def signature(self, arrays: Any) -> Any:
        return tuple([None if x is None else (type(x), x.shape, x.dtype) for x in arrays])

    def needs_grad(self, *arrays: Any) -> bool:
        return False

    @_quiet
    def run(self, plan: Plan, operands: Operands, need_lse: bool = True) -> tuple[Any, Any]:
        return backend_list.load(plan.backend).forward(plan, operands)

    @_quiet
    def run_backward(
        self, plan: Plan, operands: Operands, out: Any, lse: Any, dout: Any, dlse: Any | None
    ) -> Gradients:
        wanted = Gradients(True, True, True, operands.bias is not None, operands.sinks is not None)
        return backend_list.load(plan.backend).backward(plan, operands, out, lse, dout, dlse, wanted)

    @_quiet
    def run_paged(self, plan: Plan, operands: PagedOperands) -> tuple[Any, Any]:
        return backend_list.load(plan.backend).paged(plan, operands)

    @_quiet
    def run_append(self, plan: Plan, operands: PagedOperands, k: Any, v: Any) -> tuple[Any, Any | None]:
        if not all(x is None or x.flags.writeable for x in (operands.k_pages, operands.v_pages)):
            raise InvalidInput("append_to_pages: the pages are read-only; they are written in place.")
        return backend_list.load(plan.backend).append(plan, operands, k, v)

    @_quiet
    def run_merge(self, states: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        cpu = backend_list.load("cpu")
        return merge_reference.merge(self.namespace, states) if cpu.missing() else cpu.merge("numpy", states)

    def scalar(self, value: float, like: Any) -> Any:
        return np.float32(value)


adapter = NumpyAdapter()
