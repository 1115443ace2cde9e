"""jax.nn.dot_product_attention under jit, on [B, N, H, D]."""

from __future__ import annotations

from functools import partial
from typing import Any

NAME = "jax.nn.dot_product_attention"


def forward(causal: bool) -> Any:
    """A jitted function of (q, k, v)."""
    import jax

    return jax.jit(partial(jax.nn.dot_product_attention, is_causal=causal))
