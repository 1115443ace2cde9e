"""One small call of every kind, as NumPy float64 arrays, with its oracle: what each framework's tests compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewise as tw

B, T, S, H, K, D, E = 2, 5, 7, 4, 2, 8, 6
BACKENDS = [
    pytest.param("cpu", marks=pytest.mark.skipif(tw.backends()["cpu"] is not None, reason=str(tw.backends()["cpu"]))),
    "composed",
]
KINDS = ("causal", "window", "softcap", "bias", "sinks", "mask", "segments", "lens", "all", "packed")


class Call(NamedTuple):
    """Arrays that want gradients, arrays that do not, and options."""

    arrays: dict[str, np.ndarray]  # q, k, v, then bias and sinks where the kind has them
    others: dict[str, np.ndarray]
    options: dict[str, Any]
    dout: np.ndarray
    dlse: np.ndarray
    out: np.ndarray
    lse: np.ndarray
    gradients: dict[str, np.ndarray]


def call_of(kind: str) -> Call:
    """The call of one of KINDS and its oracle: spec/reference.py in float64."""
    rng = np.random.default_rng(KINDS.index(kind))
    arrays, others, options = _inputs(kind, rng)
    packed = kind == "packed"
    forward: Any = tw.attention_packed if packed else tw.attention
    backward: Any = tw.attention_packed_backward if packed else tw.attention_backward
    out, lse = forward(**arrays, **others, **options, return_lse=True, backend="composed")
    dout, dlse = rng.standard_normal(out.shape), rng.standard_normal(lse.shape)
    grads = backward(**arrays, **others, out=out, lse=lse, dout=dout, dlse=dlse, **options, backend="composed")
    return Call(arrays, others, options, dout, dlse, out, lse, {name: getattr(grads, name) for name in arrays})


def _inputs(kind: str, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    normal = rng.standard_normal
    if kind == "packed":
        arrays = {"q": normal((9, H, D)), "k": normal((11, K, D)), "v": normal((11, K, E))}
        starts = {"q_starts": np.array([1, 1, 4, 8], np.int32), "kv_starts": np.array([0, 3, 4, 10], np.int32)}
        return arrays, starts, {"causal": True}
    arrays = {"q": normal((B, T, H, D)), "k": normal((B, S, K, D)), "v": normal((B, S, K, E))}
    others: dict[str, np.ndarray] = {}
    options: dict[str, Any] = {}
    if kind in ("bias", "all"):
        arrays["bias"] = normal((1, H, T, 1))
    if kind in ("sinks", "all"):
        arrays["sinks"] = normal(H)
    if kind == "mask":
        others["mask"] = rng.random((B, 1, T, S)) > 0.4
    if kind == "segments":
        others["q_segment_ids"] = rng.integers(-1, 2, (B, T)).astype(np.int32)
        others["kv_segment_ids"] = rng.integers(-1, 2, (B, S)).astype(np.int32)
    if kind in ("lens", "all"):
        others["q_lens"], others["kv_lens"] = np.array([3, 5], np.int32), np.array([7, 2], np.int32)
    options |= {"causal": True} if kind in ("causal", "all") else {}
    options |= {"window": (2, 1)} if kind == "window" else {}
    options |= {"softcap": 2.0} if kind in ("softcap", "all") else {}
    return arrays, others, options


class Paged(NamedTuple):
    """A step over pages in NumPy: three sequences, the last one empty; page-table padding is -1."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    kv_pages: Any
    batch: dict[str, np.ndarray]
    scales: dict[str, Any]


def paged_step(dtype: str, combined: bool) -> Paged:
    """Pages of a dtype, in either form; 8-bit ones with scales."""
    from tilewise.frameworks.numpy_adapter import DTYPES

    rng = np.random.default_rng(7)
    width = D if combined else E
    k_pages, v_pages = rng.standard_normal((9, 3, K, D)), rng.standard_normal((9, 3, K, width))
    scales: dict[str, Any] = {}
    if dtype in ("int8", "float8_e4m3fn", "float8_e5m2"):
        scales = {"k_scale": (rng.random(K) + 0.1).astype(np.float32), "v_scale": 0.5}
    if dtype == "int8":
        k_pages, v_pages = np.rint(20 * k_pages), np.rint(20 * v_pages)
    k_pages, v_pages = k_pages.astype(DTYPES[dtype]), v_pages.astype(DTYPES[dtype])
    pages: Any = np.stack([k_pages, v_pages], 3).reshape(9, 3, 2 * K, D) if combined else (k_pages, v_pages)
    batch = {
        "kv_lens": np.array([5, 9, 0], np.int32),
        "page_indices": np.array([[3, 1, -1], [8, 0, 2], [-1, -1, -1]], np.int32),
        "cu_q_lens": np.array([0, 2, 3, 3], np.int32),
    }
    new = [rng.standard_normal(shape).astype(np.float32) for shape in ((5, H, D), (5, K, D), (5, K, width))]
    return Paged(*new, pages, batch, scales)


def map_pages(function: Callable[[Any], Any], pages: Any) -> Any:
    """The function of each array of either page form."""
    return tuple(function(x) for x in pages) if isinstance(pages, tuple | list) else function(pages)
