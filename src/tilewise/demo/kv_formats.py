"""How keys and values lie in the pages: the dtype, and for 8-bit pages one scale a layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilewise.demo.llama import Llama, dense_attention

Array = NDArray[Any]

KV_DTYPES: dict[str, Any] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
    "int8": np.dtype(np.int8),
}

# What a text other than the calibration text may exceed its largest value by before it saturates.
HEADROOM = 1.5


@dataclass(frozen=True)
class Scales:
    """Keyword arguments of the paged calls: K = stored * k_scale, both [Hkv]; None for 16 bits and more."""

    k_scale: Array | None = None
    v_scale: Array | None = None


def calibrate(llama: Llama, tokens: Sequence[int], kv_dtype: str) -> list[Scales]:
    """One `Scales` a layer, from the largest key and value of each head over a text (the system prompt)."""
    dtype = KV_DTYPES[kv_dtype]
    if dtype.itemsize > 1:
        return [Scales()] * llama.config.layers
    largest = 127.0 if dtype == np.int8 else float(ml_dtypes.finfo(dtype).max)
    scales: list[Scales] = []

    def attend(_: int, q: Array, k: Array, v: Array) -> Array:
        reach = [np.abs(x).max(axis=(0, 2)) * (HEADROOM / largest) for x in (k, v)]  # [Hkv] each
        scales.append(Scales(*(np.maximum(x, np.finfo(np.float32).tiny).astype(np.float32) for x in reach)))
        return dense_attention(q, k, v)

    llama.forward(tokens, np.arange(len(tokens)), attend)
    return scales
