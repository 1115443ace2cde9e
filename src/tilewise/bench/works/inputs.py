"""Inputs that several works share."""

from __future__ import annotations

from typing import Any, NamedTuple

SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64", "int8": "int8",
         "float8_e4m3fn": "fp8"}  # fmt: skip


class Square(NamedTuple):
    """A dense call of `length` queries and keys."""

    dtype: str
    width: int
    length: int
    causal: bool


def qkv(dtype: str, *, batch: int = 1, heads: int = 8, length: int, width: int, count: int = 3) -> list[Any]:
    """Normal torch tensors [B, H, N, D]."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = (batch, heads, length, width)
    return [torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for _ in range(count)]


def use_threads(threads: int) -> None:
    """Give torch and tilewise that many."""
    import torch

    import tilewise as tw
    from tilewise.backends.cpu import library

    torch.set_num_threads(threads)
    if library.missing() is None:
        tw.set_num_threads(threads)


def difference(a: Any, b: Any) -> float:
    """Largest |a - b| of two torch tensors."""
    return float((a.double() - b.double()).abs().max())


def dense_flops(form: str, *, batch: int = 1, heads: int = 8, length: int, width: int, causal: bool = False) -> float:
    """4 B H N^2 D forward and 10 B H N^2 D backward, half of it when causal: the convention of the papers."""
    whole = {"forward": 4, "backward": 10}[form] * batch * heads * length**2 * width
    return whole / 2 if causal else whole
