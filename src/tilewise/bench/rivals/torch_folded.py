"""torch SDPA for decode on KV that already lies contiguous, query heads folded into rows by hand: no pages."""

from __future__ import annotations

from typing import Any

NAME = "torch on contiguous KV, folded by hand"


def decode(q: Any, k: Any, v: Any) -> Any:
    """q [B, H, D], k and v [B, Hkv, S, D] -> [B, H, D]."""
    from torch.nn.functional import scaled_dot_product_attention

    batch, heads, width = q.shape
    kv_heads = k.shape[1]
    out = scaled_dot_product_attention(q.view(batch, kv_heads, heads // kv_heads, width), k, v)
    return out.reshape(batch, heads, width)
