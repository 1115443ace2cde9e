"""torch over pages: gather a sequence's pages into contiguous KV, then SDPA. What one writes without a paged kernel."""

from __future__ import annotations

from typing import Any

from tilewise.bench.rivals import torch_folded

NAME = "torch gather + SDPA"


def decode(q: Any, k_pages: Any, v_pages: Any, pages: Any) -> Any:
    """q [B, H, D], pages int64 [B, S / page_size], all sequences of one length -> [B, H, D]."""
    return torch_folded.decode(q, _gather(k_pages, pages), _gather(v_pages, pages))


def mixed(q: Any, k_pages: Any, v_pages: Any, sequences: list[tuple[slice, int, Any, Any]]) -> Any:
    """A loop over sequences (rows of q, kv_len, pages [n], mask [T, S] or None for one token) -> [tokens, H, D]."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    out = torch.empty_like(q)
    for rows, kv_len, pages, mask in sequences:
        k, v = (_gather(x, pages[None])[:, :, :kv_len] for x in (k_pages, v_pages))
        if mask is None:
            out[rows] = torch_folded.decode(q[rows], k, v)
        else:
            one = scaled_dot_product_attention(q[rows].transpose(0, 1)[None], k, v, attn_mask=mask, enable_gqa=True)
            out[rows] = one[0].transpose(0, 1)
    return out


def _gather(pool: Any, pages: Any) -> Any:
    """[N, P, Hkv, D] and [B, n] -> [B, Hkv, n * P, D]."""
    batch, count = pages.shape
    return pool[pages].view(batch, count * pool.shape[1], *pool.shape[2:]).transpose(1, 2)
