"""From sizes on the command line to the Explanation of a call, judged at the same door as calls with arrays."""

from __future__ import annotations

from typing import Any

from tilewise.choose.plan import answers
from tilewise.cli import sizes
from tilewise.cli.choices import one_of
from tilewise.errors import InvalidInput
from tilewise.explain import Explanation
from tilewise.frameworks.detect import ADAPTERS
from tilewise.spec import validate
from tilewise.spec.problem import ArrayInfo


class _Arrays(dict[str, ArrayInfo | None]):
    """Arrays of a call, by name, on one device."""

    def __init__(self, device: str, framework: str) -> None:
        super().__init__()
        self.device = device
        if framework not in ADAPTERS or framework == "jaxlib":
            raise InvalidInput(f"--framework must be numpy, torch, jax or mlx, but is {framework!r}.")

    def put(self, name: str, shape: tuple[int, ...], dtype: str = "int32") -> None:
        self[name] = ArrayInfo(shape, dtype, self.device)


def dense_lengths(q: str, kv: str) -> tuple[int, int]:
    """(T, S) of a dense call."""
    return sizes.shape("--q", q, "B T H D")[1], sizes.shape("--kv", kv, "B S Hkv D")[1]


def dense(q: str, kv: str, v_dim: int | None, *, dtype: str, framework: str, device: str, bias: bool, mask: bool,
          sinks: bool, segments: bool, lens: bool, layout: str, grad: bool, **options: Any) -> Explanation:  # fmt: skip
    """attention() of q [B, T, H, D] and keys [B, S, Hkv, D]."""
    arrays = _Arrays(device, framework)
    b, t, h, d = sizes.shape("--q", q, "B T H D")
    k_b, s, k_h, k_d = sizes.shape("--kv", kv, "B S Hkv D")
    shapes = {"q": (b, t, h, d), "k": (k_b, s, k_h, k_d), "v": (k_b, s, k_h, v_dim or k_d)}
    for name, (batch, length, heads, width) in shapes.items():
        arrays.put(name, (batch, length, heads, width) if layout == "bthd" else (batch, heads, length, width), dtype)
    if bias:
        arrays.put("bias", (b, h, t, s), dtype)
    if mask:
        arrays.put("mask", (b, h, t, s), "bool")
    if sinks:
        arrays.put("sinks", (h,), "float32")
    if segments:
        arrays.put("q_segment_ids", (b, t))
        arrays.put("kv_segment_ids", (b, s))
    if lens:
        arrays.put("q_lens", (b,))
        arrays.put("kv_lens", (b,))
    judged = validate.attention(arrays, framework=framework, needs_grad=grad, layout=layout, **options)
    return Explanation(*judged, tuple(answers(*judged)))


def packed(q: str, kv: str, v_dim: int | None, sequences: list[tuple[int, int]], *, dtype: str, framework: str,
           device: str, sinks: bool, grad: bool, **options: Any) -> Explanation:  # fmt: skip
    """attention_packed() of q [tokens, H, D] and keys [kv_tokens, Hkv, D]."""
    arrays = _Arrays(device, framework)
    tokens, h, d = sizes.shape("--q", q, "TOKENS H D")
    kv_tokens, k_h, k_d = sizes.shape("--kv", kv, "TOKENS Hkv D")
    _fit(sequences, tokens, "query", 0)
    _fit(sequences, kv_tokens, "key", 1)
    arrays.put("q", (tokens, h, d), dtype)
    arrays.put("k", (kv_tokens, k_h, k_d), dtype)
    arrays.put("v", (kv_tokens, k_h, v_dim or k_d), dtype)
    if sinks:
        arrays.put("sinks", (h,), "float32")
    for name in ("q_starts", "kv_starts"):
        arrays.put(name, (max(1, len(sequences)) + 1,))
    judged = validate.attention_packed(arrays, framework=framework, needs_grad=grad, **options)
    return Explanation(*judged, tuple(answers(*judged)))


def paged(q: str, kv: str, v_dim: int | None, sequences: list[tuple[int, int]], *, dtype: str, framework: str,
          device: str, sinks: bool, page_dtype: str, kv_scale: str, draft: int | None,
          **options: Any) -> Explanation:  # fmt: skip
    """ragged_paged_attention() of q [tokens, H, D] over pages [N, P, Hkv, D]."""
    arrays = _Arrays(device, framework)
    tokens, h, d = sizes.shape("--q", q, "TOKENS H D")
    pages, size, k_h, k_d = sizes.shape("--kv", kv, "PAGES PAGE_SIZE Hkv D")
    _fit(sequences, tokens, "query", 0)
    arrays.put("q", (tokens, h, d), dtype)
    arrays.put("k_pages", (pages, size, k_h, k_d), page_dtype)
    arrays.put("v_pages", (pages, size, k_h, v_dim or k_d), page_dtype)
    seqs = len(sequences) or tokens
    per_seq = max((-(-keys // max(1, size)) for _, keys in sequences), default=pages)
    arrays.put("kv_lens", (seqs,))
    arrays.put("page_indices", (seqs, per_seq))
    arrays.put("cu_q_lens", (seqs + 1,))
    if sinks:
        arrays.put("sinks", (h,), "float32")
    scales: dict[str, tuple[int, ...] | None] = {"none": None, "scalar": (), "head": (k_h,), "slot": (pages, size, k_h)}
    scale_shape = scales[one_of("--kv-scale", kv_scale, scales)]
    if scale_shape is not None:
        arrays.put("k_scale", scale_shape, "float32")
        arrays.put("v_scale", scale_shape, "float32")
    if draft is not None:
        arrays.put("draft_mask", (tokens, draft), "bool")
    judged = validate.ragged_paged_attention(arrays, framework=framework, **options)
    return Explanation(*judged, tuple(answers(*judged)))


def _fit(sequences: list[tuple[int, int]], total: int, what: str, side: int) -> None:
    used = sum(sequence[side] for sequence in sequences)
    if used > total:
        raise InvalidInput(f"the sequences have {used} {what} tokens, but there is room for {total}.")
