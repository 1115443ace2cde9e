"""vmap over an axis of size 0: results of the right shapes, no division by it."""

from __future__ import annotations

import tilewise as tw
from tests.conftest import require


def test_torch() -> None:
    torch = require("torch")
    x = torch.zeros(0, 1, 4, 2, 8)
    assert torch.func.vmap(lambda a: tw.attention(a, a, a))(x).shape == x.shape


def test_jax() -> None:
    jax = require("jax")
    x = jax.numpy.zeros((0, 1, 4, 2, 8))
    assert jax.vmap(lambda a: tw.attention(a, a, a))(x).shape == x.shape
    assert jax.vmap(jax.grad(lambda a: tw.attention(a, a, a).sum()))(x).shape == x.shape
