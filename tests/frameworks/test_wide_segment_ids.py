"""Segment ids that int32 cannot hold are not made equal where nobody can refuse them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewise as tw
from tests.conftest import require


@pytest.mark.parametrize("backend", ["cpu", "composed"])
def test_jax(backend: str) -> None:
    jax = require("jax")
    with jax.enable_x64(True):
        x = jax.numpy.ones((1, 2, 1, 4), "float32")
        ids = jax.numpy.array([[2**32, 7]]), jax.numpy.array([[2**33, 7]])
        call = jax.jit(lambda x, q, k: tw.attention(x, x, x, q_segment_ids=q, kv_segment_ids=k, backend=backend))
        out = np.asarray(call(x, *ids))[0, :, 0, 0]
    assert out.tolist() == [0.0, 1.0]
