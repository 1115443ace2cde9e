"""PyTorch as the words of spec/reference.py."""

from __future__ import annotations

import math
from typing import Any

import torch

from tilewise.spec.problem import PAGE_DTYPES

DTYPES = {name: getattr(torch, name) for name in (*PAGE_DTYPES, "bool", "int32", "int64")}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BYTES = (torch.float8_e4m3fn, torch.float8_e5m2)  # few operators know these; what only moves them can move bytes


class TorchNamespace:
    """framework_protocol.Namespace for PyTorch. New tensors lie on the device of a surrounding `with device:`."""

    inf, nan = math.inf, math.nan
    exp, log, tanh, isfinite = (staticmethod(f) for f in (torch.exp, torch.log, torch.tanh, torch.isfinite))
    round, zeros_like, reshape = (staticmethod(f) for f in (torch.round, torch.zeros_like, torch.reshape))
    clip, matmul, transpose = (staticmethod(f) for f in (torch.clamp, torch.matmul, torch.permute))
    broadcast, stack = staticmethod(torch.broadcast_to), staticmethod(torch.stack)

    def real(self, dtype: str) -> torch.dtype:
        return torch.float64 if dtype == "float64" else torch.float32

    def cast(self, x: Any, dtype: Any) -> torch.Tensor:
        return x.to(DTYPES[dtype] if isinstance(dtype, str) else dtype)

    def dtype_of(self, x: Any) -> torch.dtype:
        return x.dtype

    def arange(self, n: int) -> torch.Tensor:
        return torch.arange(n, dtype=torch.int32)

    def full(self, shape: tuple[int, ...], value: Any, dtype: Any = "bool") -> torch.Tensor:
        return torch.full(shape, value, dtype=DTYPES[dtype] if isinstance(dtype, str) else dtype)

    def where(self, condition: Any, a: Any, b: Any) -> torch.Tensor:
        return torch.where(condition, a, b)

    def max(self, x: Any, axis: int) -> torch.Tensor:
        return torch.amax(x, axis, keepdim=True)

    def sum(self, x: Any, axis: int) -> torch.Tensor:
        return torch.sum(x, axis, keepdim=True, dtype=x.dtype)

    def take(self, x: Any, index: Any) -> torch.Tensor:
        if x.dtype in _BYTES:
            return x.view(torch.uint8)[index].view(x.dtype)
        return x[index]

    def concat(self, xs: list[Any], axis: int) -> torch.Tensor:
        return torch.cat(xs, axis)

    def known_true(self, x: Any) -> bool:
        return bool(x.all())

    def ints(self, x: Any) -> list[int] | None:
        return x.reshape(-1).tolist()

    def put_rows(self, x: Any, page: Any, slot: Any, rows: Any, keep: Any) -> torch.Tensor:
        where, values = (page[keep], slot[keep]), rows[keep] if rows.dtype not in _BYTES else None
        if values is None:
            x.view(torch.uint8)[where] = rows.view(torch.uint8)[keep]
        else:
            x[where] = values
        return x
