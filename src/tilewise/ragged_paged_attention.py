"""ragged_paged_attention() and append_to_pages(): serving over a paged cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewise.attention import infos, known_plan, plan_key, remember
from tilewise.choose.plan import make_plan
from tilewise.errors import InvalidInput
from tilewise.frameworks.detect import detect, entry
from tilewise.spec import validate
from tilewise.spec.attention_spec import Window
from tilewise.spec.problem import PagedOperands

Array = Any


@entry
def ragged_paged_attention(
    q: Array,
    kv_pages: Array | tuple[Array, Array],
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: Array | None = None,
    *,
    scale: float | None = None,
    causal: bool = True,
    window: Window | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    draft_mask: Array | None = None,
    batch_invariant: bool = False,
    return_lse: bool = False,
    backend: str | None = None,
) -> Any:
    """Attention of a ragged batch over a paged cache: decode, chunked prefill and prefill rows in one call.

    The queries of sequence i are rows cu_q_lens[i] .. cu_q_lens[i + 1] - 1 of q: its last q_len positions.
    Its key at position p lies in slot p % page_size of page page_indices[i, p // page_size].
    Method: ragged paged attention as in the JAX and vLLM TPU kernels; split keys as in Flash-Decoding.

    Args:
        q: [max_tokens, H, D].
        kv_pages: [num_pages, page_size, 2 * Hkv, D] with K at even and V at odd heads, or a pair
            (k_pages [num_pages, page_size, Hkv, D], v_pages [num_pages, page_size, Hkv, E]); float32, bfloat16,
            float16, float64, int8, float8_e4m3fn or float8_e5m2.
        kv_lens: int32 or int64 [max_seqs]; keys of each sequence, the step's new tokens included.
        page_indices: int [max_seqs, pages_per_seq]; entries of pages that no query of the step sees are never read.
        cu_q_lens: int [max_seqs + 1], not falling. num_seqs: int [1] or (), the sequences that are real; None: all.
        k_scale, v_scale: K = stored * k_scale, positive; a number or a float array: scalar, [Hkv] or
            [num_pages, page_size, Hkv].
        draft_mask: bool [max_tokens, max_new]: query r sees its sequence's new token c iff draft_mask[r, c]
            (speculative decoding); in place of causality (a right side of 0, however it was said) among new tokens.
            The left side, a right side above 0 without causal=True, and lengths still hold.
        batch_invariant: a row's bits do not depend on what else is in the batch.
        others: as in attention(); causal is True by default.

    Returns:
        out: [max_tokens, H, E] in q's dtype; rows past cu_q_lens[num_seqs] are 0. With return_lse,
        (out, lse [H, max_tokens]), natural log, float32 (float64 for float64), -inf where nothing is visible.

    Raises:
        InvalidInput, Unsupported: as attention(). NumPy and torch-CPU calls also judge the values.
    """
    adapter = detect(q)
    operands = paged_operands(adapter, q, {
        "q": q, "kv_pages": kv_pages, "kv_lens": kv_lens, "page_indices": page_indices, "cu_q_lens": cu_q_lens,
        "num_seqs": num_seqs, "sinks": sinks, "k_scale": k_scale, "v_scale": v_scale, "draft_mask": draft_mask,
    })  # fmt: skip
    if adapter.needs_grad(*operands):
        raise InvalidInput(
            "ragged_paged_attention: it is for serving and has no gradient, but an input wants one; "
            "detach it (or use attention_packed for training)."
        )
    key = plan_key(adapter, operands, ("paged", scale, causal, softcap, batch_invariant, backend), window)
    plan = known_plan(key)
    if plan is None:
        spec, problem = validate.ragged_paged_attention(
            infos(adapter, operands._asdict()), framework=adapter.name, causal=causal, window=window, scale=scale,
            softcap=softcap, batch_invariant=batch_invariant,
        )  # fmt: skip
        plan = remember(key, make_plan(spec, problem, backend))
    out, lse = adapter.run_paged(plan, operands)
    return (out, lse) if return_lse else out


@entry
def append_to_pages(
    kv_pages: Array | tuple[Array, Array],
    k: Array,
    v: Array,
    kv_lens: Array,
    page_indices: Array,
    cu_q_lens: Array,
    num_seqs: Array | None = None,
    *,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    backend: str | None = None,
) -> Any:
    """Write a step's new keys and values into their pages; call it before ragged_paged_attention, with the same arrays.

    Row r of sequence i goes to position kv_lens[i] - q_len + r. 8-bit pages store x / scale rounded to nearest even;
    what is larger than the largest finite value becomes that value.
    NumPy and PyTorch pages are written in place and returned; JAX and MLX return new arrays (under jit, donate them).

    Args:
        kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, k_scale, v_scale: as in ragged_paged_attention().
        k, v: [max_tokens, Hkv, D] and [max_tokens, Hkv, E]; rows past cu_q_lens[num_seqs] are ignored.

    Returns:
        The pages, in the form given.

    Raises:
        InvalidInput, Unsupported: as ragged_paged_attention(); also if a sequence has more new tokens than kv_lens
            count. Nothing is written then.
    """
    adapter = detect(k)
    operands = paged_operands(adapter, k, {
        "q": None, "kv_pages": kv_pages, "kv_lens": kv_lens, "page_indices": page_indices, "cu_q_lens": cu_q_lens,
        "num_seqs": num_seqs, "k_scale": k_scale, "v_scale": v_scale,
    })  # fmt: skip
    if adapter.needs_grad(k, v, operands.k_pages, operands.v_pages):
        raise InvalidInput("append_to_pages: it has no gradient, but an input wants one; detach it.")
    key = plan_key(adapter, (k, v, *operands[1:]), ("append", backend))
    plan = known_plan(key)
    if plan is None:
        given = {name: x for name, x in operands._asdict().items() if name != "q"}
        spec, problem = validate.append_to_pages(infos(adapter, {"k": k, "v": v, **given}), framework=adapter.name)
        plan = remember(key, make_plan(spec, problem, backend))
    k_pages, v_pages = adapter.run_append(plan, operands, k, v)
    return k_pages if v_pages is None else (k_pages, v_pages)


def paged_operands(adapter: Any, like: Array, given: dict[str, Any]) -> PagedOperands:
    """Takes the arrays out of a call's arguments, as its backend gets them: both page forms, numbers as scales."""
    k_pages, v_pages = split_pages(given.pop("kv_pages"))
    arrays = {name: given.pop(name) for name in PagedOperands._fields if name in given}
    for name in ("k_scale", "v_scale"):
        arrays[name] = _scale_array(adapter, like, arrays[name])
    return adapter.convert(PagedOperands(k_pages=k_pages, v_pages=v_pages, **arrays))


def split_pages(kv_pages: Any) -> tuple[Array, Array | None]:
    """(k_pages, v_pages); v_pages is None for the combined form."""
    if not isinstance(kv_pages, tuple | list):
        return kv_pages, None
    if len(kv_pages) != 2:
        raise InvalidInput(f"kv_pages must be one array or a pair (k_pages, v_pages), but has {len(kv_pages)} parts.")
    if kv_pages[0] is None or kv_pages[1] is None:
        raise InvalidInput("kv_pages must be one array or a pair (k_pages, v_pages), but a part of the pair is None.")
    return kv_pages[0], kv_pages[1]


def _scale_array(adapter: Any, like: Array, scale: Any) -> Any:
    """A Python number becomes a scalar array on the device of `like`."""
    if isinstance(scale, int | float | np.floating | np.integer) and not isinstance(scale, bool):
        if not 2.0**-126 <= scale <= 2.0**127:
            raise InvalidInput(f"k_scale and v_scale must be positive and finite in float32, but one is {scale}.")
        return scale if isinstance(scale, np.generic) else adapter.scalar(float(scale), like)
    return scale
