"""torch.nn.functional.scaled_dot_product_attention on [B, H, N, D]: its flash kernel."""

from __future__ import annotations

from typing import Any

NAME = "torch SDPA"


def forward(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """[B, H, T, E]."""
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, is_causal=causal)


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The only way to a sliding window: a dense bool mask [T, S]."""
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, attn_mask=mask)
